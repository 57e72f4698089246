"""Steps on shares: arithmetic on random shares, cutting programs at them, and two real processes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clear_text import STEP, large_runs, near, reciprocal_error
from hypothesis import given, settings
from hypothesis import strategies as st
from middle import RecordingRelay

from aero.two_party.lattice import share_steps as shares
from aero.two_party.lattice.matmul import PACKED, PairLayout, SquaresLayout
from aero.two_party.lattice.ring import ring_elements, share_of
from aero.two_party.lattice.share_steps import OCTAVES, STEPS, StepContext, negative
from aero.two_party.program import nonlinear
from aero.two_party.program.bounded import (
    RECIPROCAL_ROOT_ERROR,
    reciprocal,
    reciprocal_root,
    wide_maximum,
)
from aero.two_party.program.plan import Segment, ShareStep, plan
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

BITS = 18
RING = 1 << 64
MOST = 129.0


@given(st.integers(0, int(OCTAVES * 2**BITS) - 1), st.integers(0, RING - 1))
@settings(max_examples=300, deadline=None)
def test_powers_of_the_two_shares_multiply_to_two_to_the_minus_x(x, mask):
    """u_0 u_1, times 2^16 where the bits differ, is 2^-X: in exact integers, for any masking of X."""
    of_shares = STEPS["split_powers"].of_shares
    client, zeros, bit_0 = of_shares(StepContext(CLIENT), np.array([mask], np.uint64))
    other_zeros, server, bit_1 = of_shares(StepContext(SERVER), np.array([(x - mask) % RING], np.uint64))
    assert zeros[0] == other_zeros[0] == 0
    product = int(client[0]) * int(server[0])
    assert product <= 1 << 61  # fits the ring with room for the sign
    power = product / 2**61 * (2.0**16 if bit_0[0] != bit_1[0] else 1.0)
    assert power == pytest.approx(2.0 ** (-x / 2**BITS), rel=2**-14)


def exponential(x):
    return nonlinear.split_exponential(x)


def in_the_clear(cut, **values):
    """Run the parts of a plan by JAX alone."""
    for part, unneeded in cut:
        if isinstance(part, Segment):
            made = part.function(*(values[name] for name in part.inputs))
            made = made if isinstance(made, list | tuple) else [made]
        else:
            made = STEPS[part.step].clear(*(values[name] for name in part.inputs))
        values.update(zip(part.outputs, made, strict=True))
        for name in unneeded:
            del values[name]
    return values


def test_a_plan_computes_the_function_and_drops_unneeded_values():
    constant = np.linspace(0.5, 1.5, 6, dtype=np.float32)

    def function(x, y):
        scaled = jnp.abs(x) * jnp.asarray(constant) * np.float32(2.0)
        first = exponential(scaled) + y
        return exponential(jnp.abs(first)) * y + scaled, first

    shape = jax.ShapeDtypeStruct((6,), np.float32)
    cut = plan(function, [shape, shape], ["x", "y"], ["a", "b"])
    assert [type(part) for part, _ in cut] == [Segment, ShareStep, Segment, ShareStep, Segment]
    x, y = np.linspace(-2, 3, 6, dtype=np.float32), np.full(6, 0.25, np.float32)
    values = in_the_clear(cut, x=x, y=y)
    for name, expected in zip("ab", function(x, y), strict=True):
        np.testing.assert_allclose(values[name], expected, rtol=1e-6)
    assert set(values) == {"x", "y", "a", "b"}


def test_equal_segments_of_a_plan_have_one_function():
    """Four layers, the last two with other constants."""

    def function(x, public, *weights):
        for weight, constant in zip(weights, (1.0, 1.0, 2.0, 2.0), strict=True):
            x = jnp.where(public > 0.0, exponential(x * weight), 0.0) + np.full(3, constant, np.float32)
        return x

    shape = jax.ShapeDtypeStruct((3,), np.float32)
    inputs = ["x", "public", "w.0", "w.1", "w.2", "w.3"]
    cut = plan(function, [shape] * 6, inputs, ["y"], {"public"})
    first, *later = (part for part, _ in cut if isinstance(part, Segment))
    assert first.inputs == ("x", "w.0") and all("public" in part.inputs for part in later)
    values = dict(zip(inputs, np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32), strict=True))
    np.testing.assert_allclose(in_the_clear(cut, **values)["y"], function(*values.values()), rtol=1e-5)
    assert later[0].function is later[1].function is not later[2].function


def test_a_function_without_steps_is_not_cut_and_impossible_ones_are_refused():
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    assert plan(lambda x: x + 1.0, [shape], ["x"], ["y"]) is None
    with pytest.raises(ValueError, match="needs a secret"):
        plan(lambda x: x + exponential(jnp.ones(3)), [shape], ["x"], ["y"])
    with pytest.raises(ValueError, match="nested"):
        plan(jax.jit(exponential), [shape], ["x"], ["y"])


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)])
def test_ring_elements_round_trip_through_a_share(shape):
    values = np.random.default_rng(0).integers(0, RING, int(np.prod(shape)), np.uint64)
    share = share_of(values, shape, np.float32, None, "FM64")
    assert (ring_elements(share, "AShr") == values).all()
    cut_off = share_of(values, shape, np.float32, None, "FM64")
    cut_off.share_chunks = [cut_off.share_chunks[0][:-1]]
    with pytest.raises(ValueError, match="cut off"):
        ring_elements(cut_off, "AShr")
    doubled = share_of(values, shape, np.float32, None, "FM64")
    doubled.share_chunks = [doubled.share_chunks[0], doubled.share_chunks[0]]
    with pytest.raises(ValueError, match="do not fit together"):
        ring_elements(doubled, "AShr")
    with pytest.raises(ValueError, match="is no AShr"):
        ring_elements(share_of(values, shape, np.float32, SERVER, "FM64"), "AShr")


@pytest.mark.parametrize("field", ["FM32", "FM64"])
def test_bits_round_trip_through_a_share(field):
    values = np.random.default_rng(0).integers(0, 2, 15, np.uint64)
    share = share_of(values, (3, 5), np.bool_, None, field)
    assert (ring_elements(share, "BShr") == values).all()
    with pytest.raises(ValueError, match="a share of 14 elements has"):
        ring_elements(share_of(values, (2, 7), np.bool_, None, field), "BShr")
    with pytest.raises(ValueError, match="is no AShr"):
        ring_elements(share, "AShr")
    with pytest.raises(ValueError, match="is no BShr"):
        ring_elements(share_of(values, (3, 5), np.float32, None, field), "BShr")


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, RING - 1))
@settings(max_examples=300, deadline=None)
def test_shares_modulo_2_to_the_32_are_shares_of_the_same_number(x, mask):
    seen = []
    for rank, share in ((CLIENT, mask), (SERVER, (x - mask) % RING)):
        hand = StepContext(rank, narrow_sign=lambda low: (seen.append(int(low[0])), np.zeros(1, np.uint64))[1])
        STEPS["negative"].of_shares(hand, np.array([share], np.uint64))
    assert max(seen) < 2**32 and (sum(seen) % 2**32 >= 2**31) is (x < 0)


def narrowly(x):
    return negative(x)


def in_full(x):
    return x < 0.0


def signs_task(party, values):
    profiles, most = {}, 2.0 ** (31 - BITS)
    for scale in (1.0, 1.5):
        x = None if values is None else (scale * most * values).astype(np.float32)
        party.put("x", x, (4096,), from_rank=CLIENT)
        for name, function in (("narrow", narrowly), ("full", in_full)):
            for _ in range(2 if scale == 1.0 else 1):  # the first run pays for keys
                profile = party.run(function, ["x"], [f"{name} {scale}"])
            profiles[f"{name} {scale}"] = profile
    return profiles, {name: party.reveal(name, to=CLIENT) for name in profiles}


GIVEN = {
    "x": np.linspace(-100.0, 100.0, 40_000).astype(np.float32),
    "rows": np.random.default_rng(3).normal(0.5, np.geomspace(0.1, 20.0, 140)[:, None], (140, 40)).astype(np.float32),
    "factors": np.random.default_rng(4).uniform(0.0, 2.0, 140).astype(np.float32),
    "sums": np.geomspace(1.0, 128.0, 512).astype(np.float32),
    "ties": np.random.default_rng(0).integers(-40, 40, (64, 13)).astype(np.float32),
}
FUNCTIONS = {
    "square": (shares.square, ["x"]),
    "product": (lambda x: x * x, ["x"]),
    "normalised": (lambda rows: nonlinear.normalise(rows, narrow=True, tiles=True, lattice=1), ["rows"]),
    "scaled": (lambda rows, factors: nonlinear.row_tiles(rows, factors, lattice=1), ["rows", "factors"]),
    "own": (lambda sums: 1.0 / sums, ["sums"]),
    "bounded": (lambda sums: reciprocal(sums, MOST), ["sums"]),
    "own root": (jax.lax.rsqrt, ["sums"]),
    "bounded root": (lambda sums: reciprocal_root(sums, 1e-5), ["sums"]),
    "maximum": (lambda ties: wide_maximum(ties, 4, narrow=True), ["ties"]),
}


def functions_task(party, given):
    for name, values in GIVEN.items():
        party.put(name, values if party.rank == CLIENT else None, values.shape, from_rank=CLIENT)
    profiles = {}
    for name, (function, inputs) in FUNCTIONS.items():
        for _ in range(2):  # the first run pays for keys
            profiles[name] = party.run(function, inputs, [name])
    return profiles, {name: party.reveal(name, to=CLIENT) for name in FUNCTIONS}


def one_sign_task(party, values):
    party.put("x", values, (4096,), from_rank=CLIENT)
    party.run(narrowly, ["x"], ["sign"])
    return party.reveal("sign", to=CLIENT)


TASKS = {"signs": signs_task, "one sign": one_sign_task, "functions": functions_task}


def every_task(party, given):
    return {name: task(party, given and given[name]) for name, task in TASKS.items()}


@pytest.fixture(scope="module")
def session():
    """{task: (its values, what the client found, what the server found)} of one session, and what crossed its link."""
    signs = np.linspace(-0.9999, 0.9999, 4096)
    # Both ends, zero, and the smallest number of either sign: the largest float32 below 1 is the largest that is held.
    signs[:5] = (-1.0, np.nextafter(np.float32(1), np.float32(0)), 0.0, 2.0**-31, -(2.0**-31))
    given = {
        "signs": signs,
        "one sign": np.random.default_rng(2).normal(0, 10, 4096).astype(np.float32),
        "functions": None,
    }
    relay = RecordingRelay()
    client, server = run_parties(every_task, given, None, Settings(), relay=relay)
    return {name: (given[name], client[name], server[name]) for name in TASKS} | {"link": relay.recorded}


def test_narrow_comparisons_of_two_processes_and_their_limit(session):
    values, (spent, found), (spent_there, _) = session["signs"]
    for name in ("narrow 1.0", "full 1.0", "full 1.5"):
        assert (found[name] == (values < 0)).all()
    # Beyond 2^13 the sign is that of another number: what `fixed_point` looks for.
    assert ((found["narrow 1.5"] == (values < 0)) == (np.abs(values) * 1.5 < 1)).all()
    narrow, full = spent["narrow 1.0"], spent["full 1.0"]
    assert narrow.bytes < 0.55 * full.bytes and narrow.messages_sent < full.messages_sent
    # What the second runtime sent is in the run's profile, of both parties alike, and its own operation too.
    assert (narrow.bytes_sent, narrow.bytes_received) == (
        spent_there["narrow 1.0"].bytes_received,
        spent_there["narrow 1.0"].bytes_sent,
    )
    assert "msb_a2b" in {one.name for one in narrow.operations}


def test_squares_and_scaled_rows_of_two_processes(session):
    """Within a few last bits, which a square multiplies by 2 |x|; with the bytes that the formulas say."""
    _, (spent, found), (spent_there, _) = session["functions"]
    # As SPU takes an input.
    x, rows, factors = (np.trunc(GIVEN[n].astype(np.float64) / STEP) * STEP for n in ("x", "rows", "factors"))
    assert (np.abs(found["square"] - x**2) < STEP * (4 + 4 * np.abs(x))).all()
    assert spent["square"].bytes < 0.72 * spent["product"].bytes
    assert np.abs(found["scaled"] - rows * factors[:, None]).max() < 16 * STEP
    centred = rows - rows.mean(1, keepdims=True)
    exact = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5)
    assert (np.abs(found["normalised"] - exact) < 2e-3 * np.abs(exact) + 1e-3).all()
    for one, other in zip(spent.values(), spent_there.values(), strict=True):
        assert (one.bytes_sent, one.bytes_received) == (other.bytes_received, other.bytes_sent)
    # 140 rows are two groups of 70, and nine tiles of 16, three in each product. The root compares as well.
    tiles, squares = PairLayout.of(3 * PACKED, PACKED, 3 * 40), SquaresLayout.of(140, 40)
    sent = 3 * tiles.query_bytes, 2 * squares.query_bytes
    for name, least, more in (("scaled", sent[0], 1e5), ("normalised", sum(sent), 1e6)):
        assert 0 <= spent[name].bytes_sent - least - 3 * tiles.answer_bytes < more, name


def test_values_compared_in_32_bits_do_not_cross_the_link(session):
    values, found, _ = session["one sign"]
    assert (found == (values < 0)).all()
    runs = large_runs(values)
    for stream in session["link"]:
        assert len(stream) > 40_000 and not near(runs, stream)
    # The search finds them where they do cross.
    lowered = np.rint(runs[5] / STEP).astype("<i4").tobytes()
    assert near(runs, session["link"][0][:1001] + lowered)


def test_bounded_functions_of_two_processes_are_as_exact_as_spus_own(session):
    _, (spent, found), _ = session["functions"]
    sums, messages = GIVEN["sums"], {name: profile.messages_sent for name, profile in spent.items()}
    assert (found["maximum"] == GIVEN["ties"].max(1)).all()
    errors = {name: np.abs(found[name] - 1 / sums).max() for name in ("own", "bounded")}
    assert errors["bounded"] <= reciprocal_error(MOST) + 8 * STEP
    assert errors["bounded"] <= errors["own"] + 4 * STEP, errors
    errors = {name: np.abs(found[name] - sums**-0.5).max() for name in ("own root", "bounded root")}
    assert errors["bounded root"] <= min(RECIPROCAL_ROOT_ERROR + 8 * STEP, errors["own root"] + 8 * STEP), errors
    assert messages["bounded"] < 0.5 * messages["own"] and messages["bounded root"] < messages["own root"]
