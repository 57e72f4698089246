"""Quantities of the theory of `variance_sensitivity`: its formulas against random draws."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from aero.report.papers.variance_theory import Line, TheoryResults, load_theory, with_error
from aero.report.results import Results
from aero.report.verdicts import PAPER_DIMENSIONS, PUBLISHED_ONLY, Measurement

GROUP = "theory and arithmetic"
_ERRORS = 4.5
"""Standard errors within which a drawn mean equals a formula: some 50 cells are compared at once."""


def _drawn(quantity: Callable[..., tuple[str, dict[str, bool] | bool, str]]) -> Callable[..., Measurement]:
    """Read the draws, and make a measurement of the text, conditions and note that `quantity` returns."""

    @functools.wraps(quantity)
    def measure(results: Results, **parameters: Any) -> Measurement:
        found = load_theory(results.root)
        if found is None:
            return Measurement("", PAPER_DIMENSIONS, missing="python -m stages.sensitivity_theory has not been run")
        text, checks, note = quantity(found, **parameters)
        checks = checks if isinstance(checks, dict) else {"": checks}
        missing = "" if text else note
        return Measurement(text, PAPER_DIMENSIONS, f"{found.folder}/theory*; {note}", checks=checks, missing=missing)

    return measure


# The softmax ----------------------------------------------------------------------------------------------------------


@_drawn
def softmax_derivative(found: TheoryResults, formula: str) -> tuple[str, bool, str]:
    """A printed derivative of the softmax's expected entropy against the drawn difference quotient: whether it is
    within 4.5 standard errors and a thousandth at every sigma and N."""
    column = {
        "theorem": "theorem_slope_quadrature",
        "appendix line": "appendix_slope_quadrature",
        "appendix end": "slope_quadrature",
    }[formula]
    cells = found.tables["softmax"]
    # The quotient over ±1 % of sigma^2 differs from the derivative by some 1e-4 of it.
    off = [
        line
        for line in cells
        if abs(line[column] - line["slope"]) > _ERRORS * line["slope_error"] + 1e-3 * abs(line["slope"]) + 1e-9
    ]
    (shown,) = found.lines("softmax", positions=20.0, sigma=1.0)
    drawn = with_error(shown["slope"], shown["slope_error"])
    text = f"off in {len(off)} of {len(cells)} cells; N = 20, σ = 1: formula {shown[column]:.4f}, drawn {drawn}"
    return text, not off, "§2 of docs/variance_sensitivity.md has the derivation"


@_drawn
def softmax_slope(found: TheoryResults) -> tuple[str, bool, str]:
    """Whether the drawn slope of the entropy in sigma^2 is below 0 by 4.5 standard errors for every N ≥ 2."""
    cells = [line for line in found.tables["softmax"] if line["positions"] > 1]
    falling = sum(line["slope"] + _ERRORS * line["slope_error"] < 0 for line in cells)
    alone = max(abs(line["slope"]) for line in found.lines("softmax", positions=1.0))
    return f"{falling} of {len(cells)} cells", falling == len(cells), f"for N = 1 the slope is {alone:.0g}"


@_drawn
def softmax_expansion(found: TheoryResults, sigma: float) -> tuple[str, bool, str]:
    """log N - (N-1)σ²/2N against the drawn mean entropy: whether it is within 4.5 standard errors and σ⁴/4 at every N
    and every σ up to `sigma`."""
    cells = [line for line in found.tables["softmax"] if line["sigma"] <= sigma]
    near = sum(
        abs(line["entropy"] - line["expansion_2"]) <= _ERRORS * line["entropy_error"] + line["sigma"] ** 4 / 4
        for line in cells
    )
    (far,) = found.lines("softmax", positions=200.0, sigma=8.0)
    (one,) = found.lines("softmax", positions=20.0, sigma=0.5)
    note = (
        f"the expansion is of the mean: single draws at N = 20, σ = 0.5 have a standard deviation of "
        f"{one['entropy_spread']:.3f}; beyond σ = √(2 log N) it fails: at N = 200, σ = 8 it gives "
        f"{far['expansion_2']:.1f}, drawn {with_error(far['entropy'], far['entropy_error'])}"
    )
    return f"within it in {near} of {len(cells)} cells", near == len(cells), note


@_drawn
def slope_by_positions(found: TheoryResults) -> tuple[str, bool, str]:
    """Whether the size of the exact slope grows along N = 2, 5, 20, … at every σ."""
    sigmas = sorted({line["sigma"] for line in found.tables["softmax"]})
    growing = 0
    for sigma in sigmas:
        lines = sorted(found.lines("softmax", sigma=sigma), key=lambda line: line["positions"])
        sizes = [-line["slope_quadrature"] for line in lines if line["positions"] > 1]
        growing += all(a < b for a, b in zip(sizes, sizes[1:], strict=False))
    return f"at {growing} of {len(sigmas)} values of σ", growing == len(sigmas), "quadrature"


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
    evidence = f"right: {', '.join(name for name, same in right.items() if same)}; §1 of docs/variance_sensitivity.md"
    return Measurement(text, PUBLISHED_ONLY, evidence, checks=right)


# The ReLU kernel ------------------------------------------------------------------------------------------------------


def _wide(found: TheoryResults) -> list[Line]:
    return [line for line in found.tables["relu"] if line["dimensions"] >= 64]


@_drawn
def relu_rate(found: TheoryResults) -> tuple[str, bool, str]:
    """D (log N - H) of the ReLU kernel at D ≥ 64: whether all lie within 5 % and 4.5 standard errors of that at the
    largest D."""
    good, words = True, []
    for positions in sorted({line["positions"] for line in found.tables["relu"]}):
        lines = [line for line in _wide(found) if line["positions"] == positions]
        scaled = [line["dimensions"] * (math.log(positions) - line["entropy"]) for line in lines]
        errors = [line["dimensions"] * line["entropy_error"] for line in lines]
        good &= all(
            abs(value - scaled[-1]) <= 0.05 * scaled[-1] + _ERRORS * math.hypot(error, errors[-1])
            for value, error in zip(scaled, errors, strict=True)
        )
        words.append(f"N = {positions:.0f}: {', '.join(map(with_error, scaled, errors))}")
    return "; ".join(words), good, "D = 64, 256, 1024"


@_drawn
def relu_deviation(found: TheoryResults) -> tuple[str, bool, str]:
    """D E[δ²] of the ReLU kernel at D ≥ 64 against π² - 1: whether it is within 4.5 standard errors and 2 %."""
    lines = _wide(found)

    def fits(line: Line, formula: float, share: float) -> bool:
        return abs(line["square"] - formula) <= _ERRORS * line["square_error"] + share

    good = all(fits(line, line["square_printed"], 0.02 * line["square_printed"]) for line in lines)
    derived = sum(fits(line, line["square_derived"], 0.05 * line["square"]) for line in lines)
    best = max(lines, key=lambda line: (line["positions"], line["dimensions"]))
    size = best["dimensions"]
    value = with_error(size * best["square"], size * best["square_error"])
    note = f"(N-1)/N π(π - 1) = {size * best['square_derived']:.3f} fits {derived} of {len(lines)} cells"
    return f"N = {best['positions']:.0f}, D = {size:.0f}: {value}", good, note


@_drawn
def relu_scale_change(found: TheoryResults) -> tuple[str, bool, str]:
    """Largest change of the ReLU kernel's mean entropy when the same draws are scaled by 0.01 to 1000: whether it is
    below 1e-9."""
    change = found.summary["relu_scale_difference"]
    return f"{change:.1e} nats", change < 1e-9, "scaling alone; another direction or mean changes it"


@_drawn
def relu_at_small_width(found: TheoryResults, dimensions: int, positions: int, share: float) -> tuple[str, bool, str]:
    """Mean entropy of the ReLU kernel's defined rows at the width of the paper's small model: whether it is above
    `share` of log N and no row is 0/0."""
    (line,) = found.lines("relu", positions=float(positions), dimensions=float(dimensions))
    entropy, largest = with_error(line["entropy"], line["entropy_error"]), math.log(positions)
    text = f"{entropy} of {largest:.3f}; {line['undefined']:.1%} of the rows are 0/0"
    good = line["entropy"] > share * largest and line["undefined"] == 0
    return text, good, f"exactly {line['undefined_exact']:.4f} of the rows"


# Other relations ------------------------------------------------------------------------------------------------------


@_drawn
def controlled_variance(found: TheoryResults) -> tuple[str, bool, str]:
    """Entropy along σ of the logits: whether the softmax's falls at every step and the ReLU kernel's stays within
    0.001."""
    curves = {core: [line["entropy"] for line in found.lines("controlled", core=core)] for core in ("softmax", "relu")}
    falls = all(a > b for a, b in zip(curves["softmax"], curves["softmax"][1:], strict=False))
    flat = max(curves["relu"]) - min(curves["relu"]) < 1e-3
    text = "; ".join(f"{core} {values[0]:.2f} to {values[-1]:.2f}" for core, values in curves.items())
    return text, falls and flat, "logits of exactly this variance, Definition 5.2"


@_drawn
def layernorm_change(found: TheoryResults) -> tuple[str, bool, str]:
    """Mean entropy of QK-LayerNorm with queries scaled by 0.1 to 1000: whether it stays within 1 % of that at
    factor 1."""
    entropies = {line["factor"]: line["entropy"] for line in found.summary["layernorm"]}
    off = max(abs(h / entropies[1.0] - 1) for factor, h in entropies.items() if factor >= 0.1)
    least = min(entropies)
    note = (
        f"at factor {least:g}, where the variance is below LayerNorm's ε, the entropy is {entropies[least]:.3f} "
        f"instead of {entropies[1.0]:.3f}"
    )
    return f"{off:.2%} at most", off < 0.01, note


@_drawn
def matrix_ranges(found: TheoryResults, mask: str) -> tuple[str, bool, str]:
    """Ends of ‖P‖_F and H(P) under a full or causal mask: whether they are [1, √N] and [0, log N], and no matrix drawn
    whose rows sum to 1 lies outside."""
    if mask == "full" and "ranges" not in found.summary:
        return "", False, f"{found.folder}/theory.json is of an earlier version: no matrix was drawn"
    lines = found.lines("bounds", mask=mask)
    same = all(
        math.isclose(line[key], line[f"{key}_printed"], rel_tol=1e-6)
        for line in lines
        for key in ("norm_least", "norm_greatest", "entropy_greatest")
    )
    text = "; ".join(
        f"N = {line['positions']:.0f}: [{line['norm_least']:.2f}, {line['norm_greatest']:.2f}], "
        f"[0, {line['entropy_greatest']:.2f}]"
        for line in lines
    )
    if mask != "full":
        return text, same, "attained by uniform and by one-hot rows"
    cores = found.summary["ranges"]
    outside, drawn = (sum(line[key] for line in cores) for key in ("outside", "matrices"))
    note = f"{outside} of {drawn:,} matrices drawn of {len(cores)} cores lie outside"
    for line in cores:
        if line["empty"]:
            note += (
                f"; {line['empty']} more of {line['core']} have a row without any weight, which does not sum to 1, and "
                f"norms down to {line['norm_least_empty']:.2f}"
            )
    return text, same and not outside, note


@_drawn
def dirichlet_rows(found: TheoryResults) -> tuple[str, bool, str]:
    """Entropy and norm of drawn rows: whether their correlation is below -0.9 for each α, and the smaller α has the
    smaller mean entropy by 4.5 standard errors."""
    lines = sorted(found.summary["dirichlet"], key=lambda line: line["alpha"])
    low, high = lines[0], lines[-1]
    apart = high["entropy"] - low["entropy"] > _ERRORS * math.hypot(high["entropy_error"], low["entropy_error"])
    inverse = all(line["correlation"] < -0.9 for line in lines)
    text = "; ".join(
        f"α = {line['alpha']:g}: H {with_error(line['entropy'], line['entropy_error'])}, correlation "
        f"{line['correlation']:.2f}"
        for line in lines
    )
    outside = sum(line["outside_bounds"] for line in lines)
    return text, apart and inverse, f"{outside} rows lie outside the bounds of every row; nothing here is a gradient"


@_drawn
def norms_at_collapse(found: TheoryResults) -> tuple[str, dict[str, bool], str]:
    """Spectral norm of attention matrices of entropy 0: whether it is above 1, that of uniform rows, for all."""
    collapsed = [line for line in found.summary["matrices"] if line["entropy"] < 1e-9]
    text = "; ".join(
        f"{line['matrix']}: ‖P‖_F {line['frobenius']:.2f}, spectral {line['spectral']:.2f}" for line in collapsed
    )
    checks = {line["matrix"]: line["spectral"] > 1 + 1e-9 for line in collapsed}
    return text, checks, "Eq. 9 bounds the spectral norm by ‖P‖_F, which is larger"
