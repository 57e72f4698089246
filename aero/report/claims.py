"""The claims of `aero.published` with the verdict each test computes; the tests' common rules stand in `decisions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aero.published import STATED, Claim, known_papers, load
from aero.report import (
    cost_claims,
    entropy_claims,
    evidence,
    flops_claims,
    parallel_context_claims,
    published_claims,
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
    published_claims,
)
"""Where the tests are; importing them makes them known."""

COLUMNS = (
    "id",
    "paper",
    "claim",
    "where",
    "test",
    "published",
    "measured",
    "scale",
    "verdict",
    "evidence",
    "group",
    "stated",
)


_TRAINED = "two seeds or more, at any size for a direction; the printed number itself needs the papers' size and budget"
_NOTHING = "nothing measured"
_PRIVATE = "private passes measured at the papers' dimensions; no training"
NEEDS = {
    training_claims: _TRAINED,
    entropy_claims: _TRAINED,
    cost_claims: _PRIVATE,
    flops_claims: _NOTHING,
    published_claims: _NOTHING,
    sensitivity_claims: "the paper's own small model, five seeds",
    sensitivity_theory_claims: "random draws; nothing trained",
    parallel_context_claims: "two seeds or more of a model trained here; the printed number needs the paper's models",
}
"""What must have been measured for a test to decide, by the module it stands in."""
NEEDS_OF_TEST = (
    {
        name: _NOTHING
        for name in (
            "counts_agree",
            "published_bandwidth",
            "text_bandwidth",
            "published_count",
            "published_ratio",
            "published_margin",
            "maximum_entropy",
            "default_k_of_the_ablation",
        )
    }
    | {"gelu_of_the_baseline": _PRIVATE, "costs_a_share": "a count, at any size; nothing trained"}
    | dict.fromkeys(("core_entropy_falls", "core_order", "core_loss_spikes"), _TRAINED)
)
"""The same for tests that need something else than their module's others."""


GROUPS = (
    "trained here",
    "cost at the papers’ dimensions",
    "theory and arithmetic",
    "print against print",
    "own variations",
)
"""What a claim rests on; a count over all of them would put a measured cost beside a sum that comes out right."""
_PRINT = (
    "published_bandwidth",
    "text_bandwidth",
    "published_ratio",
    "published_margin",
    "default_k_of_the_ablation",
    *(f"printed_{what}" for what in ("alike", "order", "facts_agree", "savings", "growth")),
    "ranges_widen",
    "ranges_possible",
    "best_gain",
    "column_range",
)
"""Tests that hold a printed number or word against another one."""


@dataclass(frozen=True)
class Judged:
    """A claim of the paper called `paper`, its decision, and the result files the test read (where that is traced)."""

    claim: Claim
    decision: Decision
    paper: str
    files: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """What must have been measured before this claim can be decided."""
        return needs(self.claim.test)

    @property
    def group(self) -> str:
        """One of `GROUPS`."""
        if self.claim.kind == "own":
            return "own variations"
        if self.claim.test in _PRINT:
            return "print against print"
        if self.needs == _PRIVATE:
            return "cost at the papers’ dimensions"
        arithmetic = (_NOTHING, NEEDS[sensitivity_theory_claims])
        return "theory and arithmetic" if self.needs in arithmetic else "trained here"

    @property
    def code(self) -> str:
        """Dotted name of the function that decides."""
        return f"{TESTS[self.claim.test].__module__}.{self.claim.test}"

    @property
    def code_file(self) -> str:
        """The file of that function."""
        return TESTS[self.claim.test].__module__.replace(".", "/") + ".py"


def needs(test: str) -> str:
    """What the test called `test` needs; KeyError for one that says nothing."""
    by_module = {module.__name__: text for module, text in NEEDS.items()}
    return NEEDS_OF_TEST.get(test) or by_module[TESTS[test].__module__]


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
            evidence.take()
            judged.append(Judged(claim, decide(results, paper, claim), short, evidence.take()))
    return judged


def claims_csv(judged: Iterable[Judged]) -> str:
    """The contract's CSV text, and what each claim rests on and when it was stated."""
    rows = [
        {
            "id": j.claim.id,
            "paper": j.paper,
            "claim": j.claim.claim,
            "where": j.claim.where,
            "test": f"{j.claim.test}: {j.decision.rule}. Needs {j.needs}",
            "published": j.claim.published,
            "measured": j.decision.measured,
            "scale": j.decision.scale,
            "verdict": j.decision.verdict,
            "evidence": j.decision.evidence,
            "group": j.group,
            "stated": j.claim.stated,
        }
        for j in judged
    ]
    return csv_text(rows, COLUMNS)


def counts(judged: Iterable[Judged]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    found = [j.decision.verdict for j in judged]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def group_counts(judged: Iterable[Judged]) -> dict[str, dict[Verdict, int]]:
    """How many claims got each verdict, by what they rest on."""
    judged = list(judged)
    return {group: counts(j for j in judged if j.group == group) for group in GROUPS}


def stated_words(judged: Iterable[Judged]) -> str:
    """How many claims and rules stood here before the data that decide them, by the dates of the commits."""
    found = [j.claim.stated for j in judged]
    before, corrected, after, none = (found.count(kind) for kind in STATED)
    return (
        f"{before} were stated with their rule before the data that decide them were committed, {corrected} so but "
        f"with a rule made stricter afterwards, {after} after the data; {none} need none"
    )
