"""The matrix products of a training step alone, with nothing between them: no norm, activation, softmax, loss or
optimiser. What they take bounds how fast a step can be by these kernels, whatever is made of the rest: products with
weights by oneDNN, those within attention by PyTorch's own bmm or by oneDNN, whichever is faster where they run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
ONE_DNN_ROWS = 256
"""Queries in a block of attention by oneDNN: with smaller blocks its calls, with larger ones the masked half cost more
(docs/decisions.md)."""


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


def multiplying(model: GPT, ids: Tensor, attention: str | None = None) -> Callable[[], None]:
    """The products of one forward and backward pass, by oneDNN with weights and within attention by `attention`, one of
    `ATTENTION`; None is the one that is faster here. Sizes that come again take the same numbers again, which is in
    their favour.
    """
    sizes = linears(model, ids)
    factors = {(n, i, o): (random(n, i), random(o, i), random(n, o)) for n, i, o in set(sizes)}
    attend = attending(model, ids, attention)

    def multiply() -> None:
        for size in sizes:
            x, weight, d_y = factors[size]
            product(x, weight)
            product(d_y, weight.mT)
            of_weight(d_y, x)
        for _ in range(model.config.layers):
            attend()

    return multiply


def attending(model: GPT, ids: Tensor, attention: str | None = None) -> Callable[[], None]:
    """The products of one layer's attention: of what the causal mask leaves two forward and four backward."""
    batch, context = ids.shape
    shape = (batch * model.config.heads, context, model.config.width // model.config.heads)
    query, key, value, d_output = (random(*shape) for _ in range(4))
    ways = {name: way(query, key, value, d_output) for name, way in ATTENTION.items()}
    if attention is not None:
        return ways[attention]
    return ways[_fastest(ways)]


def _bmm(query: Tensor, key: Tensor, value: Tensor, d_output: Tensor) -> Callable[[], None]:
    """By PyTorch's own bmm (MKL), all heads at once, in the blocks of `aero.row_entropy`."""
    blocks = _blocks(query, ROWS)

    def attend() -> None:
        for rows, keys, p in blocks:
            query[:, rows] @ key[:, keys].mT
            p @ value[:, keys]
            p.mT @ d_output[:, rows]
            d_output[:, rows] @ value[:, keys].mT
            p @ key[:, keys]
            p.mT @ query[:, rows]

    return attend


def _one_dnn(query: Tensor, key: Tensor, value: Tensor, d_output: Tensor) -> Callable[[], None]:
    """By oneDNN, which multiplies matrices and no stacks of them: a head at a time, in larger blocks."""
    blocks = _blocks(query, ONE_DNN_ROWS)

    def attend() -> None:
        for rows, keys, stacked in blocks:
            for q, k, v, d_o, p in zip(
                query[:, rows], key[:, keys], value[:, keys], d_output[:, rows], stacked, strict=True
            ):
                product(q, k)
                product(p, v.mT)
                of_weight(p, d_o)
                product(d_o, v)
                product(p, k.mT)
                of_weight(p, q)

    return attend


ATTENTION: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Callable[[], None]]] = {
    "bmm": _bmm,
    "oneDNN": _one_dnn,
}
"""Ways to the products of attention, of query, key, value and the gradient of the output, each (B H, T, d_k)."""


def _blocks(query: Tensor, rows: int) -> list[tuple[slice, slice, Tensor]]:
    """Blocks of so many queries: their rows, the keys they see under the causal mask, and numbers in p's place."""
    heads, context, _ = query.shape
    return [
        (slice(start, stop), slice(0, stop), random(heads, stop - start, stop))
        for start in range(0, context, rows)
        for stop in (min(start + rows, context),)
    ]


def _fastest(ways: Mapping[str, Callable[[], None]], tries: int = 5) -> str:
    """The name of the way that took least in one of `tries` turns, after one that warms up."""
    least = dict.fromkeys(ways, math.inf)
    with torch.no_grad():
        for turn in range(tries + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if turn:
                    least[name] = min(least[name], time.perf_counter() - began)
    return min(least, key=least.__getitem__)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


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
