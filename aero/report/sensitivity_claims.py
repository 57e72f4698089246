"""The tests that decide what `variance_sensitivity` says of its small Transformer.

The model's layers and tokens are the paper's, its width is where the setting has it so, and the rest of the setting is
not printed, so an effect that is absent here is `not seen
at this scale`, never `contradicted`: the paper's own setting may be another. `reproduced` asks for it in the sweep of
Table 1, every seed, and in most reasonable settings too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable

from aero.published import Paper
from aero.report.decisions import Decision, Verdict, claim_test, untested
from aero.report.results import Results
from aero.report.sensitivity import Line, Sweep, read, sweep, trained_decades
from aero.report.sensitivity_search import published, search, share
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.metric import clipped
from aero.sensitivity.setting import TOKENS, WIDTH

MOST, NEAR = 0.5, 0.1
COLLAPSED, KEPT = 0.25, 0.5
"""Fractions of log N: an entropy below the first is collapsed, one above the second is kept."""
FREE, SLOWER = 1.5, 1.1
"""Growth of gamma's product without clipping, and with clipped gradients, that counts as growth."""
GAINED = {
    "qk_layernorm_free": "free",
    "qk_layernorm_gradient_clip": "gradient clipping",
    "qk_layernorm": "weight clipping",
}
NOT_RUN = "the sweep over learning rates has not been run"
NO_RATE = "no rate at which softmax fails and ReLU or QK-LayerNorm trains"


def _sweep(results: Results) -> Sweep | None:
    found = sweep(results)
    return found if found is not None and set(ORDER) <= set(found.final) and len(found.seeds) > 1 else None


def _decision(measured: Sweep, rule: str, text: str, verdict: Verdict, evidence: str = "") -> Decision:
    seeds = f"{measured.folder}/losses.csv, {len(measured.seeds)} seeds"
    if measured.setting.width != WIDTH:
        seeds += f", D={measured.setting.width} where the paper prints {WIDTH}"
    scale = "paper_dimensions" if measured.origin == "paper_dimensions" else measured.scale
    return Decision(rule, text, scale, verdict, f"{seeds}{'; ' if evidence else ''}{evidence}")


@claim_test
def sensitivity_values(results: Results, paper: Paper) -> Decision:
    rule = (
        "of losses clipped and averaged over seeds first; reproduced: every published value lies in the 95 % interval "
        f"of resampled seeds and is within {NEAR:.0%} of the measured one; direction reproduced: the measured values "
        "have a rank correlation with the published ones of at least 0.8, and so have those clipped after averaging "
        "and each seed's own means"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    printed, found = published(), {core: measured.estimate_of_means(core) for core in ORDER}
    near = [core for core in ORDER if abs(found[core].mean - printed[core]) <= NEAR * printed[core]]
    met = [core for core in near if found[core].contains(printed[core])]
    expected = [printed[core] for core in ORDER]
    rank = rank_correlation(expected, [found[core].mean for core in ORDER])
    after = rank_correlation(expected, [measured.clipped_after(core) for core in ORDER])
    alone = rank_correlation(expected, [measured.estimate(core).mean for core in ORDER])
    verdict: Verdict = (
        "reproduced"
        if len(met) == len(ORDER)
        else "direction reproduced"
        if min(rank, after, alone) >= 0.8
        else "not seen at this scale"
    )
    text = ", ".join(f"{found[core].mean:.2f}" for core in ORDER)
    evidence = f"{len(met)} of 7 met, rank correlation {rank:.2f}, clipped after averaging {after:.2f}"
    evidence += f", of each seed's own {alone:.2f}"
    return _decision(measured, rule, text, verdict, evidence)


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's, of lists without ties."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    n = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks, strict=True)) / (n * (n * n - 1))


@claim_test
def sensitivity_conclusion(results: Results, paper: Paper, *, conclusion: str) -> Decision:
    rule = (
        "direction reproduced: in the sweep, its losses averaged over seeds first, clipped before or after, and also "
        f"in every seed alone; reproduced: in more than {MOST:.0%} of the reasonable settings besides (lower end of "
        "the interval); else not seen at this scale"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    holds = CONCLUSIONS[conclusion].holds
    by_seed = [{core: measured.sensitivities(core)[seed] for core in ORDER} for seed in measured.seeds]
    agree = sum(map(holds, by_seed))
    averaged = [holds({core: way(core) for core in ORDER}) for way in (measured.of_means, measured.clipped_after)]
    found = search(results)
    shared = share(found, conclusion) if found else None
    everywhere = shared is not None and shared.low > MOST
    verdict: Verdict = (
        "not seen at this scale"
        if agree < len(by_seed) or not all(averaged)
        else "reproduced"
        if everywhere
        else "direction reproduced"
    )
    before, after = ("holds" if there else "does not hold" for there in averaged)
    text = f"{before} of averages{'' if before == after else f' ({after} clipped after)'}"
    text += f", {agree} of {len(by_seed)} seeds"
    text += f"; {shared.text} of settings" if shared else ""
    return _decision(measured, rule, text, verdict, f"{found.file}, {len(found.numbers)} settings" if found else "")


@claim_test
def training_range(results: Results, paper: Paper, *, core: str, decades: float, tolerance: float) -> Decision:
    rule = (
        "decades between the lowest and the highest rate whose final loss (clipped, mean over seeds) is below half of "
        f"that of predicting 0; reproduced: at least {decades - tolerance:g}; direction reproduced: more than for "
        "softmax"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    own, base = (decades_of(measured, name) for name in (core, "softmax"))
    verdict: Verdict = (
        "reproduced"
        if own >= decades - tolerance
        else "direction reproduced"
        if own > base
        else "not seen at this scale"
    )
    return _decision(measured, rule, f"{own:.1f} decades, softmax {base:.1f}", verdict)


def decades_of(measured: Sweep, core: str) -> float:
    """Decades over which a core trains by the clipped mean over seeds; 0 for one rate or none."""
    losses = clipped(measured.final[core], measured.initial[core]).mean(1)
    return trained_decades(measured.rates, losses.tolist(), measured.zero.mean().item()) or 0.0


@claim_test
def collapses(results: Results, paper: Paper, *, fall: list[str], stay: list[str]) -> Decision:
    measured = _sweep(results)
    by_hand = measured is not None and measured.figure_rate_by_hand
    rate = "a rate given by hand" if by_hand else "the lowest rate where softmax fails and ReLU or QK-LayerNorm trains"
    rule = (
        f"at {rate}, last finite entropy of a look before every step: "
        f"below {COLLAPSED:g} log N for {', '.join(fall)}, above {KEPT:g} log N for {', '.join(stay)}; "
        "direction reproduced: in every seed (no number is printed)"
    )
    if measured is None:
        return untested(rule, results, NOT_RUN)
    if measured.about.get("figure_rate") is None:
        return untested(rule, results, NO_RATE)
    lines = read(results.root / measured.folder / "traces.csv")
    if lacking := _lacking(lines, (*fall, *stay), measured, "entropy"):
        return untested(rule, results, lacking)
    last: dict[str, list[float]] = {core: [] for core in (*fall, *stay)}
    for core, seed in itertools.product(last, measured.seeds):
        own = [float(line["entropy"]) for line in lines if _is(line, core, seed) and line["entropy"]]
        last[core].append(own[-1] / math.log(TOKENS))
    agree = sum(
        all(last[core][k] < COLLAPSED for core in fall) and all(last[core][k] > KEPT for core in stay)
        for k in range(len(measured.seeds))
    )
    text = "; ".join(f"{core} {min(found):.2f} to {max(found):.2f}" for core, found in last.items()) + " of log N"
    return _of_seeds(measured, rule, text, agree, "traces.csv")


def _lacking(lines: Iterable[Line], cores: Iterable[str], measured: Sweep, column: str) -> str:
    """Which core and seed was not followed over training, in words; "" if all were."""
    there = {(line["core"], line.get("seed")) for line in lines if line.get(column)}
    wanted = itertools.product(cores, measured.seeds)
    missing = [f"{core} seed {seed}" for core, seed in wanted if (core, str(seed)) not in there]
    return f"not followed over training: {missing[0]} and {len(missing) - 1} more" if missing else ""


def _is(line: Line, core: str, seed: int) -> bool:
    return line["core"] == core and line.get("seed") == str(seed)


def _of_seeds(measured: Sweep, rule: str, text: str, agree: int, file: str) -> Decision:
    """A claim on how training goes at the figures' rate, which holds in `agree` seeds."""
    count = len(measured.seeds)
    verdict: Verdict = "direction reproduced" if agree == count else "not seen at this scale"
    by_hand = " (given by hand)" if measured.figure_rate_by_hand else ""
    rate = f"{measured.about['figure_rate']:g}{by_hand}"
    evidence = f"{file} beside it, at rate {rate}: holds in {agree} of {count} seeds"
    return _decision(measured, rule, text, verdict, evidence)


@claim_test
def gains_grow(results: Results, paper: Paper) -> Decision:
    rule = (
        f"at the figures' rate, largest product of the norms of gamma over layers and steps: above {FREE:g} times its "
        f"start without clipping, above {SLOWER:g} times but less than that with clipped gradients, not above its "
        "start with weight clipping; and the lowest entropy of a layer lower without clipping than with weight "
        "clipping; direction reproduced: in every seed (no number is printed)"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    if measured.about.get("figure_rate") is None:
        return untested(rule, results, NO_RATE)
    lines = read(results.root / measured.folder / "gains.csv")
    if lacking := _lacking(lines, GAINED, measured, "gain_q"):
        return untested(rule, results, lacking)
    grown: dict[str, list[float]] = {core: [] for core in GAINED}
    agree = 0
    for seed in measured.seeds:
        entropy = {}
        for core in GAINED:
            own = [line for line in lines if _is(line, core, seed) and line["gain_q"] and line["gain_k"]]
            products = [float(line["gain_q"]) * float(line["gain_k"]) for line in own]
            grown[core].append(max(products) / products[0])
            entropy[core] = min(float(line["entropy"]) for line in own if line["entropy"])
        free, gradient, weight = (grown[core][-1] for core in GAINED)
        grows = free > FREE and free > gradient > SLOWER and weight <= 1 + 1e-6
        agree += grows and entropy["qk_layernorm_free"] < entropy["qk_layernorm"]
    ranges = ", ".join(f"{min(found):.2f} to {max(found):.2f}" for found in grown.values())
    ends = ", ".join(f"{name} {_diverged(measured, core)}" for core, name in GAINED.items())
    text = f"grows {ranges}-fold ({', '.join(GAINED.values())})"
    made = _of_seeds(measured, rule, text, agree, "gains.csv")
    if measured.about["figure_rate"] not in measured.rates:
        return made
    return dataclasses.replace(made, evidence=f"{made.evidence}; of {len(measured.seeds)} trainings diverged: {ends}")


def _diverged(measured: Sweep, core: str) -> int:
    """How many trainings with this core diverged at the figures' rate."""
    rate = f"{measured.about['figure_rate']:g}"
    return sum(
        line["core"] == core and line["rate"] == rate and line["diverged_at_step"] != "" for line in measured.lines
    )
