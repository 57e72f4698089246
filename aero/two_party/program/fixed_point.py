"""Whether a model's values fit SPU's fixed point. SPU does not report an overflow: a private answer is then wrong.

With k bits in the ring and f fraction bits:

- a multiplication has 2f fraction bits before truncation, and Cheetah's truncation, which first adds 2^(k-2) so that
  nothing is negative, takes values below 2^(k-2-2f): 2^26;
- `rsqrt` takes arguments below 2^(f-1): a variance of 2^17;
- a division takes denominators below 2^f, and loses precision long before: 1/x is off by 4 % at 2^12;
- SPU's exponential (1 + x / 2^8)^(2^8) has its minimum at -2^8 and exceeds 1 below -2^9;
- `share_steps.negative` compares in 32 bits, values below 2^(31-f) = 2^13; half of that is allowed here, because beyond
  it the sign flips, and other prompts reach somewhat further than the probes;
- anything else stays below 2^(k-2-f).

The limits of `rsqrt` and division were measured with SPU 0.9.5, k = 64, f = 18 (tests/two_party/test_fixed_point.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from aero.model import GPT
from aero.two_party.lattice.share_steps import on_shares
from aero.two_party.program.forward import forward, prefix_past
from aero.two_party.program.inputs import at_positions
from aero.two_party.program.nonlinear import LOGIT_BOUND, MASKED, visible_entries
from aero.two_party.program.operations import KINDS
from aero.two_party.program.optimizations import parse_program, program_name
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime.settings import FIELD, FRACTION_BITS, NARROW_BITS, RING_BITS, TwoPartyError

TOKENS, LONGEST = 128, 1024
"""Most positions of most probes, and of the one probe of the whole context."""
FIRST_OPERATIONS, FIRST_AT_ONCE, WORST = 2e11, 512, 4
"""Most operations for trying tokens at the first position: enough for all tokens of the models trained here, some 800
of GPT-2's. Tokens tried at once; how many of the worst start a probe."""
NARROW_MARGIN = 2.0
OF_SMALLER_RANGE = (
    "lattice_products",
    "lattice_attention",
    "lattice_rest",
    "bounded_reciprocals",
    "narrow_comparisons",
    "bounded_logits",
)
LIMITS = {
    "product": 2.0 ** (RING_BITS - 2 - 2 * FRACTION_BITS),
    "rsqrt": 2.0 ** (FRACTION_BITS - 1),
    "div": 2.0**FRACTION_BITS,
    "exp": 2.0**9,
    "square": 2.0 ** ((RING_BITS - 2 - 2 * FRACTION_BITS) / 2),
    "negative": 2.0 ** (NARROW_BITS - 1 - FRACTION_BITS) / NARROW_MARGIN,
    "value": 2.0 ** (RING_BITS - 2 - FRACTION_BITS),
    "logit": LOGIT_BOUND,
}
"""What magnitudes must stay below."""
LIMITED = {"rsqrt": "rsqrt", "sqrt": "rsqrt", "div": "div", "exp": "exp", "exp2": "exp"}
LIMITED |= {"negative": "negative", "square": "square"}
"""The limit of the last argument of primitives and of steps on shares."""
PRODUCTS = {"mul", "dot_general", "square", "integer_pow", "conv_general_dilated"}
_MOVES = {"reshape", "transpose", "slice", "squeeze", "gather", "dynamic_slice"}
"""Primitives that only move values, which were noted before; of a step's results, some are dropped."""


@dataclass(frozen=True)
class Beyond:
    """The value nearest to its limit: operation, magnitude, limit, and where in the model it stands."""

    what: str
    value: float
    limit: float
    where: str


def _evaluate(jaxpr: Any, constants: Any, given: Any, largest: dict[str, Array]) -> list[Any]:
    """Results of a jaxpr; the largest magnitudes of values in it are noted in `largest` by the name of their limit."""

    def note(limit: str, values: Any) -> None:
        if jnp.size(values) and jnp.issubdtype(jnp.result_type(values), jnp.floating):
            largest[limit] = jnp.maximum(jnp.abs(values).max(), largest.get(limit, 0.0))

    def read(one: Any) -> Any:
        return one.val if isinstance(one, jax.extend.core.Literal) else known[one]

    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *given], strict=True))
    for equation in jaxpr.eqns:
        name = equation.params.get("step", equation.primitive.name)
        values = [read(one) for one in equation.invars]
        if inner := equation.params.get("jaxpr") or equation.params.get("call_jaxpr"):  # a nested function
            results = _evaluate(inner.jaxpr, inner.consts, values, largest)
        else:
            if name in LIMITED:
                value = values[-1]
                if LIMITED[name] == "exp":  # masked entries are exponentiated too, and discarded
                    value = jnp.where(value > 0.8 * MASKED, value, 0.0)
                note(LIMITED[name], value)
            out = equation.primitive.bind(*values, **equation.params)
            results = list(out) if equation.primitive.multiple_results else [out]
            if equation.primitive is not on_shares and name not in _MOVES:
                for result in results:
                    note("product" if name in PRODUCTS else "value", result)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(one) for one in jaxpr.outvars]


@functools.cache
def _watching(kind: str, constants: tuple[tuple[str, float], ...]) -> Callable[..., tuple[Array, dict[str, Array]]]:
    """The operation's result and the largest magnitude under each limit, compiled once for all layers and prompts."""
    function = functools.partial(KINDS[kind].function, **dict(constants))

    def watching(*given: Array) -> tuple[Array, dict[str, Array]]:
        largest: dict[str, Array] = {}
        closed = jax.make_jaxpr(function)(*given)
        (result,) = _evaluate(closed.jaxpr, closed.consts, given, largest)
        return result, largest

    return jax.jit(watching)


def watched(kind: str, arrays: Sequence[Array], constants: Mapping[str, float]) -> tuple[Array, dict[str, float]]:
    """The operation's result in the clear, and the largest magnitude in it under each limit."""
    result, largest = _watching(kind, tuple(constants.items()))(*arrays)
    return result, {name: float(np.nan_to_num(value, nan=np.inf, posinf=np.inf)) for name, value in largest.items()}


def by_extremeness(model: GPT) -> np.ndarray:
    """All token ids, those first whose embedding has the largest norm, the largest entry for its channel, or the
    smallest norm."""
    table = model.token_embedding.weight.detach().double().numpy()
    size = np.abs(table)
    norms, entries = np.linalg.norm(table, axis=1), (size / (np.median(size, 0) + 1e-30)).max(1)
    ranked = [np.argsort(values, kind="stable") for values in (-norms, -entries, norms)]
    return np.array(list(dict.fromkeys(np.stack(ranked, 1).ravel().tolist())))


def tried_first(model: GPT, prefix: Sequence[int] = ()) -> np.ndarray:
    """The tokens that are tried at the first position: all of them, or the most extreme ones of a large model."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return by_extremeness(model)[: max(1, int(FIRST_OPERATIONS / (2 * weights * (len(prefix) + 1))))]


@torch.no_grad()
def worst_first(model: GPT, prefix: Sequence[int] = ()) -> list[int]:
    """Those of `tried_first` after which, at the first position, some layer's output is most extreme, in PyTorch.

    That position attends to itself and to the public prefix, so its values depend on its token alone.
    """
    tokens = torch.from_numpy(tried_first(model, prefix))
    before = torch.tensor(prefix, dtype=tokens.dtype)
    rows = (torch.cat([before.expand(len(some), -1), some[:, None]], 1) for some in tokens.split(FIRST_AT_ONCE))
    states = [[one[:, -1] for one in model.hidden_states(some)[0]] for some in rows]  # L + 1 times (n, d)
    largest = torch.cat([torch.stack(some).abs().amax(2) for some in states], 1).nan_to_num(torch.inf)  # (L + 1, n)
    outlying = (largest / (largest.median(1, keepdim=True).values + 1e-30)).amax(0)
    return tokens[outlying.topk(min(WORST, len(tokens))).indices].tolist()


def probes(model: GPT, prefix: Sequence[int] = ()) -> Iterator[np.ndarray]:
    """Prompts (T,): random tokens, one token repeated, the most extreme tokens (over the whole context as well), and
    each of `worst_first` before random ones. prefix: public tokens before each of them."""
    context = model.config.context - len(prefix)
    tokens, order = min(context, TOKENS), by_extremeness(model)
    drawn = np.random.default_rng(0).integers(0, model.config.vocabulary, tokens)
    yield from (drawn, np.full(tokens, drawn[0]), np.resize(order, tokens))
    yield from (np.array([first, *drawn[1:]]) for first in worst_first(model, prefix))
    if context > tokens:
        yield np.resize(order, min(context, LONGEST))


def farthest(model: GPT, program: str, prefix: Sequence[int] = ()) -> Beyond:
    """The value nearest to or furthest beyond its limit in passes over `probes`.

    program: as `within_budget` returns it. prefix: public tokens before them, whose own values are not in fixed point.
    """
    found: list[Beyond] = []

    def run(kind: str, *arrays: Array, **constants: float) -> Array:
        if kind == "embedding_lookup":  # rows of a table that its owner has checked; not in fixed point
            return arrays[0] @ arrays[1]
        result, seen = watched(kind, arrays, constants)
        if kind == "bounded_exponentials":
            seen["logit"] = float(jnp.abs(arrays[0][:, *visible_entries(arrays[0])]).max())
        if kind == "reciprocal_means" and result[-1]:  # its check fails
            seen["logit"] = float("inf")
        found.extend(Beyond(f"{kind} ({name})", value, LIMITS[name], where) for name, value in seen.items())
        return result

    def at(layer: int) -> None:
        nonlocal where
        where = f"layer {layer}" if layer <= model.config.layers else "the vocabulary projection"

    weights = {name: jnp.asarray(value) for name, value in weight_arrays(model, program).items()}
    past, first = prefix_past(model, prefix), len(prefix)
    for prompt in probes(model, prefix):
        one_hot = jax.nn.one_hot(np.asarray(prompt), model.config.vocabulary, dtype=np.float32)
        placed, where = at_positions(weights, first, len(prompt)), "the embedding"
        forward(run, model.architecture, model.config, program, placed, one_hot, past, at)
    return max(found, key=lambda one: one.value / one.limit)


def coverage(model: GPT, prefix: Sequence[int] = ()) -> str:
    """For the client, in one line: what `fitting` checked of this model and what it did not. No value of a weight."""
    first, vocabulary = len(tried_first(model, prefix)), model.config.vocabulary
    context = model.config.context - len(prefix)
    prompts = 3 + min(WORST, first) + (context > TOKENS)
    tried = f"all {first}" if first == vocabulary else f"the {first} most extreme of {vocabulary}"
    return (
        f"checked before: {tried} tokens at the first position, {prompts} prompts of up to {min(context, LONGEST)} "
        "tokens; not checked: other prompts, where a value beyond the range makes the answer wrong without a message"
    )


def fitting(model: GPT, program: str, prefix: Sequence[int] = ()) -> str:
    """The first program in which the model's values fit: `program`, or without some of the optimizations whose range
    is smaller than SPU's (OF_SMALLER_RANGE). TwoPartyError if none fits."""
    optimizations, rebased = parse_program(program)
    droppable = [optimizations & {name} for name in OF_SMALLER_RANGE]
    choices = itertools.product(*((frozenset(), one) for one in droppable))
    for dropped in dict.fromkeys(frozenset().union(*choice) for choice in choices):
        candidate = program_name(optimizations - dropped, rebased)
        found = farthest(model, candidate, prefix)
        if found.value < found.limit:
            return candidate
    raise TwoPartyError(
        f"the model's values do not fit fixed point: {found.value:.3g} in {found.what} of {found.where}, "
        f"which holds less than {found.limit:.3g} with {FRACTION_BITS} fraction bits in {FIELD}; "
        "the private answers would be wrong"
    )
