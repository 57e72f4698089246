"""Attention cores, with the entropy of every attention row on request.

Shapes: B sequences, H heads, T query and key positions, d_k width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from aero.row_entropy import attention_with_entropy

MATRIX_UP_TO = 256
"""Contexts up to this hold the T x T matrix for the entropy. Blocks of rows are slower below 128 and faster beyond, but
256 is the longest context of the laptop scale, whose kept trainings had the matrix (docs/decisions.md)."""


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: Tensor | None = None, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Causal softmax attention (AERO Eq. 2, with temperature Eq. 11).

    query, key, value: (B, H, T, d_k). temperature: (H, T) divides the logits of its query row, or None for 1;
    ValueError if it is for other heads or positions.
    Returns the output (B, H, T, d_k) and, if `entropy`, the row entropies (B, H, T) in nats (Eq. 12), else None. With
    entropies, memory grows as T squared up to `MATRIX_UP_TO` positions and as T beyond.
    """
    if temperature is not None:
        if temperature.shape != query.shape[1:3]:
            expected, given = (" x ".join(map(str, shape)) for shape in (query.shape[1:3], temperature.shape))
            raise ValueError(f"temperature must hold heads x queries = {expected} values, got {given}")
        # Dividing the query row is the same as dividing its logits, and keeps the fused kernel usable.
        query = query / temperature[..., None]  # (B, H, T, d_k)
    if not entropy:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True), None
    if query.shape[-2] > MATRIX_UP_TO:
        return attention_with_entropy(query, key, value, 1 / math.sqrt(query.shape[-1]))
    probabilities, entropies = softmax_with_entropy(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]))
    return probabilities.to(value.dtype) @ value, entropies


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
