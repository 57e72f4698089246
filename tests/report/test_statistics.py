"""Means, intervals and paired differences, on hand-worked numbers."""

from __future__ import annotations

import math

import pytest

from aero.report.statistics import difference, estimate, interval


def test_interval_of_three_seeds_by_hand() -> None:
    # mean 2, s = 1, t(2, 0.975) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    found = estimate({1: 1.0, 2: 2.0, 3: 3.0})
    assert found.mean == 2.0
    assert found.low == pytest.approx(2.0 - 2.484138, abs=1e-5)
    assert found.high == pytest.approx(2.0 + 2.484138, abs=1e-5)
    assert found.seeds == (1, 2, 3)


def test_one_seed_has_no_interval() -> None:
    found = estimate({1337: 4.0})
    assert (found.low, found.high, found.excludes(0.0)) == (None, None, 0)
    assert found.text(1) == "4.0"


def test_not_finite_values_are_left_out() -> None:
    assert estimate({1: math.nan, 2: 3.0}).seeds == (2,)
    assert estimate({1: math.nan}) is None


def test_sides_of_an_interval() -> None:
    above = estimate({1: 1.0, 2: 1.1, 3: 0.9})
    assert above.excludes(0.0) == 1 and above.excludes(2.0) == -1 and above.excludes(1.05) == 0
    assert above.contains(1.05) and not above.contains(0.0)


def test_pairs_are_made_by_seed_only() -> None:
    assert difference({1: 3.0, 2: 7.0}, {1: 1.0, 3: 5.0}) == {1: 2.0}


def test_an_interval_by_a_pooled_deviation() -> None:
    # t(34, 0.975) = 2.032245 and s = 0.02: half width 2.032245 * 0.02 / sqrt(2) = 0.0287403
    found = interval({1: 0.1, 2: 0.3}, 0.02, 34)
    assert (found.mean, found.high) == (pytest.approx(0.2), pytest.approx(0.2287403, abs=1e-6))
    assert interval({1: 0.1, 2: 0.3}, 9.0, 0) == estimate({1: 0.1, 2: 0.3})
    assert not interval({1: 0.1}, 0.02, 34).has_interval
