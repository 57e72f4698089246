"""Figures of attention entropy in AERO and in Entropy-Guided Attention, learned temperatures.

Entropy-Guided's Figures 5, 6 and 7 are AERO's 10, 18 and 19.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from aero.architecture import parse
from aero.published import load
from aero.records import read_csv
from aero.report import statistics
from aero.report.papers import panels
from aero.report.papers.panels import ENTROPY, PRUNED, REGULARISED, TABLE_2_RUNS, heads, notation
from aero.report.results import Results, Run
from aero.report.show import AS_WRITTEN, INK, no_data, not_measured, subplots
from aero.report.statistics import change, estimate
from aero.report.tables import perplexities

STABILISED = {"sm-wnorm-ffn": "weight norm.", "sm-snorm-ffn": "spectral norm.", "sm-scffn": "scaled FFN"}
WITH_REGULARISED = STABILISED | {REGULARISED: "entropy reg."}
MARGINS = {
    REGULARISED if percent == 20 else f"ereg-smt-scfuffn-gamma-{percent:02d}": f"γ = {percent / 100:.2f}"
    for percent in range(0, 31, 5)
}
"""Titles by run, like the three above."""
COUNTS = LinearSegmentedColormap.from_list("counts", ["#f3c9b4", "#d55e00", "#5a1c00"])
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, "#8a1c5a"), (0.5, "#efb4cf"), (0.5, "#e3dfb0"), (1, "#0b4f6c")], N=64
)
"""Values around 0: purple below, yellow to blue above."""
TEMPERATURE_RUNS = (REGULARISED, "smt-scfuffn")
TEMPERATURE_COLUMNS = (
    *("run", "architecture", "scale", "seed", "layer", "head"),
    *("temperature", "lowest", "highest", "share_below_0", "note"),
)


PARTS = {
    "sm-scfuffn": "neither",
    "sm-scfuffn-qk-clip": "neither, QK-clip",
    "smt-scfuffn": "temperature",
    "ereg-sm-scfuffn": "penalty",
    REGULARISED: "both",
    f"{REGULARISED}-temperature-1": "both, temperatures from 1",
    f"{REGULARISED}-log-temperature": "both, log t learned",
}
"""Temperature and penalty, apart and together."""


def figure_3a(results: Results) -> Figure:
    names = {notation(results, run): run for run in TABLE_2_RUNS}
    printed = [
        (names[one["row"]], one["value"] if one["quarters"] == [0] else 1 - one["value"])
        for one in load("aero").facts["figures"]["3a"]["fractions"]
        if one["quarters"] in ([0], [3])
    ]
    return panels.quarter_bars(results, TABLE_2_RUNS, printed=printed)


def figure_6(results: Results) -> Figure:
    """SM: (a) values beyond float16 in each layer over training, blank if none; (b) entropy of every head."""
    figure, (panel, heads_panel) = subplots(1, 2, height=1.9, width_ratios=(2.2, 1))
    panel.set(title="(a) SM, values beyond float16", ylabel="layer")
    overflow = panels.logged(results, "sm", "overflow")
    counts = overflow.to_numpy().T  # (L, evaluations)
    if counts.size and np.nanmax(counts) > 0:
        mesh = panel.pcolormesh(
            np.where(counts < 1, np.nan, counts), cmap=COUNTS, norm=LogNorm(1, max(np.nanmax(counts), 10))
        )
        every = max(1, len(overflow) // 3)
        panel.set_xticks(np.arange(0, len(overflow), every) + 0.5, overflow.index[::every])
        panel.set_yticks(np.array(panels.layer_ticks(len(counts))) - 0.5, panels.layer_ticks(len(counts)))
        panel.set_xlabel("training step")
        figure.colorbar(mesh, ax=panel, label="values beyond float16", pad=0.01)
    else:
        no_data(panel, "none in this training" if counts.size else "not logged")
    heads_panel.set(title="(b) SM", xlabel="head")
    norm = panels.causal_norm(results, ["sm"])
    panels.heatmap(heads_panel, heads(results, "sm"), norm)
    figure.colorbar(ScalarMappable(norm, ENTROPY), ax=heads_panel, label="mean entropy, nats", pad=0.02)
    return figure


def figure_10(results: Results) -> Figure:
    """Learned thresholds, fractions of log T: (a) per head, (b) their mean and (c) their variance per layer."""
    trained = results.first(REGULARISED)
    thresholds = panels.learned(trained, "thresholds")  # (L, H)
    if thresholds is None:
        return not_measured()
    figure, grid = subplots(1, 3, height=1.6)
    start = float(trained.metrics["model"].get("threshold_init", 0.5))
    norm = Normalize(min(start, thresholds.min()), max(start, thresholds.max()))
    mesh = panels.heatmap(grid[0], thresholds, norm)
    grid[0].set(title="(a) thresholds", ylabel="layer", xlabel="head")
    figure.colorbar(mesh, ax=grid[0], label="fraction of log T", pad=0.02)
    layers = np.arange(1, len(thresholds) + 1)
    shown = {"(b) mean over heads": thresholds.mean(1), "(c) variance over heads": thresholds.var(1)}
    for panel, (title, values) in zip(grid[1:], shown.items(), strict=True):
        panel.plot(values, layers, "o-", color=AS_WRITTEN, markersize=3)
        panel.set(title=title, yticks=panels.layer_ticks(len(layers)))
        panel.grid(axis="x")
        panel.locator_params(axis="x", nbins=4)
    grid[1].axvline(start, color=INK, linewidth=0.8, linestyle=":")
    grid[2].ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))
    return figure


def figure_17(results: Results) -> Figure:
    """Seven FFNs pruned, six and none: entropy of each layer over training, and of every head after it."""
    runs = {run: PRUNED[run] for run in ("sm-scfuffni-7", "sm-scfuffni-6", "sm-scfuffn")}
    figure, grid = subplots(2, 3, height=2.7, sharey="row")
    norm = panels.causal_norm(results, runs)
    for (above, below), (run, name) in zip(grid.T, runs.items(), strict=True):
        panels.layer_lines(above, results, run, name)
        above.set_xlabel("training step")
        panels.heatmap(below, heads(results, run), norm)
        below.set_xlabel("head")
    grid[0, 0].set(ylabel="entropy, nats", ylim=(0, None))
    grid[1, 0].set_ylabel("layer")
    panels.depth_bar(figure, grid[0], panels.logged(results, "sm-scfuffni-7", "entropy").shape[1] or 12)
    figure.colorbar(ScalarMappable(norm, ENTROPY), ax=grid[1], label="entropy, nats", pad=0.01)
    return figure


def figure_18(results: Results) -> Figure:
    printed = load("aero").facts["figures"]["18"]["fractions"].values()
    edges = [(run, 1 - value) for run, value in zip(MARGINS, printed, strict=True)]
    return panels.quarter_bars(results, MARGINS, MAXIMA, edges)


MAXIMA = ("observed", "causal_bound")
figure_5 = partial(panels.heatmaps, runs=("sm-ln-g", "sm-ln-r", "sm-g", "sm-r"), height=1.4)
figure_7 = partial(panels.heatmaps, runs=STABILISED, height=1.7)
figure_9 = partial(panels.quarter_bars, runs=WITH_REGULARISED)
figure_12 = partial(panels.over_training, runs=TABLE_2_RUNS)
LEAKY = {"sm-leakyr": "one slope per layer", "sm-leakyr-global": "one slope for all layers"}
figure_13 = partial(panels.over_training, runs=LEAKY, rows=1, height=1.5)
figure_14 = partial(panels.over_training, runs=WITH_REGULARISED, rows=1, height=1.25)
figure_16 = partial(panels.quarter_bars, runs=PRUNED, maxima=MAXIMA)
figure_19 = partial(panels.over_training, runs=dict(list(MARGINS.items())[:-1]))
guided_figure_2 = partial(panels.heatmaps, runs=TABLE_2_RUNS, height=1.9)
guided_figure_4 = partial(panels.over_training, runs={"sm-ln-g": "SM+LN+G", "sm": "SM"} | WITH_REGULARISED)
guided_table_3 = partial(perplexities, address="entropy_guided/table3")


def temperatures(results: Results) -> Figure:
    """Learned temperatures with and without the regulariser: by head, and by layer and query position."""
    figure, grid = subplots(len(TEMPERATURE_RUNS), 2, height=2.9, width_ratios=(1, 2.2))
    for run, row in zip(TEMPERATURE_RUNS, grid, strict=True):
        for panel, name in zip(row, ("temperature_mean", "temperature_by_position"), strict=True):
            panel.set_title(notation(results, run))
            values = panels.learned(results.first(run), name)  # (L, H) or (L, T)
            if values is None:
                no_data(panel, "not measured")
                continue
            reach = np.nanmax(np.abs(values))
            mesh = panel.pcolormesh(values, cmap=SIGNED, norm=Normalize(-reach, reach), edgecolors="face")
            panel.set_yticks(np.array(panels.layer_ticks(len(values))) - 0.5, panels.layer_ticks(len(values)))
            panel.set_xlabel("head" if name == "temperature_mean" else "query position")
            figure.colorbar(mesh, ax=panel, label="mean t", pad=0.01)
        row[0].set_ylabel("layer")
    return figure


def temperature_lines(results: Results) -> list[dict[str, object]]:
    """Learned temperatures of every run that has them at the scale of `evidence`, for
    reports/tables/learned_temperatures.csv.

    One line a run, seed, layer and head (mean over query positions), and one a layer ("mean" over heads) with its
    lowest and highest position and the share of positions below 0.
    """
    lines: list[dict[str, object]] = []
    results = statistics.evidence(results)
    for name, entry in results.parameters.runs.items():
        if parse(entry.architecture).temperature:
            common = {"run": name, "architecture": entry.architecture, "scale": results.scale}
            seeds = results.seeds(name)
            lines += [common | {"seed": one.seed} | line for one in seeds for line in _temperatures(one)]
            if not seeds:
                lines.append(common | {"note": "not run yet"})
    return lines


def _temperatures(trained: Run) -> Iterator[dict[str, object]]:
    by_head, by_position = (panels.learned(trained, f"temperature_{name}") for name in ("mean", "by_position"))
    if by_head is None:
        yield {"note": "temperatures not stored"}
        return
    for layer, (heads_, positions) in enumerate(zip(by_head, by_position, strict=True), start=1):
        for head, value in enumerate(heads_, start=1):
            yield {"layer": layer, "head": head, "temperature": f"{value:.6g}"}
        values = {"temperature": math.fsum(heads_) / len(heads_), "lowest": positions.min()}
        values |= {"highest": positions.max(), "share_below_0": np.mean(positions < 0)}
        yield {"layer": layer, "head": "mean"} | {key: f"{value:.6g}" for key, value in values.items()}


# Entropy-Guided Attention ------------------------------------------------------------------------------------------


def parts(results: Results) -> pd.DataFrame:
    """What temperature and regulariser do to the perplexity of SM+ScFuFFN, apart and together, paired by seed. Failed
    trainings are left out."""
    lines = []
    for run, name in PARTS.items():
        own, found = estimate(statistics.trained(results, run)), change(results, run, "sm-scfuffn").estimate
        lines.append(
            {
                "added to SM+ScFuFFN": name,
                "perplexity": f"{own.mean:.2f}" if own else "–",
                "change, %": found.text(1, signed=True) if found and run != "sm-scfuffn" else "–",
                "seeds": statistics.seed_count(results, run),
            }
        )
    return pd.DataFrame(lines)


def finetuned(results: Results) -> pd.DataFrame:
    """A pretrained model before and after a short fine-tuning, by the weight of the penalty."""
    return pd.DataFrame(
        {
            "training": f"λ = {float(line['lambda']):g}" if line["lambda"] else "none",
            "tokens": line["tokens"] or "0",
            "perplexity": f"{float(line['perplexity']):.2f}",
            "entropy / bound": f"{float(line['entropy']):.3f}",
            "overloaded, %": f"{100 * float(line['overloaded']):.1f}",
            "collapsed, %": f"{100 * float(line['collapsed']):.1f}",
        }
        for line in read_csv(results.root / "results/bench/finetune.csv")
    )
