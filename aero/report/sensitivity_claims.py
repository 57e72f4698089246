"""The tests that decide what `variance_sensitivity` says of its small Transformer.

The model's sizes are the paper's, the rest of the setting is not printed, so an effect that is absent here is `not seen
at this scale`, never `contradicted`: the paper's own setting may be another. `reproduced` asks for it in the sweep of
Table 1, every seed, and in most reasonable settings too.
"""

from __future__ import annotations

import math

from aero.published import Paper
from aero.report.decisions import Decision, Verdict, claim_test, untested
from aero.report.results import Results
from aero.report.sensitivity import Sweep, read, sweep
from aero.report.sensitivity_search import published, search, share
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.metric import clipped
from aero.sensitivity.setting import TOKENS

MOST, NEAR = 0.5, 0.1
COLLAPSED, KEPT = 0.25, 0.5
"""Fractions of log N: an entropy below the first is collapsed, one above the second is kept."""
NOT_RUN = "the sweep over learning rates has not been run"


def _sweep(results: Results) -> Sweep | None:
    found = sweep(results)
    return found if found is not None and set(ORDER) <= set(found.final) and len(found.seeds) > 1 else None


def _decision(measured: Sweep, rule: str, text: str, verdict: Verdict, evidence: str = "") -> Decision:
    seeds = f"{measured.folder}/losses.csv, {len(measured.seeds)} seeds"
    scale = "paper_dimensions" if measured.origin == "paper_dimensions" else measured.scale
    return Decision(rule, text, scale, verdict, f"{seeds}{'; ' if evidence else ''}{evidence}")


@claim_test
def sensitivity_values(results: Results, paper: Paper) -> Decision:
    rule = (
        f"reproduced: every published value lies in the 95 % t-interval over seeds and within {NEAR:.0%} of the mean; "
        "direction reproduced: the measured means have a rank correlation with the published ones of at least 0.8"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    printed, found = published(), {core: measured.estimate(core) for core in ORDER}
    near = [core for core in ORDER if abs(found[core].mean - printed[core]) <= NEAR * printed[core]]
    met = [core for core in near if found[core].contains(printed[core])]
    rank = rank_correlation([printed[core] for core in ORDER], [found[core].mean for core in ORDER])
    verdict: Verdict = (
        "reproduced" if len(met) == len(ORDER) else "direction reproduced" if rank >= 0.8 else "not seen at this scale"
    )
    text = ", ".join(f"{found[core].mean:.2f}" for core in ORDER)
    return _decision(measured, rule, text, verdict, f"{len(met)} of 7 met, rank correlation {rank:.2f}")


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's, of lists without ties."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    n = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks, strict=True)) / (n * (n * n - 1))


@claim_test
def sensitivity_conclusion(results: Results, paper: Paper, *, conclusion: str) -> Decision:
    rule = (
        f"reproduced: in every seed of the sweep and in more than {MOST:.0%} of the reasonable settings (lower end of "
        "the interval); direction reproduced: in every seed of the sweep; else not seen at this scale"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    holds = CONCLUSIONS[conclusion].holds
    by_seed = [{core: measured.sensitivities(core)[seed] for core in ORDER} for seed in measured.seeds]
    agree = sum(map(holds, by_seed))
    found = search(results)
    shared = share(found, conclusion) if found else None
    everywhere = shared is not None and shared.low > MOST
    verdict: Verdict = (
        "not seen at this scale" if agree < len(by_seed) else "reproduced" if everywhere else "direction reproduced"
    )
    text = f"{agree} of {len(by_seed)} seeds" + (f"; {shared.text} of settings" if shared else "")
    return _decision(measured, rule, text, verdict, f"{found.file}, {len(found.numbers)} settings" if found else "")


@claim_test
def training_range(results: Results, paper: Paper, *, core: str, decades: float, tolerance: float) -> Decision:
    rule = (
        f"decades between the lowest and the highest rate whose final loss (mean over seeds) is below half of l0; "
        f"reproduced: at least {decades - tolerance:g}; direction reproduced: more than for softmax"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    own, base = (trained_decades(measured, name) for name in (core, "softmax"))
    verdict: Verdict = (
        "reproduced"
        if own >= decades - tolerance
        else "direction reproduced"
        if own > base
        else "not seen at this scale"
    )
    return _decision(measured, rule, f"{own:.1f} decades, softmax {base:.1f}", verdict)


def trained_decades(measured: Sweep, core: str) -> float:
    """log10 of the highest over the lowest rate that trains; 0 for one rate or none."""
    losses, initial = clipped(measured.final[core], measured.initial[core]).mean(1), measured.initial[core].mean()
    rates = [rate for rate, loss in zip(measured.rates, losses.tolist(), strict=True) if loss < 0.5 * initial]
    return math.log10(max(rates) / min(rates)) if rates else 0.0


@claim_test
def collapses(results: Results, paper: Paper, *, fall: list[str], stay: list[str]) -> Decision:
    rule = (
        f"at the lowest rate where softmax fails and ReLU or QK-LayerNorm trains (first seed), last finite entropy: "
        f"below {COLLAPSED:g} log N for {', '.join(fall)}, above {KEPT:g} log N for {', '.join(stay)}"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    if measured.about.get("figure_rate") is None:
        return untested(rule, results, "no rate at which softmax fails and ReLU or QK-LayerNorm trains")
    lines = read(results.root / measured.folder / "traces.csv")
    last = {
        core: [float(line["entropy"]) for line in lines if line["core"] == core and line["entropy"]][-1]
        / math.log(TOKENS)
        for core in (*fall, *stay)
    }
    fell, stayed = [last[core] < COLLAPSED for core in fall], [last[core] > KEPT for core in stay]
    text = ", ".join(f"{core} {value:.2f}" for core, value in last.items()) + " of log N"
    return _one_seed(measured, results, rule, text, all(fell) and all(stayed), "traces.csv")


def _one_seed(measured: Sweep, results: Results, rule: str, text: str, holds: bool, file: str) -> Decision:
    """What is followed over training is so for the first seed alone: said, but no verdict."""
    reason = f"one seed at rate {measured.about['figure_rate']:g}, so no verdict; in it the claim"
    evidence = f"{reason} {'holds' if holds else 'does not hold'}"
    return _decision(measured, rule, text, "not testable here", f"{file} beside it: {evidence}")


@claim_test
def gains_grow(results: Results, paper: Paper) -> Decision:
    rule = (
        "at the figures' rate (first seed), largest product of the norms of gamma over layers and steps: above 1.5 "
        "times its start without clipping, and then at least as large as with clipped gradients, not above its start "
        "with weight clipping; and the lowest entropy of a layer lower without clipping than with weight clipping"
    )
    if (measured := _sweep(results)) is None:
        return untested(rule, results, NOT_RUN)
    if measured.about.get("figure_rate") is None:
        return untested(rule, results, "no rate at which softmax fails and ReLU or QK-LayerNorm trains")
    lines = read(results.root / measured.folder / "gains.csv")
    product, entropy = {}, {}
    for core in ("qk_layernorm_free", "qk_layernorm_gradient_clip", "qk_layernorm"):
        own = [line for line in lines if line["core"] == core and line["gain_q"] and line["gain_k"]]
        products = [float(line["gain_q"]) * float(line["gain_k"]) for line in own]
        product[core] = max(products) / products[0]
        entropy[core] = min(float(line["entropy"]) for line in own if line["entropy"])
    free, gradient, weight = product.values()
    grows = free > 1.5 and free >= gradient and weight <= 1 + 1e-6
    falls = entropy["qk_layernorm_free"] < entropy["qk_layernorm"]
    text = f"grows {free:.2f}, {gradient:.2f}, {weight:.2f}-fold (free, gradient, weight clipping)"
    return _one_seed(measured, results, rule, text, grows and falls, "gains.csv")
