"""The matrix products of a training step alone, with nothing between them: no norm, activation, softmax, loss or
optimiser. What they take bounds how fast a step can be by these kernels, whatever is made of the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aero.model import GPT
from aero.row_entropy import ROWS
from aero.training.products import of_weight, product
from benchmarks import timing
from benchmarks.timing import Measured

NAME = "products alone"


class _Linears(TorchFunctionMode):
    """Notes the sizes (rows, inputs, outputs) of every `F.linear` within."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int, int]] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear:
            x, weight = args[:2]
            self.sizes.append((x.numel() // x.shape[-1], weight.shape[1], weight.shape[0]))
        return function(*args, **(kwargs or {}))


def linears(model: GPT, ids: Tensor) -> list[tuple[int, int, int]]:
    """(rows, inputs, outputs) of the products with weights in a forward pass, in their order."""
    with torch.no_grad(), _Linears() as noted:
        model(ids)
    return noted.sizes


def multiplying(model: GPT, ids: Tensor) -> Callable[[], None]:
    """The products of one forward and backward pass, by oneDNN with weights and by PyTorch's bmm within attention.

    Of attention what the causal mask leaves, in blocks of `ROWS` queries: two products forward, four backward. Sizes
    that come again take the same numbers again, which is in their favour.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    sizes = linears(model, ids)
    factors = {(n, i, o): (random(n, i), random(o, i), random(n, o)) for n, i, o in set(sizes)}
    config = model.config
    batch, context = ids.shape
    heads, width = batch * config.heads, config.width // config.heads
    query, key, value, d_output = (random(heads, context, width) for _ in range(4))
    blocks = [
        (slice(start, stop), slice(0, stop), random(heads, stop - start, stop))
        for start in range(0, context, ROWS)
        for stop in (min(start + ROWS, context),)
    ]

    def attention() -> None:
        for rows, keys, p in blocks:
            query[:, rows] @ key[:, keys].mT
            p @ value[:, keys]
            p.mT @ d_output[:, rows]
            d_output[:, rows] @ value[:, keys].mT
            p @ key[:, keys]
            p.mT @ query[:, rows]

    def multiply() -> None:
        for size in sizes:
            x, weight, d_y = factors[size]
            product(x, weight)
            product(d_y, weight.mT)
            of_weight(d_y, x)
        for _ in range(config.layers):
            attention()

    return multiply


def timed(work: Callable[[], object]) -> Callable[[], Measured]:
    """`work` as a step that is measured: seconds, processor seconds and page faults; no gradients."""

    def step() -> Measured:
        faults_before = timing.page_faults()
        began, cpu_began = time.perf_counter(), time.process_time()
        with torch.no_grad():
            work()
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        faults = float(timing.page_faults() - faults_before)
        return {"seconds": seconds, "passes": seconds, "cpu_seconds": cpu_seconds, "page_faults": faults}

    return step
