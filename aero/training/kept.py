"""Keeping results: a finished run's small files, from where it was trained to results/<scale>/, which git keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from aero import provenance
from aero.errors import UserError
from aero.training.log import write_together
from aero.training.run import kept_folder

FILES = ("metrics.json", "entropy.json", "log.csv")
ABOUT = {"metrics.json": FILES, "sweep.json": ("losses.csv", "traces.csv", "gains.csv", "sweep.json")}
"""Files that say what others of their folder are, with those; `theory.json` of every `theory*` besides."""


def require_committed() -> None:
    """UserError if the source tree has uncommitted changes: what it makes would be refused after hours of training."""
    if provenance.commit().endswith("+changes"):
        raise UserError("--keep refuses results of uncommitted code; commit first, or train without it")


def kept_files(folder: Path, results: Path, allow_changes: bool = False) -> list[tuple[Path, Path]]:
    """What of the finished run in `folder` is kept, each file with its place below `results`.

    UserError if the run was made by a source tree with uncommitted changes, because nobody could run that code again.
    """
    metrics = folder / "metrics.json"
    values = json.loads(metrics.read_text(encoding="utf-8"))
    if values["provenance"]["commit"].endswith("+changes") and not allow_changes:
        raise UserError(f"{metrics} was made by uncommitted code; commit and run it again, or --allow-changes")
    target = kept_folder(values["scale"], values["run"], values["seed"], results)
    entropy = folder / "entropy.json"
    if entropy.is_file() and json.loads(entropy.read_text(encoding="utf-8"))["provenance"] != values["provenance"]:
        names = [name for name in FILES if name != entropy.name]  # measured on an earlier training
    else:
        names = list(FILES)
    return [(folder / name, target / name) for name in names if (folder / name).is_file()]


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
