"""The private passes of one session, inside the two party processes: the prompt, then one new token after the other.

With a cache, each later token is a pass of one row. Keys and values stay secret-shared variables of the party between
passes. The cache is filled from the right and has one of a few numbers of slots (`slots_for`), so that its passes are
compiled once for each of these. How many slots are empty is public. Without a cache every pass runs over all tokens.

The server computes keys and values of a public prefix in the clear and enters them as its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.two_party.program.end_to_end import PublicModel, put_prompt, put_weights
from aero.two_party.program.forward import cache_shape, forward
from aero.two_party.program.inputs import Past, at_positions, positional
from aero.two_party.program.nonlinear import rotary_table
from aero.two_party.program.operations import call
from aero.two_party.program.optimizations import cacheable
from aero.two_party.program.weights import weight_shapes
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import CLIENT, SERVER

COLUMNS = 64
"""A pass attends to a multiple of so many columns, its own row included. Smaller steps compile more often and hardly
save bytes: SPU packs 128 columns of a head of 64 dimensions into one ciphertext."""


def slots_for(tokens: int, context: int) -> int:
    """Slots of the cache for a new token after so many tokens."""
    return min(-(-(tokens + 1) // COLUMNS) * COLUMNS, context) - 1


@dataclass(frozen=True)
class Step:
    """One pass: its profile, the logits (V,) after its last token or (tokens, V) after each (client only), and the
    seconds of `Party.prepare`."""

    profile: Profile
    logits: np.ndarray | None
    prepared_s: float


class Generator:
    """The passes over a growing text. Both parties must make the same calls."""

    def __init__(
        self,
        party: Party,
        model: PublicModel,
        weights: Mapping[str, np.ndarray] | None,
        cached: bool = True,
        prefix_tokens: int = 0,
        prefix: Past | None = None,
    ) -> None:
        """Place the server's folded weights, None at the client.

        cached, or with a public prefix: the program must be `cacheable`. prefix: `prefix_past` of it at the server.
        """
        self._party, self._model, self._cached = party, model, cached
        self._config = model.model_config
        # What depends on positions is placed before each pass.
        self._positional: dict[str, np.ndarray] = {}
        if cacheable(model.parsed, model.program):
            shapes = weight_shapes(model.parsed, self._config, model.program)
            found = weights or {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
            self._positional = {name: found[name] for name in shapes if positional(name)}
        self._names = put_weights(party, model, weights, self._positional)
        self._ids: list[int] = []
        self._tokens, self._prefix_tokens = 0, prefix_tokens
        self._slots = self._filled = prefix_tokens  # of the cache
        self._new = 0  # rows of the last pass that are not in the cache yet
        if prefix_tokens:
            values = [None] * len(self._cache()) if prefix is None else [*prefix.keys, *prefix.values]
            for name, value in zip(self._cache(), values, strict=True):
                given, shape = None if value is None else np.asarray(value), cache_shape(self._config, prefix_tokens)
                party.put(name, given, shape, owner=SERVER, from_rank=SERVER)

    def step(
        self,
        ids: Sequence[int] | None,
        tokens: int,
        before_part: Callable[[Sequence[str], int], Any] = lambda inputs, size: None,
        every: bool = False,
    ) -> Step:
        """The pass after `tokens` more tokens, whose ids the client gives. every: logits after each of them."""
        party = self._party
        if self._new:
            self._extend_cache()
        self._tokens += tokens
        if ids is not None:
            self._ids += ids
        rows = tokens if self._cached else self._tokens
        first = self._tokens - rows
        put_prompt(party, self._model, rows, None if ids is None else self._ids[first:])
        position = self._prefix_tokens + first
        for name, array in at_positions(self._positional, position, rows).items():
            given = np.ascontiguousarray(array) if party.rank == SERVER else None
            party.put(f"w.{name}", given, array.shape, owner=SERVER, from_rank=SERVER)
        inputs = [*(f"w.{name}" for name in self._names), "prompt", *(self._cache() if self._slots else ())]
        if self._slots > self._prefix_tokens:
            party.put_public("empty", np.float32(self._slots - self._filled))
            inputs.append("empty")
            if self._config.position == "rotary":
                dims, base = self._config.rotary_dims, self._config.rotary_base
                party.put_public("rotary", rotary_table(position, rows, dims, base))
                inputs.append("rotary")
        outputs = ["logits", *(self._cache("new_") if self._cached else ())]
        function = self._pass_with_every_row if every else self._pass
        prepared = party.prepare(function, inputs, outputs)
        profile = party.run(function, inputs, outputs, before_part=before_part)
        self._new = rows if self._cached else 0
        return Step(profile, party.reveal("logits", to=CLIENT), prepared)

    def _cache(self, prefix: str = "") -> list[str]:
        """Names of the keys of every layer, then of the values."""
        return [f"{prefix}{kind}.{layer}" for kind in ("keys", "values") for layer in range(self._config.layers)]

    def _pass(self, *arrays: Array, every: bool = False) -> Any:
        """Logits, and with a cache the keys and values of the new rows, from the inputs in the order of `step`."""
        architecture, config, program = self._model.parsed, self._config, self._model.program
        weights, (prompt, *more) = dict(zip(self._names, arrays, strict=False)), arrays[len(self._names) :]
        layers = config.layers
        past = Past(more[:layers], more[layers : 2 * layers], *more[2 * layers :]) if more else None
        logits, *made = forward(call, architecture, config, program, weights, prompt, past, every=every)
        return (logits, *(one for kind in made for one in kind)) if self._cached else logits

    def _pass_with_every_row(self, *arrays: Array) -> Any:
        return self._pass(*arrays, every=True)

    def _extend_cache(self) -> None:
        """Move keys and values of the last pass's `_new` rows into the cache, without a message."""
        self._filled += self._new
        slots, names, made = slots_for(self._filled, self._config.context), self._cache(), self._cache("new_")
        append = _appending(len(made), slots)
        self._party.run(append, [*(names if self._slots else ()), *made], names, donate=made)
        self._slots, self._new = slots, 0


@cache
def _appending(count: int, slots: int) -> Callable[..., list[Array]]:
    """A function that appends the last `count` arrays to those before them, if there are any.

    Always the same one, because it is compiled once for each function."""

    def append(*arrays: Array) -> list[Array]:
        old, new = arrays[:-count], arrays[-count:]
        pairs = zip(old, new, strict=True) if old else ((one,) for one in new)
        return [_right_aligned(jnp.concatenate(parts, 1), slots) for parts in pairs]

    return append


def _right_aligned(x: Array, slots: int) -> Array:
    """The last `slots` of x (H, n, d_k), with zeros on the left where there are fewer."""
    missing = slots - x.shape[1]
    return jnp.pad(x, ((0, 0), (missing, 0), (0, 0))) if missing > 0 else x[:, -missing:]
