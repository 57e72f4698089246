"""Maxima by wide nodes and reciprocals on a known range, in the clear; of two processes in test_share_steps.py."""

from __future__ import annotations

import numpy as np
import pytest
from clear_text import reciprocal_error

from aero.two_party.program.bounded import (
    LARGEST,
    LEAST,
    RECIPROCAL_ROOT_ERROR,
    node_widths,
    reciprocal,
    reciprocal_root,
    wide_maximum,
)

UNIT = 2.0**-18


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("wide", [2, 4, 5])
def test_maxima_by_wide_nodes(wide, narrow):
    for entries in (1, 2, 3, 8, 13, 17, 64):
        x = np.random.default_rng(entries).integers(0, 9, (5, 2, entries)).astype(np.float32)
        assert (np.asarray(wide_maximum(x, wide, narrow)) == x.max(-1)).all()


def test_a_tree_of_wide_nodes_has_the_fewest_levels_and_starts_narrow():
    assert [node_widths(entries, 4) for entries in (1, 8, 16, 17, 128)] == [[], [2, 4], [4, 4], [2, 3, 3], [2, 4, 4, 4]]


@pytest.mark.parametrize("most", [1, 2, 16, 128, 1024])
def test_reciprocals_stay_within_their_stated_error(most):
    x = np.geomspace(LEAST, most, 20001).astype(np.float32)
    error = np.abs(np.asarray(reciprocal(x, most + 0.1)) * x - 1).max()
    assert error <= reciprocal_error(most + 0.1) + 2e-6 and reciprocal_error(most + 0.1) < 2e-5


@pytest.mark.parametrize("least", [1e-5, 1e-3])
def test_reciprocal_roots_stay_within_their_stated_error(least):
    x = np.geomspace(least, LARGEST, 20001).astype(np.float32)
    exact = x.astype(np.float64) ** -0.5
    assert (np.abs(np.asarray(reciprocal_root(x, least)) - exact) <= RECIPROCAL_ROOT_ERROR * exact + 2 * UNIT).all()
