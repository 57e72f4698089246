"""Keeping results: a finished run's small files, from where it was trained to results/<scale>/, which git keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError, cut, json_file
from aero.records import check_metrics
from aero.training.log import write_together
from aero.training.run import kept_folder

FILES = ("metrics.json", "entropy.json", "log.csv")
ABOUT = {"metrics.json": FILES, "sweep.json": ("losses.csv", "traces.csv", "gains.csv", "sweep.json")}
"""Files that say what others of their folder are, with those; `theory.json` of every `theory*` besides."""


def require_committed() -> None:
    """UserError if the source tree has uncommitted changes: what it makes would be refused after hours of training."""
    if records.commit().endswith("+changes"):
        raise UserError("--keep refuses results of uncommitted code; commit first, or train without it")


def kept_files(folder: Path, results: Path, allow_changes: bool = False) -> list[tuple[Path, Path]]:
    """What of the finished run in `folder` is kept, each file with its place below `results`.

    UserError if the run was made by a source tree with uncommitted changes, because nobody could run that code again,
    and for what are no metrics of a training, or those of another run or seed than the folder is called after.
    """
    metrics = folder / "metrics.json"
    values = json_file(metrics)
    refuse_changes(values, metrics, allow_changes)
    try:
        check_metrics(values, metrics if folder.name.startswith("seed_") else Path(metrics.name))
    except (ValueError, KeyError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{metrics} cannot be kept: {said}; train the run again") from None
    for name in ("scale", "run"):
        check_name(values[name], name, metrics)
    target = kept_folder(values["scale"], values["run"], values["seed"], results)
    entropy = folder / "entropy.json"
    if entropy.exists() and json_file(entropy).get("provenance") != values["provenance"]:
        names = [name for name in FILES if name != entropy.name]  # measured on an earlier training
    else:
        names = list(FILES)
    return [(folder / name, target / name) for name in names if (folder / name).is_file()]


def refuse_changes(values: Mapping[str, Any], path: Path, allow_changes: bool) -> None:
    """UserError unless `values`, what `path` holds, name the commit that made them; with `allow_changes` any."""
    made = values.get("provenance")
    commit = made.get("commit") if isinstance(made, Mapping) else None
    if not isinstance(commit, str):
        raise UserError(f"{path} does not say which commit made it; make it again")
    if commit.endswith("+changes") and not allow_changes:
        raise UserError(f"{path} was made by uncommitted code; commit and run it again, or --allow-changes")


def check_name(name: Any, what: str, path: Path) -> None:
    """UserError unless `name` is a plain one: a result file must not choose where it is kept."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,100}", name):
        raise UserError(f"{path}: its {what} is {cut(repr(name), 100)}, which is no name; make it again")


def copy(files: list[tuple[Path, Path]]) -> None:
    """Copy text files; those that belong together come together, and none is left of those that were there before."""
    groups: dict[tuple[Path, str], dict[Path, str]] = {}
    for source, target in files:
        about = next((name for name, those in ABOUT.items() if target.name in those), target.name)
        if target.name.startswith("theory"):
            about = "theory.json"
        groups.setdefault((target.parent, about), {})[target] = source.read_text(encoding="utf-8")
    for (folder, about), contents in groups.items():
        replace_group(folder, about, contents)


def replace_group(folder: Path, about: str, contents: Mapping[Path, str]) -> None:
    """Write files that belong together, the one called `about` last if it is among them, which then takes away what
    else `ABOUT` has of the group before."""
    last = folder / about
    before = [folder / name for name in ABOUT.get(about, ())] if last in contents else []
    write_together({path: contents[path] for path in sorted(contents, key=last.__eq__)}, without=before)
