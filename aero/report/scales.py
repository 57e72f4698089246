"""Results of several training scales beside each other: which scales are shown, at which a claim is decided, and what
is missing at the papers' own width and depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from aero.published import Claim
from aero.report.marks import measured_number, training_caption
from aero.report.results import LOOK, Results
from aero.report.tables import MeasuredCell

LARGE = "gpu"
"""The smallest scale of the papers' own width and depth."""
_SIDES = ("run", "base", "above", "against", "runs", "others")
"""Parameters of a claim that name the runs it compares."""


def sides(results: Results, claim: Claim) -> tuple[str, ...]:
    """The runs that a claim compares."""
    named: list[str] = []
    for key in _SIDES:
        value = claim.parameters.get(key)
        named += [value] if isinstance(value, str) else value or []
    known = results.parameters.get("runs") or {}
    return tuple(dict.fromkeys(run for run in named if run in known))


def deciding_scales(results: Results, claim: Claim) -> tuple[str, tuple[str, ...]]:
    """The scale at which a claim is decided, and larger ones where all its sides are there but cannot decide it.

    A verdict needs two seeds that all sides share. The largest scale that has them decides; where none has, the
    report's own scale says what is missing.
    """
    runs = sides(results, claim)
    undecided: list[str] = []
    if not runs or results.scale == LOOK:
        return results.scale, ()
    for scale in results.scales:
        if scale == LOOK:
            continue
        common = set.intersection(*({run.seed for run in results.seeds(name, scale)} for name in runs))
        if len(common) >= 2:
            return scale, tuple(undecided)
        if common and scale != results.scale:
            undecided.append(scale)
    return results.scale, tuple(undecided)


def beside(cells: Sequence[MeasuredCell], results: Results, scales: Sequence[str], interval: bool = True) -> list[str]:
    """The measured sides of one printed cell at the scales, with the scale's name where there are several."""
    name = '<span class="where"> {}</span>' if len(scales) > 1 and not interval else ""
    return [
        measured_number(cell, results.at(scale), interval) + name.format(escape(scale))
        for cell, scale in zip(cells, scales, strict=True)
    ]


def captions(results: Results, runs: Sequence[str], scales: Sequence[str]) -> str:
    """Scale, seeds, corpus, commit and machine of the runs at every scale shown, and what is not there."""
    texts = [training_caption(results.at(scale), runs) for scale in scales]
    return " ".join([*texts, *(escape(f"{line}.") for line in missing_scale(results, runs))])


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
