"""The operations of a two-party program: the unit of measurement, and of composing the cost of a whole pass.

Every secure step of `aero.two_party.program.forward` calls one of these functions through `run(kind, ...)`. Tracing a
program therefore lists its operations with shapes and counts. Public additions, slices, reshapes and sums cost no
communication and are not operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.two_party.lattice import lookup, matmul, share_steps
from aero.two_party.program import bounded, nonlinear

Owner = Literal["secret", "server", "client", "ids", "public"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of operation: its JAX function, and who holds each array argument.

    "secret": both parties, in shares; "ids": the same, for integers; "public": both, in the clear.
    """

    function: Callable[..., Array]
    owners: tuple[Owner, ...]


KINDS: dict[str, Kind] = {}


def _kind(*owners: Owner) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    def register(function: Callable[..., Array]) -> Callable[..., Array]:
        KINDS[function.__name__] = Kind(function, owners)
        return function

    return register


@_kind("client", "server")
def embedding_slice(one_hot: Array, table: Array) -> Array:
    """Rows of a slice of the embedding table: one-hot (T, v) times (v, d)."""
    return one_hot @ table


@_kind("ids", "secret")
def id_lookup(ids: Array, table: Array) -> Array:
    """Rows of the table (V, d) by secret ids (n,): SPU compares every id with all numbers below V, and multiplies."""
    return jnp.take(table, ids, axis=0)


@_kind("client", "server")
def embedding_lookup(one_hot: Array, table: Array) -> Array:
    """One-hot (T, V) times the embedding table (V, d) by encrypted queries (`aero.two_party.lattice.lookup`).

    SPU multiplies the client's secrets by the server's hint, and truncates the 39 bits by which a row is scaled up.
    """
    secrets, hint, masked = share_steps.lattice_query(one_hot, table)
    edges = range(0, lookup.DEGREE, lookup.HINT_SLICE)
    parts = [secrets[:, low : low + lookup.HINT_SLICE] @ hint[low : low + lookup.HINT_SLICE] for low in edges]
    return _truncated(share_steps.unmasked(masked, sum(parts[1:], parts[0])), lookup.TRUNCATIONS)


@_kind("secret", "server")
def linear(x: Array, weight: Array) -> Array:
    """(rows, n) times the server's (n, m)."""
    return x @ weight


@_kind("secret", "server")
def lattice_linear(x: Array, weight: Array) -> Array:
    """(rows, n) times the server's (n, m), an input of the program, by `aero.two_party.lattice.matmul`.

    SPU truncates the 28 bits by which the result is scaled up.
    """
    return _truncated(share_steps.lattice_product(x, weight), matmul.TRUNCATIONS)


def _truncated(x: Array, bits: tuple[int, ...]) -> Array:
    for index, many in enumerate(bits):
        x = (share_steps.apart(x) if index else x) * np.float32(2.0**-many)
    return x


@_kind("secret", "server")
def vocabulary_slice(x: Array, head: Array) -> Array:
    """A slice of the vocabulary projection: (1, d) times (d, v)."""
    return x @ head


@_kind("secret", "secret")
def scores(query: Array, key: Array) -> Array:
    """Q K^T: (H, rows, d_k), (H, columns, d_k) -> (H, rows, columns)."""
    return jnp.einsum("hqd,hkd->hqk", query, key)


@_kind("secret", "secret")
def mix(probabilities: Array, value: Array) -> Array:
    """P V: (H, rows, columns), (H, columns, d_k) -> (H, rows, d_k)."""
    return jnp.einsum("hqk,hkd->hqd", probabilities, value)


@_kind("secret", "secret")
def gate(x: Array, factor: Array) -> Array:
    """Elementwise product (rows, f) of the two halves of a gated FFN."""
    return x * factor


@_kind("secret", "server")
def scale(x: Array, factor: Array) -> Array:
    """Elementwise times the server's factor, broadcast: beta x, q / t, gains of the He & Hofmann block."""
    return x * factor


@_kind("secret")
def scale_public(x: Array, factor: float) -> Array:
    """Times a public constant: only the truncation costs."""
    return x * factor


@_kind("secret")
def causal_mean(x: Array, rows: int) -> Array:
    """C x for the last `rows` rows of x (T, d), C[i, j] = 1/i for j <= i: public, only the truncation costs."""
    tokens = x.shape[0]
    matrix = (np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]).astype(np.float32)
    return jnp.asarray(matrix[tokens - rows :]) @ x


@_kind("secret")
def inverse_sums(x: Array) -> Array:
    """1 / sum of every row: (H, rows, columns) -> (H, rows)."""
    return 1.0 / jnp.sum(x, -1)


@_kind("secret")
def reciprocal_sums(x: Array, narrow: int = 1) -> Array:
    """`inverse_sums` of exponentials of which each row's largest is 1, so that sums lie between 1 and `columns`."""
    return bounded.reciprocal(jnp.sum(x, -1), (1.0 + 2.0**-8) * x.shape[-1])


@_kind("secret")
def divide_by_sums(x: Array) -> Array:
    """Rows of (H, rows, columns) divided by their sums."""
    return x / jnp.sum(x, -1, keepdims=True)


@_kind("secret", "secret")
def scale_rows(x: Array, factors: Array) -> Array:
    """Rows of (H, rows, d_k) times (H, rows), both secret, element by element."""
    return x * factors[..., None]


@_kind("secret", "secret")
def scale_row_tiles(x: Array, factors: Array) -> Array:
    """The same by multiplication with diagonal matrices."""
    return nonlinear.row_tiles(x, factors)


@_kind("secret", "server")
def scale_row_tiles_by_server(x: Array, factors: Array) -> Array:
    """The same with the server's factors: q / t."""
    return nonlinear.row_tiles(x, factors)


for _function in (
    nonlinear.softmax_plain,
    nonlinear.softmax_clipped,
    nonlinear.softmax_cover,
    nonlinear.exponentials,
    nonlinear.rotate,
    nonlinear.normalise,
    nonlinear.normalise_tiles,
    nonlinear.rms_normalise,
    nonlinear.rms_normalise_tiles,
    nonlinear.silu,
    nonlinear.silu_segments,
    nonlinear.gelu_exact,
    nonlinear.gelu_plain,
    nonlinear.gelu_segments,
    nonlinear.relu,
):
    _kind("secret")(_function)
for _function in (nonlinear.softmax_cached, nonlinear.exponentials_cached, nonlinear.rotate_by):
    _kind("secret", "public")(_function)
_kind("secret", "server")(nonlinear.leaky_relu)
_kind("secret", "server")(nonlinear.rms_norm)
_kind("secret", "server", "server")(nonlinear.layer_norm)

SHARED = "_shared"
for _name in ("linear", "vocabulary_slice", "scale", "layer_norm", "rms_norm", "leaky_relu"):
    # The same with the server's arguments secret-shared.
    KINDS[_name + SHARED] = Kind(KINDS[_name].function, ("secret",) * len(KINDS[_name].owners))


@dataclass(frozen=True, order=True)
class Operation:
    """A kind of operation with argument shapes and constants of the kind (e.g. the blocks of a cover)."""

    kind: str
    shapes: tuple[Shape, ...]
    constants: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """As in ops.csv, e.g. "linear" or "softmax_cover(blocks=8)"."""
        inner = ",".join(f"{key}={value:g}" for key, value in self.constants)
        return f"{self.kind}({inner})" if inner else self.kind

    @property
    def shape(self) -> str:
        """As in ops.csv, e.g. "128x768,768x2304"; a scalar is "1"."""
        return ",".join("x".join(map(str, shape)) or "1" for shape in self.shapes)

    @property
    def owners(self) -> tuple[Owner, ...]:
        return KINDS[self.kind].owners

    @property
    def arrays(self) -> list[jax.ShapeDtypeStruct]:
        """Its arguments without values."""
        types = (np.int32 if owner == "ids" else np.float32 for owner in self.owners)
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(self.shapes, types, strict=True)]

    def function(self) -> Callable[..., Array]:
        """The JAX function of the operation's arrays."""
        kind, constants = KINDS[self.kind], dict(self.constants)
        return lambda *arrays: kind.function(*arrays, **constants)


def without_public(operation: Operation) -> Operation:
    """The operation that has constants in place of public arguments, which costs the same: selecting and multiplying by
    public values sends nothing, and the truncation after it is the same."""
    *shapes, public = operation.shapes
    if operation.kind == "softmax_cached":
        kind, more = "softmax_plain", {}
    elif operation.kind == "exponentials_cached":
        kind, more = "exponentials", {"blocks": 1}
    elif operation.kind == "rotate_by":
        kind, more = "rotate", {"dims": 2 * public[-1], "first": 0}
    else:
        return operation
    return Operation(kind, tuple(shapes), tuple(sorted((dict(operation.constants) | more).items())))


def call(kind: str, *arrays: Array, **constants: float) -> Array:
    """Compute an operation."""
    return KINDS[kind].function(*arrays, **constants)


@cache
def _result_shape(operation: Operation) -> Shape:
    """Cached, because a network repeats its operations and tracing one takes milliseconds."""
    return tuple(jax.eval_shape(operation.function(), *operation.arrays).shape)


def trace(program: Callable[..., Any], *shapes: Any) -> Counter[Operation]:
    """Operations of `program(run, *arrays)` with their counts, from argument shapes; nothing is computed."""
    found: Counter[Operation] = Counter()

    def recording_call(kind: str, *arrays: Array, **constants: float) -> Array:
        operation = Operation(kind, tuple(tuple(array.shape) for array in arrays), tuple(sorted(constants.items())))
        found[operation] += 1
        return jnp.zeros(_result_shape(operation), np.float32)

    jax.eval_shape(lambda *arrays: program(recording_call, *arrays), *shapes)
    return found
