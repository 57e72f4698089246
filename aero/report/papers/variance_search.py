"""Variance Sensitivity: the search over the settings that the paper leaves open, and the quantities of its claims.

The settings nearest to Table 1 by the search's single seeds are trained again with fresh seeds. Which ones, and how the
best of them is chosen, was fixed before those trainings.

Its layers and tokens are the paper's, but most of the setting is not printed: an effect that is absent here may be
there in the paper's own setting.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from scipy.stats import spearmanr

from aero.records import read_csv
from aero.report.papers.variance_sensitivity import FOLDERS, Sweep, published, short_name, sweep
from aero.report.results import Results
from aero.report.statistics import Estimate, difference, estimate, wilson
from aero.report.verdicts import Measurement, exact
from aero.sensitivity.metric import CONCLUSIONS, ORDER, clipped, sensitivity_of_means, trained_decades
from aero.sensitivity.search import RELU_CORES, Reading, plausible_settings, read_losses
from aero.sensitivity.search import sensitivities as searched_sensitivities
from aero.sensitivity.setting import TOKENS, WIDTH, Setting

GROUP = "trained here"
NEAREST = 5
FRESH_SEEDS = (1001, 1002, 1003, 1004, 1005)
"""Seeds of the settings that are trained again: neither the search (0 to 239) nor the sweep (0 to 4) uses them."""
Searched = Mapping[tuple[int, Reading], Mapping[str, float]]
"""Sensitivity by core of every setting (by its number) and reading."""


@functools.cache
def search(results: Results) -> Searched:
    """The larger of the fresh and the committed search; empty if there is none."""
    file = _larger(results, "search.csv")
    return searched_sensitivities(read_csv(results.root / file)) if file else {}


def _larger(results: Results, name: str) -> str | None:
    files = [path for folder in FOLDERS if (path := results.root / folder / name).is_file()]
    return str(max(files, key=lambda path: path.stat().st_size).relative_to(results.root)) if files else None


def share(found: Searched, conclusion: str) -> Estimate:
    """In which fraction of settings a conclusion holds, with Wilson's 95 % interval.

    Every setting counts once, with the fraction of its readings that agree.
    """
    by_setting: dict[int, list[bool]] = {}
    for (number, _), values in found.items():
        by_setting.setdefault(number, []).append(CONCLUSIONS[conclusion](values))
    mean = fmean(map(fmean, by_setting.values()))
    low, high = wilson(mean, len(by_setting))
    return Estimate(mean, max(0.0, low), min(1.0, high), ())


def distance(values: Mapping[str, float]) -> float:
    """Root mean square of the differences from the published seven."""
    printed = published()
    return math.sqrt(sum((values[core] - printed[core]) ** 2 for core in ORDER) / len(ORDER))


def nearest(results: Results) -> list[tuple[int, Reading]]:
    """The NEAREST settings of the search for each form of the ReLU kernel, each with its nearest reading."""
    found = search(results)
    chosen: list[tuple[int, Reading]] = []
    for form in RELU_CORES:
        readings: dict[int, Reading] = {}
        for number, reading in sorted(found, key=lambda key: distance(found[key])):
            if reading.relu == form:
                readings.setdefault(number, reading)
        chosen += list(readings.items())[:NEAREST]
    return chosen


def nearest_trainings(results: Results) -> list[tuple[int, Setting, str]]:
    """Number, setting and core of the trainings that `nearest` needs, each once."""
    needed = [
        (number, plausible_settings(reading.steps)[number], _trained(core, reading))
        for number, reading in nearest(results)
        for core in ORDER
    ]
    return list(dict.fromkeys(needed))


def _trained(core: str, reading: Reading) -> str:
    return reading.relu if core == "relu" else core


def repeated(results: Results) -> Searched:
    """The settings of `nearest` that were trained again with every seed and core, in its order.

    Losses are clipped, at l_0 as the reading has it, and averaged over seeds as in Table 1.
    """
    file = _larger(results, "nearest.csv")
    rows = read_csv(results.root / file) if file else []
    lines = {(row["number"], row["steps"], row["core"], row["seed"]): row for row in rows}
    made: dict[tuple[int, Reading], dict[str, float]] = {}
    for number, reading in nearest(results):
        column, values = "initial_loss" if reading.initial == "measured" else "zero_loss", {}
        for core in ORDER:
            place = str(number), str(reading.steps), _trained(core, reading)
            own = [lines.get((*place, str(seed))) for seed in FRESH_SEEDS]
            if all(own):
                initial = torch.tensor([float(line[column]) for line in own], dtype=torch.float64)
                values[core] = sensitivity_of_means(torch.stack([read_losses(line) for line in own], 1), initial)
        if len(values) == len(ORDER):
            made[number, reading] = values
    return made


def best(results: Results) -> tuple[int, Reading] | None:
    """The repeated setting nearest to Table 1."""
    made = repeated(results)
    return min(made, key=lambda key: distance(made[key]), default=None)


def table_nearest(results: Results) -> pd.DataFrame:
    """The published seven values beside Table 1's setting, the nearest one and seven equal values; and how far off."""
    printed, measured, chosen = published(), sweep(results), best(results)
    columns = {"published": printed, "all equal": dict.fromkeys(ORDER, fmean(printed.values()))}
    if measured is not None:
        columns["our default setting"] = {core: measured.of_means(core) for core in ORDER}
    if chosen is not None:
        columns["nearest, one seed"] = search(results)[chosen]
        columns["nearest, five fresh seeds"] = repeated(results)[chosen]
    rows = [
        {"re-weighting function": short_name(core)} | {name: f"{v[core]:.2f}" for name, v in columns.items()}
        for core in ORDER
    ]
    off = {name: f"{distance(values):.2f}" for name, values in columns.items()}
    return pd.DataFrame([*rows, {"re-weighting function": "distance from published (RMS)"} | off])


# Quantities of claims -------------------------------------------------------------------------------------------------


def _of_sweep(quantity: Callable[..., dict[str, Any]]) -> Callable[..., Measurement]:
    """Make a measurement of what `quantity` returns for the sweep over learning rates."""

    @functools.wraps(quantity)
    def measure(results: Results, **parameters: Any) -> Measurement:
        found = sweep(results)
        if found is None or not set(ORDER) <= set(found.final) or len(found.seeds) < 2:
            missing = "the sweep over learning rates has not been run"
            return Measurement("", results.scale, missing=missing, trained=True)
        parts = quantity(results, found, **parameters)
        width = f", D={found.setting.width} where the paper prints {WIDTH}" if found.setting.width != WIDTH else ""
        seeds = f"{found.folder}/losses.csv, {len(found.seeds)} seeds{width}"
        parts["evidence"] = "; ".join(filter(None, (seeds, parts.get("evidence"))))
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
        "text": ", ".join(measured[core].text(2) for core in ORDER),
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
        "clipped before": holds({core: found.of_means(core) for core in ORDER}),
        "clipped after": holds({core: found.clipped_after(core) for core in ORDER}),
    }
    of_core = {core: found.sensitivities(core) for core in ORDER}
    seeds = {f"seed {seed}": holds({core: of_core[core][seed] for core in ORDER}) for seed in found.seeds}
    before, after = ("yes" if held else "no" for held in averaged.values())
    text = f"holds in {sum(seeds.values())} of {len(seeds)} seeds; of averages: {before}"
    text += "" if before == after else f" (clipped after: {after})"
    parts: dict[str, Any] = {"text": text, "checks": averaged | seeds}
    if searched := search(results):
        one = share(searched, name)
        parts["text"] += f"; {one.mean:.0%} [{one.low:.0%}, {one.high:.0%}] of settings"
        parts["effects"] = {"share of settings": one}
        parts["evidence"] = f"{_larger(results, 'search.csv')}, {len({number for number, _ in searched})} settings"
    return parts


@_of_sweep
def decades_that_train(results: Results, found: Sweep, core: str) -> dict[str, Any]:
    """Decades between the lowest and the highest learning rate whose final clipped loss is below half of that of
    predicting 0; and how many more they are than the softmax's; by seed."""
    decades: dict[str, dict[int, float]] = {core: {}, "softmax": {}}
    for name, of_seed in decades.items():
        losses = clipped(found.final[name], found.initial[name])
        for k, seed in enumerate(found.seeds):
            of_seed[seed] = trained_decades(found.rates, losses[:, k].tolist(), found.zero[k].item()) or 0.0
    own, more = estimate(decades[core]), estimate(difference(decades[core], decades["softmax"]))
    text = f"{own.text(1)} decades, {more.text(2)} more than softmax"
    return {"text": text, "effects": {core: own, "more than softmax": more}}


@_of_sweep
def last_entropies(results: Results, found: Sweep, fall: list[str], stay: list[str]) -> dict[str, Any]:
    """Last finite entropy over training at the figures' learning rate: whether it is below 0.25 log N for the cores
    `fall` and above 0.5 log N for the cores `stay`, by seed."""
    traces, missing = _over_training(results, found, "traces.csv", (*fall, *stay), "entropy")
    if missing:
        return {"missing": missing}
    last = {core: [traces[core, s].entropy.iloc[-1] / math.log(TOKENS) for s in found.seeds] for core in (*fall, *stay)}
    checks = {
        f"seed {seed}": all(last[core][k] < 0.25 for core in fall) and all(last[core][k] > 0.5 for core in stay)
        for k, seed in enumerate(found.seeds)
    }
    text = "; ".join(f"{core} {min(of):.2f} to {max(of):.2f}" for core, of in last.items()) + " of log N"
    return {"text": text, "checks": checks, "evidence": _at_rate(found, "traces.csv", checks)}


@_of_sweep
def growth_of_gains(results: Results, found: Sweep) -> dict[str, Any]:
    """Largest product of the norms of gamma over training at the figures' learning rate, over its start: whether it is
    above 1.5 without clipping, above 1.1 but less than that with clipped gradients and not above 1 with weight
    clipping, and the lowest entropy is lower without clipping than with weight clipping; by seed."""
    clipping = {
        "qk_layernorm_free": "free",
        "qk_layernorm_gradient_clip": "gradient clipping",
        "qk_layernorm": "weight clipping",
    }
    traces, missing = _over_training(results, found, "gains.csv", tuple(clipping), "gain_q")
    if missing:
        return {"missing": missing}
    grown = {}
    for core in clipping:
        products = [traces[core, seed].gain_q * traces[core, seed].gain_k for seed in found.seeds]
        grown[core] = [one.max() / one.iloc[0] for one in products]
    checks = {}
    for seed, free, gradient, weight in zip(found.seeds, *grown.values(), strict=True):
        grows = free > 1.5 and free > gradient > 1.1 and weight <= 1 + 1e-6
        lowest = [traces[core, seed].entropy.min() for core in ("qk_layernorm_free", "qk_layernorm")]
        checks[f"seed {seed}"] = bool(grows and lowest[0] < lowest[1])
    ranges = ", ".join(f"{clipping[core]} {min(of):.2f} to {max(of):.2f}" for core, of in grown.items())
    return {"text": f"growth of ‖γ‖: {ranges}", "checks": checks, "evidence": _at_rate(found, "gains.csv", checks)}


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
    low, high = wilson(fmean(checks.values()), len(checks))
    seeds = f"{sum(checks.values())} of {len(checks)} seeds [{low:.0%}, {high:.0%}]"
    return f"{found.folder}/{file}, at rate {rate}: holds in {seeds}"
