"""A project folder with parameters of a few steps and token files, and the stages as commands in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from stage_processes import StageProcess

ROOT = Path(__file__).resolve().parents[2]


def make(folder, train=None, regularizer=None):
    """Write params.yaml at the smoke scale, with changes to its training and regulariser."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["scale"] = "smoke"
    values["scales"]["smoke"]["tokens"] |= {"train_bytes": 200_000, "validation_bytes": 30_000}
    values["scales"]["smoke"]["train"] |= train or {}
    values["scales"]["smoke"]["entropy"] = {"tokens": 8192}
    values["tokenizer"]["training_bytes"] = 200_000
    values["regularizer"] |= regularizer or {}
    # A run that cannot be trained: no corpus has so many sequences.
    overrides = {"batch_size": 10_000_000}
    values["runs"]["impossible"] = {"architecture": "SM", "reason": "a test", "overrides": overrides}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.dump(values, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    return folder


def environment(**more):
    # Without git on its path a stage cannot tell the commit, so results do not depend on the state of the checkout.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PATH": "/nonexistent"} | more


def start(folder, *command, **more):
    """A stage, forked unless it needs an environment of its own; or any other command of Python."""
    if command[0] == "-m" and command[1].startswith("stages.") and not more:
        return StageProcess(folder, command[1], [str(word) for word in command[2:]], environment())
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, timeout=180):
    """Wait for the end: a CompletedProcess."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def stage(folder, name, *arguments, **more):
    return finish(start(folder, "-m", f"stages.{name}", *arguments, **more))


def one_line_error(finished, *named):
    assert finished.returncode == 1, finished.stdout + finished.stderr
    lines = [line for line in finished.stderr.strip().splitlines()]
    assert len(lines) == 1 and lines[0].startswith("error: "), finished.stderr
    for text in named:
        assert text in lines[0]


def timeless(folder):
    """metrics.json without what differs between two runs of the same training."""
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["provenance"], metrics["tokens_per_second"]
    return metrics


def whole_lines(path):
    """Complete lines of a log that may be being written, split in cells; empty if there is none yet."""
    if not path.exists():
        return []
    return [line.split(",") for line in path.read_text().split("\n")[:-1]]


def without_seconds(path):
    lines = whole_lines(path)
    place = lines[0].index("seconds")
    return [line[:place] + line[place + 1 :] for line in lines]
