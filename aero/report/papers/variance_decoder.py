"""Variance Sensitivity: the attention cores in a decoder while it trains (Figures 1 top, 4 and 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.attention_kernels import core_named
from aero.report.papers.variance_sensitivity import COLOURS, core_legend, line_style, short_name, sweep
from aero.report.results import Results, Run
from aero.report.statistics import estimate
from aero.report.style import GRID, MUTED, no_data, subplots
from aero.sensitivity import theory
from aero.sensitivity.conclusions import SOFTMAX_BASED
from aero.sensitivity.search import read
from aero.sensitivity.setting import TOKENS

HOT, HOT_SCALE = "-hot", "laptop"
"""Runs whose learning rate is proportional to the width, at scale HOT_SCALE only; other scales leave them out."""
RATES = {"": "printed rate", HOT: "rate by width"}
"""Suffix of the runs, and their learning rate in words."""
COMPARED = ("softmax", "relu", "qk_layernorm")
OTHERS = ("window_softmax", "sigma_reparam", "sigmoid", "elu")
LARGEST_VARIANCE = 1e6
"""Figure 4 shows larger variances of logits at its edge: the last steps before a divergence pass 1e30."""


def run_name(core: str, suffix: str) -> str:
    """The run of an attention core, such as "core-qk-layernorm-hot"."""
    return f"core-{core.replace('_', '-')}{suffix}"


RUNS = tuple(run_name(core, suffix) for suffix in RATES for core in COMPARED) + tuple(
    run_name(core, HOT) for core in OTHERS
)
"""Every run of this module at scale HOT_SCALE."""


def left_out(results: Results, run: str) -> str:
    """Why a run is not shown or judged at the report's scale, "" if it is."""
    if not run.endswith(HOT) or results.scale == HOT_SCALE:
        return ""
    return f"{run}: its rate is in proportion to width at scale {HOT_SCALE} only, not at {results.scale}"


def seeds_of(results: Results, run: str) -> tuple[Run, ...]:
    """The seeds of a run, none if it is left out."""
    return () if left_out(results, run) else results.seeds(run)


def series(run: Run, column: str) -> tuple[list[int], list[float]]:
    """Steps and values of a logged column; of `entropy`, `norm` and `variance` the mean over layers."""
    names = [column]
    if column in ("entropy", "norm", "variance"):
        names = [name for name in run.curves if name.startswith(f"{column}_layer_")]
    steps, values = [], []
    for step, *found in zip(run.curves.get("step", ()), *(run.curves.get(name, ()) for name in names), strict=False):
        present = [value for value in found if value is not None]
        if present:
            steps.append(int(step))
            values.append(fmean(present))
    return steps, values


def last(results: Results, run: str, column: str) -> dict[int, float]:
    """The last logged value of a column, by seed."""
    return _by_seed(results, run, column, lambda steps, values: values[-1])


def change(results: Results, run: str, column: str) -> dict[int, float]:
    """The last logged value minus the first, by seed."""
    return _by_seed(results, run, column, lambda steps, values: values[-1] - values[0])


def late_mean(results: Results, run: str, column: str) -> dict[int, float]:
    """Mean of a column over the second half of training, by seed."""
    return _by_seed(
        results,
        run,
        column,
        lambda steps, values: fmean(v for step, v in zip(steps, values, strict=True) if step >= steps[-1] / 2),
    )


def _by_seed(
    results: Results, run: str, column: str, of: Callable[[list[int], list[float]], float]
) -> dict[int, float]:
    found = {trained.seed: series(trained, column) for trained in results.seeds(run)}
    return {seed: of(steps, values) for seed, (steps, values) in found.items() if values}


def table_decoder(results: Results) -> pd.DataFrame:
    """Evaluation loss, gradient norm, entropy and ||P||_F of every core at the end of training."""
    rows = []
    for suffix, words in RATES.items():
        for core in COMPARED + OTHERS:
            name = run_name(core, suffix)
            if not (seeds := seeds_of(results, name)):
                continue
            failed = sum(run.diverged for run in seeds)
            quantities = {
                "evaluation loss, nats": ({run.seed: run.loss for run in seeds if not run.diverged}, 3),
                "gradient norm, 2nd half": (late_mean(results, name, "gradient_norm"), 3),
                "entropy, change": (change(results, name, "entropy"), 2),
                "‖P‖_F, end": (last(results, name, "norm"), 2),
            }
            row = {"core": core_named(core).title, "learning rate": words}
            for column, (values, digits) in quantities.items():
                found = estimate(values)
                row[column] = found.text(digits) if found else "–"
            if failed:
                row["evaluation loss, nats"] += f" ({failed} of {len(seeds)} diverged)"
            rows.append(row)
    return pd.DataFrame(rows)


def figure_1_top(results: Results) -> Figure:
    """Loss, gradient norm, entropy and ||P||_F of three cores in the decoder over training."""
    return _training(results, COMPARED, "entropy")


def figure_7(results: Results) -> Figure:
    """The same of softmax and the ReLU kernel, with the entropy of the first layer alone."""
    return _training(results, ("softmax", "relu"), "entropy_layer_0")


def _training(results: Results, cores: Sequence[str], entropy: str) -> Figure:
    columns = {"train_loss": "training loss", "gradient_norm": "gradient norm"}
    columns |= {entropy: "attention entropy" if entropy == "entropy" else "entropy, first layer"}
    columns |= {"norm": "‖P‖ (Frobenius)"}
    figure, panels = subplots(len(RATES), len(columns), height=3.9)
    for row, (suffix, words) in zip(panels, RATES.items(), strict=True):
        trained = {core: seeds_of(results, run_name(core, suffix)) for core in cores}
        contexts = [run.metrics["context"] for runs in trained.values() for run in runs]
        row[0].set_ylabel(words)
        for panel, (column, title) in zip(row, columns.items(), strict=True):
            panel.set_title(title, fontsize=8.5)
            panel.grid(color=GRID)
            for core, runs in trained.items():
                _mean_and_range(panel, [series(run, column) for run in runs], line_style(core))
            if not contexts:
                no_data(panel, "not at this scale" if left_out(results, suffix) else "not measured")
            elif column == "gradient_norm":
                panel.set_yscale("log")
            elif column != "train_loss":
                _bounds(panel, column, contexts[0])
    for panel in panels[-1]:
        panel.set_xlabel("step")
    core_legend(figure, {core: short_name(core) for core in cores})
    return figure


def _mean_and_range(panel: Axes, curves: Sequence[tuple[list[int], list[float]]], line: dict[str, str]) -> None:
    """Mean and range of seeds at their common steps."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return
    steps = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    values = np.array([[dict(zip(*curve, strict=True))[step] for step in steps] for curve in curves])
    panel.plot(steps, values.mean(0), **line, linewidth=1.2)
    panel.fill_between(steps, values.min(0), values.max(0), color=line["color"], alpha=0.2, linewidth=0)


def _bounds(panel: Axes, column: str, context: int) -> None:
    """The paper's lines (dotted) at log N, 1 and sqrt(N), and what causal rows can reach (dashed)."""
    keys = theory.visible_keys("causal", context)
    least, greatest = theory.norm_range(keys)
    norm = column == "norm"
    printed, causal = ((1.0, greatest), least) if norm else ((math.log(context),), theory.entropy_maximum(keys))
    for value in printed:
        panel.axhline(value, color=MUTED, linewidth=0.8, linestyle=":")
    panel.axhline(causal, color=MUTED, linewidth=0.8, linestyle="--")
    panel.set_ylim(0, printed[-1] * 1.05)


def figure_4(results: Results) -> Figure:
    """Normalised entropy H / (log N - H) (Eq. 8) against the variance of the logits while training."""
    points: dict[str, Mapping[str, list[tuple[float, float]]]] = {"small model": _of_small_model(results)}
    points |= {f"decoder, {words}": _of_decoders(results, suffix) for suffix, words in RATES.items()}
    figure, panels = subplots(1, len(points), height=3.0, sharey=True)
    for panel, (title, found) in zip(panels, points.items(), strict=True):
        panel.set_title(title, fontsize=8.5)
        if not found:
            no_data(panel, "not measured")
            continue
        for core, pairs in found.items():
            variances, entropies = np.array(pairs).T
            marker, colour = "o" if core in SOFTMAX_BASED else "v", COLOURS[core]
            panel.scatter(
                np.minimum(variances, LARGEST_VARIANCE), entropies, s=9, alpha=0.6, linewidth=0, c=colour, marker=marker
            )
        panel.set(xscale="log", yscale="log", xlabel="variance of the logits")
        panel.grid(color=GRID)
    panels[0].set_ylabel("H / (log N − H)")
    core_legend(figure, {core: short_name(core) for core in COMPARED + OTHERS})
    return figure


def _of_small_model(results: Results) -> dict[str, list[tuple[float, float]]]:
    """Variance and normalised entropy of the small model at every plotted step, by core."""
    measured, found = sweep(results), {}
    for line in read(results.root / measured.folder / "traces.csv") if measured else []:
        if line["core"] in COMPARED + OTHERS and line.get("variance") and line["entropy"]:
            point = float(line["variance"]), _normalised(float(line["entropy"]), TOKENS)
            if min(point) > 0:
                found.setdefault(line["core"], []).append(point)
    return found


def _of_decoders(results: Results, suffix: str) -> dict[str, list[tuple[float, float]]]:
    """The same of the decoder at every evaluation."""
    found: dict[str, list[tuple[float, float]]] = {}
    for core in COMPARED + OTHERS:
        for run in seeds_of(results, run_name(core, suffix)):
            variances, entropies = (series(run, name)[1] for name in ("variance", "entropy"))
            pairs = [(v, _normalised(h, run.metrics["context"])) for v, h in zip(variances, entropies, strict=False)]
            if pairs:
                found.setdefault(core, []).extend(pairs)
    return found


def _normalised(entropy: float, positions: int) -> float:
    """H / (log N - H), Eq. 8."""
    return entropy / (math.log(positions) - entropy)
