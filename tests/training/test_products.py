"""Products by oneDNN against PyTorch's own, alone and in a training; which models take them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training import products, schedule
from aero.training.loop import next_token_loss

pytestmark = pytest.mark.skipif(not products.available(), reason="this PyTorch has no oneDNN")


def random(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 1, 3, 7)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_linear(shape, biased):
    torch.manual_seed(0)
    x, weight, bias = random(*shape), random(4, 7), random(4) if biased else None
    inputs = [x, weight] + ([bias] if biased else [])
    weights = torch.randn(*shape[:-1], 4)
    found, expected = (
        [y, *torch.autograd.grad((y * weights).sum(), inputs)]
        for y in (products.linear(x, weight, bias), F.linear(x, weight, bias))
    )
    for given, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("m", "n", "turned"), [(40, 3, True), (3, 40, False), (20, 18, False)])
def test_the_gradient_of_a_weight_by_either_order_of_the_factors(m, n, turned, monkeypatch):
    """The smaller factor is copied; the gradient lies as its weight does, whichever it was."""
    torch.manual_seed(0)
    rows, x = torch.randn(2, 60, m), torch.randn(2, 60, n)
    firsts = []
    product = products.product
    monkeypatch.setattr(products, "product", lambda first, *more: firsts.append(first.shape) or product(first, *more))
    weight = torch.nn.Parameter(torch.randn(m, n))
    (products.linear(x, weight) * rows).sum().backward()
    assert firsts[1:] == [(n if turned else m, 120)] and weight.grad.is_contiguous()
    torch.testing.assert_close(weight.grad, torch.einsum("brm,brn->mn", rows, x), atol=1e-4, rtol=1e-5)


def test_views_that_are_not_contiguous():
    torch.manual_seed(0)
    whole, weight = random(3, 7, 5), random(9, 7)
    x = whole.transpose(1, 2)  # (3, 5, 7)
    for y in (products.linear(x, weight), products.linear(x, weight.flip(0))):
        y.sum().backward()  # an expanded gradient: all its strides are 0
    expected = 2 * weight.detach().sum(0)[None, :, None].expand(3, 7, 5)
    torch.testing.assert_close(whole.grad, expected, atol=1e-5, rtol=1e-5)


def model_of(text):
    torch.manual_seed(0)
    return GPT(parse(text), ModelConfig(40, 9, 2, 2, 8, 32, init_std=0.3))


@pytest.mark.parametrize("text", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)", "SOTA(SM+ScFFN)", "SM+WNorm(QKVO+FFN)"])
def test_a_model_has_the_same_loss_and_gradients(text, monkeypatch):
    monkeypatch.setattr(schedule, "LARGE", 1)
    model = model_of(text)
    ids = torch.randint(0, 40, (3, 9))
    found = []
    for way in (products.faster_products(model), torch.enable_grad()):
        model.zero_grad()
        with way:
            loss = next_token_loss(model(ids), ids)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([loss.detach(), *gradients])
    for given, other in zip(*found, strict=True):
        torch.testing.assert_close(given, other, atol=1e-6, rtol=1e-4)


def test_only_large_models_in_float32_take_them(monkeypatch):
    taken = []
    linear = products.linear
    monkeypatch.setattr(products, "linear", lambda *args, **more: taken.append(1) or linear(*args, **more))
    ids = torch.randint(0, 40, (1, 9))
    model = model_of("SM+LN+G")
    with products.faster_products(model):
        model(ids)
    assert not taken
    monkeypatch.setattr(schedule, "LARGE", 1)
    with products.faster_products(model), torch.autocast("cpu", dtype=torch.bfloat16):
        model(ids)
    with products.faster_products(model.double()):
        model(ids)
    assert not taken
    with products.faster_products(model.float()):
        model(ids)
    assert len(taken) == 2 * 6 + 1
    model(ids)
    assert len(taken) == 2 * 6 + 1
