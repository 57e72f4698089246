"""What a claim's test is and what the tests share: the rules for a verdict, and why one cannot be given.

The rules, common to all tests:

- Training claims need at least two seeds of every run in them; the interval is the 95 % t-interval over seeds, of
  paired differences where two runs are compared. With one seed: `not testable here`.
- `direction reproduced`: the interval excludes no effect in the published direction. `reproduced`: the published number
  is in the interval (or in the stated tolerance) besides, in a training of the papers' own size, budget and corpus
  (scale `paper` on CodeParrot or Languini's books). A number of a smaller training cannot meet theirs: a wide interval
  would cover it by its width alone.
- A statement without a size (an order, a divergence, a curve below another) is `reproduced` at any scale.
- An effect that is absent or opposite is `not seen at this scale` when the training was smaller than the papers', and
  `contradicted` only at the papers' own size, budget and corpus, or where no training is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from aero.report.results import Results
from aero.report.statistics import Estimate

Verdict = Literal["reproduced", "direction reproduced", "not seen at this scale", "contradicted", "not testable here"]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced",
    "direction reproduced",
    "not seen at this scale",
    "contradicted",
    "not testable here",
)
PUBLISHED_ONLY = "published numbers"
"""The `scale` of a decision that needs nothing measured."""


@dataclass(frozen=True)
class Decision:
    """What a test found: the rule with its thresholds, the measured value in words, where it was measured, the
    verdict.
    """

    rule: str
    measured: str
    scale: str
    verdict: Verdict
    evidence: str


Test = Callable[..., Decision]
TESTS: dict[str, Test] = {}


def claim_test(function: Test) -> Test:
    """Make `function` known under its name to the claims that name it as their test."""
    TESTS[function.__name__] = function
    return function


def absent(results: Results) -> Verdict:
    """The verdict for an effect that is absent or opposite, by the size of the training it was looked for in."""
    return "contradicted" if results.published_scale else "not seen at this scale"


def by_signs(results: Results, signs: Sequence[int]) -> Verdict:
    """The verdict for several differences that a claim says are positive, each 1, 0 (undecided) or -1."""
    if all(sign > 0 for sign in signs):
        return "reproduced"
    if any(sign > 0 for sign in signs) and not any(sign < 0 for sign in signs):
        return "direction reproduced"
    return absent(results)


def sources(results: Results, *runs: str) -> str:
    """The seeds of the named runs in words."""
    parts = []
    for run in runs:
        seeds = results.seeds(run)
        parts.append(f"{run} ({', '.join(str(r.seed) for r in seeds)})" if seeds else f"{run} (not run)")
    return f"runs {', '.join(parts)} at scale {results.scale}"


def untested(rule: str, results: Results, reason: str, measured: str = "") -> Decision:
    """The decision for a claim about training that cannot be decided, with the reason."""
    return Decision(rule, measured, results.scale, "not testable here", reason)


def training_gap(results: Results, found: Estimate | None, runs: Iterable[str], what: str = "trained") -> str:
    """Why a training claim cannot be decided, "" if it can: a run is missing, diverged, or there is one seed."""
    missing = [run for run in runs if not results.seeds(run)]
    if missing:
        return f"not run yet: {', '.join(missing)}"
    if found is None:
        return f"no seed has all of it {what}: {sources(results, *runs)}"
    if not found.has_interval:
        return f"one seed ({found.seeds[0]}): no interval, so no verdict"
    return ""


def effect(results: Results, found: Estimate, expected: float, low: float, high: float) -> Verdict:
    """By the common rules, for an effect whose published size `expected` counts as met within [low, high]."""
    if found.excludes(0.0) != (1 if expected > 0 else -1):
        return absent(results)
    return sized(results, found.contains(expected) or low <= found.mean <= high)


def sized(results: Results, met: bool) -> Verdict:
    """The verdict for a trained quantity whose direction is beyond seed noise: `met` says whether its size is the
    published one, which counts at the papers' own size, budget and corpus alone.
    """
    return "reproduced" if met and results.published_scale else "direction reproduced"
