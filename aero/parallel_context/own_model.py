"""This project's rotary decoder (`aero.model.GPT`) as a model of `encoding`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from aero.attention import rotate
from aero.attention_kernels import core_named, softmax_core
from aero.model import GPT, Attention, merge_heads, split_heads
from aero.parallel_context.attention import QueryPass, attend
from aero.parallel_context.encoding import Cache


@dataclass
class _Pass:
    """Inputs of one forward pass for every layer's attention, and the cache that the pass builds."""

    positions: Tensor
    before: Cache | None
    mask: Tensor | None
    query_pass: QueryPass | None
    cache: Cache = field(default_factory=list)


class _CachedAttention(nn.Module):
    """A block's attention over cached keys and values, at given positions."""

    def __init__(self, inner: Attention, layer: int, now: _Pass) -> None:
        super().__init__()
        self.inner, self.layer, self.now = inner, layer, now

    def forward(self, x: Tensor, entropy: bool) -> tuple[Tensor, None]:
        inner, now = self.inner, self.now
        q, k, v = (split_heads(layer(x), inner.heads) for layer in (inner.query, inner.key, inner.value))
        table = inner.rotary[:, now.positions]  # (2, m, r/2)
        q, k = rotate(q, table), rotate(k, table)
        if now.before is not None:
            past_k, past_v = now.before[self.layer]
            k, v = torch.cat([past_k, k], -2), torch.cat([past_v, v], -2)
        now.cache.append((k, v))
        attended = attend(q, k, v, 1 / math.sqrt(q.shape[-1]), now.mask, now.query_pass)
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
        now = _Pass(positions, cache, mask, query_pass)
        with self._attending(now):
            return self.model(ids), now.cache

    @contextmanager
    def _attending(self, now: _Pass) -> Iterator[None]:
        """The model with `_CachedAttention` instead of its blocks' attention."""
        own = [block.attention for block in self.model.blocks]
        try:
            for layer, block in enumerate(self.model.blocks):
                block.attention = _CachedAttention(own[layer], layer, now)
            yield
        finally:
            for block, attention in zip(self.model.blocks, own, strict=True):
                block.attention = attention
