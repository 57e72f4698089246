"""What benchmarks/sensitivity.py times beside the two sides: the kernels of the floor, and the split stack."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aero.attention_kernels import CORES
from aero.config import load
from aero.sensitivity.regression import Batches
from aero.sensitivity.setting import LAYERS, TOKENS, Setting
from aero.sensitivity.stacked import Stack
from benchmarks import sensitivity as bench


class Counted(TorchDispatchMode):
    """Calls of products and softmaxes by kernel and by the numbers in their results."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        name = function.overloadpacket.__name__
        if name in ("bmm", "_softmax", "_softmax_backward_data"):
            self.calls[name, made.numel()] += 1
        return made


def test_the_floor_has_no_kernel_that_a_step_does_without():
    """Every product and softmax of the floor, by its size, is one of a real step of the stack, which has the products
    with the weights besides."""
    setting = Setting(**load().sensitivity.experiment(), steps=1)
    stack = Stack(CORES["softmax"], setting, bench.RATES[:2], bench.SEEDS[:1], torch.float32)
    batches = Batches(setting, bench.SEEDS[:1])
    with Counted() as step:
        stack.step(*batches.next())
    floor = Counter()
    for queries, layers in ((TOKENS, LAYERS - 1), (1, 1)):
        kernels = bench.kernels(2 * setting.batch, queries, setting.width)
        assert len(kernels) == 8
        with Counted() as counted:
            for kernel in kernels.values():
                kernel()
        floor.update({of: layers * times for of, times in counted.calls.items()})
    of_kind = Counter()
    for (name, _), times in floor.items():
        of_kind[name] += times
    assert of_kind == {"bmm": 6 * LAYERS, "_softmax": LAYERS, "_softmax_backward_data": LAYERS}
    assert all(step.calls[of] >= times for of, times in floor.items()), (floor, step.calls)


def test_the_kernels_of_the_floor_are_the_gradients_of_attention():
    torch.manual_seed(0)
    kernels = bench.kernels(3, TOKENS, 4)
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, TOKENS, 4, requires_grad=True) for _ in range(3))
    update = (q @ k.mT).softmax(-1) @ v
    update.backward(torch.randn_like(update))
    for name, expected in (("PV", update), ("dQ", q.grad), ("dK", k.grad), ("dV", v.grad)):
        torch.testing.assert_close(kernels[name](), expected, atol=1e-5, rtol=1e-4)


def test_the_floor_is_compared_with_single_steps(monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    setting = replace(Setting(**load().sensitivity.experiment(), steps=1), batch=1)
    threads = torch.get_num_threads()
    try:
        line, floor = bench.compare(CORES["softmax"], setting, 1)
    finally:
        torch.set_num_threads(threads)
    assert floor["floor_s"] == pytest.approx(sum(floor["kernels_s"].values()))
    assert floor["floor_ratio"] == pytest.approx(95 * line["one_s"] / floor["floor_s"])
    assert (floor["batch"], floor["threads"]) == (1, 1)
