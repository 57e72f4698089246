"""The two tables of `parallel_context` as files of the same form as the other papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aero.published import Table, load
from aero.report.parallel_context import Measured, by_seed, own_models
from aero.report.results import Results
from aero.report.statistics import estimate
from aero.report.tables import COLUMNS, csv_text

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
            found = estimate(_values(models, printed.number, row.name, task))
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
                    "note": "" if found else "not measured yet",
                }
            )
    return csv_text(lines, COLUMNS)


def _values(models: Sequence[Measured], number: str, row: str, task: str) -> dict[int, float]:
    """The scores by seed for one printed cell; empty where nothing was measured."""
    if not models or task not in {entry["task"] for entry in models[0].values["rows"]}:
        return {}
    if number == "main":
        return by_seed(models, task, 1 if row.startswith("Full") else int(row.removeprefix("P=")), "naive")
    selection = models[0].values["selection"]
    kind, _, value = row.partition("=")
    top_k = int(value) if kind == "TopK" else selection["top_k"]
    aggregation = selection["aggregation"][task] if kind == "TopK" else value or "none"
    largest = max(models[0].segments(task))
    exact = {m.seed: m.exact(task, largest, None, top_k, aggregation) for m in models}
    return {seed: entry["score"] for seed, entry in exact.items() if entry is not None}
