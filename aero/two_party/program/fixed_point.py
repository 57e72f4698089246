"""Whether a model's values fit SPU's fixed point. SPU does not report an overflow: a private answer is then wrong.

With k bits in the ring and f fraction bits:

- a multiplication has 2f fraction bits before truncation, and Cheetah's truncation, which first adds 2^(k-2) so that
  nothing is negative, takes values below 2^(k-2-2f): 2^26;
- `rsqrt` takes arguments below 2^(f-1): a variance of 2^17;
- a division takes denominators below 2^f, and loses precision long before: 1/x is off by 4 % at 2^12;
- SPU's exponential (1 + x / 2^8)^(2^8) has its minimum at -2^8 and exceeds 1 below -2^9;
- `share_steps.exponential` has its minimum at -2^5 and exceeds 1 below -2^6; half of that is allowed here;
- `share_steps.negative` compares in 32 bits, values below 2^(31-f) = 2^13; half of that is allowed here, because beyond
  it the sign flips, and other prompts reach somewhat further than the probes;
- anything else stays below 2^(k-2-f).

The limits of `rsqrt` and division were measured with SPU 0.9.5, k = 64, f = 18 (tests/two_party/test_fixed_point.py).
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
from aero.two_party.program.optimizations import parse_program, program_name
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime.settings import FIELD_BITS, NARROW_FIELD, Settings, TwoPartyError

TOKENS = 128
"""Positions probed, at most: magnitudes hardly grow with the context, but time does."""
NARROW_MARGIN = 2.0
PRODUCTS = {"mul", "dot_general", "square", "integer_pow", "conv_general_dilated"}
_INSIDE = {"pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}


@dataclass(frozen=True)
class Beyond:
    """The value nearest to its limit: operation, magnitude, limit."""

    what: str
    value: float
    limit: float


def limits(settings: Settings) -> dict[str, float]:
    """The magnitude that each of "product", "rsqrt", "div", "exp", "squarings", "negative", "value" must stay below."""
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
    """The operation's result in the clear; appends (name of the limit, operation, magnitude) for every value in it."""
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
                    # Masked entries are exponentiated too, and discarded afterwards.
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
    """Token ids (T,) to probe a model with: random ones, and one token repeated."""
    tokens = min(model.config.context, TOKENS)
    drawn = np.random.default_rng(0).integers(0, model.config.vocabulary, tokens)
    yield from (drawn, np.full(tokens, drawn[0]))


def farthest(model: GPT, program: str, settings: Settings, ids: np.ndarray | None = None) -> Beyond:
    """The value nearest to or furthest beyond its limit in a pass over `ids` (T,), or over `probes` if None.

    program: as `within_budget` returns it. Computed in the clear by the holder of the model.
    """
    found: list[tuple[str, str, float]] = []

    def run(kind: str, *arrays: Array, **constants: float) -> Array:
        if kind == "embedding_lookup":  # rows of a table that its owner has checked; not in fixed point
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
    """The first program in which the model's values fit: `program`, or without some of the optimizations whose range
    is smaller than SPU's (fewer_squarings, narrow_comparisons, lattice_products). TwoPartyError if none fits."""
    optimizations, rebased = parse_program(program)
    droppable = [optimizations & {name} for name in ("lattice_products", "narrow_comparisons", "fewer_squarings")]
    choices = itertools.product(*((frozenset(), one) for one in droppable))
    candidates = [
        program_name(optimizations - dropped, rebased)
        for dropped in dict.fromkeys(frozenset().union(*choice) for choice in choices)
    ]
    for candidate in candidates[:-1]:
        found = farthest(model, candidate, settings)
        if found.value < found.limit:
            return candidate
    check(model, candidates[-1], settings)
    return candidates[-1]


def check(model: GPT, program: str, settings: Settings) -> None:
    """TwoPartyError if the model's values overflow the fixed point on `probes`."""
    found = farthest(model, program, settings)
    if not found.value < found.limit:
        raise TwoPartyError(
            f"the model's values do not fit fixed point: {found.value:.3g} in {found.what}, which holds less than "
            f"{found.limit:.3g} with {settings.fraction_bits} fraction bits in {settings.field}; the private answers "
            "would be wrong"
        )
