"""Published tables with the measured value beside every cell: frames for the report and the files in reports/tables.

Perplexities are measured at the report's training scale; costs and counts at the papers' own dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pandas as pd

from aero.published import Cell, Row, Table
from aero.published import table as printed_table
from aero.records import csv_text
from aero.report import costs
from aero.report.results import SMOKE_TEST, Results, Run
from aero.report.statistics import Change, Estimate, change, evidence, seed_count
from aero.report.verdicts import PAPER_DIMENSIONS
from aero.two_party.program.optimizations import AS_PUBLISHED

COLUMNS = ("row", "column", "published", "measured", "unit", "scale", "seeds", "ci_low", "ci_high", "note")
NOT_COMPARABLE = "not comparable"
"""In the note of a cell that was measured in another setting than the published number: no ratio is taken."""
PRINTED = (*(f"aero/table{number}" for number in range(2, 10)), "entropy_guided/table3")
"""The printed tables that have a file of their own."""
FOLDER = Path("reports") / "tables"


@dataclass(frozen=True)
class MeasuredCell:
    """A published cell and what was measured for it.

    text: the measured value as shown, "" if there is none. scale: a training scale, or "paper_dimensions" for costs and
    counts. estimate: over seeds, of a training cell.
    """

    row: Row
    published: Cell
    text: str
    value: float | None
    scale: str
    note: str
    estimate: Estimate | None = None


def table(results: Results, printed: Table) -> list[MeasuredCell]:
    """Every cell of a printed table, row by row."""
    return [
        _training(results, printed, row, cell)
        if cell.column.training or cell.column.key in ("ppl", "delta")
        else _cost(results, printed, row, cell)
        for row in printed.rows
        for cell in row.cells.values()
    ]


def _training(results: Results, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    notes = [cell.note] if cell.note else []
    training, digits = cell.column.training, cell.column.digits
    name, base = (one.trained.get(training, "") for one in (row, printed.rows[0]))
    runs, values = results.seeds(name), results.perplexity(name)
    notes += _differs(results, printed, training, runs)
    if results.scale == "paper" and any(run.metrics["corpus"] not in ("codeparrot", "languini") for run in runs):
        notes.append("not trained on the papers' corpus")
    # Perplexities have no interval: only differences paired by seed do.
    found = Estimate(fmean(values.values()), None, None, tuple(values)) if values else None
    if cell.column.key.startswith("delta"):
        if name != base:
            found = change(results, name, base).estimate if name and base else None
        elif found is not None:
            found = replace(found, mean=0.0)
            notes.append("the baseline itself")
    diverged = [f"seed {run.seed} at step {run.diverged_at}" for run in runs if run.diverged]
    if diverged:
        notes.append(f"{len(diverged)} of {len(runs)} seeds diverged: {', '.join(diverged)}")
    if not runs:
        notes.append("not run yet")
    if found is None:
        text, value = ("NaN", math.nan) if diverged else ("", None)
    else:
        text, value = f"{found.mean:.{digits}f}", found.mean
        notes += [f"one seed ({found.seeds[0]})"] if len(found.seeds) == 1 else []
    return MeasuredCell(row, cell, text, value, results.scale, "; ".join(notes), found)


def _differs(results: Results, printed: Table, training: str, runs: Sequence[Run]) -> list[str]:
    """Notes on trainings of another corpus than the table's first row, or of another commit than the others."""

    def of(key: str, group: Iterable[Run]) -> set[str]:
        return {str(run.provenance[key]) for run in group if run.provenance.get(key)}

    every = [results.seeds(row.trained[training]) for row in printed.rows if row.trained.get(training)]
    first = next((group for group in every if group), ())
    notes = []
    if runs and of("corpus_sha256", runs) != of("corpus_sha256", first):
        notes.append(f"trained on another corpus than {printed.rows[0].name}: {NOT_COMPARABLE}")
    if runs and len(of("commit", (run for group in every for run in group))) > 1:
        notes.append("commit " + ", ".join(sorted(commit[:10] for commit in of("commit", runs))))
    return notes


Found = tuple[str | float | None, list[str]]
"""A text or number, None if it was not measured; and notes."""


def _cost(results: Results, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    """A cost or count, at the dimensions of the paper."""
    found, notes = _COSTS[cell.column.key](results, printed, row.name, cell.column.key)
    if found is None:
        notes = [*notes, "not measured yet"]
    text, value = found or "", None
    if isinstance(found, float):
        text, value = f"{found:.{cell.column.digits}f}", found
    return MeasuredCell(row, cell, text, value, PAPER_DIMENSIONS, "; ".join(filter(None, (cell.note, *notes))))


def _counted(results: Results, printed: Table, row: str, key: str) -> Found:
    counts, notes = costs.counted(row, printed), ["counted by the formulas of Appendix E"]
    if key == "nonlinear":
        return "; ".join(map(str, counts.nonlinear)), notes
    return (counts.ffn if key == "flops_ffn" else counts.attention) / 1e9, notes


def _communication(results: Results, printed: Table, row: str, key: str) -> Found:
    """Beside printed bytes stand those of the program that explains them best, where it was measured."""
    found, fitted = costs.row_costs(results, printed, row), costs.published_cost(results, printed, row)
    notes = [] if fitted is None else [f"{fitted.program}, {fitted.method}"]
    if stock := found.get("as_written"):
        value = "" if fitted is None else f" {stock.bytes / costs.GB:.2f}"
        notes.append(f"as_written{value}, {stock.method}")
    if tuned := found.get("tuned"):
        notes.append(f"tuned {tuned.bytes / costs.GB:.2f}")
    shown = fitted or stock
    return (None, []) if shown is None else (shown.bytes / costs.GB, notes)


def _latency(results: Results, printed: Table, row: str, key: str) -> Found:
    least = costs.least_minutes(printed, row)
    note = (
        f"the published bytes need at least {least:.1f} min on the published network "
        f"({2 * least:.1f} if the directions do not overlap)"
    )
    found = costs.all_costs(results, printed, row).values()
    known = [cost for cost in found if cost.latency_wan is not None and cost.program != "tuned"]
    if not known:
        return None, [note]
    shown, *others = known
    notes = [f"{shown.program}, {shown.method}"]
    beside = costs.published_cost(results, printed, row, "as_written") if shown.program == AS_PUBLISHED else None
    if beside is not None and beside.latency_wan is not None:
        notes.append(f"as_written {beside.latency_wan / 60:.2f} on the same day")
    notes += [f"as_written {cost.latency_wan / 60:.2f} on another day" for cost in others]
    return shown.latency_wan / 60, [*notes, note]


def _saving(results: Results, printed: Table, row: str, key: str) -> Found:
    quantity = "bytes" if key == "savings_communication" else "latency_wan"
    value, plain = (costs.saving(results, printed, row, one, quantity) for one in (AS_PUBLISHED, "as_written"))
    if value is None:
        return plain, [] if plain is None else ["as_written"]
    return value, [AS_PUBLISHED if plain is None else f"{AS_PUBLISHED}; as_written {plain:.2f}"]


_COSTS: dict[str, Callable[[Results, Table, str, str], Found]] = {
    "nonlinear": _counted,
    "flops_ffn": _counted,
    "flops_attention": _counted,
    "communication": _communication,
    "latency": _latency,
    "savings_communication": _saving,
    "savings_latency": _saving,
}


def cells_csv(cells: Iterable[MeasuredCell]) -> str:
    """The cells as CSV text with the columns of the contract; numbers in shortest exact form, gaps empty."""
    lines = []
    for cell in cells:
        column, published = cell.published.column, cell.published.text
        measured = cell.text if cell.value is None or math.isnan(cell.value) else f"{cell.value:.6g}"
        named = cell.row.name, column.label, published, measured, column.unit, cell.scale
        lines.append(csv_line(*named, cell.estimate, cell.note))
    return csv_text(COLUMNS, lines)


def csv_line(
    row: str,
    column: str,
    published: str,
    measured: str,
    unit: str,
    scale: str,
    found: Estimate | None,
    note: str,
    digits: str = ".6g",
) -> dict[str, str]:
    """A line with the columns of the contract; seeds and interval are those of the estimate."""
    low, high = (f"{found.low:{digits}}", f"{found.high:{digits}}") if found and found.has_interval else ("", "")
    seeds = " ".join(map(str, found.seeds)) if found else ""
    return dict(zip(COLUMNS, (row, column, published, measured, unit, scale, seeds, low, high, note), strict=True))


def _written(key: str, value: str | float | None) -> str:
    """Bytes whole, other numbers to six digits, gaps empty."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if key.endswith("bytes") else f"{value:.6g}"


# Perplexity of a row over that of the row it is compared with, in per cent, paired by seed ----------------------------


LANDSCAPE = "entropy_landscape/table1"
COMPARED = (*PRINTED, LANDSCAPE)
"""The printed tables whose perplexities are compared."""
BASE_ROWS = {"aero/table3": "Scaled", "aero/table9": "FFN"}
"""The row that the others are compared with, where it is not the first.

Table 3: "the learnable scaling method outperformed them" (Section 3.2). Table 9: "applying them to the linear layers in
attention sub-block diminishes overall performance" (Section 3.2), against the row FFN.
"""
BASE_TRAININGS = {"aero/table9": {"SNorm": "WNorm"}, LANDSCAPE: dict.fromkeys(("0", "10", "20"), "baseline")}
"""The training of the same row that another is compared with.

Table 9: "weight normalization works better in other linear layers" (its caption). `entropy_landscape`: the baseline.
"""
DIFFERENCE_COLUMNS = ("paper", "table", "row", "column", "baseline", *COLUMNS[2:])


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


def comparisons(address: str) -> list[Comparison]:
    """Every comparison of a printed table, row by row; a row is not compared with itself."""
    printed = printed_table(address)
    base_row = printed.row(BASE_ROWS.get(address, printed.rows[0].name))
    found = []
    for row in printed.rows:
        own = _perplexities(row)
        sides = [(name, base, row, base) for name, base in BASE_TRAININGS.get(address, {}).items()]
        if address != LANDSCAPE and row is not base_row:
            sides = [*((name, base_row.name, base_row, name) for name in own), *sides]
        for name, label, other, training in sides:
            cell, run = _perplexities(other)[training], other.trained[training]
            found.append(Comparison(row, own[name], row.trained[name], label, cell, run))
    return found


def _perplexities(row: Row) -> dict[str, Cell]:
    """The row's perplexities by training."""
    return {c.column.training: c for c in row.cells.values() if c.column.unit == "perplexity"}


def perplexities(results: Results, address: str) -> pd.DataFrame:
    """A printed table's perplexities and their change over its baseline, published and measured; a line a training."""
    by_cell = {(one.row.name, one.cell.column.key): one for one in reversed(comparisons(address))}
    lines = []
    for cell in table(results, printed_table(address)):
        column = cell.published.column
        if column.unit != "perplexity":
            continue
        compared = by_cell.get((cell.row.name, column.key))
        found = change(results, compared.run, compared.base_run, compared.base) if compared else None
        lines.append(
            {
                "configuration": cell.row.name + (f", {column.training}" if column.training else ""),
                "PPL, published": cell.published.text or "–",
                "measured": cell.text or "–",
                "change %, published": (compared.published or "–") if compared else "baseline",
                "measured ": _change(found) if found else "baseline",
                "seeds": seed_count(results, cell.row.trained.get(column.training, "")),
            }
        )
    return pd.DataFrame(lines)


def _change(found: Change) -> str:
    return "–" if found.estimate is None else found.estimate.text(1, signed=True)


def differences_file(results: Results) -> dict[Path, str]:
    """reports/tables/differences.csv: one line a comparison."""
    lines = []
    for address in COMPARED:
        printed = printed_table(address)
        for one in comparisons(address):
            seen = evidence(results, one.run, one.base_run)
            found = change(seen, one.run, one.base_run, one.base)
            mean = found.estimate
            measured = f"{mean.mean:.6g}" if mean else "NaN" if found.failed else ""
            named = one.row.name, one.cell.column.label, one.published, measured, "%", seen.scale
            compared = {"paper": printed.paper, "table": printed.number, "baseline": one.base}
            lines.append(compared | csv_line(*named, mean, found.note))
    return {FOLDER / "differences.csv": csv_text(DIFFERENCE_COLUMNS, lines)}


# Files ----------------------------------------------------------------------------------------------------------------


def files(results: Results) -> dict[Path, str]:
    """Text of the tables' files by place; of other training scales the perplexities alone (aero_table2_gpu.csv)."""
    found = {}
    for address in PRINTED:
        printed = printed_table(address)
        name, is_aero = f"{printed.paper}_table{printed.number}", printed.paper == "aero"
        seen = evidence(results, *filter(None, printed.rows[0].trained.values()))
        found[FOLDER / f"{name}.csv"] = cells_csv(table(seen, printed))
        if is_aero and printed.number in costs.COST_TABLES:
            rows = costs.cost_rows(results, printed)
            lines = [{key: _written(key, value) for key, value in one.items()} for one in rows]
            found[FOLDER / f"{name}_costs.csv"] = csv_text(costs.COST_COLUMNS, lines)
        for scale in results.scales if is_aero else ():
            cells = [cell for cell in table(results.at(scale), printed) if cell.published.column.key.startswith("ppl")]
            trained = [cell for cell in cells if cell.row.trained.get(cell.published.column.training)]
            named = {run for cell in trained for run in cell.row.trained.values()}
            if scale not in (seen.scale, SMOKE_TEST) and any(results.seeds(run, scale) for run in named):
                found[FOLDER / f"{name}_{scale}.csv"] = cells_csv(trained)
    return found | differences_file(results)
