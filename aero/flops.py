"""FLOPs and nonlinear-operation counts by the papers' formulas (AERO Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aero.architecture import ACTIVATIONS, Architecture

if TYPE_CHECKING:
    from aero.model import ModelConfig
    from aero.schema import ModelParameters


@dataclass(frozen=True)
class Sizes:
    """Sizes of a published model; its feed-forward network is four times as wide as the model."""

    layers: int
    heads: int
    width: int

    @property
    def ffn_width(self) -> int:
        return 4 * self.width


GPT2 = {
    "small": Sizes(12, 12, 768),
    "medium": Sizes(24, 16, 1024),
    "large": Sizes(36, 20, 1280),
    "XL": Sizes(48, 25, 1600),
}
"""Radford et al. (2019), Table 2, with the heads of the released models."""

PYTHIA = {
    "70M": Sizes(6, 8, 512),
    "160M": Sizes(12, 12, 768),
    "410M": Sizes(24, 16, 1024),
    "1B": Sizes(16, 8, 2048),
    "1.4B": Sizes(24, 16, 2048),
    "2.8B": Sizes(32, 32, 2560),
    "6.9B": Sizes(32, 32, 4096),
    "12B": Sizes(36, 40, 5120),
}
"""Biderman et al. (2023), Table 1."""


@dataclass(frozen=True)
class NonlinearOperation:
    """`count` applications of one nonlinear function to a (rows, columns) matrix, e.g. SM:144 x R^(128x128)."""

    name: str
    count: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.name}:{self.count}×R^{{{self.rows}×{self.columns}}}"


@dataclass(frozen=True)
class Count:
    """FLOPs of one forward pass of the whole stack over `context` tokens, and its nonlinear operations."""

    ffn: int
    attention: int
    nonlinear: tuple[NonlinearOperation, ...]

    @property
    def ffn_share(self) -> float:
        """Fraction of the FLOPs that are the feed-forward networks'."""
        return self.ffn / (self.ffn + self.attention)


def count(architecture: Architecture, model: Sizes | ModelConfig | ModelParameters, context: int) -> Count:
    """The papers' counts: FFN 16 d^2 (fused 2 d^2), attention 8 d^2 + 3 T d + d, per token and layer.

    For the He & Hofmann rows attention is 4 d^2 + 2 T d, which reproduces the published figures: value and output
    projections are identities there. As in the papers, the final LayerNorm and rotary positions are not counted;
    weight norms are folded. Other attention cores than the softmax count the same FLOPs and no nonlinear operation.
    """
    layers, width = model.layers, model.width
    with_ffn = architecture.ffn_layers(layers)
    matrices = 3 if architecture.ffn == "swiglu" else 2
    ffn_per_token = 2 * width * width if architecture.ffn == "fused" else 2 * matrices * width * model.ffn_width
    if architecture.block == "he_hofmann":
        attention_per_token = 4 * width * width + 2 * context * width
        norms = 1
    else:
        attention_per_token = 8 * width * width + 3 * context * width + width
        norms = 2 * layers if architecture.layer_norm else 0
    nonlinear = []
    if architecture.core == "softmax":
        nonlinear.append(NonlinearOperation("SM", layers * model.heads, context, context))
    if norms:
        nonlinear.append(NonlinearOperation("RMS" if architecture.rms_norm else "LN", norms, context, width))
    if architecture.ffn in ACTIVATIONS:
        nonlinear.append(NonlinearOperation(ACTIVATIONS[architecture.ffn], with_ffn, context, model.ffn_width))
    return Count(
        ffn=with_ffn * context * ffn_per_token,
        attention=layers * context * attention_per_token,
        nonlinear=tuple(nonlinear),
    )


def crossover(width: int) -> float:
    """The context length at which attention and feed-forward network have equally many FLOPs, (8 d - 1) / 3 tokens.

    16 d^2 = 8 d^2 + 3 T d + d; the paper's 8 d / 3 neglects the last term (AERO Eq. 13). For unfused feed-forward
    networks of width 4 d.
    """
    return (8 * width - 1) / 3
