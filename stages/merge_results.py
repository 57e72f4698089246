"""Bring home what trained elsewhere: `python -m stages.merge_results FILE...` writes results/SCALE/RUN/.

FILE: a file of trainings that `stages.train_many --out` wrote. All files are read and checked before anything is
written. Refused are damaged and foreign files, and results of other source than the commit they name.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError, run_main
from aero.training.archive import Finished, read
from aero.training.kept import replace_group
from aero.training.run import kept_folder


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.merge_results", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="trainings*.jsonl")
    parser.add_argument("--to", type=Path, default=Path("results"))
    parser.add_argument("--allow-changes", action="store_true", help="keep results of uncommitted code all the same")
    chosen = parser.parse_args(arguments)
    plan: dict[Path, Finished] = {}
    said = []
    for path in chosen.files:
        trainings, cut = read(path)
        if cut:
            said.append(f"{path}: a last line that was only begun is left out, the training it was of is not in it")
        for training in trainings:
            if not chosen.allow_changes:
                require_source(training, path)
            folder = kept_folder(training.scale, training.run, training.seed, chosen.to)
            if folder not in plan or started(plan[folder].metrics) < started(training.metrics):
                plan[folder] = training
    merged, same = 0, 0
    for folder, training in plan.items():
        kept = existing(folder)
        if kept == training.metrics:
            same += 1
        elif kept is not None and started(kept) > started(training.metrics):
            said.append(f"{training.name}: {folder} holds a later one, started {started(kept)}, and stays")
        else:
            if kept is not None:
                why = "again" if kept["config_hash"] == training.metrics["config_hash"] else "of another configuration"
                said.append(f"{training.name}: replaces the one in {folder}, which was trained {why}")
            write(folder, training)
            merged += 1
    print(*said, f"{merged} trainings merged into {chosen.to}, {same} were there", sep="\n")


def require_source(training: Finished, path: Path) -> None:
    """UserError unless the training was made by the very source of the commit that it names."""
    revision = training.metrics["provenance"]["commit"]
    if revision == records.UNKNOWN or revision.endswith(records.CHANGES):
        raise UserError(
            f"{path}: {training.name} was trained by source of commit {revision}; train with committed code and "
            f"{records.COMMIT_VARIABLE} set, or --allow-changes"
        )
    if committed(revision) != training.source:
        raise UserError(
            f"{path}: {training.name} was not trained by the source of commit {revision[:12]} that it names; "
            "find the right commit, or --allow-changes"
        )


@functools.cache
def committed(revision: str) -> str:
    return records.committed_digest(revision, Path.cwd())


def started(metrics: dict[str, Any]) -> str:
    return str(metrics["provenance"]["started"])


def existing(folder: Path) -> dict[str, Any] | None:
    """The metrics kept in `folder`, None if there are none."""
    path = folder / "metrics.json"
    if not path.is_file():
        return None
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        started(metrics), metrics["config_hash"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); restore or delete it") from None
    return metrics


def write(folder: Path, training: Finished) -> None:
    """All files of a training; metrics.json last, and none is left of the one before."""
    replace_group(folder, "metrics.json", {folder / name: text for name, text in training.files.items()})


if __name__ == "__main__":
    run_main(main)
