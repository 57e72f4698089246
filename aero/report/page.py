"""Figures of the pages that are not notebooks yet; goes with the last of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from matplotlib.figure import Figure

from aero.report import drawing, evidence
from aero.report.marks import Html
from aero.report.results import Results


def shown(
    figure: Figure,
    identifier: str,
    title: str,
    caption: str,
    source: str,
    files: Sequence[str] = (),
    papers: Sequence[str] = (),
) -> Html:
    """A figure with its caption; `source` names the function that drew it, `files` what it was drawn from besides the
    results that were read for it, `papers` those whose printed numbers are in it.
    """
    picture = drawing.svg(figure, title)
    below = evidence.details("", source, files=files, papers=papers)
    return Html(
        f'<div class="figure" id="{identifier}"><div class="scroll">{picture}</div>'
        f'<div class="caption"><p><b>{escape(title)}.</b> {caption}</p></div>{below}</div>'
    )


def figure_of(
    results: Results, function: Callable[[Results], Figure], title: str, caption: str, papers: Sequence[str] = ()
) -> Html:
    """A figure drawn from `results` by a function of `aero.report`, which its number is named after."""
    name = function.__name__
    source = f"{function.__module__}.{name}"
    return shown(function(results), name.replace("_", "-"), title, caption, source, papers=papers)
