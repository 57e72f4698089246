"""The attention of one pass over cached keys and values, and what it lets one see: entropies and segment scores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from aero.parallel_context.selection import AGGREGATIONS, Selection, aggregate, chosen, group_scores, visible


class QueryPass:
    """What one pass of query tokens sees in every layer; applies selective attention if a selection is given.

    groups: segment of every key, (n,). kept: for a selection over layers, what the first pass decided,
    (B, 1, 1, P) for all layers; without it such a selection only collects scores.
    entropies: (B, H, m) a layer, nats, after selection. scores: (B, H, m, P) a layer, before aggregation. selected:
    (B, H or 1, m or 1, P) a layer.
    """

    def __init__(self, groups: Tensor, selection: Selection | None = None, kept: Tensor | None = None) -> None:
        self.groups, self.selection, self._kept = groups, selection, kept
        self.segments = int(groups.max()) + 1
        self.entropies: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.selected: list[Tensor] = []

    def probabilities(self, logits: Tensor) -> Tensor:
        """Attention (B, H, m, n) of masked logits; unselected segments get 0, the rest is renormalised."""
        probabilities = logits.softmax(-1)
        kept = self._select(probabilities)
        if kept is not None:
            self.selected.append(kept)
            # Masking before the softmax renormalises, and stays exact where little mass is left to renormalise.
            probabilities = logits.masked_fill(~visible(kept, self.groups), -math.inf).softmax(-1)
        logs = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
        self.entropies.append(-(probabilities * logs).sum(-1))
        return probabilities

    def _select(self, probabilities: Tensor) -> Tensor | None:
        if self.selection is None or self.segments < 2:
            return None
        if self._kept is not None:
            return self._kept
        scores = group_scores(probabilities, self.groups, self.segments, self.selection.score_top)
        self.scores.append(scores)
        if self.selection.two_passes:
            return None
        dims = AGGREGATIONS[self.selection.aggregation]
        return chosen(aggregate(scores, dims, self.selection.aggregate_top), self.selection.top_k)

    def over_layers(self) -> Tensor:
        """What a selection over layers keeps, by the scores of this pass: (B, 1, 1, P)."""
        assert self.selection is not None
        dims = AGGREGATIONS[self.selection.aggregation]
        together = aggregate(torch.stack(self.scores), dims, self.selection.aggregate_top)  # (1, B, 1, 1, P)
        return chosen(together[0], self.selection.top_k)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None = None,
    query_pass: QueryPass | None = None,
) -> Tensor:
    """Causal attention of the last m of n tokens: query (B, H, m, d_k), key and value (B, H', n, d_k), H' divides H.

    mask: who attends to whom, (m, n) bool, in place of the causal one. Returns (B, H, m, d_k).
    """
    m, n = query.shape[-2], key.shape[-2]
    repeats = query.shape[1] // key.shape[1]
    if query_pass is None and mask is None and m == n:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=repeats > 1)
    # Not enable_gqa: with a mask it leaves CUDA the plain kernel alone, which forms all of (B, H, m, n).
    key, value = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (key, value))
    allowed = _causal(m, n, query.device) if mask is None else mask
    if query_pass is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)
    logits = torch.matmul(query, key.mT).to(torch.promote_types(query.dtype, torch.float32)) * scale  # (B, H, m, n)
    logits = logits.masked_fill(~allowed, -math.inf)  # under the same name: of a long query each is a gigabyte
    probabilities = query_pass.probabilities(logits)
    return probabilities.to(value.dtype) @ value


def _causal(m: int, n: int, device: torch.device) -> Tensor:
    return torch.ones(m, n, dtype=torch.bool, device=device).tril(n - m)
