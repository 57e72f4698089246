"""Table 1 of `entropy_landscape`: perplexity, range of the heads' entropies and Wasserstein-1 distance, by margin."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from numpy.typing import ArrayLike

from aero.landscape import entropy_range, wasserstein_1, wasserstein_1_by_layer
from aero.published import Cell, Row, load
from aero.report.figure_index import PAPERS
from aero.report.marks import Html, cell_source, gap, grid, number, published_number, ratio, training_caption
from aero.report.results import Results
from aero.report.statistics import estimate, sampling_error
from aero.report.tables import MeasuredCell, cells_csv, table, training_origin

PAPER, NUMBER = "entropy_landscape", "1"
TRAININGS = {"baseline": "baseline", "0": "margin 0", "10": "margin 0.10", "20": "margin 0.20"}


def cells(results: Results) -> list[MeasuredCell]:
    """Every cell, measured at the report's training scale; Wasserstein-1 is of all heads from all of the baseline's."""
    by_key = {(c.row.name, c.published.column.key): c for c in table(results, NUMBER, PAPER)}
    found = []
    for row in load(PAPER).tables[NUMBER].rows:
        for cell in row.cells.values():
            kind = re.sub(r"_\d+$", "", cell.column.key)
            found.append(by_key[row.name, cell.column.key] if kind == "ppl" else _heads(results, row, cell, kind))
    return found


def _heads(results: Results, row: Row, cell: Cell, kind: str) -> MeasuredCell:
    """A cell that is a statistic of the heads' mean entropies."""
    name, base = row.trained[cell.column.training], row.trained["baseline"]
    baseline = {run.seed: run for run in results.seeds(base) if run.entropy}
    compared = {
        run.seed: (run, baseline[run.seed]) if kind == "w1" else (run,)
        for run in results.seeds(name)
        if run.entropy and (kind != "w1" or run.seed in baseline)
    }
    notes = [cell.note] if cell.note else []
    found = estimate({s: _statistic(kind, *(run.entropy.mean for run in runs)) for s, runs in compared.items()})
    if found is None:
        missing = "not run yet" if not results.seeds(name) else "entropies not measured"
        return MeasuredCell(row, cell, "", None, "missing", results.scale, "; ".join([*notes, missing]))
    seed = found.seeds[0]
    if len(found.seeds) == 1:
        notes.append(f"one seed ({seed}), no interval")
    if kind == "w1":
        layers = wasserstein_1_by_layer(*(run.entropy.mean for run in compared[seed])).mean()
        notes.append(f"mean of the layers' own distances {layers:.3f} (seed {seed})")
    error = sampling_error(partial(_statistic, kind), *(run.entropy.blocks for run in compared[seed]))
    notes.append("no sampling error stored" if error is None else f"sampling error {error:.2g} (seed {seed})")
    return MeasuredCell(
        row,
        cell,
        f"{found.mean:.{cell.column.digits}f}",
        found.mean,
        training_origin(results.scale),
        results.scale,
        "; ".join(notes),
        found,
    )


def _statistic(kind: str, *heads: ArrayLike) -> float:
    """Entropy of a model's lowest ("low") or highest ("high") head, or its heads' distance ("w1") from others."""
    if kind == "w1":
        return wasserstein_1(*heads)
    low, high = entropy_range(*heads)
    return low if kind == "low" else high


def table_1(results: Results) -> Html:
    """The table: in every cell the published number above the measured one, a row a model, a column a margin."""
    printed = load(PAPER).tables[NUMBER]
    place = f"{PAPERS[PAPER]} Table {NUMBER}; {printed.place}"
    measured = {(c.row.name, c.published.column.key): c for c in cells(results)}
    rows = []
    for row in printed.rows:
        line = [row.name]
        for training in TRAININGS:
            keys = [key for key, column in printed.columns.items() if column.training == training]
            by_kind = {re.sub(r"_\d+$", "", key): measured[row.name, key] for key in keys}
            line.append(_stacked(by_kind, ("ppl",), place, results))
            line.append(_stacked(by_kind, ("low", "high"), place, results))
            if training != "baseline":
                line.append(_stacked(by_kind, ("w1",), place, results))
        rows.append(line)
    heads = ["model"]
    for training, name in TRAININGS.items():
        heads += [f"{name}: PPL", "range, nats"] + ([] if training == "baseline" else ["W₁, nats"])
    runs = [run for row in printed.rows for run in row.trained.values()]
    caption = (
        f"<b>{place.split(';')[0]}.</b> From above: published, measured here, their ratio. Range: lowest and highest "
        "head. W₁: of all heads from all heads of the baseline, paired by seed; sampling errors and the mean of the "
        "layers' own distances are in <code>reports/tables/entropy_landscape_table1.csv</code>. Entropies grow with "
        f"the context: compare differences, not sizes. {training_caption(results, runs, brackets=False)}"
    )
    widths = (0.1, 0.08, 0.1) + (0.08, 0.1, 0.06) * 3
    return Html(grid(heads, rows, caption, "landscape-table-1", widths, "dense"))


def _stacked(by_kind: dict[str, MeasuredCell], kinds: tuple[str, ...], place: str, results: Results) -> str:
    chosen = [by_kind[kind] for kind in kinds]
    published = " to ".join(published_number(cell.published, place) for cell in chosen)
    if any(cell.origin == "missing" for cell in chosen):
        return f"{published}<br>{gap('–')}"
    text = " to ".join(cell.text for cell in chosen)
    source = cell_source(chosen[0], results)
    over = f'<br><span class="ratio">{ratio(chosen[0], results)}</span>' if len(chosen) == 1 else ""
    return f"{published}<br>{number(text, chosen[0].origin, source)}{over}"


def files(results: Results) -> dict[Path, str]:
    """Path below the project's root and text of the table's file."""
    return {Path("reports") / "tables" / f"{PAPER}_table{NUMBER}.csv": cells_csv(cells(results))}
