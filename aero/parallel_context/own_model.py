"""This project's rotary decoder (`aero.model.GPT` with position=rotary) as a model of `encoding`."""

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
    """What one forward pass hands to every layer's attention, and the cache they leave."""

    positions: Tensor
    before: Cache | None
    mask: Tensor | None
    query_pass: QueryPass | None
    cache: Cache = field(default_factory=list)


class _CachedAttention(nn.Module):
    """A block's own attention over cached keys and values, at given positions."""

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
    """A `GPT` with rotary positions and softmax attention. ValueError for one whose positions cannot be shared by
    segments, or with another attention core."""

    def __init__(self, model: GPT) -> None:
        if model.config.position != "rotary":
            raise ValueError(
                "parallel context encoding needs rotary positions, which segments can share; this model has learned"
                " ones: train one with position=rotary (the pythia families)"
            )
        if model.architecture.temperature:
            raise ValueError(
                f"{model.architecture}: a temperature belongs to one query position and would be shared by segments;"
                " use an architecture without SM(t)"
            )
        core = core_named(model.architecture.core)
        # Only what changes the weights alone (sigmaReparam) leaves the attention the softmax that `attend` computes.
        if core.probabilities is not softmax_core or core.gains is not None:
            raise ValueError(
                f"{model.architecture}: parallel encoding computes softmax attention and has no form of the core"
                f" {model.architecture.core!r} over cached segments; use SM or Core(sigma_reparam)"
            )
        self.model = model.eval()
        self.context, self.layers = model.config.context, model.config.layers

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
        mask: Tensor | None = None,
        query_pass: QueryPass | None = None,
    ) -> tuple[Tensor, Cache]:
        """See `encoding.Model`. `ids` of one pass must not exceed the model's context either."""
        now = _Pass(positions, cache, mask, query_pass)
        with self._attending(now):
            return self.model(ids), now.cache

    @contextmanager
    def _attending(self, now: _Pass) -> Iterator[None]:
        """The model's blocks with `_CachedAttention` in the place of their attention."""
        own = [block.attention for block in self.model.blocks]
        try:
            for layer, block in enumerate(self.model.blocks):
                block.attention = _CachedAttention(own[layer], layer, now)
            yield
        finally:
            for block, attention in zip(self.model.blocks, own, strict=True):
                block.attention = attention
