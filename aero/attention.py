"""Attention cores, with the entropy of every attention row on request.

Shapes: B sequences, H heads, T query and key positions, d_k width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from aero.row_entropy import attention_with_entropy, can_fuse, kept_blocks

MATRIX_UP_TO = 256
"""Contexts up to this hold the T x T matrix for the entropy. Blocks of rows are slower below 128 and faster beyond, but
256 is the longest context of the laptop scale, whose kept trainings had the matrix (docs/decisions.md). Where there is
a fused kernel, none holds it."""

KEPT_UP_TO = 512
"""Longer contexts than `MATRIX_UP_TO` and up to this are attended to in blocks that are kept for the backward pass of a
training on a CPU (`aero.row_entropy.kept_blocks`), with and without entropies."""


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: Tensor | None = None, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Causal softmax attention (AERO Eq. 2, with temperature Eq. 11).

    query, key, value: (B, H, T, d_k). temperature: (H, T) divides the logits of its query row, or None for 1;
    ValueError if it is for other heads or positions.
    Returns the output (B, H, T, d_k) and, if `entropy`, the row entropies (B, H, T) in nats (Eq. 12), else None. With
    entropies, memory grows as T squared up to `MATRIX_UP_TO` positions where there is no fused kernel, and up to
    `KEPT_UP_TO` in a training on a CPU; else as T.
    """
    if temperature is not None:
        if temperature.shape != query.shape[1:3]:
            expected, given = (" x ".join(map(str, shape)) for shape in (query.shape[1:3], temperature.shape))
            raise ValueError(f"temperature must hold heads x queries = {expected} values, got {given}")
        # Dividing the query row is the same as dividing its logits, and keeps the fused kernel usable.
        query = query / temperature[..., None]  # (B, H, T, d_k)
    if _keeps_blocks(query, key, value):
        return kept_blocks(query, key, value, 1 / math.sqrt(query.shape[-1]), entropy)
    if not entropy:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True), None
    if query.shape[-2] > MATRIX_UP_TO or can_fuse(query, value):
        return attention_with_entropy(query, key, value, 1 / math.sqrt(query.shape[-1]))
    if query.device.type == "cpu" and query.dtype.itemsize > 2 and not torch.is_autocast_enabled("cpu"):
        return _MatrixAttention.apply(query, key, value)
    dtype = torch.promote_types(query.dtype, torch.float32)  # logits of half precision leave no digits of an entropy
    with torch.autocast(query.device.type, enabled=False):
        logits = query.to(dtype) @ key.to(dtype).transpose(-2, -1) / math.sqrt(query.shape[-1])
    probabilities, entropies = softmax_with_entropy(logits)
    return probabilities.to(value.dtype) @ value, entropies


def _keeps_blocks(*inputs: Tensor) -> bool:
    """Whether a backward pass follows, on a CPU, in float32, for a context that is worth it."""
    return (
        MATRIX_UP_TO < inputs[0].shape[-2] <= KEPT_UP_TO
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in inputs)
        and all(x.device.type == "cpu" and x.dtype == torch.float32 for x in inputs)
        and not torch.is_autocast_enabled("cpu")
    )


class _MatrixAttention(torch.autograd.Function):
    """`softmax_with_entropy` with both products around it, to the last bit, but in place: on a CPU most of its time
    goes into reading and writing T x T matrices. Sequences and heads are one axis within, (B H, T, d_k).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        heads = query.shape[:2]
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))
        logits = (q @ k.mT).div_(math.sqrt(q.shape[-1]))
        future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        probabilities = logits.masked_fill_(future, -torch.inf).softmax(-1)
        log_probabilities = torch.clamp_min(probabilities, torch.finfo(q.dtype).tiny, out=logits).log_()
        ctx.save_for_backward(q, k, v, probabilities, log_probabilities)
        ctx.heads = heads
        entropies = -(probabilities * log_probabilities).sum(-1)
        return (probabilities @ v).unflatten(0, heads), entropies.unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_entropies: Tensor) -> tuple[Tensor, ...]:
        q, k, v, probabilities, log_probabilities = ctx.saved_tensors
        d_output, d_entropies = d_output.flatten(0, 1), d_entropies.flatten(0, 1)[..., None]
        d_probabilities = (d_output @ v.mT).sub_(d_entropies * log_probabilities)
        d_logits = torch._softmax_backward_data(d_probabilities, probabilities, -1, q.dtype)
        d_logits.div_(math.sqrt(q.shape[-1]))
        gradients = d_logits @ k, d_logits.mT @ q, probabilities.mT @ d_output
        return tuple(gradient.unflatten(0, ctx.heads) for gradient in gradients)


class _SoftmaxWithEntropy(torch.autograd.Function):
    """Causal softmax and row entropies with one backward pass for both.

    dH/dp_j = -log p_j up to a constant of the row, which the softmax's own backward removes; so the entropy adds one
    product to it. Autograd over the formula takes four times as long (docs/decisions.md).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)  # (T, T)
        probabilities = logits.masked_fill(future, -torch.inf).softmax(-1)
        # p log p is 0 where p is 0; clamping keeps it so, and exact, without log(p + eps) of Eq. 10, which biases.
        log_probabilities = probabilities.clamp_min(torch.finfo(logits.dtype).tiny).log_()
        ctx.save_for_backward(probabilities, log_probabilities)
        return probabilities, -(probabilities * log_probabilities).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_probabilities: Tensor, d_entropies: Tensor) -> Tensor:
        probabilities, log_probabilities = ctx.saved_tensors
        gradient = d_probabilities - d_entropies[..., None] * log_probabilities
        return torch._softmax_backward_data(gradient, probabilities, -1, probabilities.dtype)


def softmax_with_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Causal softmax of `logits` (B, H, T, T) and the entropy (B, H, T), in nats, of each of its rows (Eq. 12).

    Both in float32 where the logits have fewer bits. First derivatives only.
    """
    return _SoftmaxWithEntropy.apply(logits if logits.dtype.itemsize > 2 else logits.float())


def rotary_table(context: int, dims: int) -> Tensor:
    """cos and sin (2, T, dims / 2) of the rotary angles i * 10000^(-2k / dims), position i, pair k."""
    frequencies = 10_000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding of the first r dimensions of x (B, H, T, d_k); `table` (2, T' >= T, r / 2).

    Dimension k turns with dimension k + r / 2, GPT-NeoX's layout; the remaining d_k - r pass unchanged.
    """
    half = table.shape[-1]
    cos, sin = table[:, : x.shape[-2]].unbind(0)  # (T, r / 2)
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


def shaped_attention(
    query: Tensor, key: Tensor, value: Tensor, a: Tensor, b: Tensor, g: Tensor, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Shaped attention of He & Hofmann (2024): (a_h I + b_h softmax(Q K^T / sqrt(d_k)) - g_h C) V.

    C[i, j] = 1/i for j <= i, the causal mean. a, b, g: (H,). Other shapes and the return value as in
    `softmax_attention`. The entropy is that of the plain softmax, as the original code reports it.
    """
    attended, entropies = softmax_attention(query, key, value, entropy=entropy)
    positions = torch.arange(1, value.shape[-2] + 1, device=value.device, dtype=value.dtype)
    causal_mean = value.cumsum(-2) / positions[:, None]  # (B, H, T, d_k) = C V without the T x T matrix
    a, b, g = (gain[:, None, None] for gain in (a, b, g))
    return a * value + b * attended - g * causal_mean, entropies


# Attention cores of `variance_sensitivity` (its symbols: N positions, D width of a head, Z = Q K^T logits, P the
# attention probabilities, W the window). Leading dimensions are free: (B, H) in a decoder, stacked models elsewhere.

GAIN_LIMIT = 1.0
"""Weight clipping keeps gamma in [-GAIN_LIMIT, GAIN_LIMIT]. The paper prints no bound (docs/decisions.md)."""
GAIN_GRADIENT_LIMIT = 1.0
"""Gradient clipping keeps the norm of the gradient of each gamma at most this. The paper prints no bound either."""
KERNEL_EPSILON = 1e-6
"""Added to a kernel's denominator: a query with phi(Q_i) = 0 attends to nothing instead of being 0 / 0."""

Probabilities = Callable[[Tensor, Tensor, float, Tensor | None], Tensor]
GainRule = Literal["free", "fixed", "gradient_clip", "weight_clip"]


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

    Fewer queries than keys are those of the last positions.
    """
    positions = torch.arange(key.shape[-2], device=key.device)
    near = (positions[-query.shape[-2] :, None] - positions).abs() <= window
    return softmax_core(query, key, scale, near if allowed is None else near & allowed)


@dataclass(frozen=True)
class Kernel:
    """P = phi(Q) phi(K)^T, its rows divided by their sums (Eq. 5) plus `epsilon`, for phi = `feature_map` (>= 0).

    A row without any similarity (ReLU: a query whose components are all negative) attends to nothing, as in the linear
    attention of Katharopoulos et al. (2020) and in cosFormer. A scale of the logits cancels.
    """

    feature_map: Callable[[Tensor], Tensor]
    epsilon: float = KERNEL_EPSILON

    def __call__(self, query: Tensor, key: Tensor, scale: float = 1.0, allowed: Tensor | None = None) -> Tensor:
        similarity = self.feature_map(_full_precision(query)) @ self.feature_map(_full_precision(key)).transpose(-2, -1)
        if allowed is not None:
            similarity = similarity * allowed
        return similarity / (similarity.sum(-1, keepdim=True) + self.epsilon)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """P V (..., N, D) without P, where every query sees every key: phi(Q) (phi(K)^T V), in time of N D^2."""
        features, keys = self.feature_map(_full_precision(query)), self.feature_map(_full_precision(key))
        sums = features @ keys.sum(-2)[..., None]  # (..., N, 1), of the rows of phi(Q) phi(K)^T
        return (features @ (keys.transpose(-2, -1) @ value.to(keys.dtype)) / (sums + self.epsilon)).to(value.dtype)


def elu_plus_one(x: Tensor) -> Tensor:
    """ELU(x) + 1, the positive feature map of Katharopoulos et al. (2020)."""
    return F.elu(x) + 1


def performer_relu(x: Tensor) -> Tensor:
    """ReLU(x) + 0.001, the features of Choromanski et al.'s Performer: no query is without similarity."""
    return F.relu(x) + 1e-3


@dataclass(frozen=True)
class Core:
    """How queries and keys become attention probabilities.

    title: the paper's name. probabilities: (query, key, scale, allowed) -> P (..., N, N), see `softmax_core`.
    gains: queries and keys pass a LayerNorm first (QK-LayerNorm, Eq. 2, without biases) whose gains gamma_q, gamma_k
        are trained freely, fixed at 1, trained with clipped gradients or clipped after every step (Appendix D).
    reparametrised: the weights of Q, K and V are gamma W / sigma(W) with a trained scalar gamma, see `sigma_reparam`.
    """

    title: str
    probabilities: Probabilities
    gains: GainRule | None = None
    reparametrised: bool = False


CORES: dict[str, Core] = {
    "softmax": Core("Softmax", softmax_core),
    "window_softmax": Core("Window Softmax", window_softmax_core),
    "sigma_reparam": Core("σReparam", softmax_core, reparametrised=True),
    "sigmoid": Core("Sigmoid Kernel", Kernel(torch.sigmoid)),
    "elu": Core("ELU+1 Kernel", Kernel(elu_plus_one)),
    "qk_layernorm": Core("QK-LayerNorm", softmax_core, gains="weight_clip"),
    "relu": Core("ReLU Kernel", Kernel(F.relu)),
    # Not rows of the paper's Table 1: Appendix D's other gains, and the other usual form of the ReLU kernel.
    "qk_layernorm_free": Core("QK-LayerNorm, γ free", softmax_core, gains="free"),
    "qk_layernorm_fixed": Core("QK-LayerNorm, γ = 1", softmax_core, gains="fixed"),
    "qk_layernorm_gradient_clip": Core("QK-LayerNorm, gradient of γ clipped", softmax_core, gains="gradient_clip"),
    "relu_performer": Core("ReLU Kernel, φ + ε", Kernel(performer_relu, epsilon=0.0)),
}
"""Every attention core: a new one is one function and one line here."""


def core_named(name: str) -> Core:
    """The core called `name`; ValueError naming the known ones."""
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
    """P V (..., N, D) and P (..., N, N) of one attention core; `sigma_reparam` concerns weights and is the caller's.

    gains: gamma_q, gamma_k, each broadcastable to (..., N, D), for a core with gains; None stands for 1.
    scale: of the logits, 1 in the paper's small model, 1 / sqrt(d_k) in a decoder. allowed: `causal_mask(N)` in one.
    """
    query, key = normalise(core, query, key, gains)
    probabilities = core.probabilities(query, key, scale, allowed)
    return probabilities.to(value.dtype) @ value, probabilities


def attended(
    core: Core, query: Tensor, key: Tensor, value: Tensor, gains: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """P V (..., N, D) as `attend` gives it without a mask, of a kernel without its P (N x N)."""
    if isinstance(core.probabilities, Kernel):
        return core.probabilities.attended(*normalise(core, query, key, gains), value)
    return attend(core, query, key, value, gains)[0]


def normalise(
    core: Core, query: Tensor, key: Tensor, gains: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Query and key as their product is taken: gamma LN(x) for a core with gains (Eq. 2), unchanged for others."""
    if core.gains is not None:
        query, key = (F.layer_norm(x, x.shape[-1:]) for x in (query, key))
        if gains is not None:
            query, key = query * gains[0], key * gains[1]
    return query, key


def causal_mask(positions: int, device: torch.device | None = None) -> Tensor:
    """(N, N), True where a query may see a key: at its own position and before it."""
    return torch.ones(positions, positions, dtype=torch.bool, device=device).tril()


def clip_gain_gradient(gradient: Tensor) -> Tensor:
    """The gradient of a gain gamma (..., D), each vector of it scaled down to norm GAIN_GRADIENT_LIMIT if longer."""
    norm = gradient.norm(dim=-1, keepdim=True)
    return gradient * (GAIN_GRADIENT_LIMIT / norm.clamp_min(GAIN_GRADIENT_LIMIT))


@torch.no_grad()
def clip_gain(gain: Tensor) -> None:
    """Weight clipping of a gain gamma, in place, after an optimiser's step."""
    gain.clamp_(-GAIN_LIMIT, GAIN_LIMIT)


def sigma_reparam(weight: Tensor, gain: Tensor, vector: Tensor, iterations: int = 1) -> tuple[Tensor, Tensor]:
    """gamma W / sigma(W) and the next right singular vector: sigmaReparam of Zhai et al. (2023).

    weight: (..., m, n). gain: gamma, (...), 1 at initialisation. vector: (..., n), of any length; carried from step to
    step. sigma is estimated by power iteration from it; the gradient of sigma holds both singular vectors fixed.
    """
    with torch.no_grad():
        for _ in range(iterations):
            vector = F.normalize(vector, dim=-1)
            vector = F.normalize((weight.mT @ (weight @ vector[..., None]))[..., 0], dim=-1)
        left = F.normalize((weight @ vector[..., None])[..., 0], dim=-1)
    sigma = (left[..., None, :] @ weight @ vector[..., None])[..., 0, 0]
    return weight * (gain / sigma)[..., None, None], vector


def row_entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of every row (Eq. 6): (..., N, N) -> (..., N)."""
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


def frobenius_norm(probabilities: Tensor) -> Tensor:
    """||P||_F of every attention matrix, in [1, sqrt(N)] if its rows sum to 1: (..., N, N) -> (...)."""
    return torch.linalg.matrix_norm(probabilities)


def _full_precision(x: Tensor) -> Tensor:
    """Probabilities are made in float32 at least, also under autocast."""
    return x if x.dtype.itemsize > 2 else x.float()
