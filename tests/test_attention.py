"""Softmax attention and its entropies against loops over the papers' formulas; shaped attention."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_attention import softmax_with_entropy

from aero.attention import matrix_attention, shaped_attention, softmax_attention
from aero.hf.attention import attention_function
from aero.row_entropy import attention_with_entropy


def test_attention_equals_the_papers_formula_and_gradients_equal_finite_differences():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    t = (torch.rand(2, 5, dtype=torch.float64) + 0.5).requires_grad_()
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
    with pytest.raises(ValueError, match="heads x queries = 2 x 5"):
        softmax_attention(q, k, v, t[:, :4])


@pytest.mark.parametrize(
    ("t", "first", "entropy"),
    [
        (1.0, 9 / 10, 0.325082973),  # logits 2 ln 3 and 0: 9 to 1; ln 10 - 9/10 ln 9
        (2.0, 3 / 4, 0.562335145),  # ln 3 and 0: 3 to 1; 2 ln 2 - 3/4 ln 3
        (-2.0, 1 / 4, 0.562335145),  # -ln 3 and 0: 1 to 3
    ],
)
def test_a_temperature_divides_the_logits_by_hand(t, first, entropy):
    """AERO Eq. 11 and 12. Two tokens, width 4; values 1 and 0."""
    query, key, value = (torch.zeros(1, 1, 2, 4, dtype=torch.float64) for _ in range(3))
    query[..., 1, 0], key[..., 0, 0], value[..., 0, :] = 2.0, 2 * math.log(3), 1.0
    temperature = torch.tensor([[7.0, t]], dtype=torch.float64)  # (H, T); the first query has one key
    for output, entropies in (
        softmax_attention(query, key, value, temperature, entropy=True),
        attention_with_entropy(query / temperature[..., None], key, value, 0.5),
    ):
        assert output[0, 0, :, 0].tolist() == pytest.approx([1.0, first], abs=1e-9)
        assert entropies.flatten().tolist() == pytest.approx([0.0, entropy], abs=1e-9)
    output, _ = attention_function(
        SimpleNamespace(entropy_temperature=SimpleNamespace(weight=temperature)), query, key, value, None
    )
    assert output[0, :, 0, 0].tolist() == pytest.approx([1.0, first], abs=1e-9)  # (B, T, H, d)


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.1, 30), st.floats(0.05, 20), st.floats(1, 10))
@settings(max_examples=40, deadline=None)
def test_entropy_grows_with_temperature_up_to_log_i(seed, context, size, temperature, factor):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 2, context, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    query, t = size * query, temperature * (0.5 + torch.rand(2, context, generator=generator, dtype=torch.float64))

    def entropies(query, t):
        return softmax_attention(query, key, value, t, entropy=True)[1]

    found = entropies(query, t)
    bound = torch.arange(1, context + 1, dtype=torch.float64).log().expand_as(found)
    assert (found >= -1e-9).all() and (found <= bound + 1e-9).all()
    assert (entropies(query, factor * t) >= found - 1e-12).all()
    torch.testing.assert_close(entropies(factor * query, factor * t), found, atol=1e-9, rtol=0)
    torch.testing.assert_close(entropies(query, 1e9 * t), bound, atol=1e-9, rtol=0)


def test_half_precision_and_huge_logits():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 70, 16) for _ in range(3))
    half = [x.bfloat16() for x in (3 * q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, entropies = matrix_attention(*half)
    assert output.dtype == torch.bfloat16 and entropies.dtype == torch.float32
    exact = softmax_with_entropy(half[0].double() @ half[1].double().mT / 4)[1]
    torch.testing.assert_close(entropies.double(), exact, atol=2e-5, rtol=0)
    q = (1e4 * q).requires_grad_()  # all but one probability of a row underflow to 0
    matrix_attention(q, k, v)[1].sum().backward()
    assert q.grad.isfinite().all()


def test_shaped_attention_equals_its_matrix_definition():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 3, dtype=torch.float64) for _ in range(3))
    a, b, g = (torch.rand(2, dtype=torch.float64) for _ in range(3))
    output, _ = shaped_attention(q, k, v, a, b, g)
    for h in range(2):
        softmax, centre = torch.zeros(2, 6, 6, dtype=torch.float64)
        for i in range(6):
            z = torch.stack([(q[0, h, i] @ k[0, h, j]) / math.sqrt(3) for j in range(i + 1)])
            softmax[i, : i + 1] = z.softmax(0)
            centre[i, : i + 1] = 1 / (i + 1)
        matrix = a[h] * torch.eye(6, dtype=torch.float64) + b[h] * softmax - g[h] * centre
        torch.testing.assert_close(output[0, h], matrix @ v[0, h])
