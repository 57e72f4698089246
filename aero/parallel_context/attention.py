"""Attention of one pass over cached keys and values, its entropies and its segment scores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from aero.parallel_context.selection import AGGREGATIONS, Selection, aggregate, chosen, group_scores, visible


class QueryPass:
    """Records the attention of query tokens in every layer, and applies selective attention.

    groups: segment of every key, (n,). rows: number of the selection that each query token belongs to, (m,); None: all
    select together. decided: for a selection over layers, the segments that a first pass selected, (B, 1, m or 1, P)
    for all layers; without it such a selection only collects scores. logits: whether to record logits too.
    Per layer: entropies (B, H, m) in nats after selection; scores (B, H, m, P) before aggregation; selected
    (B, H or 1, m or 1, P); sinks (B, H, m), attention on the first tokens of the shared prefix and of all segments;
    logit_sizes (2,), mean and mean row maximum of the absolute logits of the context's keys.
    """

    def __init__(
        self,
        groups: Tensor,
        selection: Selection | None = None,
        rows: Tensor | None = None,
        decided: Tensor | None = None,
        logits: bool = False,
    ) -> None:
        self.groups, self.selection, self._rows, self._decided = groups, selection, rows, decided
        self.segments = int(groups.max()) + 1
        context = int((groups >= 0).nonzero()[-1]) + 1
        self._context = context if logits else 0
        self._firsts = torch.tensor([0, *(groups[1:context] != groups[: context - 1]).nonzero()[:, 0] + 1])
        self.entropies: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.sinks: list[Tensor] = []
        self.logit_sizes: list[Tensor] = []

    def probabilities(self, logits: Tensor) -> Tensor:
        """Attention (B, H, m, n) of masked logits; unselected segments get 0, the rest is renormalised."""
        if self._context:
            sizes = logits[..., : self._context].abs()
            self.logit_sizes.append(torch.stack([sizes.mean(), sizes.amax(-1).mean()]))
        probabilities = logits.softmax(-1)
        selected = self._select(probabilities)
        if selected is not None:
            self.selected.append(selected)
            # Masking before the softmax renormalises, exactly even where little mass is left.
            probabilities = logits.masked_fill(~visible(selected, self.groups), -math.inf).softmax(-1)
        self.entropies.append(torch.special.entr(probabilities).sum(-1))
        self.sinks.append(probabilities[..., self._firsts].sum(-1))
        return probabilities

    def _select(self, probabilities: Tensor) -> Tensor | None:
        if self.selection is None or self.segments < 2:
            return None
        if self._decided is not None:
            return self._decided
        scores = group_scores(probabilities, self.groups, self.segments, self.selection.score_top)
        self.scores.append(scores)
        return None if self.selection.two_passes else self._decide(scores)

    def _decide(self, scores: Tensor) -> Tensor:
        dims = AGGREGATIONS[self.selection.aggregation]
        return chosen(aggregate(scores, dims, self.selection.aggregate_top, self._rows), self.selection)

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
