"""Where the tokens of a context in P segments stand: positions, segments and who may attend to whom.

    [shared prefix] [segment 1] … [segment P] [query]

Every segment begins at the position behind the prefix, so segments share positions; the query continues behind the
longest one. A segment sees the prefix and itself, the query sees everything, each causally.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PREFIX = -1
"""The group of tokens that belong to no segment: the shared prefix, and the query."""


@dataclass(frozen=True)
class Layout:
    """Lengths in tokens of the shared prefix (0: none), of every segment and of the query."""

    prefix: int
    segments: tuple[int, ...]
    query: int

    def __post_init__(self) -> None:
        if not self.segments or min(self.segments) < 1:
            raise ValueError(f"segments of {list(self.segments)} tokens: there must be one at least, and none empty")
        if self.prefix < 0 or self.query < 0:
            raise ValueError(f"prefix of {self.prefix} and query of {self.query} tokens: neither can be negative")

    @property
    def length(self) -> int:
        """Tokens altogether."""
        return self.prefix + sum(self.segments) + self.query

    @property
    def next_position(self) -> int:
        """Position of the query's first token: behind the longest segment."""
        return self.prefix + max(self.segments)

    def positions(self) -> Tensor:
        """Rotary position of every token, (length,)."""
        parts = [torch.arange(self.prefix)]
        parts += [self.prefix + torch.arange(length) for length in self.segments]
        return torch.cat([*parts, self.next_position + torch.arange(self.query)])

    def groups(self) -> Tensor:
        """Segment of every token counted from 0, `PREFIX` for prefix and query, (length,)."""
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
        """ValueError if a token's position is beyond what a model of `context` positions was trained on."""
        for number, length in enumerate(self.segments, start=1):
            if self.prefix + length > context:
                behind = f" behind a prefix of {self.prefix}" if self.prefix else ""
                raise ValueError(
                    f"segment {number} of {len(self.segments)} has {length} tokens{behind}, the model has {context}"
                    " positions: use more segments or a shorter context"
                )
        if self.next_position + self.query > context:
            raise ValueError(
                f"the query's {self.query} tokens would stand at positions {self.next_position} to"
                f" {self.next_position + self.query - 1}, the model has {context}: use more segments or less context"
            )


def split(units: int, segments: int) -> tuple[int, ...]:
    """How many of `units` indivisible pieces each of P `segments` gets: equally many, or the first ones one more.

    ValueError if there are more segments than pieces.
    """
    if segments < 1:
        raise ValueError(f"P={segments} segments: there must be at least one")
    if segments > units:
        raise ValueError(
            f"P={segments} segments, but the context has only {units} pieces (tokens, examples or passages) to divide"
            f" among them: P must not exceed {units}"
        )
    share, more = divmod(units, segments)
    return tuple(share + (segment < more) for segment in range(segments))
