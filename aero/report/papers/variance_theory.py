"""Variance Sensitivity: theory printed, derived (docs/variance_sensitivity.md) and drawn; cores in a decoder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aero.report.papers.variance_sensitivity import COLOURS, FOLDERS, core_legend, line_style, short_name, sweep
from aero.report.results import Results, Run
from aero.report.show import GRID, MUTED, no_data, subplots
from aero.sensitivity import theory
from aero.sensitivity.metric import SOFTMAX_BASED
from aero.sensitivity.setting import TOKENS

POSITION_COLOURS = {2: "#8a6d3b", 20: "#009e73", 200: "#0072b2", 768: "#cc79a7"}


@dataclass(frozen=True)
class TheoryResults:
    """theory.json, and the tables of theory.jsonl by name."""

    folder: Path
    summary: dict[str, Any]
    tables: dict[str, pd.DataFrame]

    def frame(self, table: str, **where: object) -> pd.DataFrame:
        """The rows of a table whose columns have the given values."""
        found = self.tables[table]
        return found[(found[list(where)] == pd.Series(where)).all(axis=1)]


def load_theory(root: Path) -> TheoryResults | None:
    """Fresh results of the stage, else the committed ones; None if there are none."""
    folder = next((folder for folder in map(Path, FOLDERS) if (root / folder / "theory.json").is_file()), None)
    if folder is None:
        return None
    tables: dict[str, list[dict[str, Any]]] = {}
    for text in (root / folder / "theory.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        tables.setdefault(line.pop("table"), []).append(line)
    summary = json.loads((root / folder / "theory.json").read_text(encoding="utf-8"))
    return TheoryResults(folder, summary, {name: pd.DataFrame(lines) for name, lines in tables.items()})


def with_error(mean: float, error: float) -> str:
    """A mean with its standard error in brackets, to two digits of the error: "-0.3786(12)"."""
    if not error > 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f}({error * 10**digits:.0f})"


# Figures --------------------------------------------------------------------------------------------------------------


def figure_expansion(results: Results) -> Figure:
    """Theorem 5.1 against draws: entropy and its derivative over sigma, for several N."""
    found = load_theory(results.root)
    figure, panels = subplots(1, 2, height=2.3)
    if found is None:
        return _empty(figure)
    for n, colour in POSITION_COLOURS.items():
        drawn, curve = found.frame("softmax", positions=n), found.frame("curves", positions=n)
        for panel, exact, printed in zip(panels, ("entropy", "slope"), ("expansion_2", "theorem_slope"), strict=True):
            panel.plot(curve["sigma"], curve[exact], color=colour)
            panel.plot(curve["sigma"], curve[printed], color=colour, linewidth=0.9, linestyle="--")
            errors = 2 * drawn[f"{exact}_error"]
            panel.errorbar(drawn["sigma"], drawn[exact], errors, fmt="o", markersize=3.4, color=colour, capsize=1.5)
    panels[0].set(title="E[H], nats", ylim=(-0.6, math.log(768) + 0.7))
    panels[1].set(title="∂E[H]/∂σ²", ylim=(-1.5, 0.05))
    for panel in panels:
        panel.set_xlabel("σ, standard deviation of the logits")
        panel.grid(color=GRID)
    handles = [Line2D([], [], color=colour, label=f"N = {n}") for n, colour in POSITION_COLOURS.items()]
    handles.append(Line2D([], [], color=MUTED, marker="o", linestyle="", label="drawn"))
    handles.append(Line2D([], [], color=MUTED, label="exact"))
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="Theorem 5.1"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return figure


def figure_3_left(results: Results) -> Figure:
    """Figure 3, left: attention weights of one query at sigma = 1, 2, 4, 8, softmax and ReLU kernel."""
    found = load_theory(results.root)
    figure, panels = subplots(2, 4, height=2.7, sharex=True, sharey=True)
    if found is None:
        return _empty(figure)
    for row, core in zip(panels, ("softmax", "relu"), strict=True):
        for panel, sigma in zip(row, (1.0, 2.0, 4.0, 8.0), strict=True):
            weights = found.frame("weights", core=core, sigma=sigma)["weight"]
            panel.hist(np.maximum(weights, 1e-6), bins=np.logspace(-6, 0, 19), color=COLOURS[core])
            entropy = found.frame("controlled", core=core, sigma=sigma)["entropy"].item()
            panel.set_title(f"σ = {sigma:g}, H = {entropy:.2f}", fontsize=8, fontweight="normal")
            panel.set_xscale("log")
        row[0].set_ylabel(f"{short_name(core)}, keys")
    for panel in panels[1]:
        panel.set_xlabel("attention weight")
    return figure


def figure_3_right(results: Results) -> Figure:
    """Figure 3, right: entropy and its rate of change over the variance of the keys, which is that of the logits."""
    found = load_theory(results.root)
    figure, panels = subplots(1, 2, height=2.0)
    if found is None:
        return _empty(figure)
    settings = found.summary["settings"]["controlled"]
    cores = {core: core.removesuffix("_fixed") for core in settings["cores"]}
    for core, coloured in cores.items():
        frame = found.frame("controlled", core=core)
        squares, entropies = frame["sigma"].to_numpy() ** 2, frame["entropy"].to_numpy()
        panels[0].plot(squares, entropies, **line_style(coloured))
        rate, middle = np.diff(entropies) / np.diff(squares), np.sqrt(squares[1:] * squares[:-1])
        panels[1].plot(middle, rate, **line_style(coloured), marker="o", markersize=2.5)
    panels[0].axhline(math.log(settings["positions"]), color=MUTED, linewidth=0.8, linestyle=":")
    panels[0].set(title="entropy, nats (dotted: log N)", ylim=(0, None))
    panels[1].set_title("ΔH / Δσ²")
    for panel in panels:
        panel.set(xscale="log", xlabel="σ² of the keys")
        panel.grid(color=GRID)
    core_legend(figure, {core: short_name(core) for core in cores.values()})
    return figure


def figure_10(results: Results) -> Figure:
    """Entropy and l2 norm of Dirichlet rows, between the bounds that hold for every row."""
    found = load_theory(results.root)
    figure, panel = subplots(height=2.0)
    if found is None:
        return _empty(figure)
    size = int(found.summary["settings"]["dirichlet"]["positions"])
    entropies = np.linspace(0, math.log(size), 200)
    low, high = zip(*((theory.least_row_norm(h), theory.greatest_row_norm(h, size)) for h in entropies), strict=True)
    panel.fill_between(entropies, low, high, color=GRID, alpha=0.6, linewidth=0, label="possible")
    for line, colour in zip(found.summary["dirichlet"], ("#0072b2", "#d55e00", "#009e73"), strict=False):
        rows = found.frame("dirichlet", alpha=line["alpha"])
        label = f"α = {line['alpha']:g}, correlation {line['correlation']:.2f}"
        panel.scatter(rows["entropy"], rows["norm"], s=6, color=colour, alpha=0.6, linewidth=0, label=label)
    panel.axvline(math.log(size), color=MUTED, linewidth=0.8, linestyle=":")
    panel.set(xlabel=f"entropy of a row over N = {size} keys, nats (dotted: log N)", ylabel="ℓ₂ norm", ylim=(0, 1.03))
    panel.legend(frameon=False)
    panel.grid(color=GRID)
    return figure


def _empty(figure: Figure) -> Figure:
    for panel in figure.axes:
        no_data(panel, "not measured")
    return figure


# Attention cores in the decoder --------------------------------------------------------------------------------------

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


def series(run: Run, column: str) -> pd.Series:
    """A logged column by step, without its gaps; of `entropy`, `norm` and `variance` the mean over layers."""
    names = [name for name in run.curves if name.startswith(f"{column}_layer_")] or [column]
    values = {name: run.curves[name] for name in names if name in run.curves}
    return pd.DataFrame(values, index=run.curves.get("step", []), dtype=float).mean(axis=1).dropna()


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
    found = {trained.seed: series(trained, column) for trained in results.seeds(run)}
    return {seed: float(of(values)) for seed, values in found.items() if len(values)}


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
    figure, panels = subplots(len(RATES), len(columns), height=3.0)
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


def _mean_and_range(panel: Axes, curves: Sequence[pd.Series], line: dict[str, str]) -> None:
    """Mean and range of seeds at their common steps."""
    if curves := [curve for curve in curves if len(curve)]:
        values = pd.concat(curves, axis=1, join="inner")
        panel.plot(values.index, values.mean(axis=1), **line, linewidth=1.2)
        low, high = values.min(axis=1), values.max(axis=1)
        panel.fill_between(values.index, low, high, color=line["color"], alpha=0.2, linewidth=0)


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
    points = {"small model": _of_small_model(results)}
    points |= {f"decoder, {words}": _of_decoders(results, suffix) for suffix, words in RATES.items()}
    figure, panels = subplots(1, len(points), height=2.2, sharey=True)
    for panel, (title, found) in zip(panels, points.items(), strict=True):
        panel.set_title(title, fontsize=8.5)
        if not found:
            no_data(panel, "not measured")
            continue
        for core, pairs in found.items():
            look = {"c": COLOURS[core], "marker": "o" if core in SOFTMAX_BASED else "v", "alpha": 0.6, "linewidth": 0}
            panel.scatter(pairs["variance"].clip(upper=LARGEST_VARIANCE), pairs["entropy"], s=9, **look)
        panel.set(xscale="log", yscale="log", xlabel="variance of the logits")
        panel.grid(color=GRID)
    panels[0].set_ylabel("H / (log N − H)")
    core_legend(figure, {core: short_name(core) for core in COMPARED + OTHERS})
    return figure


def _of_small_model(results: Results) -> dict[str, pd.DataFrame]:
    """Variance and normalised entropy of the small model at every second plotted step, by core."""
    measured = sweep(results)
    if measured is None:
        return {}
    frame = pd.read_csv(results.root / measured.folder / "traces.csv")
    frame["entropy"] = _normalised(frame["entropy"], TOKENS)
    shown = frame["core"].isin(COMPARED + OTHERS) & (frame["variance"] > 0) & (frame["entropy"] > 0)
    return dict(iter(frame[shown][::2].groupby("core", sort=False)))


def _of_decoders(results: Results, suffix: str) -> dict[str, pd.DataFrame]:
    """The same of the decoder at every evaluation."""
    found: dict[str, pd.DataFrame] = {}
    for core in COMPARED + OTHERS:
        for run in seeds_of(results, run_name(core, suffix)):
            entropy = _normalised(series(run, "entropy"), run.metrics["context"])
            frame = pd.DataFrame({"variance": series(run, "variance"), "entropy": entropy})
            found[core] = pd.concat([found[core], frame]) if core in found else frame
    return found


def _normalised(entropy: pd.Series, positions: int) -> pd.Series:
    """H / (log N - H), Eq. 8."""
    return entropy / (math.log(positions) - entropy)
