"""Steps that each party takes on its own shares, and programs with such steps cut into what SPU runs between them.

A secret x is held as x_0 + x_1 mod 2^64, x_0 by the client and x_1 by the server, each a random number to whoever lacks
the other. What a party computes from its share alone costs no communication and tells nobody anything; SPU offers no
such step, so a program that has one is run as several SPU programs with the step between them.

Powers of two. For X in [0, 16) with f fraction bits, take the shares modulo 2^(f+5): X_i = b_i 2^(f+4) + Y_i with one
bit b_i. Then X = Y_0 + Y_1 if b_0 = b_1 and Y_0 + Y_1 - 16 if not, that is

    2^-X = 2^-Y_0 2^-Y_1 (2^16 if b_0 xor b_1 else 1).

The powers of Y_i are each party's own, the bits are already shared by xor: one product of a number of the client's with
one of the server's and two selections give the exponential, where SPU's own takes eight squarings.

Rows of a table. `lattice_query` is a step in which the client also sends something
(`aero.two_party.lattice.lookup`): its
encrypted choice of rows. What the server computes of it is 2^39 times as large as the rows, and wrong by a product of
two matrices that each party has one of; `unmasked` subtracts that.

Products with the server's matrix. `lattice_product` is a step in which both send something
(`aero.two_party.lattice.matmul`); the product is 2^28 times as large as it should be.

Comparisons. Shares of x modulo 2^64 are, modulo 2^32, shares of the same x if |x| < 2^31 as an integer. `negative` is a
step in which SPU compares these in a ring of 32 bits: half of the digits, and so half of the oblivious transfers.

Exponentials. SPU has (1 + y)^(2^8) with y = x / 2^8; `exponential` is (1 + y + y^2 / 2)^(2^5) with y = x / 2^5: one
product more and three squarings less, with a relative error of |x|^3 / 6144 instead of x^2 / 512. The number of
squarings is set for a whole session of SPU, so that this is a step of a session of its own, like comparisons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import mlir

from aero.errors import UserError
from aero.two_party.lattice import lookup
from aero.two_party.lattice import matmul as lattice
from aero.two_party.runtime.settings import CLIENT, SERVER

OCTAVES = 16.0
"""`split_powers` takes X below this."""
Shape = tuple[int, ...]
SQUARINGS = 5
"""Those of `exponential`. SPU's own exponential has eight."""
CLIENT_SCALE, SERVER_SCALE = 2.0**13, 2.0**12
"""Factors on 2^-Y_i: at 18 fraction bits their product takes 61 bits of the ring, and is off by below 2^-15 of it."""


@dataclass(frozen=True)
class Hand:
    """What a step has of the party that takes it: its rank, the fixed point, and the way to the other party.

    receive: takes the number of bytes that the next message must have. kept: what steps of one session leave for
    later ones. narrow_sign: the xor shares of whether x < 0 from shares (n,) of x modulo 2^32, by a protocol of both.
    squared: the shares of `exponential` of x from shares (n,) of x, by a protocol of both.
    """

    rank: int
    fraction_bits: int = 18
    field: str = "FM64"
    send: Callable[[bytes], None] | None = None
    receive: Callable[[int], bytes] | None = None
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)
    narrow_sign: Callable[[np.ndarray], np.ndarray] | None = None
    squared: Callable[[np.ndarray], np.ndarray] | None = None


def split_powers(x: Array) -> tuple[Array, Array, Array]:
    """2^13 2^-Y_0 as a secret that the client made, 2^12 2^-Y_1 as the server's own, and the secret bit b_0 xor b_1.

    x: secret, in [0, 16); beyond, the result is some other number. In the clear Y_0 = X and the bit is false.
    """
    return tuple(_on_shares.bind(x, step="split_powers"))


def _split_powers_in_the_clear(x: Array) -> tuple[Array, Array, Array]:
    return CLIENT_SCALE * jnp.exp2(-x), jnp.full_like(x, SERVER_SCALE), jnp.zeros(x.shape, bool)


def _split_powers_of_a_share(hand: Hand, share: np.ndarray) -> tuple[np.ndarray, ...]:
    """The party's parts of the three results: ring elements, for the bit 0 or 1."""
    low_bits = hand.fraction_bits + 4
    remainder = share & np.uint64((1 << low_bits) - 1)
    bit = (share >> np.uint64(low_bits)) & np.uint64(1)
    # Powers are taken in float64: 53 bits, of which at most 32 are used.
    power = np.exp2(-remainder.astype(np.float64) / (1 << hand.fraction_bits))
    factor = (CLIENT_SCALE, SERVER_SCALE)[hand.rank] * (1 << hand.fraction_bits)
    own = np.rint(power * factor).astype(np.uint64)
    return (own, np.zeros_like(own), bit) if hand.rank == CLIENT else (np.zeros_like(own), own, bit)


def lattice_query(one_hot: Array, table: Array) -> tuple[Array, Array, Array]:
    """S (T, n), the client's integers; the server's integers H (n, d); and its own C (T, d) = 2^39 X + S H.

    one_hot (T, V), the client's, and table (V, d), the server's, must be inputs of the program as they are; X is their
    product. S H is meant modulo the ring. In the clear S and H are zeros.
    """
    return tuple(_on_shares.bind(one_hot, table, step="lattice_query"))


def _lattice_query_in_the_clear(one_hot: Array, table: Array) -> tuple[Array, Array, Array]:
    tokens, width = one_hot.shape[0], table.shape[1]
    zeros = (jnp.zeros(shape, np.int32) for shape in ((tokens, lookup.DEGREE), (lookup.DEGREE, width)))
    return *zeros, 2.0**lookup.SCALE_BITS * (one_hot @ table)


def _lattice_query_shapes(one_hot: Shape, table: Shape) -> tuple[Shape, ...]:
    (tokens, _), (_, width) = one_hot, table
    return (tokens, lookup.DEGREE), (lookup.DEGREE, width), (tokens, width)


def _lattice_table(hand: Hand, table: np.ndarray | None) -> lookup.Table | None:
    """What the server makes of its table before a first query."""
    if hand.field != "FM64" or hand.fraction_bits < 18:
        raise UserError(
            f"a lattice lookup needs the ring FM64 and 18 fraction bits or more, not {hand.field} and "
            f"{hand.fraction_bits}; compute without it (program tuned-lattice_lookup)"
        )
    return None if table is None else lookup.Table.of(table, hand.fraction_bits)


def _lattice_query_of_a_party(
    hand: Hand, one_hot: np.ndarray | None, table: lookup.Table | None, shapes: Sequence[Shape]
) -> tuple[np.ndarray, ...]:
    """The client sends its queries, some tokens at a time, and the server selects."""
    (tokens, vocabulary), (_, width) = shapes
    secrets, hint = np.zeros((tokens, lookup.DEGREE), np.uint64), np.zeros((lookup.DEGREE, width), np.uint64)
    selected = np.zeros((tokens, width), np.uint64)
    at_once = lookup.TOKENS_AT_ONCE
    spans = [slice(low, min(low + at_once, tokens)) for low in range(0, tokens, at_once)]
    if hand.rank == CLIENT:
        ids = one_hot.argmax(1)
        for span in spans:
            made, query = lookup.encrypt(ids[span], vocabulary)
            secrets[span] = made.astype(np.uint64)
            hand.send(query)
    else:
        hint = table.hint
        queries = np.empty((tokens, vocabulary, lookup.SENT_BITS // 8), np.uint8)
        for span in spans:
            message = hand.receive(queries[span].size)
            queries[span] = np.frombuffer(message, np.uint8).reshape(queries[span].shape)
        selected = table.select(queries)
    return secrets.ravel(), hint.ravel(), selected.ravel()


def lattice_product(x: Array, matrix: Array) -> Array:
    """2^28 times x (rows, k) times the server's matrix (k, m), which must be an input of the program as it is."""
    return _on_shares.bind(x, matrix, step="lattice_product")[0]


def _lattice_matrix(hand: Hand, matrix: np.ndarray | None) -> lattice.Matrix | None:
    least, most = lattice.FRACTION_BITS
    if hand.field != "FM64" or not least <= hand.fraction_bits <= most:
        raise UserError(
            f"lattice products need the ring FM64 and {least} to {most} fraction bits, not {hand.field} and "
            f"{hand.fraction_bits}; compute without them (program tuned-lattice_products)"
        )
    return None if matrix is None else lattice.Matrix(matrix, hand.fraction_bits)


def _lattice_product_of_a_share(
    hand: Hand, share: np.ndarray, matrix: lattice.Matrix | None, shapes: Sequence[Shape]
) -> tuple[np.ndarray, ...]:
    """The client sends its share encrypted, all groups of rows one by one, and then takes the answers.

    In the first such step of a session it also sends the keys that the server needs.
    """
    (rows, inner), (_, columns) = shapes
    layout, own = lattice.Layout(rows, inner, columns), share.reshape(rows, inner)
    name = "lattice_product"
    if hand.rank == CLIENT:
        if name not in hand.kept:
            hand.kept[name] = lattice.Secret()
            hand.send(hand.kept[name].announced)
        secret = hand.kept[name]
        for span in layout.spans():
            hand.send(secret.encrypt(own[span], layout, hand.fraction_bits))
        found = [
            secret.decrypt(hand.receive(layout.answer_bytes), layout, span.stop - span.start) for span in layout.spans()
        ]
        return (np.concatenate(found).ravel(),)
    if name not in hand.kept:
        hand.kept[name] = lattice.Public(hand.receive(lattice.Public.size()))
    queries = [hand.receive(layout.query_bytes) for _ in range(layout.groups)]
    product = matrix.times_own(own)
    answers, masked = matrix.answer(hand.kept[name], queries, layout)
    for answer in answers:
        hand.send(answer)
    return ((product + masked).ravel(),)


def unmasked(masked: Array, product: Array) -> Array:
    """C - S H in fixed point, of the server's C in fixed point and a secret S H of integers; in the clear C."""
    return _on_shares.bind(masked, product, step="unmasked")[0]


def apart(x: Array) -> Array:
    """The secret x as it is. SPU does not see what comes before: it would multiply two public factors beforehand, and
    2^-16 times 2^-16 is 0 in its fixed point."""
    return _on_shares.bind(x, step="apart")[0]


def negative(x: Array) -> Array:
    """Whether x < 0, as a secret bit, for secret |x| < 2^(31 - fraction bits); beyond, the result is some other bit."""
    return _on_shares.bind(x, step="negative")[0]


def _negative_of_a_share(hand: Hand, share: np.ndarray) -> tuple[np.ndarray, ...]:
    return (hand.narrow_sign(share & np.uint64(0xFFFFFFFF)),)


def exponential(x: Array) -> Array:
    """exp(x) by SQUARINGS squarings, for secret x in [-1.5 2^SQUARINGS, 0]. It turns round at -2^SQUARINGS, is back at
    1 at twice that, and above it beyond."""
    return _on_shares.bind(x, step="exponential")[0]


def by_squarings(x: Array) -> Array:
    """What SPU computes for `exponential`, with x / 2^SQUARINGS + its square / 2 as the argument that it divides."""
    return jnp.exp(x + x * x * 2.0 ** -(SQUARINGS + 1))


def _exponential_in_the_clear(x: Array) -> tuple[Array]:
    y = x / 2**SQUARINGS
    return ((1.0 + y + y * y / 2.0) ** (2**SQUARINGS),)


def _same_shapes(results: int) -> Callable[..., tuple[Shape, ...]]:
    return lambda *shapes: (shapes[-1],) * results


@dataclass(frozen=True)
class Step:
    """A step on shares: what it is in the clear, what a party does, and (dtype, owner or None) of each result.

    of_shares: takes the party's `Hand` and its share of every input as ring elements (n,), and gives its share of every
    result. shapes: of the results, from those of the inputs.
    prepare: set for a step whose last input is the server's own. `of_shares` then takes that as `prepare` makes it
    once of it, None at the client, and at the end the shapes of all.
    in_the_clear: with `prepare`; the other inputs are each some party's own as well, and come as they were put.
    """

    clear: Callable[..., tuple[Array, ...]]
    of_shares: Callable[..., tuple[np.ndarray, ...]]
    results: tuple[tuple[Any, int | None], ...]
    shapes: Callable[..., tuple[Shape, ...]]
    prepare: Callable[[Hand, np.ndarray | None], Any] | None = None
    in_the_clear: bool = False


STEPS = {
    "split_powers": Step(
        _split_powers_in_the_clear,
        _split_powers_of_a_share,
        ((np.float32, None), (np.float32, SERVER), (np.bool_, None)),
        _same_shapes(3),
    ),
    "lattice_query": Step(
        _lattice_query_in_the_clear,
        _lattice_query_of_a_party,
        ((np.int32, CLIENT), (np.int32, SERVER), (np.float32, None)),
        _lattice_query_shapes,
        _lattice_table,
        in_the_clear=True,
    ),
    "lattice_product": Step(
        lambda x, matrix: (2.0**lattice.RESULT_BITS * (x @ matrix),),
        _lattice_product_of_a_share,
        ((np.float32, None),),
        lambda x, matrix: ((x[0], matrix[1]),),
        _lattice_matrix,
    ),
    "unmasked": Step(
        lambda masked, product: (masked,),
        lambda hand, masked, product: (masked - product,),
        ((np.float32, None),),
        _same_shapes(1),
    ),
    "negative": Step(lambda x: (x < 0.0,), _negative_of_a_share, ((np.bool_, None),), _same_shapes(1)),
    "exponential": Step(
        _exponential_in_the_clear, lambda hand, share: (hand.squared(share),), ((np.float32, None),), _same_shapes(1)
    ),
    "apart": Step(lambda x: (x,), lambda hand, share: (share,), ((np.float32, None),), _same_shapes(1)),
}

_on_shares = jax.extend.core.Primitive("on_shares")
_on_shares.multiple_results = True
_on_shares.def_impl(lambda *inputs, step: STEPS[step].clear(*inputs))
_on_shares.def_abstract_eval(
    lambda *inputs, step: [
        jax.core.ShapedArray(shape, dtype)
        for shape, (dtype, _) in zip(STEPS[step].shapes(*(x.shape for x in inputs)), STEPS[step].results, strict=True)
    ]
)
mlir.register_lowering(
    _on_shares, mlir.lower_fun(lambda *inputs, step: STEPS[step].clear(*inputs), multiple_results=True)
)


@dataclass(frozen=True)
class Segment:
    """What SPU runs at once: a JAX function of the named inputs that gives the named outputs."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ShareStep:
    """A step that each party takes on its shares of `inputs`."""

    step: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A function as segments and steps in order; `drop[i]` are the names nobody needs after part i."""

    parts: tuple[Segment | ShareStep, ...]
    drop: tuple[tuple[str, ...], ...]


def plan(
    function: Callable[..., Any],
    arguments: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Plan | None:
    """Cut `function` at its steps on shares; None if it has none.

    inputs, outputs: the names its arguments and results have. What depends on no argument is public, and is computed in
    every segment that needs it. ValueError for a step on a public value or inside a nested function (jit, scan).
    """
    closed = jax.make_jaxpr(function)(*arguments)
    jaxpr = closed.jaxpr
    if not any(equation.primitive is _on_shares for equation in jaxpr.eqns):
        if "on_shares[" in str(jaxpr):
            raise ValueError("a step on shares must not stand inside a nested function")
        return None
    names: dict[Any, str] = dict(zip(jaxpr.invars, inputs, strict=True))
    secret = set(jaxpr.invars)
    groups: list[list[Any]] = [[]]
    steps: list[Any] = []
    for equation in jaxpr.eqns:
        if equation.primitive is _on_shares:
            if any(hasattr(variable, "val") or variable not in secret for variable in equation.invars):
                raise ValueError("a step on shares needs a secret")
            steps.append(equation)
            groups.append([])
        elif any(variable in secret for variable in _variables(equation.invars)):
            groups[-1].append(equation)
        else:
            continue
        secret.update(equation.outvars)
    public = [e for e in jaxpr.eqns if e.primitive is not _on_shares and not any(v in secret for v in e.outvars)]
    defined = [{v for e in group for v in e.outvars} for group in groups]

    def name(variable: Any) -> str:
        return names.setdefault(variable, f"{outputs[0]}.{len(names)}")

    wanted: list[list[Any]] = []  # of each group, what others need of it, in order
    for index, own in enumerate(defined):
        later = [v for e in (e for group in groups[index + 1 :] for e in group) for v in _variables(e.invars)]
        later += [v for e in steps[index:] for v in e.invars]
        if index < len(groups) - 1:
            later += _variables(jaxpr.outvars)
        wanted.append([v for v in dict.fromkeys(later) if v in own])
    parts: list[Segment | ShareStep] = []
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        results = list(jaxpr.outvars) if last else wanted[index]
        if results:
            function_, needed = _segment(closed, [*public, *group], results, secret)
            made = tuple(outputs) if last else tuple(name(v) for v in results)
            parts.append(Segment(function_, tuple(name(v) for v in needed), made))
        if not last:
            equation = steps[index]
            made = tuple(name(v) for v in equation.outvars)
            parts.append(ShareStep(equation.params["step"], tuple(name(v) for v in equation.invars), made))
    return Plan(tuple(parts), _unneeded(parts, set(inputs) | set(outputs)))


def _variables(values: Sequence[Any]) -> list[Any]:
    """The values that are variables and not numbers."""
    return [value for value in values if not hasattr(value, "val")]


def _segment(
    closed: Any, equations: Sequence[Any], results: Sequence[Any], secret: set[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """A JAX function that computes `results` by those of `equations` that they need, and the secrets it takes."""
    needed = set(_variables(results))
    kept = []
    for equation in reversed(equations):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(_variables(equation.invars))
    made = {variable for equation in kept for variable in equation.outvars}
    arguments = sorted((v for v in needed if v in secret and v not in made), key=lambda v: v.count)
    constants = [(v, c) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True) if v in needed]
    jaxpr = closed.jaxpr.replace(
        constvars=[variable for variable, _ in constants],
        invars=arguments,
        outvars=list(results),
        eqns=kept[::-1],
        debug_info=None,
    )

    def segment(*values: Array) -> Any:
        found = jax.core.eval_jaxpr(jaxpr, [constant for _, constant in constants], *values)
        return found[0] if len(found) == 1 else found

    return segment, arguments


def _unneeded(parts: Sequence[Segment | ShareStep], kept: set[str]) -> tuple[tuple[str, ...], ...]:
    """After each part, the names that no later one takes."""
    taken = [set(part.inputs) for part in parts]
    drop: list[tuple[str, ...]] = []
    alive: set[str] = set()
    for index, part in enumerate(parts):
        alive |= set(part.outputs)
        later = set().union(*taken[index + 1 :])
        over = sorted(name for name in alive if name not in later and name not in kept)
        alive -= set(over)
        drop.append(tuple(over))
    return tuple(drop)
