"""Tests of claims about attention entropy: heads per quarter of the maximum, layers, learned values, the landscape.

The quarters are those of AERO Section 3, with its two named rules: a head whose mean entropy is in the highest quarter
of the maximum is overloaded, one in the lowest or not finite has collapsed (`aero.entropy.overload`,
`aero.entropy.collapse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aero.entropy import causal_bound
from aero.landscape import entropy_range, gini_by_layer, steepness, steepness_over_orders, wasserstein_1
from aero.published import Paper
from aero.report.decisions import (
    Decision,
    Verdict,
    absent,
    by_signs,
    claim_test,
    sized,
    sources,
    training_gap,
    untested,
)
from aero.report.results import Results, Run
from aero.report.statistics import Estimate, estimate
from aero.report.statistics import difference as _difference

_QUARTERS = {
    (0,): "the lowest quarter of the observed maximum or not finite",
    (1, 2): "the two middle quarters of the observed maximum",
    (3,): "the highest quarter of the observed maximum",
}
"""As `Results.share_of_heads` counts them."""


def within(found: Estimate | None, low: float, high: float) -> Estimate | None:
    """The estimate of what cannot leave [low, high], its interval cut there: a t-interval knows no such ends."""
    if found is None or found.low is None or found.high is None:
        return found
    return replace(found, low=max(low, found.low), high=min(high, found.high))


def _share(results: Results, run: str, quarters: list[int]) -> Estimate | None:
    """The fraction of heads in the given quarters, over seeds."""
    return within(estimate(results.share_of_heads(run, quarters)), 0.0, 1.0)


@claim_test
def head_fraction(
    results: Results,
    paper: Paper,
    *,
    run: str,
    quarters: list[int],
    fraction: float,
    tolerance: float,
    above: str | None = None,
) -> Decision:
    """The fraction of heads in the given quarters of the largest observed entropy.

    above: a run that must have a smaller fraction, so that a model that merely has not learnt yet, all of whose heads
    are still near the maximum, does not pass for overloaded.
    """
    than = f" and that of {above} is smaller beyond seed noise" if above else ""
    rule = (
        f"fraction of heads in {_QUARTERS[tuple(quarters)]}; direction reproduced if the interval "
        f"lies above an even spread ({len(quarters) / 4:.2f}){than}, reproduced if the mean is within "
        f"{tolerance:.2f} of {fraction:.2f} besides, at scale paper"
    )
    found = _share(results, run, quarters)
    runs = (run, above) if above else (run,)
    if gap := training_gap(results, found, runs, "measured"):
        return untested(rule, results, gap, f"{found.mean:.2f}" if found else "")
    measured = found.text(2)
    if above:
        ours, theirs = (results.share_of_heads(name, quarters) for name in runs)
        more = within(estimate(_difference(ours, theirs)), -1.0, 1.0)
        if gap := training_gap(results, more, runs, "measured"):
            return untested(rule, results, gap, measured)
        measured += f", {more.text(2)} more than {above}"
        if more.excludes(0) <= 0:
            return Decision(rule, measured, results.scale, absent(results), sources(results, *runs))
    beyond = found.excludes(len(quarters) / 4) > 0
    verdict: Verdict = sized(results, abs(found.mean - fraction) <= tolerance) if beyond else absent(results)
    return Decision(rule, measured, results.scale, verdict, sources(results, *runs))


@claim_test
def head_fraction_difference(
    results: Results, paper: Paper, *, run: str, base: str, quarters: list[int], difference: float, tolerance: float
) -> Decision:
    """How much larger the fraction of heads in the given quarters is in `run` than in `base`, paired by seed."""
    rule = (
        f"fraction of heads in {_QUARTERS[tuple(quarters)]}, {run} - {base}; direction reproduced "
        f"if the interval lies on the published side of 0, reproduced if the mean is within {tolerance:.4g} "
        f"of {difference:.4g} besides, at scale paper"
    )
    ours, theirs = results.share_of_heads(run, quarters), results.share_of_heads(base, quarters)
    found = estimate(_difference(ours, theirs))
    if gap := training_gap(results, found, (run, base), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.2f}" if found else "")
    beyond = found.excludes(0) == (1 if difference > 0 else -1)
    verdict: Verdict = sized(results, abs(found.mean - difference) <= tolerance) if beyond else absent(results)
    each = " - ".join(f"{_mean([side[seed] for seed in found.seeds]):.2f}" for side in (ours, theirs)) + " = "
    return Decision(rule, each + found.text(2), results.scale, verdict, sources(results, run, base))


def _layer_means(results: Results, run: str) -> dict[int, list[float]]:
    """Mean entropy of each layer over its heads as a fraction of the causal bound, by seed."""
    means = {}
    for trained in results.seeds(run):
        if trained.entropy and (bound := trained.entropy.maximum.get("causal_bound")):
            means[trained.seed] = [math.fsum(layer) / len(layer) / bound for layer in trained.entropy.mean]
    return means


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


@claim_test
def early_entropy(results: Results, paper: Paper, *, run: str, base: str) -> Decision:
    """How much closer to the causal bound the first half of the layers stands in `run` than in `base`."""
    rule = (
        f"mean entropy of the first half of the layers over the causal bound, {run} - {base}, paired; direction "
        "reproduced if the interval is above 0 (the paper prints no number to compare)"
    )
    ours, theirs = _layer_means(results, run), _layer_means(results, base)
    first = {seed: _mean(v[: len(v) // 2]) for seed, v in ours.items()}
    found = estimate(_difference(first, {seed: _mean(v[: len(v) // 2]) for seed, v in theirs.items()}))
    if gap := training_gap(results, found, (run, base), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.3f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) > 0 else absent(results)
    return Decision(rule, found.text(3), results.scale, verdict, sources(results, run, base))


@claim_test
def early_minus_deep(results: Results, paper: Paper, *, run: str) -> Decision:
    """How much the first third of the layers stands above the last third, in fractions of the causal bound."""
    rule = (
        "mean entropy over the causal bound, first third of the layers minus last third; direction reproduced if the "
        "interval is above 0 (the paper prints no number to compare)"
    )
    layers = _layer_means(results, run)
    found = estimate(
        {seed: _mean(v[: len(v) // 3]) - _mean(v[-(len(v) // 3) :]) for seed, v in layers.items() if len(v) >= 3}
    )
    if gap := training_gap(results, found, (run,), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.3f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) > 0 else absent(results)
    return Decision(rule, found.text(3), results.scale, verdict, sources(results, run))


@claim_test
def fewer_heads(results: Results, paper: Paper, *, run: str, base: str, quarters: list[int]) -> Decision:
    """Whether `run` has fewer heads in the given quarters of the observed maximum than `base`, paired by seed."""
    rule = (
        f"fraction of heads in {_QUARTERS[tuple(quarters)]}, {run} - {base}; direction reproduced "
        "if the interval is below 0 (the paper prints no number to compare)"
    )
    ours, theirs = results.share_of_heads(run, quarters), results.share_of_heads(base, quarters)
    found = estimate(_difference(ours, theirs))
    if gap := training_gap(results, found, (run, base), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.2f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) < 0 else absent(results)
    each = " - ".join(f"{_mean([side[seed] for seed in found.seeds]):.2f}" for side in (ours, theirs)) + " = "
    return Decision(rule, each + found.text(2), results.scale, verdict, sources(results, run, base))


@claim_test
def few_heads(
    results: Results,
    paper: Paper,
    *,
    run: str,
    quarters: list[int],
    fraction: float,
    tolerance: float,
    below: float | None = None,
) -> Decision:
    """Whether hardly any head of `run` is in the given quarters of the observed maximum.

    below: what the interval must lie below; an even spread over the quarters unless it is given.
    """
    most, named = (len(quarters) / 4, "an even spread") if below is None else (below, "the stated most")
    rule = (
        f"fraction of heads in {_QUARTERS[tuple(quarters)]}; direction reproduced if the "
        f"interval lies below {named} ({most:.2f}), reproduced if the mean is within "
        f"{tolerance:.4g} of {fraction:.4g} besides, at scale paper"
    )
    found = _share(results, run, quarters)
    if gap := training_gap(results, found, (run,), "measured"):
        return untested(rule, results, gap, f"{found.mean:.2f}" if found else "")
    met = abs(found.mean - fraction) <= tolerance
    verdict: Verdict = sized(results, met) if found.excludes(most) < 0 else absent(results)
    return Decision(rule, found.text(3), results.scale, verdict, sources(results, run))


@claim_test
def learned_trend(results: Results, paper: Paper, *, run: str, name: str, rises: bool) -> Decision:
    """Whether a learned value of the layers, such as alpha, rises or falls with depth."""
    rule = (
        f"learned {name} of {run}, mean of the last third of the layers minus the first; direction reproduced if the "
        f"interval is {'above' if rises else 'below'} 0 (the paper prints no number to compare)"
    )
    values = {r.seed: r.entropy.learned[name] for r in results.seeds(run) if r.entropy and r.entropy.learned.get(name)}
    thirds = {seed: len(v) // 3 for seed, v in values.items()}
    found = estimate({seed: _mean(v[-thirds[seed] :]) - _mean(v[: thirds[seed]]) for seed, v in values.items()})
    if gap := training_gap(results, found, (run,), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.3f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) * (1 if rises else -1) > 0 else absent(results)
    return Decision(rule, found.text(3), results.scale, verdict, sources(results, run))


@claim_test
def thresholds_vary(results: Results, paper: Paper, *, run: str, least: float) -> Decision:
    """Whether the learned thresholds differ between layers and between the heads of a layer."""
    rule = (
        f"standard deviation of the learned thresholds of {run}, between the layers' means and within a layer (mean of "
        f"the layers); direction reproduced if both intervals lie above {least} of E_max (the paper prints no number)"
    )
    learned = {
        r.seed: np.array(r.entropy.learned["thresholds"])
        for r in results.seeds(run)
        if r.entropy and r.entropy.learned.get("thresholds")
    }
    between = estimate({seed: float(heads.mean(1).std(ddof=1)) for seed, heads in learned.items()})
    within = estimate({seed: float(heads.std(1, ddof=1).mean()) for seed, heads in learned.items()})
    measured = f"layers {between.text(3)}, heads {within.text(3)}" if between and within else ""
    if gap := training_gap(results, between, (run,), "measured"):
        return untested(rule, results, gap, measured)
    verdict: Verdict = (
        "direction reproduced" if between.excludes(least) > 0 and within.excludes(least) > 0 else absent(results)
    )
    return Decision(rule, measured, results.scale, verdict, sources(results, run))


@claim_test
def slopes_vanish(results: Results, paper: Paper, *, run: str, near: float) -> Decision:
    """Whether learned negative slopes move away from 0 in training and come back to it."""
    rule = (
        f"largest magnitude of the slopes of {run} over training and at its end; reproduced if every seed ends within "
        f"{near} of 0 after having been further away, direction reproduced if every seed ends nearer than it has been"
    )
    found: dict[int, tuple[float, float]] = {}
    for trained in results.seeds(run):
        rows = [row for row in (trained.log.slopes if trained.log else ()) if any(v is not None for v in row)]
        if rows:
            sizes = [max(abs(v) for v in row if v is not None) for row in rows]
            found[trained.seed] = (max(sizes), sizes[-1])
    measured = "; ".join(f"seed {seed} {peak:.3f}, at the end {end:.3f}" for seed, (peak, end) in found.items())
    if len(found) < 2:
        missing = "slopes not logged" if results.seeds(run) and not found else "one seed" if found else "not run yet"
        return untested(rule, results, f"{missing}: {run}", measured)
    pairs = list(found.values())
    verdict: Verdict = (
        "reproduced"
        if all(end <= near < peak for peak, end in pairs)
        else "direction reproduced"
        if all(end < peak for peak, end in pairs)
        else absent(results)
    )
    return Decision(rule, measured, results.scale, verdict, sources(results, run))


def _early_slopes(results: Results, run: str, share: float) -> dict[int, NDArray[np.float64]]:
    """By seed, the slopes (steps, L or 1) that were logged in the first `share` of training, the start's among them."""
    found = {}
    for trained in results.seeds(run):
        logged = zip(trained.log.step, trained.log.slopes, strict=False) if trained.log else ()
        rows = [(step, row) for step, row in logged if row and all(value is not None for value in row)]
        early = [row for step, row in rows if step <= share * rows[-1][0]]
        if len(early) > 1:
            found[trained.seed] = np.array(early, dtype=float)
    return found


@claim_test
def slopes_at_first(results: Results, paper: Paper, *, run: str, share: float) -> Decision:
    """Whether at first the early layers learn a positive slope and the deeper ones a negative one."""
    rule = (
        f"learned slopes of {run}, mean over the first {share:.0%} of training; reproduced if the interval of the "
        "first third of the layers is above 0 and that of the last below, direction reproduced if one is and the other "
        "is not on the wrong side"
    )
    means = {seed: slopes.mean(0) for seed, slopes in _early_slopes(results, run, share).items()}
    early = estimate({seed: float(v[: len(v) // 3].mean()) for seed, v in means.items()})
    deep = estimate({seed: float(v[-(len(v) // 3) :].mean()) for seed, v in means.items()})
    measured = f"first third {early.text(4)}, last third {deep.text(4)}" if early and deep else ""
    if gap := training_gap(results, early, (run,), "logged"):
        return untested(rule, results, gap, measured)
    verdict = by_signs(results, (early.excludes(0), -deep.excludes(0)))
    return Decision(rule, measured, results.scale, verdict, sources(results, run))


@claim_test
def slope_shifts_up(results: Results, paper: Paper, *, run: str, share: float) -> Decision:
    """Whether the one slope of all layers shifts to positive at first."""
    rule = (
        f"learned slope of {run}, mean over the first {share:.0%} of training minus its start; direction reproduced if "
        "the interval is above 0 (the paper prints no number to compare)"
    )
    slopes = _early_slopes(results, run, share)
    found = estimate({seed: float(values.mean() - values[0].mean()) for seed, values in slopes.items()})
    if gap := training_gap(results, found, (run,), "logged"):
        return untested(rule, results, gap, f"{found.mean:+.4f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) > 0 else absent(results)
    return Decision(rule, found.text(4), results.scale, verdict, sources(results, run))


Statistic = Callable[[NDArray[np.float64]], float]


def _of_landscapes(results: Results, run: str, statistic: Statistic) -> dict[int, float]:
    """A statistic of the mean entropies (L, H), by seed."""
    return {r.seed: statistic(np.array(r.entropy.mean)) for r in results.seeds(run) if r.entropy}


def _compared(results: Results, run: str, base: str, statistic: Statistic) -> Estimate | None:
    return estimate(_difference(_of_landscapes(results, run, statistic), _of_landscapes(results, base, statistic)))


def _mean_gini(landscape: NDArray[np.float64]) -> float:
    return float(gini_by_layer(landscape).mean())


def _deep(landscape: NDArray[np.float64]) -> NDArray[np.float64]:
    """The paper's deeper layers: the second half (6 to 11 of 12, counted from 0)."""
    return landscape[len(landscape) // 2 :]


_LANDSCAPE: dict[str, tuple[str, Statistic]] = {
    "highest_head": ("entropy of the highest head, nats", lambda e: entropy_range(e)[1]),
    "mean_gini": ("Gini coefficient of a layer's heads, mean over layers", _mean_gini),
    "mean_entropy": ("mean entropy of all heads, nats", lambda e: float(np.nanmean(e))),
    "deep_steepness": (
        "steepness over the second half of the layers, mean",
        lambda e: float(np.nanmean(_deep(steepness(e)))),
    ),
}


@claim_test
def landscape_changes(results: Results, paper: Paper, *, run: str, base: str, statistic: str, rises: bool) -> Decision:
    """Whether a statistic of the heads' mean entropies rises or falls from `base` to `run`, paired by seed."""
    what, function = _LANDSCAPE[statistic]
    rule = (
        f"{what}, {run} - {base}; direction reproduced if the interval is {'above' if rises else 'below'} 0 (sizes are "
        "not compared: entropies grow with the context)"
    )
    found = _compared(results, run, base, function)
    if gap := training_gap(results, found, (run, base), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.3f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) * (1 if rises else -1) > 0 else absent(results)
    measured = found.text(3)
    if statistic == "deep_steepness":
        free = _compared(results, run, base, lambda e: float(_deep(steepness_over_orders(e)).mean()))
        measured += f"; {free.text(3)} over random orders of the heads" if free else ""
    return Decision(rule, measured, results.scale, verdict, sources(results, run, base))


@claim_test
def deep_layers_flat(results: Results, paper: Paper, *, run: str) -> Decision:
    """Whether the landscape is flatter in the second half of the layers than in the first."""
    rule = (
        "steepness, mean over the second half of the layers minus the first; direction reproduced if the interval is "
        "below 0 (the paper prints no number to compare)"
    )

    def fall(landscape: NDArray[np.float64]) -> float:
        steep = steepness(landscape)
        return float(np.nanmean(_deep(steep)) - np.nanmean(steep[: len(steep) // 2]))

    found = estimate(_of_landscapes(results, run, fall))
    if gap := training_gap(results, found, (run,), "measured"):
        return untested(rule, results, gap, f"{found.mean:+.3f}" if found else "")
    verdict: Verdict = "direction reproduced" if found.excludes(0) < 0 else absent(results)
    return Decision(rule, found.text(3), results.scale, verdict, sources(results, run))


@claim_test
def distribution_shift(
    results: Results, paper: Paper, *, run: str, base: str, distance: float, context: int, tolerance: float
) -> Decision:
    """The Wasserstein-1 distance of all heads of `run` from those of `base`, over the causal bound.

    distance: published, nats, at `context`; over the bound because entropies grow with the context.
    """
    share = distance / causal_bound(context)
    rule = (
        f"Wasserstein-1 distance of the heads of {run} from those of {base} over the causal bound, paired by seed; "
        f"direction reproduced if the interval is above half of {distance} nats over {causal_bound(context):.3f} = "
        f"{share:.3f}, reproduced if the mean is within {tolerance:.0%} of that besides, at scale paper"
    )
    theirs = {r.seed: r for r in results.seeds(base) if r.entropy}
    found = estimate({r.seed: _shift(r, theirs[r.seed]) for r in results.seeds(run) if r.entropy and r.seed in theirs})
    if gap := training_gap(results, found, (run, base), "measured"):
        return untested(rule, results, gap, f"{found.mean:.3f}" if found else "")
    beyond = found.excludes(share / 2) > 0
    verdict: Verdict = sized(results, abs(found.mean - share) <= tolerance * share) if beyond else absent(results)
    text = f"{found.text(3)} of the causal bound (printed: {share:.3f})"
    return Decision(rule, text, results.scale, verdict, sources(results, run, base))


def _shift(run: Run, base: Run) -> float:
    return wasserstein_1(run.entropy.mean, base.entropy.mean) / run.entropy.maximum["causal_bound"]
