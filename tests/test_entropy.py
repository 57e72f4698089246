"""Entropy statistics and the regulariser's loss: hand-worked cases, transcriptions of the papers, properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_attention import softmax_with_entropy

from aero.entropy import (
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
from aero.entropy_statistics import BLOCKS

READINGS = st.sampled_from(["position_sum", "head_mean"])
SEEDS = st.integers(0, 10_000)


@given(st.integers(1, 5000))
def test_the_causal_bound_is_the_mean_of_the_rows_bounds(context):
    bound = causal_bound(context)
    assert bound == pytest.approx(math.fsum(map(math.log, range(1, context + 1))) / context, abs=1e-9)
    assert max_entropy(context) - 1 <= bound <= max_entropy(context) == math.log(context)


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
    """Algorithm 1 of AERO, line by line; of a batch, a head's entropy is the mean over sequences as well as rows."""
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
def test_the_loss_equals_the_papers_listing_and_algorithm_1(gamma):
    torch.manual_seed(0)
    logits = 4 * torch.randn(3, 2, 2, 6, 6, dtype=torch.float64)
    thresholds = torch.rand(3, 2, dtype=torch.float64)
    pairs = [softmax_with_entropy(layer) for layer in logits]
    matrices, entropies = [p for p, _ in pairs], torch.stack([e for _, e in pairs])
    summed = entropy_regularization(entropies, thresholds, gamma=gamma, reduction="position_sum")
    assert summed.item() == pytest.approx(listing(matrices, thresholds, 6, gamma), rel=1e-5)
    averaged = entropy_regularization(entropies, thresholds, gamma=gamma, reduction="head_mean")
    assert averaged.item() == pytest.approx(algorithm_1(matrices, thresholds, 6, gamma), rel=1e-9)


def test_the_loss_by_hand():
    # T = 2, E_max = ln 2. One head, rows 0 and ln 2, threshold 1/2, margin 0.2 ln 2: both rows deviate by ln 2 / 2.
    entropies = torch.tensor([0.0, math.log(2)]).reshape(1, 1, 1, 2)
    half = torch.full((1, 1), 0.5)
    assert entropy_regularization(entropies, half).item() == pytest.approx(2 * (math.log(2) / 2) ** 2)
    # Their mean is exactly at the threshold: Algorithm 1 sees no deviation.
    assert entropy_regularization(entropies, half, reduction="head_mean").item() == pytest.approx(0.0)
    entropies[0, 0, 0, 1] = math.nan
    assert entropy_regularization(entropies, half).isnan()


def test_errors_of_the_loss():
    entropies = torch.zeros(2, 1, 3, 4)
    for arguments, message in (
        ((entropies, torch.zeros(3, 3)), r"\(2, 3\)"),
        ((entropies[0], torch.zeros(2, 3)), "L, B, H, T"),
        ((entropies, torch.zeros(2, 3), 0.2, "sum"), "head_mean or position_sum"),
        ((entropies, torch.zeros(2, 3), -1), "gamma"),
    ):
        with pytest.raises(ValueError, match=message):
            entropy_regularization(*arguments)


def possible(seed, shape=(2, 3, 2, 7)):
    """Random entropies (L, B, H, T) between 0 and log i, and thresholds (L, H) between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    bound = torch.arange(1, shape[-1] + 1, dtype=torch.float64).log()
    entropies = bound * torch.rand(shape, generator=generator, dtype=torch.float64)
    return entropies, torch.rand(shape[0], shape[2], generator=generator, dtype=torch.float64)


@given(SEEDS, st.floats(0, 2), st.floats(0, 2), READINGS)
@settings(max_examples=40, deadline=None)
def test_the_loss_is_not_negative_and_decreases_with_the_margin(seed, gamma, other, reduction):
    entropies, thresholds = possible(seed)
    small, large = sorted((gamma, other))
    narrow, wide = (entropy_regularization(entropies, thresholds, margin, reduction) for margin in (small, large))
    assert 0 <= wide <= narrow
    assert entropy_regularization(entropies, thresholds, 1.0, reduction) == 0  # no deviation exceeds log T


@given(SEEDS, st.floats(0.0, 0.3), READINGS)
@settings(max_examples=30, deadline=None)
def test_gradients_equal_finite_differences(seed, gamma, reduction):
    entropies, thresholds = possible(seed)
    centre = thresholds * max_entropy(7)
    deviations = headwise(entropies) - centre if reduction == "head_mean" else entropies - centre[:, None, :, None]
    assume((deviations.abs() - gamma * max_entropy(7)).abs().min() > 1e-4)  # the loss jumps at the margin
    values = (entropies.requires_grad_(), thresholds.requires_grad_())
    gradients = torch.autograd.grad(entropy_regularization(*values, gamma, reduction), values)
    generator = torch.Generator().manual_seed(seed)
    moved = [1e-6 * torch.randn(v.shape, generator=generator, dtype=torch.float64) for v in values]
    up, down = (
        entropy_regularization(*(v.detach() + sign * m for v, m in zip(values, moved, strict=True)), gamma, reduction)
        for sign in (1, -1)
    )
    expected = sum((g * m).sum().item() for g, m in zip(gradients, moved, strict=True))
    assert expected == pytest.approx((up - down).item() / 2, rel=1e-4, abs=1e-12)


def test_quarters_overload_and_collapse_by_hand():
    values = torch.tensor([[0.0, 0.99, 1.0, 2.0], [3.0, 3.5, 4.0, 3.2]])
    assert quarter_fractions(values, 4.0) == [2 / 8, 1 / 8, 1 / 8, 4 / 8]
    assert overload(values, 4.0).fraction == 0.5 and overload(values, 4.0).layers == (1,)
    assert collapse(values, 4.0).fraction == 0.25 and collapse(values, 4.0).layers == ()
    broken = torch.tensor([[math.nan, 1.0]])
    assert sum(quarter_fractions(broken, 4.0)) == 0.5 and collapse(broken, 4.0).fraction == 0.5
    with pytest.raises(ValueError, match="positive"):
        quarter_fractions(values, 0.0)


@given(st.floats(1e-6, 1e6), st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=8), st.booleans())
def test_a_head_at_a_boundary_is_in_the_upper_quarter_by_every_rule(maximum, steps, single):
    boundaries = np.array([0.25, 0.5, 0.75]) * maximum
    values = [np.nextafter(x, x + step) if step else x for x in boundaries for step in steps]
    heads = torch.tensor([values], dtype=torch.float32 if single else torch.float64)
    fractions = quarter_fractions(heads, maximum)
    assert fractions[3] == overload(heads, maximum).fraction and fractions[0] == collapse(heads, maximum).fraction
    assert fractions[3] == np.mean(np.array(heads[0].tolist()) >= boundaries[2])
    assert fractions[0] == np.mean(np.array(heads[0].tolist()) < boundaries[0])


def with_bound(mean, bound, context=40):
    """Statistics of heads with these means (L, H)."""
    mean = torch.tensor(mean, dtype=torch.float64)
    bound = None if bound is None else torch.tensor(bound, dtype=torch.float64)
    by_position = torch.zeros(len(mean), context)
    none = torch.zeros_like(mean)
    return EntropyStatistics(mean, none, by_position, context, none, by_position, none[None], bound)


def test_a_layer_that_sees_fewer_keys_is_compared_with_its_bound():
    # Fractions of the bound 1/2 and 1, 1/2 and 1, 1/8 and nothing: the largest is 1.
    summary = with_bound([[1.0, 2.0], [0.25, 0.5], [0.25, math.nan]], [2.0, 0.5, 2.0]).summary()
    assert summary["quarters"]["entropy_bound"] == summary["quarters"]["observed"] == [1 / 6, 0, 2 / 6, 2 / 6]
    assert "causal_bound" not in summary["quarters"] and summary["quarters"]["log_T"][3] == 0
    assert summary["overload"] == {"fraction": 2 / 6, "layers": []}
    assert summary["collapse"] == {"fraction": 2 / 6, "layers": [2]}
    assert summary["maximum"]["observed"] == 2.0 and summary["entropy_bound"] == [2.0, 0.5, 2.0]
    summary = with_bound([[0.0, 1e-9]], [0.0]).summary()  # a window of one key
    assert summary["overload"]["fraction"] == 0 and summary["collapse"]["fraction"] == 1


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


def test_measured_statistics_by_hand():
    rows = torch.tensor([[0.0, 0.2, 0.4], [0.0, 0.6, 1.0]])  # two sequences, one layer, one head

    def model(ids, entropy):
        return None, rows[ids[:, 0]].reshape(1, len(ids), 1, 3)

    statistics = measure(model, [torch.tensor([[0, 0, 0]]), torch.tensor([[1, 1, 1]])])
    means = torch.tensor([0.2, 1.6 / 3])
    assert statistics.mean.item() == pytest.approx(means.mean().item())
    assert statistics.sem.item() == pytest.approx((means.std() / math.sqrt(2)).item())
    assert statistics.by_position[0].tolist() == pytest.approx([0.0, 0.4, 0.7])
    assert statistics.median.item() == pytest.approx(0.3)  # of 0, 0, 0.2, 0.4, 0.6, 1
    assert statistics.blocks.flatten().tolist() == pytest.approx(means.tolist())  # one block a sequence
    spread = (rows[1] - rows[0]) / 2  # s / sqrt(2) of two values is half their distance
    assert statistics.by_position_sem[0].tolist() == pytest.approx(spread.tolist())
    summary = statistics.summary()
    assert np.shape(summary["entropy_blocks"]) == (2, 1, 1) and summary["entropy_median"] == [[pytest.approx(0.3)]]
    assert statistics.tokens == 6 and summary["quarters"]["observed"] == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="held-out"):
        measure(model, [])
    with pytest.raises(ValueError, match="same context length"):
        measure(model, [torch.zeros(1, 3).long(), torch.zeros(1, 4).long()])


def test_blocks_are_runs_of_consecutive_sequences():
    values = torch.rand(100, dtype=torch.float64)

    def model(ids, entropy):
        return None, values[ids[:, 0]].reshape(1, len(ids), 1, 1).expand(2, len(ids), 3, 4)

    statistics = measure(model, torch.arange(100).reshape(-1, 1).expand(100, 4).split(7))
    assert statistics.blocks.shape == (BLOCKS, 2, 3)
    expected = [part.mean().item() for part in values.tensor_split(BLOCKS)]
    assert statistics.blocks[:, 1, 2].tolist() == pytest.approx(expected)


def test_entropies_that_are_not_finite():
    def model(ids, entropy):
        return None, torch.tensor([0.0, 1.0, math.nan, 2.0]).reshape(1, 1, 2, 2).expand(1, len(ids), 2, 2)

    summary = measure(model, [torch.zeros(3, 2, dtype=torch.int64)]).summary()
    assert summary["entropy_mean"] == summary["entropy_median"] == [[0.5, None]]
    assert summary["collapse"]["fraction"] == 0.5 and summary["entropy_blocks"][0] == [[0.5, None]]
