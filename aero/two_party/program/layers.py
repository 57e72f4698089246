"""The weights of a private program as typed values: affine maps, layers, and the whole model.

A value is a tensor on the server, an array in a program, and a shape where only sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Affine:
    """x -> x weight + bias with weight (in, out); as a LayerNorm, its gain and bias (d,); as an
    RMSNorm, its gain."""

    weight: Any
    bias: Any = None

    def then(self, matrix: Any) -> Affine:
        """Followed by `matrix`."""
        return Affine(self.weight @ matrix, self.bias @ matrix)

    def reading(self, basis: Any) -> Affine:
        """Applied to Z where x = Z basis."""
        return Affine(basis @ self.weight, self.bias)

    def after_norm(self, norm: Affine) -> Affine:
        """With the gain and bias of the norm before it folded in."""
        bias = self.bias if norm.bias is None else norm.bias @ self.weight + (0.0 if self.bias is None else self.bias)
        return Affine(norm.weight[:, None] * self.weight, bias)

    def columns(self, first: int, after: int | None) -> Affine:
        """Some of its results."""
        return Affine(self.weight[:, first:after], self.bias[first:after])

    def times(self, factor: Any) -> Affine:
        return Affine(factor * self.weight, factor * self.bias)


def side_by_side(parts: Sequence[Affine]) -> Affine:
    """Maps of the same input as one; results beside each other."""
    if len(parts) == 1:
        return parts[0]
    return Affine(torch.cat([one.weight for one in parts], 1), torch.cat([one.bias for one in parts]))


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; None where the program does not use them.

    basis: undoes the change of basis before the layer. qkv: Q, K (and V) as one matrix; last_query, others: the
    same split in two, where only the last row of Q is needed. from_both: the whole layer as a map of [x | attention].
    from_attention: the whole contribution to the residual stream. up: with a gate, [gate | up]; None where `down` is
    the whole FFN. around: the linear part of a leaky ReLU's FFN. combine: a He & Hofmann layer as a map of
    [n | attention | causal mean of n]. shape_a, shape_b, shape_g (H, 1, 1), or folded together shape (H, T, T): the
    gains of its attention matrix.
    """

    basis: Affine | None = None
    ln_1: Affine | None = None
    ln_2: Affine | None = None
    query: Affine | None = None
    key: Affine | None = None
    value: Affine | None = None
    qkv: Affine | None = None
    last_query: Affine | None = None
    others: Affine | None = None
    inverse_temperature: Any = None
    output: Affine | None = None
    from_both: Affine | None = None
    from_attention: Affine | None = None
    combine: Affine | None = None
    up: Affine | None = None
    down: Affine | None = None
    around: Affine | None = None
    beta: Any = None
    slope: Any = None
    b_ff: Any = None
    shape_a: Any = None
    shape_b: Any = None
    shape_g: Any = None
    shape: Any = None

    def with_last_query_apart(self, width: int) -> Layer:
        """The last row's query apart from keys and values: a share step takes a matrix as the server put it."""
        if self.qkv is None:
            return self
        query, others = self.qkv.columns(0, width), self.qkv.columns(width, None)
        return replace(self, qkv=None, last_query=query, others=others)


@dataclass(frozen=True)
class Weights:
    """All weights of a program. basis: undoes the change of basis after the last layer."""

    token_embedding: Any
    head: Affine
    layers: tuple[Layer, ...] = ()
    position_embedding: Any = None
    basis: Affine | None = None
    ln_f: Affine | None = None

    def flat(self) -> dict[str, Any]:
        """By name: "token_embedding", "layers.0.query.weight", ..."""
        return dict(_flat("", self))

    @classmethod
    def of(cls, flat: Mapping[str, Any]) -> Weights:
        """The inverse of `flat`."""
        nested: dict[str, Any] = {}
        for name, value in flat.items():
            *place, last = name.split(".")
            at = nested
            for part in place:
                at = at.setdefault(part, {})
            at[last] = value
        layers = nested.pop("layers", {})
        count = max(map(int, layers), default=-1) + 1  # a layer may have no weights
        found = tuple(Layer(**_affine_parts(layers.get(str(index), {}))) for index in range(count))
        return cls(layers=found, **_affine_parts(nested))


def _affine_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Affine(**value) if isinstance(value, dict) else value for name, value in values.items()}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        for one in fields(value):
            yield from _flat(f"{name}.{one.name}" if name else one.name, getattr(value, one.name))
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from _flat(f"{name}.{index}", one)
    elif value is not None:
        yield name, value
