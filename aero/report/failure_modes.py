"""How models without normalisation and activation fail, as the papers describe it: at which step, in which layer and
in how many of the seeds, at every scale that has results.

A layer counts as overloaded or collapsed while it trains where the mean entropy of its heads lies in the top or bottom
quarter of the causal bound ln(T!)/T; at the end the heads are counted by the papers' own rule (`aero.entropy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from aero.entropy import causal_bound
from aero.report.drawing import INK, WIDTH, style
from aero.report.entropy_drawing import ENTROPY, colour_bar, missing_run
from aero.report.marks import Html, gap, number, row_label, scale_text
from aero.report.marks import grid as table
from aero.report.page import shown
from aero.report.results import Results, Run
from aero.report.scales import missing_scale
from aero.report.tables import training_origin

Quarter = Literal["top", "bottom"]


@dataclass(frozen=True)
class Failure:
    """A run that fails, what the papers say of it and where, and which quarter its heads end in.

    baseline: a run that does not fail so, to hold it against.
    """

    run: str
    published: str
    where: str
    quarter: Quarter
    baseline: str


FAILURES = (
    Failure("sm", "loss NaN; early layers overloaded, deep ones collapsed", "AERO Section 3.2", "bottom", "sm-ln-g"),
    Failure(
        "sm-scfuffni-7", "NaN in the last layers, the last two collapsed", "AERO Figure 17", "bottom", "sm-scfuffni-6"
    ),
    Failure("sm-g", "58 % of the heads overloaded, in the early layers", "AERO Section 3.1", "top", "sm-ln-g"),
)
RUNS = tuple(dict.fromkeys(run for failure in FAILURES for run in (failure.run, failure.baseline)))


def in_quarter(value: float, bound: float, quarter: Quarter) -> bool:
    return value >= 0.75 * bound if quarter == "top" else value < 0.25 * bound


def since(run: Run, quarter: Quarter) -> dict[int, int]:
    """Of every layer that ends its log in the quarter, counted from 0: the step since when it has been there without a
    break. 1, the first step that is logged, for a layer that never left it.
    """
    bound = causal_bound(int(run.metrics["context"]))
    rows = _logged(run)
    found: dict[int, int] = {}
    for layer in range(len(rows[0][1]) if rows else 0):
        began: int | None = None
        for step, row in rows:
            if row[layer] is None:  # not finite: no entropy to speak of
                continue
            if not in_quarter(row[layer], bound, quarter):
                began = None
            elif began is None:
                began = step
        if began is not None:
            found[layer] = began
    return found


def spans(layers: Sequence[int]) -> str:
    """Layers counted from 0 as "1–4, 7", counted from 1."""
    groups: list[list[int]] = []
    for layer in sorted(layers):
        if groups and layer == groups[-1][-1] + 1:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return ", ".join(f"{g[0] + 1}–{g[-1] + 1}" if len(g) > 1 else str(g[0] + 1) for g in groups)


def in_layers(run: Run, quarter: Quarter) -> str:
    """Which layers are in the quarter at the end, and since when: "1–2 from the start; 3 since step 300"."""
    by_step: dict[int, list[int]] = {}
    for layer, step in since(run, quarter).items():
        by_step.setdefault(step, []).append(layer)
    first = run.log.step[0] if run.log and run.log.step else 1
    parts = [
        f"{spans(layers)} {'from the start' if step == first else f'since step {step}'}"
        for step, layers in sorted(by_step.items())
    ]
    return "; ".join(parts) or "none"


def divergence(run: Run) -> str:
    """At which step a run stopped being finite, and where first; or where float16, in which the papers trained, would
    have overflowed; or that neither happened.
    """
    if run.diverged:
        first = run.metrics.get("first_nonfinite") or {}
        layer = first.get("layer")
        place = f"layer {layer + 1}" if layer is not None else str(first.get("where", "unknown"))
        return f"step {run.diverged_at}, {place}"
    overflow = run.metrics.get("float16_overflow")
    if overflow:
        return f"no; beyond float16 at step {overflow['step']}, layer {overflow['layer'] + 1}"
    return "no"


def overflows(run: Run) -> bool:
    """Whether a training stopped being finite, or held a value that float16, in which the papers trained, cannot."""
    return run.metrics.get("diverged_at_step") is not None or bool(run.metrics.get("float16_overflow"))


def architecture(results: Results, run: str) -> str:
    """The notation of a run in params.yaml."""
    return str((results.parameters.get("runs") or {}).get(run, {}).get("architecture", run))


def _fraction(run: Run, quarter: Quarter) -> float | None:
    values = None if run.entropy is None else run.entropy.overload if quarter == "top" else run.entropy.collapse
    return None if values is None else float(values["fraction"])


def _fractions(runs: Sequence[Run], quarter: Quarter) -> str:
    found = [value for run in runs if (value := _fraction(run, quarter)) is not None]
    return ", ".join(f"{value:.0%}" for value in found)


def table_failures(results: Results) -> Html:
    """The three failures at every scale: how many seeds diverged, which heads and layers failed, and since when."""
    rows = []
    for failure in FAILURES:
        for scale in results.scales_of(failure.run):
            runs = results.seeds(failure.run, scale)
            name = row_label(architecture(results, failure.run))
            claimed = number(failure.published, "published", failure.where)
            if not runs:
                rows.append([name, claimed, escape(scale), gap("not run yet"), "", "", "", ""])
                continue
            origin, source = training_origin(scale), ", ".join(run.path for run in runs)
            failed = sum(run.diverged for run in runs)
            ends = [_fractions(runs, quarter) for quarter in ("top", "bottom")]
            others = results.seeds(failure.baseline, scale)
            base, base_source = _fractions(others, failure.quarter), ", ".join(run.path for run in others)
            where = [f"{run.seed}: {in_layers(run, failure.quarter)}" for run in runs]
            rows.append(
                [
                    name,
                    claimed,
                    escape(scale),
                    number(f"{failed} of {len(runs)}", origin, source),
                    "<br>".join(number(f"{run.seed}: {divergence(run)}", origin, run.path) for run in runs),
                    *(number(text, origin, source) if text else gap() for text in ends),
                    "<br>".join(number(text, origin, run.path) for text, run in zip(where, runs, strict=True))
                    + (f"<br>{escape(failure.baseline)}: {number(base, origin, base_source)}" if base else ""),
                ]
            )
    heads = [
        "configuration",
        "published",
        "scale",
        "seeds diverged",
        "seed: diverged at",
        "heads overloaded",
        "heads collapsed",
        "seed: layers failing, and heads of a model that does not",
    ]
    scales = results.scales_of(*RUNS)
    sizes = "; ".join(scale_text(results, scale, RUNS) for scale in scales)
    absent = " ".join(f"{line}." for line in missing_scale(results, RUNS))
    caption = (
        "<b>Failure modes.</b> Heads by the papers' rule at the end of training, one number a seed: overloaded from ¾ "
        "of the largest entropy, collapsed below ¼. Layers: mean entropy of their heads against the same quarters of "
        "the causal bound while training, without a break to the end: the bottom quarter for the two that collapse, "
        f"the top one for the one that overloads. {escape(sizes)}. {escape(absent)}"
    )
    widths = (0.13, 0.14, 0.06, 0.08, 0.17, 0.09, 0.09, 0.24)
    return Html(table(heads, rows, caption, "failure-modes", widths, "dense"))


def figure_failures(results: Results) -> Figure:
    """Entropy of each layer over training, as a fraction of the causal bound, of the runs that fail; a row a scale.

    A dotted line marks where a run diverged.
    """
    scales = results.scales_of(*(failure.run for failure in FAILURES))
    height = 0.5 + 1.75 * len(scales)
    with style():
        figure = Figure(figsize=(WIDTH, height))
        panels = figure.subplots(len(scales), len(FAILURES), squeeze=False)
        figure.subplots_adjust(0.07, 0.46 / height, 0.9, 1 - 0.26 / height, wspace=0.2, hspace=0.42)
        mesh: ScalarMappable | None = None
        for line, scale in zip(panels, scales, strict=True):
            for panel, failure in zip(line, FAILURES, strict=True):
                there = results.at(scale)
                run = there.first(failure.run)
                name = architecture(results, failure.run)
                panel.set_title(f"{name}, {scale}", fontsize=8)
                rows = _logged(run)
                if run is None or not rows:
                    missing_run(panel, there, failure.run, "entropy not logged")
                    continue
                mesh = _over_training(panel, rows, int(run.metrics["context"]))
                if run.diverged_at is not None:
                    panel.axvline(max(run.diverged_at, 1), color=INK, linewidth=1.0, linestyle=":")
                    panel.set_title(f"{name}, {scale} (NaN at {run.diverged_at})", fontsize=8)
            line[0].set_ylabel("layer")
        for panel in panels[-1]:
            panel.set_xlabel("training step")
        if mesh is not None:
            place = (0.92, 0.46 / height, 0.013, 1 - 0.72 / height)
            colour_bar(figure, mesh, place, "mean entropy / causal bound")
            figure.axes[-1].set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
    return figure


def _logged(run: Run | None) -> list[tuple[int, tuple[float | None, ...]]]:
    if run is None or run.log is None:
        return []
    return [
        (step, row) for step, row in zip(run.log.step, run.log.entropy, strict=True) if any(v is not None for v in row)
    ]


def _over_training(panel: Axes, rows: Sequence[tuple[int, tuple[float | None, ...]]], context: int) -> ScalarMappable:
    steps = [step for step, _ in rows]
    values = np.array([[np.nan if v is None else v for v in row] for _, row in rows]).T / causal_bound(context)
    # Each evaluation's colour stands from the one before to itself.
    edges = np.array([0.0, *steps])
    mesh = panel.pcolormesh(
        edges,
        np.arange(len(values) + 1) + 0.5,
        np.ma.masked_invalid(values),
        cmap=ENTROPY,
        norm=Normalize(0, 1),
        rasterized=False,
    )
    mesh.set_edgecolor("face")
    layers = len(values)
    panel.set_yticks(range(1, layers + 1, 1 if layers <= 6 else 3))
    panel.set_ylim(0.5, layers + 0.5)
    panel.set_xlim(0, edges[-1])
    return mesh


def section(results: Results) -> Html:
    """The failures' table and figure."""
    words = "First seed of each run; blank: not finite. A dotted line marks the step at which a run diverged."
    name = f"{__name__}.{figure_failures.__name__}"
    drawn = shown(figure_failures(results), "figure-failures", "Entropy of the layers of models that fail", words, name)
    return Html(table_failures(results).text + drawn.text)
