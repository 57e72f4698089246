"""The two tables of `parallel_context` as files of the same form as the other papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aero.published import Table, load
from aero.report.parallel_context import Measured, Summary, impossible, largest, own_models, summary
from aero.report.results import Results
from aero.report.tables import COLUMNS, NOT_COMPARABLE, csv_text

PAPER = "parallel_context"


def files(results: Results) -> dict[Path, str]:
    """Path below the project's root and text of both table files."""
    models, printed = own_models(results), load(PAPER).tables
    folder = Path("reports") / "tables"
    return {folder / f"{PAPER}_table_{name}.csv": _text(models, printed[name]) for name in ("main", "ablation")}


def _text(models: Sequence[Measured], printed: Table) -> str:
    """A line a cell; measured at the same number of segments (main) or at the largest of each task (ablation)."""
    lines = []
    for row in printed.rows:
        for task, cell in row.cells.items():
            p = _segments(models, printed, row.name, task)
            of = summary(_rows(models, printed.number, row.name, task, p))
            found = of.estimate if of else None
            seeds = found.seeds if found else ()
            lines.append(
                {
                    "row": row.name,
                    "column": cell.column.label,
                    "published": cell.text,
                    "measured": f"{found.mean:.6g}" if found else "",
                    "unit": cell.column.unit,
                    "scale": models[0].values["scale"] if found else "",
                    "seeds": " ".join(map(str, seeds)),
                    "ci_low": f"{found.low:.6g}" if found and found.low is not None else "",
                    "ci_high": f"{found.high:.6g}" if found and found.high is not None else "",
                    "note": _note(of, models, printed, task, p),
                }
            )
    return csv_text(lines, COLUMNS)


def _segments(models: Sequence[Measured], printed: Table, row: str, task: str) -> int | None:
    """The P of a printed cell's measurement; None where an ablation's task was not measured."""
    if printed.number == "main":
        return 1 if row.startswith("Full") else int(row.removeprefix("P="))
    return largest(models, task)


def _rows(models: Sequence[Measured], number: str, row: str, task: str, p: int | None) -> dict[int, dict[str, Any]]:
    """The measurements by seed for one printed cell; empty where nothing was measured."""
    if not models or p is None:
        return {}
    if number == "main":
        found = {m.seed: m.row(task, p, "naive") for m in models}
    else:
        selection = models[0].values["selection"]
        kind, _, value = row.partition("=")
        top_k = int(value) if kind == "TopK" else selection["top_k"]
        aggregation = selection["aggregation"][task] if kind == "TopK" else value or "none"
        found = {m.seed: m.exact(task, p, None, top_k, aggregation) for m in models}
    return {seed: entry for seed, entry in found.items() if entry is not None}


def _note(found: Summary | None, models: Sequence[Measured], printed: Table, task: str, p: int | None) -> str:
    """Why a cell is empty, or what its number and interval are."""
    if found is None:
        return (p is not None and impossible(models, task, p)) or "not measured yet"
    notes = []
    published_at = printed.dimensions.get("segments")
    if published_at is not None and p != int(published_at):
        notes.append(f"{NOT_COMPARABLE}: measured at P={p}, published at P={published_at}")
    if found.episodes:
        why = "one seed" if len(found.estimate.seeds) == 1 else "seeds agree"
        notes.append(f"{why}: Wilson interval over {found.episodes} episodes")
    return "; ".join(notes)
