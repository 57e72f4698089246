"""The figures of `entropy_landscape`, each drawn by the function with its number; of the first seeds.

The paper's margins are printed as 0, 0.20, 0.20 in the caption of its Figure 2 and as 0, 10, 20 % of E_max in its
Table 1, which is what is drawn.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from aero.landscape import gini_by_layer, steepness, wasserstein_1_by_layer
from aero.report.drawing import INK, MUTED, PAPER, WIDTH, say_missing, style
from aero.report.entropy_drawing import ENTROPY, colour_bar, heatmap, missing_run
from aero.report.figure_index import stands_for
from aero.report.results import Results
from aero.report.statistics import sampling_error

SURFACES = {
    "sm-ln-g": "GELU",
    "sm-ln-r": "ReLU",
    "ereg-smt-ln-g": "GELU + EReg",
    "ereg-smt-ln-r": "ReLU + EReg",
}
MARGINS = {
    "sm-ln-g": "baseline",
    "ereg-smt-ln-g-gamma-00": "γ = 0",
    "ereg-smt-ln-g-gamma-10": "γ = 0.10",
    "ereg-smt-ln-g": "γ = 0.20",
}
DEEP = {
    "GELU": ("sm-ln-g-18l", "ereg-smt-ln-g-18l-gamma-00", "ereg-smt-ln-g-18l-gamma-10", "ereg-smt-ln-g-18l"),
    "ReLU": ("sm-ln-r-18l", "ereg-smt-ln-r-18l-gamma-00", "ereg-smt-ln-r-18l-gamma-10", "ereg-smt-ln-r-18l"),
}
_NAMES = ("baseline", "γ = 0", "γ = 0.10", "γ = 0.20")
_COLOURS = (INK, "#0072b2", "#009e73", "#d55e00")
_MARKS = ("o", "s", "^", "D")


def landscape(results: Results, run: str, kind: str = "mean") -> NDArray[np.float64] | None:
    """Mean or median entropy of every head (L, H) of a run's first seed; None if it is not there."""
    trained = results.first(run)
    values = getattr(trained.entropy, kind) if trained and trained.entropy else ()
    return np.array(values, dtype=float) if values else None


@stands_for(
    "entropy_landscape/figure1",
    title="Entropy Landscape Figure 1, entropy over layers and heads",
    note="Mean over held-out tokens of every head, as a surface, with the regulariser at its margin of 0.20.",
    runs=tuple(SURFACES),
    needs=("entropies not measured",),
)
def landscape_figure_1(results: Results) -> Figure:
    """Entropy Landscape Figure 1: mean entropy as a surface over layers and heads, without and with regulariser."""
    from mpl_toolkits.mplot3d import Axes3D  # noqa: F401  matplotlib learns the projection by it

    found = {run: values for run in SURFACES if (values := landscape(results, run)) is not None}
    top = max((results.first(run).entropy.maximum["causal_bound"] for run in found), default=1.0)
    norm = Normalize(0, top)
    with style():
        figure = Figure(figsize=(WIDTH, 2.5))
        for place, (run, name) in enumerate(SURFACES.items(), start=1):
            title = f"({'abcd'[place - 1]}) {name}"
            if run not in found:
                panel = figure.add_subplot(1, 4, place)
                panel.set_title(title, y=0.97, loc="center")
                missing_run(panel, results, run)
                continue
            panel = figure.add_subplot(1, 4, place, projection="3d", computed_zorder=False)
            panel.set_title(title, y=0.97, loc="center")
            layers, heads = found[run].shape
            x, y = np.meshgrid(np.arange(1, heads + 1), np.arange(1, layers + 1))
            panel.plot_surface(
                x, y, found[run], cmap=ENTROPY, norm=norm, rstride=1, cstride=1, linewidth=0.3, edgecolor=PAPER
            )
            panel.set_zlim(0, top)
            panel.view_init(elev=28, azim=-52)
            panel.set_xticks(range(1, heads + 1) if heads <= 6 else range(1, heads + 1, 3))
            panel.set_yticks(range(2, layers + 1, max(2, layers // 3)))
            panel.tick_params(labelsize=6.5, pad=-3)
            panel.set_xlabel("head", fontsize=7, labelpad=-8)
            panel.set_ylabel("layer", fontsize=7, labelpad=-6)
            for axis in (panel.xaxis, panel.yaxis, panel.zaxis):
                axis.pane.set_visible(False)
                axis._axinfo["grid"].update(color="#b8bfc9", linewidth=0.4)  # mplot3d has no other way to say so
            panel.set_box_aspect((1, 1.25, 0.9), zoom=1.12)
        figure.subplots_adjust(left=0.01, right=0.94, top=0.93, bottom=0.06, wspace=0.08)
        figure.text(0.99, 0.5, "mean entropy, nats", rotation=90, va="center", ha="center", fontsize=7)
    return figure


@stands_for(
    "entropy_landscape/figure2",
    title="Entropy Landscape Figure 2, steepness of the landscape",
    note="|∇E| on the grid of layers and heads, GELU with LayerNorm, from the mean of a head's token entropies (the "
    "paper's caption) and from their median (its text). Heads have no order, so the share across heads is that of a "
    "numbering that could be any other.",
    runs=tuple(MARGINS),
    needs=("entropies not measured", "medians not stored"),
)
def landscape_figure_2(results: Results) -> Figure:
    """Entropy Landscape Figure 2: gradient magnitude of the mean and of the median entropy, by margin."""
    kinds = ("mean", "median")
    maps = {
        (kind, run): steepness(values)
        for kind in kinds
        for run in MARGINS
        if (values := landscape(results, run, kind)) is not None
    }
    norm = Normalize(0, max((np.nanmax(values) for values in maps.values()), default=1.0))
    with style():
        figure = Figure(figsize=(WIDTH, 5.0))
        panels = figure.subplots(2, len(MARGINS))
        figure.subplots_adjust(left=0.07, right=0.9, top=0.94, bottom=0.09, wspace=0.24, hspace=0.3)
        mesh = None
        for row, kind in enumerate(kinds):
            for panel, (run, name) in zip(panels[row], MARGINS.items(), strict=True):
                panel.set_title(f"{name}, {kind}", fontsize=8)
                if (kind, run) not in maps:
                    missing_run(panel, results, run, f"{kind} not stored", size=7)
                    continue
                mesh = heatmap(panel, maps[kind, run], norm, ENTROPY)
                if row:
                    panel.set_xlabel("head")
            panels[row][0].set_ylabel("layer")
        if mesh is not None:
            colour_bar(figure, mesh, (0.92, 0.16, 0.013, 0.7), "|∇E|, nats per layer or head")
    return figure


@stands_for(
    "entropy_landscape/figure3",
    title="Entropy Landscape Figure 3, heads of each layer by margin",
    note="18 layers. (a) mean over a layer's heads, (b) Gini coefficient of its heads, (c) Wasserstein-1 distance of "
    "its heads from the baseline's. Bands: standard error for the held-out tokens, where blocks of them are stored.",
    runs=(*DEEP["GELU"], *DEEP["ReLU"]),
    needs=("entropies not measured", "blocks of held-out sequences not stored"),
)
def landscape_figure_3(results: Results) -> Figure:
    """Entropy Landscape Figure 3: by layer, mean entropy, Gini coefficient and W1 to the baseline, for each margin."""
    with style():
        figure = Figure(figsize=(WIDTH, 4.6))
        panels = figure.subplots(2, 3)
        figure.subplots_adjust(left=0.07, right=0.985, top=0.87, bottom=0.1, wspace=0.26, hspace=0.42)
        for index, (name, colour, mark) in enumerate(zip(_NAMES, _COLOURS, _MARKS, strict=True)):
            figure.text(0.09 + 0.16 * index, 0.965, {"o": "●", "s": "■", "^": "▲", "D": "◆"}[mark], color=colour)
            figure.text(0.11 + 0.16 * index, 0.965, name)
        for row, (activation, runs) in enumerate(DEEP.items()):
            titles = ("mean entropy, nats", "Gini coefficient", "W₁ to the baseline, nats")
            for panel, letter, title in zip(panels[row], "abc", titles, strict=True):
                panel.set_title(f"({letter}) {title}, {activation}", fontsize=8)
                panel.set_xlabel("layer" if row else "")
            _by_layer(panels[row], results, runs)
    return figure


def _by_layer(panels: NDArray[np.object_], results: Results, runs: tuple[str, ...]) -> None:
    baseline, blocks = landscape(results, runs[0]), _blocks(results, runs[0])
    absent = [run for run in runs if results.first(run) is None]
    for run, colour, mark in zip(runs, _COLOURS, _MARKS, strict=True):
        values = landscape(results, run)
        if values is None:
            continue
        own = _blocks(results, run)
        _line(panels[0], values.mean(1), sampling_error(lambda x: x.mean(1), *own), colour, mark)
        _line(panels[1], gini_by_layer(values), sampling_error(gini_by_layer, *own), colour, mark)
        if baseline is not None and run != runs[0]:
            error = sampling_error(wasserstein_1_by_layer, *own, *blocks) if own and blocks else None
            _line(panels[2], wasserstein_1_by_layer(values, baseline), error, colour, mark)
    for panel in panels:
        if not panel.lines:
            say_missing(panel, "not run yet:\n" + ",\n".join(absent) if absent else "entropies not measured")
            continue
        panel.set_ylim(bottom=0)
        panel.grid(axis="y")
        panel.xaxis.get_major_locator().set_params(integer=True)
        if absent:
            said = "not run yet:\n" + "\n".join(absent)
            panel.text(
                0.5, 0.02, said, transform=panel.transAxes, ha="center", color=MUTED, style="italic", fontsize=6.5
            )


def _blocks(results: Results, run: str) -> list[NDArray[np.float64]]:
    """The run's blocks (K, L, H), as the one or no array that `sampling_error` takes."""
    trained = results.first(run)
    return [np.array(trained.entropy.blocks)] if trained and trained.entropy and trained.entropy.blocks else []


def _line(panel: Axes, values: NDArray[np.float64], error: NDArray[np.float64] | None, colour: str, mark: str) -> None:
    layers = np.arange(1, len(values) + 1)
    panel.plot(layers, values, color=colour, marker=mark, markersize=3, linewidth=1.2)
    if error is not None:
        panel.fill_between(layers, values - error, values + error, color=colour, alpha=0.2, linewidth=0)
