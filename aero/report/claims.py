"""The papers' claims with the verdict on each, as the table that reports/claims.csv holds.

`judge(load())` decides every claim of `aero.published` on the results; the rules are in `aero.report.verdicts`.
The few numbers that the report's first sentences state, and those that DVC lists, are here too.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
from functools import cache
from math import log, nan
from typing import Any

import pandas as pd

from aero.entropy import causal_bound
from aero.published import Claim, known_papers, load
from aero.report import costs, printed, trainings, verdicts
from aero.report.papers import parallel_context, variance_search, variance_theory
from aero.report.papers.variance_theory import load_theory
from aero.report.results import SMOKE_TEST, Results
from aero.report.statistics import change, estimate, evidence, gate, registered
from aero.report.verdicts import VERDICTS, Decision, Measurement

OWN = "own variations"
"""Claims of no paper."""
_QUANTITIES = {
    name: function
    for module in (trainings, printed, variance_search, variance_theory, parallel_context)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
}
"""What a claim can be about, by name."""


def judge(results: Results, *papers: str) -> pd.DataFrame:
    """Every claim of the papers (default: all known ones) with its verdict: one row a claim."""
    return pd.DataFrame([row for paper in papers or known_papers() for row in _decided(results, paper)])


@cache
def _decided(results: Results, paper: str) -> list[dict[str, Any]]:
    rows = []
    for claim in load(paper).claims:
        found = decide(results, claim)
        (quantity, values), (rule, limits) = claim.quantity, claim.rule
        test = (verdicts.text(_QUANTITIES[quantity], values), verdicts.text(verdicts.RULES[rule], limits))
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
                "version": claim.version,
                "merges": " ".join(claim.merges),
            }
        )
    return rows


def decide(results: Results, claim: Claim) -> Decision:
    """The decision on a claim at the scale that decides it."""
    scale, larger = deciding_scale(results, claim)
    rule, limits = claim.rule
    measured = _measure(results.at(scale), claim)
    if all(results.seeds(run, scale) for run in compared_runs(results, claim)):
        reasons = filter(None, (measured.missing, _fails_gate(results, claim, scale)))
        measured = dataclasses.replace(measured, missing="; ".join(reasons))
    decision = verdicts.decide(rule, measured, **limits)
    notes = [decision.evidence]
    for other in larger:
        found = _measure(results.at(other), claim)
        notes.append(f"at scale {other}, with too few seeds for a verdict: {found.text or found.evidence}")
    return dataclasses.replace(decision, evidence="; ".join(filter(None, notes)))


def _fails_gate(results: Results, claim: Claim, scale: str) -> str:
    """Why the control of a run that the claim compares fails the gate at a scale; "" if none does."""
    reasons = (gate(results.at(scale), run) for run in compared_runs(results, claim))
    return next(filter(None, reasons), "")


def _measure(results: Results, claim: Claim) -> Measurement:
    name, parameters = claim.quantity
    return _QUANTITIES[name](results, **parameters)


def _group(claim: Claim) -> str:
    """What a claim rests on."""
    if claim.kind == "own":
        return OWN
    if claim.rule[0] == "paper_self_consistency":
        return "paper self-consistency"
    function = _QUANTITIES[claim.quantity[0]]
    return printed.COST_GROUP if function in printed.COSTS else inspect.getmodule(function).GROUP


def compared_runs(results: Results, claim: Claim) -> tuple[str, ...]:
    """The runs of params.yaml that a claim compares."""
    words = re.findall('"([^"]*)"', json.dumps(claim.quantity[1]))
    return tuple(dict.fromkeys(word for word in words if word in results.parameters.runs))


def deciding_scale(results: Results, claim: Claim) -> tuple[str, list[str]]:
    """The scale at which a claim is decided, and larger ones with all its runs but too few seeds.

    The largest scale decides at which all runs share two seeds and their controls pass the gate; where none passes, the
    largest with two seeds, and where none has them the report's own.
    """
    runs = compared_runs(results, claim)
    if not runs or results.scale == SMOKE_TEST:
        return results.scale, []
    common = {
        scale: len(set.intersection(*({run.seed for run in results.seeds(name, scale)} for name in runs)))
        for scale in results.scales
        if scale != SMOKE_TEST
    }
    enough = [scale for scale, seeds in common.items() if seeds >= 2]
    chosen = next((s for s in enough if not _fails_gate(results, claim, s)), enough[0] if enough else results.scale)
    larger = itertools.takewhile(lambda scale: scale != chosen, common)
    return chosen, [scale for scale in larger if common[scale] == 1]


def contradicted(results: Results, paper: str) -> pd.DataFrame:
    """The paper's own claims that are contradicted, as they are shown."""
    judged = judge(results, paper)
    wrong = judged[(judged.verdict == "contradicted") & (judged.group != OWN)]
    found = wrong[["claim", "published", "measured"]].reset_index(drop=True)
    return found if len(found) else pd.DataFrame([dict.fromkeys(found.columns, "–") | {"claim": "none"}])


def counts(judged: pd.DataFrame) -> dict[str, int]:
    """How many claims got each verdict."""
    return {verdict: int((judged.verdict == verdict).sum()) for verdict in VERDICTS}


# Headline numbers -----------------------------------------------------------------------------------------------------


def summary(results: Results, judged: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Claims by verdict, mean perplexity of some runs at the report's scale, GB of two optimised private passes."""
    runs = ("sm-ln-g", "sm-ln-r", "sm-r", "sm", "sm-scfuffn", "ereg-smt-scfuffn")
    perplexity = {name: estimate(results.perplexity(name)) for name in runs}
    passes = {row: results.cost(row, costs.OPTIMISED) for row in ("SM+LN+G", "SM+ScFuFFN")}
    return {
        "claims": counts(judged),
        f"perplexity_{results.scale}": {name: round(found.mean, 4) for name, found in perplexity.items() if found},
        "gigabytes": {row: round(cost.bytes / costs.GB, 3) for row, cost in passes.items() if cost},
    }


AERO = "SM+ScFuFFNi_6"


def headline(results: Results) -> dict[str, Any]:
    """The numbers of the report's first sentences; NaN where nothing was measured."""
    tables, fitted = load("aero").tables, costs.fits(results)
    table, base = tables["4"], tables["4"].rows[0].name
    found = [fitted.get(("4", row)) for row in (base, AERO)]
    own = costs.audit(results, table, AERO, "bytes")
    impossible = impossible_with_rounds = 0
    for one, row in ((tables[number], row) for number in costs.COST_TABLES for row in tables[number].rows):
        least, minutes = costs.least_minutes(one, row.name), row.cells["latency"].value
        stock = costs.wan_minutes(results, costs.row_costs(results, one, row.name).get(costs.STOCK))
        impossible += least > minutes
        impossible_with_rounds += stock is not None and least + stock.rounds > minutes
    trained = evidence(results)
    seeds = trained.seeds("sm-ln-g")
    printed_changes = {(one["run"], one["against"]): one["published"] for one in registered(results)}

    def difference(run: str, against: str) -> str:
        found, published = change(trained, run, against).estimate, printed_changes.get((run, against))
        shown = "not measured" if found is None else f"{found.text(1, signed=True)} %"
        return shown if published is None else f"{shown} (paper: {published:+.1f} %)".replace(": -", ": −")

    theory = load_theory(results)
    slopes = variance_theory.unequal_slopes(theory.tables["softmax"], "theorem_slope_quadrature") if theory else ()
    return {
        "rows": len(fitted),
        "residual": max((abs(fit.residual_percent) for fit in fitted.values()), default=nan),
        "gb": table.value(base, "communication"),
        "saving": table.value(AERO, "savings_communication"),
        "saving_fitted": found[0].gigabytes / found[1].gigabytes if all(found) else nan,
        "saving_stock": own.as_written or nan,
        "saving_optimised": own.tuned or nan,
        "saving_unfused": costs.saving(results, table, "SM+ScFFN", costs.OPTIMISED, "bytes") or nan,
        "saving_gelu": own.by_gelu or nan,
        "saving_architecture": own.one_gelu or nan,
        "impossible": impossible,
        "impossible_with_rounds": impossible_with_rounds,
        "minutes": table.value(base, "latency"),
        "needed_minutes": costs.least_minutes(table, base),
        "scale": trained.scale,
        "seeds": "1 seed" if len(seeds) == 1 else f"up to {len(seeds)} seeds",
        "tokens": seeds[0].metrics["tokens"] / 1e6 if seeds else nan,
        "width": seeds[0].metrics.get("model", {}).get("width", nan) if seeds else nan,
        "no_layer_norm": difference("sm-r", "sm-ln-g"),
        "softmax_alone": difference("sm", "sm-ln-g"),
        "softmax_only": difference("sm-scfuffn", "sm-ln-g"),
        "regularised": difference("ereg-smt-scfuffn", "sm-scfuffn"),
        "regularised_layer_norm": difference("ereg-smt-ln-g", "sm-ln-g"),
        "regularised_relu": difference("ereg-smt-r", "sm-r"),
        "slopes": len(slopes),
        "wrong_slopes": int(sum(slopes)),
        "gate": gate(trained, "sm-ln-g"),
        "log_t": log(table.dimensions["context"]),
        "causal": causal_bound(table.dimensions["context"]),
    }
