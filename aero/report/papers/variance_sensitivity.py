"""Variance Sensitivity: Table 1 and the figures of the paper's small model."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from aero.attention_kernels import CORES
from aero.published import load
from aero.records import csv_text
from aero.report.papers.panels import line_legend
from aero.report.results import Results
from aero.report.show import MUTED, drawn_of, not_measured, subplots
from aero.report.statistics import CONFIDENCE, Estimate, estimate
from aero.report.tables import COLUMNS, csv_line
from aero.sensitivity.metric import TRAINS, clipped, sensitivity, sensitivity_clipped_after, sensitivity_of_means
from aero.sensitivity.setting import LAYERS, TOKENS, Setting
from aero.sensitivity.sweep import shown_rate

PAPER = "variance_sensitivity"
FOLDERS = ("runs/sensitivity", "results/sensitivity")
MAIN = ("softmax", "window_softmax", "qk_layernorm", "relu")
OTHERS = ("sigma_reparam", "elu", "sigmoid")
GAINS = {
    "qk_layernorm_gradient_clip": "clipped gradient",
    "qk_layernorm_free": "γ free",
    "qk_layernorm_fixed": "γ = 1",
    "qk_layernorm": "clipped γ",
}
COLOURS = {
    "softmax": "#d55e00",
    "window_softmax": "#e69f00",
    "sigma_reparam": "#cc79a7",
    "qk_layernorm": "#009e73",
    "relu": "#0072b2",
    "elu": "#56b4e9",
    "sigmoid": "#8a6d3b",
    "qk_layernorm_gradient_clip": "#cc79a7",
    "qk_layernorm_free": "#d55e00",
    "qk_layernorm_fixed": "#0072b2",
}
"""One colour a core in all figures of the paper, warm for the softmax-based ones."""
SOLID = ("softmax", "window_softmax", "sigma_reparam", "qk_layernorm_free", "qk_layernorm_gradient_clip")
LAYER_COLOURS = ("#2f6db3", "#56b4e9", "#7d8a97", "#c9971c", "#d55e00")


@dataclass(frozen=True)
class Sweep:
    """Final losses (R, K) and l_0 (K,) by core, for R learning rates and K seeds.

    zero: losses (K,) of predicting 0 on the same sequences. about: sweep.json.
    """

    folder: str
    about: dict[str, Any]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    final: dict[str, Tensor]
    initial: dict[str, Tensor]
    zero: Tensor

    @property
    def scale(self) -> str:
        return str(self.about["scale"])

    @property
    def setting(self) -> Setting:
        return Setting(**{field.name: self.about["setting"][field.name] for field in fields(Setting)})

    def sensitivities(self, core: str) -> dict[int, float]:
        """By seed, each with its own l*."""
        values = sensitivity(self.final[core], self.initial[core])
        return dict(zip(self.seeds, values.tolist(), strict=True))

    def estimate(self, core: str) -> Estimate | None:
        return estimate(self.sensitivities(core))

    def of_means(self, core: str) -> float:
        """Sensitivity of losses clipped and then averaged over seeds (Section 4.3, Figure 2)."""
        return sensitivity_of_means(self.final[core], self.initial[core])

    def clipped_after(self, core: str) -> float:
        """The same, averaged and then clipped: the paper does not print the order."""
        return sensitivity_clipped_after(self.final[core], self.initial[core])

    def estimate_of_means(self, core: str) -> Estimate:
        """`of_means` with a 95 % bootstrap interval over all K^K resamples of seeds; too narrow for five seeds."""
        final, initial, count = self.final[core], self.initial[core], len(self.seeds)
        if count == 1:
            return Estimate(self.of_means(core), None, None, self.seeds)
        draws = [sorted(draw) for draw in itertools.product(range(count), repeat=count)]
        means = clipped(final, initial)[:, draws].mean(-1)  # (R, number of draws)
        values = (means - means.min(0).values).mean(0).numpy()
        tails = (0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2)
        low, high = np.quantile(values, tails, method="inverted_cdf").tolist()
        return Estimate(self.of_means(core), low, high, self.seeds)

    def training_rates(self, core: str) -> float:
        """Learning rates that train, of R, the mean over seeds: final loss below half of that of predicting 0."""
        return (self.final[core] < TRAINS * self.zero).sum(0).double().mean().item()


@functools.cache
def sweep(results: Results) -> Sweep | None:
    """The fresh sweep if it is of the report's scale, else the committed one; None if there is none."""
    paths = {folder: results.root / folder / "sweep.json" for folder in FOLDERS}
    found = {folder: json.loads(path.read_text(encoding="utf-8")) for folder, path in paths.items() if path.is_file()}
    if not found:
        return None
    folder = next((name for name, about in found.items() if about["scale"] == results.scale), list(found)[-1])
    lines = pd.read_csv(results.root / folder / "losses.csv", float_precision="round_trip").fillna(math.inf)
    rates, seeds = (tuple(lines[column].unique().tolist()) for column in ("rate", "seed"))
    final, initial, zero = {}, {}, torch.zeros(0)
    for core, own in lines.groupby("core", sort=False):
        losses = torch.from_numpy(own[["final_loss", "initial_loss", "zero_loss"]].to_numpy())
        final[core], untrained, zeros = losses.T.reshape(3, len(rates), len(seeds))
        initial[core], zero = untrained[0], zeros[0]
    return Sweep(folder, found[folder], rates, seeds, final, initial, zero)


def titles() -> dict[str, str]:
    """Title by core, those of the printed Table 1 first and in its order."""
    return {name: CORES[name].title for name in (*published(), *CORES)}


def published() -> dict[str, float]:
    """Table 1 by core."""
    by_title = {core.title: name for name, core in CORES.items()}
    return {by_title[row.name]: row.cells["sensitivity"].value for row in load(PAPER).tables["1"].rows}


# Tables ---------------------------------------------------------------------------------------------------------------


def table_1(results: Results) -> pd.DataFrame:
    """Table 1 with every core of the registry, the three ways to average over seeds beside each other."""
    measured, printed = sweep(results), published()
    rows = []
    for core, title in titles().items():
        row: dict[str, Any] = {"re-weighting function": title, "published": printed.get(core)}
        if measured is not None and core in measured.final:
            row |= {
                "measured": measured.estimate_of_means(core).text(),
                "averaged, then clipped": measured.clipped_after(core),
                "per seed, then averaged": measured.estimate(core).text(),
                f"rates that train, of {len(measured.rates)}": f"{measured.training_rates(core):.1f}",
            }
        rows.append(row)
    return pd.DataFrame(rows)


def files(results: Results) -> dict[Path, str]:
    """reports/tables/variance_sensitivity_table1.csv: three lines a core, one a way of averaging."""
    measured, printed = sweep(results), load(PAPER).tables["1"]
    cells = {row.name: row.cells["sensitivity"].text for row in printed.rows}
    lines = []
    for core, title in titles().items() if measured else ():
        after = Estimate(measured.clipped_after(core), None, None, measured.seeds)
        ways = {
            "sensitivity": ("losses clipped, averaged over seeds", measured.estimate_of_means(core)),
            "sensitivity clipped after": ("losses averaged over seeds, then clipped", after),
            "sensitivity of each seed": ("of each seed's losses, averaged", measured.estimate(core)),
        }
        for column, (note, one) in ways.items():
            value = cells.get(title, "") if column == "sensitivity" else ""
            named = title, column, value, f"{one.mean:.4f}", "loss", measured.scale
            more = "" if title in cells else "; not a row of the published table"
            lines.append(csv_line(*named, one, note + more, ".4f") | {"seeds": len(one.seeds)})
    return {Path("reports/tables") / f"{PAPER}_table1.csv": csv_text(COLUMNS, lines)}


# Figures --------------------------------------------------------------------------------------------------------------


def short_name(core: str) -> str:
    return CORES[core].title.replace("Window Softmax", "Window").replace(" Kernel", "")


def core_legend(figure: Figure, cores: Iterable[str], names: Mapping[str, str] | None = None) -> None:
    """One legend above all panels, by core; names: instead of the short ones."""
    line_legend(figure, {(names or {}).get(core) or short_name(core): line_style(core) for core in cores})


@drawn_of(sweep)
def _final_losses(results: Results, measured: Sweep, cores: Sequence[str]) -> Figure:
    """Clipped final loss over the learning rate: mean and range of seeds, and l_0."""
    figure, panel = subplots(height=2.0)
    for core in cores:
        losses, colour = clipped(measured.final[core], measured.initial[core]).numpy(), COLOURS[core]
        panel.fill_between(measured.rates, losses.min(1), losses.max(1), color=colour, alpha=0.15, linewidth=0)
        panel.plot(measured.rates, losses.mean(1), marker="o", markersize=2.5, **line_style(core))
        panel.axhline(measured.initial[core].mean().item(), linewidth=0.8, linestyle=":", color=colour)
    panel.set(xscale="log", ylim=(0, None), xlabel="learning rate", ylabel="final loss")
    panel.grid()
    core_legend(figure, cores)
    return figure


figure_2, figure_5 = (functools.partial(_final_losses, cores=cores) for cores in (MAIN, OTHERS))


def line_style(core: str) -> dict[str, str]:
    """Dashed for the entropy-stable cores, as in the paper."""
    return {"color": COLOURS[core], "linestyle": "-" if core in SOLID else "--"}


def first_seed(results: Results, name: str) -> dict[str, pd.DataFrame]:
    """traces.csv or gains.csv of the first seed, which the figures show, by core; empty without a sweep."""
    measured = sweep(results)
    if measured is None:
        return {}
    frame = pd.read_csv(results.root / measured.folder / name)
    return dict(iter(frame[frame["seed"] == measured.seeds[0]].groupby("core")))


def figure_11(results: Results) -> Figure:
    """Attention weights of the first layer until softmax diverges: softmax above, QK-LayerNorm below."""
    measured = sweep(results)
    path = results.root / (measured.folder if measured else "") / "maps.csv"
    if not path.is_file():
        return not_measured()
    figure, panels = subplots(2, 4, height=2.8, sharex=True, sharey=True)
    frame = pd.read_csv(path)
    for row, (core, own) in zip(panels, frame.groupby("core", sort=False), strict=False):
        steps = list(own.groupby("step"))
        for panel, (step, lines) in zip(row, [steps[0], *steps[-3:]], strict=False):
            weights = np.maximum(lines.filter(like="key_").to_numpy(), 1e-3)
            panel.pcolormesh(weights, cmap="cividis", norm=LogNorm(1e-3, 1), edgecolors="face")
            panel.invert_yaxis()
            panel.set(title=f"step {step}", xticks=[], yticks=[])
        row[0].set_ylabel(f"{short_name(core)}\nquery")
    setp(panels[-1], xlabel="key")
    figure.colorbar(ScalarMappable(LogNorm(1e-3, 1), "cividis"), ax=panels, label="weight", pad=0.01)
    return figure


@drawn_of(functools.partial(first_seed, name="traces.csv"))
def _over_training(
    results: Results, found: dict[str, pd.DataFrame], cores: Sequence[str], names: Mapping[str, str] | None = None
) -> Figure:
    """Loss, gradient norm, entropy and ||P||_F of the cores over training."""
    measured = sweep(results)
    figure, panels = subplots(1, 4, height=1.8)
    columns = {
        "loss": "loss",
        "gradient_norm": "gradient norm",
        "entropy": "entropy, nats",
        "frobenius": "‖P‖ (Frobenius)",
    }
    traces = {core: found[core] for core in cores}
    for panel, (column, title) in zip(panels, columns.items(), strict=True):
        panel.set(title=title, xlabel="step")
        panel.grid(axis="y")
        for core, own in traces.items():
            panel.plot(own["step"], own[column], linewidth=1.1, **line_style(core))
            if column == "entropy":
                low, high = own[column] - own["entropy_std"], own[column] + own["entropy_std"]
                panel.fill_between(own["step"], low, high, color=COLOURS[core], alpha=0.15, linewidth=0)
        _limits(panel, column)
        for core, own in traces.items():
            finite = own.dropna(subset=[column])
            if len(finite) and finite["step"].iloc[-1] < measured.setting.steps - 1:  # the training diverged
                last, top = finite.iloc[-1], panel.get_ylim()[1]
                mark = "^" if last[column] > top else "x"
                panel.plot(last["step"], min(last[column], top), mark, color=COLOURS[core], clip_on=False)
    core_legend(figure, cores, names)
    return figure


figure_1_bottom, figure_6 = (functools.partial(_over_training, cores=cores) for cores in (MAIN, OTHERS))
figure_8 = functools.partial(_over_training, cores=tuple(GAINS), names=GAINS)


def rate_of_figures(results: Results) -> float:
    """Learning rate of the trainings in the figures over training; NaN without a sweep."""
    found = sweep(results)
    return shown_rate(found.about) if found else math.nan


def _limits(panel: Axes, column: str) -> None:
    """Logarithmic axes for loss and gradient; the bounds of Proposition 5.3 for entropy and ||P||_F."""
    if column in ("loss", "gradient_norm"):
        panel.set_yscale("log")
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, 1e-3), min(high, 1e6))
        return
    bounds, low = ((math.log(TOKENS),), -0.05) if column == "entropy" else ((1.0, math.sqrt(TOKENS)), 0.5)
    for bound in bounds:
        panel.axhline(bound, color=MUTED, linewidth=0.8, linestyle=":")
    panel.set_ylim(low, 1.1 * bounds[-1])


@drawn_of(functools.partial(first_seed, name="gains.csv"))
def figure_9(results: Results, found: dict[str, pd.DataFrame]) -> Figure:
    """Norms of gamma, variance of logits and entropy of every layer, one row a treatment of gamma."""
    columns = {"gain_q": "‖γ_q‖", "gain_k": "‖γ_k‖", "variance": "variance of logits", "entropy": "entropy, nats"}
    figure, panels = subplots(len(GAINS), len(columns), height=4.6, sharex="row")
    for row, (core, words) in zip(panels, GAINS.items(), strict=True):
        for panel, column in zip(row, columns, strict=True):
            for layer, colour in enumerate(LAYER_COLOURS):
                own = found[core][found[core]["layer"] == layer]
                panel.plot(own["step"], own[column], color=colour, linewidth=1.0)
            panel.grid(axis="y")
        row[0].set_ylabel(words)
        row[2].set_yscale("log")
        row[3].axhline(math.log(TOKENS), color=MUTED, linewidth=0.8, linestyle=":")
        row[3].set_ylim(0, 1.08 * math.log(TOKENS))
    for panel, title in zip(panels[0], columns.values(), strict=True):
        panel.set_title(title)
    setp(panels[-1], xlabel="step")
    line_legend(figure, {f"layer {layer + 1}": {"color": LAYER_COLOURS[layer]} for layer in range(LAYERS)})
    return figure
