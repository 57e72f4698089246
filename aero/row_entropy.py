"""Softmax attention with the entropy of every row, in memory that grows as T instead of T squared.

    H_i = -sum_j p_ij log p_ij

`attention_with_entropy` computes blocks of queries, and computes them again for the gradient; under any mask.
`kept_blocks` saves the probabilities of every block (with entropies also their logarithms) for the gradient instead,
which is faster but takes memory O(T^2).

Shapes: B sequences, H heads, T queries, S keys, d_k and d_v width of a key and a value of one head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Mask = Callable[[int, int], Tensor]
"""(start, stop) -> keys that the queries from `start` to before `stop` see: (B or 1, H or 1, stop - start, S), bool."""

ROWS = 64
"""Queries in a block of `attention_with_entropy` and `kept_blocks`."""


def attention_with_entropy(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Mask | None = None
) -> tuple[Tensor, Tensor]:
    """Attention output (B, H, T, d_v) and row entropies (B, H, T), nats, in O(T) memory; first derivatives only.

    query: (B, H, T, d_k), key: (B, H, S, d_k), value: (B, H, S, d_v). mask: None is the causal mask, for T = S.
    Half-precision inputs are computed in float32; the output then has the type of `value`, the entropies float32.
    A row without visible keys has output 0 and entropy 0. A row with a NaN or +inf logit, or with only -inf, has
    entropy NaN, and the gradients of its head (of no other head) are not finite.

    Errors of float32 against float64 at d_k = 64: entropies up to 5e-7 of the largest logit, nats (1e-5 at 20, 1e-4 at
    200); output and gradients up to 2e-7 of the largest logit times their own largest value.
    """
    if mask is None and query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"without a mask there must be as many queries as keys, got {query.shape[-2]} and {key.shape[-2]}"
        )
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        inputs = (query.to(dtype), key.to(dtype), value.to(dtype))
        output, entropies = _Blocks.apply(*inputs, scale, mask, False, True)
    return output.to(value.dtype), entropies


def kept_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Causal attention output and entropies (B, H, T) or None, with saved blocks; first derivatives only.

    query, key, value: (B, H, T, d). On a CPU it is faster than PyTorch's attention from about 256 positions on, which
    computes its logits again in the backward pass.
    """
    return _Blocks.apply(query, key, value, scale, None, True, entropy)


class _Blocks(torch.autograd.Function):
    """The probabilities of one block at a time, saved (`keep`, causal mask only) or computed again for the gradient.

    Inside, sequences and heads are one axis: (B H, T, d). Matrix multiplications then need no copy of a block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        mask: Mask | None,
        keep: bool,
        entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.scale, ctx.mask, heads = scale, mask, query.shape[:2]
        q, k, v = query.flatten(0, 1) * scale, key.flatten(0, 1), value.flatten(0, 1)  # (B H, T or S, d)
        output = q.new_empty(*q.shape[:2], v.shape[-1])  # (B H, T, d_v)
        entropies = q.new_empty(q.shape[:2]) if entropy else None  # (B H, T)
        kept = []
        for rows, keys, p in _probabilities(q, k, heads, mask):
            output[:, rows] = p @ v[:, keys]
            logarithms = _log(p) if entropies is not None else None
            if entropies is not None:
                entropies[:, rows] = -(p * logarithms).sum(-1)
            kept += [p, logarithms] if keep else []
        ctx.save_for_backward(query, key, value, *kept)
        return output.unflatten(0, heads), None if entropies is None else entropies.unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        heads = query.shape[:2]
        q, k, v = query.flatten(0, 1) * ctx.scale, key.flatten(0, 1), value.flatten(0, 1)
        d_output = d_output.flatten(0, 1)
        d_query, d_key, d_value = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
        with torch.autocast(q.device.type, enabled=False):  # backward() may be called inside one
            blocks = zip(kept[::2], kept[1::2], strict=True) if kept else _probabilities(q, k, heads, ctx.mask)
            for number, block in enumerate(blocks):
                if kept:
                    p, logarithms = block
                    rows, keys = slice(number * ROWS, p.shape[-1]), slice(0, p.shape[-1])
                else:
                    rows, keys, p = block
                    logarithms = _log(p)
                # dH/dp_j = -log p_j up to a constant of the row, which the softmax's backward removes.
                d_p = d_output[:, rows] @ v[:, keys].mT
                if logarithms is not None:
                    d_p.addcmul_(logarithms, d_entropies.flatten(0, 1)[:, rows, None], value=-1)
                d_value[:, keys].baddbmm_(p.mT, d_output[:, rows])
                d_logits = torch._softmax_backward_data(d_p, p, -1, p.dtype)
                d_query[:, rows] = d_logits @ k[:, keys]
                d_key[:, keys].baddbmm_(d_logits.mT, q[:, rows])
        d_query.mul_(ctx.scale)
        return *(gradient.unflatten(0, heads) for gradient in (d_query, d_key, d_value)), None, None, None, None


def _log(p: Tensor) -> Tensor:
    """log p, clamped to be finite: p log p is then 0 where p is 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_()


def _probabilities(
    query: Tensor, key: Tensor, heads: Sequence[int], mask: Mask | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """For every block: its queries, the range of keys they see, and p (B H, rows, keys).

    query: scaled, (B H, T, d_k). heads: (B, H), the axes that a mask distinguishes.
    """
    for start in range(0, query.shape[1], ROWS):
        rows = slice(start, min(start + ROWS, query.shape[1]))
        empty = None
        if mask is None:
            keys = slice(0, rows.stop)
            logits = query[:, rows] @ key[:, keys].mT
            future = torch.ones(2 * (rows.stop - start,), dtype=torch.bool, device=query.device).triu(1)
            logits[..., start:].masked_fill_(future, -torch.inf)  # all keys before the block are seen
        else:
            seen = mask(start, rows.stop)
            some = seen.flatten(0, -2).any(0).nonzero()  # keys that any of these queries sees
            keys = slice(int(some[0]), int(some[-1]) + 1) if len(some) else slice(0, 1)
            hidden = ~seen[..., keys]
            empty = hidden.all(-1, keepdim=True)
            logits = query[:, rows] @ key[:, keys].mT
            logits.unflatten(0, heads).masked_fill_(hidden, -torch.inf)
        p = logits.softmax(-1)
        if empty is not None:
            p.unflatten(0, heads).masked_fill_(empty, 0.0)
        yield rows, keys, p
