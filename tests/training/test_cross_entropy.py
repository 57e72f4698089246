"""Cross-entropy over many logits on a CPU against PyTorch's own, and what a training makes of it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training import allocation, cross_entropy, schedule
from aero.training.loop import next_token_loss


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 7), st.integers(1, 40), st.floats(0.01, 50))
@settings(max_examples=60, deadline=None)
def test_loss_and_gradient_are_pytorchs(seed, positions, vocabulary, block, size):
    generator = torch.Generator().manual_seed(seed)
    logits = size * torch.randn(positions, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(-1, vocabulary, (positions,), generator=generator)
    targets[0] = 0  # one at least counts
    given_, expected = (logits.clone().requires_grad_() for _ in range(2))
    loss = F.cross_entropy(expected, targets, ignore_index=-1)
    (3 * loss).backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "BLOCK", block)
        ours = cross_entropy.cross_entropy(given_ * 1, targets)
        (3 * ours).backward()
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(given_.grad, expected.grad)


def test_by_hand():
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]], requires_grad=True)
    loss = cross_entropy.cross_entropy(logits * 1, torch.tensor([1, -1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4 / 3))
    torch.testing.assert_close(logits.grad, torch.tensor([[0.25, -0.25], [0.0, 0.0]]))


def test_an_infinite_logit_is_no_number():
    logits = torch.tensor([[0.0, math.inf], [0.0, 1.0]])
    assert math.isnan(cross_entropy.cross_entropy(logits, torch.tensor([0, 1])).item()) or math.isinf(
        cross_entropy.cross_entropy(logits, torch.tensor([0, 1])).item()
    )


def test_next_tokens_are_the_same_from_few_and_many_logits(monkeypatch):
    torch.manual_seed(0)
    model = GPT(parse("SM+LN+G"), ModelConfig(40, 9, 2, 2, 8, 32, init_std=0.3))
    ids = torch.randint(0, 40, (3, 9))
    found = []
    for large in (2**20, 1):
        monkeypatch.setattr(cross_entropy, "LARGE", large)
        model.zero_grad()
        loss = next_token_loss(model(ids), ids)
        loss.backward()
        found.append([loss, *(parameter.grad.clone() for parameter in model.parameters())])
    for few, many in zip(*found, strict=True):
        torch.testing.assert_close(many, few, atol=1e-6, rtol=1e-5)


def test_the_gradient_takes_the_place_of_the_logits():
    logits = torch.randn(5, 4, requires_grad=True) * 1
    logits.retain_grad()
    before = logits.detach().clone()
    cross_entropy.cross_entropy(logits, torch.tensor([0, 1, 2, 3, 0])).backward()
    assert not torch.equal(logits.detach(), before)


def test_the_fused_optimiser_of_large_models_agrees_with_the_other(monkeypatch):
    torch.manual_seed(0)
    start, gradient = torch.randn(6, 5), torch.randn(3, 6, 5)
    ends = []
    for least in (1, 31):
        monkeypatch.setattr(schedule, "LARGE", least)
        model = torch.nn.Linear(5, 6, bias=False)
        model.weight.data.copy_(start)
        optimizer = schedule.make_optimizer(model, 1e-2, (0.9, 0.99), 1e-8, 0.1)
        assert bool(optimizer.defaults["fused"]) is (least == 1)
        for step in gradient:
            model.weight.grad = step.clone()
            optimizer.step()
        ends.append(model.weight.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(ends[0], start)


def test_freed_memory_is_kept_and_numbers_stay():
    before = (torch.arange(1e4) / 7).sum()
    assert allocation.keep_freed_memory() in (True, False)
    assert torch.equal((torch.arange(1e4) / 7).sum(), before)
