"""A context encoded in P segments and read by a query.

    [shared prefix] [segment 1] … [segment P] [query]

Every segment starts at the position behind the prefix, so segments share positions; the query continues behind the
longest one. A segment sees the prefix and itself, the query sees everything, each causally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aero.parallel_context.attention import PREFIX, Cache, QueryPass, Selection

if TYPE_CHECKING:  # it needs transformers
    from aero.parallel_context.hugging_face import HuggingFaceModel


@dataclass(frozen=True)
class Encoded:
    """An encoded context: cache, group of every key (n,), and the position at which a query continues."""

    cache: Cache
    groups: Tensor
    next_position: int


@dataclass(frozen=True)
class Reading:
    """A query's logits (B, m, V), row entropies (L, B, H, m) in nats, the context extended by the query, the segments
    that each layer selected, (B, H or 1, m or 1, P), and all else that the pass recorded."""

    logits: Tensor
    entropies: Tensor
    encoded: Encoded
    selected: list[Tensor]
    seen: QueryPass


@dataclass(frozen=True)
class Pack:
    """Queries side by side in one sequence of m tokens, each of which sees the context and its own query, causally.

    query: number of the query of every token, (m,). place: its place in the query. selects: number of the selection it
    takes part in; question tokens select together, and every answer token alone, as in generation.
    """

    query: Tensor
    place: Tensor
    selects: Tensor

    def mask(self, context: int) -> Tensor:
        """(m, context + m) bool."""
        own = (self.query[:, None] == self.query).tril()
        return torch.cat([torch.ones(len(own), context, dtype=torch.bool, device=own.device), own], 1)


def pack(queries: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Tensor, Pack]:
    """Ids (1, m) of (question, answer) pairs side by side, and how they are packed."""
    ids, query, place, selects, groups = [], [], [], [], 0
    for number, (question, answer) in enumerate(queries):
        length = len(question) + len(answer)
        ids += [*question, *answer]
        query += [number] * length
        place += range(length)
        selects += [groups] * len(question) + [groups + 1 + i for i in range(len(answer))]
        groups += 1 + len(answer)
    return torch.tensor([ids]), Pack(*map(torch.tensor, (query, place, selects)))


@torch.no_grad()
def encode(model: HuggingFaceModel, segments: Sequence[Tensor], prefix: Tensor | None = None) -> Encoded:
    """Encode `segments`, each (B, n_p) ids, independently of each other, behind a shared `prefix` (S,) if there is one.

    Segments of equal length form one batch. ValueError for segments that do not fit the model's context.
    """
    shared, lengths = 0 if prefix is None else len(prefix), [segment.shape[1] for segment in segments]
    next_position = shared + max(lengths)
    if next_position > model.context:
        raise ValueError(
            f"a prefix of {shared} and a longest segment of {max(lengths)} tokens need {next_position} positions, the"
            f" model has {model.context}: use more segments or a shorter context"
        )
    sequences, device = segments[0].shape[0], segments[0].device
    start: Cache | None = None
    own: dict[int, Cache] = {}
    if shared:
        ids = prefix.to(device).expand(sequences, shared)
        _, start = model.forward(ids, torch.arange(shared, device=device))
    for length in sorted(set(lengths)):
        same = [number for number, other in enumerate(lengths) if other == length]
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
    groups = torch.tensor([PREFIX] * shared + [place for place, count in enumerate(lengths) for _ in range(count)])
    return Encoded(cache, groups.to(device), next_position)


@torch.no_grad()
def read(
    model: HuggingFaceModel,
    encoded: Encoded,
    ids: Tensor,
    selection: Selection | None = None,
    packed: Pack | None = None,
) -> Reading:
    """Read an encoded context by the query `ids` (B, m), or by packed queries (1, m). ValueError if a query exceeds the
    model's positions."""
    m, places = ids.shape[1], torch.arange(ids.shape[1], device=ids.device)
    mask, rows = None, None
    if packed is not None:
        places, rows, mask = packed.place, packed.selects, packed.mask(len(encoded.groups))
    positions = encoded.next_position + places
    if int(positions.max()) >= model.context:
        raise ValueError(
            f"the query's {int(places.max()) + 1} tokens from position {encoded.next_position} exceed the model's"
            f" {model.context}"
        )
    groups = torch.cat([encoded.groups, torch.full((m,), PREFIX, device=ids.device)])
    seen = QueryPass(groups, selection, rows)
    result, cache = model.forward(ids, positions, encoded.cache, mask, seen)
    if selection is not None and selection.aggregation == "LHT" and seen.segments > 1:
        # No layer can select before all were seen.
        seen = QueryPass(groups, selection, rows, decided=seen.over_layers())
        result, cache = model.forward(ids, positions, encoded.cache, mask, seen)
    extended = Encoded(cache, groups, encoded.next_position + m)
    return Reading(result, torch.stack(seen.entropies), extended, seen.selected, seen)
