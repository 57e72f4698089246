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

from dvc.repo import Repo

from aero.errors import run_main
from aero.records import ROOT
from benchmarks import timing

FILE = "dvc.yaml"


def environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def said(root: Path, *command: str) -> str:
    """What a command prints. CalledProcessError if it fails."""
    options = {"cwd": root, "env": environment(root), "stdout": subprocess.PIPE, "text": True}
    return subprocess.run(command, check=True, **options).stdout


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


def stand_in(root: Path) -> int:
    """Write a small file for every output of the pipeline that is not there; how many were written."""
    with Repo(str(root)) as repo:
        outs = [Path(out.fs_path) for stage in repo.stage.collect(str(root / FILE)) for out in stage.outs]
    missing = [path for path in outs if not path.exists()]
    for path in missing:
        file = path if path.suffix else path / "file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{file.relative_to(root)}\n")
    return len(missing)


def by_jobs(root: Path, pairs: int) -> dict[int, list[float]]:
    """Seconds of training the default set anew by one job and by two, `pairs` times, each first every other time."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for jobs in (1, 2) if pair % 2 == 0 else (2, 1):
            shutil.rmtree(root / "runs/default", ignore_errors=True)
            seconds[jobs].append(timed(root, sys.executable, "-m", "stages.train_many", "--jobs", str(jobs)))
            print(f"default set, {jobs} at once: {seconds[jobs][-1]:.0f} s", flush=True)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs of a run with one job and a run with two")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of timings that take seconds")
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    chosen = parser.parse_args(arguments)
    aero_help = sys.executable, "-m", "aero.cli", "--help"
    helped = timing.spread([timed(ROOT, *aero_help) for _ in range(chosen.repeats + 1)][1:])
    print(f"aero --help: {helped['median']:.2f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = clone(Path(folder), chosen.scale)
        said(root, "dvc", "repro", "-q", "tokenize")
        listed = said(root, "dvc", "stage", "list", "--name-only", FILE).split()
        seconds = by_jobs(root, chosen.pairs)
        made = stand_in(root)
        said(root, "dvc", "commit", "-q", "-f", FILE)
        idle = timing.spread([timed(root, "dvc", "repro", "-q", "-s", FILE) for _ in range(chosen.repeats)])
        checked = timing.spread([timed(root, "dvc", "status", "-q", FILE) for _ in range(chosen.repeats)])
    print(f"nothing to do: {idle['median']:.1f} s", flush=True)
    values = {"scale": chosen.scale, "cores": len(os.sched_getaffinity(0)), "pairs": chosen.pairs}
    values |= {"seconds_by_jobs": {str(jobs): [round(one, 2) for one in found] for jobs, found in seconds.items()}}
    values |= {"two_jobs_over_one": timing.ratio(seconds[1], seconds[2]), "stood_in": made, "help_seconds": helped}
    values |= {"idle_repro_seconds": idle, "idle_status_seconds": checked, "stages": len(listed)}
    timing.save("pipeline", values, chosen.folder)


if __name__ == "__main__":
    run_main(main)
