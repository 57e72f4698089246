"""The small experiment of `variance_sensitivity`, in-context linear regression: predict w^T x_N from x_N and the pairs
(x_i, w^T x_i), i < N. What the paper prints (Appendix C.2) and what it leaves open, and the batches.

Symbols: L layers, D width, N tokens (the last one is the query), d dimensions of x, B sequences a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LAYERS, TOKENS, WIDTH = 5, 20, 3
"""L, N, D as published."""
TRAINING_SET = 256
"""Sequences of a fixed training set."""


def learning_rates() -> tuple[float, ...]:
    """The paper's 19 rates: {1, 3, 5} x 10^k from 1e-5 to 10."""
    rates = (float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 3, 5))
    return tuple(rate for rate in rates if rate <= 10)


@dataclass(frozen=True)
class Setting:
    """One way to fill in what the paper leaves open.

    hidden: a token of width D. "x3+y": x in R^3 and the label, so D is 4; "x2+y": x in R^2 and the label;
        "embedded": x in R^3 and the label, mapped to width 3 by a trained matrix.
    residual: x + A(x) instead of A(x).
    readout: the prediction is the label's own component of the last token ("slot") or a trained linear form ("linear").
    init: N(0, 0.1^2); U(-1/sqrt(D), 1/sqrt(D)), the default of torch.nn.Linear; or Xavier's uniform distribution.
    batch: sequences a step. data: fresh ones every step, or a fixed set of TRAINING_SET, in order.
    reduction: of the squared errors of a batch in the loss that is differentiated; "sum" multiplies the rate by B.
        The reported loss is the mean.
    steps: of SGD.
    """

    hidden: Literal["x3+y", "x2+y", "embedded"]
    residual: bool
    readout: Literal["slot", "linear"]
    init: Literal["normal_0.1", "linear", "xavier"]
    batch: int
    data: Literal["fresh", "set"]
    reduction: Literal["mean", "sum"]
    steps: int

    def __post_init__(self) -> None:
        if self.data == "set" and TRAINING_SET % self.batch:
            raise ValueError(f"batch {self.batch} must divide the training set of {TRAINING_SET} sequences")
        if self.hidden == "embedded" and self.readout == "slot":
            raise ValueError("hidden=embedded has no component for the label: it needs readout=linear")

    @property
    def dimensions(self) -> int:
        """d, the dimensions of x and w."""
        return 2 if self.hidden == "x2+y" else 3

    @property
    def width(self) -> int:
        """D, the width of a hidden state."""
        return 4 if self.hidden == "x3+y" else WIDTH

    def __str__(self) -> str:
        residual = "residual" if self.residual else "no residual"
        return (
            f"{self.hidden}, {residual}, {self.readout} readout, init {self.init}, batch {self.batch}, {self.data}, "
            f"{self.reduction}, {self.steps} steps"
        )


def sequences(dimensions: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` sequences (B, N, d + 1) of tokens (x_i, y_i) with the last label set to 0, and that label (B,).

    x_i and w ~ N(0, I_d), y_i = w^T x_i; every sequence has its own w.
    """
    x = torch.randn(count, TOKENS, dimensions, generator=generator)
    w = torch.randn(count, dimensions, generator=generator)
    y = torch.einsum("bnd,bd->bn", x, w)
    tokens = torch.cat([x, y[..., None]], -1)
    tokens[:, -1, -1] = 0.0
    return tokens, y[:, -1]


def draw_batches(
    setting: Setting, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches of K seeds without end: tokens (K, B, N, d + 1) and targets (K, B).

    They depend on the seed alone: every learning rate and every core of one seed sees the same batches.
    """
    generators = [torch.Generator().manual_seed(2 * seed + 1) for seed in seeds]

    def draw(count: int) -> tuple[Tensor, ...]:
        drawn = [sequences(setting.dimensions, count, generator) for generator in generators]
        return tuple(torch.stack(parts).to(dtype) for parts in zip(*drawn, strict=True))

    while setting.data == "fresh":
        yield draw(setting.batch)
    batches = [drawn.split(setting.batch, 1) for drawn in draw(TRAINING_SET)]
    yield from itertools.cycle(zip(*batches, strict=True))
