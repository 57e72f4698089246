"""Attention over cached keys and values, and selective attention: a query attends to the K segments with the highest
scores, and to what is in no segment.

The score of a segment is the sum of its five largest attention probabilities. Aggregated over query tokens (T), heads
(H) or layers (L), the five largest scores are summed in turn, as in the authors' code (zzsfornlp/zmsp, `aggr_topk`);
the paper's summary leaves the aggregation open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Cache = list[tuple[Tensor, Tensor]]
"""Rotated keys, and values, of every layer: (B, H', n, d_k) each."""
PREFIX = -1
"""Group of the tokens that belong to no segment: the shared prefix and the query."""
Aggregation = Literal["none", "T", "HT", "LHT"]
AGGREGATIONS: dict[Aggregation, tuple[int, ...]] = {"none": (), "T": (-2,), "HT": (-3, -2), "LHT": (0, -3, -2)}
"""The dimensions of scores (L, B, H, m, P) that each aggregation reduces."""


@dataclass(frozen=True)
class Selection:
    """top_k: segments kept (the paper's K). aggregation: which scores decide together.

    mass: instead of a fixed K, the fewest segments whose scores make this share of all scores.
    """

    top_k: int = 2
    aggregation: Aggregation = "none"
    mass: float | None = None


def group_scores(probabilities: Tensor, groups: Tensor, segments: int, top: int = 5) -> Tensor:
    """Sum of the `top` largest probabilities of every segment: (…, m, n) and groups (n,) give (…, m, P)."""
    parts = [probabilities[..., groups == segment] for segment in range(segments)]
    return torch.stack([own.topk(min(top, own.shape[-1]), dim=-1).values.sum(-1) for own in parts], -1)


def aggregate(scores: Tensor, dims: tuple[int, ...], top: int = 5, rows: Tensor | None = None) -> Tensor:
    """Scores (…, m, P) with `dims` reduced to size 1: the sum of the `top` largest.

    rows: (m,), tokens with the same number are reduced together and keep size m.
    """
    if not dims:
        return scores
    if rows is not None:
        found = [aggregate(scores[..., rows == row, :], dims, top) for row in range(int(rows.max()) + 1)]
        return torch.cat(found, -2)[..., rows, :]
    flat = scores.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
    sums = flat.topk(min(top, flat.shape[-1]), dim=-1).values.sum(-1)
    return sums.reshape(scores.sum(dims, keepdim=True).shape)


def chosen(scores: Tensor, selection: Selection) -> Tensor:
    """Whether a segment is among the `top_k` with the largest scores, or needed for the `mass`: (…, P) bool."""
    ordered, places = scores.sort(dim=-1, descending=True)
    if selection.mass is None:
        kept = torch.arange(scores.shape[-1], device=scores.device) < selection.top_k
    else:
        before = ordered.cumsum(-1) - ordered
        kept = before < selection.mass * ordered.sum(-1, keepdim=True)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places, kept.expand_as(scores))


class QueryPass:
    """Records the attention of query tokens in every layer, and applies selective attention.

    groups: segment of every key, (n,). rows: number of the selection that each query token belongs to, (m,); None: all
    select together. decided: for a selection over layers, the segments that a first pass selected, (B, 1, m or 1, P)
    for all layers; without it such a selection only collects scores.
    Per layer: entropies (B, H, m) in nats after selection; scores (B, H, m, P) before aggregation; selected
    (B, H or 1, m or 1, P); sinks (B, H, m), attention on the first tokens of the shared prefix and of all segments;
    logit_sizes: mean of the absolute logits of the context's keys.
    """

    def __init__(
        self,
        groups: Tensor,
        selection: Selection | None = None,
        rows: Tensor | None = None,
        decided: Tensor | None = None,
    ) -> None:
        self.groups, self.selection, self._rows, self._decided = groups, selection, rows, decided
        self.segments = int(groups.max()) + 1
        self._context = int((groups >= 0).nonzero()[-1]) + 1
        new = groups[: self._context].diff() != 0
        self._firsts = torch.tensor([0, *new.nonzero()[:, 0] + 1])
        self.entropies: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.sinks: list[Tensor] = []
        self.logit_sizes: list[Tensor] = []

    def probabilities(self, logits: Tensor) -> Tensor:
        """Attention (B, H, m, n) of masked logits; unselected segments get 0, the rest is renormalised."""
        self.logit_sizes.append(logits[..., : self._context].abs().mean())
        probabilities = logits.softmax(-1)
        selected = self._select(probabilities)
        if selected is not None:
            self.selected.append(selected)
            visible = selected[..., self.groups.clamp(min=0)] | (self.groups == PREFIX)  # (B, H or 1, m or 1, n)
            # Masking before the softmax renormalises, exactly even where little mass is left.
            probabilities = logits.masked_fill(~visible, -math.inf).softmax(-1)
        self.entropies.append(torch.special.entr(probabilities).sum(-1))
        self.sinks.append(probabilities[..., self._firsts].sum(-1))
        return probabilities

    def _select(self, probabilities: Tensor) -> Tensor | None:
        if self.selection is None or self.segments < 2:
            return None
        if self._decided is not None:
            return self._decided
        scores = group_scores(probabilities, self.groups, self.segments)
        self.scores.append(scores)
        return None if self.selection.aggregation == "LHT" else self._decide(scores)

    def _decide(self, scores: Tensor) -> Tensor:
        dims = AGGREGATIONS[self.selection.aggregation]
        return chosen(aggregate(scores, dims, rows=self._rows), self.selection)

    def over_layers(self) -> Tensor:
        """The segments that a selection over layers keeps by the scores of this pass: (B, 1, m or 1, P)."""
        return self._decide(torch.stack(self.scores))[0]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None = None,
    query_pass: QueryPass | None = None,
) -> Tensor:
    """Attention of the last m of n tokens: query (B, H, m, d_k), key and value (B, H', n, d_k), H' divides H.

    mask: (m, n) bool instead of the causal one. Returns (B, H, m, d_k).
    """
    m, n = query.shape[-2], key.shape[-2]
    repeats = query.shape[1] // key.shape[1]
    if query_pass is None and mask is None and m == n:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=repeats > 1)
    # Not enable_gqa: with a mask, CUDA then has only the plain kernel, which materialises (B, H, m, n).
    key, value = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (key, value))
    allowed = torch.ones(m, n, dtype=torch.bool, device=query.device).tril(n - m) if mask is None else mask
    if query_pass is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)
    logits = torch.matmul(query, key.mT).to(torch.promote_types(query.dtype, torch.float32)) * scale  # (B, H, m, n)
    logits = logits.masked_fill(~allowed, -math.inf)  # the same name frees the first, a gigabyte for long queries
    return query_pass.probabilities(logits).to(value.dtype) @ value
