"""The operations of a two-party program: the unit of measurement, and of composing the cost of a whole pass.

Every secure step of `aero.two_party.program.forward` calls one of these functions through `run(kind, ...)`. Tracing a
program therefore lists its operations with shapes and counts. Public additions, slices, reshapes and sums cost no
communication and are not operations.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.two_party.lattice import lookup, matmul, share_steps
from aero.two_party.program import bounded, nonlinear
from aero.two_party.program.nonlinear import pair_result, truncated

Owner = Literal["secret", "server", "client", "ids", "public"]
Shape = tuple[int, ...]
# Encoded weights take some 4 kB each when many rows are multiplied: 12 GB in one party for 4,096 entries of the
# embedding, 9 for 768 x 3,072; 7 GB for the whole vocabulary projection of one row. These sizes keep a run below 8 GB.
SLICE = 1024
HEAD_SLICE = 16384
WEIGHTS_AT_ONCE = 800_000
IDS_AT_ONCE = 2


@dataclass(frozen=True)
class Kind:
    """A kind of operation: its JAX function, and who holds each array argument.

    "secret": both parties, in shares; "ids": the same, for integers; "public": both, in the clear.
    """

    function: Callable[..., Array]
    owners: tuple[Owner, ...]


def embedding_lookup(one_hot: Array, table: Array, lattice_linear: int = 0) -> Array:
    """One-hot (T, V) times the embedding table (V, d) by encrypted queries (`aero.two_party.lattice.lookup`).

    SPU multiplies the client's secrets by the server's hint; with `lattice_linear` the parties do.
    """
    if lattice_linear:
        return truncated(share_steps.lattice_rows(one_hot, table), lookup.TRUNCATIONS)
    secrets, hint, masked = share_steps.lattice_query(one_hot, table)
    edges = range(0, lookup.DEGREE, lookup.HINT_SLICE)
    parts = [secrets[:, low : low + lookup.HINT_SLICE] @ hint[low : low + lookup.HINT_SLICE] for low in edges]
    return truncated(share_steps.unmasked(masked, sum(parts[1:], parts[0])), lookup.TRUNCATIONS)


def lattice_linear(x: Array, weight: Array) -> Array:
    """(rows, n) times the server's (n, m), an input of the program, by `aero.two_party.lattice.matmul`."""
    return truncated(share_steps.lattice_product(x, weight), matmul.TRUNCATIONS)


def vocabulary_slice(x: Array, weight: Array, lattice_linear: int = 0) -> Array:
    """(rows, d) times columns of the server's (d, V), outside SPU with `lattice_linear`."""
    return KINDS["lattice_linear" if lattice_linear else "linear"].function(x, weight)


def scores(query: Array, key: Array, lattice: int = 0) -> Array:
    """Q K^T: (H, rows, d_k), (H, columns, d_k) -> (H, rows, columns). lattice: outside SPU."""
    if lattice:
        return pair_result(share_steps.shared_product(query, jnp.swapaxes(key, 1, 2)))
    return jnp.einsum("hqd,hkd->hqk", query, key)


def mix(probabilities: Array, value: Array, lattice: int = 0) -> Array:
    """P V: (H, rows, columns), (H, columns, d_k) -> (H, rows, d_k). lattice: outside SPU."""
    if lattice:
        return pair_result(share_steps.shared_product(probabilities, value))
    return jnp.einsum("hqk,hkd->hqd", probabilities, value)


def causal_mean(x: Array, rows: int) -> Array:
    """C x for the last `rows` rows of x (T, d), C[i, j] = 1/i for j <= i: public, only the truncation costs."""
    return jnp.asarray(causal_average(x.shape[0])[x.shape[0] - rows :]) @ x


def causal_average(tokens: int) -> np.ndarray:
    """The matrix C (tokens, tokens) of `causal_mean`."""
    return (np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]).astype(np.float32)


def reciprocal_sums(x: Array, narrow: int = 1) -> Array:
    """1 / sum of each row of exponentials, of which the largest is 1: sums lie between 1 and `columns`."""
    return bounded.reciprocal(jnp.sum(x, -1), (1.0 + 2.0**-8) * x.shape[-1])


def reciprocal_means(x: Array, narrow: int = 1) -> Array:
    """`inverse_sums` of exponentials by `nonlinear.bounded_exponentials`, flat. The last entry is their check: 0 if the
    mean of exp(z) over each row's visible z is at least that of z = -LOGIT_BOUND, and the row's sum at most as many as
    it sees; else a multiple of CHECK_UNIT."""
    rows, columns = x.shape[-2:]
    least, most = math.exp(-nonlinear.LOGIT_BOUND), math.exp(nonlinear.LOGIT_BOUND) / nonlinear.BOUNDED_SCALE
    factors = (most / np.arange(columns - rows + 1, columns + 1)).astype(np.float32)
    # A tenth more, for the fixed point.
    inverse, outside = bounded.checked_reciprocal(jnp.sum(x, -1) * factors, least / 1.1, 1.1 * most)
    return jnp.append(inverse * factors, outside * np.float32(share_steps.CHECK_UNIT))


KINDS: dict[str, Kind] = {
    # Slices of one-hot rows times slices of the embedding table; SPU compares each id with all numbers below V.
    "embedding_slice": Kind(operator.matmul, ("client", "server")),
    "embedding_lookup": Kind(embedding_lookup, ("client", "server")),
    "id_lookup": Kind(lambda ids, table: jnp.take(table, ids, axis=0), ("ids", "secret")),
    # States times the server's matrices, or slices of them.
    "linear": Kind(operator.matmul, ("secret", "server")),
    "lattice_linear": Kind(lattice_linear, ("secret", "server")),
    "vocabulary_slice": Kind(vocabulary_slice, ("secret", "server")),
    "scores": Kind(scores, ("secret", "secret")),
    "mix": Kind(mix, ("secret", "secret")),
    # Elementwise, broadcast: the halves of a gated FFN, beta x, q / t, He & Hofmann gains; then rows of (H, rows, d_k).
    "gate": Kind(operator.mul, ("secret", "secret")),
    "scale": Kind(operator.mul, ("secret", "server")),
    "scale_public": Kind(lambda x, factor: x * factor, ("secret",)),
    "scale_rows": Kind(lambda x, factors: x * factors[..., None], ("secret", "secret")),
    "scale_row_tiles": Kind(nonlinear.row_tiles, ("secret", "secret")),
    "scale_row_tiles_by_server": Kind(nonlinear.row_tiles, ("secret", "server")),
    "causal_mean": Kind(causal_mean, ("secret",)),
    # Sums are those of rows of (H, rows, columns).
    "inverse_sums": Kind(lambda x: 1.0 / jnp.sum(x, -1), ("secret",)),
    "reciprocal_sums": Kind(reciprocal_sums, ("secret",)),
    "reciprocal_means": Kind(reciprocal_means, ("secret",)),
    "divide_by_sums": Kind(lambda x: x / jnp.sum(x, -1, keepdims=True), ("secret",)),
    "softmax_plain": Kind(nonlinear.softmax_plain, ("secret",)),
    "softmax_cached": Kind(nonlinear.softmax_plain, ("secret", "public")),
    "softmax_clipped": Kind(nonlinear.softmax_clipped, ("secret",)),
    "softmax_cover": Kind(nonlinear.softmax_cover, ("secret",)),
    "exponentials": Kind(nonlinear.exponentials, ("secret",)),
    "exponentials_cached": Kind(nonlinear.exponentials, ("secret", "public")),
    "bounded_exponentials": Kind(nonlinear.bounded_exponentials, ("secret",)),
    "rotate": Kind(nonlinear.rotate, ("secret",)),
    "rotate_by": Kind(nonlinear.rotate_by, ("secret", "public")),
    "layer_norm": Kind(nonlinear.layer_norm, ("secret", "server", "server")),
    "normalise": Kind(nonlinear.normalise, ("secret",)),
    "normalise_tiles": Kind(partial(nonlinear.normalise, tiles=True), ("secret",)),
    "rms_norm": Kind(nonlinear.rms_norm, ("secret", "server")),
    "rms_normalise": Kind(nonlinear.rms_normalise, ("secret",)),
    "rms_normalise_tiles": Kind(partial(nonlinear.rms_normalise, tiles=True), ("secret",)),
    "silu": Kind(jax.nn.silu, ("secret",)),
    "silu_segments": Kind(nonlinear.silu_segments, ("secret",)),
    "gelu_exact": Kind(partial(jax.nn.gelu, approximate=False), ("secret",)),
    "gelu_plain": Kind(partial(jax.nn.gelu, approximate=True), ("secret",)),
    "gelu_segments": Kind(nonlinear.gelu_segments, ("secret",)),
    "gelu_squares": Kind(nonlinear.gelu_squares, ("secret",)),
    "relu": Kind(nonlinear.relu, ("secret",)),
    "leaky_relu": Kind(nonlinear.leaky_relu, ("secret", "server")),
    # Of no program: the exponentials of a softmax without its maxima.
    "split_exponential": Kind(nonlinear.split_exponential, ("secret",)),
}

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


def linear_in_slices(run: Callable[..., Array], x: Array, weight: Array) -> Array:
    """x (rows, n) times the server's (n, m) by SPU, in slices of at most WEIGHTS_AT_ONCE weights for several rows.

    Slices go along the longer side: columns are concatenated, inner ones added.
    """
    inner, columns = weight.shape
    pieces = 1 if x.shape[0] == 1 else -(-inner * columns // WEIGHTS_AT_ONCE)
    if pieces == 1:
        return run("linear", x, weight)
    edges = [round(index * max(inner, columns) / pieces) for index in range(pieces + 1)]
    spans = list(zip(edges, edges[1:], strict=False))
    if columns >= inner:
        return jnp.concatenate([run("linear", x, weight[:, low:high]) for low, high in spans], 1)
    parts = [run("linear", x[:, low:high], weight[low:high]) for low, high in spans]
    return sum(parts[1:], parts[0])


@cache
def _result_shape(operation: Operation) -> Shape:
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
