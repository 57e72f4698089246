"""Published tables with the measured value beside every cell: frames for the report and the files in reports/tables.

Perplexities are measured at the report's training scale; costs and counts at the papers' own dimensions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from aero.published import Cell, Paper, Row, Table, load
from aero.report.costs import (
    GB,
    LatencyBound,
    all_costs,
    counted,
    part_bytes,
    published_bound,
    published_cost,
    published_saving,
    row_costs,
    saving,
)
from aero.report.perplexity import change
from aero.report.results import Cost, Results, Run
from aero.report.statistics import Estimate
from aero.two_party.program.optimizations import AS_PUBLISHED

PAPER_DIMENSIONS = "paper_dimensions"
COLUMNS = ("row", "column", "published", "measured", "unit", "scale", "seeds", "ci_low", "ci_high", "note")
NOT_COMPARABLE = "not comparable"
"""In the note of a cell that was measured in another setting than the published number: no ratio is taken."""
PRINTED = (*(("aero", str(number)) for number in range(2, 10)), ("entropy_guided", "3"))
"""The printed tables that `table` measures, by paper and number."""
COST_TABLES = ("4", "5", "6", "7")
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


def table(results: Results, number: str, short: str = "aero") -> list[MeasuredCell]:
    """Every cell of a paper's table, row by row, in the printed order."""
    paper = load(short)
    printed = paper.tables[number]
    return [
        _training(results, printed, row, cell)
        if cell.column.training or cell.column.key in ("ppl", "delta")
        else _COSTS[cell.column.key](results, paper, printed, row, cell)
        for row in printed.rows
        for cell in row.cells.values()
    ]


def _training(results: Results, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    notes = [cell.note] if cell.note else []
    name, digits, training = row.trained.get(cell.column.training), cell.column.digits, cell.column.training
    runs = results.seeds(name) if name else ()
    values = results.perplexity(name) if name else {}
    notes += _differs(results, printed, training, runs)
    if name and results.scale == "paper" and results.substituted((name,), "paper"):
        notes.append("not trained on the papers' corpus")

    def measured(text: str, value: float | None, found: Estimate | None = None) -> MeasuredCell:
        return MeasuredCell(row, cell, text, value, results.scale, "; ".join(notes), found)

    if cell.column.key.startswith("delta"):
        base = printed.rows[0].trained.get(training)
        if name == base and values:
            notes.append("the baseline itself")
            return measured(f"{0:.{digits}f}", 0.0, Estimate(0.0, None, None, tuple(values)))
        found = change(results, name, base).estimate if name and base else None
    else:  # perplexities have no interval: only differences paired by seed do
        found = Estimate(fmean(values.values()), None, None, tuple(values)) if values else None
    diverged = [f"seed {run.seed} at step {run.diverged_at}" for run in runs if run.diverged]
    if diverged:
        notes.append(f"{len(diverged)} of {len(runs)} seeds diverged: {', '.join(diverged)}")
    if not runs:
        notes.append("not run yet")
    if found is None:
        return measured("NaN", math.nan) if diverged else measured("", None)
    if len(found.seeds) == 1:
        notes.append(f"one seed ({found.seeds[0]})")
    return measured(f"{found.mean:.{digits}f}", found.mean, found)


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


def _counted(results: Results, paper: Paper, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    del results, paper
    counts = counted(row.name, printed)
    notes = [cell.note] if cell.note else []
    if cell.column.key == "nonlinear":
        text, value = "; ".join(str(operation) for operation in counts.nonlinear), None
    else:
        value = (counts.ffn if cell.column.key == "flops_ffn" else counts.attention) / 1e9
        text = f"{value:.{cell.column.digits}f}"
    notes.append("counted by the formulas of Appendix E")
    return MeasuredCell(row, cell, text, value, PAPER_DIMENSIONS, "; ".join(notes))


def _missing_cost(row: Row, cell: Cell, note: str = "") -> MeasuredCell:
    notes = [text for text in (cell.note, note, "not measured yet") if text]
    return MeasuredCell(row, cell, "", None, PAPER_DIMENSIONS, "; ".join(notes))


def _cost_cell(row: Row, cell: Cell, value: float, notes: list[str]) -> MeasuredCell:
    return MeasuredCell(row, cell, f"{value:.{cell.column.digits}f}", value, PAPER_DIMENSIONS, "; ".join(notes))


def _communication(results: Results, paper: Paper, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    """Beside printed bytes stand those of the program that explains them best, where it was measured."""
    del paper
    costs, fitted = row_costs(results, printed, row.name), published_cost(results, printed, row.name)
    if fitted is None and "as_written" not in costs:
        return _missing_cost(row, cell)
    notes = [cell.note] if cell.note else []
    if fitted is not None:
        notes.append(f"{fitted.program}, {fitted.method}")
    if "as_written" in costs:
        value = "" if fitted is None else f" {costs['as_written'].bytes / GB:.2f}"
        notes.append(f"as_written{value}, {costs['as_written'].method}")
    if "tuned" in costs:
        notes.append(f"tuned {costs['tuned'].bytes / GB:.2f}")
    shown = fitted or costs["as_written"]
    return _cost_cell(row, cell, shown.bytes / GB, notes)


def _latency(results: Results, paper: Paper, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    bound = published_bound(paper, printed.number, row.name)
    note = ""
    if bound is not None:
        note = (
            f"the published bytes need at least {bound.overlapped:.1f} min on the published network "
            f"({bound.one_way:.1f} if the directions do not overlap)"
        )
    costs = all_costs(results, printed, row.name)
    known = [cost for cost in costs.values() if cost.latency_wan is not None and cost.program != "tuned"]
    if not known:
        return _missing_cost(row, cell, note)
    shown, *others = known
    notes = [cell.note, f"{shown.program}, {shown.method}"]
    beside = published_cost(results, printed, row.name, "as_written") if shown.program == AS_PUBLISHED else None
    if beside is not None and beside.latency_wan is not None:
        notes.append(f"as_written {beside.latency_wan / 60:.2f} on the same day")
    notes += [f"as_written {cost.latency_wan / 60:.2f} on another day" for cost in others]
    notes = [text for text in (*notes, note) if text]
    return _cost_cell(row, cell, shown.latency_wan / 60, notes)


def _saving(results: Results, paper: Paper, printed: Table, row: Row, cell: Cell) -> MeasuredCell:
    del paper
    quantity = "bytes" if cell.column.key == "savings_communication" else "latency_wan"
    value = published_saving(results, printed, row.name, quantity)
    plain = saving(results, printed, row.name, "as_written", quantity)
    notes = [cell.note] if cell.note else []
    if value is not None:
        notes.append(AS_PUBLISHED if plain is None else f"{AS_PUBLISHED}; as_written {plain:.2f}")
    elif plain is not None:
        notes.append("as_written")
    else:
        return _missing_cost(row, cell)
    return _cost_cell(row, cell, plain if value is None else value, notes)


_COSTS: dict[str, Callable[[Results, Paper, Table, Row, Cell], MeasuredCell]] = {
    "nonlinear": _counted,
    "flops_ffn": _counted,
    "flops_attention": _counted,
    "communication": _communication,
    "latency": _latency,
    "savings_communication": _saving,
    "savings_latency": _saving,
}

COST_COLUMNS = (
    *("row", "program", "bytes", "set_up_bytes", "embedding_bytes", "head_bytes", "ln_f_bytes", "messages", "rounds"),
    *("compute_s", "latency_wan_min", "latency_lan_min", "method", "max_logit_error", "published_gb"),
    *("bytes_over_published", "published_min", "bound_overlapped_min", "bound_one_way_min", "needed_mbit"),
)


def cost_rows(results: Results, number: str = "4") -> list[dict[str, str | float | None]]:
    """One entry a row and program: what was measured, and the bound the published bytes put on the published latency.

    Rows without a measurement have one entry with the published side alone. Bytes are both ways; minutes and seconds.
    """
    paper = load("aero")
    printed = paper.tables[number]
    entries: list[dict[str, str | float | None]] = []
    for row in printed.rows:
        gigabytes, minutes = row.cells["communication"].value, row.cells["latency"].value
        side: dict[str, str | float | None] = {"row": row.name, "published_gb": gigabytes, "published_min": minutes}
        if gigabytes:
            bound = LatencyBound(gigabytes, paper.facts["network"]["bandwidth_mbit"])
            side |= {"bound_overlapped_min": bound.overlapped, "bound_one_way_min": bound.one_way}
            side["needed_mbit"] = bound.needed_mbit(minutes) if minutes else None
        costs = all_costs(results, printed, row.name)
        entries += [side | _measured(cost, gigabytes) for cost in costs.values()] or [side | {"program": None}]
    return entries


def _measured(cost: Cost, gigabytes: float | None) -> dict[str, str | float | None]:
    parts = {f"{name}_bytes": part_bytes(cost, f"{name}_bytes") for name in ("embedding", "head", "ln_f")}
    return parts | {
        "program": cost.program,
        "bytes": cost.bytes,
        "set_up_bytes": part_bytes(cost, "setup_bytes"),
        "messages": cost.messages,
        "rounds": cost.rounds,
        "compute_s": cost.seconds,
        "latency_wan_min": None if cost.latency_wan is None else cost.latency_wan / 60,
        "latency_lan_min": None if cost.latency_lan is None else cost.latency_lan / 60,
        "method": cost.method,
        "max_logit_error": cost.max_logit_error,
        "bytes_over_published": cost.bytes / GB / gigabytes if gigabytes else None,
    }


def cells_csv(cells: Iterable[MeasuredCell]) -> str:
    """The cells as CSV text with the columns of the contract; numbers in shortest exact form, gaps empty."""
    rows = []
    for cell in cells:
        found = cell.estimate
        measured = cell.text if cell.value is None or math.isnan(cell.value) else f"{cell.value:.6g}"
        rows.append(
            {
                "row": cell.row.name,
                "column": cell.published.column.label,
                "published": cell.published.text,
                "measured": measured,
                "unit": cell.published.column.unit,
                "scale": cell.scale,
                "seeds": " ".join(str(seed) for seed in found.seeds) if found else "",
                "ci_low": "" if found is None or found.low is None else f"{found.low:.6g}",
                "ci_high": "" if found is None or found.high is None else f"{found.high:.6g}",
                "note": cell.note,
            }
        )
    return csv_text(rows, COLUMNS)


def _costs_csv(entries: Iterable[dict[str, str | float | None]]) -> str:
    """The entries as CSV text; bytes whole, other numbers to six digits, gaps empty."""
    return csv_text([{key: _written(key, value) for key, value in entry.items()} for entry in entries], COST_COLUMNS)


def _written(key: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if key.endswith("bytes") else f"{value:.6g}"


def csv_text(rows: Iterable[dict[str, object]], columns: tuple[str, ...]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def files(results: Results) -> dict[Path, str]:
    """Text of the tables' files by place; of other training scales the perplexities alone (aero_table2_gpu.csv)."""
    found = {
        FOLDER / f"{short}_table{number}.csv": cells_csv(table(results, number, short)) for short, number in PRINTED
    }
    for number in COST_TABLES:
        found[FOLDER / f"aero_table{number}_costs.csv"] = _costs_csv(cost_rows(results, number))
    for short, number in PRINTED[:-1]:
        rows = load(short).tables[number].rows
        for scale in results.scales_of(*(run for row in rows for run in row.trained.values())):
            cells = table(results.at(scale), number) if scale != results.scale else ()
            trained = [c for c in cells if c.published.column.key.startswith("ppl") and _run_of(c)]
            if trained:
                found[FOLDER / f"aero_table{number}_{scale}.csv"] = cells_csv(trained)
    return found


def _run_of(cell: MeasuredCell) -> str | None:
    return cell.row.trained.get(cell.published.column.training)
