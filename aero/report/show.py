"""A figure or a table for a notebook: title, caption, and what it was made from, as HTML.

The page and the PDF are made of the same HTML. Titles, captions and cells are escaped; `code` works in titles and
captions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import matplotlib.figure
import pandas as pd
from IPython.display import HTML

from aero.report import style

FROM_PAGE = "../"
"""From reports/report.html to the repository's root."""
PAPERS = {
    "aero": "AERO",
    "entropy_guided": "Entropy-Guided Attention",
    "entropy_landscape": "Entropy Landscape",
    "variance_sensitivity": "Variance Sensitivity",
    "parallel_context": "Parallel Context Encoding",
}


def figure(
    figure: matplotlib.figure.Figure,
    title: str,
    caption: str,
    *,
    sources: Sequence[str] = (),
    command: str = "",
    published: str = "",
) -> HTML:
    """A figure as inline SVG. `published`: what it stands for, such as "aero/figure5"; `sources`: files."""
    return _boxed("figure", style.svg(figure, title), title, caption, sources, command, published)


def table(
    frame: pd.DataFrame,
    title: str,
    caption: str,
    *,
    sources: Sequence[str] = (),
    command: str = "",
    published: str = "",
    print_only: bool = False,
) -> HTML:
    """A frame as a table; a named index is shown. Numbers get three significant digits, NaN a dash."""
    if frame.index.name is not None:
        frame = frame.reset_index()
    text = frame.map(_text).to_html(index=False, border=0, classes="data") if len(frame) else "<p>not measured</p>"
    return _boxed("print-only table" if print_only else "table", text, title, caption, sources, command, published)


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


def _boxed(
    kind: str, content: str, title: str, caption: str, sources: Sequence[str], command: str, published: str
) -> HTML:
    identifier = re.sub(r"[^a-z0-9]+", "-", (published or title).lower()).strip("-")
    return HTML(
        f'<div class="{kind}" id="{identifier}"><div class="scroll">{content}</div>\n'
        f'<p class="caption"><strong>{_with_code(title)}.</strong> {_with_code(caption)}</p>\n'
        f"{_origin(sources, command, published)}</div>"
    )


def _with_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _origin(sources: Sequence[str], command: str, published: str) -> str:
    """What a figure or table was made from, folded."""
    lines = []
    if published:
        short, place = published.split("/", 1)
        place = re.sub(r"(figure|table)_?", lambda match: f"{match[1].capitalize()} ", place)
        lines.append(f"Published: {PAPERS.get(short, short)} {escape(place)}")
    if sources:
        links = (f'<a href="{FROM_PAGE}{escape(path)}">{escape(path)}</a>' for path in sources)
        lines.append(f"Data: {', '.join(links)}")
    if command:
        lines.append(f"Command: <code>{escape(command)}</code>")
    if not lines:
        return ""
    return f'<details class="sources"><summary>Data and command</summary><p>{"<br>".join(lines)}</p></details>\n'
