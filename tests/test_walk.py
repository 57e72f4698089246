"""What a user of DVC and make does first, on a fresh clone of the last commit."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aero.records import ROOT

STAGES = ["tokenize", "train", "two_party", "sensitivity", "report"]


def run(folder, *command, status=0):
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def make(folder, *arguments, status=0):
    """make, with this environment in place of an installation."""
    (folder / ".venv").is_symlink() or (folder / ".venv").symlink_to(sys.prefix)
    return run(folder, "make", "-o", ".venv/.installed", *arguments, status=status)


def changed(clone):
    return run(clone, "git", "status", "--porcelain")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    if not (ROOT / ".git").exists():
        pytest.skip("the project has no git history")
    folder = tmp_path_factory.mktemp("walk") / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


@pytest.mark.slow
def test_what_dvc_says_is_short(clone):
    assert [line.split("'")[1] for line in run(clone, "dvc", "repro", "--dry").splitlines() if "'" in line] == STAGES
    assert len(run(clone, "dvc", "repro", "--all-pipelines", "--dry").split("Running stage")) == len(STAGES) + 4
    assert max(map(len, run(clone, "dvc", "dag").splitlines())) <= 120
    (metrics,) = json.loads(run(clone, "dvc", "metrics", "show", "--json"))[""]["data"].values()
    assert 10 <= sum(map(len, metrics["data"].values())) <= 15
    run(clone, "dvc", "freeze", "report")
    assert run(clone, "git", "diff", "--numstat").split() == ["1", "0", "dvc.yaml"]
    run(clone, "dvc", "unfreeze", "report")
    assert changed(clone) == ""


@pytest.mark.slow
def test_dvc_lock_is_of_this_commit(clone):
    """Only outputs, which git does not keep, are missing (from the tree, and from the cache of a clone); the catalogue
    has no lock. A lock of another commit would show as "modified" or "new"."""
    assert len(run(clone, "dvc", "status").splitlines()) <= 60
    status = json.loads(run(clone, "dvc", "status", "--json"))
    for stage in STAGES:
        assert "changed command" not in status.get(stage, []), stage
        for change in status.get(stage, []):
            for files in change.values():
                assert set(files.values()) <= {"deleted", "not in cache"}, (stage, files)


def test_a_second_make_is_refused(clone):
    (clone / "build/smoke/.dvc/tmp").mkdir(parents=True)
    with open(clone / "build/smoke/.dvc/tmp/make.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another make is running" in make(clone, "repro", "SCALE=smoke", status=2)


@pytest.mark.slow
def test_the_smoke_scale_leaves_the_tree_as_it_was(clone):
    said = make(clone, "repro", "SCALE=smoke")
    assert "training 14 of 14" in said and said.count("git add") <= 1
    assert changed(clone) == ""
    made = clone / "build/smoke"
    assert (made / "reports/report.html").is_file() and (made / "reports/report.pdf").is_file()
    assert "Running stage" not in run(made, "dvc", "repro")


def test_an_archive_without_git_works(clone, tmp_path):
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=clone, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=archive, check=True)
    make(tmp_path, "prepared")
    assert "Running stage 'train'" in run(tmp_path, "dvc", "repro", "--dry")
