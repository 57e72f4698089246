"""Entropy, its bounds and its regulariser: hand-worked cases, transcriptions, properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_attention import softmax_with_entropy

from aero.attention import matrix_attention, shaped_attention, softmax_attention
from aero.entropy import (
    BLOCKS,
    EntropyStatistics,
    causal_bound,
    collapse,
    entropy_regularization,
    headwise,
    max_entropy,
    measure,
    overload,
    quarter_fractions,
)


def test_entropy_of_hand_worked_rows():
    logits = torch.tensor([[5.0, 9.0, 9.0], [math.log(3), 0.0, 9.0], [0.0, 0.0, 0.0]]).reshape(1, 1, 3, 3)
    probabilities, entropies = softmax_with_entropy(logits)
    expected = torch.tensor([0.0, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), math.log(3)])
    torch.testing.assert_close(entropies.flatten(), expected)
    torch.testing.assert_close(probabilities[0, 0, 1], torch.tensor([0.75, 0.25, 0.0]))


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.01, 300))
@settings(max_examples=50, deadline=None)
def test_row_entropy_lies_between_0_and_log_i_and_ignores_a_shift(seed, context, size):
    generator = torch.Generator().manual_seed(seed)
    logits = size * torch.randn(2, 3, context, context, generator=generator, dtype=torch.float64)
    _, entropies = softmax_with_entropy(logits)
    bound = torch.arange(1, context + 1, dtype=torch.float64).log()
    assert (entropies >= -1e-9).all() and (entropies <= bound + 1e-9).all()
    torch.testing.assert_close(softmax_with_entropy(logits + 7.0)[1], entropies, atol=1e-9, rtol=0)


def test_entropy_agrees_with_the_papers_formula_and_its_gradient_with_finite_differences():
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    t = torch.rand(2, 5, dtype=torch.float64) + 0.5
    t.requires_grad_()
    output, entropies = softmax_attention(q, k, v, t, entropy=True)
    for b in range(2):
        for h in range(2):
            for i in range(5):  # AERO Eq. 10 and 11, as loops
                z = torch.stack([(q[b, h, i] @ k[b, h, j]) / (t[h, i] * 2.0) for j in range(i + 1)])
                a = z.exp() / z.exp().sum()
                torch.testing.assert_close(entropies[b, h, i], -(a * a.log()).sum())
                torch.testing.assert_close(output[b, h, i], (a[:, None] * v[b, h, : i + 1]).sum(0))
    assert torch.autograd.gradcheck(lambda *x: softmax_attention(*x, entropy=True), (q, k, v, t))
    torch.testing.assert_close(softmax_attention(q, k, v, t)[0], output)


def test_entropy_of_half_precision_and_of_huge_logits():
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    half = [x.bfloat16() for x in (q, k, v)]
    output, entropies = matrix_attention(*half)
    assert output.dtype == torch.bfloat16 and entropies.dtype == torch.float32
    torch.testing.assert_close(entropies, matrix_attention(*(x.float() for x in half))[1], rtol=0, atol=0)
    q = (1e4 * q).requires_grad_()  # all but one probability of a row underflow to 0
    matrix_attention(q, k, v)[1].sum().backward()
    assert q.grad.isfinite().all()


def test_the_compiler_traces_attention_with_entropy_as_one_graph():
    inputs = [torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(matrix_attention, backend="aot_eager", fullgraph=True)
    expected, given = (sum(x.square().sum() for x in f(*inputs)) for f in (matrix_attention, compiled))
    torch.testing.assert_close(given, expected)
    for mine, theirs in zip(torch.autograd.grad(given, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_shaped_attention_against_its_matrix_definition():
    q, k, v = (torch.randn(1, 2, 6, 3, dtype=torch.float64) for _ in range(3))
    a, b, g = (torch.rand(2, dtype=torch.float64) for _ in range(3))
    output, _ = shaped_attention(q, k, v, a, b, g)
    for h in range(2):
        softmax = torch.zeros(6, 6, dtype=torch.float64)
        centre = torch.zeros(6, 6, dtype=torch.float64)
        for i in range(6):
            z = torch.stack([(q[0, h, i] @ k[0, h, j]) / math.sqrt(3) for j in range(i + 1)])
            softmax[i, : i + 1] = z.softmax(0)
            centre[i, : i + 1] = 1 / (i + 1)
        matrix = a[h] * torch.eye(6, dtype=torch.float64) + b[h] * softmax - g[h] * centre
        torch.testing.assert_close(output[0, h], matrix @ v[0, h])


def test_bounds():
    assert causal_bound(3) == pytest.approx((0 + math.log(2) + math.log(3)) / 3)
    assert [round(causal_bound(t), 3) for t in (128, 256, 512)] == [3.878, 4.560, 5.246]
    uniform = torch.zeros(1, 1, 128, 128)
    assert softmax_with_entropy(uniform)[1].mean().item() == pytest.approx(causal_bound(128), abs=1e-5)
    assert max_entropy(128) == math.log(128)


def test_quarters_overload_and_collapse():
    values = torch.tensor([[0.0, 0.99, 1.0, 2.0], [3.0, 3.5, 4.0, 3.2]])
    assert quarter_fractions(values, 4.0) == [2 / 8, 1 / 8, 1 / 8, 4 / 8]
    assert overload(values, 4.0).fraction == 0.5 and overload(values, 4.0).layers == (1,)
    assert collapse(values, 4.0).fraction == 0.25 and collapse(values, 4.0).layers == ()
    broken = torch.tensor([[math.nan, 1.0]])
    assert sum(quarter_fractions(broken, 4.0)) == 0.5 and collapse(broken, 4.0).fraction == 0.5
    with pytest.raises(ValueError, match="positive"):
        quarter_fractions(values, 0.0)


def listing(attentions, thresholds, seq_len, fraction):
    """Plain-loop transcription of the papers' PyTorch listing (sum over batch and positions)."""
    total = 0.0
    largest = math.log(seq_len)
    for layer, matrices in enumerate(attentions):
        layer_loss = 0.0
        for head in range(matrices.shape[1]):
            for sequence in range(matrices.shape[0]):
                for row in matrices[sequence, head]:
                    entropy = -sum(float(p) * math.log(float(p) + 1e-9) for p in row)
                    deviation = abs(entropy - float(thresholds[layer, head]) * largest)
                    layer_loss += deviation**2 if deviation > fraction * largest else 0.0
        total += layer_loss / matrices.shape[1]
    return total / len(attentions)


def algorithm_1(attentions, thresholds, seq_len, gamma):
    """Algorithm 1 of AERO, line by line. It has one sequence; of a batch, a head's entropy is the mean over sequences
    as well as over rows, and the penalty that of the mean (docs/decisions.md)."""
    loss = 0.0
    e_max = math.log(seq_len)
    margin = gamma * e_max
    for layer, matrices in enumerate(attentions):
        layer_loss = 0.0
        for head in range(matrices.shape[1]):
            rows = [row for sequence in range(matrices.shape[0]) for row in matrices[sequence, head]]
            e = sum(-float(p) * math.log(float(p)) for row in rows for p in row if p > 0) / len(rows)
            delta = e - float(thresholds[layer, head]) * e_max
            layer_loss += delta**2 if abs(delta) > margin else 0.0
        loss += layer_loss / matrices.shape[1]
    return loss / len(attentions)


@pytest.mark.parametrize("gamma", [0.0, 0.2, 0.3])
def test_regulariser_in_both_readings(gamma):
    torch.manual_seed(0)
    logits = 4 * torch.randn(3, 2, 2, 6, 6, dtype=torch.float64)
    thresholds = torch.rand(3, 2, dtype=torch.float64)
    pairs = [softmax_with_entropy(layer) for layer in logits]
    matrices, entropies = [p for p, _ in pairs], torch.stack([e for _, e in pairs])
    summed = entropy_regularization(entropies, thresholds, gamma=gamma, reduction="position_sum")
    assert summed.item() == pytest.approx(listing(matrices, thresholds, 6, gamma), rel=1e-5)
    for count in (1, 2):
        averaged = entropy_regularization(entropies[:, :count], thresholds, gamma=gamma, reduction="head_mean")
        expected = algorithm_1([m[:count] for m in matrices], thresholds, 6, gamma)
        assert averaged.item() == pytest.approx(expected, rel=1e-9)


def test_regulariser_by_hand():
    # T = 2, E_max = ln 2. One head, rows 0 and ln 2, threshold 1/2, margin 0.2 ln 2: both rows deviate by ln 2 / 2.
    entropies = torch.tensor([0.0, math.log(2)]).reshape(1, 1, 1, 2)
    half = torch.full((1, 1), 0.5)
    assert entropy_regularization(entropies, half).item() == pytest.approx(2 * (math.log(2) / 2) ** 2)
    # Their mean is exactly at the threshold: Algorithm 1 sees no deviation at all.
    assert entropy_regularization(entropies, half, reduction="head_mean").item() == pytest.approx(0.0)


def test_regulariser_refuses_what_does_not_fit():
    entropies = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        entropy_regularization(entropies, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="L, B, H, T"):
        entropy_regularization(entropies[0], torch.zeros(2, 3))
    with pytest.raises(ValueError, match="head_mean or position_sum"):
        entropy_regularization(entropies, torch.zeros(2, 3), reduction="sum")
    with pytest.raises(ValueError, match="gamma"):
        entropy_regularization(entropies, torch.zeros(2, 3), gamma=-1)


MARGINS = st.floats(0, 2)
READINGS = st.sampled_from(["position_sum", "head_mean"])


def possible(seed, shape=(2, 3, 2, 7)):
    """Random entropies (L, B, H, T) between 0 and log i, and thresholds (L, H) between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    bound = torch.arange(1, shape[-1] + 1, dtype=torch.float64).log()
    entropies = bound * torch.rand(shape, generator=generator, dtype=torch.float64)
    return entropies, torch.rand(shape[0], shape[2], generator=generator, dtype=torch.float64)


@given(st.integers(0, 10_000), MARGINS, MARGINS, READINGS)
@settings(max_examples=60, deadline=None)
def test_the_penalty_is_never_negative_and_never_grows_with_the_margin(seed, gamma, other, reduction):
    entropies, thresholds = possible(seed)
    small, large = sorted((gamma, other))
    narrow, wide = (entropy_regularization(entropies, thresholds, margin, reduction) for margin in (small, large))
    assert 0 <= wide <= narrow
    assert entropy_regularization(entropies, thresholds, 1.0, reduction) == 0  # no deviation exceeds log T


@given(st.integers(0, 10_000), st.floats(0.01, 0.4), READINGS)
@settings(max_examples=60, deadline=None)
def test_the_penalty_is_zero_within_the_margin_and_positive_beyond(seed, gamma, reduction):
    _, thresholds = possible(seed)
    maximum = max_entropy(7)
    deviation = (2 * possible(seed + 1)[0].sigmoid() - 1.5).sign()  # either side
    centre = (thresholds * maximum)[:, None, :, None].expand(deviation.shape)
    inside = centre + 0.999 * gamma * maximum * deviation
    beyond = centre + 1.001 * gamma * maximum
    assert entropy_regularization(inside, thresholds, gamma, reduction) == 0
    expected = (1.001 * gamma * maximum) ** 2 * (1 if reduction == "head_mean" else 3 * 7)
    assert entropy_regularization(beyond, thresholds, gamma, reduction).item() == pytest.approx(expected)


def assume_off_the_margin(entropies, thresholds, gamma, reduction):
    """At the margin the penalty jumps, and a difference is no derivative."""
    centre = thresholds * max_entropy(7)
    deviations = headwise(entropies) - centre if reduction == "head_mean" else entropies - centre[:, None, :, None]
    assume((deviations.abs() - gamma * max_entropy(7)).abs().min() > 1e-4)


@given(st.integers(0, 10_000), st.floats(0.0, 0.3), READINGS)
@settings(max_examples=30, deadline=None)
def test_the_gradient_with_respect_to_thresholds_is_that_of_finite_differences(seed, gamma, reduction):
    entropies, thresholds = possible(seed)
    step = 1e-6
    assume_off_the_margin(entropies, thresholds, gamma, reduction)
    thresholds.requires_grad_()
    gradient = torch.autograd.grad(entropy_regularization(entropies, thresholds, gamma, reduction), thresholds)[0]
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        moved = torch.zeros(2, 2, dtype=torch.float64)
        moved[place] = step
        up, down = (
            entropy_regularization(entropies, thresholds.detach() + sign * moved, gamma, reduction) for sign in (1, -1)
        )
        assert gradient[place].item() == pytest.approx((up - down).item() / (2 * step), rel=1e-5, abs=1e-7)


@given(st.integers(0, 10_000), st.floats(0.0, 0.3), READINGS)
@settings(max_examples=30, deadline=None)
def test_the_gradient_with_respect_to_entropies_is_that_of_finite_differences(seed, gamma, reduction):
    entropies, thresholds = possible(seed)
    step = 1e-6
    assume_off_the_margin(entropies, thresholds, gamma, reduction)
    entropies.requires_grad_()
    gradient = torch.autograd.grad(entropy_regularization(entropies, thresholds, gamma, reduction), entropies)[0]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        moved = step * torch.randn(entropies.shape, generator=generator, dtype=torch.float64)
        up, down = (
            entropy_regularization(entropies.detach() + sign * moved, thresholds, gamma, reduction) for sign in (1, -1)
        )
        assert (gradient * moved).sum().item() == pytest.approx((up - down).item() / 2, rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("reduction", ["head_mean", "position_sum"])
def test_an_entropy_that_is_not_a_number_is_not_hidden(reduction):
    entropies, thresholds = possible(3)
    entropies[1, 0, 1, 2] = math.nan
    assert entropy_regularization(entropies, thresholds, 0.2, reduction).isnan()


HEADS = st.lists(st.floats(0, 1) | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=24)


@given(HEADS, st.integers(-20, 20))
def test_quarters_are_those_of_the_finite_heads_in_any_unit(values, exponent):
    heads = torch.tensor([values], dtype=torch.float64)
    fractions = quarter_fractions(heads, 1.0)
    finite = torch.isfinite(heads)
    assert sum(fractions) == pytest.approx(finite.double().mean().item(), abs=1e-12)
    assert quarter_fractions(heads * 2.0**exponent, 2.0**exponent) == fractions
    collapsed = fractions[0] + 1 - finite.double().mean().item()
    assert collapse(heads, 1.0).fraction == pytest.approx(collapsed, abs=1e-12)
    assert fractions[3] == pytest.approx(overload(torch.where(finite, heads, 0.0), 1.0).fraction, abs=1e-12)


@given(st.floats(1e-6, 1e6), st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=8), st.booleans())
def test_a_head_at_a_boundary_is_in_one_quarter_by_every_rule(maximum, steps, single):
    """Half-open intervals, to the last bit: at 3/4 max a head is overloaded and in the highest quarter."""
    boundaries = np.array([0.25, 0.5, 0.75]) * maximum
    values = [np.nextafter(x, x + step) if step else x for x in boundaries for step in steps]
    heads = torch.tensor([values], dtype=torch.float32 if single else torch.float64)
    fractions = quarter_fractions(heads, maximum)
    assert fractions[3] == overload(heads, maximum).fraction and fractions[0] == collapse(heads, maximum).fraction
    assert fractions[3] == np.mean(np.array(heads[0].tolist()) >= boundaries[2])
    assert fractions[0] == np.mean(np.array(heads[0].tolist()) < boundaries[0])


def with_bound(mean, bound, context=40):
    """Statistics of heads with these means, (L, H)."""
    mean = torch.tensor(mean, dtype=torch.float64)
    bound = None if bound is None else torch.tensor(bound, dtype=torch.float64)
    by_position = torch.zeros(len(mean), context)
    return EntropyStatistics(mean, torch.zeros_like(mean), by_position, tokens=context, bound=bound)


def test_a_layer_that_sees_fewer_keys_is_compared_with_what_it_may_reach():
    # Fractions of the bound 1/2 and 1, 1/2 and 1, 1/8 and nothing: the largest is 1.
    summary = with_bound([[1.0, 2.0], [0.25, 0.5], [0.25, math.nan]], [2.0, 0.5, 2.0]).summary()
    assert summary["quarters"]["entropy_bound"] == summary["quarters"]["observed"] == [1 / 6, 0, 2 / 6, 2 / 6]
    assert "causal_bound" not in summary["quarters"] and summary["quarters"]["log_T"][3] == 0
    assert summary["overload"] == {"fraction": 2 / 6, "layers": []}
    assert summary["collapse"] == {"fraction": 2 / 6, "layers": [2]}
    assert "observed, each head as a fraction of its layer's entropy_bound" in summary["rule"]
    assert summary["maximum"]["observed"] == 2.0 and summary["entropy_bound"] == [2.0, 0.5, 2.0]
    # A window of one key allows nothing, and rounding must not pass for something.
    summary = with_bound([[0.0, 1e-9]], [0.0]).summary()
    assert summary["overload"]["fraction"] == 0 and summary["collapse"]["fraction"] == 1
    assert summary["quarters"].keys() == {"log_T", "entropy_bound"} and "the layer's entropy_bound" in summary["rule"]


@given(st.lists(st.floats(0, 2.7) | st.just(math.nan), min_size=4, max_size=4), st.sampled_from([1.0, 1 + 1e-12]))
def test_the_measured_bound_of_a_plain_causal_mask_changes_nothing(values, rounding):
    mean = [values[:2], values[2:]]
    plain = with_bound(mean, None).summary()
    measured = with_bound(mean, [rounding * causal_bound(40)] * 2).summary()
    assert measured.pop("entropy_bound") and measured == plain


def test_a_sequence_of_one_token_has_no_rule():
    summary = with_bound([[0.0, math.nan]], None, context=1).summary()
    assert summary["entropy_mean"] == [[0.0, None]] and summary["maximum"]["observed"] == 0.0
    assert summary["overload"] is summary["collapse"] is None and summary["quarters"] == {}


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.1, 30), st.floats(0.05, 20), st.floats(1, 10))
@settings(max_examples=60, deadline=None)
def test_a_temperature_flattens_its_row_and_is_a_unit_of_its_logits(seed, context, size, temperature, factor):
    """AERO Eq. 11: entropy never falls as t grows, is log i in the limit, and only logits over t count."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 2, context, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    query, t = size * query, temperature * (0.5 + torch.rand(2, context, generator=generator, dtype=torch.float64))

    def entropies(query, t):
        return softmax_attention(query, key, value, t, entropy=True)[1]

    found = entropies(query, t)
    assert (entropies(query, factor * t) >= found - 1e-12).all()
    torch.testing.assert_close(entropies(factor * query, factor * t), found, atol=1e-9, rtol=0)
    bound = torch.arange(1, context + 1, dtype=torch.float64).log().expand_as(found)
    torch.testing.assert_close(entropies(query, 1e9 * t), bound, atol=1e-9, rtol=0)
    one = torch.full_like(t, temperature)
    one[1, -1] *= factor  # a row's temperature is its own
    moved = (entropies(query, one) - entropies(query, torch.full_like(t, temperature))).abs() > 0
    assert not moved[:, 0].any() and not moved[:, 1, :-1].any()


@given(st.integers(1, 5000))
def test_the_causal_bound_is_the_mean_of_the_rows_bounds(context):
    bound = causal_bound(context)
    assert bound == pytest.approx(math.fsum(map(math.log, range(1, context + 1))) / context, abs=1e-9)
    assert max_entropy(context) - 1 <= bound <= max_entropy(context) and bound < causal_bound(context + 1)


def test_measured_statistics():
    rows = torch.tensor([[0.0, 0.2, 0.4], [0.0, 0.6, 1.0]])  # two sequences, one layer, one head

    def model(ids, entropy):
        return None, rows[ids[:, 0]].reshape(1, len(ids), 1, 3)

    batches = [torch.tensor([[0, 0, 0]]), torch.tensor([[1, 1, 1]])]
    statistics = measure(model, batches)
    means = torch.tensor([0.2, 1.6 / 3])
    assert statistics.mean.item() == pytest.approx(means.mean().item())
    assert statistics.sem.item() == pytest.approx((means.std() / math.sqrt(2)).item())
    assert statistics.by_position[0].tolist() == pytest.approx([0.0, 0.4, 0.7])
    assert statistics.median.item() == pytest.approx(0.3)  # of 0, 0, 0.2, 0.4, 0.6, 1
    assert statistics.blocks.flatten().tolist() == pytest.approx(means.tolist())  # a block a sequence
    spread = (rows[1] - rows[0]) / 2  # s / sqrt(2) of two values is half their distance
    assert statistics.by_position_sem[0].tolist() == pytest.approx(spread.tolist())
    summary = statistics.summary()
    assert np.shape(summary["entropy_blocks"]) == (2, 1, 1) and summary["entropy_median"] == [[pytest.approx(0.3)]]
    assert statistics.tokens == 6 and summary["quarters"]["observed"] == [0, 0, 0, 1]
    assert headwise(rows.reshape(1, 2, 1, 3)).item() == pytest.approx(statistics.mean.item())
    with pytest.raises(ValueError, match="held-out"):
        measure(model, [])


def test_blocks_are_runs_of_consecutive_sequences():
    values = torch.rand(100, dtype=torch.float64)

    def model(ids, entropy):
        return None, values[ids[:, 0]].reshape(1, len(ids), 1, 1).expand(2, len(ids), 3, 4)

    statistics = measure(model, torch.arange(100).reshape(-1, 1).expand(100, 4).split(7))
    assert statistics.blocks.shape == (BLOCKS, 2, 3)
    expected = [part.mean().item() for part in values.tensor_split(BLOCKS)]
    assert statistics.blocks[:, 1, 2].tolist() == pytest.approx(expected)
    assert statistics.median.flatten().tolist() == pytest.approx([values.float().quantile(0.5).item()] * 6)


def test_statistics_of_entropies_that_are_not_finite():
    def model(ids, entropy):
        return None, torch.tensor([0.0, 1.0, math.nan, 2.0]).reshape(1, 1, 2, 2).expand(1, len(ids), 2, 2)

    summary = measure(model, [torch.zeros(3, 2, dtype=torch.int64)]).summary()
    assert summary["entropy_mean"] == summary["entropy_median"] == [[0.5, None]]
    assert summary["collapse"]["fraction"] == 0.5 and summary["entropy_blocks"][0] == [[0.5, None]]
