"""Variance Sensitivity: attention cores in the decoder, over training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.report.papers.panels import mean_and_range
from aero.report.papers.variance_sensitivity import COLOURS, core_legend, line_style, sweep
from aero.report.results import Results
from aero.report.show import GRID, MUTED, no_data, subplots
from aero.sensitivity import theory
from aero.sensitivity.metric import ORDER, SOFTMAX_BASED
from aero.sensitivity.setting import TOKENS

COMPARED = ("softmax", "relu", "qk_layernorm")


def run_name(core: str) -> str:
    """The run of an attention core, such as "core-qk-layernorm"."""
    return f"core-{core.replace('_', '-')}"


def last(results: Results, run: str, column: str) -> dict[int, float]:
    """The last logged value of a column, by seed."""
    return _by_seed(results, run, column, lambda values: values.iloc[-1])


def change(results: Results, run: str, column: str) -> dict[int, float]:
    """The last logged value minus the first, by seed."""
    return _by_seed(results, run, column, lambda values: values.iloc[-1] - values.iloc[0])


def late_mean(results: Results, run: str, column: str) -> dict[int, float]:
    """Mean of a column over the second half of training, by seed."""
    return _by_seed(results, run, column, lambda values: values[values.index >= values.index[-1] / 2].mean())


def _by_seed(results: Results, run: str, column: str, of: Callable[[pd.Series], float]) -> dict[int, float]:
    found = {trained.seed: trained.series(column) for trained in results.seeds(run)}
    return {seed: float(of(values)) for seed, values in found.items() if len(values)}


def _training(results: Results, cores: Sequence[str], entropy: str, title: str) -> Figure:
    """Loss, gradient norm, entropy and ||P||_F of some cores in the decoder over training."""
    columns = {
        "train_loss": "training loss",
        "gradient_norm": "gradient norm",
        entropy: title,
        "norm": "‖P‖ (Frobenius)",
    }
    figure, panels = subplots(1, len(columns), height=1.7)
    trained = {core: results.seeds(run_name(core)) for core in cores}
    contexts = [run.metrics["context"] for runs in trained.values() for run in runs]
    for panel, (column, name) in zip(panels, columns.items(), strict=True):
        panel.set_title(name)
        panel.grid(color=GRID)
        for core, runs in trained.items():
            mean_and_range(panel, [run.series(column) for run in runs], **line_style(core), linewidth=1.2)
        if not contexts:
            no_data(panel, "not measured")
        elif column == "gradient_norm":
            panel.set_yscale("log")
        elif column != "train_loss":
            _bounds(panel, column, contexts[0])
    setp(panels, xlabel="step")
    core_legend(figure, cores)
    return figure


figure_1_top = partial(_training, cores=COMPARED, entropy="entropy", title="attention entropy")
figure_7 = partial(_training, cores=("softmax", "relu"), entropy="entropy_layer_0", title="entropy, first layer")


def _bounds(panel: Axes, column: str, context: int) -> None:
    """The paper's lines (dotted) at log N, 1 and sqrt(N), and what causal rows can reach (dashed)."""
    keys = theory.visible_keys("causal", context)
    printed, causal = [math.log(context)], theory.entropy_maximum(keys)
    if column == "norm":
        causal, greatest = theory.norm_range(keys)
        printed = [1.0, greatest]
    for value in printed:
        panel.axhline(value, color=MUTED, linewidth=0.8, linestyle=":")
    panel.axhline(causal, color=MUTED, linewidth=0.8, linestyle="--")
    panel.set_ylim(0, printed[-1] * 1.05)


def figure_4(results: Results) -> Figure:
    """Normalised entropy H / (log N - H) (Eq. 8) against the variance of the logits while training."""
    points = {"small model": _of_small_model(results), "decoder": _of_decoders(results)}
    figure, panels = subplots(1, len(points), height=2.2, sharey=True)
    for panel, (title, found) in zip(panels, points.items(), strict=True):
        panel.set_title(title)
        if not found:
            no_data(panel, "not measured")
            continue
        for core, pairs in found.items():
            look = {"c": COLOURS[core], "marker": "o" if core in SOFTMAX_BASED else "v", "alpha": 0.6, "linewidth": 0}
            # The last steps before a divergence pass 1e30; they are at the edge.
            panel.scatter(pairs["variance"].clip(upper=1e6), pairs["entropy"], s=9, **look)
        panel.set(xscale="log", yscale="log", xlabel="variance of the logits")
        panel.grid(color=GRID)
    panels[0].set_ylabel("H / (log N − H)")
    core_legend(figure, ORDER)
    return figure


def _of_small_model(results: Results) -> dict[str, pd.DataFrame]:
    """Variance and normalised entropy of the small model at every second plotted step, by core."""
    measured = sweep(results)
    if measured is None:
        return {}
    frame = pd.read_csv(results.root / measured.folder / "traces.csv")
    frame["entropy"] = _normalised(frame["entropy"], TOKENS)
    shown = frame["core"].isin(ORDER) & (frame["variance"] > 0) & (frame["entropy"] > 0)
    return dict(iter(frame[shown][::2].groupby("core", sort=False)))


def _of_decoders(results: Results) -> dict[str, pd.DataFrame]:
    """The same of the decoder at every evaluation."""
    found: dict[str, list[pd.DataFrame]] = {}
    for core in COMPARED:
        for run in results.seeds(run_name(core)):
            entropy = _normalised(run.series("entropy"), run.metrics["context"])
            found.setdefault(core, []).append(pd.DataFrame({"variance": run.series("variance"), "entropy": entropy}))
    return {core: pd.concat(frames) for core, frames in found.items()}


def _normalised(entropy: pd.Series, positions: int) -> pd.Series:
    """H / (log N - H), Eq. 8."""
    return entropy / (math.log(positions) - entropy)
