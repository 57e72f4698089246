"""Entropy Landscape: its table and figures; measures of how the heads' entropies are spread over layers and heads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from aero import landscape
from aero.published import Cell, Row
from aero.published import table as printed_table
from aero.report.papers.panels import ENTROPY, causal_norm, heads, heatmap, layer_ticks
from aero.report.results import Results
from aero.report.show import INK, PAPER, no_data, subplots
from aero.report.statistics import estimate
from aero.report.tables import LANDSCAPE, MeasuredCell, table

TRAININGS = {"baseline": "baseline", "0": "γ = 0", "10": "γ = 0.10", "20": "γ = 0.20"}
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
    kind: (f"sm-ln-{letter}-18l", *(f"ereg-smt-ln-{letter}-18l{margin}" for margin in ("-gamma-00", "-gamma-10", "")))
    for kind, letter in (("GELU", "g"), ("ReLU", "r"))
}
_COLOURS = (INK, "#0072b2", "#009e73", "#d55e00")


def cells(results: Results) -> list[MeasuredCell]:
    """Every cell of Table 1, for reports/tables."""
    return [
        cell if _kind(cell) == "ppl" else _heads_cell(results, cell.row, cell.published, _kind(cell))
        for cell in table(results, printed_table(LANDSCAPE))
    ]


def _kind(cell: MeasuredCell) -> str:
    """ppl, low, high or w1, of any training."""
    return cell.published.column.key.partition("_")[0]


def _heads_cell(results: Results, row: Row, cell: Cell, kind: str) -> MeasuredCell:
    """A statistic of the heads' mean entropies: of the lowest or highest head, or the distance from the baseline's."""
    runs = {run.seed: (run.entropy,) for run in results.seeds(row.trained[cell.column.training]) if run.entropy}
    if kind == "w1":
        baseline = {run.seed: run.entropy for run in results.seeds(row.trained["baseline"]) if run.entropy}
        runs = {seed: (*own, baseline[seed]) for seed, own in runs.items() if seed in baseline}
    notes = [cell.note] if cell.note else []
    found = estimate({seed: STATISTICS[kind](*(one.mean for one in of)) for seed, of in runs.items()})
    if found is None:
        notes.append("entropies not measured" if results.seeds(row.trained[cell.column.training]) else "not run yet")
        return MeasuredCell(row, cell, "", None, results.scale, "; ".join(notes))
    seed = found.seeds[0]
    if len(found.seeds) == 1:
        notes.append(f"one seed ({seed}), no interval")
    if kind == "w1":
        layers = landscape.wasserstein_1_by_layer(*(one.mean for one in runs[seed])).mean()
        notes.append(f"mean of the layers' own distances {layers:.3f} (seed {seed})")
    text = f"{found.mean:.{cell.column.digits}f}"
    return MeasuredCell(row, cell, text, found.mean, results.scale, "; ".join(notes), found)


STATISTICS: dict[str, Callable[..., float]] = {
    "low": lambda values: landscape.entropy_range(values)[0],
    "high": lambda values: landscape.entropy_range(values)[1],
    "w1": landscape.wasserstein_1,
}


def table_1(results: Results) -> pd.DataFrame:
    """Table 1, one line a model and margin: perplexity and range of the heads' entropies, published and measured."""
    found = {(cell.row.name, cell.published.column.training, _kind(cell)): cell for cell in cells(results)}
    lines = []
    for row, training in itertools.product(printed_table(LANDSCAPE).rows, TRAININGS):
        ppl, low, high, w1 = (found.get((row.name, training, kind)) for kind in ("ppl", "low", "high", "w1"))
        lines.append(
            {
                "model": f"{row.name}, {TRAININGS[training]}",
                "PPL, published": ppl.published.text or "–",
                "measured": ppl.text or "–",
                "heads' entropy (nats), published": _range(low.published.text, high.published.text),
                "measured ": _range(low.text, high.text),
                "W₁, published / measured": f"{w1.published.text or '–'} / {w1.text or '–'}" if w1 else "–",
            }
        )
    return pd.DataFrame(lines)


def _range(low: str, high: str) -> str:
    return f"{low} to {high}" if low and high else "–"


def figure_1(results: Results) -> Figure:
    """Mean entropy as a surface over layers and heads, without and with the regulariser."""
    found = {run: values for run in SURFACES if (values := heads(results, run)) is not None}
    norm = causal_norm(results, found)
    figure, panels = subplots(1, 4, height=2.3, subplot_kw={"projection": "3d", "computed_zorder": False})
    for panel, (run, name) in zip(panels, SURFACES.items(), strict=True):
        panel.set_title(name if run in found else f"{name}: not measured", y=0.95, loc="center")
        if run not in found:
            continue
        layers, count = found[run].shape
        x, y = np.meshgrid(np.arange(1, count + 1), np.arange(1, layers + 1))
        options = {"cmap": ENTROPY, "norm": norm, "linewidth": 0.3, "edgecolor": PAPER}
        panel.plot_surface(x, y, found[run], rstride=1, cstride=1, **options)
        panel.view_init(elev=28, azim=-52)
        panel.set(zlim=(0, norm.vmax), xticks=layer_ticks(count), yticks=range(2, layers + 1, max(2, layers // 3)))
        panel.tick_params(pad=-3)
        panel.set_xlabel("head", labelpad=-3)
        panel.set_ylabel("layer", labelpad=-3)
        for axis in (panel.xaxis, panel.yaxis, panel.zaxis):
            axis.pane.set_visible(False)
    return figure


def figure_2(results: Results) -> Figure:
    """Gradient magnitude over layers and heads, of the mean (the caption's) and of the median entropy (the text's)."""
    kinds = ("mean", "median")
    found = {(kind, run): heads(results, run, kind) for kind in kinds for run in MARGINS}
    maps = {key: landscape.steepness(values) for key, values in found.items() if values is not None}
    norm = Normalize(0, max((np.nanmax(values) for values in maps.values()), default=1.0))
    figure, panels = subplots(2, len(MARGINS), height=3.3, sharex=True, sharey=True)
    for row, kind in zip(panels, kinds, strict=True):
        for panel, (run, name) in zip(row, MARGINS.items(), strict=True):
            panel.set_title(f"{name}, {kind}")
            heatmap(panel, maps.get((kind, run)), norm)
        row[0].set_ylabel("layer")
    setp(panels[1], xlabel="head")
    figure.colorbar(ScalarMappable(norm, ENTROPY), ax=panels, label="|∇E|, nats per layer or head", pad=0.01)
    return figure


def figure_3(results: Results) -> Figure:
    """18 layers: by layer, mean entropy of the heads, their Gini coefficient and Wasserstein-1 from the baseline."""
    figure, panels = subplots(2, 3, height=3.2, sharex=True)
    for row, (activation, runs) in zip(panels, DEEP.items(), strict=True):
        baseline = heads(results, runs[0])
        for run, name, colour in zip(runs, TRAININGS.values(), _COLOURS, strict=True):
            values = heads(results, run)
            if values is not None:
                measures = [values.mean(1), landscape.gini_by_layer(values)]
                if baseline is not None and run != runs[0]:
                    measures.append(landscape.wasserstein_1_by_layer(values, baseline))
                for panel, measure in zip(row, measures, strict=False):
                    panel.plot(range(1, len(measure) + 1), measure, "o-", color=colour, markersize=2.5, label=name)
        for panel, measure in zip(row, ("mean entropy, nats", "Gini coefficient", "W₁, nats"), strict=True):
            panel.set_title(f"{measure}, {activation}")
            if panel.lines:
                panel.set_ylim(bottom=0)
                panel.grid(axis="y")
            else:
                no_data(panel, "not measured")
    setp(panels[1], xlabel="layer")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure
