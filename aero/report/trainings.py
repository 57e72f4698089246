"""Quantities of models trained here: perplexity, failures, attention entropy, learned values, the landscape.

Quarters are those of AERO Section 3, of the largest observed head: a head in the highest quarter is overloaded, one in
the lowest quarter, or whose entropy is not finite, has collapsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.landscape import entropy_range, gini_by_layer, steepness, steepness_over_orders, wasserstein_1
from aero.report.papers import variance_cores
from aero.report.results import Entropy, Results
from aero.report.statistics import Estimate, change, difference, estimate, failed, outcomes, wilson
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"
Values = Mapping[int, float] | Estimate | None
"""Values by seed, or an estimate of them."""


def of_trainings(
    results: Results, runs: Iterable[str], effects: Mapping[str, Values], digits: int = 2, unit: str = "", **parts: Any
) -> Measurement:
    """A measurement of `runs` with one effect a name; with the reason if there can be no verdict.

    parts: of the measurement. notes: lines of evidence. text: by default that of the effects.
    """
    runs = tuple(dict.fromkeys(runs))
    found = {name: estimate(v) if isinstance(v, Mapping) else v for name, v in effects.items()}
    estimates = {name: one for name, one in found.items() if one is not None}
    missing = not_run(results, *runs)
    if not missing and len(estimates) < len(found):
        missing = "no seed has all that is compared"
    if not missing and any(not one.has_interval for one in estimates.values()):
        missing = "one seed: no interval"
    text = "; ".join(f"{name} {one.text(digits, unit, signed=unit == '%')}".strip() for name, one in estimates.items())
    evidence = "; ".join(filter(None, (seeds(results, *runs), *parts.pop("notes", ()))))
    return trained(results, evidence, **{"text": text, "effects": estimates, "missing": missing} | parts)


def trained(results: Results, evidence: str, **parts: Any) -> Measurement:
    """A measurement of models that were trained here."""
    return Measurement(scale=results.scale, evidence=evidence, trained=True, **parts)


def seeds(results: Results, *runs: str) -> str:
    """The file of the results and the seeds of the named runs."""
    parts = [f"{run} ({', '.join(str(r.seed) for r in found)})" for run in runs if (found := results.seeds(run))]
    return f"results/{results.scale}: {', '.join(parts)}" if parts else ""


def not_run(results: Results, *runs: str) -> str:
    """The runs without a result, as a reason for no verdict; "" if there are none."""
    missing = [run for run in runs if not results.seeds(run)]
    return f"not run yet: {', '.join(missing)}" if missing else ""


# Perplexity and attention cores ---------------------------------------------------------------------------------------


def perplexity_change(results: Results, run: str, base: str) -> Measurement:
    """Perplexity of `run` over that of `base` minus 1, in per cent: mean log ratio over seeds, pooled interval."""
    return perplexity_changes(results, {"": [run, base]})


def perplexity_changes(results: Results, pairs: dict[str, list[str]]) -> Measurement:
    """Perplexity of the first run of each pair over that of the second minus 1, in per cent: mean log ratios over
    seeds, pooled intervals."""
    found = {name: change(results, *pair) for name, pair in pairs.items()}
    notes = dict.fromkeys(one.note for one in found.values())
    runs = (run for pair in pairs.values() for run in pair)
    return of_trainings(results, runs, {name: one.estimate for name, one in found.items()}, unit="%", notes=notes)


def failures(results: Results, runs: list[str], none: bool = False) -> Measurement:
    """Which trainings of `runs` fail, also attempts that are not kept: a loss or gradient is not finite, bigrams of the
    same tokens do better, or values exceed float16, in which the papers trained; with `none`, of which runs none does.
    """
    trainings, text = {name: outcomes(results, name) for name in runs}, []
    for name in runs:
        beyond = [one.seed for one in results.seeds(name) if one.metrics.get("float16_overflow") is not None]
        for seed in beyond:
            trainings[name][seed][0] = True
        if every := sum(trainings[name].values(), []):
            overflow = f" ({len(beyond)} beyond float16)" if beyond else ""
            low, high = wilson(fmean(every), len(every))
            share = f"[{low:.0%}, {high:.0%}]"
            text.append(f"{name} at {results.scale}: {sum(every)} of {len(every)} trainings failed{overflow} {share}")
    shared = sorted(set.intersection(*map(set, trainings.values())))
    missing = not_run(results, *runs) or ("fewer than two seeds in common" if len(shared) < 2 else "")
    checks = {run: not any(sum(of_seed.values(), [])) for run, of_seed in trainings.items()}
    if not none:
        each = ((run, seed, enumerate(trainings[run][seed], start=1)) for run in runs for seed in shared)
        checks = {f"{run}, seed {seed}, training {k}": one for run, seed, every in each for k, one in every}
    return trained(results, seeds(results, *runs), text=", ".join(text), checks=checks, missing=missing)


# Attention cores (variance_sensitivity) -------------------------------------------------------------------------------


def core_difference(results: Results, runs: list[str], base: str, of: str) -> Measurement:
    """Entropy or norm at the end of training, or gradient norm or training loss over its second half, of each of `runs`
    minus `base`, paired by seed."""
    read = variance_cores.late_mean if of in ("gradient_norm", "train_loss") else variance_cores.last
    changes = {run: difference(read(results, run, of), read(results, base, of)) for run in runs}
    return of_trainings(results, (*runs, base), changes, digits=3)


def core_entropy_change(results: Results, run: str) -> Measurement:
    """Mean entropy at the end of training minus that after the first step."""
    return of_trainings(results, (run,), {"": variance_cores.change(results, run, "entropy")}, digits=3, unit="nats")


# Attention entropy ----------------------------------------------------------------------------------------------------


def _shares(results: Results, run: str, quarters: list[int]) -> dict[int, float]:
    """`Results.share_of_heads` of the seeds that trained."""
    failing = {one.seed for one in results.seeds(run) if failed(results, one)}
    return {seed: share for seed, share in results.share_of_heads(run, quarters).items() if seed not in failing}


def share_of_heads(results: Results, runs: list[str], quarters: list[int]) -> Measurement:
    """Share of the heads of each run in the given quarters (0 to 3) of the largest observed entropy."""
    shares = {run: _within(estimate(_shares(results, run, quarters)), 0.0) for run in runs}
    return of_trainings(results, runs, shares, digits=3)


def difference_of_shares(results: Results, runs: list[str], base: str, quarters: list[int]) -> Measurement:
    """Share of heads in the given quarters (0 to 3) of the largest observed entropy, each run minus `base`, by seed."""
    other = _shares(results, base, quarters)
    found, text, fractions = {}, [], []
    for run in runs:
        own = _shares(results, run, quarters)
        found[run] = one = _within(estimate(difference(own, other)), -1.0)
        if one is not None:
            means = [fmean(side[seed] for seed in one.seeds) for side in (own, other)]
            fractions += means
            text.append(f"{run} {means[0]:.3f}, {base} {means[1]:.3f}: {one.text(3, signed=True)}")
    return of_trainings(results, (*runs, base), found, text="; ".join(text), fractions=fractions)


def _within(found: Estimate | None, low: float, high: float = 1.0) -> Estimate | None:
    """The estimate with its interval clipped to the feasible range."""
    if found is None or found.low is None or found.high is None:
        return found
    return replace(found, low=max(low, found.low), high=min(high, found.high))


def early_entropy(results: Results, run: str, bases: list[str]) -> Measurement:
    """Mean entropy of the first half of the layers over the causal bound, `run` minus each of `bases`, by seed."""
    early = {name: _landscapes(results, name, lambda e: float(e[: len(e) // 2].mean())) for name in (run, *bases)}
    bound = {r.seed: r.entropy.maximum["causal_bound"] for r in results.seeds(run) if r.entropy}
    changes = {
        base: {seed: value / bound[seed] for seed, value in difference(early[run], early[base]).items()}
        for base in bases
    }
    return of_trainings(results, (run, *bases), changes, digits=3)


def learned_trends(results: Results, run: str, names: list[str]) -> Measurement:
    """Learned values of the layers (alpha, beta), mean of the last third of the layers minus the first third."""
    trends = {}
    for name in names:
        ends = {seed: _ends(values) for seed, values in _learned(results, run, name).items()}
        trends[name] = {seed: last - first for seed, (first, last) in ends.items()}
    return of_trainings(results, (run,), trends, digits=3)


def spread_of_thresholds(results: Results, run: str) -> Measurement:
    """Standard deviation of the learned thresholds, as shares of E_max: between layers and between a layer's heads."""
    learned = _learned(results, run, "thresholds")
    spreads = {
        "layers": {seed: float(heads.mean(1).std(ddof=1)) for seed, heads in learned.items()},
        "heads": {seed: float(heads.std(1, ddof=1).mean()) for seed, heads in learned.items()},
    }
    return of_trainings(results, (run,), spreads, digits=3)


def _learned(results: Results, run: str, name: str) -> dict[int, NDArray[np.float64]]:
    """By seed; a failed training has not learned its values."""
    found = {seed: entropy.learned.get(name) for seed, entropy in _entropies(results, run).items()}
    return {seed: np.array(values) for seed, values in found.items() if values}


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Means of the first and the last third of the layers."""
    third = len(values) // 3
    return float(values[:third].mean()), float(values[-third:].mean())


def returning_slopes(results: Results, runs: list[str], near: float) -> Measurement:
    """Whether the learned slopes end nearer to 0 than they have been in every seed; and whether they end within `near`
    after having been further away (1 or 0)."""
    largest = {
        f"{run}, seed {seed}": np.abs(slopes).max(1) for run in runs for seed, slopes in _slopes(results, run).items()
    }
    return trained(
        results,
        seeds(results, *runs),
        text="; ".join(f"{name}: at most {sizes.max():.3f}, last {sizes[-1]:.3f}" for name, sizes in largest.items()),
        effects={name: exact(float(sizes[-1] <= near < sizes.max())) for name, sizes in largest.items()},
        checks={name: bool(sizes[-1] < sizes.max()) for name, sizes in largest.items()},
        missing=not_run(results, *runs) or ("" if len(largest) >= 2 * len(runs) else "slopes of too few seeds"),
    )


def first_slopes(results: Results, run: str, shared: str, share: float) -> Measurement:
    """Learned slopes, mean over the first `share` of training: of the first and the last third of the layers of `run`,
    and of the one slope of `shared`, this minus its start."""
    early = {
        name: {s: v[: max(int(share * len(v)), 2)] for s, v in _slopes(results, name).items()} for name in (run, shared)
    }
    found = {
        "first third": {seed: _ends(slopes.mean(0))[0] for seed, slopes in early[run].items()},
        "last third": {seed: _ends(slopes.mean(0))[1] for seed, slopes in early[run].items()},
        "one for all": {seed: float(slopes.mean() - slopes[0].mean()) for seed, slopes in early[shared].items()},
    }
    return of_trainings(results, (run, shared), found, digits=4)


def _slopes(results: Results, run: str) -> dict[int, NDArray[np.float64]]:
    """By seed, the logged slopes (steps, L or 1)."""
    logged = {one.seed: one.logged("slope").dropna().to_numpy() for one in results.seeds(run)}
    return {seed: rows for seed, rows in logged.items() if len(rows) > 1}


# The entropy landscape ------------------------------------------------------------------------------------------------


def _deep(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The second half of the layers."""
    return values[len(values) // 2 :]


_STATISTICS = {
    "highest_head": lambda e: entropy_range(e)[1],
    "mean_gini": lambda e: float(gini_by_layer(e).mean()),
    "deep_steepness": lambda e: float(np.nanmean(_deep(steepness(e)))),
    "early_steepness": lambda e: float(np.nanmean(steepness(e)[: len(e) // 2])),
    "deep_steepness_over_orders": lambda e: float(_deep(steepness_over_orders(e)).mean()),
}


def _entropies(results: Results, run: str) -> dict[int, Entropy]:
    """The measured entropies by seed, failed trainings left out."""
    return {r.seed: r.entropy for r in results.seeds(run) if r.entropy and not failed(results, r)}


def _landscapes(results: Results, run: str, statistic: Callable[[NDArray[np.float64]], float]) -> dict[int, float]:
    """A statistic of the mean entropies (L, H), by seed."""
    return {seed: statistic(entropy.mean) for seed, entropy in _entropies(results, run).items()}


def landscape_change(results: Results, run: str, base: str, statistic: str) -> Measurement:
    """A statistic of the heads' mean entropies (nats; Gini coefficients and steepness have no unit), `run` minus
    `base`, paired by seed."""

    def change(name: str) -> Estimate | None:
        return estimate(difference(*(_landscapes(results, one, _STATISTICS[name]) for one in (run, base))))

    found, notes = change(statistic), []
    if statistic == "deep_steepness" and (free := change("deep_steepness_over_orders")):
        notes = [f"{free.text(3)} over random orders of the heads"]
    return of_trainings(results, (run, base), {"": found}, digits=3, notes=notes)


def deep_minus_early_steepness(results: Results, run: str) -> Measurement:
    """Steepness of the landscape, mean over the second half of the layers minus the first half."""
    deep, early = (_landscapes(results, run, _STATISTICS[f"{half}_steepness"]) for half in ("deep", "early"))
    return of_trainings(results, (run,), {"": difference(deep, early)}, digits=3)


def distribution_shift(results: Results, pairs: dict[str, list[str]]) -> Measurement:
    """Wasserstein-1 distance of the heads of the first run of each pair from those of the second over the causal bound,
    paired by seed; over the bound because entropies grow with the context."""
    shifts = {}
    for name, (run, base) in pairs.items():
        others = _entropies(results, base)
        shifts[name] = {
            seed: wasserstein_1(own.mean, others[seed].mean) / own.maximum["causal_bound"]
            for seed, own in _entropies(results, run).items()
            if seed in others
        }
    runs = (run for pair in pairs.values() for run in pair)
    return of_trainings(results, runs, shifts, digits=3, unit="of the bound")
