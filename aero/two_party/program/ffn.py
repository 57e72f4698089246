"""The weights of a feed-forward network while they are folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aero.architecture import Architecture
from aero.model import ModelConfig
from aero.two_party.program.layers import Affine, Layer, side_by_side

State = Mapping[str, Tensor]


def identity(like: Tensor) -> Tensor:
    """The identity matrix with as many columns."""
    return torch.eye(like.shape[1], dtype=torch.float64, device=like.device)


def affine_map(block: State, name: str, width: int) -> Affine:
    """The linear map called `name` with `width` outputs; zero bias where the recipe has none."""
    weight = block[f"{name}.weight"].T
    return Affine(weight, block.get(f"{name}.bias", torch.zeros(width, dtype=torch.float64, device=weight.device)))


@dataclass
class Ffn:
    """A feed-forward network while it is folded: one matrix (up None) or two, and the rest of its weights.

    up: with a gate, [gate | up].
    """

    up: Affine | None
    last: Affine
    beta: Any = None
    slope: Any = None
    around: Affine | None = None

    @classmethod
    def of(cls, architecture: Architecture, config: ModelConfig, block: State) -> Ffn:
        """With 1/alpha in the last matrix, and beta where there is one."""
        if architecture.ffn == "fused":
            ffn = cls(None, affine_map(block, "ffn.fused", config.width))
        else:
            first = ["ffn.gate", "ffn.up"] if architecture.ffn == "swiglu" else ["ffn.up"]
            up = side_by_side([affine_map(block, name, config.ffn_width) for name in first])
            ffn = cls(up, affine_map(block, "ffn.down", config.width))
        if architecture.scaled and architecture.block != "he_hofmann":
            ffn.last = Affine(ffn.last.weight / block["alpha"], ffn.last.bias / block["alpha"])
            ffn.beta = block["beta"]
        return ffn

    def change_first(self, change: Any) -> None:
        if self.up is None:
            self.last = change(self.last)
        else:
            self.up = change(self.up)

    def as_one(self) -> Affine:
        """The one matrix of an FFN without an activation."""
        if self.up is None:
            return self.last
        return Affine(self.up.weight @ self.last.weight, self.up.bias @ self.last.weight + self.last.bias)

    def with_residual(self) -> Affine:
        """A linear feed-forward block with the residual connection around it: x -> x M + c."""
        one = self.as_one()
        return Affine(one.weight + (1.0 if self.beta is None else self.beta) * identity(one.weight), one.bias)

    def into(self, layer: Layer) -> Layer:
        parts = {"fused": self.last} if self.up is None else {"up": self.up, "down": self.last}
        return replace(layer, beta=self.beta, slope=self.slope, around=self.around, **parts)
