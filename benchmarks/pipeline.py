"""The pipeline itself: how long it takes to find nothing to do, what a change touches, what a second job gains.

    python -m benchmarks.pipeline [--scale smoke] [--runs N]
    python -m benchmarks.pipeline --change         # only what a change touches, into the file that is there

In a clone of this repository's last commit, with DVC's own commands. Corpora and configurations are made, and the
default set is trained, one at a time and two at a time, in pairs whose order alternates. All other outputs of dvc.yaml
are then stood in for by small files that are committed as they are: DVC's work is the same, and nothing else has to be
computed for it. On that, `dvc repro -s dvc.yaml` (single stages) and `dvc status` have nothing to do. Then the
catalogue of further runs is stood in for as well, and plain `dvc repro`, which goes through it because the report
depends on all of runs/, has nothing to do. Then one run's learning rate is changed, and DVC says what is outdated in
either file.
Writes results/bench/pipeline.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aero.errors import UserError, run_main
from aero.records import ROOT, write_text
from benchmarks import timing
from benchmarks.timing import ratio, spread

FILE = "dvc.yaml"
CATALOGUE = "catalogue/dvc.yaml"
CHANGED = "sm-r"
"""The run whose learning rate is changed."""


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
    root = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(root)], check=True)
    path = root / "params.yaml"
    path.write_text(re.sub(r"^scale: \w+", f"scale: {scale}", path.read_text(), flags=re.MULTILINE))
    return root


def prepared(folder: Path, scale: str) -> Path:
    """A clone with its corpora and configurations made."""
    root = clone(folder, scale)
    for stage in ("tokenize", "tokenize_languini", "configurations"):
        said(root, "dvc", "repro", "-q", "-s", stage)
    return root


def train(root: Path, names: Sequence[str], jobs: int) -> float:
    """Seconds of training all of `names` anew, as the Makefile does it."""
    command = ["xargs", "-P", str(jobs), "-n", "1", "dvc", "--wait-for-lock", "repro", "-q", "-s", "-f"]
    began = time.perf_counter()
    listed, quiet = "\n".join(names), subprocess.DEVNULL
    subprocess.run(command, cwd=root, env=environment(root), input=listed, text=True, stdout=quiet, check=True)
    return time.perf_counter() - began


def stand_in(root: Path, file: str = FILE) -> int:
    """Write a small file for every output of a pipeline file that is not there, and how many there are."""
    code = (
        "from dvc.repo import Repo\n"
        f"for stage in Repo('.').stage.collect({file!r}):\n"
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


COMMIT = """
import sys
from dvc.repo import Repo
from dvc.stage.serialize import to_single_stage_lockfile
from dvc.utils.serialize import dump_yaml
repo, entries = Repo("."), {}
with repo.lock:
    stages = repo.stage.collect(sys.argv[1])
    for stage in stages:
        stage.save()
        stage.commit()
        entries[stage.name] = to_single_stage_lockfile(stage)
    dump_yaml(sys.argv[1].replace(".yaml", ".lock"), {"schema": "2.0", "stages": entries})
print(len(stages))
"""


def commit_at_once(root: Path, file: str) -> int:
    """`dvc commit -f` of a pipeline file, its lock written once, not after each of hundreds of stages; how many."""
    return int(said(root, sys.executable, "-c", COMMIT, file).split()[-1])


def repro_as_typed(root: Path) -> float:
    """Seconds of plain `dvc repro`. RuntimeError if it had something to do."""
    began = time.perf_counter()
    told = said(root, "dvc", "repro")
    seconds = time.perf_counter() - began
    if "Running stage" in told or "up to date" not in told:
        raise RuntimeError(f"dvc repro had something to do: {told[-2000:]}")
    return seconds


def by_jobs(root: Path, names: Sequence[str], pairs: int) -> dict[int, list[float]]:
    """Seconds of training `names` by one job and by two, `pairs` times, first the one and then the other first."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for jobs in (1, 2) if pair % 2 == 0 else (2, 1):
            seconds[jobs].append(train(root, names, jobs))
            print(f"{len(names)} trainings, {jobs} at once: {seconds[jobs][-1]:.0f} s", flush=True)
    return seconds


def outdated(root: Path, file: str = FILE) -> list[str]:
    """Stages of a pipeline file that DVC would run, by its own status."""
    return sorted(json.loads(said(root, "dvc", "status", "--json", file) or "{}"))


def touched(root: Path, run: str) -> dict[str, Any]:
    """What a changed learning rate of `run` makes outdated, once its configuration is written anew."""
    before, catalogue_before = outdated(root), outdated(root, CATALOGUE)
    if before or catalogue_before:
        raise RuntimeError(f"outdated before any change: {(before + catalogue_before)[:5]}")
    path = root / "params.yaml"
    text, found = re.subn(rf"(\n  {re.escape(run)}: \{{)", r"\1overrides: {learning_rate: 2.0e-3}, ", path.read_text())
    if found != 1:
        raise RuntimeError(f"params.yaml has no single run {run}")
    path.write_text(text)
    at_once = outdated(root)
    said(root, "dvc", "repro", "-q", "-s", "configurations")
    catalogue = {"before": catalogue_before, "then": outdated(root, CATALOGUE)}
    return {"run": run, "before": before, "at_once": at_once, "then": outdated(root), "catalogue": catalogue}


def only_the_change(scale: str, target: Path) -> None:
    """Put what a change touches, measured now, in the place of what `target` says of it."""
    if not target.is_file():
        raise UserError(f"{target} does not exist; run python -m benchmarks.pipeline without --change first")
    values = json.loads(target.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        root = prepared(Path(folder), scale)
        for file in (FILE, CATALOGUE):
            stand_in(root, file)
        for file in (FILE, CATALOGUE):
            commit_at_once(root, file)
        change = touched(root, CHANGED)
    print(f"a change of {CHANGED} touches {', '.join((*change['then'], *change['catalogue']['then']))}", flush=True)
    values["change"] = change | {"scale": scale, "provenance": timing.made_here()}
    write_text(target, json.dumps(values, indent=1) + "\n")


def help_seconds(repeats: int) -> list[float]:
    """Seconds of `aero --help` in processes of their own."""
    return [timed(ROOT, sys.executable, "-m", "aero.cli", "--help") for _ in range(repeats + 1)][1:]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--runs", type=int, help="train the first N of the default set (default: all)")
    parser.add_argument("--pairs", type=int, default=3, help="of one job and of two")
    parser.add_argument("--repeats", type=int, default=5, help="of what takes seconds")
    parser.add_argument("--change", action="store_true", help="measure only what a change touches")
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    chosen = parser.parse_args(arguments)
    if chosen.change:
        only_the_change(chosen.scale, chosen.folder / "pipeline.json")
        return
    helped = help_seconds(chosen.repeats)
    print(f"aero --help: {spread(helped)['median']:.2f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = prepared(Path(folder), chosen.scale)
        listed = said(root, "dvc", "stage", "list", "--name-only", FILE).split()
        names = [name for name in listed if name.startswith("train@")][: chosen.runs]
        seconds = by_jobs(root, names, chosen.pairs)
        made = stand_in(root)
        said(root, "dvc", "commit", "-q", "-f", FILE)
        idle = [timed(root, "dvc", "repro", "-q", "-s", FILE) for _ in range(chosen.repeats)]
        checked = [timed(root, "dvc", "status", "-q", FILE) for _ in range(chosen.repeats)]
        stand_in(root, CATALOGUE)
        further = commit_at_once(root, CATALOGUE)
        said(root, "dvc", "commit", "-q", "-f", FILE)  # the report depends on all of runs/
        typed = [repro_as_typed(root) for _ in range(chosen.repeats)]
        full = [timed(root, "dvc", "repro", "-q", "-s", FILE) for _ in range(chosen.repeats)]
        print(f"nothing to do: {spread(idle)['median']:.1f} s; as typed: {spread(typed)['median']:.1f} s", flush=True)
        change = touched(root, CHANGED)
        print(f"a change of {CHANGED} touches {', '.join(change['then'])}", flush=True)
    values = {
        "scale": chosen.scale,
        "cores": timing.cores(),
        "help_seconds": spread(helped),
        "trainings": len(names),
        "pairs": chosen.pairs,
        "seconds_by_jobs": {str(jobs): [round(value, 2) for value in values] for jobs, values in seconds.items()},
        "two_jobs_over_one": ratio(seconds[1], seconds[2]),
        "stages": len(listed),
        "stood_in": made,
        "idle_repro_seconds": spread(idle),
        "further_stages": further,
        "plain_repro_seconds": spread(typed),
        "idle_repro_with_catalogue_seconds": spread(full),
        "idle_status_seconds": spread(checked),
        "change": change,
    }
    timing.save("pipeline", values, chosen.folder)


if __name__ == "__main__":
    run_main(main)
