"""Cut a program at its steps on shares (`aero.two_party.lattice.share_steps`) into what SPU runs between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from aero.two_party.lattice.share_steps import on_shares


@dataclass(frozen=True)
class Segment:
    """One program of SPU: a JAX function of the named inputs with the named outputs.

    Segments of a plan that compute the same, as those of its layers, have one function, so that it is compiled once.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ShareStep:
    """A step that each party computes on its shares of `inputs`. types: shape and type of each output."""

    step: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[tuple[tuple[int, ...], np.dtype], ...]


@dataclass(frozen=True)
class Plan:
    """A function as segments and steps in order; `drop[i]` are the names no longer needed after part i."""

    parts: tuple[Segment | ShareStep, ...]
    drop: tuple[tuple[str, ...], ...]


def plan(
    function: Callable[..., Any],
    arguments: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[str],
    outputs: Sequence[str],
    public_inputs: Collection[str] = (),
) -> Plan | None:
    """Cut `function` at its steps on shares; None if it has none.

    inputs, outputs: names of its arguments and results. Values that depend on no argument, or on public ones alone, are
    public, and computed in every segment that needs them. ValueError for a step on a public value or inside a nested
    function (jit, scan).
    """
    closed = jax.make_jaxpr(function)(*arguments)
    jaxpr = closed.jaxpr
    if not any(equation.primitive is on_shares for equation in jaxpr.eqns):
        if "on_shares[" in str(jaxpr):
            raise ValueError("a step on shares must not stand inside a nested function")
        return None
    names: dict[Any, str] = dict(zip(jaxpr.invars, inputs, strict=True))
    secret = {variable for variable, name in names.items() if name not in public_inputs}
    groups: list[list[Any]] = [[]]
    steps: list[Any] = []
    for equation in jaxpr.eqns:
        if equation.primitive is on_shares:
            if any(hasattr(variable, "val") or variable not in secret for variable in equation.invars):
                raise ValueError("a step on shares needs a secret")
            steps.append(equation)
            groups.append([])
        elif any(variable in secret for variable in _variables(equation.invars)):
            groups[-1].append(equation)
        else:
            continue
        secret.update(equation.outvars)
    public = [e for e in jaxpr.eqns if e.primitive is not on_shares and not any(v in secret for v in e.outvars)]
    defined = [{v for e in group for v in e.outvars} for group in groups]

    def name(variable: Any) -> str:
        return names.setdefault(variable, f"{outputs[0]}.{len(names)}")

    wanted: list[list[Any]] = []  # for each group, the values that others need, in order
    for index, own in enumerate(defined):
        later = [v for e in (e for group in groups[index + 1 :] for e in group) for v in _variables(e.invars)]
        later += [v for e in steps[index:] for v in e.invars]
        if index < len(groups) - 1:
            later += _variables(jaxpr.outvars)
        wanted.append([v for v in dict.fromkeys(later) if v in own])
    parts: list[Segment | ShareStep] = []
    functions: dict[Any, Callable[..., Any]] = {}
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        results = list(jaxpr.outvars) if last else wanted[index]
        if results:
            function_, needed = _segment(closed, [*public, *group], results, secret, functions)
            made = tuple(outputs) if last else tuple(name(v) for v in results)
            parts.append(Segment(function_, tuple(name(v) for v in needed), made))
        if not last:
            equation = steps[index]
            taken, made = (tuple(map(name, some)) for some in (equation.invars, equation.outvars))
            types = tuple((variable.aval.shape, variable.aval.dtype) for variable in equation.outvars)
            parts.append(ShareStep(equation.params["step"], taken, made, types))
    return Plan(tuple(parts), _unneeded(parts, set(inputs) | set(outputs)))


def _variables(values: Sequence[Any]) -> list[Any]:
    """Those of `values` that are variables, not numbers."""
    return [value for value in values if not hasattr(value, "val")]


def _segment(
    closed: Any,
    equations: Sequence[Any],
    results: Sequence[Any],
    secret: set[Any],
    functions: dict[Any, Callable[..., Any]],
) -> tuple[Callable[..., Any], list[Any]]:
    """A JAX function that computes `results` by the equations they need, and the secrets and inputs it takes.

    functions: those made before; one of them is returned if it computes the same.
    """
    needed = set(_variables(results))
    kept = []
    for equation in reversed(equations):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(_variables(equation.invars))
    made = {variable for equation in kept for variable in equation.outvars}
    given = secret.union(closed.jaxpr.invars)
    arguments = sorted((v for v in needed if v in given and v not in made), key=lambda v: v.count)
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

    key = _computation(jaxpr), *(np.asarray(constant).tobytes() for _, constant in constants)
    return functions.setdefault(key, segment), arguments


def _computation(jaxpr: Any) -> tuple[Any, ...]:
    """What a jaxpr computes, whatever its variables are called. Its text says the same, but takes seconds."""
    numbers: dict[Any, int] = {}

    def reference(variable: Any) -> tuple[Any, Any]:
        known = repr(variable.val) if hasattr(variable, "val") else numbers.setdefault(variable, len(numbers))
        return variable.aval, known

    def references(variables: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(reference, variables))

    given = references([*jaxpr.constvars, *jaxpr.invars])
    steps = tuple(
        (
            *(equation.primitive, references(equation.invars), references(equation.outvars)),
            *((name, _hashable(value)) for name, value in equation.params.items()),
        )
        for equation in jaxpr.eqns
    )
    return given, steps, references(jaxpr.outvars)


def _hashable(value: Any) -> Any:
    """A list as a tuple. Any other value without a hash is equal to none: sharing a function for it could be wrong."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    try:
        hash(value)
    except TypeError:
        return object()
    return value


def _unneeded(parts: Sequence[Segment | ShareStep], kept: set[str]) -> tuple[tuple[str, ...], ...]:
    """After each part, the names that no later part takes."""
    last = {name: index for index, part in enumerate(parts) for name in (*part.inputs, *part.outputs)}
    over = [
        sorted(name for name, at in last.items() if at == index and name not in kept) for index in range(len(parts))
    ]
    return tuple(map(tuple, over))
