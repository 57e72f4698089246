"""Figures that docs/decisions.md states for trainings, held against the kept results of the laptop scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_decided_numbers import N, stated, told

from aero.report.results import Results, load
from aero.report.statistics import Estimate, estimate, relative

ROOT = Path(__file__).resolve().parents[1]
HEAD_MEAN, LISTING = "ereg-smt-scfuffn-head-mean", "ereg-smt-scfuffn"
INTERVAL = rf"{N} \[{N}, {N}\]"


@pytest.fixture(scope="module")
def results() -> Results:
    return load(ROOT, "laptop")


def values(found: Estimate | None) -> list[float]:
    """Mean, low and high of what the text calls three seeds."""
    assert found is not None and len(found.seeds) == 3 and found.low is not None and found.high is not None
    return [found.mean, found.low, found.high]


def test_the_two_readings_of_the_regulariser(results: Results) -> None:
    def of(run: str) -> list[float]:
        return values(estimate(results.perplexity(run)))

    found = stated(
        rf"ends at {INTERVAL} instead of {INTERVAL} \(three seeds each, as below\)\. Weighted alike .*? ends at "
        rf"{INTERVAL}, {N} % \[{N}, {N}\] above the listing: .*? alone gives {INTERVAL}, which is worse than no "
        rf"temperature \(SM\+ScFuFFN {INTERVAL}\)"
    )
    weighted, listing = (results.perplexity(run) for run in (f"{HEAD_MEAN}-weighted", LISTING))
    above = values(estimate(relative(weighted, listing)))
    every = [*of(HEAD_MEAN), *of(LISTING), *of(f"{HEAD_MEAN}-weighted"), *above, *of("smt-scfuffn"), *of("sm-scfuffn")]
    assert found == told(every, found)


def test_the_seeds_of_the_seventh_pruned_ffn(results: Results) -> None:
    stated("f17-seventh-fails had one, by now it has three, none of which diverged")
    runs = results.seeds("sm-scfuffni-7")
    assert len(runs) == 3 and not any(run.diverged for run in runs)
