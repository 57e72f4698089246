"""Properties of the bootstrap over blocks of held-out tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.report.statistics import sampling_error


def mean(heads: np.ndarray) -> np.ndarray:
    return heads


@given(st.integers(0, 10_000), st.integers(2, 40), st.floats(-5, 5), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_the_error_of_a_mean_is_that_of_its_blocks(seed: int, count: int, shift: float, scale: float) -> None:
    """A bootstrap of K values has variance s^2 / K with their own variance s^2 (divided by K, as it draws from them);
    400 resamples know it to some 4 %. A shift leaves it, a factor multiplies it."""
    blocks = np.random.default_rng(seed).normal(2.0, 1.0, (count, 2, 3))
    found = sampling_error(mean, blocks)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, blocks.std(0) / np.sqrt(count), rtol=0.25)
    np.testing.assert_allclose(sampling_error(mean, scale * blocks + shift), scale * found, rtol=1e-6)
    assert np.array_equal(sampling_error(mean, blocks), found)  # the same resamples every time


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(-5, 5))
@settings(max_examples=25, deadline=None)
def test_what_all_blocks_agree_on_has_no_error(seed: int, count: int, difference: float) -> None:
    blocks = np.random.default_rng(seed).normal(2.0, 1.0, (count, 3))
    assert sampling_error(mean, np.tile(blocks[:1], (count, 1))).max() == pytest.approx(0, abs=1e-12)
    apart = sampling_error(lambda one, other: one - other, blocks, blocks - difference)
    assert apart.max() == pytest.approx(0, abs=1e-12)
    assert sampling_error(lambda one, other: one - other, blocks, -blocks) == pytest.approx(
        2 * sampling_error(mean, blocks), rel=1e-9
    )
