"""Verdicts on the committed trainings of scale desk, recomputed from their rows without the code of `aero.report`."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from statistics import fmean, variance

import pytest
import yaml
from scipy.stats import t as student

from aero.report import claims
from aero.report.results import Results

DESK = Path(__file__).resolve().parents[2] / "results/desk"
TOKENS, BOUND = 2_560_000, math.lgamma(129) / 128
"""Distinct tokens of a training, and the largest mean entropy of a head, ln(128!) / 128."""


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DESK / name).read_text(encoding="utf-8").splitlines()]


NGRAMS = {
    int(line["order"]): float(line["perplexity"])
    for line in csv.DictReader((DESK / "ngrams.csv").open(encoding="utf-8"))
    if int(line["tokens"]) == TOKENS
}
PERPLEXITY: dict[str, dict[int, float]] = {}
for row in rows("metrics.jsonl"):
    PERPLEXITY.setdefault(row["run"], {})
    if row["diverged_at_step"] is None and row["eval_perplexity"] <= NGRAMS[2]:
        PERPLEXITY[row["run"]][row["seed"]] = row["eval_perplexity"]
ENTROPY = {(row["run"], row["seed"]): list(itertools.chain(*row["entropy_mean"])) for row in rows("entropy.jsonl")}


def log_ratios(run: str, against: str) -> list[float]:
    own, other = PERPLEXITY.get(run, {}), PERPLEXITY.get(against, {})
    return [math.log(own[seed] / other[seed]) for seed in sorted(own) if seed in other]


PREDICTED = yaml.safe_load((DESK / "predictions.yaml").read_text(encoding="utf-8"))["perplexity"]
POOLED = [logs for one in PREDICTED if len(logs := log_ratios(one["run"], one["against"])) > 1]
FREEDOM = sum(len(logs) - 1 for logs in POOLED)
DEVIATION = math.sqrt(sum(variance(logs) * (len(logs) - 1) for logs in POOLED) / FREEDOM)


def verdict(run: str, against: str, published: float) -> tuple[str, list[float]]:
    """By the registered rules, with the interval in per cent."""
    logs = log_ratios(run, against)
    if len(logs) < 2:
        return "not testable here", []
    half = student.ppf(0.975, FREEDOM) * DEVIATION / math.sqrt(len(logs))
    low, high = fmean(logs) - half, fmean(logs) + half
    interval = [100 * math.expm1(end) for end in (low, high)]
    if low <= 0 <= high:
        return "undecided", interval
    if (low > 0) != (published > 0):
        return "opposite here", interval
    return "reproduced" if interval[0] <= published <= interval[1] else "direction reproduced", interval


def decided(committed: Results, claim: str) -> dict[str, str]:
    judged = claims.judge(committed, "aero")
    return judged[judged.id == claim].iloc[0].to_dict()


@pytest.mark.parametrize(
    ("claim", "run", "against", "published", "expected"),
    [
        ("t2-linear-ffn", "sm-ln", "sm-ln-g", 26.56, "reproduced"),
        ("t2-layernorm-removal-gelu", "sm-g", "sm-ln-g", 18.92, "direction reproduced"),
        ("t2-layernorm-removal-relu", "sm-r", "sm-ln-g", 9.2, "opposite here"),
        ("t2-layernorm-removal-keeping-relu", "sm-r", "sm-ln-r", 6.5, "undecided"),
        ("t4-price-scaled", "sm-scffn", "sm-ln-g", 30.1, "not testable here"),
    ],
)
def test_a_difference(committed: Results, claim: str, run: str, against: str, published: float, expected: str) -> None:
    found, (own, interval) = decided(committed, claim), verdict(run, against, published)
    assert (found["verdict"], found["scale"]) == (own, "desk") and own == expected
    assert not interval or "[{:+.2f}, {:+.2f}]".format(*interval) in found["measured"].replace("−", "-")


def test_the_gate() -> None:
    assert fmean(PERPLEXITY["sm-ln-g"].values()) < 0.95 * min(NGRAMS.values())
    middle = [
        1 / 4 <= value / BOUND < 3 / 4 for (run, _), heads in ENTROPY.items() if run == "sm-ln-g" for value in heads
    ]
    assert len(middle) == 3 * 12 * 8 and fmean(middle) >= 0.5


def test_at_ceiling(committed: Results) -> None:
    """Heads in the lowest quarter of the largest observed entropy."""
    for run in ("sm", "sm-ln-g"):
        heads = [ENTROPY[run, seed] for seed in PERPLEXITY[run]]
        assert fmean(value < max(one) / 4 for one in heads for value in one) <= 0.02
    assert decided(committed, "f3a-softmax-only-collapse")["verdict"] == "at ceiling"


def test_contradicted(committed: Results) -> None:
    """Six of twelve linear FFNs of 2 x 128 x 768 x 768 operations are half of them, not a sixth."""
    twelve, six = (layers * 2 * 128 * 768**2 for layers in (12, 6))
    assert twelve / six == 2
    found = decided(committed, "c-pruning-factor")
    assert (found["verdict"], found["measured"], found["published"]) == ("contradicted", "2.0×", "6×")


def test_failures_count_every_attempt_that_ended_by_itself(committed: Results) -> None:
    kept = [row for row in rows("metrics.jsonl") if row["run"] == "sm"]
    attempts = csv.DictReader((DESK.parent / "gpu/attempts.csv").open(encoding="utf-8"))
    ended = [line["failed"] for line in attempts if line["scale"] == "desk" and line["run"] == "sm" and line["failed"]]
    failed = len(kept) - len(PERPLEXITY["sm"]) + ended.count("1")
    overflown = sum(row["float16_overflow"] is not None for row in kept)
    assert (
        f"{failed + overflown} of {len(kept) + len(ended)} trainings"
        in decided(committed, "t2-softmax-only-fails")["measured"]
    )
