"""What a user of DVC and make does first, on a fresh clone of the last commit."""

import fcntl
import json
import os
import re
import shutil
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


def seconds_to_open(page):
    """Until everything in a page is loaded and laid out, the second time, when the browser itself is in memory."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        return 0
    around, frame = page.with_name("around.html"), f'<iframe src="{page.name}" width="1200" height="900"></iframe>'
    loaded = "frames[0].document.body.getBoundingClientRect(); document.body.append(`loaded: ${performance.now()}`)"
    around.write_text(f"{frame}<script>onload = () => {{ {loaded} }}</script>", encoding="utf-8")
    command = (browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom")
    for _ in range(2):
        dom = run(page.parent, *command, f"--user-data-dir={page.parent / 'profile'}", around.as_uri())
    return float(re.search(r"loaded: ([0-9.]+)<", dom)[1]) / 1000


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
    assert "training 5 of 5" in said and said.count("git add") <= 1
    assert changed(clone) == ""
    made = clone / "build/smoke"
    assert "Running stage" not in run(made, "dvc", "repro")
    page, printed = made / "reports/report.html", made / "reports/report.pdf"
    assert page.stat().st_size < 5_000_000
    assert 20 < int(re.search(rb"/Type/Pages/Count (\d+)", printed.read_bytes())[1]) <= 60
    assert seconds_to_open(page) < 2


@pytest.mark.slow
def test_an_experiment_is_shared_changed_and_undone(clone, tmp_path):
    """As in the README, at scale smoke: a remote gives runs back, two settings are two lines, one run trains anew."""
    run(clone, "dvc", "exp", "run", "-S", "scale=smoke", "train")
    run(clone, "dvc", "remote", "add", "--local", "-d", "shared", str(tmp_path / "remote"))
    run(clone, "dvc", "push", "tokenize", "train")
    kept = {path: path.read_bytes() for path in (clone / "runs/default").rglob("checkpoint.safetensors")}
    run(clone, "rm", "-r", "runs", ".dvc/cache")
    run(clone, "dvc", "pull", "tokenize", "train")
    assert kept and all(path.read_bytes() == data for path, data in kept.items())
    settings = ("-S", "scale=smoke", "-S", "runs.sm-r.architecture=SM+G")
    assert "4 of 5 trainings are done" in run(clone, "dvc", "exp", "run", *settings, "train")
    assert run(clone, "git", "diff", "--numstat", "params.yaml").split() == ["2", "2", "params.yaml"]
    shown = run(clone, "dvc", "exp", "show", "--only-changed", "--drop", "contents", "--no-pager").splitlines()
    assert max(map(len, shown)) <= 240
    run(clone, "git", "checkout", "-q", "params.yaml", "dvc.lock")
    assert changed(clone) == ""


def test_an_archive_without_git_works(clone, tmp_path):
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=clone, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=archive, check=True)
    make(tmp_path, "prepared")
    assert "Running stage 'train'" in run(tmp_path, "dvc", "repro", "--dry")
