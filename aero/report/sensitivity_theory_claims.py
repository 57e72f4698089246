"""Tests of the claims of `variance_sensitivity` about its theory, and about attention cores in a language model."""

from __future__ import annotations

import math
from collections.abc import Callable

from aero.published import Paper
from aero.report import sensitivity_models as models
from aero.report.decisions import (
    PUBLISHED_ONLY,
    Decision,
    Verdict,
    absent,
    by_signs,
    claim_test,
    sources,
    training_gap,
    untested,
)
from aero.report.results import Results
from aero.report.sensitivity_theory import Line, TheoryResults, load_theory, with_error
from aero.report.statistics import difference, estimate

ERRORS = 4.5
"""Standard errors within which a drawn mean counts as the formula's: some 50 cells are looked at together."""
SCALE = "paper_dimensions"


# Theory -----------------------------------------------------------------------------------------------------------


def _drawn(results: Results, rule: str, decide: Callable[[TheoryResults], tuple[str, Verdict, str]]) -> Decision:
    found = load_theory(results.root)
    if found is None:
        return Decision(rule, "", SCALE, "not testable here", "python -m stages.sensitivity_theory has not been run")
    measured, verdict, evidence = decide(found)
    return Decision(rule, measured, SCALE, verdict, f"{found.folder}/theory*; {evidence}")


def _holds(condition: bool) -> Verdict:
    return "reproduced" if condition else "contradicted"


@claim_test
def softmax_derivative(results: Results, paper: Paper, *, formula: str) -> Decision:
    """A printed derivative of the softmax's expected entropy against the drawn difference quotient, over sigma, N."""
    rule = (
        f"the formula at every sigma and N drawn, against the difference quotient of the entropy; reproduced if it is "
        f"within {ERRORS} standard errors and a thousandth everywhere"
    )
    column = {
        "theorem": "theorem_slope_quadrature",
        "appendix line": "appendix_slope_quadrature",
        "appendix end": "slope_quadrature",
    }[formula]

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        # The quotient over +-1 % of sigma^2 differs from the derivative by some 1e-4 of it.
        off = [
            line
            for line in found.tables["softmax"]
            if abs(line[column] - line["slope"]) > ERRORS * line["slope_error"] + 1e-3 * abs(line["slope"]) + 1e-9
        ]
        cells = len(found.tables["softmax"])
        (shown,) = found.lines("softmax", positions=20.0, sigma=1.0)
        measured = (
            f"off in {len(off)} of {cells} cells; N = 20, σ = 1: formula {shown[column]:.4f}, drawn "
            f"{with_error(shown['slope'], shown['slope_error'])}"
        )
        return measured, _holds(not off), "§2 of docs/variance_sensitivity.md has the derivation"

    return _drawn(results, rule, decide)


@claim_test
def softmax_decreasing(results: Results, paper: Paper) -> Decision:
    """Whether the drawn slope of the entropy in sigma^2 is below 0 wherever there are two positions or more."""
    rule = f"every drawn slope for N ≥ 2 is below 0 by {ERRORS} standard errors; reproduced if all are"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        cells = [line for line in found.tables["softmax"] if line["positions"] > 1]
        below = sum(line["slope"] + ERRORS * line["slope_error"] < 0 for line in cells)
        alone = max(abs(line["slope"]) for line in found.lines("softmax", positions=1.0))
        return f"{below} of {len(cells)} cells", _holds(below == len(cells)), f"for N = 1 the slope is {alone:.0g}"

    return _drawn(results, rule, decide)


@claim_test
def softmax_expansion(results: Results, paper: Paper, *, sigma: float) -> Decision:
    """Theorem 5.1's expansion against the drawn entropy at small sigma."""
    rule = (
        f"log N - (N-1)σ²/2N at every σ ≤ {sigma} and N; reproduced if the drawn mean entropy is within {ERRORS} "
        "standard errors and σ⁴/4 of it"
    )

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        cells = [line for line in found.tables["softmax"] if line["sigma"] <= sigma]
        off = [
            line
            for line in cells
            if abs(line["entropy"] - line["expansion_2"]) > ERRORS * line["entropy_error"] + line["sigma"] ** 4 / 4
        ]
        (far,) = found.lines("softmax", positions=200.0, sigma=8.0)
        (one,) = found.lines("softmax", positions=20.0, sigma=0.5)
        evidence = (
            f"of single draws the entropy at N = 20, σ = 0.5 has a standard deviation of {one['entropy_spread']:.3f}, "
            "so the expansion is of the mean; beyond σ = √(2 log N) it is of no use: at N = 200, σ = 8 it gives "
            f"{far['expansion_2']:.1f}, drawn {with_error(far['entropy'], far['entropy_error'])}"
        )
        return f"within it in {len(cells) - len(off)} of {len(cells)} cells", _holds(not off), evidence

    return _drawn(results, rule, decide)


@claim_test
def sensitivity_grows_with_positions(results: Results, paper: Paper) -> Decision:
    """Whether the size of the slope grows with N at every sigma."""
    rule = "size of the exact slope along N = 2, 5, 20, …, at every σ; reproduced if it grows at each"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        sigmas = sorted({line["sigma"] for line in found.tables["softmax"]})
        growing = []
        for sigma in sigmas:
            lines = sorted(found.lines("softmax", sigma=sigma), key=lambda line: line["positions"])
            sizes = [-line["slope_quadrature"] for line in lines if line["positions"] > 1]
            if all(a < b for a, b in zip(sizes, sizes[1:], strict=False)):
                growing.append(sigma)
        return f"at {len(growing)} of {len(sigmas)} values of σ", _holds(growing == sigmas), "quadrature"

    return _drawn(results, rule, decide)


def _relu(found: TheoryResults) -> list[Line]:
    return [line for line in found.tables["relu"] if line["dimensions"] >= 64]


@claim_test
def relu_rate(results: Results, paper: Paper) -> Decision:
    """Whether log N - E[H] of the ReLU kernel falls as 1 / D."""
    rule = (
        f"D (log N - H) at D ≥ 64; reproduced if all lie within 5 % and {ERRORS} standard errors of the one of most D"
    )

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        good, words = True, []
        for positions in sorted({line["positions"] for line in found.tables["relu"]}):
            lines = [line for line in _relu(found) if line["positions"] == positions]
            scaled = [line["dimensions"] * (math.log(positions) - line["entropy"]) for line in lines]
            errors = [line["dimensions"] * line["entropy_error"] for line in lines]
            good &= all(
                abs(value - scaled[-1]) <= 0.05 * scaled[-1] + ERRORS * math.hypot(error, errors[-1])
                for value, error in zip(scaled, errors, strict=True)
            )
            words.append(f"N = {positions:.0f}: {', '.join(map(with_error, scaled, errors))}")
        return "; ".join(words), _holds(good), "D = 64, 256, 1024"

    return _drawn(results, rule, decide)


@claim_test
def relu_deviation(results: Results, paper: Paper) -> Decision:
    """Appendix E.4's second moment of the deviations against the drawn one."""
    rule = f"D E[δ²] at D ≥ 64 against π² - 1; reproduced if within {ERRORS} standard errors and 2 %"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        lines = _relu(found)
        off = [
            line
            for line in lines
            if abs(line["square"] - line["square_printed"])
            > ERRORS * line["square_error"] + 0.02 * line["square_printed"]
        ]
        derived = sum(
            abs(line["square"] - line["square_derived"]) <= ERRORS * line["square_error"] + 0.05 * line["square"]
            for line in lines
        )
        best = max(lines, key=lambda line: (line["positions"], line["dimensions"]))
        size = best["dimensions"]
        value = with_error(size * best["square"], size * best["square_error"])
        measured = f"N = {best['positions']:.0f}, D = {size:.0f}: {value}"
        evidence = f"(N-1)/N π(π - 1) = {size * best['square_derived']:.3f} fits {derived} of {len(lines)} cells"
        return measured, _holds(not off), evidence

    return _drawn(results, rule, decide)


@claim_test
def relu_invariant(results: Results, paper: Paper) -> Decision:
    """Whether scaling queries and keys changes the ReLU kernel's entropy."""
    rule = "largest change of the mean entropy of the same draws scaled by 0.01 to 1000; reproduced if below 1e-9"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        change = found.summary["relu_scale_difference"]
        return f"{change:.1e} nats", _holds(change < 1e-9), "scaling alone; another direction or mean changes it"

    return _drawn(results, rule, decide)


@claim_test
def relu_small_width(results: Results, paper: Paper, *, dimensions: int, positions: int, share: float) -> Decision:
    """How near log N the ReLU kernel's entropy is at the width of the paper's small model."""
    rule = (
        f"mean entropy of the defined rows at D = {dimensions}, N = {positions}; reproduced if above {share:.0%} of "
        "log N and no row is 0/0"
    )

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        (line,) = found.lines("relu", positions=float(positions), dimensions=float(dimensions))
        measured = (
            f"{with_error(line['entropy'], line['entropy_error'])} of {math.log(positions):.3f}; "
            f"{line['undefined']:.1%} of the rows are 0/0"
        )
        good = line["entropy"] > share * math.log(positions) and line["undefined"] == 0
        return measured, _holds(good), f"exactly {line['undefined_exact']:.4f} of the rows"

    return _drawn(results, rule, decide)


@claim_test
def matrix_ranges(results: Results, paper: Paper, *, mask: str) -> Decision:
    """Proposition 5.3's intervals for the masks of the paper's models."""
    rule = (
        f"ends of ‖P‖_F and H(P) under {mask} attention against [1, √N] and [0, log N]; reproduced if they are the same"
    )
    if mask == "full":
        rule += " and no matrix drawn of any core lies outside, of those whose rows sum to 1"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        lines = found.lines("bounds", mask=mask)
        if mask == "full" and "ranges" not in found.summary:
            return "", "not testable here", f"{found.folder}/theory.json is of an earlier version: no matrix was drawn"
        ranges = found.summary["ranges"] if mask == "full" else []
        outside = sum(line["outside"] for line in ranges)
        same = all(
            math.isclose(line[key], line[f"{key}_printed"], rel_tol=1e-6)
            for line in lines
            for key in ("norm_least", "norm_greatest", "entropy_greatest")
        )
        words = [
            f"N = {line['positions']:.0f}: [{line['norm_least']:.2f}, {line['norm_greatest']:.2f}], "
            f"[0, {line['entropy_greatest']:.2f}]"
            for line in lines
        ]
        if not ranges:
            return "; ".join(words), _holds(same), "attained by uniform and by one-hot rows"
        drawn = sum(line["matrices"] for line in ranges)
        evidence = f"{outside} of {drawn:,} matrices drawn of {len(ranges)} cores lie outside"
        for line in ranges:
            if line["empty"]:
                evidence += (
                    f"; beside them {line['empty']} of {line['core']} have a row without any weight, which does not "
                    f"sum to 1, and norms down to {line['norm_least_empty']:.2f}"
                )
        return "; ".join(words), _holds(same and not outside), evidence

    return _drawn(results, rule, decide)


@claim_test
def dirichlet_relation(results: Results, paper: Paper) -> Decision:
    """Figure 10: entropy and norm of drawn rows."""
    rule = (
        "correlation of entropy and norm for each α, and mean entropies; reproduced if every correlation is below -0.9 "
        f"and the smaller α has the smaller mean by {ERRORS} standard errors"
    )

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        lines = sorted(found.summary["dirichlet"], key=lambda line: line["alpha"])
        low, high = lines[0], lines[-1]
        apart = high["entropy"] - low["entropy"] > ERRORS * math.hypot(high["entropy_error"], low["entropy_error"])
        inverse = all(line["correlation"] < -0.9 for line in lines)
        measured = "; ".join(
            f"α = {line['alpha']:g}: H {with_error(line['entropy'], line['entropy_error'])}, correlation "
            f"{line['correlation']:.2f}"
            for line in lines
        )
        outside = sum(line["outside_bounds"] for line in lines)
        evidence = f"{outside} rows lie outside the bounds that hold for every row; nothing here is a gradient"
        return measured, _holds(apart and inverse), evidence

    return _drawn(results, rule, decide)


@claim_test
def controlled_variance(results: Results, paper: Paper) -> Decision:
    """Figure 3: the softmax's entropy falls with the variance of the logits, the ReLU kernel's does not move."""
    rule = "entropy along σ; reproduced if the softmax's falls at every step and the ReLU kernel's stays within 0.001"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        by_core = {
            core: [line["entropy"] for line in found.lines("controlled", core=core)] for core in ("softmax", "relu")
        }
        falls = all(a > b for a, b in zip(by_core["softmax"], by_core["softmax"][1:], strict=False))
        flat = max(by_core["relu"]) - min(by_core["relu"]) < 1e-3
        measured = "; ".join(f"{core} {values[0]:.2f} to {values[-1]:.2f}" for core, values in by_core.items())
        return measured, _holds(falls and flat), "logits of exactly this variance, Definition 5.2"

    return _drawn(results, rule, decide)


@claim_test
def layernorm_invariant(results: Results, paper: Paper) -> Decision:
    """Whether QK-LayerNorm's entropy keeps still when queries are scaled."""
    rule = "mean entropy at factors 0.1 to 1000 on the queries; reproduced if within 1 % of that at factor 1"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        by_factor = {line["factor"]: line["entropy"] for line in found.summary["layernorm"]}
        off = max(abs(h / by_factor[1.0] - 1) for factor, h in by_factor.items() if factor >= 0.1)
        least = min(by_factor)
        evidence = (
            f"at factor {least:g}, where the variance is below LayerNorm's ε, the entropy is {by_factor[least]:.3f} "
            f"instead of {by_factor[1.0]:.3f}"
        )
        return f"{off:.2%} at most", _holds(off < 0.01), evidence

    return _drawn(results, rule, decide)


@claim_test
def norm_and_gradient(results: Results, paper: Paper) -> Decision:
    """Whether every collapse of entropy enlarges what multiplies the gradient through P V."""
    rule = "spectral norm of attention matrices of entropy 0 over that of uniform rows; reproduced if above 1 for all"

    def decide(found: TheoryResults) -> tuple[str, Verdict, str]:
        collapsed = [line for line in found.summary["matrices"] if line["entropy"] < 1e-9]
        measured = "; ".join(
            f"{line['matrix']}: ‖P‖_F {line['frobenius']:.2f}, spectral {line['spectral']:.2f}" for line in collapsed
        )
        good = all(line["spectral"] > 1 + 1e-9 for line in collapsed)
        return measured, _holds(good), "Eq. 9 bounds the spectral norm by ‖P‖_F, which is larger"

    return _drawn(results, rule, decide)


@claim_test
def entropy_second_order(results: Results, paper: Paper) -> Decision:
    """Appendix E.2's terms of order sigma^2 against the entropy of one z, for z = sigma (-1, 0, 1)."""
    rule = "coefficient of σ² of H(σ(-1, 0, 1)), by H at σ = 0.001; reproduced if Eq. 29 and 31 give it within 1e-4"
    draw, sigma = (-1.0, 0.0, 1.0), 1e-3
    weights = [math.exp(sigma * x) for x in draw]
    p = [w / sum(weights) for w in weights]
    coefficient = (-sum(x * math.log(x) for x in p) - math.log(len(draw))) / sigma**2
    spread = sum(x * x for x in draw) / len(draw)  # S_2; the mean of the draw is 0
    log_n = math.log(len(draw))
    printed = {
        "Eq. 29 summed": sum(x * x / 2 - spread / 2 + spread / 2 * log_n for x in draw) / len(draw),
        "Eq. 31": spread / 2 * log_n - spread + spread / 2,
        "Eq. 32": -spread / 2,
    }
    right = {name: abs(value - coefficient) < 1e-4 for name, value in printed.items()}
    measured = (
        "; ".join(f"{name} {value:.4f}" for name, value in printed.items()) + f"; entropy itself {coefficient:.4f}"
    )
    evidence = f"right: {', '.join(name for name, same in right.items() if same)}; §1 of docs/variance_sensitivity.md"
    return Decision(rule, measured, PUBLISHED_ONLY, _holds(all(right.values())), evidence)


# Language models --------------------------------------------------------------------------------------------------

_QUANTITIES: dict[str, tuple[str, Callable[[Results, str], dict[int, float]]]] = {
    "entropy": ("mean entropy at the end", lambda results, run: models.last(results, run, "entropy")),
    "norm": ("‖P‖_F at the end", lambda results, run: models.last(results, run, "norm")),
    "gradient": (
        "mean gradient norm of the second half",
        lambda results, run: models.late_mean(results, run, "gradient_norm"),
    ),
    "loss": (
        "mean training loss of the second half",
        lambda results, run: models.late_mean(results, run, "train_loss"),
    ),
}


def _left_out(results: Results, *runs: str) -> str:
    """Why a claim on these runs is not judged at the report's scale, "" if it is."""
    return next((words for run in runs if (words := models.left_out(results, run))), "")


@claim_test
def core_order(results: Results, paper: Paper, *, runs: list[str], base: str, quantity: str, sign: int) -> Decision:
    """Whether a quantity of every one of `runs` lies above (`sign` 1) or below (-1) that of `base`, paired by seed."""
    name, read = _QUANTITIES[quantity]
    where = "above" if sign > 0 else "below"
    rule = (
        f"{name}, minus that of {base}, paired by seed; reproduced if every interval is {where} 0, direction "
        "reproduced if one is and none is on the other side"
    )
    if words := _left_out(results, *runs, base):
        return untested(rule, results, words)
    found = [estimate(difference(read(results, run), read(results, base))) for run in runs]
    for run, one in zip(runs, found, strict=True):
        if missing := training_gap(results, one, (run, base)):
            return untested(rule, results, missing)
    signs = [one.excludes(0) * sign for one in found]
    measured = "; ".join(f"{run} {one.text(3)}" for run, one in zip(runs, found, strict=True))
    verdict = by_signs(results, signs)
    turned = [run for run, s in zip(runs, signs, strict=True) if s < 0]
    evidence = sources(results, *runs, base) + (f"; the opposite holds for {', '.join(turned)}" if turned else "")
    return Decision(rule, measured, results.scale, verdict, evidence)


@claim_test
def core_entropy_falls(results: Results, paper: Paper, *, run: str) -> Decision:
    """Whether the mean entropy of `run` is lower at the end of training than after its first step."""
    rule = "mean entropy at the end minus that after the first step; reproduced if the interval is below 0"
    if words := _left_out(results, run):
        return untested(rule, results, words)
    found = estimate(models.change(results, run, "entropy"))
    if missing := training_gap(results, found, (run,)):
        return untested(rule, results, missing)
    verdict: Verdict = "reproduced" if found.excludes(0) < 0 else absent(results)
    return Decision(rule, found.text(3, "nats"), results.scale, verdict, sources(results, run))


@claim_test
def core_loss_spikes(results: Results, paper: Paper, *, run: str, rise: float) -> Decision:
    """Whether the training loss of `run` ends far above its own minimum, or is not finite."""
    rule = f"last training loss minus the least one, every seed; reproduced if above {rise} nats or not finite in all"
    if words := _left_out(results, run):
        return untested(rule, results, words)
    runs = results.seeds(run)
    rises = {}
    for trained in runs:
        values = models.series(models.log_of(results, trained), "train_loss")[1]
        if trained.diverged or values:
            rises[trained.seed] = math.inf if trained.diverged else values[-1] - min(values)
    if len(rises) < 2:
        return untested(rule, results, f"fewer than two seeds: {sources(results, run)}")
    measured = "; ".join(f"seed {seed} {'NaN' if math.isinf(v) else f'{v:.3f}'}" for seed, v in rises.items())
    spiked = [v > rise for v in rises.values()]
    verdict: Verdict = "reproduced" if all(spiked) else "direction reproduced" if any(spiked) else absent(results)
    return Decision(rule, measured, results.scale, verdict, sources(results, run))
