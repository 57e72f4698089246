"""The claims of `aero.published` with the verdict each test computes; the tests' common rules stand in `decisions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aero.published import Claim, known_papers, load
from aero.report import (
    cost_claims,
    entropy_claims,
    flops_claims,
    parallel_context_claims,
    sensitivity_claims,
    sensitivity_theory_claims,
    training_claims,
)
from aero.report.decisions import TESTS, VERDICTS, Decision, Verdict
from aero.report.results import Results
from aero.report.scales import decide
from aero.report.tables import csv_text

MODULES = (
    training_claims,
    entropy_claims,
    cost_claims,
    flops_claims,
    sensitivity_claims,
    sensitivity_theory_claims,
    parallel_context_claims,
)
"""Where the tests are; importing them makes them known."""

COLUMNS = ("id", "paper", "claim", "where", "test", "published", "measured", "scale", "verdict", "evidence")


@dataclass(frozen=True)
class Judged:
    """A claim of the paper called `paper`, and its decision."""

    claim: Claim
    decision: Decision
    paper: str


def judge(results: Results, *papers: str) -> list[Judged]:
    """Every claim of the papers (default: all known ones), decided on `results` at the largest scale that can.

    ValueError for a claim whose test does not exist.
    """
    judged = []
    for short in papers or known_papers():
        paper = load(short)
        for claim in paper.claims:
            if claim.test not in TESTS:
                raise ValueError(f"claim {claim.id}: no test {claim.test!r}; known: {', '.join(sorted(TESTS))}")
            judged.append(Judged(claim, decide(results, paper, claim), short))
    return judged


def claims_csv(judged: Iterable[Judged]) -> str:
    """The contract's CSV text."""
    rows = [
        {
            "id": j.claim.id,
            "paper": j.paper,
            "claim": j.claim.claim,
            "where": j.claim.where,
            "test": f"{j.claim.test}: {j.decision.rule}",
            "published": j.claim.published,
            "measured": j.decision.measured,
            "scale": j.decision.scale,
            "verdict": j.decision.verdict,
            "evidence": j.decision.evidence,
        }
        for j in judged
    ]
    return csv_text(rows, COLUMNS)


def counts(judged: Iterable[Judged]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    found = [j.decision.verdict for j in judged]
    return {verdict: found.count(verdict) for verdict in VERDICTS}
