"""Selective attention: a query attends to the K segments with the highest scores, and to what is in no segment.

The score of a segment is the sum of its five largest attention probabilities. Aggregated over query tokens (T), heads
(H) or layers (L), the five largest scores are summed in turn, as in the authors' code (zzsfornlp/zmsp, `aggr_topk`);
the paper's summary leaves the aggregation open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PREFIX = -1
"""Group of the tokens that belong to no segment: the shared prefix and the query."""
Aggregation = Literal["none", "T", "HT", "LHT"]
AGGREGATIONS: dict[Aggregation, tuple[int, ...]] = {"none": (), "T": (-2,), "HT": (-3, -2), "LHT": (0, -3, -2)}
"""The dimensions of scores (L, B, H, m, P) that each aggregation reduces."""


@dataclass(frozen=True)
class Selection:
    """top_k: segments kept (the paper's K). aggregation: which scores decide together.

    mass: instead of a fixed K, the fewest segments whose scores make this share of all scores.
    score_top, aggregate_top: how many of the largest probabilities or scores are summed; None takes the mean of all.
    """

    top_k: int = 2
    aggregation: Aggregation = "none"
    mass: float | None = None
    score_top: int = 5
    aggregate_top: int | None = 5

    @property
    def two_passes(self) -> bool:
        """Whether all layers must be seen once before any layer can select."""
        return self.aggregation == "LHT"


def group_scores(probabilities: Tensor, groups: Tensor, segments: int, top: int = 5) -> Tensor:
    """Sum of the `top` largest probabilities of every segment: (…, m, n) and groups (n,) give (…, m, P)."""
    parts = [probabilities[..., groups == segment] for segment in range(segments)]
    return torch.stack([own.topk(min(top, own.shape[-1]), dim=-1).values.sum(-1) for own in parts], -1)


def aggregate(scores: Tensor, dims: tuple[int, ...], top: int | None = 5, rows: Tensor | None = None) -> Tensor:
    """Scores (…, m, P) with `dims` reduced to size 1: the sum of the `top` largest, or the mean for None.

    rows: (m,), tokens with the same number are reduced together and keep size m.
    """
    if not dims:
        return scores
    if rows is not None:
        found = [aggregate(scores[..., rows == row, :], dims, top) for row in range(int(rows.max()) + 1)]
        return torch.cat(found, -2)[..., rows, :]
    if top is None:
        return scores.mean(dims, keepdim=True)
    flat = scores.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
    reduced = [dim % scores.ndim for dim in dims]
    shape = [1 if dim in reduced else size for dim, size in enumerate(scores.shape)]
    return flat.topk(min(top, flat.shape[-1]), dim=-1).values.sum(-1).reshape(shape)


def chosen(scores: Tensor, selection: Selection) -> Tensor:
    """Whether a segment is among the `top_k` with the largest scores, or needed for the `mass`: (…, P) bool."""
    ordered, places = scores.sort(dim=-1, descending=True)
    if selection.mass is None:
        kept = torch.arange(scores.shape[-1], device=scores.device) < selection.top_k
    else:
        before = ordered.cumsum(-1) - ordered
        kept = before < selection.mass * ordered.sum(-1, keepdim=True)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places, kept.expand_as(scores))


def visible(selected: Tensor, groups: Tensor) -> Tensor:
    """Which of the n keys are visible with `selected` segments (…, P): (…, n) bool; those in no segment always are."""
    return selected[..., groups.clamp(min=0)] | (groups == PREFIX)
