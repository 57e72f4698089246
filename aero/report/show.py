"""Figures and tables: one look for all figures, and the HTML in which a notebook shows them.

Importing this module sets matplotlib's defaults; make a figure by `subplots`. The colours are Okabe and Ito's, safe for
colour-blind readers; the page replaces INK, GRID, PAPER and MUTED by the reader's light or dark scheme. The page and
the PDF are made of the same HTML. Jinja2 and pandas escape titles, captions and cells; `code` works in titles and
captions.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import escape
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogLocator

PAPERS = {
    "aero": "AERO",
    "entropy_guided": "Entropy-Guided Attention",
    "entropy_landscape": "Entropy Landscape",
    "variance_sensitivity": "Variance Sensitivity",
    "parallel_context": "Parallel Context Encoding",
}

INK, GRID, PAPER, MUTED = "#1c2129", "#d5dae1", "#fdfdfc", "#6b7480"
PUBLISHED, AS_PUBLISHED, AS_WRITTEN, TUNED, MEASURED = "#9aa3ae #56b4e9 #0072b2 #009e73 #d55e00".split()
SERIES = {
    "sm-ln-g": "#0072b2",
    "sm-ln-r": "#56b4e9",
    "sm-ln": "#8a6d3b",
    "sm-g": "#d55e00",
    "sm-r": "#009e73",
    "sm": "#cc79a7",
}
_MARGIN = 0.04
WIDTH = 174 / 25.4 - 2 * _MARGIN
"""Figure width in inches: with the margin around it the figure fills the printed page (assets/page.typ)."""

rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        **dict.fromkeys(("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 9),
        "legend.fontsize": 9,
        "svg.fonttype": "path",
        "svg.hashsalt": "aero",
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.linewidth": 0.7,
        "axes.axisbelow": True,
        "hatch.linewidth": 0.6,
        "lines.linewidth": 1.6,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "image.composite_image": False,
        "text.parse_math": False,  # names come from result files: a dollar sign in one is no formula
    }
)
_BOX = jinja2.Environment(autoescape=True).from_string(
    (Path(__file__).parent / "assets/box.html").read_text(encoding="utf-8")
)
_COORDINATES = re.compile(r'(?<= d=")[^"]*|(?<= [xy]=")[^"]*|translate\([^)]*')
_DECIMALS = re.compile(r"(\.\d\d)\d+")
"""Hundredths of a point are enough in a path; more makes the page a third larger."""


class HTML(str):
    """Markup, which a notebook shows and a template does not escape."""

    def _repr_html_(self) -> str:
        return self

    __html__ = _repr_html_


def subplots(
    rows: int = 1, columns: int = 1, *, height: float, layout: str | None = "constrained", **options: Any
) -> tuple[Figure, Any]:
    """A figure of the page's width (inches) and its axes; options as of `matplotlib.figure.Figure.subplots`."""
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    return figure, figure.subplots(rows, columns, **options)


def _plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis without formulas: 0.1, 1, 10, 100 or a power such as 10⁻³; 2s and 5s if it is short."""
    if isinstance(axis.get_major_formatter(), LogFormatter):
        low, high = axis.get_view_interval()
        axis.set_major_formatter(lambda value, _: _power_of_ten(value))
        if high < 20 * low:
            axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_minor_formatter((lambda value, _: f"{value:g}") if high < 20 * low else "")


def _power_of_ten(value: float) -> str:
    if 0.01 < value < 1000:
        return f"{value:g}"
    return "10" + f"{math.log10(value):.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element with `title` for screen readers; the same text for the same figure on every run."""
    for axes in figure.axes:
        _plain_ticks(axes.xaxis)
        _plain_ticks(axes.yaxis)
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", metadata=nothing, bbox_inches="tight", pad_inches=_MARGIN)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    # A style element inside an inline SVG would apply to the whole page.
    text = re.sub(r"\s*<(metadata|style)\b.*?</\1>|\s*<!--.*?-->", "", text, flags=re.DOTALL)
    text = _COORDINATES.sub(lambda match: _DECIMALS.sub(r"\1", match[0]), text)
    text = re.sub(r' clip-path="[^"]*"(?= style="fill: (#\w+); stroke: \1")', "", text)  # cells of a map
    text = re.sub(r"\s+", " ", text).replace("> <", "><")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" stroke-linejoin="round" ', 1)


def no_data(axes: Axes, text: str) -> None:
    """Write `text` into a panel that has no data."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=MUTED, style="italic")


def not_measured() -> Figure:
    """A figure that says that it has no data."""
    figure, axes = subplots(height=0.5)
    no_data(axes, "not measured")
    return figure


def drawn_of(load: Callable[..., Any]) -> Callable[[Callable[..., Figure]], Callable[..., Figure]]:
    """Decorates a function that draws what `load` finds in the results; where it finds nothing, the figure says so."""

    def decorate(draw: Callable[..., Figure]) -> Callable[..., Figure]:
        return functools.wraps(draw)(
            lambda results, **options: draw(results, found, **options) if (found := load(results)) else not_measured()
        )

    return decorate


def figure(figure: Figure, title: str, caption: str, **origin: Any) -> HTML:
    """A figure as inline SVG. origin: `sources`, files; `command`; `published`, such as "aero/figure5"."""
    return _boxed("figure", svg(figure, title), title, caption, **origin)


def table(frame: pd.DataFrame, title: str, caption: str, print_only: bool = False, **origin: Any) -> HTML:
    """A frame as a table; a named index is shown. origin: as of `figure`."""
    if frame.index.name is not None:
        frame = frame.reset_index()
    return _boxed("print-only table" if print_only else "table", plain_table(frame), title, caption, **origin)


def plain_table(frame: pd.DataFrame) -> str:
    """The table alone, without its index. Numbers get three significant digits, NaN a dash."""
    return frame.map(_text).to_html(index=False, border=0) if len(frame) else "<p>not measured</p>"


def prose(text: str, **numbers: object) -> HTML:
    """Paragraphs or, where lines start with a number, a list; `{name:.2f}` stands for a number, **x** is bold."""
    filled = _with_code(text.format(**numbers))
    filled = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", filled)
    items = [re.sub(r"^\d+\. ", "", line) for line in filled.strip().split("\n")]
    tag = "li" if re.match(r"\d+\. ", filled.strip()) else "p"
    body = "\n".join(f"<{tag}>{item}</{tag}>" for item in items if item)
    return HTML(f"<ol>{body}</ol>" if tag == "li" else f"<div>{body}</div>")


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _boxed(kind: str, content: str, title: str, caption: str, published: str = "", **origin: Any) -> HTML:
    identifier = re.sub(r"[^a-z0-9]+", "-", (published or title).lower()).strip("-")
    if published:
        short, place = published.split("/", 1)
        place = re.sub(r"(figure|table)_?", lambda match: f"{match[1].capitalize()} ", place)
        published = f"{PAPERS.get(short, short)} {place}"
    shown = {"content": HTML(content), "title": _with_code(title), "caption": _with_code(caption)}
    return HTML(_BOX.render(kind=kind, identifier=identifier, published=published, **shown, **origin))


def _with_code(text: str) -> HTML:
    return HTML(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
