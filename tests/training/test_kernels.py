"""Products by oneDNN against PyTorch's own, alone and in a training; which models take them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training import kernels, schedule
from aero.training.kernels import compile_step, eager
from aero.training.loop import next_token_loss


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
        for y in (kernels.linear(x, weight, bias), F.linear(x, weight, bias))
    )
    for given, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("m", "n", "transposed"), [(40, 3, True), (3, 40, False), (20, 18, False)])
def test_the_gradient_of_a_weight_by_either_order_of_the_factors(m, n, transposed, monkeypatch):
    """The smaller factor is copied; the gradient lies as its weight does, whichever it was."""
    torch.manual_seed(0)
    rows, x = torch.randn(2, 60, m), torch.randn(2, 60, n)
    firsts = []
    matmul = kernels.matmul
    monkeypatch.setattr(kernels, "matmul", lambda first, *more: firsts.append(first.shape) or matmul(first, *more))
    weight = torch.nn.Parameter(torch.randn(m, n))
    (kernels.linear(x, weight) * rows).sum().backward()
    assert firsts[1:] == [(n if transposed else m, 120)] and weight.grad.is_contiguous()
    torch.testing.assert_close(weight.grad, torch.einsum("brm,brn->mn", rows, x), atol=1e-4, rtol=1e-5)


def test_views_that_are_not_contiguous():
    torch.manual_seed(0)
    whole, weight = random(3, 7, 5), random(9, 7)
    x = whole.transpose(1, 2)  # (3, 5, 7)
    for y in (kernels.linear(x, weight), kernels.linear(x, weight.flip(0))):
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
    for way in (kernels.faster_matmul(model), torch.enable_grad()):
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
    linear = kernels.linear
    monkeypatch.setattr(kernels, "linear", lambda *args, **more: taken.append(1) or linear(*args, **more))
    ids = torch.randint(0, 40, (1, 9))
    model = model_of("SM+LN+G")
    with kernels.faster_matmul(model):
        model(ids)
    assert not taken
    monkeypatch.setattr(schedule, "LARGE", 1)
    with kernels.faster_matmul(model), torch.autocast("cpu", dtype=torch.bfloat16):
        model(ids)
    with kernels.faster_matmul(model.double()):
        model(ids)
    assert not taken
    with kernels.faster_matmul(model.float()):
        model(ids)
    assert len(taken) == 2 * 6 + 1
    model(ids)
    assert len(taken) == 2 * 6 + 1


CONFIG = ModelConfig(vocabulary=32, context=8, layers=2, heads=2, width=16, ffn_width=64, temperature_init=1.0)
IDS = (torch.tensor([[3], [8], [20], [29]]) + torch.arange(8)) % 32

# With "aot_eager" the backward pass of these two cores fails in torch itself ("view size is not compatible with input
# tensor's size and stride"): it keeps strides that the forward pass did not have. With "inductor", which trainings
# use, it does not.
CODE_ONLY = ["Core(qk_layernorm)+LN+G", "Core(elu)+LN+G"]


@pytest.mark.parametrize(
    "architecture", ["SM+LN+G", "EReg(SM(t)+ScFuFFNi_1)", "SM+SNorm(QKV+FFN)", "SOTA(SM+ScFuFFNi_1)", "Core(relu)+LN+G"]
)
def test_a_compiled_step_equals_the_eager_step(architecture):
    """Through the graphs that torch.compile captures, without the code it would make of them for a GPU."""
    check_compiled(architecture, "aot_eager", layers=6)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CODE_ONLY)
def test_a_step_compiled_to_code_equals_the_eager_step(architecture):
    """Through the code that torch makes for the processor, of cores whose graphs alone do not run."""
    check_compiled(architecture, "inductor", layers=3)


def check_compiled(architecture, backend, layers):
    torch.manual_seed(1)
    model, ids = GPT(parse(architecture), dataclasses.replace(CONFIG, layers=layers)), IDS

    def gradients(token_loss):
        model.load_state_dict(weights)  # a spectral norm's vectors move at every pass
        regularized = parse(architecture).entropy_regularized
        logits, entropies = model(ids, entropy=True) if regularized else (model(ids), torch.zeros(()))
        loss = token_loss(logits, ids) + entropies.mean()
        model.zero_grad()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = gradients(next_token_loss)
    counters = torch._dynamo.utils.counters
    try:
        compiled = compile_step(model, next_token_loss, backend=backend)
        counters.clear()
        with torch._dynamo.config.patch(suppress_errors=False):  # it shall not run as it stands and pass
            found = gradients(compiled)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
        assert not counters["graph_break"], dict(counters["graph_break"])
        assert counters["stats"]["unique_graphs"] <= 4  # the loss, and few kinds of blocks
        with eager():
            model(ids)
    finally:
        torch._dynamo.reset()
