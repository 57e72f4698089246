"""Quantities of the small Transformer of `variance_sensitivity`.

Its layers and tokens are the paper's, but most of the setting is not printed: an effect that is absent here may be
there in the paper's own setting.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pandas as pd
from scipy.stats import spearmanr

from aero.report.papers.variance_search import search, share
from aero.report.papers.variance_sensitivity import Sweep, published, sweep
from aero.report.results import Results
from aero.report.verdicts import Measurement, exact
from aero.sensitivity.metric import CONCLUSIONS, ORDER, clipped, trained_decades
from aero.sensitivity.setting import TOKENS, WIDTH

GROUP = "trained here"
_COLLAPSED, _KEPT = 0.25, 0.5
"""Shares of log N: an entropy below the first has collapsed, one above the second has not."""
_FREE, _SLOWER = 1.5, 1.1
"""Growth of the product of gammas that counts, without clipping and with clipped gradients."""
_CLIPPING = {
    "qk_layernorm_free": "free",
    "qk_layernorm_gradient_clip": "gradient clipping",
    "qk_layernorm": "weight clipping",
}


def _of_sweep(quantity: Callable[..., dict[str, Any]]) -> Callable[..., Measurement]:
    """Read the sweep over learning rates, and make a measurement of what `quantity` returns."""

    @functools.wraps(quantity)
    def measure(results: Results, **parameters: Any) -> Measurement:
        found = sweep(results)
        if found is None or not set(ORDER) <= set(found.final) or len(found.seeds) < 2:
            missing = "the sweep over learning rates has not been run"
            return Measurement("", results.scale, missing=missing, trained=True)
        parts = quantity(results, found, **parameters)
        width = f", D={found.setting.width} where the paper prints {WIDTH}" if found.setting.width != WIDTH else ""
        seeds = f"{found.folder}/losses.csv, {len(found.seeds)} seeds{width}"
        parts["evidence"] = "; ".join(filter(None, (seeds, parts.get("evidence", ""))))
        return Measurement(**({"text": "", "scale": found.scale, "trained": True} | parts))

    return measure


@_of_sweep
def sensitivities(results: Results, found: Sweep, tolerance: float, rank: float) -> dict[str, Any]:
    """Sensitivities of the seven cores, from losses clipped and averaged over seeds: which published values lie in the
    95 % interval of resampled seeds and within `tolerance` of the measured one; and whether the measured values, those
    clipped after averaging and each seed's own have a rank correlation with the published ones of at least `rank`."""
    printed, measured = published(), {core: found.estimate_of_means(core) for core in ORDER}
    met = {
        core: exact(float(abs(e.mean - printed[core]) <= tolerance * printed[core] and e.contains(printed[core])))
        for core, e in measured.items()
    }
    orders = {
        "averaged": [measured[core].mean for core in ORDER],
        "clipped after averaging": [found.clipped_after(core) for core in ORDER],
        "each seed's own": [found.estimate(core).mean for core in ORDER],
    }
    ranks = {name: spearmanr([printed[core] for core in ORDER], values)[0] for name, values in orders.items()}
    words = ", ".join(f"{name} {value:.2f}" for name, value in ranks.items())
    return {
        "text": ", ".join(f"{measured[core].mean:.2f}" for core in ORDER),
        "effects": met,
        "checks": {name: bool(value >= rank) for name, value in ranks.items()},
        "evidence": f"{sum(e.mean for e in met.values()):.0f} of 7 met; rank correlation {words}",
    }


@_of_sweep
def conclusion(results: Results, found: Sweep, name: str) -> dict[str, Any]:
    """Whether a conclusion of Table 1 holds of losses averaged over seeds, clipped before or after, and in every seed;
    and in what share of the reasonable settings."""
    holds = CONCLUSIONS[name]
    averaged = {
        way: holds({core: read_(core) for core in ORDER})
        for way, read_ in (("clipped before", found.of_means), ("clipped after", found.clipped_after))
    }
    of_core = {core: found.sensitivities(core) for core in ORDER}
    seeds = {f"seed {seed}": holds({core: of_core[core][seed] for core in ORDER}) for seed in found.seeds}
    before, after = ("holds" if held else "does not hold" for held in averaged.values())
    text = f"{before} of averages{'' if before == after else f' ({after} clipped after)'}"
    text += f", {sum(seeds.values())} of {len(seeds)} seeds"
    searched = search(results)
    shared = share(searched, name) if searched else None
    return {
        "text": text + (f"; {shared.mean:.0%} [{shared.low:.0%}, {shared.high:.0%}] of settings" if shared else ""),
        "effects": {"share of settings": shared} if shared else {},
        "checks": averaged | seeds,
        "evidence": f"{searched.file}, {len(searched.numbers)} settings" if searched else "",
    }


@_of_sweep
def decades_that_train(results: Results, found: Sweep, core: str) -> dict[str, Any]:
    """Decades between the lowest and the highest learning rate whose final loss (clipped, mean over seeds) is below
    half of that of predicting 0; and how many more they are than the softmax's."""
    decades = []
    for name in (core, "softmax"):
        losses = clipped(found.final[name], found.initial[name]).mean(1)
        decades.append(trained_decades(found.rates, losses.tolist(), found.zero.mean().item()) or 0.0)
    own, base = decades
    return {
        "text": f"{own:.1f} decades, softmax {base:.1f}",
        "effects": {core: exact(own), "more than softmax": exact(own - base)},
    }


@_of_sweep
def last_entropies(results: Results, found: Sweep, fall: list[str], stay: list[str]) -> dict[str, Any]:
    """Last finite entropy over training at the figures' learning rate: whether it is below 0.25 log N for the cores
    `fall` and above 0.5 log N for the cores `stay`, by seed."""
    traces, missing = _over_training(results, found, "traces.csv", (*fall, *stay), "entropy")
    if missing:
        return {"missing": missing}
    last = {core: [traces[core, s].entropy.iloc[-1] / math.log(TOKENS) for s in found.seeds] for core in (*fall, *stay)}
    checks = {
        f"seed {seed}": all(last[core][k] < _COLLAPSED for core in fall) and all(last[core][k] > _KEPT for core in stay)
        for k, seed in enumerate(found.seeds)
    }
    text = "; ".join(f"{core} {min(of):.2f} to {max(of):.2f}" for core, of in last.items()) + " of log N"
    return {"text": text, "checks": checks, "evidence": _at_rate(found, "traces.csv", checks)}


@_of_sweep
def growth_of_gains(results: Results, found: Sweep) -> dict[str, Any]:
    """Largest product of the norms of gamma over training at the figures' learning rate, over its start: whether it is
    above 1.5 without clipping, above 1.1 but less than that with clipped gradients and not above 1 with weight
    clipping, and the lowest entropy is lower without clipping than with weight clipping; by seed."""
    traces, missing = _over_training(results, found, "gains.csv", tuple(_CLIPPING), "gain_q")
    if missing:
        return {"missing": missing}
    grown = {}
    for core in _CLIPPING:
        products = [traces[core, seed].gain_q * traces[core, seed].gain_k for seed in found.seeds]
        grown[core] = [one.max() / one.iloc[0] for one in products]
    checks = {}
    for seed, free, gradient, weight in zip(found.seeds, *grown.values(), strict=True):
        grows = free > _FREE and free > gradient > _SLOWER and weight <= 1 + 1e-6
        lowest = [traces[core, seed].entropy.min() for core in ("qk_layernorm_free", "qk_layernorm")]
        checks[f"seed {seed}"] = bool(grows and lowest[0] < lowest[1])
    ranges = ", ".join(f"{min(of):.2f} to {max(of):.2f}" for of in grown.values())
    text = f"grows {ranges}-fold ({', '.join(_CLIPPING.values())})"
    return {"text": text, "checks": checks, "evidence": _at_rate(found, "gains.csv", checks)}


def _over_training(
    results: Results, found: Sweep, file: str, cores: tuple[str, ...], column: str
) -> tuple[dict[tuple[str, int], pd.DataFrame], str]:
    """Values over training by core and seed; and why some are missing, "" if none is."""
    if found.about.get("figure_rate") is None:
        return {}, "no learning rate at which softmax fails and ReLU or QK-LayerNorm trains"
    lines = pd.read_csv(results.root / found.folder / file).dropna(subset=[column])
    traces = dict(iter(lines.groupby(["core", "seed"])))
    absent = [f"{core} seed {seed}" for core in cores for seed in found.seeds if (core, seed) not in traces]
    return traces, f"not measured over training: {absent[0]} and {len(absent) - 1} more" if absent else ""


def _at_rate(found: Sweep, file: str, checks: dict[str, bool]) -> str:
    rate = f"{found.about['figure_rate']:g}" + " (given)" * bool(found.about.get("figure_rate_by_hand"))
    return f"{found.folder}/{file}, at rate {rate}: holds in {sum(checks.values())} of {len(checks)} seeds"
