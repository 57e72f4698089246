"""Variance Sensitivity: theory printed, derived (docs/variance_sensitivity.md) and drawn; quantities of its claims."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.figure import Figure

from aero.report.papers.panels import line_legend
from aero.report.papers.variance_sensitivity import COLOURS, core_legend, line_style, short_name
from aero.report.results import Results
from aero.report.show import GRID, MUTED, drawn_of, subplots
from aero.report.verdicts import PAPER_DIMENSIONS, PUBLISHED_ONLY, Measurement
from aero.sensitivity import theory

GROUP = "theory and arithmetic"
POSITION_COLOURS = {2: "#8a6d3b", 20: "#009e73", 200: "#0072b2", 768: "#cc79a7"}


@dataclass(frozen=True)
class TheoryResults:
    """theory.json, and the tables of theory.jsonl by name."""

    folder: Path
    summary: dict[str, Any]
    tables: dict[str, pd.DataFrame]


def _rows(frame: pd.DataFrame, **where: object) -> pd.DataFrame:
    """Those whose columns have the given values."""
    return frame[(frame[list(where)] == pd.Series(where)).all(axis=1)]


@functools.cache
def load_theory(results: Results) -> TheoryResults | None:
    """Fresh results of the stage, else the committed ones; None if there are none."""
    path = results.file("sensitivity/theory.json")
    if path is None:
        return None
    tables: dict[str, list[dict[str, Any]]] = {}
    for text in path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        tables.setdefault(line.pop("table"), []).append(line)
    frames = {name: pd.DataFrame(lines) for name, lines in tables.items()}
    return TheoryResults(path.parent.relative_to(results.root), json.loads(path.read_text(encoding="utf-8")), frames)


def with_error(mean: float, error: float) -> str:
    """A mean with its standard error in brackets, to two digits of the error: "-0.3786(12)"."""
    if not error > 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f}({error * 10**digits:.0f})"


# Figures --------------------------------------------------------------------------------------------------------------


@drawn_of(load_theory)
def figure_expansion(results: Results, found: TheoryResults) -> Figure:
    """Theorem 5.1 against draws: entropy and its derivative over sigma, for several N."""
    figure, panels = subplots(1, 2, height=2.3)
    chosen = found.summary["settings"]["softmax"]["sigmas"]
    sigmas = np.linspace(min(chosen), max(chosen), 50).tolist()
    for n, colour in POSITION_COLOURS.items():
        drawn, curve = _rows(found.tables["softmax"], positions=n), [theory.softmax_entropy(s, n) for s in sigmas]
        exact_and_printed = {
            "entropy": ([one.entropy for one in curve], [theory.entropy_expansion(s, n) for s in sigmas]),
            "slope": ([one.derivative for one in curve], [one.theorem_derivative for one in curve]),
        }
        for panel, (exact, lines) in zip(panels, exact_and_printed.items(), strict=True):
            for values, style in zip(lines, ({}, {"linewidth": 0.9, "linestyle": "--"}), strict=True):
                panel.plot(sigmas, values, color=colour, **style)
            errors = 2 * drawn[f"{exact}_error"]
            panel.errorbar(drawn["sigma"], drawn[exact], errors, fmt="o", markersize=3.4, color=colour, capsize=1.5)
    panels[0].set(title="E[H], nats", ylim=(-0.6, math.log(768) + 0.7))
    panels[1].set(title="∂E[H]/∂σ²", ylim=(-1.5, 0.05))
    for panel in panels:
        panel.set_xlabel("σ, standard deviation of the logits")
        panel.grid(color=GRID)
    styles = {f"N = {n}": {"color": colour} for n, colour in POSITION_COLOURS.items()}
    styles["drawn"] = {"color": MUTED, "marker": "o", "linestyle": ""}
    styles |= {"exact": {"color": MUTED}, "Theorem 5.1": {"color": MUTED, "linestyle": "--"}}
    line_legend(figure, styles)
    return figure


@drawn_of(load_theory)
def figure_3_left(results: Results, found: TheoryResults) -> Figure:
    """Figure 3, left: attention weights of one query at sigma = 1, 2, 4, 8, softmax and ReLU kernel."""
    figure, panels = subplots(2, 4, height=2.7, sharex=True, sharey=True)
    for row, core in zip(panels, ("softmax", "relu"), strict=True):
        for panel, sigma in zip(row, (1.0, 2.0, 4.0, 8.0), strict=True):
            weights = _rows(found.tables["weights"], core=core, sigma=sigma)["weight"]
            panel.hist(np.maximum(weights, 1e-6), bins=np.logspace(-6, 0, 19), color=COLOURS[core])
            entropy = _rows(found.tables["controlled"], core=core, sigma=sigma)["entropy"].item()
            panel.set_title(f"σ = {sigma:g}, H = {entropy:.2f}", fontweight="normal")
            panel.set_xscale("log")
        row[0].set_ylabel(f"{short_name(core)}, keys")
    setp(panels[1], xlabel="attention weight")
    return figure


@drawn_of(load_theory)
def figure_3_right(results: Results, found: TheoryResults) -> Figure:
    """Figure 3, right: entropy and its rate of change over the variance of the keys, which is that of the logits."""
    figure, panels = subplots(1, 2, height=2.0)
    settings = found.summary["settings"]["controlled"]
    cores = {core: core.removesuffix("_fixed") for core in settings["cores"]}
    for core, coloured in cores.items():
        frame = _rows(found.tables["controlled"], core=core)
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
    core_legend(figure, cores.values())
    return figure


@drawn_of(load_theory)
def figure_10(results: Results, found: TheoryResults) -> Figure:
    """Entropy and l2 norm of Dirichlet rows, between the bounds that hold for every row."""
    figure, panel = subplots(height=2.0)
    size = int(found.summary["settings"]["dirichlet"]["positions"])
    entropies = np.linspace(0, math.log(size), 200)
    low, high = zip(*((theory.least_row_norm(h), theory.greatest_row_norm(h, size)) for h in entropies), strict=True)
    panel.fill_between(entropies, low, high, color=GRID, alpha=0.6, linewidth=0, label="possible")
    for line, colour in zip(found.summary["dirichlet"], ("#0072b2", "#d55e00", "#009e73"), strict=False):
        rows = _rows(found.tables["dirichlet"], alpha=line["alpha"])
        label = f"α = {line['alpha']:g}, correlation {line['correlation']:.2f}"
        panel.scatter(rows["entropy"], rows["norm"], s=6, color=colour, alpha=0.6, linewidth=0, label=label)
    panel.axvline(math.log(size), color=MUTED, linewidth=0.8, linestyle=":")
    panel.set(xlabel=f"entropy of a row over N = {size} keys, nats (dotted: log N)", ylabel="ℓ₂ norm", ylim=(0, 1.03))
    panel.legend(frameon=False)
    panel.grid(color=GRID)
    return figure


# Quantities of claims -------------------------------------------------------------------------------------------------


_ERRORS = 4.5
"""Standard errors within which a drawn mean equals a formula: some 50 cells are compared at once."""
Found = tuple[str, bool, str]
"""The text of what was measured, whether the claim holds, and a note."""


def _of(*names: str) -> Callable[[Callable[..., Found]], Callable[..., Measurement]]:
    """Make a measurement of what a function returns for entries of theory.json or tables of theory.jsonl."""

    def decorate(quantity: Callable[..., Found]) -> Callable[..., Measurement]:
        @functools.wraps(quantity)
        def measure(results: Results, **parameters: Any) -> Measurement:
            read = load_theory(results)
            if read is None:
                return Measurement("", PAPER_DIMENSIONS, missing="python -m stages.sensitivity_theory has not been run")
            found = (read.summary[name] if name in read.summary else read.tables[name] for name in names)
            draws = (pd.DataFrame(one) if isinstance(one, list) else one for one in found)
            text, held, note = quantity(*draws, **parameters)
            return Measurement(text, PAPER_DIMENSIONS, f"{read.folder}/theory*; {note}", checks={"": bool(held)})

        return measure

    return decorate


# The softmax ----------------------------------------------------------------------------------------------------------


def unequal_slopes(draws: pd.DataFrame, column: str) -> pd.Series:
    """Whether a formula of the derivative differs from the drawn quotient, by more than 4.5 standard errors and a
    thousandth, at every sigma and N."""
    # The quotient over ±1 % of sigma^2 differs from the derivative by some 1e-4 of it.
    return (draws[column] - draws.slope).abs() > _ERRORS * draws.slope_error + 1e-3 * draws.slope.abs() + 1e-9


@_of("softmax")
def softmax_derivative(draws: pd.DataFrame, columns: list[str]) -> Found:
    """Printed derivatives of the softmax's expected entropy (columns of theory.jsonl) against the drawn
    difference quotient: whether one is within 4.5 standard errors and a thousandth at every sigma and N."""
    off = {column: int(unequal_slopes(draws, column).sum()) for column in columns}
    one = _rows(draws, positions=20, sigma=1).iloc[0]
    words = [f"off in {count} of {len(draws)} cells; formula {one[column]:.4f}" for column, count in off.items()]
    text = f"{'; '.join(words)}, drawn {with_error(one.slope, one.slope_error)} at N = 20, σ = 1"
    return text, 0 in off.values(), "§2 of docs/variance_sensitivity.md has the derivation"


@_of("softmax")
def softmax_slope(draws: pd.DataFrame) -> Found:
    """Whether the drawn slope of the entropy in sigma^2 is below 0 by 4.5 standard errors for every N ≥ 2."""
    several = draws[draws.positions > 1]
    falling = int((several.slope + _ERRORS * several.slope_error < 0).sum())
    alone = draws[draws.positions == 1].slope.abs().max()
    return f"{falling} of {len(several)} cells", falling == len(several), f"for N = 1 the slope is {alone:.0g}"


@_of("softmax")
def softmax_expansion(draws: pd.DataFrame, sigma: float) -> Found:
    """log N - (N-1)σ²/2N against the drawn mean entropy: whether it is within 4.5 standard errors and σ⁴/4 at every N
    and every σ up to `sigma`."""
    small = draws[draws.sigma <= sigma]
    near = int(((small.entropy - small.expansion_2).abs() <= _ERRORS * small.entropy_error + small.sigma**4 / 4).sum())
    far, one = _rows(draws, positions=200, sigma=8).iloc[0], _rows(draws, positions=20, sigma=0.5).iloc[0]
    note = (
        f"single draws at N = 20, σ = 0.5 have a standard deviation of {one.entropy_spread:.3f}; beyond "
        f"σ = √(2 log N) the expansion fails: at N = 200, σ = 8 it gives {far.expansion_2:.1f}, drawn "
        f"{with_error(far.entropy, far.entropy_error)}"
    )
    return f"within σ⁴/4 in {near} of {len(small)} cells", near == len(small), note


@_of("softmax")
def slope_by_positions(draws: pd.DataFrame) -> Found:
    """Whether the size of the exact slope grows along N = 2, 5, 20, … at every σ."""
    several = draws[draws.positions > 1].sort_values("positions")
    growing = [(one.slope_quadrature.diff().dropna() < 0).all() for _, one in several.groupby("sigma")]
    return f"at {sum(growing)} of {len(growing)} values of σ", all(growing), "quadrature"


def second_order_terms(results: Results) -> Measurement:
    """Coefficient of σ² of the entropy of σ(-1, 0, 1), by the entropy at σ = 0.001: whether Eq. 29, 31 and 32 give it
    within 1e-4."""
    draw, sigma = (-1.0, 0.0, 1.0), 1e-3
    weights = [math.exp(sigma * x) for x in draw]
    p = [w / sum(weights) for w in weights]
    log_n, spread = math.log(len(draw)), sum(x * x for x in draw) / len(draw)  # S_2; the mean of the draw is 0
    coefficient = (-sum(x * math.log(x) for x in p) - log_n) / sigma**2
    printed = {
        "Eq. 29 summed": sum(x * x / 2 - spread / 2 + spread / 2 * log_n for x in draw) / len(draw),
        "Eq. 31": spread / 2 * log_n - spread + spread / 2,
        "Eq. 32": -spread / 2,
    }
    right = {name: abs(value - coefficient) < 1e-4 for name, value in printed.items()}
    text = "; ".join(f"{name} {value:.4f}" for name, value in printed.items()) + f"; entropy itself {coefficient:.4f}"
    return Measurement(text, PUBLISHED_ONLY, "§1 of docs/variance_sensitivity.md", checks=right)


# The ReLU kernel ------------------------------------------------------------------------------------------------------


@_of("relu")
def relu_rate(draws: pd.DataFrame) -> Found:
    """D (log N - H) of the ReLU kernel at D ≥ 64: whether all lie within 5 % and 4.5 standard errors of that at the
    largest D."""
    good, words = True, []
    for positions, wide in draws[draws.dimensions >= 64].groupby("positions"):
        scaled, errors = wide.dimensions * (math.log(positions) - wide.entropy), wide.dimensions * wide.entropy_error
        last, error = scaled.iloc[-1], errors.iloc[-1]
        good &= ((scaled - last).abs() <= 0.05 * last + _ERRORS * np.hypot(errors, error)).all()
        words.append(f"N = {positions:.0f}: {', '.join(map(with_error, scaled, errors))}")
    return f"D(log N - H), {'; '.join(words)}", good, "D = 64, 256, 1024"


@_of("relu")
def relu_deviation(draws: pd.DataFrame) -> Found:
    """D E[δ²] of the ReLU kernel at D ≥ 64 against π² - 1: whether it is within 4.5 standard errors and 2 %."""
    wide = draws[draws.dimensions >= 64]
    off = (wide.square - wide.square_printed).abs() > _ERRORS * wide.square_error + 0.02 * wide.square_printed
    derived = (wide.square - wide.square_derived).abs() <= _ERRORS * wide.square_error + 0.05 * wide.square
    best = wide.sort_values(["positions", "dimensions"]).iloc[-1]
    size = best.dimensions
    text = f"N = {best.positions:.0f}, D = {size:.0f}: {with_error(size * best.square, size * best.square_error)}"
    note = f"(N-1)/N π(π - 1) = {size * best.square_derived:.3f} fits {derived.sum()} of {len(wide)} cells"
    return text, not off.any(), note


@_of("relu")
def relu_at_small_width(draws: pd.DataFrame, dimensions: int, positions: int, share: float) -> Found:
    """Mean entropy of the ReLU kernel's defined rows at the width of the paper's small model: whether it is above
    `share` of log N and no row is 0/0."""
    line, largest = _rows(draws, positions=positions, dimensions=dimensions).iloc[0], math.log(positions)
    entropy = with_error(line.entropy, line.entropy_error)
    text = f"{entropy} of {largest:.3f}; {line.undefined:.1%} of the rows are 0/0"
    good = line.entropy > share * largest and line.undefined == 0
    return text, good, f"exactly {line.undefined_exact:.4f} of the rows"


@_of("relu_scale_difference")
def relu_scale_change(change: float) -> Found:
    """Largest change of the ReLU kernel's mean entropy when the same draws are scaled by 0.01 to 1000: whether it is
    below 1e-9."""
    return f"{change:.1e} nats", change < 1e-9, "scaling alone; another direction or mean changes it"


# Other relations ------------------------------------------------------------------------------------------------------


@_of("layernorm")
def layernorm_change(draws: pd.DataFrame) -> Found:
    """Mean entropy of QK-LayerNorm with queries scaled by 0.1 to 1000: whether it stays within 1 % of that at
    factor 1."""
    own = _rows(draws, factor=1).iloc[0].entropy
    off = (draws[draws.factor >= 0.1].entropy / own - 1).abs().max()
    least = draws.sort_values("factor").iloc[0]
    note = f"at factor {least.factor:g}, a variance below LayerNorm's ε: {least.entropy:.3f} instead of {own:.3f}"
    return f"{off:.2%} at most", off < 0.01, note


@_of("ranges")
def matrix_ranges(drawn: pd.DataFrame, mask: theory.Mask) -> Found:
    """Ends of ‖P‖_F and H(P) under a full or causal mask: whether they are [1, √N] and [0, log N]; for full attention
    also whether no matrix drawn whose rows sum to 1 lies outside."""
    same, words = True, []
    for n in (20,) if mask == "full" else (768, 200):  # the small model; the language models of Figures 1 and 7
        keys = theory.visible_keys(mask, n)
        (least, greatest), entropy = theory.norm_range(keys), theory.entropy_maximum(keys)
        same &= np.allclose((least, greatest, entropy), (1, math.sqrt(n), math.log(n)), rtol=1e-6, atol=0)
        words.append(f"N = {n}: [{least:.2f}, {greatest:.2f}], [0, {entropy:.2f}]")
    text = "; ".join(words)
    if mask != "full":
        return text, same, "attained by uniform and by one-hot rows"
    outside, empty = int(drawn.outside.sum()), drawn[drawn["empty"] > 0]
    note = f"{outside} of {drawn.matrices.sum():,} matrices drawn of {len(drawn)} cores lie outside"
    for line in empty.itertuples():
        note += (
            f"; {line.empty} of {line.core} have a row without weight, and norms down to {line.norm_least_empty:.2f}"
        )
    return text, same and not outside, note


@_of("dirichlet")
def dirichlet_rows(draws: pd.DataFrame) -> Found:
    """Entropy and norm of drawn rows: whether their correlation is below -0.9 for each α, and the smaller α has the
    smaller mean entropy by 4.5 standard errors."""
    draws = draws.sort_values("alpha")
    low, high = draws.iloc[0], draws.iloc[-1]
    apart = high.entropy - low.entropy > _ERRORS * math.hypot(high.entropy_error, low.entropy_error)
    text = "; ".join(
        f"α = {line.alpha:g}: H {with_error(line.entropy, line.entropy_error)}, correlation {line.correlation:.2f}"
        for line in draws.itertuples()
    )
    note = f"{draws.outside_bounds.sum()} rows lie outside the bounds of every row; nothing here is a gradient"
    return text, apart and (draws.correlation < -0.9).all(), note


def norms_at_collapse(results: Results) -> Measurement:
    """Spectral norm of attention matrices of entropy 0: whether it is above 1, that of uniform rows, for all."""
    own = np.eye(20)
    matrices = {"every query its own key": own, "every query the same key": np.tile(own[0], (20, 1))}
    spectral = {name: float(np.linalg.norm(matrix, 2)) for name, matrix in matrices.items()}
    text = "; ".join(
        f"{name}: ‖P‖_F {np.linalg.norm(matrix):.2f}, spectral {spectral[name]:.2f}"
        for name, matrix in matrices.items()
    )
    note, above = "Eq. 9 bounds the spectral norm by ‖P‖_F, which is larger", min(spectral.values()) > 1 + 1e-9
    return Measurement(text, PAPER_DIMENSIONS, f"N = {len(own)}; {note}", checks={"": above})
