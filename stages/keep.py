"""Copy the small result files of runs/ to results/, which git keeps (`make keep`).

Refuses results of uncommitted code, and a file of costs that lost a committed line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError, json_file, run_main, text_of
from aero.records import refuse_changes, write_text
from aero.two_party.cost import ledger
from aero.two_party.cost.counts import OWN


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.keep", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=Path("runs"))
    parser.add_argument("--to", dest="target", type=Path, default=Path("results"))
    parser.add_argument("--allow-changes", action="store_true", help="accept results of uncommitted code")
    chosen = parser.parse_args(arguments)
    plan: list[tuple[Path, Path]] = []
    trainings = [path.parent for path in sorted(chosen.source.glob("default/*/seed_*/metrics.json"))]
    plan += two_party_files(chosen.source / "two_party", chosen.target / "two_party", chosen.allow_changes)
    plan += sensitivity_files(chosen.source / "sensitivity", chosen.target / "sensitivity", chosen.allow_changes)
    plan += _parallel_context(chosen.source, chosen.target, chosen.allow_changes)
    if not plan and not trainings:
        raise UserError(f"no results in {chosen.source}; run `make repro` first")
    records.keep(trainings, chosen.target, chosen.allow_changes)
    copy(plan)
    print(f"{len(trainings)} trainings and {len(plan)} other files copied to {chosen.target}")


def copy(files: list[tuple[Path, Path]]) -> None:
    """Copy text files, those last that describe the others."""
    for source, target in sorted(files, key=lambda pair: pair[0].suffix == ".json"):
        write_text(target, source.read_text(encoding="utf-8"))


def two_party_files(source: Path, target: Path, allow_changes: bool) -> list[tuple[Path, Path]]:
    """Measured costs, each file with its target; none of scale smoke, whose models are its own.

    UserError for a file that is damaged, of uncommitted code, or without a line of the committed one.
    """
    plan = []
    for path in sorted(source.glob("*")):
        if path.suffix not in (".csv", ".json") or path.name == "contents.json":
            continue
        lines = _lines(path)
        for line in lines.values():
            refuse_changes(line, path, allow_changes)
        if not lines or any(_of_smoke(line) for line in lines.values()):
            continue
        committed = target / path.name
        if committed.is_file() and (lacking := len(_lines(committed).keys() - lines.keys())):
            raise UserError(
                f"{path} lacks {lacking} of the lines of {committed}, which would be lost; measure them too, or remove "
                "that file first"
            )
        plan.append((path, committed))
    return plan


def _of_smoke(line: Mapping[str, Any]) -> bool:
    return str(line.get("model", "")).startswith(OWN) or line.get("scale") == "smoke"


PASS = ("run", "architecture", "program", "tokens", "layers", "width")
"""Key of a complete pass."""


def _lines(path: Path) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """The lines of a file of costs by their keys, with provenance as a mapping."""
    try:
        if path.suffix == ".csv":
            rows = {ledger.name_of(row): asdict(row) for row in ledger.read_any(path)}
            return {name: row | {"provenance": json.loads(row["provenance"])} for name, row in rows.items()}
        return {tuple(str(entry.get(name)) for name in PASS): dict(entry) for entry in json.loads(text_of(path))}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a file of costs ({type(error).__name__}: {error}); measure it again") from None


def sensitivity_files(source: Path, target: Path, allow_changes: bool) -> list[tuple[Path, Path]]:
    """Files of `variance_sensitivity`, each with its target; no sweep of scale smoke."""
    files = [path for path in (source / "search.csv", source / "nearest.csv") if path.is_file()]
    made = {
        "sweep.json": [source / name for name in ("losses.csv", "traces.csv", "gains.csv", "sweep.json")],
        "theory.json": sorted(source.glob("theory*")),
    }
    for about, those in made.items():
        if not (source / about).is_file():
            continue
        values = json_file(source / about)
        refuse_changes(values, source / about, allow_changes)
        if values.get("scale") != "smoke":
            files += those
    return [(path, target / path.name) for path in files]


def _parallel_context(source: Path, target: Path, allow_changes: bool) -> list[tuple[Path, Path]]:
    """Measurements of parallel context encoding, one file a model, each with its target."""
    plan = []
    for path in sorted((source / "parallel_context").rglob("*.json*")):
        if path.suffix == ".json":
            refuse_changes(json_file(path), path, allow_changes)
        for line in text_of(path).splitlines() if path.suffix == ".jsonl" else []:
            if "run" in (values := json.loads(line)):
                refuse_changes({"provenance": values["run"]}, path, allow_changes)
        plan.append((path, target / path.relative_to(source)))
    return plan


if __name__ == "__main__":
    run_main(main)
