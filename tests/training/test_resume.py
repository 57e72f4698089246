"""Trainings killed with SIGKILL, as processes: the end is the one of a training that was never killed."""

import fcntl
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from killed_calls import COUNTED
from small_project import finish, one_line_error, stage, start, timeless, whole_lines, without_seconds

from aero.architecture import parse
from aero.checkpoint import read_tensors, write_tensors
from aero.errors import LONGEST_LINE
from aero.model import GPT, ModelConfig
from aero.training import state
from aero.training.loop import Outcome

LONG = {"steps": 150, "checkpoint_every": 11, "log_every": 1, "evaluate_every": 40}


@pytest.mark.parametrize(
    "run",
    [pytest.param("ereg-smt-scfuffni-6", marks=pytest.mark.slow), pytest.param("sm-ln-g", marks=pytest.mark.nightly)],
)
def test_killed_at_random_steps_ends_as_if_never_killed(project, run):
    folder = project(train=LONG)
    assert stage(folder, "train", run, "--out", "whole").returncode == 0
    expected = without_seconds(folder / "whole/log.csv")
    log = folder / "cut/log.unfinished.csv"
    points = sorted(random.sample(range(2, 110), 3))
    for point in points:
        process = start(folder, "-m", "stages.train", run, "--out", "cut")
        while process.poll() is None and len(whole_lines(log)) <= point:
            time.sleep(0.001)
        assert process.poll() is None, f"over before step {point} of {points}: {process.communicate()}"
        process.kill()
        process.communicate()
        seen = without_seconds(log)
        assert point < len(seen) < len(expected) and seen == expected[: len(seen)], points
        assert not (folder / "cut/metrics.json").exists()
    finished = stage(folder, "train", run, "--out", "cut")
    assert finished.returncode == 0 and "starting anew" not in finished.stdout, finished.stdout
    assert without_seconds(folder / "cut/log.csv") == expected and not log.exists(), points
    assert timeless(folder / "cut") == timeless(folder / "whole"), points
    assert (folder / "cut/checkpoint.safetensors").read_bytes() == (
        folder / "whole/checkpoint.safetensors"
    ).read_bytes(), points


def test_two_trainings_do_not_share_a_state(project):
    folder = project()
    place = folder / "out/resume.lock"
    place.parent.mkdir()
    with open(place, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        one_line_error(stage(folder, "train", "sm-r", "--out", "out"), "another process", "resume.lock")
    assert [path.name for path in place.parent.iterdir()] == ["resume.lock"]
    assert stage(folder, "train", "sm-r", "--out", "out").returncode == 0


def test_unless_done_knows_its_own_configuration(project):
    folder = project()
    assert stage(folder, "train", "sm-r", "--out", "out").returncode == 0
    before = (folder / "out/metrics.json").read_bytes()
    assert stage(folder, "train", "sm-r", "--out", "out", "--unless-done").returncode == 0
    assert (folder / "out/metrics.json").read_bytes() == before
    assert stage(folder, "train", "sm-r", "--out", "out", "--unless-done", "--seed", "5").returncode == 0
    assert (folder / "out/metrics.json").read_bytes() != before


@pytest.mark.slow
def test_results_of_an_earlier_training_stay_until_the_new_ones_are_there(project):
    """Killed while it trains, and ended by a disk that is full when it writes: then all is as it was before."""
    folder = project()
    assert stage(folder, "train", "sm-r", "--out", "out").returncode == 0
    files = [folder / "out" / name for name in ("log.csv", "entropy.json", "checkpoint.safetensors", "metrics.json")]
    before = [path.read_bytes() for path in files]
    process = start(folder, "-m", "stages.train", "sm-r", "--seed", "5", "--out", "out")
    while process.poll() is None and len(whole_lines(folder / "out/log.unfinished.csv")) < 3:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert [path.read_bytes() for path in files] == before
    # A file may have 20 kB: the log has them, the checkpoint has not.
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "sys.argv[1:] = ['sm-r', '--seed', '5', '--out', 'out']; runpy.run_module('stages.train', None, '__main__')"
    )
    (folder / "out/resume.safetensors").unlink(missing_ok=True)
    one_line_error(finish(start(folder, "-c", limited)), "File too large")
    assert [path.read_bytes() for path in files] == before
    left = {path.name for path in (folder / "out").iterdir()} - {path.name for path in files}
    assert left <= {"resume.lock", "log.unfinished.csv"}
    assert stage(folder, "train", "sm-r", "--seed", "5", "--out", "out").returncode == 0
    assert all(path.read_bytes() != old for path, old in zip(files, before, strict=True))
    assert not (folder / "out/log.unfinished.csv").exists()


def test_keep_copies_to_the_results_of_the_scale(project):
    folder = project()
    finished = stage(folder, "train", "sm-r", "--keep", "--seed", "3")
    assert finished.returncode == 0, finished.stderr
    kept = sorted(path.relative_to(folder).as_posix() for path in (folder / "results").rglob("*.*"))
    assert kept == ["results/smoke/curves.jsonl", "results/smoke/entropy.jsonl", "results/smoke/metrics.jsonl"]


KILLED = (
    COUNTED
    + """
import sys
from pathlib import Path
from aero.records import write_together
for name in ("replace", "unlink", "fsync"):
    setattr(os, name, counted(getattr(os, name), int(sys.argv[2])))
write_together({Path(sys.argv[1]) / name: "new" for name in ("one", "other", "last")})
"""
)


def test_killed_between_any_two_of_its_calls_it_leaves_no_mixture_that_looks_whole(tmp_path):
    """Before every flush, removal and renaming in turn; `last` says what the others are."""
    ends = []
    for calls in range(20):
        folder = tmp_path / str(calls)
        folder.mkdir()
        for name in ("one", "other", "last"):
            (folder / name).write_text("old")
        done = subprocess.run([sys.executable, "-c", KILLED, folder, str(calls)], timeout=60)
        found = {name: (folder / name).read_text() for name in ("one", "other", "last") if (folder / name).exists()}
        ends.append("mixed" if "last" not in found else " ".join(sorted(set(found.values()))))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    # Three flushes, the removal of what says what the others are, three renamings.
    assert ends == ["old"] * 4 + ["mixed"] * 3 + ["new"]


ROWS = [{"step": 1, "tokens": 4, "train_loss": 2.0, "overflow_layer_0": 1, "eval_loss": None}, {"step": 3}]
OVERFLOW = {"step": 1, "layer": 0, "value": 7e4}


def small():
    """A model, its optimiser and an enabled scaler, as before the first step."""
    torch.manual_seed(1)
    model = GPT(parse("SM+LN"), ModelConfig(vocabulary=11, context=4, layers=1, heads=1, width=4, ffn_width=8))
    return Outcome(model), torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")


def stored_state(folder):
    """The state of a training in float16 after 3 of its 7 steps."""
    path = folder / "resume.safetensors"
    outcome, optimizer, _ = small()
    for _ in range(3):
        outcome.model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
        optimizer.step()
    outcome.steps_done, outcome.seconds, outcome.rows, outcome.float16_overflow = 3, 2.5, ROWS, OVERFLOW
    state.store(path, "hash", outcome, optimizer, torch.amp.GradScaler("cpu", init_scale=512.0))
    return path


def broken_state(path, change):
    """A state whose hash fits what was changed in it."""
    tensors, header = read_tensors(path, state.FORMAT)
    header.pop("sha256")
    change(tensors, header)
    write_tensors(path, tensors, header)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors, header: tensors.pop("optimizer.exp_avg.ln_f.weight"), "optimizer.exp_avg.ln_f.weight"),
        (lambda tensors, header: tensors.pop("model.ln_f.weight"), "model.ln_f.weight"),
        (lambda tensors, header: header.pop("rows"), "rows"),
    ],
)
def test_a_state_that_does_not_fit_is_ignored_as_a_whole(tmp_path, monkeypatch, change, reason):
    path = stored_state(tmp_path)
    broken_state(path, change)
    lines = []
    monkeypatch.setattr(state.tqdm, "write", lines.append)
    outcome, optimizer, scaler = small()
    before = {name: value.clone() for name, value in outcome.model.state_dict().items()}
    state.restore(path, "hash", outcome, optimizer, scaler)
    (line,) = lines
    assert line.startswith("starting anew") and reason in line and len(line) <= LONGEST_LINE
    assert not optimizer.state and outcome.steps_done == 0 and not outcome.rows and outcome.float16_overflow is None
    assert scaler.state_dict() == small()[2].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in outcome.model.state_dict().items())


def test_a_stored_state_is_restored(tmp_path, monkeypatch):
    path = stored_state(tmp_path)
    broken_state(path, lambda tensors, header: None)
    monkeypatch.setattr(state.tqdm, "write", pytest.fail)
    outcome, optimizer, scaler = small()
    state.restore(path, "hash", outcome, optimizer, scaler)
    assert (outcome.steps_done, outcome.seconds, scaler.get_scale()) == (3, 2.5, 512.0)
    assert outcome.rows == ROWS and outcome.float16_overflow == OVERFLOW
    assert {int(values["step"]) for values in optimizer.state.values()} == {3}
