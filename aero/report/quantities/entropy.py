"""Quantities of attention entropy: heads per quarter of the maximum, layers, learned values, the landscape.

Quarters are those of AERO Section 3, of the largest observed head: a head in the highest quarter is overloaded, one in
the lowest quarter, or whose entropy is not finite, has collapsed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aero.landscape import entropy_range, gini_by_layer, steepness, steepness_over_orders, wasserstein_1
from aero.report.quantities.trainings import not_run, of_trainings, seeds, trained
from aero.report.results import Results
from aero.report.statistics import Estimate, difference, estimate
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"


def clipped(found: Estimate | None, low: float, high: float) -> Estimate | None:
    """The estimate with its interval clipped to the feasible range."""
    if found is None or found.low is None or found.high is None:
        return found
    return replace(found, low=max(low, found.low), high=min(high, found.high))


def share_of_heads(
    results: Results, run: str, quarters: list[int], above: str | None = None, digits: int = 2
) -> Measurement:
    """Share of the heads of `run` in the given quarters (0 to 3) of the largest observed entropy; and how much larger
    it is than that of the run `above`, so that a model that has not learnt does not count as overloaded."""
    own = results.share_of_heads(run, quarters)
    found, more, text = clipped(estimate(own), 0.0, 1.0), {}, None
    if above and found is not None:
        excess = clipped(estimate(difference(own, results.share_of_heads(above, quarters))), -1.0, 1.0)
        more = {above: excess}
        text = found.text(digits) + (f", {excess.text(digits)} more than {above}" if excess else "")
    return of_trainings(results, (run, above) if above else (run,), {"": found}, against=more, digits=digits, text=text)


def difference_of_shares(results: Results, run: str, base: str, quarters: list[int]) -> Measurement:
    """Share of heads in the given quarters (0 to 3) of the largest observed entropy, `run` minus `base`, by seed."""
    own, other = results.share_of_heads(run, quarters), results.share_of_heads(base, quarters)
    found, text, means = estimate(difference(own, other)), None, []
    if found is not None:
        means = [math.fsum(side[seed] for seed in found.seeds) / len(found.seeds) for side in (own, other)]
        text = f"{means[0]:.2f} - {means[1]:.2f} = {found.text(2)}"
    return of_trainings(results, (run, base), {"": found}, text=text, fractions=means)


def _layers(results: Results, run: str) -> dict[int, NDArray[np.float64]]:
    """By seed, the mean entropy of each layer over the causal bound, (L,)."""
    return {
        r.seed: np.array(r.entropy.mean).mean(1) / bound
        for r in results.seeds(run)
        if r.entropy and (bound := r.entropy.maximum.get("causal_bound"))
    }


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Means of the first and the last third of the layers."""
    third = len(values) // 3
    return float(values[:third].mean()), float(values[-third:].mean())


def early_entropy(results: Results, run: str, base: str) -> Measurement:
    """Mean entropy of the first half of the layers over the causal bound, `run` minus `base`, paired by seed."""
    early = [{s: float(v[: len(v) // 2].mean()) for s, v in _layers(results, name).items()} for name in (run, base)]
    return of_trainings(results, (run, base), {"": difference(*early)}, digits=3)


def early_minus_deep(results: Results, run: str) -> Measurement:
    """Mean entropy over the causal bound, first third of the layers minus last third."""
    ends = {seed: _ends(v) for seed, v in _layers(results, run).items() if len(v) >= 3}
    return of_trainings(results, (run,), {"": {seed: first - last for seed, (first, last) in ends.items()}}, digits=3)


def learned_trend(results: Results, run: str, name: str) -> Measurement:
    """A learned value of the layers (alpha, beta), mean of the last third of the layers minus the first third."""
    values = {r.seed: r.entropy.learned[name] for r in results.seeds(run) if r.entropy and r.entropy.learned.get(name)}
    ends = {seed: _ends(np.array(v)) for seed, v in values.items()}
    return of_trainings(results, (run,), {"": {seed: last - first for seed, (first, last) in ends.items()}}, digits=3)


def spread_of_thresholds(results: Results, run: str) -> Measurement:
    """Standard deviation of the learned thresholds, as shares of E_max: between layers and between a layer's heads."""
    learned = {
        r.seed: np.array(r.entropy.learned["thresholds"])
        for r in results.seeds(run)
        if r.entropy and r.entropy.learned.get("thresholds")
    }
    spreads = {
        "layers": {seed: float(heads.mean(1).std(ddof=1)) for seed, heads in learned.items()},
        "heads": {seed: float(heads.std(1, ddof=1).mean()) for seed, heads in learned.items()},
    }
    return of_trainings(results, (run,), spreads, digits=3)


def returning_slopes(results: Results, run: str, near: float) -> Measurement:
    """Whether the learned slopes end nearer to 0 than they have been in every seed; and whether they end within `near`
    after having been further away (1 or 0)."""
    found = {}
    for one in results.seeds(run):
        rows = [[abs(v) for v in row if v is not None] for row in (one.log.slopes if one.log else ())]
        if sizes := [max(row) for row in rows if row]:
            found[f"seed {one.seed}"] = (max(sizes), sizes[-1])
    missing = not_run(results, run) or ("" if len(found) > 1 else "one seed" if found else "slopes not logged")
    return trained(
        results,
        "; ".join(f"{seed} {peak:.3f}, at the end {end:.3f}" for seed, (peak, end) in found.items()),
        seeds(results, run),
        effects={seed: exact(float(end <= near < peak)) for seed, (peak, end) in found.items()},
        checks={seed: end < peak for seed, (peak, end) in found.items()},
        missing=missing,
    )


def _first_slopes(results: Results, run: str, share: float) -> dict[int, NDArray[np.float64]]:
    """By seed, the slopes (steps, L or 1) logged in the first `share` of training, that of the start included."""
    found = {}
    for one in results.seeds(run):
        logged = zip(one.log.step, one.log.slopes, strict=False) if one.log else ()
        rows = [(step, row) for step, row in logged if row and all(value is not None for value in row)]
        early = [row for step, row in rows if step <= share * rows[-1][0]]
        if len(early) > 1:
            found[one.seed] = np.array(early, dtype=float)
    return found


def first_slopes(results: Results, run: str, share: float) -> Measurement:
    """Learned slopes, mean over the first `share` of training, in the first and the last third of the layers."""
    ends = {seed: _ends(slopes.mean(0)) for seed, slopes in _first_slopes(results, run, share).items()}
    thirds = {f"{name} third": {s: both[k] for s, both in ends.items()} for k, name in enumerate(("first", "last"))}
    return of_trainings(results, (run,), thirds, digits=4)


def first_slope_shift(results: Results, run: str, share: float) -> Measurement:
    """The learned slope that all layers share, mean over the first `share` of training minus its start."""
    slopes = _first_slopes(results, run, share)
    return of_trainings(results, (run,), {"": {s: float(v.mean() - v[0].mean()) for s, v in slopes.items()}}, digits=4)


# The entropy landscape ------------------------------------------------------------------------------------------------

Statistic = Callable[[NDArray[np.float64]], float]


def _deep(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The second half of the layers."""
    return values[len(values) // 2 :]


_STATISTICS: dict[str, Statistic] = {
    "highest_head": lambda e: entropy_range(e)[1],
    "mean_gini": lambda e: float(gini_by_layer(e).mean()),
    "mean_entropy": lambda e: float(np.nanmean(e)),
    "deep_steepness": lambda e: float(np.nanmean(_deep(steepness(e)))),
    "deep_steepness_over_orders": lambda e: float(_deep(steepness_over_orders(e)).mean()),
}


def _landscapes(results: Results, run: str, statistic: Statistic) -> dict[int, float]:
    """A statistic of the mean entropies (L, H), by seed."""
    return {r.seed: statistic(np.array(r.entropy.mean)) for r in results.seeds(run) if r.entropy}


def landscape_change(results: Results, run: str, base: str, statistic: str) -> Measurement:
    """A statistic of the heads' mean entropies (nats; Gini coefficients and steepness have no unit), `run` minus
    `base`, paired by seed."""

    def change(name: str) -> Estimate | None:
        return estimate(difference(*(_landscapes(results, one, _STATISTICS[name]) for one in (run, base))))

    found, text = change(statistic), None
    if statistic == "deep_steepness" and found is not None and (free := change("deep_steepness_over_orders")):
        text = f"{found.text(3)}; {free.text(3)} over random orders of the heads"
    return of_trainings(results, (run, base), {"": found}, digits=3, text=text)


def deep_minus_early_steepness(results: Results, run: str) -> Measurement:
    """Steepness of the landscape, mean over the second half of the layers minus the first half."""

    def fall(landscape: NDArray[np.float64]) -> float:
        steep = steepness(landscape)
        return float(np.nanmean(_deep(steep)) - np.nanmean(steep[: len(steep) // 2]))

    return of_trainings(results, (run,), {"": _landscapes(results, run, fall)}, digits=3)


def distribution_shift(results: Results, run: str, base: str) -> Measurement:
    """Wasserstein-1 distance of the heads of `run` from those of `base` over the causal bound, paired by seed; over the
    bound because entropies grow with the context."""
    others = {r.seed: r.entropy for r in results.seeds(base) if r.entropy}
    shifts = {
        r.seed: wasserstein_1(r.entropy.mean, others[r.seed].mean) / r.entropy.maximum["causal_bound"]
        for r in results.seeds(run)
        if r.entropy and r.seed in others
    }
    return of_trainings(results, (run, base), {"": shifts}, digits=3, unit="of the causal bound")
