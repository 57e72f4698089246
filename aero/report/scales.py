"""Results of several training scales: which are shown, and what is missing at the papers' own width and depth."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from aero.published import Cell, Row, load
from aero.report.marks import Html, gap, grid, number, published_number, row_label, training_caption
from aero.report.results import LOOK, Results
from aero.report.statistics import estimate, relative
from aero.report.tables import cells_csv, table, training_origin

TABLES = ("2", "3", "4", "5", "6", "7", "8", "9")
BASELINE = "SM+LN+G"
LARGE = "gpu"
"""The smallest scale of the papers' own width and depth."""


def _trained(number_: str) -> dict[str, tuple[Row, Cell, str]]:
    """By row and training of the printed table: the row, its perplexity's cell and the run."""
    found = {}
    for row in load("aero").tables[number_].rows:
        for cell in row.cells.values():
            run = row.trained.get(cell.column.training)
            if run and cell.column.key.startswith("ppl"):
                found[" ".join(filter(None, (row.name, cell.column.training)))] = (row, cell, run)
    return found


def side_by_side(results: Results) -> Html:
    """Published perplexities beside those of every scale with results, table by table, and their increase over the
    table's SM+LN+G; what is not there at the papers' width and depth is named.
    """
    parts = [_side_by_side(results, number_) for number_ in TABLES]
    runs = [run for number_ in ("2", "4") for _, _, run in _trained(number_).values()]
    absent = "".join(f"<p>{escape(line)}.</p>" for line in missing_scale(results, dict.fromkeys(runs)))
    return Html(absent + "".join(parts))


def _side_by_side(results: Results, number_: str) -> str:
    trained = _trained(number_)
    runs = [run for _, _, run in trained.values()]
    scales = results.scales_of(*runs)
    if len(scales) < 2:
        return ""
    place, first = f"AERO Table {number_}", next(iter(trained.values()))[0].name
    # The baseline of a row: SM+LN+G of the same training, where the table begins with it.
    bases = {cell.column.training: (cell, run) for row, cell, run in trained.values() if row.name == first == BASELINE}
    rows = []
    for name, (row, cell, run) in trained.items():
        base = bases.get(cell.column.training)
        line = [row_label(row.name) + escape(name.removeprefix(row.name)), published_number(cell, place)]
        line += [_perplexity(results, run, scale, cell.column.digits) for scale in scales]
        if bases:
            line.append(_published_increase(cell, base[0], place) if base else "")
            line += [_increase(results, run, base[1], scale) if base else "" for scale in scales]
        rows.append(line)
    heads = ["configuration", "PPL published", *(f"PPL at {scale}" for scale in scales)]
    if bases:
        heads += ["Δ % published", *(f"Δ % at {scale}" for scale in scales)]
    stated = " ".join(training_caption(results.at(scale), runs) for scale in scales)
    caption = (
        f"<b>Table {number_} at every scale.</b> Perplexities of different corpora and tokenizers do not compare; Δ, "
        f"their increase over {BASELINE} paired by seed, does. {stated}"
    )
    return grid(heads, rows, caption, f"scales-{number_}", (), "dense")


def _perplexity(results: Results, run: str, scale: str, digits: int) -> str:
    seeds = results.seeds(run, scale)
    found = estimate(results.perplexity(run, scale))
    if not seeds:
        return gap()
    text = "NaN" if found is None else found.possible("perplexity").text(digits)
    failed = sum(trained.diverged for trained in seeds)
    if found is not None and failed:
        text += f", {failed} of {len(seeds)} NaN"
    return number(text, training_origin(scale), ", ".join(trained.path for trained in seeds))


def _increase(results: Results, run: str, base: str, scale: str) -> str:
    found = estimate(relative(results.perplexity(run, scale), results.perplexity(base, scale)))
    diverged = any(trained.diverged for trained in results.seeds(run, scale))
    if found is None and not diverged:
        return gap()
    source = ", ".join(trained.path for name in (run, base) for trained in results.seeds(name, scale))
    text = "NaN" if found is None else "baseline" if run == base else found.possible().text(1)
    return number(text, training_origin(scale), source)


def _published_increase(cell: Cell, base: Cell, place: str) -> str:
    if cell is base:
        return number("baseline", "published", place)
    if cell.value is None or cell.diverged or base.value is None:
        return published_number(cell, place)
    return number(f"{100 * (cell.value / base.value - 1):+.1f}", "published", place)


def files(results: Results) -> dict[Path, str]:
    """The perplexities of every table with results at another scale than the report's: aero_table2_gpu.csv, in the form
    of the other tables' files."""
    found = {}
    for number_ in TABLES:
        trained = _trained(number_)
        for scale in results.scales_of(*(run for _, _, run in trained.values())):
            if scale == results.scale:
                continue
            cells = [
                cell
                for cell in table(results.at(scale), number_)
                if cell.published.column.key.startswith("ppl") and cell.row.trained.get(cell.published.column.training)
            ]
            found[Path("reports") / "tables" / f"aero_table{number_}_{scale}.csv"] = cells_csv(cells)
    return found


def missing_scale(results: Results, runs: Iterable[str]) -> list[str]:
    """What is not there of the runs at the papers' own width and depth, one line; none if all is."""
    runs = list(runs)
    if results.scale in (LARGE, "paper", LOOK) or any(results.seeds(run, "paper") for run in runs):
        return []
    absent = [run for run in runs if not results.seeds(run, LARGE)]
    if not absent:
        return []
    named = ", ".join(absent) if len(absent) < len(runs) else f"any of these {len(runs)} runs"
    return [f"Scale {LARGE} (the papers' width and depth, fewer tokens) has no result of {named} yet: docs/gpu.md"]
