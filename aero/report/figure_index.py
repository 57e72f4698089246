"""Which figure of the report is which published one, from what runs: the functions that draw them register here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from aero.report.results import Results

Draw = Callable[[Results], Figure]

PAPERS = {
    "aero": "AERO",
    "entropy_guided": "Entropy-Guided Attention",
    "entropy_landscape": "Entropy Landscape",
    "variance_sensitivity": "Variance Sensitivity",
    "parallel_context": "Parallel Context Encoding",
}
"""The papers in the order of the report, by the name a reader sees."""


@dataclass(frozen=True)
class Drawn:
    """A function that draws a figure, and what it is drawn of.

    published: the papers' figures it stands for, as params.yaml writes them ("aero/figure12"); empty for one of ours.
    note: what the caption says of it. runs: those it is drawn from; none for a figure of counts alone.
    """

    draw: Draw
    published: tuple[str, ...]
    title: str
    note: str
    runs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.draw.__name__

    @property
    def numbers(self) -> str:
        """The published figures in words: "AERO Figure 12; Entropy-Guided Attention Figure 2"."""
        parts = (published.split("/figure") for published in self.published)
        return "; ".join(f"{PAPERS[paper]} Figure {number}" for paper, number in parts)


FIGURES: list[Drawn] = []


def stands_for(*published: str, title: str, note: str, runs: Sequence[str] = ()) -> Callable[[Draw], Draw]:
    """Register the decorated function as the one that draws the published figures, in the order of the report."""

    def register(draw: Draw) -> Draw:
        FIGURES.append(Drawn(draw, published, title, note, tuple(runs)))
        return draw

    return register
