"""Attention kernels compared by `variance_sensitivity`: how queries and keys become attention probabilities.

`CORES` is the registry: a new kernel is one function and one line there.

Shapes, in the symbols of the paper: N positions, D width of a head. Leading dimensions are free: (B, H) in a decoder,
stacked models elsewhere. Z = Q K^T are the logits, P (..., N, N) the attention probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

GAIN_LIMIT = 1.0
"""Weight clipping keeps gamma in [-GAIN_LIMIT, GAIN_LIMIT]. The paper states no bound."""
GAIN_GRADIENT_LIMIT = 1.0
"""Gradient clipping keeps the norm of the gradient of each gamma at most this. The paper states no bound."""

Probabilities = Callable[[Tensor, Tensor, float, Tensor | None], Tensor]


def softmax_core(query: Tensor, key: Tensor, scale: float = 1.0, allowed: Tensor | None = None) -> Tensor:
    """P (..., N, N) of softmax attention (`variance_sensitivity` Eq. 1), logits multiplied by `scale`.

    query, key: (..., N, D). allowed: (N, N), True where a query may see a key, or None for everywhere.
    """
    logits = _full_precision((query * scale) @ key.transpose(-2, -1))
    return (logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)).softmax(-1)


def window_softmax_core(
    query: Tensor, key: Tensor, scale: float = 1.0, allowed: Tensor | None = None, window: int = 8
) -> Tensor:
    """P of softmax attention from position i to keys i - W ... i + W only (section 3.1), W = `window`.

    If there are fewer queries than keys, the queries are at the last positions.
    """
    positions = torch.arange(key.shape[-2], device=key.device)  # (N)
    near = (positions[-query.shape[-2] :, None] - positions).abs() <= window  # (queries, N)
    return softmax_core(query, key, scale, near if allowed is None else near & allowed)


@dataclass(frozen=True)
class Kernel:
    """P = phi(Q) phi(K)^T, each row divided by its sum (Eq. 5) plus `epsilon`, for phi = `feature_map` (>= 0).

    A query with phi(Q_i) = 0 (ReLU: all components negative) attends to nothing, as in the linear attention of
    Katharopoulos et al. (2020) and in cosFormer. The scale of the logits cancels and is ignored.
    """

    feature_map: Callable[[Tensor], Tensor]
    epsilon: float = 1e-6

    def __call__(self, query: Tensor, key: Tensor, scale: float = 1.0, allowed: Tensor | None = None) -> Tensor:
        similarity = self.feature_map(_full_precision(query)) @ self.feature_map(_full_precision(key)).transpose(-2, -1)
        if allowed is not None:
            similarity = similarity * allowed
        return similarity / (similarity.sum(-1, keepdim=True) + self.epsilon)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """P V (..., N, D) without forming P, if every query sees every key: phi(Q) (phi(K)^T V), time O(N D^2)."""
        features, keys = self.feature_map(_full_precision(query)), self.feature_map(_full_precision(key))
        sums = features @ keys.sum(-2)[..., None]  # (..., N, 1), row sums of phi(Q) phi(K)^T
        return (features @ (keys.transpose(-2, -1) @ value.to(keys.dtype)) / (sums + self.epsilon)).to(value.dtype)


def elu_plus_one(x: Tensor) -> Tensor:
    """ELU(x) + 1, the positive feature map of Katharopoulos et al. (2020)."""
    return F.elu(x) + 1


def performer_relu(x: Tensor) -> Tensor:
    """ReLU(x) + 0.001, the features of Choromanski et al.'s Performer, which are never 0."""
    return F.relu(x) + 1e-3


@dataclass(frozen=True)
class Core:
    """How queries and keys become attention probabilities.

    title: the paper's name. probabilities: (query, key, scale, allowed) -> P (..., N, N), see `softmax_core`.
    gains: if not None, queries and keys pass a LayerNorm first (QK-LayerNorm, Eq. 2, without biases). Its gains
        gamma_q, gamma_k are trained freely, fixed at 1, trained with clipped gradients, or clipped after every step
        (Appendix D).
    reparametrised: the weights of Q, K and V are gamma W / sigma(W) with a trained scalar gamma, see `sigma_reparam`.
    """

    title: str
    probabilities: Probabilities
    gains: Literal["free", "fixed", "gradient_clip", "weight_clip"] | None = None
    reparametrised: bool = False


CORES: dict[str, Core] = {
    "softmax": Core("Softmax", softmax_core),
    "window_softmax": Core("Window Softmax", window_softmax_core),
    "sigma_reparam": Core("σReparam", softmax_core, reparametrised=True),
    "sigmoid": Core("Sigmoid Kernel", Kernel(torch.sigmoid)),
    "elu": Core("ELU+1 Kernel", Kernel(elu_plus_one)),
    "qk_layernorm": Core("QK-LayerNorm", softmax_core, gains="weight_clip"),
    "relu": Core("ReLU Kernel", Kernel(F.relu)),
    # Not in the paper's Table 1: the other gains of Appendix D, and the other common form of the ReLU kernel.
    "qk_layernorm_free": Core("QK-LayerNorm, γ free", softmax_core, gains="free"),
    "qk_layernorm_fixed": Core("QK-LayerNorm, γ = 1", softmax_core, gains="fixed"),
    "qk_layernorm_gradient_clip": Core("QK-LayerNorm, gradient of γ clipped", softmax_core, gains="gradient_clip"),
    "relu_performer": Core("ReLU Kernel, φ + ε", Kernel(performer_relu, epsilon=0.0)),
}
"""All attention cores by the name that `Core(...)` of `aero.architecture` uses."""


def core_named(name: str) -> Core:
    """The core called `name`; ValueError listing the known names if there is none."""
    if name not in CORES:
        raise ValueError(f"unknown attention core {name!r}; known: {', '.join(CORES)}")
    return CORES[name]


def attend(
    core: Core,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gains: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """P V (..., N, D) and P (..., N, N) of one attention core. The caller applies `sigma_reparam` to its weights.

    gains: gamma_q, gamma_k, each broadcastable to (..., N, D), for a core with gains; None means 1.
    scale: factor of the logits: 1 in the paper's small model, 1 / sqrt(d_k) in a decoder.
    allowed: (N, N), True where a query may see a key (`causal_mask(N)` in a decoder); None means everywhere.
    """
    query, key = normalise(core, query, key, gains)
    probabilities = core.probabilities(query, key, scale, allowed)
    return probabilities.to(value.dtype) @ value, probabilities


def attended(
    core: Core, query: Tensor, key: Tensor, value: Tensor, gains: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """P V (..., N, D) as in `attend` without a mask; for a kernel, without forming P (N x N)."""
    if isinstance(core.probabilities, Kernel):
        return core.probabilities.attended(*normalise(core, query, key, gains), value)
    return attend(core, query, key, value, gains)[0]


def normalise(
    core: Core, query: Tensor, key: Tensor, gains: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Query and key before their dot product: gamma LN(x) for a core with gains (Eq. 2), else unchanged."""
    if core.gains is not None:
        query, key = (F.layer_norm(x, x.shape[-1:]) for x in (query, key))
        if gains is not None:
            query, key = query * gains[0], key * gains[1]
    return query, key


def causal_mask(positions: int, device: torch.device | None = None) -> Tensor:
    """(N, N), True where a query may see a key: at its own position or before it."""
    return torch.ones(positions, positions, dtype=torch.bool, device=device).tril()


def clip_gain_gradient(gradient: Tensor) -> Tensor:
    """The gradient of a gain gamma (..., D), each vector scaled down to norm GAIN_GRADIENT_LIMIT if it is longer."""
    norm = gradient.norm(dim=-1, keepdim=True)
    return gradient * (GAIN_GRADIENT_LIMIT / norm.clamp_min(GAIN_GRADIENT_LIMIT))


@torch.no_grad()
def clip_gain(gain: Tensor) -> None:
    """Clip a gain gamma in place, after a step of the optimiser."""
    gain.clamp_(-GAIN_LIMIT, GAIN_LIMIT)


def sigma_reparam(weight: Tensor, gain: Tensor, vector: Tensor, iterations: int = 1) -> tuple[Tensor, Tensor]:
    """gamma W / sigma(W) and the next right singular vector: sigmaReparam of Zhai et al. (2023).

    weight: (..., m, n). gain: gamma, (...), 1 at initialisation. vector: (..., n), of any norm, carried from step to
    step. sigma, the largest singular value, is estimated by power iteration from `vector`; its gradient treats both
    singular vectors as constants.
    """
    with torch.no_grad():
        for _ in range(iterations):
            vector = F.normalize(vector, dim=-1)
            vector = F.normalize((weight.mT @ (weight @ vector[..., None]))[..., 0], dim=-1)  # (..., n)
        left = F.normalize((weight @ vector[..., None])[..., 0], dim=-1)  # (..., m)
    sigma = (left[..., None, :] @ weight @ vector[..., None])[..., 0, 0]  # (...)
    return weight * (gain / sigma)[..., None, None], vector


def row_entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of every row (Eq. 6): (..., N, N) -> (..., N)."""
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


def _full_precision(x: Tensor) -> Tensor:
    """`x` in float32 at least: probabilities are computed in full precision, also under autocast."""
    return x if x.dtype.itemsize > 2 else x.float()
