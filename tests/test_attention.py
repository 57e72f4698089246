"""The attention cores of `variance_sensitivity`, against plain-loop transcriptions of the paper's equations."""

from __future__ import annotations

import math

import pytest
import torch

from aero.attention import softmax_attention
from aero.attention_kernels import (
    CORES,
    attend,
    attended,
    causal_mask,
    clip_gain,
    clip_gain_gradient,
    core_named,
    frobenius_norm,
    row_entropy,
    sigma_reparam,
)

PHI = {
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu_performer": lambda x: max(x, 0.0) + 1e-3,
}
N, D, WINDOW = 20, 3, 8


def normalised(x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) for value in x]


def transcribed(name: str, query: list[list[float]], key: list[list[float]], causal: bool) -> list[list[float]]:
    """P of one core by the paper's formulas, an element at a time."""
    if name.startswith("qk_layernorm"):
        query, key = [normalised(q) for q in query], [normalised(k) for k in key]
    rows = []
    for i, q in enumerate(query):
        row = []
        for j, k in enumerate(key):
            seen = (j <= i or not causal) and (name != "window_softmax" or i - WINDOW <= j <= i + WINDOW)
            if name in PHI:
                similarity = sum(PHI[name](a) * PHI[name](b) for a, b in zip(q, k, strict=True))
            else:
                similarity = math.exp(sum(a * b for a, b in zip(q, k, strict=True)))
            row.append(similarity * seen)
        total = sum(row)
        rows.append([value / total if total else 0.0 for value in row])
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CORES)
def test_every_core_is_its_formula(name, causal):
    generator = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 2, N, D, generator=generator, dtype=torch.float64)
    output, probabilities = attend(CORES[name], query, key, value, allowed=causal_mask(N) if causal else None)
    for b in range(2):
        expected = torch.tensor(transcribed(name, query[b].tolist(), key[b].tolist(), causal), dtype=torch.float64)
        torch.testing.assert_close(probabilities[b], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(output[b], probabilities[b] @ value[b])


def test_every_query_attends_somewhere_but_those_the_relu_kernel_leaves_empty():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 200, 5, D, generator=generator)
    for name, core in CORES.items():
        sums = attend(core, query, key, key)[1].sum(-1)
        if name == "relu":
            empty = (query <= 0).all(-1) | ((query.relu() @ key.relu().mT) == 0).all(-1)
            assert 0.1 < empty.double().mean() < 0.2 and (sums[empty] == 0).all()  # 1/8 and the rare empty keys
            torch.testing.assert_close(sums[~empty], torch.ones(int((~empty).sum())), atol=0.05, rtol=0)
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)


def test_a_relu_kernel_row_without_similarity():
    """With 0.001 more in phi it attends by the sums of the keys' features: 10.002, 0.002, 1.002, 0.302 of 11.308."""
    query = torch.tensor([[-1.0, -2.0]])
    key = torch.tensor([[5.0, 5.0], [-1.0, -1.0], [1.0, -3.0], [0.1, 0.2]])
    assert attend(CORES["relu"], query, key, key)[1].tolist() == [[0.0] * 4]
    rows = attend(CORES["relu_performer"], query, key, key)[1]
    torch.testing.assert_close(rows * 11.308, torch.tensor([[10.002, 0.002, 1.002, 0.302]]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CORES)
def test_attending_without_the_matrix_is_attending_with_it(name):
    """Values and gradients, also of the last query alone."""
    query, key, value = torch.randn(3, 4, 2, N, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for queries in (N, 1):
        inputs = [x.clone().requires_grad_() for x in (query[..., -queries:, :], key, value)]
        plain, without = (made(CORES[name], *inputs) for made in (lambda *x: attend(*x)[0], attended))
        assert plain.shape == without.shape == (4, 2, queries, D)
        torch.testing.assert_close(without, plain, atol=1e-12, rtol=1e-10)
        weight = torch.randn(plain.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        gradients = [torch.autograd.grad((made * weight).sum(), inputs) for made in (plain, without)]
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(second, first, atol=1e-9, rtol=1e-8)


def test_the_softmax_core_is_the_softmax_attention_of_the_decoder():
    query, key, value = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(1))
    expected, entropies = softmax_attention(query, key, value, entropy=True)
    output, probabilities = attend(CORES["softmax"], query, key, value, scale=8**-0.5, allowed=causal_mask(9))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(row_entropy(probabilities), entropies, atol=1e-6, rtol=1e-5)


def test_gains_multiply_what_is_normalised_and_only_there():
    query, key = torch.randn(2, N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gains = (torch.tensor([2.0, 0.5, 1.0]).double(), torch.tensor([1.0, -1.0, 3.0]).double())
    logits = (
        torch.nn.functional.layer_norm(query, (D,))
        * gains[0]
        @ (torch.nn.functional.layer_norm(key, (D,)) * gains[1]).T
    )
    torch.testing.assert_close(attend(CORES["qk_layernorm"], query, key, key, gains)[1], logits.softmax(-1))
    torch.testing.assert_close(
        attend(CORES["relu"], query, key, key, gains)[1], attend(CORES["relu"], query, key, key)[1]
    )


def test_scale_invariance_of_the_kernels_and_of_qk_layernorm():
    """Section 5.1: ReLU and QK-LayerNorm do not see the variance of queries and keys; softmax does."""
    query, key = torch.randn(2, N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    entropies = {
        name: [row_entropy(attend(CORES[name], s * query, s * key, key)[1]).mean().item() for s in (1.0, 8.0)]
        for name in ("relu", "qk_layernorm", "softmax")
    }
    for name in ("relu", "qk_layernorm"):
        assert entropies[name][0] == pytest.approx(entropies[name][1], rel=1e-3)
    assert entropies["softmax"][1] < 0.3 * entropies["softmax"][0]


def test_sigma_reparam_has_spectral_norm_gamma_and_the_gradient_of_the_exact_formula():
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(6, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    gain, start = torch.linspace(0.5, 3, 6, dtype=torch.float64), torch.ones(6, 3, dtype=torch.float64)
    made, vector = sigma_reparam(weight, gain, start, iterations=500)
    torch.testing.assert_close(torch.linalg.matrix_norm(made, 2), gain)
    probe = torch.randn(6, 3, 3, generator=generator, dtype=torch.float64)
    (got,) = torch.autograd.grad((made * probe).sum(), weight)
    exact = weight * (gain / torch.linalg.matrix_norm(weight, 2))[:, None, None]
    (expected,) = torch.autograd.grad((exact * probe).sum(), weight)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)
    again, _ = sigma_reparam(weight, gain, vector)
    torch.testing.assert_close(again, made)


def test_clipping_of_gains():
    gradient = torch.tensor([[3.0, 4.0, 0.0], [0.3, 0.4, 0.0]])
    torch.testing.assert_close(clip_gain_gradient(gradient), torch.tensor([[0.6, 0.8, 0.0], [0.3, 0.4, 0.0]]))
    gain = torch.tensor([1.5, -7.0, 0.25], requires_grad=True)
    clip_gain(gain)
    assert gain.tolist() == [1.0, -1.0, 0.25]


def test_entropy_and_norm_at_the_extremes():
    """Proposition 5.3: uniform rows have entropy log N and norm 1, one-hot rows 0 and sqrt(N)."""
    uniform, one_hot = torch.full((N, N), 1 / N), torch.eye(N)
    torch.testing.assert_close(row_entropy(uniform), torch.full((N,), math.log(N)))
    assert frobenius_norm(uniform).item() == pytest.approx(1) and row_entropy(one_hot).tolist() == [0.0] * N
    assert frobenius_norm(one_hot).item() == pytest.approx(math.sqrt(N))
    half = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert row_entropy(half).tolist() == pytest.approx([math.log(2), 0]) and frobenius_norm(
        half
    ).item() == pytest.approx(1.5**0.5)


def test_an_unknown_core_is_named():
    with pytest.raises(ValueError, match="unknown attention core 'sofmax'; known: softmax, "):
        core_named("sofmax")
