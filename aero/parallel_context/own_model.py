"""This project's rotary decoder (`aero.model.GPT`) as a model of `encoding`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aero.attention import rotate
from aero.attention_kernels import core_named, softmax_core
from aero.model import GPT, Attention, merge_heads, split_heads
from aero.parallel_context.attention import QueryPass, attend
from aero.parallel_context.encoding import Cache


class _CachedAttention(nn.Module):
    """A block's attention of one pass over cached keys and values, at given positions; appends its own to `cache`."""

    def __init__(
        self,
        inner: Attention,
        positions: Tensor,
        before: tuple[Tensor, Tensor] | None,
        mask: Tensor | None,
        query_pass: QueryPass | None,
        cache: Cache,
    ) -> None:
        super().__init__()
        self.inner, self.positions, self.before = inner, positions, before
        self.mask, self.query_pass, self.cache = mask, query_pass, cache

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, None]:
        inner = self.inner
        q, k, v = (split_heads(layer(x), inner.heads) for layer in (inner.query, inner.key, inner.value))
        table = inner.rotary[:, self.positions]  # (2, m, r/2)
        q, k = rotate(q, table), rotate(k, table)
        if self.before is not None:
            k, v = (torch.cat([past, new], -2) for past, new in zip(self.before, (k, v), strict=True))
        self.cache.append((k, v))
        attended = attend(q, k, v, 1 / math.sqrt(q.shape[-1]), self.mask, self.query_pass)
        return inner.output(merge_heads(attended)), None


class OwnModel:
    """A `GPT` with rotary positions and softmax attention; ValueError for any other."""

    def __init__(self, model: GPT) -> None:
        core = core_named(model.architecture.core)
        if model.config.position != "rotary" or model.architecture.temperature:
            raise ValueError(
                f"{model.architecture}: segments share positions, which needs rotary ones (position=rotary) and no"
                " temperature a position (SM(t))"
            )
        if core.probabilities is not softmax_core or core.gains is not None:
            raise ValueError(f"{model.architecture}: parallel encoding supports softmax attention only")
        self.model = model.eval()
        self.context = model.config.context

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
        mask: Tensor | None = None,
        query_pass: QueryPass | None = None,
    ) -> tuple[Tensor, Cache]:
        """See `encoding.Model`."""
        own = [block.attention for block in self.model.blocks]
        longer: Cache = []
        try:
            for block, attention, before in zip(self.model.blocks, own, cache or [None] * len(own), strict=True):
                block.attention = _CachedAttention(attention, positions, before, mask, query_pass, longer)
            return self.model(ids), longer
        finally:
            for block, attention in zip(self.model.blocks, own, strict=True):
                block.attention = attention
