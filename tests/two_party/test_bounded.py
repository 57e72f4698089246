"""Maxima by wide nodes and reciprocals on a known range: in the clear, and of two processes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from aero.two_party.program.bounded import (
    LARGEST,
    LEAST,
    RECIPROCAL_ROOT_ERROR,
    node_widths,
    reciprocal,
    reciprocal_error,
    reciprocal_root,
    wide_maximum,
)
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, Settings

MOST, UNIT = 129.0, 2.0**-18
SUMS = np.geomspace(1.0, 128.0, 512).astype(np.float32)
ROWS = np.random.default_rng(0).integers(-40, 40, (64, 13)).astype(np.float32)  # with ties


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


def own(x):
    return 1.0 / x


def bounded(x):
    return reciprocal(x, MOST)


def own_root(x):
    return jax.lax.rsqrt(x)


def bounded_root(x):
    return reciprocal_root(x, 1e-5)


def maximum(x):
    return wide_maximum(x, 4, narrow=True)


def both_task(party, given):
    found, messages = {}, {}
    for name, values, functions in (
        ("sums", SUMS, (own, bounded, own_root, bounded_root)),
        ("rows", ROWS, (maximum,)),
    ):
        party.put(name, values if party.rank == CLIENT else None, values.shape, from_rank=CLIENT)
        for function in functions:
            for _ in range(2):
                profile = party.run(function, [name], ["y"])
            found[function.__name__] = party.reveal("y", to=CLIENT)
            messages[function.__name__] = profile.messages_sent
    return found, messages


def test_two_processes_agree_with_numpy_and_divide_as_well_as_spu():
    (found, messages), _ = run_parties(both_task, None, None, Settings())
    assert (found["maximum"] == ROWS.max(1)).all()
    errors = {name: np.abs(found[name] - 1 / SUMS).max() for name in ("own", "bounded")}
    assert errors["bounded"] <= reciprocal_error(MOST) + 8 * UNIT
    assert errors["bounded"] <= errors["own"] + 4 * UNIT, errors
    errors = {name: np.abs(found[name] - SUMS**-0.5).max() for name in ("own_root", "bounded_root")}
    assert errors["bounded_root"] <= min(RECIPROCAL_ROOT_ERROR + 8 * UNIT, errors["own_root"] + 8 * UNIT), errors
    assert messages["bounded"] < 0.5 * messages["own"] and messages["bounded_root"] < messages["own_root"]
