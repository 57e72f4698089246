"""The first page: what the papers ask, what holds and what does not, and its three figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.published import Table, load
from aero.report import drawing
from aero.report.costs import audit, published_saving, saving
from aero.report.drawing import INK, MUTED, PAPER, PUBLISHED, TUNED, WIDTH, say_missing, style, swatch
from aero.report.figure_index import PAPERS
from aero.report.marks import Html, grid
from aero.report.results import Results
from aero.report.statistics import estimate, relative
from aero.report.verdicts import VERDICTS
from aero.two_party.program.optimizations import AS_PUBLISHED

QUESTIONS = Path(__file__).parent / "assets" / "questions.yaml"
SHOWN = 3
"""How many claims a cell of the first table names."""
COLOURS = {
    "reproduced": "#009e73",
    "direction reproduced": "#56b4e9",
    "not seen at this scale": "#e69f00",
    "contradicted": "#d55e00",
    "not testable here": "#9aa3ae",
}
_HOLDS = ("reproduced", "direction reproduced")
_DOES_NOT = ("contradicted", "not seen at this scale")


@dataclass(frozen=True)
class Question:
    """What papers ask, in plain words, and the ids of the claims that answer it, the most telling first."""

    asked: str
    papers: tuple[str, ...]
    claims: tuple[str, ...]


def questions() -> tuple[Question, ...]:
    """The questions of the first page."""
    entries = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return tuple(Question(e["asked"], tuple(e["papers"]), tuple(e["claims"])) for e in entries)


def table_questions(judged: pd.DataFrame) -> Html:
    """The first table: a question a row, the claims that hold, those that do not, and how many are open."""
    by_id = {j.id: j for j in judged.itertuples()}
    rows = []
    for question in questions():
        those = [by_id[name] for name in question.claims]
        papers = ", ".join(PAPERS[short] for short in question.papers)
        open_ = sum(j.verdict == "not testable here" for j in those)
        rows.append(
            [
                f'<b>{escape(question.asked)}</b><br><span class="where">{escape(papers)}</span>',
                _tally(those),
                _answers(those, _HOLDS),
                _answers(those, _DOES_NOT),
                f"{open_}" if open_ else "–",
            ]
        )
    caption = (
        "<b>What was asked, what holds, what does not.</b> One square a claim; named are the most telling ones, with "
        "what was found here and, in brackets, what is published. In grey: not seen in the smaller models that are "
        "trained here. Open: not decided yet."
    )
    heads = ["what was asked", "claims", "what holds", "what does not", "open"]
    return Html(grid(heads, rows, caption, "questions", (0.27, 0.1, 0.29, 0.29, 0.05), "dense answers", sources=False))


def _answers(those: Sequence[Any], kinds: Sequence[str]) -> str:
    chosen = sorted((j for j in those if j.verdict in kinds), key=lambda j: kinds.index(j.verdict))
    lines = [f"{escape(j.claim)}: {escape(j.measured)} ({escape(j.published)})" for j in chosen[:SHOWN]]
    if len(chosen) > SHOWN:
        lines.append(f'<span class="where">and {len(chosen) - SHOWN} more</span>')
    return "<br>".join(lines) or "–"


def _tally(those: Sequence[Any]) -> str:
    """One square a claim, in the order of the verdicts, each told by its title."""
    squares = []
    for kind in VERDICTS:
        for j in those:
            if j.verdict == kind:
                name = kind.replace(" ", "-")
                title = escape(f"{j.claim}: {kind}")
                squares.append(f'<a class="square v-{name}" href="#claim-{j.id}" title="{title}">■</a>')
    return f'<span class="tally">{"&#8203;".join(squares)}</span>'


def figure_verdicts(judged: pd.DataFrame) -> Figure:
    """Verdicts by paper, contradictions inside the print apart from what was measured."""
    with style():
        figure = Figure(figsize=(WIDTH, 2.75))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.23, right=0.96, top=0.86, bottom=0.13)
        for place, short in enumerate(PAPERS):
            those = [j for j in judged.itertuples() if j.paper == short]
            left = 0
            for kind in VERDICTS:
                count = sum(j.verdict == kind for j in those)
                if not count:
                    continue
                axes.barh(place, count, 0.62, left=left, color=COLOURS[kind], edgecolor=PAPER, linewidth=1)
                size = 8 if count > 2 else 6
                axes.text(left + count / 2, place, str(count), ha="center", va="center", fontsize=size, color="#10141a")
                left += count
            axes.text(left + 0.8, place, f"{len(those)} claims", va="center", color=MUTED, fontsize=7.5)
        axes.set_yticks(range(len(PAPERS)), list(PAPERS.values()))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlabel("claims")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
        for x, kind in zip((0.02, 0.16, 0.385, 0.605, 0.76), VERDICTS, strict=True):
            swatch(figure, x, 0.925, COLOURS[kind])
            figure.text(x + 0.034, 0.938, kind, va="center", fontsize=8)
    return figure


_SAVINGS_ROWS = ("SM+LN+R", "SOTA(SM+ScFFN)", "SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFNi_6")
_OWN = "#cc79a7"


def figure_savings(results: Results) -> Figure:
    """Saving in communication over SM+LN+G: published; measured as published, as written, with a cheap GELU, tuned."""
    table = load("aero").tables["4"]
    with style():
        figure = Figure(figsize=(WIDTH, 2.7))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.2, right=0.97, top=0.84, bottom=0.16)
        for place, row in enumerate(_SAVINGS_ROWS):
            _savings_of(axes, place, _savings(results, table, row))
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(_SAVINGS_ROWS)), _SAVINGS_ROWS)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(_SAVINGS_ROWS) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.grid(axis="x")
        axes.set_xlabel("times less communication than SM+LN+G at T=128")
        for x, (marker, colour, text) in zip((0.03, 0.165, 0.33, 0.475, 0.835), _MARKERS.values(), strict=True):
            figure.text(x, 0.93, marker, color=colour, va="center", fontsize=11)
            figure.text(x + 0.03, 0.93, text, va="center", fontsize=8)
    return figure


_MARKERS = {
    "published": ("◇", PUBLISHED, "published"),
    AS_PUBLISHED: ("▼", drawing.AS_PUBLISHED, "as published"),
    "as_written": ("●", drawing.AS_WRITTEN, "as written"),
    "own": ("▲", _OWN, "as written, baseline's GELU cheap"),
    "tuned": ("■", TUNED, "both tuned"),
}
_SHAPES = {"published": "D", AS_PUBLISHED: "v", "as_written": "o", "own": "^", "tuned": "s"}


def _savings(results: Results, table: Table, row: str) -> dict[str, float | None]:
    found = audit(results, table, row, "bytes")
    return {
        "published": table.value(row, "savings_communication"),
        AS_PUBLISHED: published_saving(results, table, row, "bytes"),
        "as_written": found.as_written,
        "own": found.one_gelu,
        "tuned": saving(results, table, row, "tuned", "bytes"),
    }


def _savings_of(axes: Axes, place: int, values: Mapping[str, float | None]) -> None:
    there = {kind: value for kind, value in values.items() if value is not None}
    axes.plot([min(there.values()), max(there.values())], [place, place], color=MUTED, linewidth=1, alpha=0.6)
    for kind, value in there.items():
        _, colour, _ = _MARKERS[kind]
        face = PAPER if kind == "published" else colour
        axes.plot(
            [value], [place], _SHAPES[kind], color=face, markeredgecolor=colour, markeredgewidth=1.4, markersize=6.5
        )
    if len(there) == 1:
        axes.text(max(there.values()) + 0.15, place, "not measured yet", va="center", color=MUTED, style="italic")


_DELTA_ROWS = (
    ("2", "SM+LN+R"),
    ("2", "SM+R"),
    ("2", "SM+G"),
    ("4", "SM+ScFFN"),
    ("4", "SM+ScFuFFN"),
    ("4", "SM+ScFuFFNi_6"),
    ("4", "EReg(SM(t)+ScFuFFN)"),
    ("4", "EReg(SM(t)+ScFuFFNi_6)"),
    ("4", "SOTA(SM+ScFFN)"),
)


def figure_perplexity(results: Results) -> Figure:
    """Perplexity over that of SM+LN+G: published, and measured with its interval over seeds."""
    paper = load("aero")
    base = results.perplexity("sm-ln-g")
    with style():
        figure = Figure(figsize=(WIDTH, 3.2))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.26, right=0.97, top=0.9, bottom=0.15)
        measured = False
        for place, (number, name) in enumerate(_DELTA_ROWS):
            table = paper.tables[number]
            row = table.row(name)
            printed = row.cells["ppl"].value / table.rows[0].cells["ppl"].value
            axes.plot([printed], [place - 0.16], "D", color=PAPER, markeredgecolor=PUBLISHED, markeredgewidth=1.4)
            found = estimate(relative(results.perplexity(row.run or ""), base))
            if found is None:
                axes.text(1.0, place + 0.2, " not measured yet", va="center", color=MUTED, style="italic", fontsize=7)
                continue
            measured = True
            if found.has_interval:
                ends = [max(1 + end / 100, 0.4) for end in (found.low, found.high)]
                axes.plot(ends, [place + 0.16] * 2, color="#a84300", linewidth=2.2, solid_capstyle="butt")
            axes.plot([1 + found.mean / 100], [place + 0.16], "o", color="#a84300", markersize=5.5)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        ticks = [t for t in (0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
        axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(_DELTA_ROWS)), [name for _, name in _DELTA_ROWS])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(_DELTA_ROWS) - 0.5, -0.6)
        axes.grid(axis="x")
        axes.set_xlabel("perplexity over that of SM+LN+G (log scale)")
        figure.text(0.26, 0.945, "◇", color=PUBLISHED, fontsize=11, va="center")
        figure.text(0.29, 0.945, "published", va="center")
        figure.text(0.43, 0.945, "●", color="#a84300", fontsize=11, va="center")
        figure.text(0.46, 0.945, "measured here, line: 95 % interval over seeds", va="center")
        if not measured and not base:
            say_missing(axes, "no trainings at this scale yet")
    return figure
