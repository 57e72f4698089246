"""Keep fresh results: copy the small result files of runs/ into results/, which git keeps (`make keep`).

Refuses results whose source tree had uncommitted changes, because nobody could run that code again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aero.errors import UserError, run_main
from aero.training.kept import copy, kept_files


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.keep", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=Path("runs"))
    parser.add_argument("--to", dest="target", type=Path, default=Path("results"))
    parser.add_argument("--allow-changes", action="store_true", help="keep results of uncommitted code all the same")
    chosen = parser.parse_args(arguments)
    plan: list[tuple[Path, Path]] = []
    for metrics in sorted(chosen.source.glob("*/seed_*/metrics.json")):
        plan += kept_files(metrics.parent, chosen.target, chosen.allow_changes)
    for path in sorted((chosen.source / "two_party").glob("*")):
        if path.suffix in (".csv", ".json"):
            plan.append((path, chosen.target / "two_party" / path.name))
    plan += sensitivity_files(chosen.source / "sensitivity", chosen.target / "sensitivity", chosen.allow_changes)
    plan += _parallel_context(chosen.source, chosen.target, chosen.allow_changes)
    if not plan:
        raise UserError(f"no results in {chosen.source}; run `make repro` first")
    copy(plan)
    print(f"kept {len(plan)} files in {chosen.target}")


def sensitivity_files(source: Path, target: Path, allow_changes: bool) -> list[tuple[Path, Path]]:
    """Learning-rate sweep, its search and the theory, each file with its place; not the sweep of scale smoke."""
    files = [path for path in (source / "search.csv",) if path.is_file()]
    made = {
        "sweep.json": [source / name for name in ("losses.csv", "traces.csv", "gains.csv", "sweep.json")],
        "theory.json": sorted(source.glob("theory*")),
    }
    for about, those in made.items():
        if not (source / about).is_file():
            continue
        values = json.loads((source / about).read_text(encoding="utf-8"))
        if values["provenance"]["commit"].endswith("+changes") and not allow_changes:
            raise UserError(
                f"{source / about} was made by uncommitted code; commit and run it again, or --allow-changes"
            )
        if values.get("scale") != "smoke":
            files += those
    return [(path, target / path.name) for path in files]


def _parallel_context(source: Path, target: Path, allow_changes: bool) -> list[tuple[Path, Path]]:
    """Measurements of parallel context encoding, each with its place: models trained here by scale and seed."""
    plan = []
    for path in sorted((source / "parallel_context").rglob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        if "rows" not in values:
            continue
        if values["provenance"]["commit"].endswith("+changes") and not allow_changes:
            raise UserError(f"{path} was made by uncommitted code; commit and run it again, or --allow-changes")
        folder = target / "parallel_context"
        if path.name == "measured.json":
            plan.append((path, folder / values["scale"] / f"{path.parent.name}.json"))
        else:  # time and memory belong to a scale, a model that was not trained here to none
            plan.append(
                (path, folder / values["scale"] / path.name if path.name == "cost.json" else folder / path.name)
            )
    return plan


if __name__ == "__main__":
    run_main(main)
