"""Steps that each party takes on its own shares, and programs with such steps cut into what SPU runs between them.

A secret x is held as x_0 + x_1 mod 2^64, x_0 by the client and x_1 by the server, each a random number to whoever lacks
the other. What a party computes from its share alone costs no communication and tells nobody anything; SPU offers no
such step, so a program that has one is run as several SPU programs with the step between them.

Powers of two. For X in [0, 16) with f fraction bits, take the shares modulo 2^(f+5): X_i = b_i 2^(f+4) + Y_i with one
bit b_i. Then X = Y_0 + Y_1 if b_0 = b_1 and Y_0 + Y_1 - 16 if not, that is

    2^-X = 2^-Y_0 2^-Y_1 (2^16 if b_0 xor b_1 else 1).

The powers of Y_i are each party's own, the bits are already shared by xor: one product of a number of the client's with
one of the server's and two selections give the exponential, where SPU's own takes eight squarings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters import mlir

from aero.two_party.settings import CLIENT, SERVER

OCTAVES = 16.0
"""`split_powers` takes X below this."""
CLIENT_SCALE, SERVER_SCALE = 2.0**13, 2.0**12
"""Factors on 2^-Y_i: at 18 fraction bits their product takes 61 bits of the ring, and is off by below 2^-15 of it."""


def split_powers(x: Array) -> tuple[Array, Array, Array]:
    """2^13 2^-Y_0 as a secret that the client made, 2^12 2^-Y_1 as the server's own, and the secret bit b_0 xor b_1.

    x: secret, in [0, 16); beyond, the result is some other number. In the clear Y_0 = X and the bit is false.
    """
    return tuple(_on_shares.bind(x, step="split_powers"))


def _split_powers_in_the_clear(x: Array) -> tuple[Array, Array, Array]:
    return CLIENT_SCALE * jnp.exp2(-x), jnp.full_like(x, SERVER_SCALE), jnp.zeros(x.shape, bool)


def _split_powers_of_a_share(rank: int, share: np.ndarray, fraction_bits: int) -> tuple[np.ndarray, ...]:
    """The party's parts of the three results: ring elements, for the bit 0 or 1."""
    low_bits = fraction_bits + 4
    remainder = share & np.uint64((1 << low_bits) - 1)
    bit = (share >> np.uint64(low_bits)) & np.uint64(1)
    # Powers are taken in float64: 53 bits, of which at most 32 are used.
    power = np.exp2(-remainder.astype(np.float64) / (1 << fraction_bits))
    factor = (CLIENT_SCALE, SERVER_SCALE)[rank] * (1 << fraction_bits)
    own = np.rint(power * factor).astype(np.uint64)
    return (own, np.zeros_like(own), bit) if rank == CLIENT else (np.zeros_like(own), own, bit)


@dataclass(frozen=True)
class Step:
    """A step on shares: what it is in the clear, what a party does, and (dtype, owner or None) of each result."""

    clear: Callable[..., tuple[Array, ...]]
    of_share: Callable[[int, np.ndarray, int], tuple[np.ndarray, ...]]
    results: tuple[tuple[Any, int | None], ...]


STEPS = {
    "split_powers": Step(
        _split_powers_in_the_clear,
        _split_powers_of_a_share,
        ((np.float32, None), (np.float32, SERVER), (np.bool_, None)),
    )
}

_on_shares = jax.extend.core.Primitive("on_shares")
_on_shares.multiple_results = True
_on_shares.def_impl(lambda x, step: STEPS[step].clear(x))
_on_shares.def_abstract_eval(lambda x, step: [jax.core.ShapedArray(x.shape, dtype) for dtype, _ in STEPS[step].results])
mlir.register_lowering(_on_shares, mlir.lower_fun(lambda x, step: STEPS[step].clear(x), multiple_results=True))


@dataclass(frozen=True)
class Segment:
    """What SPU runs at once: a JAX function of the named inputs that gives the named outputs."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ShareStep:
    """A step that each party takes on its share of `input`."""

    step: str
    input: str
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
            if equation.invars[0] not in secret:
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
        later += [e.invars[0] for e in steps[index:]]
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
            parts.append(ShareStep(equation.params["step"], name(equation.invars[0]), made))
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
    taken = [set(part.inputs) if isinstance(part, Segment) else {part.input} for part in parts]
    drop: list[tuple[str, ...]] = []
    alive: set[str] = set()
    for index, part in enumerate(parts):
        alive |= set(part.outputs)
        later = set().union(*taken[index + 1 :])
        over = sorted(name for name in alive if name not in later and name not in kept)
        alive -= set(over)
        drop.append(tuple(over))
    return tuple(drop)
