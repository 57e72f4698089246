"""Selective attention: a query attends to the K segments it scores highest, and to what belongs to no segment.

The score of a segment is the sum of its five largest attention probabilities; with an aggregation over query tokens
(T), heads (H) or layers (L), the five largest of those scores are added in turn, as the authors' published code does
(zzsfornlp/zmsp, `aggr_topk`). The paper's summary leaves the way of aggregating open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aero.parallel_context.layout import PREFIX

Aggregation = Literal["none", "T", "HT", "LHT"]
AGGREGATIONS: dict[Aggregation, tuple[int, ...]] = {"none": (), "T": (-2,), "HT": (-3, -2), "LHT": (0, -3, -2)}
"""The dimensions of scores (L, B, H, m, P) that each aggregation puts together."""


@dataclass(frozen=True)
class Selection:
    """top_k: segments kept (the paper's K, 2). aggregation: which scores decide together. score_top, aggregate_top: how
    many of the largest probabilities, or scores, are added; `aggregate_top` None takes the mean of all."""

    top_k: int = 2
    aggregation: Aggregation = "none"
    score_top: int = 5
    aggregate_top: int | None = 5

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {self.aggregation!r} must be one of {', '.join(AGGREGATIONS)}")
        for name, least in (("top_k", 1), ("score_top", 1), ("aggregate_top", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: must be at least {least}")

    @property
    def two_passes(self) -> bool:
        """Whether a first pass must see all layers before any layer can select."""
        return self.aggregation == "LHT"


def group_scores(probabilities: Tensor, groups: Tensor, segments: int, top: int = 5) -> Tensor:
    """Sum of the `top` largest probabilities of every segment: (…, m, n) and groups (n,) give (…, m, P)."""
    scores = []
    for segment in range(segments):
        own = probabilities[..., groups == segment]
        scores.append(own.topk(min(top, own.shape[-1]), dim=-1).values.sum(-1))
    return torch.stack(scores, -1)


def aggregate(scores: Tensor, dims: tuple[int, ...], top: int | None = 5) -> Tensor:
    """Scores with `dims` put together, kept as dimensions of size 1: the sum of the `top` largest, None: the mean."""
    if not dims:
        return scores
    if top is None:
        return scores.mean(dims, keepdim=True)
    dims = tuple(dim % scores.ndim for dim in dims)
    kept = [dim for dim in range(scores.ndim) if dim not in dims]
    flat = scores.permute(*kept, *dims).flatten(len(kept))
    summed = flat.topk(min(top, flat.shape[-1]), dim=-1).values.sum(-1)
    for dim in sorted(dims):
        summed = summed.unsqueeze(dim)
    return summed


def chosen(scores: Tensor, top_k: int) -> Tensor:
    """Whether a segment is among the `top_k` with the largest scores: (…, P) bool."""
    best = scores.topk(min(top_k, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)


def visible(kept: Tensor, groups: Tensor) -> Tensor:
    """Which of the n columns the kept segments (…, P) leave visible: (…, n) bool; those of no segment always are."""
    columns = kept[..., groups.clamp(min=0)]
    return columns | (groups == PREFIX)
