"""What makes a training on a CPU faster leaves its numbers alone: the fused optimiser, kept memory."""

from __future__ import annotations

import torch

from aero.training import allocation, schedule


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
