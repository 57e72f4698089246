"""Whether a model's values stay within what SPU's fixed point holds; beyond it a private answer is some other number.

With k bits in the ring and f fraction bits, and without a word from SPU when they are passed:

- a product has 2f fraction bits before it is truncated, and truncation (Cheetah's, which first adds 2^(k-2) so that
  nothing is negative) takes products below 2^(k-2-2f): 2^26;
- `rsqrt` takes arguments below 2^(f-1): 2^17, a variance;
- a division takes denominators below 2^f, and loses digits long before: 1/x is off by 4 % at 2^12;
- SPU's exponential (1 + x / 2^8)^(2^8) turns round at -2^8 and is above 1 again below -2^9;
- `shares.exponential` turns round at -2^5 and is above 1 below -2^6, half of which is allowed here;
- `shares.negative` compares in 32 bits: what is below 2^(31-f), 2^13. Half of that is allowed here, because the next
  value is no larger one but one of the other sign, and other prompts than those looked at go somewhat further;
- anything else stays below 2^(k-2-f).

The limits of `rsqrt` and divisions were found with SPU 0.9.5, k = 64 and f = 18 (tests/two_party/test_fixed_point.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax import Array

from aero.model import GPT
from aero.two_party.lattice.share_steps import SQUARINGS
from aero.two_party.program.forward import forward
from aero.two_party.program.nonlinear import MASKED
from aero.two_party.program.operations import KINDS
from aero.two_party.program.optimizations import chosen, named
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime.settings import FIELD_BITS, NARROW_FIELD, Settings, TwoPartyError

TOKENS = 128
"""Positions that are looked at, at most: magnitudes hardly grow with the context, the time of looking does."""
NARROW_MARGIN = 2.0
PRODUCTS = {"mul", "dot_general", "square", "integer_pow", "conv_general_dilated"}
_INSIDE = {"pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}


@dataclass(frozen=True)
class Beyond:
    """How far a value goes: what it is of, its magnitude, and the limit."""

    what: str
    value: float
    limit: float


def limits(settings: Settings) -> dict[str, float]:
    """{"product", "rsqrt", "div", "exp", "squarings", "negative", "value": the magnitude that each must stay below}."""
    ring, fraction = FIELD_BITS[settings.field], settings.fraction_bits
    return {
        "product": 2.0 ** (ring - 2 - 2 * fraction),
        "rsqrt": 2.0 ** (fraction - 1),
        "div": 2.0**fraction,
        "exp": 2.0**9,
        "squarings": 2.0**SQUARINGS,
        "negative": 2.0 ** (FIELD_BITS[NARROW_FIELD] - 1 - fraction) / NARROW_MARGIN,
        "value": 2.0 ** (ring - 2 - fraction),
    }


def watched(
    kind: str, arrays: tuple[Array, ...], constants: Mapping[str, float], found: list[tuple[str, str, float]]
) -> Array:
    """The operation's result in the clear; adds (limit's name, operation, magnitude) of all that it computes."""
    function = KINDS[kind].function
    closed = jax.make_jaxpr(lambda *given: function(*given, **constants))(*arrays)

    def note(limit: str, values: Any) -> None:
        values = np.asarray(values)
        if values.size and values.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                largest = float(np.abs(values).max())
            found.append((limit, kind, np.inf if np.isnan(largest) else largest))

    def run(jaxpr: Any, consts: Any, given: Any) -> list[Any]:
        known: dict[Any, Any] = {}

        def read(one: Any) -> Any:
            return one.val if isinstance(one, jax.extend.core.Literal) else known[one]

        known.update(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *given], strict=True))
        for equation in jaxpr.eqns:
            name, values = equation.primitive.name, [read(one) for one in equation.invars]
            if name in _INSIDE:
                inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
                results = run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values)
            else:
                if name in ("rsqrt", "sqrt"):
                    note("rsqrt", values[0])
                elif name == "div":
                    note("div", values[1])
                elif name in ("exp", "exp2"):
                    # Masked entries are exponentiated, too, and left out afterwards.
                    note("exp", np.where(np.asarray(values[0]) > 0.8 * MASKED, values[0], 0.0))
                elif name == "on_shares" and equation.params["step"] == "negative":
                    note("negative", values[0])
                elif name == "on_shares" and equation.params["step"] == "exponential":
                    note("squarings", np.where(np.asarray(values[0]) > 0.8 * MASKED, values[0], 0.0))
                out = equation.primitive.bind(*values, **equation.params)
                results = list(out) if equation.primitive.multiple_results else [out]
                if name != "on_shares":
                    for result in results:
                        note("product" if name in PRODUCTS else "value", result)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(one) for one in jaxpr.outvars]

    (result,) = run(closed.jaxpr, closed.consts, arrays)
    return result


def probes(model: GPT) -> Iterator[np.ndarray]:
    """Token ids (T,) to look at a model's values with: drawn at random, and one token again and again."""
    tokens = min(model.config.context, TOKENS)
    drawn = np.random.default_rng(0).integers(0, model.config.vocabulary, tokens)
    yield from (drawn, np.full(tokens, drawn[0]))


def farthest(model: GPT, program: str, settings: Settings, ids: np.ndarray | None = None) -> Beyond:
    """Of all values of a pass over `ids` (T,), those of `probes` if None, the one nearest to its limit or furthest
    beyond it. program: as `within_budget` returns it. Computed in the clear, by who holds the model.
    """
    found: list[tuple[str, str, float]] = []

    def run(kind: str, *arrays: Array, **constants: float) -> Array:
        if kind == "embedding_lookup":  # rows of a table, which its owner has checked; not in fixed point
            return arrays[0] @ arrays[1]
        return watched(kind, arrays, constants, found)

    weights = {name: jax.numpy.asarray(value) for name, value in weight_arrays(model, program).items()}
    for prompt in probes(model) if ids is None else [ids]:
        one_hot = jax.nn.one_hot(np.asarray(prompt), model.config.vocabulary, dtype=np.float32)
        forward(run, model.architecture, model.config, program, weights, one_hot)
    most = limits(settings)
    name, kind, value = max(found, key=lambda one: one[2] / most[one[0]])
    return Beyond(f"{kind} ({name})", value, most[name])


def fitting(model: GPT, program: str, settings: Settings) -> str:
    """`program`, or the same without one or several of fewer_squarings, narrow_comparisons and lattice_products, the
    first in which the model's values fit: these hold less than SPU does. TwoPartyError if they fit in none.
    """
    savings, rebased = chosen(program)
    few, narrow, outside = (savings & {name} for name in ("fewer_squarings", "narrow_comparisons", "lattice_products"))
    *others, last = dict.fromkeys(
        frozenset().union(*less) for less in itertools.product(*((frozenset(), one) for one in (outside, narrow, few)))
    )
    for less in others:
        one = named(savings - less, rebased)
        found = farthest(model, one, settings)
        if found.value < found.limit:
            return one
    program = named(savings - last, rebased)
    check(model, program, settings)
    return program


def check(model: GPT, program: str, settings: Settings) -> None:
    """TwoPartyError if the model's values leave the fixed point for `probes`: its private answers would be wrong."""
    found = farthest(model, program, settings)
    if not found.value < found.limit:
        raise TwoPartyError(
            f"the model's values do not fit fixed point: {found.value:.3g} in {found.what}, which holds less than "
            f"{found.limit:.3g} with {settings.fraction_bits} fraction bits in {settings.field}; the private answers "
            "would be wrong"
        )
