"""Steps that each party computes on its own shares, between programs of SPU.

A secret x is held as x_0 + x_1 mod 2^64, x_0 by the client and x_1 by the server. What a party computes from its share
alone costs no communication and reveals nothing. SPU has no such steps, so `aero.two_party.program.plan` cuts a program
at them.

`split_powers`: powers of two. For X in [0, 16) with f fraction bits, take the shares modulo 2^(f+5):
X_i = b_i 2^(f+4) + Y_i with one bit b_i. Then X = Y_0 + Y_1 if b_0 = b_1, else Y_0 + Y_1 - 16, that is

    2^-X = 2^-Y_0 2^-Y_1 (2^16 if b_0 xor b_1 else 1).

Each party computes its own 2^-Y_i, and the bits are already shared by xor: one multiplication and two selections give
the exponential, where SPU takes eight squarings.

`checked_powers`: the same, and a check that all these powers are 2^-X, as they are for X in [0, 16). Without their low
bits, the shares sum to X - Y_0 - Y_1; adding 16 (b_0 xor b_1) gives 0 if the power is right, and otherwise another
multiple of 16. The check is the sum of these numbers times fixed random weights: with a wrong power, it is 0 by a
chance of at most one in 2^23, if |X| < 1024.

`lattice_query` and `lattice_rows` are the protocol of `aero.two_party.lattice.lookup`; `lattice_product`,
`shared_product` and `row_squares` are those of `matmul`.

`negative`: comparison. Shares of x modulo 2^64 are, modulo 2^32, shares of x if |x| < 2^31. A second SPU runtime
compares these in a ring of 32 bits, with half of the digits and oblivious transfers.

`square`: SPU multiplies x by x as if they were two numbers; only inside its exponential (1 + x / 2^k)^(2^k) it squares,
with two thirds of the bytes. k is a setting of an SPU runtime, so this step has one of its own, with k = 1.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import mlir

from aero.two_party.lattice import lookup, matmul
from aero.two_party.runtime.settings import CLIENT, FRACTION_BITS, SERVER

OCTAVES = 16.0
"""`split_powers` takes X below this."""
CHECK_UNIT = 2.0**18
"""Of the check of `checked_powers`: far beyond any logit."""
Shape = tuple[int, ...]
CLIENT_SCALE, SERVER_SCALE = 2.0**13, 2.0**12
"""Factors on 2^-Y_i: at 18 fraction bits their product takes 61 bits of the ring, with relative error below 2^-15."""


@dataclass(frozen=True)
class StepContext:
    """What a step can use of its party: rank, and the channel to the other party.

    receive: takes the length that the next message must have. kept: state of the session's earlier steps. narrow_sign:
    xor shares of x < 0 from shares (n,) of x modulo 2^32. squared: shares of x^2 from shares (n,) of x. The last two
    run a protocol with the other party.
    """

    rank: int
    send: Callable[[bytes], None] | None = None
    receive: Callable[[int], bytes] | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    narrow_sign: Callable[[np.ndarray], np.ndarray] | None = None
    squared: Callable[[np.ndarray], np.ndarray] | None = None


def split_powers(x: Array) -> tuple[Array, Array, Array]:
    """2^13 2^-Y_0 as a secret from the client, 2^12 2^-Y_1 as the server's own, and the secret bit b_0 xor b_1.

    x: secret, in [0, 16); the result is wrong beyond. In the clear Y_0 = X and the bit is false.
    """
    return tuple(on_shares.bind(x, step="split_powers"))


def _split_powers_of_a_share(party: StepContext, share: np.ndarray) -> tuple[np.ndarray, ...]:
    """This party's shares of the three results."""
    low_bits = FRACTION_BITS + 4
    remainder = share & np.uint64((1 << low_bits) - 1)
    bit = (share >> np.uint64(low_bits)) & np.uint64(1)
    # float64 has 53 bits, of which at most 32 are used.
    power = np.exp2(-remainder.astype(np.float64) / (1 << FRACTION_BITS))
    factor = (CLIENT_SCALE, SERVER_SCALE)[party.rank] * (1 << FRACTION_BITS)
    own = np.rint(power * factor).astype(np.uint64)
    return (own, np.zeros_like(own), bit) if party.rank == CLIENT else (np.zeros_like(own), own, bit)


def checked_powers(x: Array) -> tuple[Array, Array, Array, Array]:
    """The results of `split_powers` of x (n,), and their check (1,): 0 if the powers are right, as for x in [0, 16),
    else, but by chance, another multiple of CHECK_UNIT."""
    client, server, bit, high = on_shares.bind(x, step="checked_powers")
    return client, server, bit, high + jnp.sum(jnp.where(bit, _weights(x.size) * np.float32(OCTAVES), 0.0))


def _weights(entries: int) -> np.ndarray:
    """Random integers with 24 significant bits, which float32 holds, times CHECK_UNIT / 16."""
    return np.random.default_rng(0).integers(2**23, 2**24, entries).astype(np.float32) * np.float32(
        CHECK_UNIT / OCTAVES
    )


def _checked_powers_of_a_share(party: StepContext, share: np.ndarray) -> tuple[np.ndarray, ...]:
    high = share & ~np.uint64((1 << (FRACTION_BITS + 4)) - 1)
    return *_split_powers_of_a_share(party, share), (high * _weights(share.size).astype(np.uint64)).sum(keepdims=True)


def _checked_powers_in_the_clear(x: Array) -> tuple[Array, ...]:
    high = jnp.sum(jnp.floor(x / OCTAVES) * OCTAVES * _weights(x.size), keepdims=True)
    return *STEPS["split_powers"].clear(x), high


def lattice_query(one_hot: Array, table: Array) -> tuple[Array, Array, Array]:
    """The client's integers S (T, n), the server's integers H (n, d), and its C (T, d) = 2^39 X + S H in the ring.

    X = one_hot (T, V) table (V, d), the client's and the server's, both inputs of the program. In the clear S and H are
    zeros.
    """
    return tuple(on_shares.bind(one_hot, table, step="lattice_query"))


def _lattice_query_in_the_clear(one_hot: Array, table: Array) -> tuple[Array, Array, Array]:
    secrets = jnp.zeros((one_hot.shape[0], lookup.DEGREE), np.int32)
    hint = jnp.zeros((lookup.DEGREE, table.shape[1]), np.int32)
    return secrets, hint, 2.0**lookup.SCALE_BITS * (one_hot @ table)


def _lattice_table(party: StepContext, table: np.ndarray | None) -> lookup.Table | None:
    """The server's preprocessed table; None at the client, which first draws the session's seed and sends it."""
    if "lattice_query" not in party.kept:
        if party.rank == CLIENT:
            party.send(seed := os.urandom(lookup.SEED))
        else:
            seed = party.receive(lookup.SEED)
        party.kept["lattice_query"] = seed
    return None if table is None else lookup.Table(table, party.kept["lattice_query"])


def _lattice_query_of_a_party(
    party: StepContext, one_hot: np.ndarray | None, table: lookup.Table | None, shapes: Sequence[Shape]
) -> tuple[np.ndarray, ...]:
    """The client sends its queries, TOKENS_AT_ONCE at a time, and the server selects."""
    (tokens, vocabulary), (_, width) = shapes
    sizes = (tokens, lookup.DEGREE), (lookup.DEGREE, width), (tokens, width)
    secrets, hint, selected = (np.zeros(size, np.uint64) for size in sizes)
    spans = [slice(low, low + lookup.TOKENS_AT_ONCE) for low in range(0, tokens, lookup.TOKENS_AT_ONCE)]
    if party.rank == CLIENT:
        ids = one_hot.argmax(1)
        for span in spans:
            made, query = lookup.encrypt(ids[span], vocabulary, party.kept["lattice_query"])
            secrets[span] = made.astype(np.uint64)
            party.send(query)
    else:
        hint = table.hint
        queries = np.empty((tokens, vocabulary, lookup.SENT_BITS // 8), np.uint8)
        for span in spans:
            queries[span].flat = np.frombuffer(party.receive(queries[span].size), np.uint8)
        selected = table.select(queries)
    return secrets, hint, selected


def lattice_rows(one_hot: Array, table: Array) -> Array:
    """2^39 X in the ring, X (T, d) as of `lattice_query`: the parties multiply S and H themselves, as in
    `lattice_product`."""
    return on_shares.bind(one_hot, table, step="lattice_rows")[0]


def _lattice_rows_of_a_party(
    party: StepContext, one_hot: np.ndarray | None, table: lookup.Table | None, shapes: Sequence[Shape]
) -> tuple[np.ndarray, ...]:
    secrets, hint, selected = _lattice_query_of_a_party(party, one_hot, table, shapes)
    tokens, width = shapes[0][0], shapes[1][1]
    layout, keys = matmul.HintLayout.of(tokens, lookup.DEGREE, width), _product_keys(party)
    if party.rank == CLIENT:
        return (selected - _of_client(party, layout, keys, lambda span: layout.encrypt(keys, secrets[span])),)
    return (selected - _of_server(party, layout, keys, layout.matrix(hint)),)


def lattice_product(x: Array, matrix: Array) -> Array:
    """2^28 x matrix, of a secret (rows, k) and the server's (k, m), which must be an input of the program."""
    return on_shares.bind(x, matrix, step="lattice_product")[0]


def _lattice_matrix(party: StepContext, matrix: np.ndarray | None) -> matmul.Matrix | None:
    return None if matrix is None else matmul.Matrix(matrix)


def _lattice_product_of_a_share(
    party: StepContext, share: np.ndarray, matrix: matmul.Matrix | None, shapes: Sequence[Shape]
) -> tuple[np.ndarray, ...]:
    layout, keys = matmul.Layout(*share.shape, shapes[1][1]), _product_keys(party)
    if party.rank == CLIENT:
        bits = matmul.RESULT_BITS - FRACTION_BITS
        return (_of_client(party, layout, keys, lambda span: keys.encrypt(share[span], layout, bits)),)
    return (matrix.times_own(share) + _of_server(party, layout, keys, matrix),)


def _product_keys(party: StepContext) -> Any:
    """The client's `SecretKey`, and at the server its `PublicMaterial`, sent in the first such step of a session."""
    if "lattice_product" not in party.kept:
        if party.rank == CLIENT:
            party.kept["lattice_product"] = own = matmul.SecretKey()
            party.send(own.public_material)
        else:
            message = party.receive(matmul.PublicMaterial.size())
            party.kept["lattice_product"] = matmul.PublicMaterial(message)
    return party.kept["lattice_product"]


def _of_client(
    party: StepContext, layout: matmul.Layout, secret: matmul.SecretKey, query: Callable[[slice], bytes]
) -> np.ndarray:
    """The client sends the query of each group of rows, then receives the answers: its share of the product."""
    for span in layout.spans():
        party.send(query(span))
    found = [
        secret.decrypt(party.receive(layout.answer_bytes), layout, span.stop - span.start) for span in layout.spans()
    ]
    return np.concatenate(found)


def _of_server(
    party: StepContext, layout: matmul.Layout, public: matmul.PublicMaterial, matrix: matmul.Matrix
) -> np.ndarray:
    """The server answers the client's queries: its share of the product."""
    queries = [party.receive(layout.query_bytes) for _ in range(layout.groups)]
    answers, masked = matrix.answer(public, queries, layout)
    for answer in answers:
        party.send(answer)
    return masked


def shared_product(x: Array, y: Array) -> Array:
    """2^32 x y, of two secrets (H, rows, k) and (H, k, m)."""
    return on_shares.bind(x, y, step="shared_product")[0]


def _pair_keys(party: StepContext) -> tuple[matmul.SecretKey, matmul.PublicMaterial]:
    """The own secret key, and the other party's public material; sent in the first such step of a session."""
    if "shared_product" not in party.kept:
        own = matmul.SecretKey()
        party.send(own.public_material)
        party.kept["shared_product"] = own, matmul.PublicMaterial(party.receive(matmul.PublicMaterial.size()))
    return party.kept["shared_product"]


def _shared_product_of_shares(party: StepContext, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each party multiplies its shares, and sends its share of x, encrypted, for the other to multiply by its of y."""
    (secret, public), heads = _pair_keys(party), len(x)
    layout = matmul.PairLayout.of(*x.shape[1:], y.shape[2])
    spans = layout.spans()
    party.send(b"".join(layout.encrypt(secret, head[span]) for head in x for span in spans))
    found = (x @ y) << np.uint64(layout.scale_bits)
    queries = io.BytesIO(party.receive(heads * layout.groups * layout.query_bytes))
    answers: list[bytes] = []
    for head in range(heads):
        asked = [queries.read(layout.query_bytes) for _ in spans]
        answered, masked = matmul.ShareMatrix(y[head], layout).answer(public, asked, layout)
        answers += answered
        found[head] += masked
    party.send(b"".join(answers))
    received = io.BytesIO(party.receive(heads * layout.groups * layout.answer_bytes))
    for head, span in itertools.product(range(heads), spans):
        answer = received.read(layout.answer_bytes)
        found[head, span] += secret.decrypt(answer, layout, span.stop - span.start)
    return (found,)


def row_squares(x: Array) -> Array:
    """2^32 s of a secret x (rows, k), s (rows,) the sum of the squares of each row, divided by the least power of two
    that is not below k."""
    return on_shares.bind(x, step="row_squares")[0]


def _row_squares_in_the_clear(x: Array) -> tuple[Array]:
    return (2.0 ** sum(matmul.PAIR_TRUNCATIONS) * jnp.sum(x * x, 1) / 2 ** matmul.log2_from(x.shape[1]),)


def _row_squares_of_shares(party: StepContext, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The squares of X_0 + X_1 are those of each party's own share, and 2 X_0 X_1, for which the client queries."""
    (secret, public), layout = _pair_keys(party), matmul.SquaresLayout.of(*x.shape)
    own = (x * x).sum(1) << np.uint64(layout.scale_bits - 1)
    if party.rank == CLIENT:
        rest = _of_client(party, layout, secret, lambda span: layout.encrypt(secret, x[span]))
    else:
        rest = _of_server(party, layout, public, matmul.ShareMatrix(x.T, layout))
    return (own + rest.diagonal(),)


def unmasked(masked: Array, product: Array) -> Array:
    """C - S H, of the server's C and a secret S H of integers; in the clear C."""
    return on_shares.bind(masked, product, step="unmasked")[0]


def apart(x: Array) -> Array:
    """The secret x unchanged, in a new program of SPU, which would otherwise combine two public factors: 2^-16 times
    2^-16 is 0 in its fixed point."""
    return on_shares.bind(x, step="apart")[0]


def negative(x: Array) -> Array:
    """Whether x < 0, as a secret bit, for secret |x| < 2^(31 - fraction bits); wrong beyond."""
    return on_shares.bind(x, step="negative")[0]


def square(x: Array) -> Array:
    """x^2 of a secret x, exact up to fixed point."""
    return on_shares.bind(x, step="square")[0]


def by_exponential(x: Array) -> Array:
    """x^2 by an SPU runtime whose exponential is (1 + y / 2)^2."""
    return jnp.exp(2.0 * (x - 1.0))


@dataclass(frozen=True)
class Step:
    """A step on shares: its function in the clear, what a party computes, and the owner, or None, of each result.

    of_shares: from the party's context and its share of every input as ring elements, its share of every result.
    prepare: for steps whose last input is the server's own: preprocesses it once (None at the client), and may exchange
    a few bytes, which no profile counts; `of_shares` then takes that value, and the shapes of all inputs.
    in_the_clear: with `prepare`; the other inputs are some party's own too, and are passed in the clear.
    """

    clear: Callable[..., tuple[Array, ...]]
    of_shares: Callable[..., tuple[np.ndarray, ...]]
    owners: tuple[int | None, ...] = (None,)
    prepare: Callable[[StepContext, np.ndarray | None], Any] | None = None
    in_the_clear: bool = False


STEPS = {
    "split_powers": Step(
        lambda x: (CLIENT_SCALE * jnp.exp2(-x), jnp.full_like(x, SERVER_SCALE), jnp.zeros(x.shape, bool)),
        _split_powers_of_a_share,
        (None, SERVER, None),
    ),
    "checked_powers": Step(_checked_powers_in_the_clear, _checked_powers_of_a_share, (None, SERVER, None, None)),
    "lattice_query": Step(
        _lattice_query_in_the_clear,
        _lattice_query_of_a_party,
        (CLIENT, SERVER, None),
        _lattice_table,
        in_the_clear=True,
    ),
    "lattice_rows": Step(
        lambda one_hot, table: (2.0**lookup.SCALE_BITS * (one_hot @ table),),
        _lattice_rows_of_a_party,
        prepare=_lattice_table,
        in_the_clear=True,
    ),
    "lattice_product": Step(
        lambda x, matrix: (2.0**matmul.RESULT_BITS * (x @ matrix),),
        _lattice_product_of_a_share,
        prepare=_lattice_matrix,
    ),
    "shared_product": Step(lambda x, y: (2.0 ** sum(matmul.PAIR_TRUNCATIONS) * (x @ y),), _shared_product_of_shares),
    "row_squares": Step(_row_squares_in_the_clear, _row_squares_of_shares),
    "unmasked": Step(lambda masked, product: (masked,), lambda party, masked, product: (masked - product,)),
    "negative": Step(
        lambda x: (x < 0.0,), lambda party, share: (party.narrow_sign(share.ravel() & np.uint64(0xFFFFFFFF)),)
    ),
    "square": Step(lambda x: (x * x,), lambda party, share: (party.squared(share.ravel()),)),
    "apart": Step(lambda x: (x,), lambda party, share: (share,)),
}

on_shares = jax.extend.core.Primitive("on_shares")
on_shares.multiple_results = True
on_shares.def_impl(lambda *inputs, step: STEPS[step].clear(*inputs))
on_shares.def_abstract_eval(
    lambda *inputs, step: [
        jax.core.ShapedArray(result.shape, result.dtype) for result in jax.eval_shape(STEPS[step].clear, *inputs)
    ]
)
mlir.register_lowering(
    on_shares, mlir.lower_fun(lambda *inputs, step: STEPS[step].clear(*inputs), multiple_results=True)
)
