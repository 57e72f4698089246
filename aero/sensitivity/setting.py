"""What the small experiment of `variance_sensitivity` is: what the paper says (Appendix C.2), and what it leaves open.

Symbols: L layers, D width, N tokens (the last is the query), d dimensions of x, S models trained at once, B sequences
a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

LAYERS, TOKENS, WIDTH = 5, 20, 3
"""L, N, D as published."""
SET = 256
"""Sequences of a fixed training set."""

Hidden = Literal["x3+y", "x2+y", "embedded"]
Readout = Literal["slot", "linear"]
Init = Literal["normal_0.1", "linear", "xavier"]
Data = Literal["fresh", "set"]
Reduction = Literal["mean", "sum"]


def learning_rates(lowest: int = -5, highest: int = 1) -> tuple[float, ...]:
    """{1, 3, 5} x 10^k for k = `lowest` ... `highest`, up to 10^`highest`: the paper's 19 rates by default."""
    rates = (float(f"{digit}e{power}") for power in range(lowest, highest + 1) for digit in (1, 3, 5))
    return tuple(rate for rate in rates if rate <= 10.0**highest)


@dataclass(frozen=True)
class Setting:
    """One reading of the experiment.

    hidden: what a token of width D is. "x3+y": x of R^3 and the label as a fourth number, so the hidden state has 4;
        "x2+y": x of R^2 and the label, 3 in all; "embedded": x of R^3 and the label, mapped to 3 by a trained matrix.
    residual: x + A instead of A.
    readout: the prediction is the label's own number in the last token ("slot"), or a trained linear form of it.
    init: N(0, 0.1^2); U(-1/sqrt(D), 1/sqrt(D)), the default of torch.nn.Linear; or Xavier's uniform.
    batch: sequences a step. data: new ones at every step, or a fixed set of SET ones, gone through in order.
    reduction: of the squared errors of a batch, in the loss that is differentiated; "sum" multiplies the rate by B.
        The loss that is reported is the mean.
    steps: of SGD.
    """

    hidden: Hidden
    residual: bool
    readout: Readout
    init: Init
    batch: int
    data: Data
    reduction: Reduction
    steps: int

    def __post_init__(self) -> None:
        for name, kind in (("hidden", Hidden), ("readout", Readout), ("init", Init), ("data", Data)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        if self.reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be mean or sum, got {self.reduction!r}")
        if self.batch < 1 or self.steps < 1:
            raise ValueError(f"batch and steps must be at least 1, got {self.batch} and {self.steps}")
        if self.data == "set" and SET % self.batch:
            raise ValueError(f"batch {self.batch} must divide the training set of {SET} sequences")
        if self.hidden == "embedded" and self.readout == "slot":
            raise ValueError("hidden=embedded has no number that is the label's: it needs readout=linear")

    @property
    def dimensions(self) -> int:
        """d, of x and w."""
        return 2 if self.hidden == "x2+y" else 3

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return 4 if self.hidden == "x3+y" else WIDTH

    @property
    def zero_loss(self) -> float:
        """Expected squared error of predicting 0: E[(w^T x)^2] = d."""
        return float(self.dimensions)

    def bound(self, fan_in: int, fan_out: int) -> float | None:
        """Bound of the uniform distribution that a matrix starts from; None for the normal one."""
        return {"normal_0.1": None, "linear": 1 / math.sqrt(fan_in), "xavier": math.sqrt(6 / (fan_in + fan_out))}[
            self.init
        ]

    def __str__(self) -> str:
        residual = "residual" if self.residual else "no residual"
        return (
            f"{self.hidden}, {residual}, {self.readout} readout, init {self.init}, batch {self.batch}, {self.data}, "
            f"{self.reduction}, {self.steps} steps"
        )
