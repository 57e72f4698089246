"""Cut a program at its steps on shares (`aero.two_party.lattice.share_steps`) into what SPU runs between them."""

from __future__ import annotations

import itertools
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


Plan = list[tuple[Segment | ShareStep, list[str]]]
"""A function as segments and steps in order, each with the names that no later part needs."""


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
    groups, steps, public = [[]], [], []  # of equations
    for equation in jaxpr.eqns:
        if equation.primitive is on_shares:
            if any(hasattr(variable, "val") or variable not in secret for variable in equation.invars):
                raise ValueError("a step on shares needs a secret")
            steps.append(equation)
            groups.append([])
        elif secret.isdisjoint(_variables(equation.invars)):
            public.append(equation)
            continue
        else:
            groups[-1].append(equation)
        secret.update(equation.outvars)

    def name(variable: Any) -> str:
        return names.setdefault(variable, f"{outputs[0]}.{len(names)}")

    parts: list[Segment | ShareStep] = []
    functions: dict[Any, Callable[..., Any]] = {}
    for index, group in enumerate(groups):
        last = index == len(steps)
        results = jaxpr.outvars
        if not last:
            own = {variable for equation in group for variable in equation.outvars}
            later = [*itertools.chain(*groups[index + 1 :]), *steps[index:]]
            used = [*(variable for equation in later for variable in equation.invars), *jaxpr.outvars]
            results = [variable for variable in dict.fromkeys(_variables(used)) if variable in own]
        if results:
            function_, needed = _segment(closed, [*public, *group], results, secret, functions)
            made = outputs if last else map(name, results)
            parts.append(Segment(function_, tuple(map(name, needed)), tuple(made)))
        if not last:
            taken, made = (tuple(map(name, some)) for some in (steps[index].invars, steps[index].outvars))
            types = tuple((variable.aval.shape, variable.aval.dtype) for variable in steps[index].outvars)
            parts.append(ShareStep(steps[index].params["step"], taken, made, types))
    kept = {*inputs, *outputs}
    last_use = {name: index for index, part in enumerate(parts) for name in (*part.inputs, *part.outputs)}
    ends: list[list[str]] = [[] for _ in parts]
    for name_ in sorted(last_use.keys() - kept):
        ends[last_use[name_]].append(name_)
    return list(zip(parts, ends, strict=True))


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

    # The text of a jaxpr numbers its variables in order, so equal computations have equal texts.
    key = str(jaxpr), *(np.asarray(constant).tobytes() for _, constant in constants)
    return functions.setdefault(key, segment), arguments
