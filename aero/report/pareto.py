"""Perplexity against communication: every trained run by what it costs to ask it privately, with the Pareto front."""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.architecture import parse
from aero.config import Parameters
from aero.errors import UserError
from aero.published import load as load_paper
from aero.report.costs import compared_runs
from aero.report.drawing import AS_WRITTEN, GRID, INK, MUTED, PAPER, TUNED, WIDTH, say_missing, style, svg
from aero.report.results import Results, load
from aero.training.log import write_together
from aero.two_party.cost.cost_model import estimate, measured_operations
from aero.two_party.cost.counts import published_sizes

GB = 1e9


@dataclass(frozen=True)
class Point:
    """A run: mean evaluation perplexity over `seeds`, and the bytes of a private pass at the published sizes."""

    run: str
    architecture: str
    perplexity: float
    seeds: tuple[int, ...]
    bytes: float
    bytes_error: float
    front: bool = False


def points(
    results: Results, parameters: Parameters, model: str, context: int, program: str, extrapolate: bool = False
) -> tuple[list[Point], dict[str, str]]:
    """The runs of a model family and context, cheapest first, and those left out with the reason.

    Runs of other families, contexts, corpora or recipes have other perplexities, so they are not compared.
    """
    operations = measured_operations(parameters.two_party.variant(), results.root)
    sizes = published_sizes(model, context)
    found, without = [], {}
    for name, run in parameters.runs.items():
        if run.model != model or parameters.context(name) != context:
            continue
        if run.overrides:
            without[name] = "trained by a recipe of its own"
            continue
        by_seed = results.perplexity(name)
        if not by_seed:
            without[name] = "diverged" if results.seeds(name) else "not trained yet"
            continue
        try:
            cost = estimate(parse(run.architecture), sizes, program, operations, extrapolate)
        except ValueError as error:
            without[name] = str(error)
            continue
        mean = sum(by_seed.values()) / len(by_seed)
        found.append(Point(name, cost.architecture, mean, tuple(by_seed), cost.bytes, cost.bytes_error))
    return with_front(found), without


def with_front(found: Sequence[Point]) -> list[Point]:
    """Points, cheapest first, marked where no other one has both fewer bytes and a lower perplexity (or equals it in
    one and beats it in the other).
    """
    marked, least = [], math.inf
    for point in sorted(found, key=lambda one: (one.bytes, one.perplexity)):
        front = point.perplexity < least
        least = min(least, point.perplexity)
        marked.append(Point(**(vars(point) | {"front": front})))
    return marked


def draw(found: Sequence[Point], title: str, scale: str) -> Figure:
    """Perplexity against GB, both in logarithms; the front is a line through larger points."""
    with style():
        figure = Figure(figsize=(WIDTH, 4.4))
        axes = figure.subplots()
        front = [point for point in found if point.front]
        rest = [point for point in found if not point.front]
        axes.step(
            [point.bytes / GB for point in front],
            [point.perplexity for point in front],
            where="post",
            color=TUNED,
            zorder=2,
        )
        for some, colour, size in ((rest, AS_WRITTEN, 16), (front, TUNED, 34)):
            axes.scatter(
                [point.bytes / GB for point in some],
                [point.perplexity for point in some],
                s=size,
                color=colour,
                edgecolor=PAPER,
                linewidth=0.6,
                zorder=3,
            )
        axes.set_xscale("log")
        axes.set_xlabel("communication of one private forward pass, GB (both directions)")
        axes.set_ylabel(f"evaluation perplexity, scale {scale}")
        axes.set_title(title)
        axes.grid(color=GRID)
        axes.set_yscale("log")
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [tick for tick in _TICKS if limits[0] <= tick <= limits[1]]
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        _label(axes, [*front, *rest])
    return figure


_TICKS = [digit * 10.0**power for power in range(-1, 4) for digit in (1, 1.5, 2, 3, 4, 5, 6, 7, 8)]
LABEL_SIZE = 6.5


def _label(axes: Axes, found: Sequence[Point]) -> None:
    """Name the points, each architecture once, where there is room nearby; a thin line leads to a label further off."""
    to_points = axes.transData.transform
    scale = 72 / axes.figure.dpi
    places = [tuple(scale * value for value in to_points((p.bytes / GB, p.perplexity))) for p in found]
    left, low, right, high = (scale * value for value in axes.bbox.extents)
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    named: set[str] = set()
    for point, (x, y) in zip(found, places, strict=True):
        if point.architecture in named:  # trainings of one architecture that differ in their regulariser
            continue
        named.add(point.architecture)
        wide = 0.62 * LABEL_SIZE * len(point.architecture)
        for distance in range(0, 90, 8):
            sides = ((5, distance), (5, -LABEL_SIZE - distance), (-wide - 5, distance), (-wide - 5, -7 - distance))
            boxes = [(x + dx, y + dy, x + dx + wide, y + dy + LABEL_SIZE, dx, dy) for dx, dy in sides]
            free = [box for box in boxes if box[0] > left and box[2] < right + 40 and low < box[1] and box[3] < high]
            free = [box for box in free if not any(_overlap(box, other) for other in taken)]
            if not free:
                continue
            x0, y0, x1, y1, dx, dy = free[0]
            taken.append((x0, y0, x1, y1))
            axes.annotate(
                point.architecture,
                (point.bytes / GB, point.perplexity),
                xytext=(dx, dy),
                textcoords="offset points",
                fontsize=LABEL_SIZE,
                color=INK if point.front else MUTED,
                arrowprops={"arrowstyle": "-", "color": GRID, "linewidth": 0.5} if distance > 8 else None,
            )
            break


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def figure_pareto(results: Results) -> Figure:
    """The runs of GPT-2 at T=128 whose rows are measured: perplexity at the report's scale against GB, both tuned."""
    sizes = load_paper("aero").tables["4"].dimensions
    found = []
    for name, run in compared_runs(results).items():
        by_seed = results.perplexity(name)
        cost = results.cost(run["architecture"], "tuned", sizes["context"], sizes["model"])
        here = run.get("model", "gpt2") == sizes["model"] and run.get("context", 128) == sizes["context"]
        if by_seed and cost is not None and here:
            mean = sum(by_seed.values()) / len(by_seed)
            found.append(Point(name, run["architecture"], mean, tuple(by_seed), cost.bytes, 0.0))
    if not found:
        with style():
            figure = Figure(figsize=(WIDTH, 1.2))
            say_missing(figure.subplots(), "not measured yet")
        return figure
    return draw(with_front(found), "", results.scale)


def pareto(chosen: argparse.Namespace, parameters: Parameters, root: Path, out: Path) -> str:
    """The text of `aero cost --pareto`; writes the figure to `out`. parameters: of the scale that is asked for."""
    results = load(root, chosen.scale)
    found, without = points(
        results, parameters, chosen.model, chosen.context, chosen.program, extrapolate=chosen.extrapolate
    )
    if not found:
        reasons = "; ".join(sorted(set(without.values()))) or "no run is of this family and context"
        raise UserError(f"nothing to draw for {chosen.model}, T={chosen.context}, scale {results.scale}: {reasons}")
    title = f"{chosen.model}, T={chosen.context}, program {chosen.program}"
    figure = draw(found, title, results.scale)
    if out.suffix == ".svg":
        # The report's figures are inlined; a file of its own must name its namespace, which matplotlib's text does.
        content: str | bytes = svg(figure, f"Perplexity against communication: {title}")
    else:
        image = io.BytesIO()
        with style():
            figure.savefig(image, format="png", dpi=160, facecolor="white", bbox_inches="tight")
        content = image.getvalue()
    write_together({out: content})
    if chosen.json:
        values = {"model": chosen.model, "context": chosen.context, "program": chosen.program, "scale": results.scale}
        listed = [vars(point) | {"bytes_error": _finite(point.bytes_error)} for point in found]
        return json.dumps(values | {"figure": str(out), "points": listed, "left_out": without}, indent=1)
    lines = [f"{title}: perplexity at scale {results.scale}, bytes at the published sizes; {out}"]
    width = max(len(point.run) for point in found)
    for point in found:
        seeds = f"{len(point.seeds)} seed{'s' if len(point.seeds) > 1 else ''}"
        mark = "front" if point.front else ""
        lines.append(
            f"{point.run:{width}}  {point.bytes / GB:8.3f} GB  {point.perplexity:8.3f}  {seeds:7}  {mark}".rstrip()
        )
    for reason in dict.fromkeys(without.values()):
        lines.append(f"left out, {reason}: {', '.join(name for name, why in without.items() if why == reason)}")
    return "\n".join(lines)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
