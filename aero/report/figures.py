"""The figures of AERO, each drawn by the function named after it from the loaded results.

Every function returns a matplotlib figure; where a result is missing, the figure says so in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from aero.published import load
from aero.report.costs import GB, published_bound, row_costs
from aero.report.drawing import (
    AS_PUBLISHED,
    GRID,
    INK,
    MUTED,
    PAPER,
    PUBLISHED,
    SERIES,
    TUNED,
    WIDTH,
    say_missing,
    spread,
    style,
)
from aero.report.results import Results, Run

_ENTROPY = LinearSegmentedColormap.from_list(
    "entropy", ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"]
)
"""Dark blue (collapsed) to yellow (overloaded), as the papers' heatmaps read, in the colour-blind-safe cividis
order.
"""

_DEPTH = LinearSegmentedColormap.from_list("depth", ["#2f6db3", "#7d8a97", "#c9971c"])
"""Lines from the first layer to the last, none so dark or so light that it is lost on either kind of background."""

TABLE_2_RUNS = ("sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm")
FIGURE_1_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFNi_6", "SOTA(SM+ScFuFFNi_1)")


def row_name(run: str) -> str:
    """Architecture of the table row a run stands for ("sm-ln-g": SM+LN+G); the run's own name if it stands for none."""
    rows = ((t, row) for t in load("aero").tables.values() for row in t.rows if row.run == run)
    return next((t.setting(row)["architecture"] for t, row in rows), run)


def figure_1(results: Results) -> Figure:
    """AERO Figure 1: communication and WAN latency along AERO's steps, published, measured as published, measured
    tuned.

    The tick on a published latency is the least time its own bytes need on the published network.
    """
    paper = load("aero")
    table = paper.tables["4"]
    with style():
        figure = Figure(figsize=(WIDTH, 4.3))
        panels = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.2, right=0.97, top=0.9, bottom=0.1, wspace=0.08)
        height, places = 0.26, np.arange(len(FIGURE_1_ROWS), dtype=float)
        for panel, (title, key) in zip(
            panels, (("communication, GB", "communication"), ("latency on the WAN, min", "latency")), strict=True
        ):
            for place, name in zip(places, FIGURE_1_ROWS, strict=True):
                costs = row_costs(results, table, name)
                printed = table.value(name, key)
                bound = published_bound(paper, "4", name) if key == "latency" else None
                # The label stands clear of the bound's tick where the two are close.
                near = bound.overlapped if bound and printed and printed <= bound.overlapped < 1.5 * printed else 0.0
                _bar(panel, place - height, printed, PUBLISHED, height, "////", near)
                if bound:
                    panel.plot(
                        [bound.overlapped] * 2, [place - 1.45 * height, place - 0.55 * height], color=INK, linewidth=1.4
                    )
                for offset, program, colour in ((0, "as_published", AS_PUBLISHED), (1, "tuned", TUNED)):
                    cost = costs.get(program)
                    value = None
                    if cost is not None:
                        value = (
                            cost.bytes / GB
                            if key == "communication"
                            else None
                            if cost.latency_wan is None
                            else cost.latency_wan / 60
                        )
                    _bar(panel, place + offset * height, value, colour, height)
            panel.set_title(title)
            panel.set_yticks(places, FIGURE_1_ROWS)
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x")
            panel.set_xlim(0, panel.get_xlim()[1] * 1.12)
        panels[0].invert_yaxis()
        for x, colour, text, hatch in (
            (0.2, PUBLISHED, "published", "////"),
            (0.36, AS_PUBLISHED, "measured, as published", ""),
            (0.62, TUNED, "measured, tuned", ""),
        ):
            figure.patches.append(_swatch(figure, x, colour, hatch))
            figure.text(x + 0.035, 0.975, text, va="center")
        figure.text(0.82, 0.975, "▏ bytes' own bound", va="center")
    return figure


def _bar(
    panel: Axes, place: float, value: float | None, colour: str, height: float, hatch: str = "", label_from: float = 0.0
) -> None:
    if value is None:
        panel.text(0, place, " not measured yet", va="center", color=MUTED, style="italic", fontsize=7)
        return
    panel.barh(place, value, height * 0.9, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0)
    panel.text(max(value, label_from), place, f" {value:.2f}", va="center", fontsize=7)


def _swatch(figure: Figure, x: float, colour: str, hatch: str) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (x, 0.962),
        0.026,
        0.026,
        transform=figure.transFigure,
        facecolor=colour,
        hatch=hatch,
        edgecolor=PAPER,
        linewidth=0,
    )


_QUARTERS = ("0 to ¼ max", "¼ to ½ max", "½ to ¾ max", "¾ max to max")
_QUARTER_COLOURS = ("#213d6b", "#7b7a77", "#c2b370", "#ffe945")
_MAXIMA = (
    ("observed", "max: observed (the papers')"),
    ("causal_bound", "max: causal bound ln(T!)/T"),
    ("log_T", "max: log T"),
)


def figure_3a(results: Results) -> Figure:
    """AERO Figure 3a: fraction of heads per quarter of the maximum entropy, mean over seeds, against three maxima.

    Triangles stand where the papers' printed fraction would end the first quarter (left) or begin the last (right).
    """
    printed = load("aero").facts["figures"]["3a"]["fractions"]
    names = [row_name(run) for run in TABLE_2_RUNS]
    with style():
        figure = Figure(figsize=(WIDTH, 3.1))
        panels = figure.subplots(1, 3, sharey=True)
        figure.subplots_adjust(left=0.12, right=0.985, top=0.8, bottom=0.13, wspace=0.07)
        for panel, (maximum, title) in zip(panels, _MAXIMA, strict=True):
            for place, run in enumerate(TABLE_2_RUNS):
                seeds = results.quarters(run, maximum)
                if not seeds:
                    panel.text(0.02, place, "not measured yet", va="center", color=MUTED, style="italic", fontsize=7)
                    continue
                _stack(panel, place, np.mean(list(seeds.values()), axis=0))
            if maximum == "observed":
                for entry in printed:
                    x = {(3,): 1 - entry["value"], (0,): entry["value"]}.get(tuple(entry["quarters"]))
                    if x is not None and entry["row"] in names:
                        panel.plot(
                            [x], [names.index(entry["row"]) - 0.47], marker="v", color=INK, markersize=5, clip_on=False
                        )
            panel.set_title(title, fontsize=8, fontweight="normal", fontstyle="italic")
            panel.set_xlim(0, 1)
            panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
            panel.set_yticks(range(len(names)), names)
            panel.tick_params(axis="y", length=0)
        panels[0].invert_yaxis()
        panels[1].set_xlabel("fraction of heads")
        for index, (colour, text) in enumerate(zip(_QUARTER_COLOURS, _QUARTERS, strict=True)):
            figure.patches.append(_swatch(figure, 0.12 + 0.17 * index, colour, ""))
            figure.text(0.155 + 0.17 * index, 0.975, text, va="center")
        figure.text(0.82, 0.975, "▼ published", va="center")
    return figure


def _stack(panel: Axes, place: float, fractions: np.ndarray) -> None:
    left = 0.0
    for fraction, colour, ink in zip(
        fractions, _QUARTER_COLOURS, ("#ffffff", "#ffffff", "#111111", "#111111"), strict=True
    ):
        panel.barh(place, fraction, 0.72, left=left, color=colour, edgecolor=PAPER, linewidth=0.6)
        if fraction >= 0.09:
            panel.text(left + fraction / 2, place, f"{fraction:.0%}", ha="center", va="center", color=ink, fontsize=7)
        left += fraction


def figure_3b(results: Results) -> Figure:
    """AERO Figure 3b: evaluation loss of the six configurations of Table 2 over training; bands are the range over
    seeds.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 3.4))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.08, right=0.86, top=0.96, bottom=0.14)
        ends: list[tuple[float, float, str, str]] = []
        for run in TABLE_2_RUNS:
            curves = [(trained, *trained.log.evaluations()) for trained in results.seeds(run) if trained.log]
            curves = [c for c in curves if c[1]]
            if not curves:
                continue
            steps = sorted(set.intersection(*(set(c[1]) for c in curves)))
            values = np.array([[dict(zip(c[1], c[2], strict=True))[s] for s in steps] for c in curves])
            if not steps:
                continue
            mean = values.mean(0)
            axes.plot(steps, mean, color=SERIES[run])
            if len(values) > 1:
                axes.fill_between(steps, values.min(0), values.max(0), color=SERIES[run], alpha=0.18, linewidth=0)
            for trained, *_ in curves:
                if trained.diverged_at is not None:
                    axes.plot([steps[-1]], [mean[-1]], marker="x", color=SERIES[run], markersize=7, markeredgewidth=2)
            ends.append((float(steps[-1]), float(mean[-1]), run, row_name(run) + _diverged(curves[0][0])))
        if not ends:
            say_missing(axes, "no evaluation curves yet at this scale")
            return figure
        last = max(end[0] for end in ends)
        low = min(e[1] for e in ends)
        top = min(max(line.get_ydata().max() for line in axes.lines), low + 3.2 * (max(e[1] for e in ends) - low) + 0.5)
        axes.set_ylim(low - 0.06 * (top - low), top)
        gap = (top - low) * 0.06
        for (_, value, run, text), label in zip(ends, spread([e[1] for e in ends], gap), strict=True):
            axes.annotate(
                text,
                (last, value),
                (last * 1.02, label),
                color=SERIES[run],
                va="center",
                fontsize=8,
                annotation_clip=False,
            )
        axes.set_xlim(0, last)
        axes.set_xlabel("training step")
        axes.set_ylabel("evaluation loss, nats a token")
        axes.grid(axis="y")
    return figure


def _diverged(run: Run) -> str:
    return f" (NaN at {run.diverged_at})" if run.diverged_at is not None else ""


def figure_5(results: Results) -> Figure:
    """AERO Figure 5: entropy of every head, layer by head, with and without LayerNorm, with GELU and ReLU (and SM,
    Figure 6b).
    """
    runs = ("sm-ln-g", "sm-ln-r", "sm-g", "sm-r", "sm")
    with style():
        figure = Figure(figsize=(WIDTH, 3.3))
        panels = figure.subplots(1, len(runs), sharey=True)
        figure.subplots_adjust(left=0.07, right=0.9, top=0.86, bottom=0.13, wspace=0.12)
        found = {run: trained for run in runs if (trained := results.first(run)) is not None and trained.entropy}
        bound = max((t.entropy.maximum.get("causal_bound", 0.0) for t in found.values() if t.entropy), default=0.0)
        norm = Normalize(0, bound or 1.0)
        mesh = None
        for panel, run in zip(panels, runs, strict=True):
            panel.set_title(row_name(run))
            if run not in found:
                say_missing(panel, "not\nmeasured\nyet")
                continue
            mesh = _heatmap(panel, np.array(found[run].entropy.mean), norm)
        panels[0].set_ylabel("layer (1 is next to the embedding)")
        panels[len(runs) // 2].set_xlabel("head")
        if mesh is not None:
            place = figure.add_axes((0.915, 0.13, 0.014, 0.73))
            bar = figure.colorbar(mesh, cax=place)
            bar.solids.set_rasterized(False)
            bar.solids.set_edgecolor("face")
            bar.set_label("mean entropy, nats (full scale: causal bound)", fontsize=7.5)
            bar.outline.set_visible(False)
    return figure


def _heatmap(panel: Axes, values: np.ndarray, norm: Normalize) -> object:
    layers, heads = values.shape
    mesh = panel.pcolormesh(
        np.arange(heads + 1) + 0.5,
        np.arange(layers + 1) + 0.5,
        np.ma.masked_invalid(values),
        cmap=_ENTROPY,
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


def figure_6(results: Results) -> Figure:
    """AERO Figures 6 and 7c: entropy of each layer while SM trains, beside SM+ScFFN, whose scaling is to prevent
    collapse.
    """
    runs = ("sm", "sm-scffn")
    with style():
        figure = Figure(figsize=(WIDTH, 3.0))
        panels = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.08, right=0.97, top=0.88, bottom=0.15, wspace=0.14)
        for panel, run in zip(panels, runs, strict=True):
            trained = results.first(run)
            panel.set_title(row_name(run))
            if (
                trained is None
                or trained.log is None
                or not any(any(v is not None for v in e) for e in trained.log.entropy)
            ):
                say_missing(panel, "not measured yet")
                continue
            panel.set_title(f"{row_name(run)}, seed {trained.seed}{_diverged(trained)}")
            _layer_lines(panel, trained)
            panel.set_xlabel("training step")
            panel.grid(axis="y")
        panels[0].set_ylabel("mean entropy of a layer, nats")
    return figure


def _layer_lines(panel: Axes, trained: Run) -> None:
    log = trained.log
    layers = len(log.entropy[0])
    colours = [_DEPTH(layer / max(layers - 1, 1)) for layer in range(layers)]
    ends = []
    for layer in range(layers):
        points = [
            (step, e[layer])
            for step, e in zip(log.step, log.entropy, strict=True)
            if e[layer] is not None and np.isfinite(e[layer])
        ]
        if points:
            panel.plot(*zip(*points, strict=True), color=colours[layer], linewidth=1.3)
            ends.append((layer, *points[-1]))
    if not ends:
        return
    if trained.diverged_at is not None:
        panel.axvline(trained.diverged_at, color=INK, linewidth=0.8, linestyle=":")
    panel.set_ylim(bottom=0)
    top = panel.get_ylim()[1]
    last = max(step for _, step, _ in ends)
    panel.set_xlim(0, last * 1.1)
    shown = [e for e in ends if e[0] in (0, layers // 2, layers - 1)]
    for (layer, _, value), label in zip(shown, spread([e[2] for e in shown], top * 0.06), strict=True):
        panel.annotate(
            f"layer {layer + 1}", (last, value), (last * 1.015, label), fontsize=7, va="center", annotation_clip=False
        )


def figure_contradiction(results: Results) -> Figure:
    """Published latency of every row of Table 4 against the least time its published bytes need on the published
    network.
    """
    paper = load("aero")
    rows: Sequence = paper.tables["4"].rows
    with style():
        figure = Figure(figsize=(WIDTH, 3.0))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.26, right=0.97, top=0.97, bottom=0.15)
        for place, row in enumerate(rows):
            bound = published_bound(paper, "4", row.name)
            axes.plot([bound.overlapped, bound.one_way], [place, place], color=GRID, linewidth=7, solid_capstyle="butt")
            axes.plot([bound.overlapped] * 2, [place - 0.3, place + 0.3], color=INK, linewidth=1.5)
            printed = row.cells["latency"].value
            impossible = printed < bound.overlapped
            axes.plot(
                [printed],
                [place],
                marker="D" if impossible else "o",
                color="#d55e00" if impossible else "#0072b2",
                markersize=6,
            )
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.grid(axis="x")
        axes.set_xlabel("minutes on the published network")
        right = axes.get_xlim()[1]
        axes.text(right, 3.0, "◆ published, below both bounds", ha="right", color="#d55e00")
        axes.text(right, 4.2, "● published", ha="right", color="#0072b2")
        axes.text(right, 5.4, "▏ least time, both directions always busy", ha="right")
        axes.text(right, 6.6, "grey band: up to one direction at a time", ha="right", color=MUTED)
    return figure
