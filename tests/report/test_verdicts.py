"""Each rule on measurements that meet, miss and reverse what is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from aero.report.statistics import Estimate
from aero.report.verdicts import RULES, Measurement, decide, exact

REPRODUCED, DIRECTION, NOT_SEEN, CONTRADICTED, OPEN = (
    "reproduced",
    "direction reproduced",
    "not seen at this scale",
    "contradicted",
    "not testable here",
)


def interval(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, (1, 2))


def measured(*effects: Estimate, own: bool = False, **parts: Any) -> Measurement:
    """Of trainings smaller than the papers', or of their own size."""
    named = {str(place): one for place, one in enumerate(effects)}
    return Measurement("text", "laptop", "file", named, own_size=own, sizes_compare=own, **parts)


UP, ACROSS, DOWN = interval(1, 3), interval(-1, 3), interval(-3, -1)


@pytest.mark.parametrize(
    ("rule", "parameters", "effects", "smaller", "own"),
    [
        ("equal_within", {"value": 2.5}, [UP], DIRECTION, REPRODUCED),
        ("equal_within", {"value": 9}, [UP], DIRECTION, DIRECTION),
        ("equal_within", {"value": 2.5}, [ACROSS], NOT_SEEN, CONTRADICTED),
        ("equal_within", {"value": -2}, [UP], NOT_SEEN, CONTRADICTED),
        ("equal_within", {"value": -2}, [DOWN], DIRECTION, REPRODUCED),
        # With a tolerance the mean alone counts: a wide interval does not meet a size.
        ("equal_within", {"value": 2.5, "tolerance": 0.4}, [UP], DIRECTION, DIRECTION),
        ("equal_within", {"value": 2.5, "tolerance": 0.6}, [UP], DIRECTION, REPRODUCED),
        ("equal_within", {"value": 2.0, "tolerance": 1, "beyond": 1.5}, [UP], NOT_SEEN, CONTRADICTED),
        ("equal_within", {"value": 2.0, "tolerance": 1, "beyond": 4}, [UP], DIRECTION, REPRODUCED),
        ("equal_within", {"value": 2.0}, [UP, ACROSS], NOT_SEEN, CONTRADICTED),
        ("above", {}, [UP], DIRECTION, DIRECTION),
        ("above", {}, [UP, ACROSS], NOT_SEEN, CONTRADICTED),
        ("above", {"limit": 1.5}, [UP], NOT_SEEN, CONTRADICTED),
        ("above", {"limit": 0.5, "size": 0.95}, [exact(0.96), exact(0.95)], REPRODUCED, REPRODUCED),
        ("above", {"limit": 0.5, "size": 0.95}, [exact(0.96), exact(0.6)], DIRECTION, DIRECTION),
        ("below", {}, [DOWN], DIRECTION, DIRECTION),
        ("below", {"complete": True}, [DOWN], REPRODUCED, REPRODUCED),
        ("below", {}, [UP], NOT_SEEN, CONTRADICTED),
        ("not_above", {"limit": 4}, [UP], DIRECTION, REPRODUCED),
        ("not_above", {"limit": 2}, [UP], OPEN, OPEN),
        ("not_above", {"limit": 0}, [UP], NOT_SEEN, CONTRADICTED),
        ("ordering", {}, [UP, UP], REPRODUCED, REPRODUCED),
        ("ordering", {}, [UP, ACROSS], DIRECTION, DIRECTION),
        ("ordering", {}, [ACROSS, ACROSS], NOT_SEEN, CONTRADICTED),
        ("ordering", {}, [UP, DOWN], NOT_SEEN, CONTRADICTED),
        ("ordering", {"signs": [1, -1]}, [UP, DOWN], REPRODUCED, REPRODUCED),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(4.3)], REPRODUCED, REPRODUCED),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(1.2)], DIRECTION, DIRECTION),
        ("ratio_direction", {"factor": 4, "tolerance": 0.1}, [exact(0.9)], NOT_SEEN, CONTRADICTED),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.95), exact(0.5)], REPRODUCED, REPRODUCED),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.5), exact(1.05)], DIRECTION, DIRECTION),
        ("either_within", {"value": 1, "tolerance": 0.1}, [exact(0.5), exact(2)], NOT_SEEN, CONTRADICTED),
    ],
)
def test_rules_on_effects(
    rule: str, parameters: dict[str, Any], effects: list[Estimate], smaller: str, own: str
) -> None:
    assert decide(rule, measured(*effects), **parameters).verdict == smaller
    assert decide(rule, measured(*effects, own=True), **parameters).verdict == own


@pytest.mark.parametrize(
    ("rule", "checks", "effects", "verdict"),
    [
        ("in_seeds", [True, True], [], REPRODUCED),
        ("in_seeds", [True, False], [], DIRECTION),
        ("in_seeds", [False, False], [UP, UP], DIRECTION),
        ("in_seeds", [False, False], [UP, ACROSS], NOT_SEEN),
        ("in_seeds", [False, False], [], NOT_SEEN),
        ("all_hold", [True, True], [UP], REPRODUCED),
        ("all_hold", [True, True], [ACROSS], DIRECTION),
        ("all_hold", [True, True], [], DIRECTION),
        ("all_hold", [True, False], [UP], NOT_SEEN),
        ("holds", [True, True], [], REPRODUCED),
        ("paper_self_consistency", [True, False], [], NOT_SEEN),
    ],
)
def test_rules_on_conditions(rule: str, checks: list[bool], effects: list[Estimate], verdict: str) -> None:
    parameters = {"in_seeds": {"otherwise": "above"}, "all_hold": {"above": 0.5}}.get(rule, {})
    named = {str(place): held for place, held in enumerate(checks)}
    assert decide(rule, measured(*effects, checks=named), **parameters).verdict == verdict


def test_a_baseline_must_have_less() -> None:
    for more, verdict in ((UP, DIRECTION), (ACROSS, NOT_SEEN), (DOWN, NOT_SEEN)):
        assert decide("above", measured(UP, against={"sm-ln-g": more})).verdict == verdict


def test_one_seed_and_missing_runs_give_no_verdict() -> None:
    alone = Estimate(2.0, None, None, (1,))
    for rule in RULES:
        found = decide(rule, measured(alone, missing="one seed"))
        assert (found.verdict, found.effect) == (OPEN, alone) and found.evidence == "file; one seed"


def test_the_evidence_names_opposite_effects() -> None:
    assert decide("above", measured(DOWN, UP)).evidence == "file; the opposite holds here for 0"
    assert decide("below", measured(ACROSS)).evidence == "file"
