"""Causal softmax attention, with the entropy of every attention row on request.

Shapes: B sequences, H heads, T query and key positions, d_k width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from aero.row_entropy import attention_with_entropy, kept_blocks

MATRIX_UP_TO = 256
"""Up to this context length, entropies are computed from the T x T matrix. The committed
trainings of the laptop scale (T <= 256) used the matrix; blocks of rows would change their last bits."""

KEPT_UP_TO = 512
"""From `MATRIX_UP_TO` to this context length, training on a CPU uses `aero.row_entropy.kept_blocks`, which is faster
than PyTorch's attention there, with and without entropies."""


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: Tensor | None = None, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Causal softmax attention (AERO Eq. 2, with temperature Eq. 11).

    query, key, value: (B, H, T, d_k). temperature: (H, T), divides the logits of its query row; None means 1.
    Returns the output (B, H, T, d_k) and, if `entropy`, the row entropies (B, H, T) in nats (Eq. 12), else None.
    Memory for entropies grows as T unless the T x T matrix is used (`MATRIX_UP_TO`, `KEPT_UP_TO`).
    Raises ValueError if the temperature has another number of heads or positions.
    """
    if temperature is not None:
        if temperature.shape != query.shape[1:3]:
            expected, given = (" x ".join(map(str, shape)) for shape in (query.shape[1:3], temperature.shape))
            raise ValueError(f"temperature must hold heads x queries = {expected} values, got {given}")
        # Dividing the query row is the same as dividing its logits, and PyTorch's fused attention stays usable.
        query = query / temperature[..., None]  # (B, H, T, d_k)
    if _keeps_blocks(query, key, value):
        return kept_blocks(query, key, value, 1 / math.sqrt(query.shape[-1]), entropy)
    if not entropy:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True), None
    if query.shape[-2] > MATRIX_UP_TO:
        return attention_with_entropy(query, key, value, 1 / math.sqrt(query.shape[-1]))
    return matrix_attention(query, key, value)


def _keeps_blocks(*inputs: Tensor) -> bool:
    """Whether this is training on a CPU in float32, at a context length for which `kept_blocks` is the fastest."""
    return (
        MATRIX_UP_TO < inputs[0].shape[-2] <= KEPT_UP_TO
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in inputs)
        and all(x.device.type == "cpu" and x.dtype == torch.float32 for x in inputs)
        and not torch.is_autocast_enabled("cpu")
    )


def matrix_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention output (B, H, T, d_k) and row entropies (B, H, T), nats, from the T x T matrices.

    Computed in float32 where the inputs have fewer bits: half-precision logits leave no digits of an entropy. First
    derivatives only.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        output, entropies = _MatrixAttention.apply(query.to(dtype), key.to(dtype), value.to(dtype))
    return output.to(value.dtype), entropies


class _MatrixAttention(torch.autograd.Function):
    """One backward pass for output and entropies, in place: most of the time on a CPU goes into reading and writing
    T x T matrices.

    dH/dp_j = -log p_j up to a constant of the row, which the softmax's own backward removes. So the entropy adds one
    multiplication to it; autograd over the formula takes four times as long.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        heads = query.shape[:2]  # (B, H)
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))  # (B H, T, d_k)
        logits = (q @ k.mT).div_(math.sqrt(q.shape[-1]))  # (B H, T, T)
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)  # (T, T)
        probabilities = logits.masked_fill_(future, -torch.inf).softmax(-1)  # (B H, T, T)
        # p log p is 0 where p is 0. Clamping gives exactly that; the paper's log(p + eps) of Eq. 10 is biased.
        log_probabilities = torch.clamp_min(probabilities, torch.finfo(q.dtype).tiny, out=logits).log_()
        ctx.save_for_backward(q, k, v, probabilities, log_probabilities)
        ctx.heads = heads
        entropies = -(probabilities * log_probabilities).sum(-1)  # (B H, T)
        return (probabilities @ v).unflatten(0, heads), entropies.unflatten(0, heads)  # (B, H, T, d_k), (B, H, T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_entropies: Tensor) -> tuple[Tensor, ...]:
        q, k, v, probabilities, log_probabilities = ctx.saved_tensors
        d_output, d_entropies = d_output.flatten(0, 1), d_entropies.flatten(0, 1)[..., None]  # (B H, T, d_k or 1)
        with torch.autocast(q.device.type, enabled=False):  # backward() may be called inside one
            d_probabilities = (d_output @ v.mT).sub_(d_entropies * log_probabilities)  # (B H, T, T)
            d_logits = torch._softmax_backward_data(d_probabilities, probabilities, -1, q.dtype)
            d_logits.div_(math.sqrt(q.shape[-1]))
            gradients = d_logits @ k, d_logits.mT @ q, probabilities.mT @ d_output  # (B H, T, d_k) each
        return tuple(gradient.unflatten(0, ctx.heads) for gradient in gradients)  # (B, H, T, d_k) each


def shaped_attention(
    query: Tensor, key: Tensor, value: Tensor, a: Tensor, b: Tensor, g: Tensor, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Shaped attention of He & Hofmann (2024): (a_h I + b_h softmax(Q K^T / sqrt(d_k)) - g_h C) V.

    C[i, j] = 1/i for j <= i, the causal mean. a, b, g: (H,). Other shapes and the return value as in
    `softmax_attention`. The entropy is that of the plain softmax, as in the original code.
    """
    attended, entropies = softmax_attention(query, key, value, entropy=entropy)
    positions = torch.arange(1, value.shape[-2] + 1, device=value.device, dtype=value.dtype)  # (T)
    causal_mean = value.cumsum(-2) / positions[:, None]  # (B, H, T, d_k) = C V without the T x T matrix
    a, b, g = (gain[:, None, None] for gain in (a, b, g))  # (H, 1, 1)
    return a * value + b * attended - g * causal_mean, entropies


def rotary_table(context: int, dims: int, base: float = 10_000.0) -> Tensor:
    """cos and sin (2, T, dims / 2) of the rotary angles i * base^(-2k / dims), position i, pair k."""
    frequencies = base ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)  # (dims / 2)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies  # (T, dims / 2)
    return torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding of the first r dimensions of x (B, H, T, d_k); `table` (2, T' >= T, r / 2).

    Dimension k is rotated with dimension k + r / 2 (GPT-NeoX's layout); the other d_k - r pass unchanged.
    """
    half = table.shape[-1]
    cos, sin = table[:, : x.shape[-2]].unbind(0)  # (T, r / 2)
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)  # (B, H, T, r / 2) twice, the rest
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)
