"""Panels that the figures of attention entropy are made of: heatmaps, quarters of the maximum, layers over training.

A panel without its run says so and names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from aero.published import load
from aero.report.drawing import INK, MUTED, PAPER, WIDTH, say_missing, spread, style, swatch
from aero.report.results import Entropy, Results, Run
from aero.report.statistics import sampling_error

ENTROPY = LinearSegmentedColormap.from_list(
    "entropy", ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"]
)
"""Dark blue (collapsed) to yellow (overloaded), as the papers' heatmaps read, in the colour-blind-safe cividis
order.
"""

DEPTH = LinearSegmentedColormap.from_list("depth", ["#2f6db3", "#7d8a97", "#c9971c"])
"""Lines from the first layer to the last, none so dark or so light that it is lost on either kind of background."""

COUNTS = LinearSegmentedColormap.from_list("counts", ["#f3c9b4", "#d55e00", "#5a1c00"])
"""Few to many numbers that are not finite; none at all is left blank."""

SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, "#8a1c5a"), (0.5, "#efb4cf"), (0.5, "#e3dfb0"), (1, "#0b4f6c")], N=64
)
"""Values about 0, which must be the middle of the norm: purple below, yellow to blue above, told apart however near.
An even number of colours, so that none holds both signs.
"""

PERCENTAGE = 0.25
"""Width of a bar's part from which on its percentage is written into it, inches: that of "88%", and some more."""

QUARTERS = ("0 to ¼ max", "¼ to ½ max", "½ to ¾ max", "¾ max to max")
QUARTER_COLOURS = ("#213d6b", "#7b7a77", "#c2b370", "#ffe945")
MAXIMA = {
    "observed": "max: observed (the papers')",
    "causal_bound": "max: causal bound ln(T!)/T",
    "log_T": "max: log T",
}


def row_name(run: str) -> str:
    """Architecture of the table row a run stands for ("sm-ln-g": SM+LN+G); the run's own name if it stands for none."""
    rows = ((t, row) for t in load("aero").tables.values() for row in t.rows if row.run == run)
    return next((t.setting(row)["architecture"] for t, row in rows), run)


def depth_colours(layers: int) -> list[Any]:
    return [DEPTH(layer / max(layers - 1, 1)) for layer in range(layers)]


def missing_run(
    panel: Axes, results: Results, run: str, what: str = "entropies not measured", size: float | None = None
) -> None:
    """Say in the panel that `run` is missing, or, if it is there, what of it is. size: of the text, points."""
    say_missing(panel, f"{what if results.seeds(run) else 'not run yet'}:\n{run}")
    if size is not None:
        panel.texts[-1].set_fontsize(size)


def grid(
    panels: int,
    columns: int,
    height: float,
    top: float = 0.28,
    bottom: float = 0.42,
    right: float = 0.985,
    wspace: float = 0.2,
    hspace: float = 0.36,
) -> tuple[Figure, list[Axes]]:
    """A figure of panels in rows of so many columns, what is left of the last row empty.

    height: of a row, top, bottom: of what the panels leave free, inches. right, wspace, hspace: as in matplotlib.
    """
    rows = -(-panels // columns)
    whole = rows * height
    figure = Figure(figsize=(WIDTH, whole))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.subplots_adjust(0.07, bottom / whole, right, 1 - top / whole, wspace, hspace)
    for panel in axes[panels:]:
        panel.set_visible(False)
    return figure, axes[:panels]


def heatmap(panel: Axes, values: NDArray[np.float64], norm: Normalize, colours: Any = ENTROPY) -> ScalarMappable:
    """Values (L, H), layer 1 at the bottom; what is not finite stays blank."""
    layers, heads = values.shape
    mesh = panel.pcolormesh(
        np.arange(heads + 1) + 0.5,
        np.arange(layers + 1) + 0.5,
        np.ma.masked_invalid(values),
        cmap=colours,
        norm=norm,
        edgecolors=PAPER,
        linewidth=0.4,
        rasterized=False,
    )
    panel.set_xticks(range(1, heads + 1) if heads <= 6 else range(1, heads + 1, 3))
    panel.set_yticks(range(1, layers + 1) if layers <= 12 else range(1, layers + 1, 3))
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    return mesh


def colour_bar(figure: Figure, mesh: ScalarMappable, place: tuple[float, float, float, float], label: str) -> Colorbar:
    """A colour bar at (left, bottom, width, height), fractions of the figure; lying where it is wider than high."""
    axes = figure.add_axes(place)
    bar = figure.colorbar(mesh, cax=axes, orientation="horizontal" if place[2] > place[3] else "vertical")
    if isinstance(mesh.norm, LogNorm):
        # matplotlib sets an exponent at 0.7 of the size, too small to read in print.
        bar.formatter = FuncFormatter(lambda value, _: power_of_ten(value))
        bar.minorticks_off()
    if bar.solids is not None:
        bar.solids.set_rasterized(False)
        bar.solids.set_edgecolor("face")
    bar.set_label(label, fontsize=7.5)
    bar.outline.set_visible(False)
    return bar


def power_of_ten(value: float) -> str:
    """A power of ten of at least 1: "1,000", "10⁴"."""
    exponent = round(math.log10(value))
    return (
        f"{value:,.0f}" if exponent < 4 else "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    )


def entropy_heatmaps(
    results: Results, runs: Sequence[str], names: Sequence[str] | None = None, columns: int = 6, height: float = 2.9
) -> Figure:
    """Mean entropy of every head of the runs' first seeds, on one colour scale up to the causal bound."""
    names = names or [row_name(run) for run in runs]
    columns = min(columns, len(runs))
    with style():
        figure, panels = grid(len(runs), columns, height, right=0.9, wspace=0.24)
        found = {run: trained for run in runs if (trained := results.first(run)) is not None and trained.entropy}
        bound = max((t.entropy.maximum.get("causal_bound", 0.0) for t in found.values() if t.entropy), default=0.0)
        norm, mesh = Normalize(0, bound or 1.0), None
        for place, (panel, run, name) in enumerate(zip(panels, runs, names, strict=True)):
            panel.set_title(name, fontsize=7.5 if max(map(len, names)) > 14 else 9)
            if run not in found:
                missing_run(panel, results, run)
                continue
            mesh = heatmap(panel, np.array(found[run].entropy.mean), norm)
            if place % columns == 0:
                panel.set_ylabel("layer")
            if place >= len(runs) - columns:
                panel.set_xlabel("head")
        if mesh is not None:
            colour_bar(figure, mesh, (0.92, 0.16, 0.013, 0.7), "mean entropy, nats")
    return figure


def quarter_bars(
    results: Results,
    runs: Sequence[str],
    names: Sequence[str] | None = None,
    maxima: Iterable[str] = tuple(MAXIMA),
    printed: Sequence[tuple[str, tuple[int, ...], float]] = (),
) -> Figure:
    """Fraction of heads per quarter of the maximum, mean over seeds, one bar a run with its number of seeds behind it,
    one panel a maximum.

    printed: (run, quarters, fraction) of the paper. A triangle stands where the last quarter would begin, or the first
    end, in the panel of the observed maximum. Whiskers: two standard errors of where a quarter ends, for the held-out
    tokens; of runs whose blocks of them are stored, and where heads come near the end of a quarter.
    """
    names = list(names or [row_name(run) for run in runs])
    maxima = list(maxima)
    height = 0.75 + 0.36 * len(runs)
    errors = {run: quarter_errors(results.seeds(run), maxima) for run in runs}
    with style():
        figure = Figure(figsize=(WIDTH, height))
        panels = list(figure.subplots(1, len(maxima), sharey=True, squeeze=False).flat)
        longest = max(len(name) for name in names)
        figure.subplots_adjust(
            left=0.02 + 0.0095 * longest, right=0.945, top=1 - 0.55 / height, bottom=0.4 / height, wspace=0.07
        )
        for panel, maximum in zip(panels, maxima, strict=True):
            for place, run in enumerate(runs):
                seeds = results.quarters(run, maximum)
                if not seeds:
                    said = "not measured yet" if results.seeds(run) else "not run yet"
                    panel.text(0.02, place, f"{said}: {run}", va="center", color=MUTED, style="italic", fontsize=6.5)
                    continue
                fractions = np.mean(list(seeds.values()), axis=0)
                _stack(panel, place, fractions)
                if (found := errors[run].get(maximum)) is not None:
                    _whiskers(panel, place + 0.25, np.cumsum(fractions)[:3], 2 * found)
                if panel is panels[-1]:
                    panel.text(1.015, place, f"n={len(seeds)}", va="center", fontsize=7)
            if maximum == "observed":
                for run, quarters, value in printed:
                    x = {(3,): 1 - value, (0,): value}.get(quarters)
                    if x is not None and run in runs:
                        place = list(runs).index(run) - 0.47
                        panel.plot([x], [place], marker="v", color=INK, markersize=5, clip_on=False)
            panel.set_title(MAXIMA[maximum], fontsize=8, fontweight="normal", fontstyle="italic")
            panel.set_xlim(0, 1)
            panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
            panel.set_yticks(range(len(runs)), names)
            panel.tick_params(axis="y", length=0)
        panels[0].set_ylim(len(runs) - 0.5, -0.6)
        panels[len(panels) // 2].set_xlabel("fraction of heads")
        top = 1 - 0.1 / height
        for index, (colour, text) in enumerate(zip(QUARTER_COLOURS, QUARTERS, strict=True)):
            swatch(figure, 0.12 + 0.17 * index, top - 0.075 / height, colour, "", 0.15 / height)
            figure.text(0.155 + 0.17 * index, top, text, va="center")
        if printed:
            figure.text(0.82, top, "▼ published", va="center")
    return figure


def quarter_errors(seeds: Sequence[Run], maxima: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """By maximum, the standard errors (3,), for the held-out tokens, of the fractions of heads below a quarter, a half
    and three quarters of it, means over the seeds; without those of which blocks of the tokens are not all stored.

    The observed maximum is found again in every resample, as it is one of the heads measured.
    """
    measured = [run.entropy for run in seeds if run.entropy]
    known = [m for m in maxima if all(m in entropy.quarters and m in entropy.maximum for entropy in measured)]
    if not measured or not known:
        return {}

    def below(*heads: NDArray[np.float64]) -> NDArray[np.float64]:  # each (L, H), the result (maxima, 3)
        return np.mean([_below(entropy, own, known) for entropy, own in zip(measured, heads, strict=True)], axis=0)

    found = sampling_error(below, *(entropy.blocks for entropy in measured))
    return {} if found is None else dict(zip(known, found, strict=True))


def _below(entropy: Entropy, heads: NDArray[np.float64], maxima: Sequence[str]) -> NDArray[np.float64]:
    """Fractions of `heads` below a quarter, a half and three quarters of each maximum; NaN without a finite head."""
    finite = heads[np.isfinite(heads)]
    if not finite.size:
        return np.full((len(maxima), 3), np.nan)
    tops = [finite.max() if maximum == "observed" else entropy.maximum[maximum] for maximum in maxima]
    ends = np.outer(tops, (0.25, 0.5, 0.75))  # (maxima, 3)
    return (heads.ravel() < ends[..., None]).mean(-1)


def _whiskers(panel: Axes, place: float, ends: NDArray[np.float64], errors: NDArray[np.float64]) -> None:
    """A line about each end, with a rim that tells it from any colour behind it; no caps, as some are that short."""
    rim = [Stroke(linewidth=3.2, foreground=PAPER), Normal()]
    for end, error in zip(ends, errors, strict=True):
        if error > 0:
            reach = np.clip([end - error, end + error], 0, 1)
            panel.plot(reach, [place, place], color=INK, linewidth=1.8, solid_capstyle="butt", path_effects=rim)


def _stack(panel: Axes, place: float, fractions: NDArray[np.float64]) -> None:
    left = 0.0
    room = PERCENTAGE / (panel.get_position().width * panel.figure.get_figwidth())
    for fraction, colour, ink in zip(
        fractions, QUARTER_COLOURS, ("#ffffff", "#ffffff", "#111111", "#111111"), strict=True
    ):
        panel.barh(place, fraction, 0.72, left=left, color=colour, edgecolor=PAPER, linewidth=0.6)
        if fraction >= room:
            panel.text(left + fraction / 2, place, f"{fraction:.0%}", ha="center", va="center", color=ink, fontsize=7)
        left += fraction
    if left < 0.995:
        panel.text(left + 0.01, place, "not finite", va="center", color=MUTED, style="italic", fontsize=6.5)


def diverged(run: Run) -> str:
    """ " (NaN at STEP)" for a run that diverged."""
    return f" (NaN at {run.diverged_at})" if run.diverged_at is not None else ""


def entropy_over_training(
    results: Results, runs: Sequence[str], names: Sequence[str] | None = None, columns: int = 3, height: float = 2.0
) -> Figure:
    """Entropy of each layer, mean over heads, while the runs' first seeds train; all panels to one scale."""
    names = names or [row_name(run) for run in runs]
    columns = min(columns, len(runs))
    with style():
        figure, panels = grid(len(runs), columns, height, right=0.95, wspace=0.33)
        for place, (panel, run, name) in enumerate(zip(panels, runs, names, strict=True)):
            layer_lines(panel, results, run, name, 7.5 if columns > 2 and max(map(len, names)) > 14 else 8.5)
            if place % columns == 0:
                panel.set_ylabel("entropy, nats")
            if place >= len(runs) - columns:
                panel.set_xlabel("training step")
        _one_scale(panels)
    return figure


def _one_scale(panels: Sequence[Axes]) -> None:
    drawn = [panel for panel in panels if panel.lines]
    top = max((panel.get_ylim()[1] for panel in drawn), default=1.0)
    for panel in drawn:
        panel.set_ylim(0, top)


def layer_lines(panel: Axes, results: Results, run: str, name: str, size: float = 8.5) -> None:
    """One line a layer, coloured by depth, the first, middle and last with their numbers; dotted: the causal bound.

    size: of the title, points.
    """
    trained = results.first(run)
    panel.set_title(name, fontsize=size)
    lines = _finite_lines(trained, lambda log: log.entropy) if trained else {}
    if not lines:
        missing_run(panel, results, run, "entropy not logged")
        return
    panel.set_title(name + diverged(trained), fontsize=size)
    layers = max(lines) + 1
    last = max(steps[-1] for steps, _ in lines.values())
    for layer, colour in enumerate(depth_colours(layers)):
        if layer in lines:
            panel.plot(*lines[layer], color=colour, linewidth=1.2)
    if trained.entropy and (bound := trained.entropy.maximum.get("causal_bound")):
        panel.plot([0, last], [bound, bound], color=MUTED, linewidth=0.8, linestyle=":")
    if trained.diverged_at is not None:
        panel.axvline(trained.diverged_at, color=INK, linewidth=0.8, linestyle=":")
    panel.set_ylim(bottom=0)
    panel.set_xlim(0, last * 1.07)
    panel.grid(axis="y")
    number_lines(panel, lines, 0.07, last)


def _finite_lines(
    trained: Run, choose: Callable[[Any], Sequence[Sequence[float | None]]]
) -> dict[int, tuple[list[int], list[float]]]:
    """Steps and values of each column of one of the log's tables, gaps left out; columns without a value too."""
    if trained.log is None:
        return {}
    rows = choose(trained.log)
    lines = {}
    for column in range(len(rows[0]) if rows else 0):
        points = [
            (step, row[column])
            for step, row in zip(trained.log.step, rows, strict=True)
            if row[column] is not None and np.isfinite(row[column])
        ]
        if points:
            lines[column] = ([step for step, _ in points], [value for _, value in points])
    return lines


def number_lines(panel: Axes, lines: dict[int, tuple[list[int], list[float]]], gap: float, end: float) -> None:
    """Number the first, middle and last line at its end, counted from 1: "7, 12" where two end at one place.

    gap: least distance of numbers, over panel height.
    """
    shown = [index for index in (0, (max(lines) + 1) // 2, max(lines)) if index in lines]
    low, top = panel.get_ylim()
    height = top - low
    ends = [lines[index][1][-1] for index in shown]
    for group, place in shared_labels(ends, height * gap, low + 0.03 * height):
        panel.text(end * 1.015, place, ", ".join(str(shown[i] + 1) for i in group), fontsize=7, va="center")


def shared_labels(ends: Sequence[float], gap: float, floor: float = -math.inf) -> list[tuple[list[int], float]]:
    """Which ends of three lines or fewer share a label, and its place, from the lowest label to the highest.

    Every label is within half a `gap` of each of its ends, so that none is read as that of another line; only one that
    would be below `floor`, on the axis, stands there. Labels are a gap apart, unless the floor leaves less.
    """
    groups = [[i] for i in sorted(range(len(ends)), key=ends.__getitem__)]
    while len(groups) > 1:  # the nearest neighbours share one, as long as it is near enough to both
        near = min(range(len(groups) - 1), key=lambda i: ends[groups[i + 1][-1]] - ends[groups[i][0]])
        if ends[groups[near + 1][-1]] - ends[groups[near][0]] >= gap:
            break
        groups[near] += groups.pop(near + 1)
    places = spread([(ends[group[0]] + ends[group[-1]]) / 2 for group in groups], gap)
    for rank, group in enumerate(groups):
        least = floor if rank == 0 else min(places[rank - 1] + gap, ends[group[0]] + gap / 2)
        places[rank] = max(places[rank], least)
    return [(sorted(group), place) for group, place in zip(groups, places, strict=True)]


def slope_lines(panel: Axes, results: Results, run: str, title: str) -> None:
    """Learned negative slopes over training, one line a slope, and 0, where a leaky ReLU is a ReLU."""
    panel.set_title(title)
    trained = results.first(run)
    lines = _finite_lines(trained, lambda log: log.slopes) if trained else {}
    if not lines:
        missing_run(panel, results, run, "slopes not logged, train it again")
        return
    last = max(steps[-1] for steps, _ in lines.values())
    for index, colour in enumerate(depth_colours(max(lines) + 1)):
        panel.plot(*lines[index], color=colour, linewidth=1.3)
    panel.axhline(0, color=INK, linewidth=0.7)
    panel.set_xlim(0, last * 1.07)
    panel.set_xlabel("training step")
    panel.grid(axis="y")
    if len(lines) > 1:
        number_lines(panel, lines, 0.06, last)


def overflow_map(panel: Axes, results: Results, run: str, title: str) -> ScalarMappable | None:
    """How many values of each block's output float16 cannot hold, layer by evaluated step; none is blank.

    None if there is nothing that a colour bar could explain.
    """
    panel.set_title(title)
    trained = results.first(run)
    logged = zip(trained.log.step, trained.log.overflow, strict=False) if trained and trained.log else ()
    kept = [(step, row) for step, row in logged if any(v is not None for v in row)]
    if not kept:
        missing_run(panel, results, run, "counts not logged, train it again")
        return None
    panel.set_title(title + diverged(trained))
    counts = np.array([[np.nan if v is None else v for v in row] for _, row in kept]).T  # (L, evaluations)
    layers, evaluations = counts.shape
    most = np.nanmax(counts)
    mesh = panel.pcolormesh(
        np.arange(evaluations + 1) - 0.5,
        np.arange(layers + 1) + 0.5,
        np.ma.masked_less(np.ma.masked_invalid(counts), 1),
        cmap=COUNTS,
        norm=LogNorm(1, max(most, 10)),
        edgecolors=PAPER,
        linewidth=0.4,
        rasterized=False,
    )
    if most == 0:
        panel.text((evaluations - 1) / 2, (layers + 1) / 2, "none", ha="center", color=MUTED, style="italic")
    every = max(1, evaluations // 3)
    panel.set_xticks(range(0, evaluations, every), [str(step) for step, _ in kept[::every]])
    panel.set_yticks(range(1, layers + 1) if layers <= 12 else range(1, layers + 1, 3))
    precision = (trained.metrics.get("train") or {}).get("precision")
    panel.set_xlabel(f"training step\n(in {precision})" if precision else "training step")
    panel.set_xlim(-0.5, evaluations - 0.5)
    panel.set_ylim(0.5, layers + 0.5)
    return mesh if most > 0 else None


def overflow_label(trained: Run | None) -> str:
    """What the colour bar of `overflow_map` counts, in two lines: with the number of values of a block's output, B T d
    of the one held-out batch that is counted, where the training states its sizes.
    """
    metrics = trained.metrics if trained else {}
    train, width = metrics.get("train") or {}, (metrics.get("model") or {}).get("width")
    sequences, context = train.get("batch_size"), metrics.get("context")
    if not (sequences and context and width):
        return "values not finite\nin float16"
    if tokens := train.get("evaluation_tokens"):
        sequences = min(sequences, max(1, tokens // context))
    return f"values not finite in float16,\nof {sequences * context * width:,} a layer"
