"""Figures 1 (bottom), 2, 5, 6, 8 and 9 of `variance_sensitivity`, each drawn from result files by its function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from aero.attention_kernels import CORES
from aero.report.drawing import INK, MUTED, WIDTH, say_missing, spread, style
from aero.report.results import Results
from aero.report.sensitivity import Line, Sweep, sweep
from aero.report.sensitivity_theory import CORE_COLOURS
from aero.sensitivity.metric import clipped
from aero.sensitivity.setting import LAYERS, TOKENS

COLOURS = CORE_COLOURS | {
    "qk_layernorm_free": "#d55e00",
    "qk_layernorm_gradient_clip": "#cc79a7",
    "qk_layernorm_fixed": "#0072b2",
}
"""Those of all figures of the paper, and one a treatment of gamma, which Figure 8 has beside each other."""
DASHED = {"relu", "qk_layernorm", "elu", "sigmoid", "relu_performer", "qk_layernorm_fixed"}
"""Entropy-stable cores are dashed, as in the paper."""
SHORT = {
    "sigma_reparam": "σReparam",
    "qk_layernorm_free": "no clipping",
    "qk_layernorm_gradient_clip": "gradient clipping",
    "qk_layernorm_fixed": "γ = 1",
}
MAIN = ("softmax", "window_softmax", "qk_layernorm", "relu")
OTHERS = ("sigma_reparam", "elu", "sigmoid")
GAINS = ("qk_layernorm_gradient_clip", "qk_layernorm_free", "qk_layernorm_fixed", "qk_layernorm")
_LAYER_COLOURS = ("#2f6db3", "#56b4e9", "#7d8a97", "#c9971c", "#d55e00")


def figure_2(results: Results) -> Figure:
    """Figure 2: final loss over the learning rate, Softmax, Window Softmax, QK-LayerNorm, ReLU kernel."""
    return _final_losses(sweep(results), MAIN)


def figure_5(results: Results) -> Figure:
    """Figure 5: the same for ELU+1, sigmoid and sigmaReparam."""
    return _final_losses(sweep(results), OTHERS)


def figure_1_bottom(results: Results) -> Figure:
    """Figure 1, bottom row: loss, gradient norm, entropy and ||P||_F over training."""
    return _behaviours(results, MAIN)


def figure_6(results: Results) -> Figure:
    """Figure 6: the same for ELU+1, sigmoid and sigmaReparam."""
    return _behaviours(results, OTHERS)


def figure_8(results: Results) -> Figure:
    """Figure 8: the same for QK-LayerNorm with gamma clipped in weight, in gradient, fixed and free."""
    return _behaviours(results, GAINS)


def figure_9(results: Results) -> Figure:
    """Figure 9: gamma_q, gamma_k, their product, logits' variance and entropy of every layer, a row a treatment."""
    lines = _first_seed(results, "gains.csv")
    panels_of = (
        ("‖γ_q‖", lambda line: float(line["gain_q"] or "nan")),
        ("‖γ_k‖", lambda line: float(line["gain_k"] or "nan")),
        ("‖γ_q‖ · ‖γ_k‖", lambda line: float(line["gain_q"] or "nan") * float(line["gain_k"] or "nan")),
        ("logits’ variance", lambda line: float(line["variance"] or "nan")),
        ("entropy, nats", lambda line: float(line["entropy"] or "nan")),
    )
    with style():
        figure = Figure(figsize=(WIDTH, 6.2))
        # A treatment that diverges ends within a few steps: each row has the length of its own training.
        panels = figure.subplots(len(GAINS), len(panels_of), squeeze=False, sharex="row")
        figure.subplots_adjust(left=0.07, right=0.98, top=0.9, bottom=0.07, wspace=0.42, hspace=0.42)
        for row, core in enumerate(GAINS):
            of_core = [line for line in lines if line["core"] == core]
            for column, (title, value) in enumerate(panels_of):
                panel = panels[row][column]
                if not of_core:
                    say_missing(panel, "not measured yet")
                    continue
                for layer in range(LAYERS):
                    of_layer = [line for line in of_core if int(line["layer"]) == layer]
                    panel.plot(
                        [int(line["step"]) for line in of_layer],
                        [value(line) for line in of_layer],
                        color=_LAYER_COLOURS[layer],
                        linewidth=1.0,
                    )
                if column == 3:
                    panel.set_yscale("log")
                    _plain(panel.yaxis)
                if column == 4:
                    panel.axhline(math.log(TOKENS), color=MUTED, linewidth=0.8, linestyle=":")
                    panel.set_ylim(0, 1.08 * math.log(TOKENS))
                panel.grid(axis="y")
                panel.tick_params(labelsize=6.5)
                if row == 0:
                    panel.set_title(title, fontsize=8, pad=16)
                if column == 0:
                    panel.text(
                        0, 1.06, SHORT.get(core, "weight clipping"), transform=panel.transAxes, fontsize=7.5, color=INK
                    )
                if row == len(GAINS) - 1:
                    panel.set_xlabel("step", fontsize=7.5)
        for layer, colour in enumerate(_LAYER_COLOURS):
            figure.text(0.07 + 0.11 * layer, 0.975, f"— layer {layer + 1}", color=colour, fontsize=8)
    return figure


def _name(core: str) -> str:
    return SHORT.get(core) or CORES[core].title.replace("Window Softmax", "Window").replace(" Kernel", "")


def _line(core: str) -> dict[str, object]:
    return {"color": COLOURS.get(core, INK), "linestyle": "--" if core in DASHED else "-"}


def _final_losses(measured: Sweep | None, cores: Sequence[str]) -> Figure:
    """Clipped final loss over the learning rate: means over seeds, bands their range."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.0))
        panel = figure.subplots()
        figure.subplots_adjust(left=0.08, right=0.82, top=0.95, bottom=0.16)
        if measured is None:
            say_missing(panel, "not measured yet")
            return figure
        ends: list[float] = []
        tops: list[float] = []
        shown = [core for core in cores if core in measured.final]
        for core in shown:
            losses = clipped(measured.final[core], measured.initial[core]).numpy()
            panel.fill_between(
                measured.rates, losses.min(1), losses.max(1), color=COLOURS.get(core, INK), alpha=0.15, linewidth=0
            )
            panel.plot(measured.rates, losses.mean(1), marker="o", markersize=2.5, **_line(core))
            ends.append(float(losses.mean(1)[-1]))
            tops.append(float(losses.max()))
            panel.axhline(measured.initial[core].mean().item(), linewidth=0.8, linestyle=":", **_colour(core))
        panel.text(0.01, 0.02, "dotted: l₀ of each, untrained", transform=panel.transAxes, color=MUTED, fontsize=7.5)
        panel.set_xscale("log")
        _plain(panel.xaxis)
        top = 1.05 * max(tops, default=1.0)
        panel.set_ylim(0, top)
        panel.set_xlabel("learning rate")
        panel.set_ylabel("final loss, at most l₀")
        panel.grid()
        for core, place in zip(shown, spread(ends, 0.075 * top), strict=True):
            panel.text(1.02, place / top, _name(core), transform=panel.transAxes, va="center", **_colour(core))
    return figure


def _colour(core: str) -> dict[str, str]:
    return {"color": COLOURS.get(core, INK)}


def _first_seed(results: Results, name: str) -> list[Line]:
    measured = sweep(results)
    return measured.first_seed(name, results) if measured is not None else []


def _behaviours(results: Results, cores: Sequence[str]) -> Figure:
    """Loss, gradient norm, entropy with its deviation over layers, ||P||_F; a cross where a training diverged, a
    triangle at the edge where that lies above the panel.
    """
    measured, lines = sweep(results), _first_seed(results, "traces.csv")
    last = measured.setting.steps - 1 if measured is not None else 0
    with style():
        figure = Figure(figsize=(WIDTH, 2.3))
        panels = figure.subplots(1, 4)
        figure.subplots_adjust(left=0.07, right=0.99, top=0.78, bottom=0.17, wspace=0.38)
        shown = [core for core in cores if any(line["core"] == core for line in lines)]
        named = _name if cores is not GAINS else lambda core: SHORT.get(core, "weight clipping")
        for panel, (title, key) in zip(
            panels,
            (
                ("loss", "loss"),
                ("gradient norm", "gradient_norm"),
                ("entropy, nats", "entropy"),
                ("‖P‖_F", "frobenius"),
            ),
            strict=True,
        ):
            panel.set_title(title)
            if not shown:
                say_missing(panel, "not measured yet")
                continue
            ends = []
            for core in shown:
                of_core = [line for line in lines if line["core"] == core]
                steps = np.array([int(line["step"]) for line in of_core])
                values = np.array([float(line[key] or "nan") for line in of_core])
                panel.plot(steps, values, linewidth=1.1, **_line(core))
                if key == "entropy":
                    deviation = np.array([float(line["entropy_std"] or "nan") for line in of_core])
                    panel.fill_between(
                        steps,
                        values - deviation,
                        values + deviation,
                        color=COLOURS.get(core, INK),
                        alpha=0.15,
                        linewidth=0,
                    )
                finite = np.flatnonzero(np.isfinite(values))
                if len(finite) and steps[-1] < last:
                    ends.append((core, steps[finite[-1]], values[finite[-1]]))
            panel.set_xlabel("step")
            panel.grid(axis="y")
            _limits(panel, key)
            top = panel.get_ylim()[1]
            for core, step, value in ends:
                mark = "^" if value > top else "x"
                panel.plot(step, min(value, top), mark, markersize=6, clip_on=False, **_colour(core))
        for place, core in enumerate(shown):
            mark = "- -" if core in DASHED else "—"
            figure.text(0.07 + 0.23 * place, 0.93, f"{mark} {named(core)}", fontsize=8, **_colour(core))
    return figure


def _plain(axis: Axis) -> None:
    """Powers of ten as plain text: matplotlib's own are TeX, which the renderer takes for formulas of the page."""
    axis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e"))
    axis.set_minor_formatter(NullFormatter())


def _limits(panel: Axes, key: str) -> None:
    """Logarithmic axes for what explodes; the bounds of Proposition 5.3 for entropy and ||P||_F."""
    if key in ("loss", "gradient_norm"):
        panel.set_yscale("log")
        _plain(panel.yaxis)
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, 1e-3), min(high, 1e6))
    elif key == "entropy":
        panel.axhline(math.log(TOKENS), color=MUTED, linewidth=0.8, linestyle=":")
        panel.set_ylim(-0.05, 1.1 * math.log(TOKENS))
    else:
        panel.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(math.sqrt(TOKENS), color=MUTED, linewidth=0.8, linestyle="-.")
        panel.set_ylim(0.5, 1.1 * math.sqrt(TOKENS))
