"""The figures of AERO, each drawn by the function named after it from the loaded results.

Every function returns a matplotlib figure; where a result is missing, the figure says so in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.published import load
from aero.report.costs import GB, all_costs, published_bound
from aero.report.drawing import (
    AS_PUBLISHED,
    AS_WRITTEN,
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
    swatch,
)
from aero.report.entropy_drawing import diverged, row_name
from aero.report.results import Results

TABLE_2_RUNS = ("sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm")
BARS = {"as_published": AS_PUBLISHED, "as_written": AS_WRITTEN, "tuned": TUNED}
LEGEND = {0.4: "as_published", 0.57: "as_written", 0.72: "tuned"}
FIGURE_1_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFNi_6", "SOTA(SM+ScFuFFNi_1)")


def figure_1(results: Results) -> Figure:
    """AERO Figure 1: communication and WAN latency along AERO's steps, published, measured as published, as written and
    tuned.

    The tick on a published latency is the least time its own bytes need on the published network.
    """
    paper = load("aero")
    table = paper.tables["4"]
    with style():
        figure = Figure(figsize=(WIDTH, 5.2))
        panels = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.2, right=0.97, top=0.9, bottom=0.08, wspace=0.08)
        height, places = 0.2, np.arange(len(FIGURE_1_ROWS), dtype=float)
        for panel, (title, key) in zip(
            panels, (("communication, GB", "communication"), ("latency on the WAN, min", "latency")), strict=True
        ):
            for place, name in zip(places, FIGURE_1_ROWS, strict=True):
                costs = all_costs(results, table, name)
                printed = table.value(name, key)
                bound = published_bound(paper, "4", name) if key == "latency" else None
                # The label stands clear of the bound's tick where the two are close.
                near = bound.overlapped if bound and printed and printed <= bound.overlapped < 1.5 * printed else 0.0
                _bar(panel, place - 1.5 * height, printed, PUBLISHED, height, "////", near)
                if bound:
                    panel.plot(
                        [bound.overlapped] * 2, [place - 1.95 * height, place - 1.05 * height], color=INK, linewidth=1.4
                    )
                for offset, (program, colour) in enumerate(BARS.items(), -1):
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
                    _bar(panel, place + (offset + 0.5) * height, value, colour, height)
            panel.set_title(title)
            panel.set_yticks(places, FIGURE_1_ROWS)
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x")
            panel.set_xlim(0, panel.get_xlim()[1] * 1.12)
        panels[0].invert_yaxis()
        for x, colour, text, hatch in (
            (0.12, PUBLISHED, "published", "////"),
            *((x, BARS[program], program.replace("_", " "), "") for x, program in LEGEND.items()),
        ):
            swatch(figure, x, 0.962, colour, hatch)
            figure.text(x + 0.035, 0.975, text, va="center")
        figure.text(0.285, 0.975, "measured:", va="center")
        figure.text(0.83, 0.975, "▏ bytes' own bound", va="center")
    return figure


def _bar(
    panel: Axes, place: float, value: float | None, colour: str, height: float, hatch: str = "", label_from: float = 0.0
) -> None:
    if value is None:
        panel.text(0, place, " not measured yet", va="center", color=MUTED, style="italic", fontsize=7)
        return
    panel.barh(place, value, height * 0.9, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0)
    panel.text(max(value, label_from), place, f" {value:.2f}", va="center", fontsize=7)


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
            ends.append((float(steps[-1]), float(mean[-1]), run, row_name(run) + diverged(curves[0][0])))
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
