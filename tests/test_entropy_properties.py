"""AERO Eq. 11 by hand, and properties of what is made of row entropies: headwise means, quarters, ranges, errors."""

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.attention import softmax_attention
from aero.entropy import causal_bound, collapse, headwise, overload, quarter_fractions, standard_error
from aero.hf.measure import _attention
from aero.landscape import entropy_range
from aero.row_entropy import attention_with_entropy

HEADS = st.lists(st.floats(0, 8) | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=12)


def hand_worked():
    """Two tokens, width 4. The second query is (2, 0, 0, 0), so its logits q k / sqrt(4) are the keys' first entries:
    2 ln 3 and 0. Values: 1 and 0. Query, key, value of shape (1, 1, 2, 4)."""
    query, key, value = (torch.zeros(1, 1, 2, 4, dtype=torch.float64) for _ in range(3))
    query[..., 1, 0], key[..., 0, 0], value[..., 0, :] = 2.0, 2 * math.log(3), 1.0
    return query, key, value


@pytest.mark.parametrize(
    ("t", "first", "entropy"),
    [
        (1.0, 9 / 10, 0.325082973),  # 2 ln 3 and 0: 9 to 1; ln 10 - 9/10 ln 9
        (2.0, 3 / 4, 0.562335145),  # ln 3 and 0: 3 to 1; 2 ln 2 - 3/4 ln 3
        (-2.0, 1 / 4, 0.562335145),  # -ln 3 and 0: 1 to 3, the order turned around
        (4.0, 0.633974596, 0.656806398),  # ln 3 / 2 and 0: sqrt 3 to 1; ln(1 + sqrt 3) - 0.633974596 ln 3 / 2
    ],
)
def test_a_temperature_divides_the_logits_by_hand(t, first, entropy):
    """AERO Eq. 11 and 12, in our models and in the attention function of Hugging Face's."""
    query, key, value = hand_worked()
    temperature = torch.tensor([[7.0, t]], dtype=torch.float64)  # (H, T); the first query has one key, whatever its t
    by_matrix = softmax_attention(query, key, value, temperature, entropy=True)
    by_blocks = attention_with_entropy(query / temperature[..., None], key, value, 0.5)
    for output, entropies in (by_matrix, by_blocks):
        assert output[0, 0, :, 0].tolist() == pytest.approx([1.0, first], abs=1e-9)
        assert entropies.flatten().tolist() == pytest.approx([0.0, entropy], abs=1e-9)
    output, _ = _attention(SimpleNamespace(entropy_temperature=temperature), query, key, value, None)
    assert output[0, :, 0, 0].tolist() == pytest.approx([1.0, first], abs=1e-9)  # (B, T, H, d)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_heads_mean_is_over_its_queries_and_sequences(seed, layers, sequences, heads, context):
    """Eq. 10 by sums in Python, whatever the order of the sequences; between 0 and ln(T!)/T."""
    generator = torch.Generator().manual_seed(seed)
    bound = torch.arange(1, context + 1, dtype=torch.float64).log()
    rows = torch.rand(layers, sequences, heads, context, generator=generator, dtype=torch.float64) * bound
    found = headwise(rows)
    assert found.shape == (layers, heads)
    for layer in range(layers):
        for head in range(heads):
            values = [rows[layer, b, head, i].item() for b in range(sequences) for i in range(context)]
            assert found[layer, head].item() == pytest.approx(math.fsum(values) / len(values), abs=1e-12)
    assert (found >= 0).all() and (found <= causal_bound(context) + 1e-12).all()
    torch.testing.assert_close(headwise(rows.flip(1)), found, atol=1e-12, rtol=0)
    torch.testing.assert_close(headwise(bound.expand_as(rows)), torch.full_like(found, causal_bound(context)))


@given(HEADS, st.floats(0.5, 8), st.integers(-3, 3))
@settings(max_examples=100, deadline=None)
def test_quarters_count_every_finite_head_once(values, maximum, power):
    """The rule in words, a boundary with the quarter above it; the unit does not matter, nor does the order."""
    heads = torch.tensor([values], dtype=torch.float64)
    counts = [0, 0, 0, 0]
    for value in values:
        if math.isfinite(value):
            counts[0 if value < maximum / 4 else 1 if value < maximum / 2 else 2 if value < 3 * maximum / 4 else 3] += 1
    found = quarter_fractions(heads, maximum)
    assert found == pytest.approx([count / len(values) for count in counts], abs=1e-12)
    finite = sum(map(math.isfinite, values))
    assert math.fsum(found) == pytest.approx(finite / len(values), abs=1e-12)
    assert overload(heads, maximum).fraction == pytest.approx(found[3], abs=1e-12)
    assert collapse(heads, maximum).fraction == pytest.approx(found[0] + 1 - finite / len(values), abs=1e-12)
    unit = 2.0**power  # exact
    assert quarter_fractions(unit * heads, unit * maximum) == found == quarter_fractions(heads.flip(1), maximum)


@given(st.lists(HEADS, min_size=1, max_size=1) | st.integers(1, 4).flatmap(lambda n: st.lists(
    st.lists(st.floats(0, 8) | st.just(math.nan), min_size=n, max_size=n), min_size=1, max_size=5)))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_the_range_is_of_the_lowest_and_the_highest_finite_head(landscape):
    finite = sorted(value for layer in landscape for value in layer if math.isfinite(value))
    low, high = entropy_range(landscape)
    if not finite:
        assert math.isnan(low) and math.isnan(high)
        return
    assert (low, high) == (finite[0], finite[-1])
    assert entropy_range(np.array(landscape)[::-1, ::-1]) == (low, high) == entropy_range(np.array(landscape).T)
    assert entropy_range(2 * np.array(landscape)) == (2 * low, 2 * high)
    assert entropy_range([[*layer, (low + high) / 2] for layer in landscape]) == (low, high)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.floats(-4, 4))
@settings(max_examples=100, deadline=None)
def test_the_standard_error_of_a_mean(values, shift):
    """s / sqrt n with the sample standard deviation s, along the axis named; a shift and the order do not matter."""
    one = torch.tensor(values, dtype=torch.float64)
    expected = statistics.stdev(values) / math.sqrt(len(values))
    found = standard_error(torch.stack([one, -one + shift, one.flip(0)]), 1)
    assert found.tolist() == pytest.approx([expected] * 3, abs=1e-9)
    assert standard_error(torch.stack([one, 3 * one], 1), 0).tolist() == pytest.approx(
        [expected, 3 * expected], abs=1e-9
    )
    assert standard_error(one[:1], 0).isnan()
    assert standard_error(torch.cat([one] * 3), 0) <= found[0] + 1e-12  # more of the same is known better
