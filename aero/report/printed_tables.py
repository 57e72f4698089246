"""Printed tables as they stand in the papers: in every cell the published number, the measured one, their ratio."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from aero.published import Table, load
from aero.report.costs import FITTED
from aero.report.figure_index import PAPERS
from aero.report.marks import (
    Html,
    cost_caption,
    gap,
    grid,
    measured_number,
    number,
    published_number,
    ratio,
    row_label,
    training_caption,
)
from aero.report.results import Results
from aero.report.tables import MeasuredCell, table

_HEADS = {
    "nonlinear": "nonlinear ops",
    "flops_ffn": "FLOPs FFN, 10⁹",
    "flops_attention": "FLOPs attn., 10⁹",
    "communication": "comm., GB",
    "latency": "lat. (WAN), min",
    "savings_communication": "saving comm., ×",
    "savings_latency": "saving lat., ×",
}
_COST_KEYS = ("communication", "latency")


def printed_table(results: Results, number_: str, short: str = "aero") -> Html:
    """The table `number_` of a paper with what was measured for each of its cells."""
    printed = load(short).tables[number_]
    cells = {(c.row.name, c.published.column.key): c for c in table(results, number_, short)}
    place = f"{PAPERS[short]} Table {number_}; {printed.place}"
    rows = [
        [_label(printed, row.name), *(_cell(cells[row.name, key], place, results) for key in printed.columns)]
        for row in printed.rows
    ]
    heads = ["configuration", *(_HEADS.get(key, escape(column.label)) for key, column in printed.columns.items())]
    identifier = f"table-{number_}" if short == "aero" else f"{short.replace('_', '-')}-table-{number_}"
    caption = _caption(results, printed, short)
    return Html(grid(heads, rows, caption, identifier, _widths(printed.columns), "dense"))


def _label(printed: Table, name: str) -> str:
    """A row's name; an architecture in code, a part of a model in words."""
    return row_label(name) if name.startswith(("SM", "SOTA", "EReg")) else escape(name)


def _cell(cell: MeasuredCell, place: str, results: Results) -> str:
    if cell.published.operations:
        return _operations(cell, place)
    above = published_number(cell.published, place)
    if cell.origin == "missing":
        return f"{above}<br>{gap('not yet')}"
    below = measured_number(cell, results)
    over = ratio(cell, results)
    return f"{above}<br>{below}" + ("" if "none" in over else f'<br><span class="ratio">{over}</span>')


def _operations(cell: MeasuredCell, place: str) -> str:
    texts = [str(one).replace("R^{", "").replace("}", "").replace(":", " ") for one in cell.published.operations]
    ours = "the same" if cell.text == cell.published.text else cell.text
    return "<br>".join([*(number(text, "published", place) for text in texts), _counted(ours)])


def _counted(text: str) -> str:
    return number(text, "paper_dimensions", "aero/flops.py, aero.flops.count")


def _widths(columns: Mapping[str, object]) -> tuple[float, ...]:
    first, operations = 0.19, 0.17 if "nonlinear" in columns else 0.0
    # A perplexity has an interval beside it.
    shares = {key: 1.5 if key.startswith("ppl") else 1.0 for key in columns if key != "nonlinear"}
    each = (1 - first - operations) / sum(shares.values())
    return (first, *(operations if key == "nonlinear" else each * shares[key] for key in columns))


def _caption(results: Results, printed: Table, short: str) -> str:
    runs = [run for row in printed.rows for run in row.trained.values()]
    sizes = printed.dimensions
    stated = ", ".join(
        f"{letter}={sizes[key]}"
        for letter, key in (("L", "layers"), ("H", "heads"), ("d", "width"), ("T", "context"))
        if key in sizes
    )
    parts = [
        f"<b>{PAPERS[short]} Table {printed.number}. {escape(printed.title)}</b> ({stated}).",
        "From above: published, measured here, their ratio.",
        training_caption(results, runs),
    ]
    if any(key in printed.columns for key in _COST_KEYS):
        parts.append(
            "Counts: <code>aero.flops</code>. Costs, where measured: as_published, in a session of its own on a slower "
            f"day (<code>{FITTED.as_posix()}</code>); as_written in the notes of reports/tables. "
            f"{cost_caption(results, printed)}"
        )
    return " ".join(parts)
