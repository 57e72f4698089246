"""Each rule on measurements that meet, miss and reverse what is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from aero.report.statistics import Estimate
from aero.report.verdicts import (
    CEILING,
    CONTRADICTED,
    DIRECTION,
    NOT_TESTABLE,
    OPPOSITE,
    REPRODUCED,
    RULES,
    UNDECIDED,
    Measurement,
    decide,
    exact,
)

UP, ACROSS, DOWN = (Estimate((low + high) / 2, low, high, (1, 2)) for low, high in ((1, 3), (-1, 3), (-3, -1)))


def measured(*effects: Estimate, trained: bool = True, **parts: Any) -> Measurement:
    named = {str(place): one for place, one in enumerate(effects)}
    return Measurement("text", "laptop", "file", named, trained=trained, **parts)


@pytest.mark.parametrize(
    ("rule", "parameters", "effects", "verdict"),
    [
        ("equal_within", {"value": 2.5}, [UP], REPRODUCED),
        ("equal_within", {"value": 9}, [UP], DIRECTION),
        ("equal_within", {"value": 2.5}, [ACROSS], UNDECIDED),
        ("equal_within", {"value": -2}, [UP], OPPOSITE),
        ("equal_within", {"value": -2}, [DOWN], REPRODUCED),
        # With a tolerance the mean alone counts: a wide interval does not meet a size.
        ("equal_within", {"value": 2.5, "tolerance": 0.4}, [UP], DIRECTION),
        ("equal_within", {"value": 2.5, "tolerance": 0.6}, [UP], REPRODUCED),
        ("equal_within", {"value": 2.0, "tolerance": 1, "beyond": 1.5}, [UP], UNDECIDED),
        ("equal_within", {"value": 2.0, "tolerance": 1, "beyond": 4}, [UP], REPRODUCED),
        ("equal_within", {"value": 2.0, "beyond": 0.5}, [DOWN], OPPOSITE),
        ("equal_within", {"value": 2.0}, [UP, ACROSS], UNDECIDED),
        ("above", {}, [UP], DIRECTION),
        ("above", {}, [UP, ACROSS], UNDECIDED),
        ("above", {}, [UP, DOWN], OPPOSITE),
        ("above", {"limit": 1.5}, [UP], UNDECIDED),
        ("above", {"limit": 0.5, "size": 0.95}, [exact(0.96), exact(0.95)], REPRODUCED),
        ("above", {"limit": 0.5, "size": 0.95}, [exact(0.96), exact(0.6)], DIRECTION),
        ("below", {}, [DOWN], DIRECTION),
        ("below", {}, [UP], OPPOSITE),
        ("ordering", {}, [UP, UP], REPRODUCED),
        ("ordering", {}, [UP, ACROSS], DIRECTION),
        ("ordering", {}, [ACROSS, ACROSS], UNDECIDED),
        ("ordering", {}, [UP, DOWN], OPPOSITE),
        ("ordering", {"signs": [1, -1]}, [UP, DOWN], REPRODUCED),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(4.3)], REPRODUCED),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(1.2)], DIRECTION),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(0.9)], OPPOSITE),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.95), exact(0.5)], REPRODUCED),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.5), exact(1.05)], DIRECTION),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.5), exact(2)], OPPOSITE),
    ],
)
def test_rules_on_effects(rule: str, parameters: dict[str, Any], effects: list[Estimate], verdict: str) -> None:
    assert decide(rule, measured(*effects), **parameters).verdict == verdict
    without_training = CONTRADICTED if verdict in (OPPOSITE, UNDECIDED) else verdict
    assert decide(rule, measured(*effects, trained=False), **parameters).verdict == without_training


@pytest.mark.parametrize(
    ("rule", "checks", "effects", "verdict"),
    [
        ("in_seeds", [True, True], [], REPRODUCED),
        ("in_seeds", [True, False], [], DIRECTION),
        ("in_seeds", [False, False], [], OPPOSITE),
        ("all_hold", [True, True], [UP], REPRODUCED),
        ("all_hold", [True, True], [ACROSS], DIRECTION),
        ("all_hold", [True, True], [], DIRECTION),
        ("all_hold", [True, False], [UP], UNDECIDED),
        ("all_hold", [False, False], [UP], OPPOSITE),
        ("holds", [True, True], [], REPRODUCED),
        ("paper_self_consistency", [True, False], [], OPPOSITE),
    ],
)
def test_rules_on_conditions(rule: str, checks: list[bool], effects: list[Estimate], verdict: str) -> None:
    parameters = {"all_hold": {"above": 0.5}}.get(rule, {})
    named = {str(place): held for place, held in enumerate(checks)}
    assert decide(rule, measured(*effects, checks=named), **parameters).verdict == verdict


def test_each_effect_has_its_own_published_number() -> None:
    effects = measured(UP, DOWN)
    assert decide("equal_within", effects, value={"0": 2.0, "1": -2.0}).verdict == REPRODUCED
    assert decide("equal_within", effects, value={"0": 9.0, "1": -2.0}).verdict == DIRECTION
    assert decide("equal_within", effects, value={"0": 2.0, "1": 2.0}).verdict == OPPOSITE
    ratios = measured(exact(2.0), exact(1.2), trained=False)
    assert decide("ratio_direction", ratios, factor={"0": 2.0, "1": 1.2}, tolerance=0.01).verdict == REPRODUCED
    assert decide("ratio_direction", ratios, factor={"0": 2.0, "1": 2.0}, tolerance=0.01).verdict == DIRECTION


@pytest.mark.parametrize(
    ("fractions", "ceiling"),
    [((0.99, 1.0), True), ((0.02, 0.0), True), ((0.97, 1.0), False), ((0.0, 1.0), False), ((), False)],
)
def test_fractions_at_an_end_leave_no_room(fractions: tuple[float, ...], ceiling: bool) -> None:
    assert (decide("above", measured(UP, fractions=fractions)).verdict == CEILING) == ceiling


def test_missing_runs_give_no_verdict() -> None:
    alone = Estimate(2.0, None, None, (1,))
    for rule in RULES:
        found = decide(rule, measured(alone, missing="one seed", fractions=(1.0, 1.0)))
        assert (found.verdict, found.effect) == (NOT_TESTABLE, alone) and found.evidence == "file; one seed"


def test_the_evidence_names_opposite_effects_among_several() -> None:
    assert decide("above", measured(DOWN, UP)).evidence.endswith("0")
    assert decide("below", measured(UP)).evidence == "file"
