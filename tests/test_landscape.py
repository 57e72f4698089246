"""The entropy landscape: hand-worked cases, plain-loop transcriptions, properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.landscape import (
    entropy_range,
    gini,
    gini_by_layer,
    steepness,
    steepness_over_orders,
    wasserstein_1,
    wasserstein_1_by_layer,
)

ENTROPIES = st.lists(st.floats(0, 6), min_size=1, max_size=12)


def test_steepness_by_hand() -> None:
    # dE/dlayer: edges take the step to their one neighbour, the middle half the step over two. dE/dhead likewise.
    landscape = [[0.0, 3.0, 4.0], [4.0, 3.0, 0.0], [4.0, 9.0, 2.0]]
    layer = [[4.0, 0.0, -4.0], [2.0, 3.0, -1.0], [0.0, 6.0, 2.0]]
    head = [[3.0, 2.0, 1.0], [-1.0, -2.0, -3.0], [5.0, -1.0, -7.0]]
    np.testing.assert_allclose(steepness(landscape), np.hypot(layer, head))
    assert steepness(landscape)[0, 0] == 5.0


def test_steepness_of_a_plane_of_one_layer_and_of_heads_that_are_not_finite() -> None:
    plane = 0.3 * np.arange(5)[:, None] + 0.4 * np.arange(4)
    np.testing.assert_allclose(steepness(plane), 0.5)
    np.testing.assert_allclose(steepness([[1.0, 2.0, 4.0]]), [[1.0, 1.5, 2.0]])
    assert steepness([[3.0]]).tolist() == [[0.0]]
    broken = steepness([[1.0, math.nan, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert np.isnan(broken[0, :3]).all() and broken[0, 3] == 0.0 and np.isnan(broken[1, 1])
    with pytest.raises(ValueError, match=r"\(L, H\)"):
        steepness([1.0, 2.0])


def test_steepness_depends_on_the_numbering_of_heads_and_its_mean_over_orders_does_not() -> None:
    landscape = np.tile([0.0, 1.0, 0.0, 1.0], (3, 1))
    renumbered = landscape[:, [0, 2, 1, 3]]
    assert abs(steepness(landscape).mean() - steepness(renumbered).mean()) > 0.1
    one, other = (steepness_over_orders(x, orders=4000) for x in (landscape, renumbered))
    assert one.mean() == pytest.approx(other.mean(), rel=0.02)
    # A head keeps its place whatever the order: the odd one out is the steepest of its layer, wherever it stands.
    for place in range(4):
        alone = np.zeros((2, 4))
        alone[0, place] = 3.0
        assert steepness_over_orders(alone)[0].argmax() == place


def test_gini_by_hand() -> None:
    assert gini([2.0, 2.0, 2.0]) == 0.0
    assert gini([0.0, 0.0, 0.0, 7.0]) == pytest.approx(0.75)  # (n - 1) / n
    assert gini([1.0, 3.0]) == pytest.approx(2 * 2 / (2 * 4 * 2))  # |1-3| twice over 2 n^2 mean
    assert gini([0.0, 0.0]) == 0.0 and math.isnan(gini([math.nan]))
    assert gini([-1e-9, 1.0]) == pytest.approx(0.5)
    assert gini_by_layer([[1.0, 3.0], [2.0, 2.0]]).tolist() == pytest.approx([0.25, 0.0])
    with pytest.raises(ValueError, match="not negative"):
        gini([-1.0, 1.0])


@given(ENTROPIES, st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_gini_is_the_double_sum_and_ignores_scale_and_order(values: list[float], scale: float) -> None:
    values = [round(v, 3) for v in values]
    count, mean = len(values), math.fsum(values) / len(values)
    if mean > 0:
        expected = math.fsum(abs(a - b) for a in values for b in values) / (2 * count**2 * mean)
        assert gini(values) == pytest.approx(expected, abs=1e-9)
    assert 0 <= gini(values) <= (count - 1) / count + 1e-12
    assert gini([scale * v for v in reversed(values)]) == pytest.approx(gini(values), abs=1e-9)


def test_wasserstein_by_hand() -> None:
    assert wasserstein_1([0.0, 1.0], [2.0, 5.0]) == pytest.approx(3.0)  # sorted pairs: 2 and 4
    assert wasserstein_1([0.0], [0.0, 1.0, 5.0]) == pytest.approx(2.0)
    assert wasserstein_1([1.0, math.nan], [4.0]) == pytest.approx(3.0) and math.isnan(wasserstein_1([math.nan], [1.0]))
    layers = wasserstein_1_by_layer([[0.0, 2.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert layers.tolist() == pytest.approx([1.0, 0.0])
    with pytest.raises(ValueError, match="2 layers cannot be compared with 3"):
        wasserstein_1_by_layer(np.ones((2, 2)), np.ones((3, 2)))


@given(ENTROPIES, ENTROPIES, st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_wasserstein_is_the_area_between_the_distributions(one: list[float], other: list[float], shift: float) -> None:
    one, other = ([round(v, 3) for v in values] for values in (one, other))
    points = sorted({*one, *other})
    area = math.fsum(
        (right - left) * abs(sum(v <= left for v in one) / len(one) - sum(v <= left for v in other) / len(other))
        for left, right in zip(points, points[1:], strict=False)
    )
    assert wasserstein_1(one, other) == pytest.approx(area, abs=1e-9)
    assert wasserstein_1(other, one) == pytest.approx(area, abs=1e-9)
    assert wasserstein_1(one, [v + shift for v in one]) == pytest.approx(abs(shift), abs=1e-9)


def test_entropy_range_leaves_out_what_is_not_finite() -> None:
    assert entropy_range([[0.5, math.nan], [3.0, 2.0]]) == (0.5, 3.0)
    assert all(math.isnan(v) for v in entropy_range([[math.nan]]))
