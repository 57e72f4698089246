"""How a number looks and where it was measured: marks, table grids, captions.

A number is published, measured at the papers' dimensions, or measured at a smaller scale or another width; mark,
colour and the source it comes from (its `title`) say which.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from aero.published import Cell, Table, load
from aero.report import evidence
from aero.report.results import Results, Run
from aero.report.tables import MeasuredCell

MARKS = {
    "published": "",
    "paper_dimensions": "●",
    "smaller_scale": "○",
    "other_width": "○",
    "projected": "",
    "missing": "",
}
INTERVAL = "95 % t-interval over seeds, cut at what can be (perplexity 1, -100 %)"
WORDS = {
    "published": "published",
    "paper_dimensions": "measured at the papers’ dimensions",
    "smaller_scale": "measured at a smaller scale",
    "other_width": "measured at another width than the paper’s, or at several",
    "projected": "projected, not measured",
    "missing": "not measured yet",
}


@dataclass(frozen=True)
class Html:
    """A fragment a notebook shows as it is."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def number(text: str, origin: str, source: str, file: str = "") -> str:
    """A number with its class as mark, colour and CSS class; `source` is the file or place it comes from.

    file: what the number leads to, if `source` does not name it.
    """
    mark = f'<span class="mark">{MARKS[origin]}</span>' if MARKS[origin] else ""
    shown = f"{mark}{escape(text)}"
    if file := file or evidence.file_of(origin, source):
        shown = f'<a href="{evidence.UP}{escape(file)}">{shown}</a>'
    return f'<span class="num {origin}" title="{escape(WORDS[origin])}: {escape(source)}">{shown}</span>'


def gap(text: str = "not measured yet") -> str:
    return f'<span class="missing">{escape(text)}</span>'


def published_number(cell: Cell, place: str) -> str:
    """A printed cell; a dash with the reason for an empty one."""
    if not cell.text:
        return f'<span class="none" title="{escape(cell.note)}">–</span>'
    return number(cell.text, "published", place)


def measured_number(cell: MeasuredCell, results: Results) -> str:
    """What was measured for a cell, with its interval over seeds; a visible gap if nothing was.

    A mean of the seeds that are left says how many diverged.
    """
    if cell.origin == "missing":
        return gap()
    text = cell.text
    found = cell.estimate
    if found is not None and found.has_interval:
        text = found.possible(cell.published.column.unit).text(min(cell.published.column.digits, 2))
    shown = number(text, cell.origin, cell_source(cell, results))
    lost = "" if found is None else diverged_seeds(_trainings(cell, results))
    return shown + (f'<br><span class="where">{lost}</span>' if lost else "")


def diverged_seeds(runs: Sequence[Run]) -> str:
    """ "2 of 3 seeds diverged", "" if none did."""
    failed = sum(run.diverged for run in runs)
    return f"{failed} of {len(runs)} seeds diverged" if failed else ""


def _trainings(cell: MeasuredCell, results: Results) -> tuple[Run, ...]:
    name = cell.row.trained.get(cell.published.column.training)
    return results.seeds(name) if name else ()


def ratio(cell: MeasuredCell, results: Results) -> str:
    """Measured over published; a dash where one of them is no number, or is a change in per cent."""
    value = ratio_of(cell)
    if value is None:
        return '<span class="none">–</span>'
    return number(f"{value:.2f}", cell.origin, cell_source(cell, results))


def ratio_of(cell: MeasuredCell) -> float | None:
    """Measured over published; None where one of them is no number, or is a change in per cent."""
    printed, value = cell.published.value, cell.value
    if not printed or value is None or not math.isfinite(value / printed) or cell.published.column.unit == "%":
        return None
    return value / printed


def cell_source(cell: MeasuredCell, results: Results) -> str:
    """The files or the function a measured cell comes from."""
    if cell.scale == "paper_dimensions":
        if cell.note.endswith("Appendix E"):
            return "aero/flops.py, aero.flops.count"
        return f"{cell.source}; {cell.note}"
    return ", ".join(run.path for run in _trainings(cell, results)) + (f"; {cell.note}" if cell.note else "")


def grid(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    identifier: str = "",
    widths: Sequence[float] = (),
    kind: str = "",
    sources: bool = True,
) -> str:
    """A table of HTML cells in a box of its own that scrolls sideways; `widths` are fractions of the text width.

    sources: whether a line below names its files, code and command; the code is the function that calls this one.
    """
    code, line = evidence.caller()
    columns = "".join(f'<col style="width: {100 * width:.1f}%">' for width in widths)
    head = "".join(f"<th>{header}</th>" for header in headers)
    # The label is what a narrow screen shows instead of the header, where a row becomes a card.
    labels = [re.sub(r"<[^>]+>", "", header) for header in headers]
    body = "".join(
        "<tr>"
        + "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(labels, row, strict=True))
        + "</tr>"
        for row in rows
    )
    anchor = f' id="{identifier}"' if identifier else ""
    below = evidence.details(body, code, line)
    return (
        f'<div class="table {kind}"{anchor}><div class="scroll"><table>'
        f"{f'<colgroup>{columns}</colgroup>' if columns else ''}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        f'</table></div><div class="caption"><p>{caption}</p></div>{below if sources else ""}</div>'
    )


def row_label(name: str) -> str:
    """An architecture's notation, breakable at its plus signs."""
    return "<code>" + escape(name).replace("+", "+<wbr>") + "</code>"


# What was measured where ------------------------------------------------------------------------------------------


def reported_runs() -> tuple[str, ...]:
    """Names of the runs in the tables that the report shows."""
    tables = load("aero").tables
    return tuple(dict.fromkeys(row.run for number in ("2", "4") for row in tables[number].rows if row.run))


def scale_text(
    results: Results, scale: str | None = None, names: Iterable[str] = (), runs: Sequence[Run] | None = None
) -> str:
    """A training scale in words with its sizes, as the files of the named runs state them (default: the reported).

    runs: the trainings to take instead of all seeds of the named runs, so that no other file is read.
    """
    scale = scale or results.scale
    if runs is None:
        runs = [run for name in names or reported_runs() for run in results.seeds(name, scale)]
    if not runs:
        return f"scale {scale}, not run yet"
    model = runs[0].metrics.get("model") or {}
    sizes = ", ".join(
        f"{letter}={model[key]}"
        for letter, key in (("L", "layers"), ("H", "heads"), ("d", "width"), ("T", "context"), ("V", "vocabulary"))
        if key in model
    )
    tokens = sorted({run.metrics.get("tokens") for run in runs if run.metrics.get("tokens") and not run.diverged})
    budget = (
        f", {millions(tokens[0])}{f' to {millions(tokens[-1])}' if tokens[0] != tokens[-1] else ''} tokens a run"
        if tokens
        else ""
    )
    return f"scale {scale} ({sizes}{budget})"


def millions(value: float) -> str:
    unit, name = (1e9, "B") if value >= 1e9 else (1e6, "M") if value >= 1e6 else (1e3, "K")
    return f"{value / unit:.3g} {name}"


def some(values: Iterable[str], most: int = 3) -> str:
    distinct = sorted({value for value in values if value})
    return (
        ", ".join(distinct[:most]) + (f" and {len(distinct) - most} more" if len(distinct) > most else "")
        or "(not recorded)"
    )


def origin(kind: str, kinds: str, values: Iterable[str], most: int = 3) -> str:
    """ "commit c0ffee", or "mixed: 2 commits (c0ffee, decade)" for a table or figure whose parts are not of one."""
    distinct = {value for value in values if value}
    named = some(distinct, most)
    return f"{kind} {named}" if len(distinct) < 2 else f"mixed: {len(distinct)} {kinds} ({named})"


def training_caption(results: Results, names: Iterable[str], brackets: bool = True) -> str:
    """Scale, seeds, corpus, commit and machine of the named runs' trainings, all seeds of them, with intervals.

    brackets: whether what the caption is of shows the intervals; else its CSV file has them.
    """
    found = {name: results.seeds(name) for name in names}
    seeds = sorted({run.seed for runs in found.values() for run in runs})
    counts = [len(runs) for runs in found.values() if runs] or [0]
    how_many = f"{_seeds(counts)} ({', '.join(map(str, seeds))})"
    where = f"brackets: {INTERVAL}" if brackets else "95 % t-intervals over seeds: in the CSV file"
    interval = f"; {where}" if max(counts) > 1 else "; one seed has no interval"
    return _measured_side(results, found, how_many + interval)


def figure_caption(results: Results, shown: Mapping[str, Sequence[Run]], first: bool) -> str:
    """The same of a figure without intervals. shown: by run, the trainings that it shows; first: those of the first
    seed alone.
    """
    listed = ", ".join(map(str, sorted({run.seed for runs in shown.values() for run in runs})))
    there = _seeds(len(results.seeds(name) if first else runs) for name, runs in shown.items() if runs)
    which = f"first seed ({listed}) of {there.removesuffix(' seeds')}" if first and there != "one seed" else ""
    return _measured_side(results, shown, which or f"{there} ({listed})")


def _seeds(counts: Iterable[int]) -> str:
    """How many seeds the runs have that have any: "one seed", "3 seeds", "1 to 3 seeds"."""
    found = [count for count in counts if count] or [0]
    fewest, most = min(found), max(found)
    return "one seed" if most == 1 else f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def _measured_side(results: Results, found: Mapping[str, Sequence[Run]], seeds: str) -> str:
    runs = [run for trained in found.values() for run in trained]
    if not runs:
        return f"Measured side: {escape(scale_text(results, names=list(found)))}."
    size = scale_text(results, runs=runs)
    corpora = origin(
        "corpus",
        "corpora, whose perplexities do not compare",
        (f"{run.metrics.get('corpus')} (sha256 {str(run.provenance.get('corpus_sha256'))[:8]})" for run in runs),
    )
    commits = origin("commit", "commits", (short_commit(run.provenance.get("commit")) for run in runs))
    machines = origin("machine", "machines", (str(run.provenance.get("machine") or "") for run in runs))
    return escape(f"Measured side: {size}; {seeds}; {corpora}; {commits}; {machines}.")


def short_commit(text: object) -> str:
    revision, plus, _ = str(text or "").partition("+")
    return revision[:10] + ("+changes" if plus else "")


def cost_caption(results: Results, table: Table | None = None) -> str:
    """Dimensions, engine, network, commit and machine of the two-party measurements (default: those of Table 4)."""
    settings = results.parameters.get("two_party", {})
    networks = "; ".join(
        f"{name.upper()} {n['bandwidth_mbit']} Mbit/s, {n['rtt_ms']} ms"
        for name, n in settings.get("networks", {}).items()
    )
    table = table or load("aero").tables["4"]
    sizes = table.dimensions
    costs = tuple(c for c in results.costs if c.context == table.dimensions["context"])
    operations = results.operations
    stated = f"L={sizes['layers']}, H={sizes['heads']}, d={sizes['width']}, T={sizes['context']}"
    if not costs:
        return escape(f"Measured side: the papers’ dimensions ({stated}), not measured yet.")
    methods = some(cost.method for cost in costs)
    return escape(
        f"Measured side: the papers’ dimensions ({stated}), SPU Cheetah {settings.get('field', '')}, two processes; "
        f"{methods}; bytes in both directions, set-up included once; {networks}; {measured_at(operations)}."
    )


def measured_at(operations: Iterable[Mapping[str, str]]) -> str:
    """Commit and machine of measured operations, "mixed" where they are several; older ones name a bare commit."""
    origins: list[dict[str, object]] = []
    for line in operations:
        try:
            origins.append(json.loads(line.get("provenance") or "{}"))
        except ValueError:
            origins.append({"commit": line.get("provenance")})
    commits = origin("commit", "commits", (short_commit(one.get("commit")) for one in origins))
    return f"{commits}; " + origin("machine", "machines", (str(one.get("machine") or "") for one in origins), 2)
