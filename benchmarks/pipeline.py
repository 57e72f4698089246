"""The pipeline itself: how long DVC takes when nothing is to be done, and how much a second job helps.

    python -m benchmarks.pipeline [--scale smoke]

In a clone of this repository's last commit, with DVC's own commands. The default set is trained one at a time and two
at a time, in pairs whose order alternates. Small files stand in for all other outputs, so that nothing else has to be
computed. On that, `dvc repro` and `dvc status` have nothing to do. Writes results/bench/pipeline.json.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from aero.errors import run_main
from aero.records import ROOT
from benchmarks import timing
from benchmarks.timing import ratio, spread

FILE = "dvc.yaml"


def environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def said(root: Path, *command: str) -> str:
    """What a command prints. RuntimeError with its last lines if it fails."""
    done = subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def timed(root: Path, *command: str) -> float:
    began = time.perf_counter()
    said(root, *command)
    return time.perf_counter() - began


def clone(folder: Path, scale: str) -> Path:
    """A clone of the last commit at this scale."""
    root = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(root)], check=True)
    path = root / "params.yaml"
    path.write_text(re.sub(r"^scale: \w+", f"scale: {scale}", path.read_text(), flags=re.MULTILINE))
    return root


def train(root: Path, jobs: int) -> float:
    """Seconds of training the default set anew."""
    shutil.rmtree(root / "runs/default", ignore_errors=True)
    return timed(root, sys.executable, "-m", "stages.train_many", "--jobs", str(jobs))


def stand_in(root: Path) -> int:
    """Write a small file for every output of a pipeline file that is not there, and how many there are."""
    code = (
        "from dvc.repo import Repo\n"
        f"for stage in Repo('.').stage.collect({FILE!r}):\n"
        "    for out in stage.outs: print(out.fs_path)\n"
    )
    made = 0
    for line in said(root, sys.executable, "-c", code).splitlines():
        path = Path(line)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.suffix:
                path.mkdir()
                path = path / "file"
            path.write_text(f"{path.relative_to(root)}\n")
            made += 1
    return made


def by_jobs(root: Path, pairs: int) -> dict[int, list[float]]:
    """Seconds of training by one job and by two, `pairs` times, first the one and then the other first."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for jobs in (1, 2) if pair % 2 == 0 else (2, 1):
            seconds[jobs].append(train(root, jobs))
            print(f"default set, {jobs} at once: {seconds[jobs][-1]:.0f} s", flush=True)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs of a run with one job and a run with two")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of timings that take seconds")
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    chosen = parser.parse_args(arguments)
    helped = [timed(ROOT, sys.executable, "-m", "aero.cli", "--help") for _ in range(chosen.repeats + 1)][1:]
    print(f"aero --help: {spread(helped)['median']:.2f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = clone(Path(folder), chosen.scale)
        said(root, "dvc", "repro", "-q", "tokenize")
        listed = said(root, "dvc", "stage", "list", "--name-only", FILE).split()
        seconds = by_jobs(root, chosen.pairs)
        made = stand_in(root)
        said(root, "dvc", "commit", "-q", "-f", FILE)
        idle = [timed(root, "dvc", "repro", "-q", "-s", FILE) for _ in range(chosen.repeats)]
        checked = [timed(root, "dvc", "status", "-q", FILE) for _ in range(chosen.repeats)]
    print(f"nothing to do: {spread(idle)['median']:.1f} s", flush=True)
    values = {
        "scale": chosen.scale,
        "cores": timing.cores(),
        "help_seconds": spread(helped),
        "pairs": chosen.pairs,
        "seconds_by_jobs": {str(jobs): [round(value, 2) for value in values] for jobs, values in seconds.items()},
        "two_jobs_over_one": ratio(seconds[1], seconds[2]),
        "stages": len(listed),
        "stood_in": made,
        "idle_repro_seconds": spread(idle),
        "idle_status_seconds": spread(checked),
    }
    timing.save("pipeline", values, chosen.folder)


if __name__ == "__main__":
    run_main(main)
