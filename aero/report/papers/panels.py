"""Panels shared by the papers' figures: heatmaps of heads, quarters of the maximum entropy, layers over training.

Unless a function says otherwise it draws the first seed of a run. A panel without its run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from aero.report.results import Results, Run
from aero.report.show import INK, MUTED, PAPER, no_data, subplots

TABLE_2_RUNS = ("sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm")
REGULARISED = "ereg-smt-scfuffn"
PRUNED = {"sm-scfuffn": "none pruned"} | {f"sm-scfuffni-{count}": f"{count} pruned" for count in range(1, 13)}

ENTROPY = LinearSegmentedColormap.from_list(
    "entropy", ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"]
)
"""Dark blue (collapsed) to yellow (overloaded), in the order of cividis."""
DEPTH = LinearSegmentedColormap.from_list("depth", ["#2f6db3", "#7d8a97", "#c9971c"])
"""First layer to last; visible on a light and a dark page."""

Runs = Sequence[str] | Mapping[str, str]
"""Names of runs, or titles by name."""
QUARTERS = {
    "0 to ¼ max": "#213d6b",
    "¼ to ½ max": "#7b7a77",
    "½ to ¾ max": "#c2b370",
    "¾ max to max": "#ffe945",
}
MAXIMA = {"observed": "observed maximum", "causal_bound": "causal bound ln(T!)/T", "log_T": "log T"}


UNUSUAL = {"gamma": "γ = {:.2f}", "temperature_init": "t from {:g}", "log_temperature": "log t", "qk_clip": "QK-clip"}
"""How a figure names settings that a run has and others have not."""


def notation(results: Results, run: str) -> str:
    """Architecture of a run in the papers' notation, and its settings in `UNUSUAL`."""
    if (known := results.parameters.runs.get(run)) is None:
        return run
    given = {**known.regularizer, **known.overrides}
    return ", ".join([known.architecture, *(UNUSUAL[key].format(given[key]) for key in UNUSUAL if key in given)])


def titles(results: Results, runs: Runs) -> Mapping[str, str]:
    """Title by run: the given one, or the architecture."""
    return runs if isinstance(runs, Mapping) else {run: notation(results, run) for run in runs}


def heads(results: Results, run: str, kind: str = "mean") -> NDArray[np.float64] | None:
    """Mean or median entropy of every head (L, H), nats."""
    trained = results.first(run)
    return getattr(trained.entropy, kind) if trained and trained.entropy else None


def learned(run: Run | None, name: str) -> NDArray[np.float64] | None:
    values = run.entropy.learned.get(name) if run and run.entropy else None
    return np.array(values, dtype=float) if values else None


def line_legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]], place: str = "upper left") -> None:
    """One legend of lines or markers outside all panels; styles by label."""
    handles = [Line2D([], [], label=label, **style) for label, style in styles.items()]
    figure.legend(handles=handles, loc=f"outside {place}", ncols=len(handles), frameon=False)


def layer_ticks(layers: int) -> range:
    return range(1, layers + 1, 1 if layers <= 6 else 3)


def causal_norm(results: Results, runs: Iterable[str]) -> Normalize:
    """A scale from 0 to the largest causal bound of the runs, nats."""
    trained = [one for run in runs if (one := results.first(run)) and one.entropy]
    return Normalize(0, max((one.entropy.maximum["causal_bound"] for one in trained), default=1.0))


def heatmap(panel: Axes, values: NDArray[np.float64] | None, norm: Normalize) -> ScalarMappable | None:
    """Values (L, H), layer 1 at the bottom; values that are not finite stay blank. None: not measured."""
    if values is None:
        no_data(panel, "not measured")
        return None
    layers, count = values.shape
    look = {"cmap": ENTROPY, "norm": norm, "edgecolors": PAPER, "linewidth": 0.4}
    mesh = panel.pcolormesh(np.arange(count + 1) + 0.5, np.arange(layers + 1) + 0.5, values, **look)
    panel.set_xticks(layer_ticks(count))
    panel.set_yticks(layer_ticks(layers))
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return mesh


def heatmaps(results: Results, runs: Runs, height: float) -> Figure:
    """Mean entropy of every head of the runs, on one colour scale up to the causal bound."""
    figure, panels = subplots(1, len(runs), height=height, sharey=True)
    norm = causal_norm(results, runs)
    for panel, (run, title) in zip(panels, titles(results, runs).items(), strict=True):
        panel.set(title=title, xlabel="head")
        heatmap(panel, heads(results, run), norm)
    panels[0].set_ylabel("layer")
    figure.colorbar(ScalarMappable(norm, ENTROPY), ax=panels, label="mean entropy, nats", shrink=0.9, pad=0.01)
    return figure


PRINTED: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.8, "color": INK, "linestyle": "none"}
PRINTED["path_effects"] = [withStroke(linewidth=4, foreground=PAPER)]


def quarter_bars(
    results: Results, runs: Runs, maxima: Sequence[str] = tuple(MAXIMA), printed: Sequence[tuple[str, float]] = ()
) -> Figure:
    """Fraction of heads per quarter of each maximum, mean over seeds; one bar a run, one panel a maximum.

    printed: (run, fraction of heads) of the paper, where the last quarter of the observed maximum begins or the first
    ends: a line across the bar.
    """
    figure, panels = subplots(1, len(maxima), height=0.88 + 0.17 * len(runs), sharey=True)
    for panel, maximum in zip(panels, maxima, strict=True):
        seeds = [list(results.quarters(run, maximum).values()) for run in runs]
        shares = np.array([np.mean(found, axis=0) if found else [np.nan] * 4 for found in seeds])  # (runs, 4)
        for place in np.flatnonzero(np.isnan(shares[:, 0])):
            panel.text(0.02, place, "not measured", va="center", color=MUTED, style="italic")
        for quarter, (name, colour) in enumerate(QUARTERS.items()):
            own, left = shares[:, quarter], shares[:, :quarter].sum(1)
            look = {"color": colour, "edgecolor": PAPER, "linewidth": 0.6}
            drawn = panel.barh(range(len(runs)), own, 0.72, left=left, label=name, **look)
            shown = [f"{share:.0%}" if share >= 0.07 * len(maxima) else "" for share in own]
            panel.bar_label(drawn, shown, label_type="center", color="w" if quarter < 2 else "k")
        for run, edge in printed if maximum == "observed" else ():
            panel.plot([edge], [list(runs).index(run)], **PRINTED)
        panel.set(title=MAXIMA[maximum], xlim=(0, 1), xlabel="fraction of heads")
        panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
        panel.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(runs)), titles(results, runs).values())
    panels[0].set_ylim(len(runs) - 0.5, -0.6)
    handles: list[Any] = list(panels[0].containers)
    if printed:
        handles += panels[0].plot([], [], **PRINTED, label="published")
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


def logged(results: Results, run: str, quantity: str) -> pd.DataFrame:
    """`Run.logged`; empty without the run."""
    trained = results.first(run)
    return trained.logged(quantity) if trained else pd.DataFrame()


def mean_and_range(panel: Axes, curves: Iterable[pd.Series], **line: str) -> pd.Series:
    """Draw mean and range of seeds at their common steps; the mean, empty if there are none."""
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return pd.Series(dtype=float)
    values = pd.concat(curves, axis=1, join="inner")
    panel.plot(values.mean(axis=1), **line)
    low, high = values.min(axis=1), values.max(axis=1)
    panel.fill_between(values.index, low, high, color=line["color"], alpha=0.2, linewidth=0)
    return values.mean(axis=1)


def layer_lines(panel: Axes, results: Results, run: str, name: str, quantity: str = "entropy") -> None:
    """One line a layer over training, coloured by depth; dotted: the step at which the run diverged."""
    panel.set_title(name)
    lines = logged(results, run, quantity)
    if lines.empty:
        no_data(panel, "not measured")
        return
    for column, depth in zip(lines, np.linspace(0, 1, lines.shape[1]), strict=True):
        panel.plot(lines[column].dropna(), color=DEPTH(depth), linewidth=1.1)
    if (step := results.first(run).diverged_at) is not None:
        panel.axvline(step, color=INK, linewidth=0.8, linestyle=":")
        panel.text(0.5, 0.5, f"NaN at {step}", ha="center", transform=panel.transAxes, backgroundcolor=PAPER)
    panel.grid(axis="y")


def over_training(results: Results, runs: Runs, rows: int = 2, height: float = 1.05) -> Figure:
    """Entropy of each layer, mean over heads, over training; all panels on one scale. height: of a row, inches."""
    figure, grid = subplots(rows, len(runs) // rows, height=rows * height, squeeze=False, sharey=True)
    for panel, (run, title) in zip(grid.flat, titles(results, runs).items(), strict=True):
        layer_lines(panel, results, run, title)
    grid[0, 0].set_ylim(bottom=0)
    setp(grid[:, 0], ylabel="entropy, nats")
    setp(grid[-1], xlabel="training step")
    depth_bar(figure, grid, max(logged(results, run, "entropy").shape[1] for run in runs) or 12)
    return figure


def depth_bar(figure: Figure, panels: Any, layers: int) -> None:
    colours = ScalarMappable(Normalize(1, layers), DEPTH)
    bar = figure.colorbar(colours, ax=panels, label="layer", pad=0.01, aspect=10 * np.atleast_2d(panels).shape[0])
    bar.locator = MaxNLocator(3, integer=True)
