"""Softmax attention with the entropy of every row, in memory that grows as T instead of T squared.

    H_i = -sum_j p_ij log p_ij = lse_i - sum_j p_ij z_ij,    sum_j p_ij z_ij = scale q_i . (sum_j p_ij k_j)

`blocked` goes through the queries in blocks, and through them again for the gradient; it runs on any device and under
any mask. `kept_blocks` keeps what the gradient needs of each block instead, which is faster: the probabilities of
the causal half, and with entropies their logarithms, so that memory grows as T squared.
`fused` takes both sums from a fused kernel, as the keys can be averaged like values; CUDA only.

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
"""Which keys the queries from `start` to before `stop` see: (B or 1, H or 1, stop - start, S), bool."""

_TRITON = importlib.util.find_spec("triton") is not None

ROWS = 64
"""Queries in a block of `blocked` (docs/decisions.md)."""

FUSED_WIDTHS = range(16, 257)
"""Widths of a head that FlexAttention's kernels take."""

JOINT_WIDTH = 128
"""Up to this d_v + d_k, `fused` averages values and keys in one pass; beyond it their tiles crowd a GPU's shared
memory, and two passes of the usual width do it."""

_compiling = True
"""Whether torch.compile may be used: `without_compiling` says no."""


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """In here nothing is fused: FlexAttention is a fused kernel only when compiled, otherwise it holds T x T values."""
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

    query: (B, H, T, d_k), key: (B, H, S, d_k), value: (B, H, S, d_v). mask None is the causal one, for T = S.
    Computed in float32 where the inputs have fewer bits; the output then has the type of `value`, the entropies have
    float32. A row that sees no key has output 0 and entropy 0; one with a logit that is NaN or +inf, or with all at
    -inf, has entropy NaN, and the gradients of its head are then not finite. No other head's are touched.

    In float32 logits are off by some 1e-7 of the largest, and what is made of them too, by either way as by the matrix.
    At a width of 64, against float64: entropies by up to 5e-7 of the largest logit, nats (1e-5 at 20, 1e-4 at 200);
    output and gradients by up to 2e-7 of the largest logit times their own largest value.
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
    """`attention_with_entropy` by blocks of `ROWS` queries: -sum p log p as it stands, so nothing cancels."""
    return _Blocked.apply(query, key, value, scale, mask)


class _Blocked(torch.autograd.Function):
    """The probabilities of one block at a time, made again in the backward pass.

    Within, sequences and heads are one axis: (B H, T, d). A product of matrices then need not copy what a block sees.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Mask | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.mask = scale, mask
        heads = query.shape[:2]
        q, k, v = query.flatten(0, 1) * scale, key.flatten(0, 1), value.flatten(0, 1)
        output = q.new_empty(*q.shape[:2], v.shape[-1])
        entropies = q.new_empty(q.shape[:2])
        for rows, keys, p in _probabilities(q, k, heads, mask):
            output[:, rows] = p @ v[:, keys]
            entropies[:, rows] = -_log(p).mul_(p).sum(-1)
        return output.unflatten(0, heads), entropies.unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_entropies: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads = query.shape[:2]
        q, k, v = query.flatten(0, 1) * ctx.scale, key.flatten(0, 1), value.flatten(0, 1)
        d_output, d_entropies = d_output.flatten(0, 1), d_entropies.flatten(0, 1)[..., None]
        gradients = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
        for rows, keys, p in _probabilities(q, k, heads, ctx.mask):
            # dH/dp_j = -log p_j up to a constant of the row, which the softmax's backward removes.
            d_p = (d_output[:, rows] @ v[:, keys].mT).sub_(_log(p).mul_(d_entropies[:, rows]))
            _add_block(gradients, (q, k), rows, keys, p, d_p, d_output)
        gradients[0].mul_(ctx.scale)
        return *(gradient.unflatten(0, heads) for gradient in gradients), None, None


def kept_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Causal attention as `blocked` gives it, with entropies (B, H, T) or None, that keeps the probabilities of the
    causal half, and with entropies their logarithms, for the backward pass; first derivatives only.

    query, key, value: (B, H, T, d), on a CPU, where it is faster than torch's own attention from some 256 positions on:
    that makes its logits again in the backward pass (docs/decisions.md).
    """
    return _KeptBlocks.apply(query, key, value, scale, entropy)


class _KeptBlocks(torch.autograd.Function):
    """As `_Blocked` within, under the causal mask."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        ctx.scale, ctx.heads = scale, query.shape[:2]
        q, k, v = query.flatten(0, 1) * scale, key.flatten(0, 1), value.flatten(0, 1)
        output = q.new_empty(*q.shape[:2], v.shape[-1])
        entropies = q.new_empty(q.shape[:2]) if entropy else None
        blocks, logarithms = [], []
        for rows, keys, p in _probabilities(q, k, ctx.heads, None):
            output[:, rows] = p @ v[:, keys]
            blocks.append(p)
            if entropies is not None:
                logarithms.append(_log(p))
                entropies[:, rows] = -(p * logarithms[-1]).sum(-1)
        ctx.save_for_backward(q, k, v, *blocks, *logarithms)
        return output.unflatten(0, ctx.heads), None if entropies is None else entropies.unflatten(0, ctx.heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        d_output = d_output.flatten(0, 1)
        gradients = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        count = -(-q.shape[1] // ROWS)
        blocks, logarithms = kept[:count], kept[count:]
        for number, p in enumerate(blocks):
            rows, keys = slice(number * ROWS, p.shape[-1]), slice(0, p.shape[-1])
            d_p = d_output[:, rows] @ v[:, keys].mT
            if logarithms:  # as in `_Blocked`
                d_p.addcmul_(logarithms[number], d_entropies.flatten(0, 1)[:, rows, None], value=-1)
            _add_block(gradients, (q, k), rows, keys, p, d_p, d_output)
        gradients[0].mul_(ctx.scale)
        return *(gradient.unflatten(0, ctx.heads) for gradient in gradients), None, None


def _add_block(
    gradients: Sequence[Tensor],
    inputs: Sequence[Tensor],
    rows: slice,
    keys: slice,
    p: Tensor,
    d_p: Tensor,
    d_output: Tensor,
) -> None:
    """Add to the gradients of query, key and value what the block of `rows` and `keys` gives. inputs: query and key."""
    (d_query, d_key, d_value), (q, k) = gradients, inputs
    d_value[:, keys].baddbmm_(p.mT, d_output[:, rows])
    d_logits = torch._softmax_backward_data(d_p, p, -1, p.dtype)
    d_query[:, rows] = d_logits @ k[:, keys]
    d_key[:, keys].baddbmm_(d_logits.mT, q[:, rows])


def _log(p: Tensor) -> Tensor:
    """log p, finite: p log p is 0 where p is 0; clamping keeps it so."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_()


def _probabilities(
    query: Tensor, key: Tensor, heads: Sequence[int], mask: Mask | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Of every block: its queries, the range of keys they see, and p (B H, rows, keys).

    query: scaled, (B H, T, d_k). heads: (B, H), which a mask tells apart.
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

    attend: (query, key, values, scale) -> averaged values and log-sum-exp (B, H, T); FlexAttention if not given.
    The entropy is a difference of two numbers of the logits' size, so its error is up to 5e-7 of the largest logit:
    2e-6 at 5, 1e-5 at 20, 1e-4 at 200, and the papers' first temperature of 0.01 takes them into the hundreds. That of
    `blocked` is as large at 5, a fifth of it at 200. Where it takes the entropy below 0, 0 is given and the gradient
    kept. The gradient has no such difference in it and is as exact as that of `blocked`.

    A row's mean key must not meet the keys that it does not see: 0 x NaN is NaN. So those that are not finite are left
    out of it; the log-sum-exp tells which rows did see them.

    The gradient needs none of the log-sum-exp: what lse_i gives to a logit is taken back by the logits themselves in
    sum_j p_ij z_ij. What remains is -sum_j z_ij dp_ij, which `key` and `query` detached outside of p leave.
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
    """Whether `fused` has a kernel for these: on CUDA, with Triton, of a width that FlexAttention takes, float32."""
    return (
        _compiling
        and query.device.type == "cuda"
        and query.dtype != torch.float64
        and query.shape[-1] in FUSED_WIDTHS
        and value.shape[-1] in FUSED_WIDTHS
        and _TRITON
    )


IEEE = {"FLOAT32_PRECISION": "'ieee'"}
"""FlexAttention's option for products in float32 as they are. Left to itself it takes TF32 where the process allows
that for products of matrices, and an entropy has three digits."""


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    kernel = flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)
    mask = causal_blocks(query.shape[-2], query.device)
    how = {"block_mask": mask, "return_aux": AuxRequest(lse=True), "kernel_options": IEEE}
    output, more = kernel(query, key, value, scale=scale, **how)
    return output, more.lse


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention is fused only when compiled; as it stands it holds the T x T matrix.

    Beyond eight variants of a function (`torch._dynamo.config.recompile_limit`) torch runs it as it stands and says so
    in a log only. With `fullgraph` that is an error, FailOnRecompileLimitHit, also where errors are suppressed, as they
    are in training; `torch._dynamo.reset()` makes room.
    """
    return torch.compile(function, fullgraph=True)


@cache
def causal_blocks(context: int, device: torch.device, size: int = 128) -> Any:
    """FlexAttention's description of the causal mask: block row r sees the blocks before it whole and block r in part.

    As `create_block_mask` finds it, which goes through a T x T matrix for it. A last row of fewer than `size` queries
    sees all its blocks in part.
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
