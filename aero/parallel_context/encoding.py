"""A context encoded in P segments and read by a query, for every model that continues from cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from aero.parallel_context.attention import QueryPass
from aero.parallel_context.layout import PREFIX, Layout
from aero.parallel_context.selection import Selection

Cache = list[tuple[Tensor, Tensor]]
"""Rotated keys, and values, of every layer: (B, H', n, d_k) each."""


class Model(Protocol):
    """A decoder with rotary positions. context: number of positions it was trained on."""

    context: int

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
        mask: Tensor | None = None,
        query_pass: QueryPass | None = None,
    ) -> tuple[Tensor, Cache]:
        """Logits (B, m, V) of `ids` (B, m) at `positions` (m,) behind the n tokens of `cache`, and the longer cache.

        mask: (m, n + m) bool instead of causal attention; query_pass: records, and may change, every layer's attention.
        """
        ...


@dataclass(frozen=True)
class Encoded:
    """An encoded context: cache, group of every key (n,), and the position at which a query continues."""

    cache: Cache
    groups: Tensor
    next_position: int


@dataclass(frozen=True)
class Reading:
    """A query's logits (B, m, V), row entropies (L, B, H, m) in nats, the context extended by the query, and the
    segments that each layer selected, (B, H or 1, m or 1, P)."""

    logits: Tensor
    entropies: Tensor
    encoded: Encoded
    selected: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def encode(model: Model, segments: Sequence[Tensor], prefix: Tensor | None = None, query: int = 0) -> Encoded:
    """Encode `segments`, each (B, n_p) ids, independently of each other, behind a shared `prefix` (S,) if there is one.

    Segments of equal length form one batch. query: tokens that will follow and need positions. ValueError for segments
    that do not fit the model's context.
    """
    shared = 0 if prefix is None else len(prefix)
    layout = Layout(shared, tuple(segment.shape[1] for segment in segments), query)
    layout.check(model.context)
    sequences, device = segments[0].shape[0], segments[0].device
    start: Cache | None = None
    if prefix is not None and shared:
        ids = prefix.to(device).expand(sequences, shared)
        _, start = model.forward(ids, torch.arange(shared, device=device))
    own: dict[int, Cache] = {}
    for length in sorted(set(layout.segments)):
        same = [number for number, other in enumerate(layout.segments) if other == length]
        ids = torch.cat([segments[number] for number in same])  # (P' B, n_p)
        before = start and [tuple(x.repeat(len(same), 1, 1, 1) for x in layer) for layer in start]
        _, cache = model.forward(ids, shared + torch.arange(length, device=device), before)
        for place, number in enumerate(same):
            rows = slice(place * sequences, (place + 1) * sequences)
            own[number] = [(k[rows, :, shared:], v[rows, :, shared:]) for k, v in cache]
    parts = ([] if start is None else [start]) + [own[number] for number in range(len(segments))]
    cache = [
        tuple(torch.cat(tensors, -2) for tensors in zip(*layer, strict=True)) for layer in zip(*parts, strict=True)
    ]
    groups = layout.groups()[: layout.length - query].to(device)
    return Encoded(cache, groups, layout.next_position)


@torch.no_grad()
def read(model: Model, encoded: Encoded, ids: Tensor, selection: Selection | None = None) -> Reading:
    """Read an encoded context by the query `ids` (B, m). ValueError if the query exceeds the model's positions."""
    m = ids.shape[1]
    if encoded.next_position + m > model.context:
        raise ValueError(
            f"the query's {m} tokens from position {encoded.next_position} exceed the model's {model.context}"
        )
    positions = encoded.next_position + torch.arange(m, device=ids.device)
    groups = torch.cat([encoded.groups, torch.full((m,), PREFIX, device=ids.device)])
    query_pass = QueryPass(groups, selection)
    logits, cache = model.forward(ids, positions, encoded.cache, query_pass=query_pass)
    if selection is not None and selection.two_passes and query_pass.segments > 1:
        query_pass = QueryPass(groups, selection, decided=query_pass.over_layers())
        logits, cache = model.forward(ids, positions, encoded.cache, query_pass=query_pass)
    extended = Encoded(cache, groups, encoded.next_position + m)
    return Reading(logits, torch.stack(query_pass.entropies), extended, query_pass.selected)


@torch.no_grad()
def answer(
    model: Model, encoded: Encoded, question: Tensor, tokens: int, selection: Selection | None = None
) -> tuple[Tensor, Tensor]:
    """Greedy answer of `tokens` ids to `question` (B, m): ids (B, tokens), and entropies (L, B, H, m + tokens - 1).

    Every pass selects anew, as the authors' code does: the question's, then each answer token's.
    """
    reading = read(model, encoded, question, selection)
    entropies, answers = [reading.entropies], [reading.logits[:, -1].argmax(-1, keepdim=True)]
    while len(answers) < tokens:
        reading = read(model, reading.encoded, answers[-1], selection)
        entropies.append(reading.entropies)
        answers.append(reading.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(answers, -1), torch.cat(entropies, -1)


@torch.no_grad()
def in_one_pass(model: Model, layout: Layout, ids: Tensor) -> Tensor:
    """Logits (B, length, V) of `ids` in one pass under the layout's mask: `encode` and `read` without their savings."""
    layout.check(model.context)
    positions, mask = (x.to(ids.device) for x in (layout.positions(), layout.mask()))
    return model.forward(ids, positions, mask=mask)[0]
