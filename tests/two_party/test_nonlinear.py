"""The nonlinear functions in the clear, against independent float64 formulas."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aero.two_party.lattice.share_steps import CHECK_UNIT
from aero.two_party.program import nonlinear
from aero.two_party.program.cover import Cover, narrow_levels, tree_levels
from aero.two_party.program.operations import call
from aero.two_party.runtime.parties import CLIENT, Settings, run_parties
from stages import other_nonlinearities


def exact_softmax(logits: np.ndarray) -> np.ndarray:
    """Row by row in float64, over the visible columns only."""
    heads, rows, columns = logits.shape
    result = np.zeros(logits.shape)
    for head in range(heads):
        for row in range(rows):
            visible = columns - rows + row + 1
            values = [math.exp(value - logits[head, row, :visible].max()) for value in logits[head, row, :visible]]
            result[head, row, :visible] = np.array(values) / sum(values)
    return result


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"), [(16, 16, 8), (16, 16, 1), (13, 13, 5), (17, 17, 16), (9, 12, 4), (1, 16, 1)]
)
@pytest.mark.parametrize("spread", [3.0, 60.0])
def test_softmax(rows, columns, blocks, spread):
    logits = spread * np.random.default_rng(0).standard_normal((2, rows, columns)).astype(np.float32)
    expected = exact_softmax(logits.astype(np.float64))
    np.testing.assert_allclose(np.asarray(nonlinear.softmax_plain(logits)), expected, atol=1e-5)
    cover = np.asarray(nonlinear.softmax_cover(logits, blocks))
    np.testing.assert_allclose(cover, expected, atol=1e-5)
    for one, other in (
        (nonlinear.softmax_plain(logits, narrow=True), nonlinear.softmax_plain(logits)),
        (nonlinear.softmax_cover(logits, blocks, narrow=True), cover),
        *((nonlinear.exponentials(logits, None, blocks, split, n) for n in (True, False)) for split in (True, False)),
    ):
        assert (np.asarray(one) == np.asarray(other)).all()  # the same maxima, and so the same numbers
    assert not cover[~np.broadcast_to(nonlinear.causal_mask(rows, columns), cover.shape)].any()
    np.testing.assert_allclose(cover.sum(-1), 1.0, atol=1e-5)


def test_activations_in_segments_stay_within_their_stated_errors():
    x = np.linspace(-40, 40, 160001)
    exact = np.array([0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x])
    error = np.abs(np.asarray(nonlinear.gelu_segments(x.astype(np.float32))) - exact).max()
    assert error <= nonlinear.GELU_ERROR + 2e-5
    error = np.abs(np.asarray(nonlinear.gelu_squares(x.astype(np.float32))) - exact).max()
    assert error <= nonlinear.GELU_SQUARES_ERROR + 1e-5
    error = np.abs(np.asarray(nonlinear.silu_segments(x.astype(np.float32))) - x / (1 + np.exp(-x))).max()
    assert error <= nonlinear.SILU_ERROR + 2e-5


@pytest.mark.parametrize("entries", [1, 2, 3, 7, 8, 13])
def test_maxima_as_a_tree_of_pairs(entries):
    x = np.random.default_rng(entries).standard_normal((5, 2, entries)).astype(np.float32)
    assert (np.asarray(nonlinear.narrow_maximum(x)) == x.max(-1)).all()


def test_activations_do_not_change_with_the_ring_of_their_comparisons():
    x = np.concatenate([np.linspace(-9, 9, 999), [0.0, -0.0]]).astype(np.float32)
    for one, other in (
        (nonlinear.relu(x, narrow=True), np.maximum(x, 0)),
        (nonlinear.leaky_relu(x, 0.1, narrow=True), np.where(x >= 0, x, np.float32(0.1) * x)),
        (nonlinear.gelu_segments(x, narrow=True), nonlinear.gelu_segments(x)),
        (nonlinear.gelu_squares(x, narrow=True), nonlinear.gelu_squares(x)),
        (nonlinear.silu_segments(x, narrow=True), nonlinear.silu_segments(x)),
    ):
        assert (np.asarray(one) == np.asarray(other)).all()


def test_norms_against_their_definitions():
    generator = np.random.default_rng(1)
    x, gain, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((5, 32), (32,), (32,)))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias
    np.testing.assert_allclose(np.asarray(nonlinear.layer_norm(x, gain, bias)), expected, atol=1e-5)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(np.asarray(nonlinear.rms_norm(x, gain)), expected, atol=1e-5)
    for lattice in (0, 1):
        found = nonlinear.rms_normalise(x, tiles=True, lattice=lattice)
        np.testing.assert_allclose(np.asarray(found) * gain, expected, atol=1e-5)
        found = nonlinear.rms_normalise(x[:, :24], narrow=True, tiles=True, lattice=lattice)
        np.testing.assert_allclose(np.asarray(found), nonlinear.rms_normalise(x[:, :24]), rtol=3e-4)


@pytest.mark.parametrize("width", [24, 64, 200])
def test_rows_scaled_by_tiles(width):
    """Rows that fill no whole number of tiles, and widths for which one, two or five tiles are multiplied at once."""
    x = np.random.default_rng(1).standard_normal((3, 9, width)).astype(np.float32)
    factors = x[..., 0] + 1
    for lattice in (0, 1):
        found = np.asarray(nonlinear.row_tiles(x, factors, lattice))
        np.testing.assert_allclose(found, x * factors[..., None], rtol=1e-6)


def alternatives_task(party, logits):
    party.put("x", logits, LOGITS.shape, from_rank=CLIENT)
    party.put_public("half", np.float32(0.5))
    found = {}
    for name, function in [(name, one[0]) for name, one in ALTERNATIVES.items()] + [*BEYOND.items()]:
        party.run(function, ALTERNATIVES[name][1] if name in ALTERNATIVES else ["x"], ["y"])
        found[name] = party.reveal("y", to=CLIENT)
    return found


LOGITS = np.random.default_rng(2).uniform(-6, 6, (2, 16, 16)).astype(np.float32)
VISIBLE = nonlinear.causal_mask(16, 16)
ALTERNATIVES = {
    "DyT": (other_nonlinearities.dyt, ["x", "half", "half", "half"], 0.5 * np.tanh(0.5 * LOGITS) + 0.5),
    "hard": (other_nonlinearities.hard_tanh_dyt, ["x", *3 * ["half"]], 0.5 * np.clip(0.5 * LOGITS, -1, 1) + 0.5),
    "ReLU attention": (other_nonlinearities.relu_attention, ["x"], VISIBLE * np.maximum(LOGITS, 0) / 16),
    "sigmoid attention": (other_nonlinearities.sigmoid_attention, ["x"], VISIBLE / (1 + 16 * np.exp(-LOGITS))),
    "ConSmax": (other_nonlinearities.consmax, ["x", "half"], VISIBLE * 0.5 * np.exp(LOGITS)),
    "squared ReLU": (other_nonlinearities.squared_relu, ["x"], np.maximum(LOGITS, 0) ** 2),
    "bounded": (
        lambda x: nonlinear.bounded_exponentials(0.9 * x),
        ["x"],
        np.append(np.exp(0.9 * LOGITS[:, VISIBLE].ravel() - nonlinear.LOGIT_BOUND) * nonlinear.BOUNDED_SCALE, 0.0),
    ),
}
BEYOND = {
    "exponentials": lambda x: nonlinear.bounded_exponentials(1.5 * x)[-1],
    "means": lambda x: call("reciprocal_means", jnp.where(VISIBLE, jnp.exp(x + 1.0), 0.0))[-1],
}


def test_what_other_papers_put_in_place_of_layernorm_softmax_and_gelu():
    for function, given, expected in ALTERNATIVES.values():
        arrays = [LOGITS, *(len(given) - 1) * [np.float32(0.5)]]
        np.testing.assert_allclose(np.asarray(function(*arrays)), expected, rtol=1e-5, atol=1e-5)
    private, _ = run_parties(alternatives_task, LOGITS, None, Settings())
    for name, (*_, expected) in ALTERNATIVES.items():
        # SPU's exponential has a relative error of x^2 / 2^9, at most 7 % here.
        np.testing.assert_allclose(private[name], expected, rtol=0.075, atol=0.01, err_msg=name)
    for name, function in BEYOND.items():
        assert min(abs(private[name]), abs(function(LOGITS))) > CHECK_UNIT / 2


def equations(jaxpr):
    """With those of inner functions."""
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        yield from (one for jaxpr in inner for one in equations(jaxpr))
        if not inner:
            yield equation


@pytest.mark.parametrize(
    ("heads", "rows", "columns", "blocks"), [(12, 128, 128, 16), (3, 17, 17, 16), (2, 9, 12, 4), (4, 1, 16, 1)]
)
def test_the_cover_counts_what_the_program_computes(heads, rows, columns, blocks):
    logits = jax.ShapeDtypeStruct((heads, rows, columns), jnp.float32)
    program = jax.make_jaxpr(lambda x: nonlinear.exponentials(x, blocks=blocks))(logits)
    comparisons = exponentials = 0
    for equation in equations(program.jaxpr):
        sizes = [math.prod(variable.aval.shape) for variable in (equation.invars[0], equation.outvars[0])]
        if equation.primitive.name == "reduce_max":
            comparisons += sizes[0] - sizes[1]
        exponentials += sizes[1] * (equation.primitive.name == "exp")
    cover = Cover(rows, columns, blocks)
    assert (comparisons, exponentials) == (heads * cover.comparisons, heads * cover.entries)


def test_a_cover_by_hand():
    """Five rows in blocks of two: 2 x 2, 2 x 4 and 1 x 5 entries; six tiles of two rows, then three tiles a row."""
    cover = Cover(5, 5, 3)
    assert (cover.side, cover.spans) == (2, ((0, 2, 2), (2, 4, 4), (4, 5, 5)))
    assert (cover.entries, cover.comparisons) == (4 + 8 + 5, 6 * 2 * 1 + 3 * 2 * 2)
    assert [tree_levels(entries) for entries in (1, 2, 8, 13, 300)] == [0, 1, 3, 5, 11]
    assert [narrow_levels(entries) for entries in (1, 2, 8, 13, 300)] == [0, 1, 3, 4, 9]
    assert (cover.levels(), Cover(200, 200, 16).levels(), Cover(1, 300, 1).levels()) == (1 + 2, 5 + 4, 11)
    for rows in (1, 15, 16, 17, 40):
        cover, covered = Cover(rows, rows, min(16, rows)), np.zeros((rows, rows), bool)
        for low, high, width in cover.spans:
            covered[low:high, :width] = True
        assert covered[np.tril_indices(rows)].all() and covered.sum() == cover.entries
        assert cover.comparisons <= rows * (rows - 1)
