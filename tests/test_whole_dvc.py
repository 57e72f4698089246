"""DVC's own files are written beside and renamed, and a kill in that moment leaves the old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aero.pipeline import ROOT

PIPELINE = {
    "stages": {f"s{index}": {"cmd": f"echo {index} > out{index}", "outs": [f"out{index}"]} for index in range(3)}
}
# Dies in the middle of the second writing of dvc.lock.
KILLED = """
import io, os, signal, sys
{importing}
from dvc.utils.serialize import _yaml
dump, written = _yaml._dump, []
def dying(data, stream):
    written.append(stream.name)
    if len(written) < 2:
        return dump(data, stream)
    buffer = io.StringIO()
    dump(data, buffer)
    text = buffer.getvalue()
    stream.write(text[: len(text) * 2 // 3])
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
_yaml._dump = dying
from dvc.cli import main
sys.exit(main(["repro"]))
"""


def dvc(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_SITE_CACHE_DIR": str(folder / "site")}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    return tmp_path


def locked(folder):
    return list(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


def test_killed_while_it_writes_the_lock_it_leaves_the_one_before(folder):
    assert dvc(folder, "-c", KILLED.format(importing="import aero.whole_dvc")).returncode == -9
    assert locked(folder) == ["s0"]
    finished = dvc(folder, "-m", "aero.whole_dvc", "repro")
    assert finished.returncode == 0 and locked(folder) == ["s0", "s1", "s2"], finished.stderr
    assert not Path(folder / "dvc.lock.tmp").exists()


def test_dvc_itself_leaves_a_part(folder):
    """Why this module is there: when this fails, DVC does it by itself and the module can go."""
    assert dvc(folder, "-c", KILLED.format(importing="")).returncode == -9
    with pytest.raises((yaml.YAMLError, AssertionError, KeyError, TypeError)):
        assert locked(folder) == ["s0"]
        yaml_of_s0 = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]["s0"]
        assert yaml_of_s0["outs"][0]["md5"] and len(yaml_of_s0["outs"][0]["md5"]) == 32


# Dies in the middle of a writing of the list of locks, while a stage holds one.
KILLED_AMONG_LOCKS = """
import json, os, signal, sys, types
{importing}
from dvc import rwlock
written = []
def dump(data, stream):
    written.append(1)
    text = json.dumps(data)
    if len(written) == 2:
        stream.write(text[: len(text) // 2])
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    stream.write(text)
rwlock.json = types.SimpleNamespace(load=json.load, JSONDecodeError=json.JSONDecodeError, dump=dump)
from dvc.cli import main
sys.exit(main(["repro"]))
"""


def test_killed_while_it_writes_the_list_of_its_locks_it_goes_on(folder):
    assert dvc(folder, "-c", KILLED_AMONG_LOCKS.format(importing="import aero.whole_dvc")).returncode == -9
    finished = dvc(folder, "-m", "aero.whole_dvc", "repro")
    assert finished.returncode == 0 and locked(folder) == ["s0", "s1", "s2"], finished.stderr
    assert not (folder / ".dvc/tmp/rwlock.tmp").exists()


def test_dvc_itself_refuses_its_own_list_and_this_makes_it_anew(folder):
    """Why the list is looked after: when this fails, DVC does it by itself."""
    assert dvc(folder, "-c", KILLED_AMONG_LOCKS.format(importing="")).returncode == -9
    refused = dvc(folder, "-m", "dvc", "repro")
    assert refused.returncode != 0 and "JSON structure is corrupted" in refused.stderr
    finished = dvc(folder, "-m", "aero.whole_dvc", "repro")
    assert finished.returncode == 0 and "half-written by a DVC that was killed" in finished.stderr
    assert locked(folder) == ["s0", "s1", "s2"]


def test_many_jobs_lose_no_result_and_leave_the_lock_whole(folder):
    """As `make repro JOBS=4` runs them: each stage a process of DVC's, which wait for each other's locks."""
    stages = [f"train@{index}" for index in range(8)]
    matrix = {"train": {"matrix": {"run": list(range(8))}, "cmd": "echo ${item.run} > out${item.run}"}}
    matrix["train"] |= {"outs": ["out${item.run}"]}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": matrix}))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DVC_SITE_CACHE_DIR": str(folder / "site")}
    command = ["xargs", "-r", "-P", "4", "-n", "1", sys.executable, "-m", "aero.whole_dvc", "--wait-for-lock", "repro"]
    names = "".join(f"{name}\n" for name in stages)
    finished = subprocess.run(
        [*command, "-s"], cwd=folder, env=environment, input=names, capture_output=True, text=True, timeout=240
    )
    assert finished.returncode == 0, finished.stderr
    assert sorted(locked(folder)) == sorted(stages)
    assert [(folder / f"out{index}").read_text() for index in range(8)] == [f"{index}\n" for index in range(8)]
    checked = dvc(folder, "-m", "aero.whole_dvc", "status")
    assert checked.returncode == 0 and "up to date" in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.parametrize("through", ["dvc", "aero.whole_dvc"])
@pytest.mark.parametrize("place", ["seeds", "corpora"])
def test_no_value_of_the_parameters_is_a_command(folder, place, through):
    """DVC by itself runs what stands there: when that fails, DVC does it by itself and the check can go."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    hostile = "1337; touch owned; true"
    if place == "seeds":
        values["seeds"] = [hostile]
        stage = {"matrix": {"seed": "${seeds}"}, "cmd": "echo --seed ${item.seed}"}
    else:
        values["corpora"][hostile] = values["corpora"].pop(values["families"]["languini-gpt2"]["corpus"])
        values["families"]["languini-gpt2"]["corpus"] = hostile
        stage = {"cmd": "echo --corpus ${families.languini-gpt2.corpus}"}
    (folder / "params.yaml").write_text(yaml.safe_dump(values))
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": stage}}))
    finished = dvc(folder, "-m", through, "repro")
    assert (folder / "owned").exists() == (through == "dvc"), finished.stderr
    if through != "dvc":
        assert finished.returncode == 1 and finished.stdout == ""
        assert finished.stderr.startswith("error: params.yaml: ") and finished.stderr.count("\n") == 1
