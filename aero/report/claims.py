"""The papers' claims with the verdict on each, as the table that reports/claims.csv holds.

`judge(load())` decides every claim of `aero.published` on the results; the rules are in `aero.report.verdicts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pandas as pd

from aero.published import Claim, known_papers, load
from aero.report import verdicts
from aero.report.quantities import costs, entropy, parallel_context, printed, sensitivity, theory, training
from aero.report.results import SMOKE_TEST, Results
from aero.report.verdicts import VERDICTS, Decision, Measurement

GROUPS = (training.GROUP, costs.GROUP, theory.GROUP, "paper self-consistency", "own variations")
"""What a claim rests on."""
_MODULES = (training, entropy, costs, printed, sensitivity, theory, parallel_context)
_SIDES = ("run", "base", "above", "against", "runs", "others")
"""Parameters of a quantity that name the runs it compares."""


def judge(results: Results, *papers: str) -> pd.DataFrame:
    """Every claim of the papers (default: all known ones) with its verdict: one row a claim."""
    rows = []
    for paper in papers or known_papers():
        for claim in load(paper).claims:
            found = decide(results, claim)
            (quantity, values), (rule, limits) = claim.quantity, claim.rule
            test = (verdicts.text(_quantity(quantity), values), verdicts.text(verdicts.RULES[rule], limits))
            rows.append(
                {
                    "id": claim.id,
                    "paper": paper,
                    "claim": claim.claim,
                    "where": claim.where,
                    "test": ". ".join(test),
                    "published": claim.published,
                    "measured": found.measured,
                    "scale": found.scale,
                    "verdict": found.verdict,
                    "evidence": found.evidence,
                    "group": _group(claim),
                    "stated": claim.stated,
                }
            )
    return pd.DataFrame(rows)


def decide(results: Results, claim: Claim) -> Decision:
    """The decision on a claim at the scale that decides it."""
    scale, larger = deciding_scales(results, claim)
    named = compared_runs(results, claim) or [name for at, name in results.runs if at == scale]
    substitute = scale == "paper" and results.substituted(named, scale)
    rule, limits = claim.rule
    decision = verdicts.decide(rule, _measure(results.at(scale, substitute), claim), **limits)
    notes = [decision.evidence]
    if substitute:
        notes.append("not on the papers' corpus, so their sizes are neither met nor missed here")
    for other in larger:
        if text := _measure(results.at(other), claim).text:
            notes.append(f"at scale {other}, with too few seeds for a verdict: {text}")
    return dataclasses.replace(decision, evidence="; ".join(filter(None, notes)))


def _measure(results: Results, claim: Claim) -> Measurement:
    name, parameters = claim.quantity
    return _quantity(name)(results, **parameters)


def _quantity(name: str) -> Callable[..., Measurement]:
    """The public function of that name in `aero.report.quantities`; KeyError if there is none."""
    for module in _MODULES:
        function = vars(module).get(name)
        if callable(function) and function.__module__ == module.__name__:
            return function
    raise KeyError(f"no quantity {name!r} in aero.report.quantities")


def _group(claim: Claim) -> str:
    if claim.kind == "own":
        return "own variations"
    if claim.rule[0] == "paper_self_consistency":
        return "paper self-consistency"
    return next(module.GROUP for module in _MODULES if module.__name__ == _quantity(claim.quantity[0]).__module__)


def compared_runs(results: Results, claim: Claim) -> tuple[str, ...]:
    """The runs of params.yaml that a claim compares."""
    named: list[str] = []
    for key in _SIDES:
        value = claim.quantity[1].get(key)
        named += [value] if isinstance(value, str) else value or []
    known = results.parameters.get("runs") or {}
    return tuple(dict.fromkeys(run for run in named if run in known))


def deciding_scales(results: Results, claim: Claim) -> tuple[str, tuple[str, ...]]:
    """The scale at which a claim is decided, and larger ones with all its runs but too few seeds.

    The largest scale at which all runs share two seeds decides; where there is none, the report's own scale.
    """
    runs = compared_runs(results, claim)
    undecided: list[str] = []
    if not runs or results.scale == SMOKE_TEST:
        return results.scale, ()
    for scale in results.scales:
        if scale != SMOKE_TEST:
            common = set.intersection(*({run.seed for run in results.seeds(name, scale)} for name in runs))
            if len(common) >= 2:
                return scale, tuple(undecided)
            if common and scale != results.scale:
                undecided.append(scale)
    return results.scale, tuple(undecided)


def csv_text(judged: pd.DataFrame) -> str:
    """The text of reports/claims.csv."""
    return judged.to_csv(index=False, lineterminator="\n")


def table(judged: pd.DataFrame, paper: str = "") -> pd.DataFrame:
    """The claims of a paper (of all if none is named) as they are shown."""
    chosen = judged[judged.paper == paper] if paper else judged
    return chosen[["claim", "where", "published", "measured", "verdict", "evidence"]].reset_index(drop=True)


def counts(judged: pd.DataFrame) -> pd.DataFrame:
    """How many claims got each verdict (columns), by what they rest on (rows)."""
    found = pd.crosstab(judged.group, judged.verdict)
    return found.reindex(index=GROUPS, columns=VERDICTS, fill_value=0)
