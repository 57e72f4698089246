"""Positions, segments and visibility of the tokens of a context in P segments.

    [shared prefix] [segment 1] … [segment P] [query]

Every segment starts at the position behind the prefix, so segments share positions; the query continues behind the
longest one. A segment sees the prefix and itself, the query sees everything, each causally.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PREFIX = -1
"""Group of the tokens that belong to no segment: the shared prefix and the query."""


@dataclass(frozen=True)
class Layout:
    """Lengths in tokens of the shared prefix (0: none), of every segment and of the query."""

    prefix: int
    segments: tuple[int, ...]
    query: int

    @property
    def length(self) -> int:
        """All tokens."""
        return self.prefix + sum(self.segments) + self.query

    @property
    def next_position(self) -> int:
        """Position of the query's first token, behind the longest segment."""
        return self.prefix + max(self.segments)

    def positions(self) -> Tensor:
        """Rotary position of every token, (length,)."""
        parts = [torch.arange(self.prefix)]
        parts += [self.prefix + torch.arange(length) for length in self.segments]
        return torch.cat([*parts, self.next_position + torch.arange(self.query)])

    def groups(self) -> Tensor:
        """Segment of every token, from 0, or `PREFIX`, (length,)."""
        parts = [torch.full((self.prefix,), PREFIX)]
        parts += [torch.full((length,), segment) for segment, length in enumerate(self.segments)]
        return torch.cat([*parts, torch.full((self.query,), PREFIX)])

    def mask(self) -> Tensor:
        """Whether the token of a row may attend to that of a column, (length, length) bool."""
        groups, order = self.groups(), torch.arange(self.length)
        in_query = order >= self.length - self.query
        shared = (groups == PREFIX) & ~in_query
        visible = (groups[:, None] == groups) | shared | in_query[:, None]
        return visible & (order[:, None] >= order)

    def check(self, context: int) -> None:
        """ValueError if a token's position is beyond the `context` positions of a model."""
        needed = self.next_position + self.query
        if needed > context:
            raise ValueError(
                f"a prefix of {self.prefix}, a longest segment of {max(self.segments)} and a query of {self.query} "
                f"tokens need {needed} positions, the model has {context}: use more segments or a shorter context"
            )


def split(units: int, segments: int) -> tuple[int, ...]:
    """Sizes of P `segments` of `units` indivisible units, equal or with one more in the first ones.

    ValueError unless 1 <= P <= units.
    """
    if not 1 <= segments <= units:
        raise ValueError(f"P={segments} segments: P must be 1 to {units}, the units of the context")
    share, more = divmod(units, segments)
    return tuple(share + (segment < more) for segment in range(segments))
