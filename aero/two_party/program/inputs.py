"""Inputs of a private pass that change from pass to pass: the client's tokens, positions, and what earlier passes left.

T: tokens of the pass, V: vocabulary, d: width, H: heads, d_k = d / H, C: slots of a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from aero.two_party.program.optimizations import AS_PUBLISHED


def one_hot_rows(ids: Sequence[int] | np.ndarray, vocabulary: int) -> np.ndarray:
    """One row (V,) for each of `ids` (T,), 1 at the token and 0 elsewhere."""
    one_hot = np.zeros((len(ids), vocabulary), np.float32)
    one_hot[np.arange(len(ids)), ids] = 1.0
    return one_hot


def prompt_array(ids: Sequence[int] | np.ndarray, vocabulary: int, program: str) -> np.ndarray:
    """The client's input for `ids` (T,): one-hot rows (T, V), or the ids themselves for "as_published"."""
    return np.asarray(ids, np.int32) if program == AS_PUBLISHED else one_hot_rows(ids, vocabulary)


def prompt_type(tokens: int, vocabulary: int, program: str) -> tuple[tuple[int, ...], Any]:
    """Shape and type of `prompt_array`."""
    return ((tokens,), np.int32) if program == AS_PUBLISHED else ((tokens, vocabulary), np.float32)


@dataclass(frozen=True)
class Past:
    """Keys and values of earlier tokens, (H, C, d_k) for each layer, keys with their rotary positions.

    empty: public (), how many of the slots, on the left, hold no token; None if all hold one. rotary: public
    (2, T, r / 2), cosines and sines at the positions of the T new tokens (`nonlinear.rotary_table`); None if these
    positions are C, C + 1, ...
    """

    keys: Sequence[Array]
    values: Sequence[Array]
    empty: Array | None = None
    rotary: Array | None = None


def positional(name: str) -> bool:
    """Whether the weight of this name has one entry for each position."""
    return name == "position_embedding" or name.endswith(".inverse_temperature")


def at_positions(weights: Mapping[str, Any], first: int, tokens: int) -> dict[str, Any]:
    """`weights` with the entries of `tokens` positions from `first` on: position embedding (T, d) and 1/t (H, T)."""
    span = slice(first, first + tokens)
    found = {name: value[:, span] if positional(name) else value for name, value in weights.items()}
    if "position_embedding" in found:
        found["position_embedding"] = weights["position_embedding"][span]
    return found
