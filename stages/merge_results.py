"""Merge trainings of another machine: `python -m stages.merge_results DIR...` adds them to results/SCALE/.

DIR: the other machine's results/SCALE. All are read and checked before anything is written. A training
replaces an earlier one of the same run and seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.errors import UserError, run_main
from aero.records import FILES, Training, read_trainings, refuse_changes, write_trainings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.merge_results", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with metrics.jsonl")
    parser.add_argument("--to", type=Path, default=Path("results"))
    parser.add_argument("--allow-changes", action="store_true", help="accept results of uncommitted code")
    chosen = parser.parse_args(arguments)
    found: list[Training] = []
    for folder in chosen.folders:
        trainings = list(read_trainings(folder).values())
        if not trainings:
            raise UserError(f"{folder} has no {FILES[0]} with trainings; name the other machine's results/SCALE")
        for training in trainings:
            refuse_changes(training.metrics, folder / FILES[0], chosen.allow_changes)
        found += trainings
    for scale in sorted({training.metrics["scale"] for training in found}):
        merge(chosen.to / scale, [training for training in found if training.metrics["scale"] == scale])


def merge(folder: Path, trainings: list[Training]) -> None:
    """Write the trainings that are newer than those in `folder`."""
    present = read_trainings(folder)
    latest: dict[tuple[str, int], Training] = {}
    for training in sorted(trainings, key=started):
        before = present.get(training.key)
        if before is None or started(before) < started(training):
            latest[training.key] = training
    write_trainings(folder, latest.values())
    replaced = len(latest.keys() & present.keys())
    print(f"{folder}: {len(latest)} of {len(trainings)} trainings merged, {replaced} of them replace earlier ones")


def started(training: Training) -> str:
    return str(training.metrics["provenance"]["started"])


if __name__ == "__main__":
    run_main(main)
