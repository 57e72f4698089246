"""Perplexity of a table's row over that of the row it is compared with, in per cent, paired by seed.

A note names missing and failed seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from aero.published import Cell, Row, load
from aero.report.perplexity import change
from aero.report.results import Results
from aero.report.statistics import Estimate
from aero.report.tables import FOLDER, PRINTED, csv_text, table

LANDSCAPE = ("entropy_landscape", "1")
COMPARED = (*PRINTED, LANDSCAPE)
"""The printed tables whose perplexities are compared, by paper and number."""
BASE_ROWS = {("aero", "3"): "Scaled", ("aero", "9"): "FFN"}
"""The row that the others are compared with, where it is not the first.

Table 3: "the learnable scaling method outperformed them" (Section 3.2). Table 9: "applying them to the linear layers in
attention sub-block diminishes overall performance" (Section 3.2), against the row FFN.
"""
BASE_TRAININGS = {("aero", "9"): {"SNorm": "WNorm"}, LANDSCAPE: dict.fromkeys(("0", "10", "20"), "baseline")}
"""The training of the same row that another is compared with.

Table 9: "weight normalization works better in other linear layers" (its caption). `entropy_landscape`: the baseline.
"""
COLUMNS = (
    *("paper", "table", "row", "column", "baseline", "published", "measured", "unit", "scale", "seeds"),
    *("ci_low", "ci_high", "note"),
)


@dataclass(frozen=True)
class Comparison:
    """Two perplexities of a printed table and their runs. base: the row, or training of the same row, compared with."""

    row: Row
    cell: Cell
    run: str
    base: str
    base_cell: Cell
    base_run: str

    @property
    def published(self) -> str:
        """The printed difference in per cent, "NaN" where a side is printed as diverged, "" where one is empty."""
        own, other = self.cell.value, self.base_cell.value
        if self.cell.diverged or self.base_cell.diverged:
            return "NaN"
        return "" if own is None or other is None else f"{100 * (own / other - 1):+z.1f}"


def comparisons(short: str, number_: str) -> list[Comparison]:
    """Every comparison of a printed table, row by row; a row is not compared with itself."""
    printed = load(short).tables[number_]
    base_row = printed.row(BASE_ROWS.get((short, number_), printed.rows[0].name))
    within = BASE_TRAININGS.get((short, number_), {})
    found = []
    for row in printed.rows:
        cells = _perplexities(row)
        if (short, number_) != LANDSCAPE and row is not base_row:
            others = _perplexities(base_row)
            found += [
                Comparison(row, cell, row.trained[name], base_row.name, others[name], base_row.trained[name])
                for name, cell in cells.items()
            ]
        found += [
            Comparison(row, cells[name], row.trained[name], base, cells[base], row.trained[base])
            for name, base in within.items()
        ]
    return found


def _perplexities(row: Row) -> dict[str, Cell]:
    """The row's perplexities by training."""
    return {c.column.training: c for c in row.cells.values() if c.column.unit == "perplexity"}


def perplexities(results: Results, number: str, short: str = "aero") -> pd.DataFrame:
    """A printed table's perplexities and their change over its baseline, published and measured; a line a training."""
    by_cell = {(one.row.name, one.cell.column.key): one for one in reversed(comparisons(short, number))}
    lines = []
    for cell in table(results, number, short):
        column = cell.published.column
        if column.unit != "perplexity":
            continue
        runs = results.seeds(cell.row.trained.get(column.training, ""))
        compared = by_cell.get((cell.row.name, column.key))
        found = change(results, compared.run, compared.base_run, compared.base) if compared else None
        failed = sum(run.diverged for run in runs)
        lines.append(
            {
                "configuration": cell.row.name + (f", {column.training}" if column.training else ""),
                "PPL, published": cell.published.text or "–",
                "measured": cell.text or "–",
                "change %, published": (compared.published or "–") if compared else "baseline",
                "measured ": "baseline" if found is None else _signed(found.estimate),
                "seeds": f"{len(runs)}, {failed} diverged" if failed else str(len(runs)),
            }
        )
    return pd.DataFrame(lines)


def _signed(found: Estimate | None) -> str:
    if found is None:
        return "–"
    interval = f" [{found.low:+z.1f}, {found.high:+z.1f}]" if found.has_interval else ""
    return f"{found.mean:+z.1f}{interval}"


def files(results: Results) -> dict[Path, str]:
    """reports/tables/differences.csv: one line a comparison."""
    lines = []
    for short, number in COMPARED:
        for one in comparisons(short, number):
            found = change(results, one.run, one.base_run, one.base)
            mean = found.estimate
            has_interval = mean is not None and mean.has_interval
            lines.append(
                {
                    "paper": short,
                    "table": number,
                    "row": one.row.name,
                    "column": one.cell.column.label,
                    "baseline": one.base,
                    "published": one.published,
                    "measured": f"{mean.mean:.6g}" if mean else "NaN" if found.failed else "",
                    "unit": "%",
                    "scale": results.scale,
                    "seeds": " ".join(map(str, mean.seeds)) if mean else "",
                    "ci_low": f"{mean.low:.6g}" if has_interval else "",
                    "ci_high": f"{mean.high:.6g}" if has_interval else "",
                    "note": found.note,
                }
            )
    return {FOLDER / "differences.csv": csv_text(lines, COLUMNS)}
