"""Softmax attention with the entropy of every row, in memory that grows as T instead of T squared.

    H_i = -sum_j p_ij log p_ij = lse_i - sum_j p_ij z_ij,    sum_j p_ij z_ij = scale q_i . (sum_j p_ij k_j)

`blocked` computes blocks of queries, and computes them again for the gradient; on any device and under any mask.
`kept_blocks` saves the probabilities of every block (with entropies also their logarithms) for the gradient instead,
which is faster but takes memory O(T^2). `fused` takes both sums from a fused CUDA kernel, which averages the keys like
values.

Shapes: B sequences, H heads, T queries, S keys, d_k and d_v width of a key and a value of one head.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Mask = Callable[[int, int], Tensor]
"""(start, stop) -> keys that the queries from `start` to before `stop` see: (B or 1, H or 1, stop - start, S), bool."""

_TRITON = importlib.util.find_spec("triton") is not None

ROWS = 64
"""Queries in a block of `blocked` and `kept_blocks`."""

FUSED_WIDTHS = range(16, 257)
"""Head widths that FlexAttention's kernels support."""

FUSED_BLOCK = 128
"""Positions of a block of FlexAttention's mask."""

JOINT_WIDTH = 128
"""Up to this d_v + d_k, `fused` averages values and keys in one pass; beyond it, in two passes of normal width, since
their tiles would not fit into a GPU's shared memory."""

_compiling = True
"""Whether torch.compile may be used; see `without_compiling`."""


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Inside, nothing is fused: FlexAttention is a fused kernel only if compiled, otherwise it makes T x T matrices."""
    global _compiling
    before, _compiling = _compiling, False
    try:
        yield
    finally:
        _compiling = before


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
        if mask is None and can_fuse(query, value):
            output, entropies = fused(*inputs, scale)
        else:
            output, entropies = blocked(*inputs, scale, mask)
    return output.to(value.dtype), entropies


def blocked(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """`attention_with_entropy` in blocks of `ROWS` queries, as -sum p log p, without cancellation."""
    return _Blocks.apply(query, key, value, scale, mask, False, True)


def kept_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Causal attention output and entropies (B, H, T) or None, as `blocked`, with saved blocks; first derivatives only.

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


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    attend: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """`attention_with_entropy` under the causal mask, through a fused kernel.

    attend: (query, key, values, scale) -> averaged values and log-sum-exp (B, H, T); default FlexAttention.
    The entropy is a difference of two numbers of the size of the logits, so its error is up to 5e-7 of the largest
    logit: 2e-6 at 5, 1e-5 at 20, 1e-4 at 200 (a fifth of that for `blocked`). A negative result is clamped to 0, with
    its gradient kept. The gradient contains no such difference and is as exact as that of `blocked`.

    Keys that are not finite are left out of the mean key, since 0 x NaN is NaN also for rows that do not see them; the
    log-sum-exp shows which rows see them.

    The log-sum-exp needs no gradient: its derivative with respect to a logit cancels against that of the logits in
    sum_j p_ij z_ij. What remains is -sum_j z_ij dp_ij, the gradient with `key` and `query` detached outside of p.
    """
    attend = attend or _flex_attention
    width, finite_key = value.shape[-1], key.detach().nan_to_num(0.0, 0.0, 0.0)
    if width + key.shape[-1] <= JOINT_WIDTH:
        averages, lse = attend(query, key, torch.cat([value, finite_key], -1), scale)
        output, mean_key = averages.split([width, key.shape[-1]], -1)
    else:
        output, _ = attend(query, key, value, scale)
        mean_key, lse = attend(query, key, finite_key, scale)
    lse = lse.detach()
    entropies = lse.where(lse.isfinite(), torch.nan) - scale * (query.detach() * mean_key).sum(-1)
    return output, entropies + (entropies.clamp_min(0.0) - entropies).detach()


def can_fuse(query: Tensor, value: Tensor) -> bool:
    """Whether `fused` has a kernel for these: on CUDA with Triton, not float64, of a supported head width, and as many
    positions as whole blocks have. With 129 positions the kernel failed its test on an H200 (PyTorch 2.11)."""
    return (
        _compiling
        and query.device.type == "cuda"
        and query.dtype != torch.float64
        and query.shape[-1] in FUSED_WIDTHS
        and value.shape[-1] in FUSED_WIDTHS
        and query.shape[-2] % FUSED_BLOCK == 0
        and _TRITON
    )


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    kernel = flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)
    mask = causal_blocks(query.shape[-2], query.device)
    precise = {"FLOAT32_PRECISION": "'ieee'"}  # TF32, the default where it is allowed, leaves 3 digits of an entropy
    how = {"block_mask": mask, "return_aux": AuxRequest(lse=True), "kernel_options": precise}
    output, more = kernel(query, key, value, scale=scale, **how)
    return output, more.lse


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention is fused only if compiled; uncompiled it makes the T x T matrix.

    After eight variants of a function (`torch._dynamo.config.recompile_limit`) torch runs it uncompiled and only logs
    it. With `fullgraph` that is an error, FailOnRecompileLimitHit; `torch._dynamo.reset()` resets the count.
    """
    return torch.compile(function, fullgraph=True)


@cache
def causal_blocks(context: int, device: torch.device, size: int = FUSED_BLOCK) -> Any:
    """FlexAttention's causal block mask: block row r sees the blocks before it in full and block r in part.

    The same as that of `create_block_mask`, which needs a T x T matrix. A last row of fewer than `size` queries sees
    all its blocks in part.
    """
    from torch.nn.attention.flex_attention import BlockMask

    count = -(-context // size)
    row = torch.arange(count, dtype=torch.int32, device=device)
    in_part, whole = torch.ones_like(row), row.clone()
    if context % size:
        in_part[-1], whole[-1] = count, 0
    return BlockMask.from_kv_blocks(
        kv_num_blocks=in_part[None, None],
        kv_indices=(row[:, None] + row).remainder(count).to(torch.int32)[None, None],  # block r first
        full_kv_num_blocks=whole[None, None],
        full_kv_indices=row.expand(count, count).contiguous()[None, None],
        BLOCK_SIZE=size,
        mask_mod=_causal,
        seq_lengths=(context, context),
    )


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query
