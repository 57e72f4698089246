"""Attention kernels of `variance_sensitivity` against loops over the paper's equations, alone and in a decoder."""

from __future__ import annotations

import math

import pytest
import small_models
import torch
from small_models import SMALL, ids

from aero.architecture import parse
from aero.attention_kernels import (
    CORES,
    GAIN_GRADIENT_LIMIT,
    GAIN_LIMIT,
    attend,
    attended,
    causal_mask,
    row_entropy,
    sigma_reparam,
)
from aero.families import FAMILIES
from aero.model import GPT, ModelConfig
from aero.training.diagnostics import attention_columns

PHI = {
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu_performer": lambda x: max(x, 0.0) + 1e-3,
}
N, D, WINDOW = 20, 3, 8


def normalised(x: list[float], gain: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) * g for value, g in zip(x, gain, strict=True)]


def transcribed(name, query, key, causal, scale=1.0, gains=None) -> torch.Tensor:
    """P (N, N) of one core for query and key (N, D) by the paper's formulas, an element at a time."""
    query, key = query.tolist(), key.tolist()
    if name.startswith("qk_layernorm"):
        gains = gains or ([1.0] * len(query[0]),) * 2
        query, key = ([normalised(x, gain) for x in rows] for rows, gain in zip((query, key), gains, strict=True))
    rows, epsilon = [], 1e-6 if name in ("sigmoid", "elu", "relu") else 0.0
    for i, q in enumerate(query):
        row = []
        for j, k in enumerate(key):
            seen = (j <= i or not causal) and (name != "window_softmax" or i - WINDOW <= j <= i + WINDOW)
            if name in PHI:
                similarity = sum(PHI[name](a) * PHI[name](b) for a, b in zip(q, k, strict=True))
            else:
                similarity = math.exp(scale * sum(a * b for a, b in zip(q, k, strict=True)))
            row.append(similarity * seen)
        rows.append([value / (sum(row) + epsilon) for value in row])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CORES)
def test_every_core_equals_its_formula(name, causal):
    generator = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 2, N, D, generator=generator, dtype=torch.float64)
    output, probabilities = attend(CORES[name], query, key, value, allowed=causal_mask(N) if causal else None)
    for b in range(2):
        expected = transcribed(name, query[b], key[b], causal)
        torch.testing.assert_close(probabilities[b], expected, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(output[b], probabilities[b] @ value[b])


@pytest.mark.parametrize("name", CORES)
def test_attention_without_the_matrix_equals_attention_with_it(name):
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


def notation(core):
    return "SM+LN+G" if core == "softmax" else f"Core({core})+LN+G"


def build(core, **changes):
    return small_models.build(notation(core), init_std=0.5, **changes).double()


def weight_of(layer, core):
    """The matrix in use: gamma W / sigma(W), sigma by the vector v that iteration left, |W v| for a unit v."""
    if core != "sigma_reparam":
        return layer.weight
    inner = layer.parametrizations.weight[0].inner
    original = layer.parametrizations.weight.original
    return inner.gain * original / torch.linalg.norm(original @ inner.vector)


def attention_rows(attention, n, core):
    """One (T, T) matrix a head, by loops over heads, queries and keys."""
    q, k = (n @ weight_of(layer, core).T + layer.bias for layer in (attention.query, attention.key))
    size = n.shape[1] // attention.heads
    gains = (attention.query_gain.tolist(), attention.key_gain.tolist()) if core.startswith("qk") else None
    heads = [slice(h * size, (h + 1) * size) for h in range(attention.heads)]
    return [transcribed(core, q[:, part], k[:, part], True, size**-0.5, gains) for part in heads]


@torch.no_grad()
@pytest.mark.parametrize("core", CORES)
def test_logits_equal_plain_loops(core):
    context = 12 if core == "window_softmax" else 9  # so that the window hides something
    model, tokens = build(core, context=context), ids(1, context)
    x = model.token_embedding.weight[tokens[0]] + model.position_embedding.weight
    expected_norms, expected_entropies = [], []
    for block in model.blocks:
        a, f = block.attention, block.ffn
        n = block.ln_1(x)
        v = n @ weight_of(a.value, core).T
        matrices = attention_rows(a, n, core)
        mixed = torch.cat([m @ v[:, 4 * h : 4 * h + 4] for h, m in enumerate(matrices)], 1)
        x = x + mixed @ a.output.weight.T
        hidden = block.ln_2(x) @ f.up.weight.T
        gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + gelu @ f.down.weight.T
        expected_norms.append(sum(math.sqrt((m**2).sum()) for m in matrices) / 2)
        rows = [[-sum(p * math.log(p) for p in row if p > 0) for row in m.tolist()] for m in matrices]
        expected_entropies.append(torch.tensor(rows, dtype=torch.float64))
    logits, entropies = model(tokens, entropy=True)
    torch.testing.assert_close(logits[0], model.ln_f(x) @ model.token_embedding.weight.T, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(entropies[:, 0], torch.stack(expected_entropies), atol=1e-9, rtol=1e-9)
    row = attention_columns(model, tokens)
    norms = [row[f"norm_layer_{layer}"] for layer in range(len(model.blocks))]
    assert norms == pytest.approx(expected_norms, rel=1e-5)


@torch.no_grad()
def test_logit_variance_is_that_of_the_visible_keys():
    model, tokens = build("softmax"), ids(1)
    n = model.blocks[0].ln_1(model.hidden_states(tokens)[0][0])[0]
    a, found = model.blocks[0].attention, []
    q, k = n @ a.query.weight.T + a.query.bias, n @ a.key.weight.T + a.key.bias
    for part in (slice(0, 4), slice(4, 8)):
        for i in range(9):
            z = [float(q[i, part] @ k[j, part]) / 2 for j in range(i + 1)]
            found.append(sum((x - sum(z) / len(z)) ** 2 for x in z) / len(z))
    assert attention_columns(model, tokens)["variance_layer_0"] == pytest.approx(sum(found) / len(found), rel=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_every_core_trains_and_sees_no_future(core):
    model, tokens = build(core), ids()
    model.train()
    model(tokens).square().sum().backward()
    still = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    fixed = core == "qk_layernorm_fixed"
    assert {name.rpartition(".")[2] for name in still} == ({"query_gain", "key_gain"} if fixed else set())
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.eval()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 40
    with torch.no_grad():
        torch.testing.assert_close(model(changed)[:, :5], model(tokens)[:, :5], atol=1e-9, rtol=1e-9)


def test_gains_are_clipped_according_to_the_core():
    for core, limited in (("qk_layernorm", True), ("qk_layernorm_free", False), ("relu", None)):
        model = build(core)
        if limited is not None:
            model.blocks[1].attention.key_gain.data[:] = torch.tensor([1.7, -2.0, 0.3, 1.0])
        model.clip_gains()
        if limited is not None:
            expected = [min(max(x, -GAIN_LIMIT), GAIN_LIMIT) if limited else x for x in (1.7, -2.0, 0.3, 1.0)]
            assert model.blocks[1].attention.key_gain.tolist() == pytest.approx(expected)
    gradients = {}
    for core in ("qk_layernorm_free", "qk_layernorm_gradient_clip"):
        model = build(core)
        (1e4 * model(ids()).square().sum()).backward()
        gradients[core] = model.blocks[0].attention.query_gain.grad
    free, clipped = gradients.values()
    assert free.norm() > GAIN_GRADIENT_LIMIT
    torch.testing.assert_close(clipped, free * GAIN_GRADIENT_LIMIT / free.norm())


def test_architectures_that_a_core_does_not_fit():
    for text in ("Core(relu(t))", "EReg(Core(relu)+LN+G)", "SOTA(Core(relu)+ScFFN)", "Core(relu)+G+WNorm(FFN)"):
        with pytest.raises(ValueError, match="Core"):
            parse(text)
    with pytest.raises(ValueError, match=r"Core\(softmax\) is written SM"):
        parse("Core(softmax)+LN+G")
    with pytest.raises(ValueError, match="unknown attention core 'rbf'; known: softmax, window_softmax"):
        GPT(parse("Core(rbf)+LN+G"), ModelConfig(**SMALL))
    rotary = SMALL | {"width": 16, "position": "rotary", "rotary_fraction": 0.5}
    with pytest.raises(ValueError, match="position=learned"):
        GPT(parse("Core(qk_layernorm)+LN+G"), ModelConfig(**rotary))
    GPT(parse("Core(relu)+LN+G"), ModelConfig(**(SMALL | FAMILIES["pythia-70m"].switches | {"rotary_fraction": 0.5})))


def test_private_inference_refuses_other_cores():
    from aero.errors import UserError
    from aero.two_party.cost.counts import counts, published_sizes
    from aero.two_party.program.weights import weight_arrays

    with pytest.raises(ValueError, match=r"Core\(relu\)\+LN\+G: a private pass computes softmax attention only"):
        weight_arrays(build("relu"), "tuned")
    with pytest.raises(UserError, match="softmax attention only"):
        counts(parse("Core(relu)+LN+G"), published_sizes("gpt2", 128), "tuned")
