"""The private forward pass: from the client's one-hot tokens and the server's weights to the last position's logits.

T: tokens of the prompt, V: vocabulary, d: width, H: heads, d_k = d / H, C: slots of a cache of keys and values.

"as_written" computes the network with `jax.nn`'s functions and one matrix multiplication per weight matrix, "tuned" the
same function with `aero.two_party.program.optimizations`, "as_published" as the published bytes were measured, as far
as is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.architecture import Architecture
from aero.model import GPT, ModelConfig
from aero.two_party.lattice.lookup import LEAST_VOCABULARY
from aero.two_party.lattice.matmul import MOST_SQUARES
from aero.two_party.program.inputs import Past, at_positions, one_hot_rows, prompt_type
from aero.two_party.program.layers import Affine, Layer, Weights
from aero.two_party.program.nonlinear import rows_of_visible
from aero.two_party.program.operations import (
    HEAD_SLICE,
    IDS_AT_ONCE,
    KINDS,
    SHARED,
    SLICE,
    Operation,
    call,
    causal_average,
    linear_in_slices,
    trace,
)
from aero.two_party.program.optimizations import AS_PUBLISHED, Optimizations, parse_program
from aero.two_party.program.weights import weight_arrays, weight_shapes

COVER_BLOCKS = 16
ROW_OF_KEYS = 128  # most keys for which P V of one row is taken outside SPU
WIDE = 4  # entries of a node: wider ones take fewer rounds and more bytes
Call = Callable[..., Array]


def forward(
    run: Call,
    architecture: Architecture,
    config: ModelConfig,
    program: str,
    weights: Mapping[str, Array],
    prompt: Array,
    past: Past | None = None,
    at: Callable[[int], None] = lambda layer: None,
    every: bool = False,
) -> tuple[Array, list[Array], list[Array]]:
    """Logits (V,) after the last of T tokens, and the tokens' keys and values, (H, T, d_k) for each layer.

    run: computes or records each operation. weights: as `weight_arrays` gives them. prompt: as `prompt_array` gives it.
    past: of earlier tokens; weights are then those of the new positions only, as `at_positions` gives them, and the
    program must be `cacheable`. at: called before each layer with its number from 1, and with L + 1 after the last.
    every: logits (T, V) after each token.
    """
    optimizations = parse_program(program)[0] - ({"last_row"} if every else set())
    fitted = AS_PUBLISHED in optimizations
    whole = fitted or every
    this = _Pass(_with_shared_weights(run) if fitted else run, architecture, config, optimizations, past)
    w = Weights.of(weights)
    x = this.embed(w.token_embedding, prompt)  # (T, d)
    if w.position_embedding is not None:
        x = x + w.position_embedding[: prompt.shape[0]]
    block = this.he_hofmann if architecture.block == "he_hofmann" else this.pre_ln
    for number, layer in enumerate(w.layers, 1):
        at(number)
        x = block(layer, x, number == config.layers and "last_row" in optimizations)
    at(config.layers + 1)
    if "last_row" in optimizations:
        x = x[-1:]
    if w.basis is not None:
        x = this.affine(x if whole else x[-1:], w.basis)
    if config.ln_f:
        x = this.norm(w.ln_f, x)
    logits = this.project(x if whole else x[-1:], w.head.weight)[slice(None) if every else -1]
    logits = logits if w.head.bias is None else logits + w.head.bias
    return _with_checks(logits, this.checks), this.keys, this.values


def _with_checks(logits: Array, checks: Sequence[Array]) -> Array:
    """Logits (..., V), each check added to another entry, so that two cannot cancel."""
    if not checks:
        return logits
    missing = -len(checks) % logits.shape[-1]
    return logits + jnp.pad(jnp.stack(checks), (0, missing)).reshape(-1, logits.shape[-1]).sum(0)


def _with_shared_weights(run: Call) -> Call:
    """`run` for weights that no party has in the clear."""

    def shared(kind: str, *arrays: Array, **constants: float) -> Array:
        return run(kind + SHARED if "server" in KINDS[kind].owners else kind, *arrays, **constants)

    return shared


def _merge(x: Array) -> Array:
    """(H, rows, d_k) -> (rows, d)."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1)


@dataclass(frozen=True)
class _Pass:
    """The parts of one forward pass."""

    run: Call
    architecture: Architecture
    config: ModelConfig
    optimizations: Optimizations
    past: Past | None = None
    # Of the new tokens, layer by layer.
    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    # 0 unless a logit lies beyond its bound (`nonlinear.bounded_exponentials`).
    checks: list[Array] = field(default_factory=list)

    def has(self, optimization: str) -> bool:
        return optimization in self.optimizations

    def split(self, x: Array) -> Array:
        """(rows, H d_k) -> (H, rows, d_k)."""
        return jnp.swapaxes(x.reshape(x.shape[0], -1, self.config.width // self.config.heads), 0, 1)

    @property
    def empty(self) -> Array | None:
        return None if self.past is None else self.past.empty

    def when(self, optimization: str, **constants: int) -> dict[str, int]:
        """Constants of an operation, left out without the optimization, as in the names of measured operations."""
        return constants if self.has(optimization) else {}

    @property
    def narrow(self) -> dict[str, int]:
        """The constant of operations that compare."""
        return self.when("narrow_comparisons", narrow=1)

    @property
    def maxima(self) -> dict[str, int]:
        """Constants of operations that take maxima."""
        return self.narrow | self.when("wide_maxima", wide=WIDE)

    def affine(self, x: Array, map_: Affine) -> Array:
        """A matrix of the server's, and its bias. Outside SPU with lattice_products, and one row with lattice_rest."""
        outside = self.has("lattice_products") and (x.shape[0] > 1 or self.has("lattice_rest"))
        y = self.run("lattice_linear", x, map_.weight) if outside else linear_in_slices(self.run, x, map_.weight)
        return y if map_.bias is None else y + map_.bias

    def embed(self, table: Array, prompt: Array) -> Array:
        """Rows (T, d) of the table (V, d): by an encrypted lookup, or one-hot (T, V) times slices of the table.

        A lookup is cheaper from LEAST_VOCABULARY entries on. "as_published" has ids (T,) instead of one-hot rows.
        """
        if self.has(AS_PUBLISHED):
            starts = range(0, prompt.shape[0], IDS_AT_ONCE)
            return jnp.concatenate([self.run("id_lookup", prompt[low : low + IDS_AT_ONCE], table) for low in starts])
        if self.has("lattice_lookup") and table.shape[0] >= LEAST_VOCABULARY:
            return self.run("embedding_lookup", prompt, table, **self.when("lattice_rest", lattice_linear=1))
        starts = range(0, table.shape[0], SLICE)
        parts = [self.run("embedding_slice", prompt[:, low : low + SLICE], table[low : low + SLICE]) for low in starts]
        return sum(parts[1:], parts[0])

    def project(self, x: Array, head: Array) -> Array:
        """Logits (rows, V) of states x (rows, d): with lattice_rest at once, else by SPU in slices of V."""
        if self.has("lattice_rest"):
            return self.run("vocabulary_slice", x, head, lattice_linear=1)
        size = HEAD_SLICE if x.shape[0] == 1 else SLICE
        starts = range(0, head.shape[1], size)
        parts = [self.run("vocabulary_slice", x, head[:, low : low + size]) for low in starts]
        return jnp.concatenate(parts, 1)

    def norm(self, norm: Affine | None, x: Array) -> Array:
        """LayerNorm or RMSNorm, without gain and bias where these are folded away."""
        rms, eps = self.architecture.rms_norm, self.config.layer_norm_eps
        constants = {} if eps == 1e-5 else {"eps": eps}
        if norm is None:
            kind = ("rms_normalise" if rms else "normalise") + "_tiles" * (self.has("row_tiles") and x.shape[0] > 1)
            constants |= self.when("bounded_reciprocals", narrow=1)
            if kind.endswith("_tiles") and x.shape[1] <= MOST_SQUARES:
                constants |= self.when("lattice_rest", lattice=1)
            return self.run(kind, x, **constants)
        if rms:
            return self.run("rms_norm", x, norm.weight, **constants)
        return self.run("layer_norm", x, norm.weight, norm.bias, **constants)

    def query_key_value(self, layer: Layer, n: Array, only_last: bool) -> tuple[Array, ...]:
        """Q of all rows or of the last one, then K and, in pre-LN layers, V. Q holds 1/sqrt(d_k)."""
        d, heads, size = self.config.width, self.config.heads, self.config.kv_width
        rows = n[-1:] if only_last else n
        if layer.query is not None:
            query = self.run("scale_public", self.affine(rows, layer.query), factor=float((d / heads) ** -0.5))
            others = [layer.key] if self.architecture.block == "he_hofmann" else [layer.key, layer.value]
            return query, *(self.affine(n, one) for one in others)
        if layer.last_query is not None:
            query, others = self.affine(rows, layer.last_query), self.affine(n, layer.others)
        else:
            every = self.affine(n, layer.qkv)
            query, others = every[:, :d], every[:, d:]
        return query, *(others[:, start : start + size] for start in range(0, others.shape[1], size))

    def attend(self, layer: Layer, query: Array, key: Array, value: Array) -> Array:
        """Attention output (rows, d) of the last `rows` queries."""
        query, key, value = (self.split(x) for x in (query, key, value))
        query, key = self.positioned(layer, query, key)
        self.keys.append(key)
        self.values.append(value)
        if self.past is not None:
            earlier = (kind[len(self.keys) - 1] for kind in (self.past.keys, self.past.values))
            key, value = (jnp.concatenate(pair, 1) for pair in zip(earlier, (key, value), strict=True))
        logits = self.by_group("scores", query, key)
        if not self.has("late_division"):
            return _merge(self.by_group("mix", self.probabilities(logits), value))
        if self.has("bounded_logits") and self.past is None:
            powers = self.run("bounded_exponentials", logits)
            weights = rows_of_visible(powers[:-1], logits.shape)
            inverse = self.run("reciprocal_means", weights, narrow=1)
            self.checks.extend((powers[-1], inverse[-1]))
            inverse = inverse[:-1].reshape(logits.shape[:2])
        else:
            weights = self.exponentials(logits)
            kind = "reciprocal_sums" if self.has("bounded_reciprocals") else "inverse_sums"
            inverse = self.run(kind, weights, **self.when("bounded_reciprocals", narrow=1))
        mixed = self.by_group("mix", weights, value)
        if self.has("row_tiles") and query.shape[1] > 1:
            return _merge(self.run("scale_row_tiles", mixed, inverse, **self.when("lattice_rest", lattice=1)))
        return _merge(self.run("scale_rows", mixed, inverse))

    def by_group(self, kind: str, x: Array, of_keys: Array) -> Array:
        """ "scores" or "mix" of x (H, rows, ...) and keys or values (G, T, d_k): the rows of the H / G heads of queries
        that share keys are rows of one matrix."""
        heads, rows, width = x.shape
        # A query holds 16 inner places, of P V as many as there are keys: with more than these it is larger than SPU's.
        row = self.has("lattice_rest") and (kind == "scores" or width <= ROW_OF_KEYS)
        outside = {"lattice": 1} if self.has("lattice_attention") and (rows > 1 or row) else {}
        y = self.run(kind, x.reshape(of_keys.shape[0], -1, width), of_keys, **outside)
        return y.reshape(heads, rows, -1)

    def positioned(self, layer: Layer, query: Array, key: Array) -> tuple[Array, Array]:
        """(H, rows, d_k) and (H, T, d_k) with rotary positions and temperatures."""
        tokens, rows, dims = key.shape[1], query.shape[1], self.config.rotary_dims
        table = None if self.past is None else self.past.rotary
        if table is not None:
            query, key = self.run("rotate_by", query, table[:, tokens - rows :]), self.run("rotate_by", key, table)
        elif self.config.position == "rotary":
            first = 0 if self.past is None else self.past.keys[0].shape[1]
            base = {} if self.config.rotary_base == 10_000.0 else {"base": self.config.rotary_base}
            query = self.run("rotate", query, dims=dims, first=first + tokens - rows, **base)
            key = self.run("rotate", key, dims=dims, first=first, **base)
        if layer.inverse_temperature is not None:
            factors = layer.inverse_temperature[:, tokens - rows : tokens]
            if self.has("row_tiles") and rows > 1:
                query = self.run("scale_row_tiles_by_server", query, factors)
            else:
                query = self.run("scale", query, factors[:, :, None])
        return query, key

    def blocks(self, logits: Array) -> int:
        return min(COVER_BLOCKS, logits.shape[1]) if self.has("causal_cover") else 1

    def exponentials(self, logits: Array) -> Array:
        split = int(self.has("split_exponential"))
        if self.empty is not None:
            return self.run("exponentials_cached", logits, self.empty, split=split, **self.maxima)
        return self.run("exponentials", logits, blocks=self.blocks(logits), split=split, **self.maxima)

    def probabilities(self, logits: Array) -> Array:
        if self.has(AS_PUBLISHED):
            return self.run("softmax_clipped", logits)
        if self.has("split_exponential"):
            return self.run("divide_by_sums", self.exponentials(logits))
        if self.empty is not None:
            return self.run("softmax_cached", logits, self.empty, **self.maxima)
        if self.has("causal_cover"):
            return self.run("softmax_cover", logits, blocks=self.blocks(logits), **self.maxima)
        return self.run("softmax_plain", logits, **self.maxima)

    def pre_ln(self, layer: Layer, x: Array, only_last: bool) -> Array:
        if layer.basis is not None:
            x = self.affine(x, layer.basis)
        n = self.norm(layer.ln_1, x) if self.architecture.layer_norm else x
        attended = self.attend(layer, *self.query_key_value(layer, n, only_last))
        if only_last:
            x = x[-1:]
        if layer.from_both is not None:
            return self.affine(jnp.concatenate([x, attended], 1), layer.from_both)
        if layer.from_attention is not None:
            return x + self.affine(attended, layer.from_attention)
        attended = self.affine(attended, layer.output)
        after = x + attended
        if layer.down is None:
            return after
        # In parallel form the FFN reads x itself, and the attention is added last, unscaled.
        read = x if self.config.parallel_residual else after
        y = (read if layer.beta is None else self.run("scale", read, layer.beta)) + self.ffn(layer, read)
        return y + attended if self.config.parallel_residual else y

    def ffn(self, layer: Layer, x: Array) -> Array:
        n = self.norm(layer.ln_2, x) if self.architecture.layer_norm else x
        if layer.up is None:
            return self.affine(n, layer.down)
        hidden, segmented = self.affine(n, layer.up), self.has("segmented_gelu")
        if self.architecture.ffn == "gelu":
            if segmented:
                kind = "gelu_squares" if self.has("gelu_by_squares") else "gelu_segments"
                hidden = self.run(kind, hidden, **self.narrow)
            else:
                hidden = self.run("gelu_exact" if self.config.gelu == "exact" else "gelu_plain", hidden)
        elif self.architecture.ffn == "swiglu":
            gate, hidden = jnp.split(hidden, 2, 1)
            silu = self.run("silu_segments", gate, **self.narrow) if segmented else self.run("silu", gate)
            hidden = self.run("gate", silu, hidden)
        elif layer.slope is not None:
            hidden = self.run("leaky_relu", hidden, layer.slope, **self.narrow)
        elif self.architecture.ffn in ("relu", "leaky_relu"):
            hidden = self.run("relu", hidden, **self.narrow)
        y = self.affine(hidden, layer.down)
        return y if layer.around is None else y + self.affine(n, layer.around)

    def he_hofmann(self, layer: Layer, x: Array, only_last: bool) -> Array:
        """b_ff FFN(n) + b_sa Concat_h((a_h I + b_h P_h - g_h C) V_h)."""
        if layer.combine is not None:
            n = x if layer.value is None else self.norm(None, x)
            value = n if layer.value is None else self.affine(n, layer.value)
            rows = 1 if only_last else n.shape[0]
            attended = self.attend(layer, *self.query_key_value(layer, n, only_last), value)
            joined = [n[-rows:], attended, self.run("causal_mean", n, rows=rows)]
            return self.affine(jnp.concatenate(joined, 1), layer.combine)  # (rows, 3d)
        n = x if layer.ln_1 is None else self.norm(layer.ln_1, x)
        tokens = n.shape[0]
        query, key = (self.split(m) for m in self.query_key_value(layer, n, False))
        shaped = self.probabilities(self.by_group("scores", query, key))
        if layer.shape is not None:
            shaped = shaped + layer.shape[:, :tokens, :tokens]
        else:
            public = layer.shape_a * np.eye(tokens, dtype=np.float32) - layer.shape_g * causal_average(tokens)
            shaped = self.run("scale", shaped, layer.shape_b) + public
        value = n if layer.value is None else self.affine(n, layer.value)
        attended = _merge(self.by_group("mix", shaped, self.split(value)))
        if layer.down is not None:
            hidden = n if layer.up is None else self.affine(n, layer.up)
            return attended + self.affine(hidden, layer.down)
        return attended if layer.b_ff is None else attended + self.run("scale", n, layer.b_ff)


def operations(
    architecture: Architecture, config: ModelConfig, program: str, context: int, past: int | None = None
) -> Counter[Operation]:
    """Distinct operations of a forward pass over `context` tokens, with their counts.

    past: slots of the cache that these tokens follow; None for a whole pass.
    """
    sizes = weight_shapes(architecture, config, program)
    shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in sizes.items()}
    prompt = jax.ShapeDtypeStruct(*prompt_type(context, config.vocabulary, program))
    earlier: tuple[Any, ...] = ()
    if past is not None:
        cache = [jax.ShapeDtypeStruct(cache_shape(config, past), np.float32)] * config.layers
        rotary = jax.ShapeDtypeStruct((2, context, config.rotary_dims // 2), np.float32)
        empty = jax.ShapeDtypeStruct((), np.float32)
        earlier = cache, cache, empty, rotary if config.position == "rotary" else None
        shapes = jax.eval_shape(lambda weights: at_positions(weights, 0, context), shapes)

    def run_all(run: Call, weights: Mapping[str, Array], prompt: Array, *earlier: Any) -> Any:
        return forward(run, architecture, config, program, weights, prompt, Past(*earlier) if earlier else None)

    return trace(run_all, shapes, prompt, *earlier)


def cache_shape(config: ModelConfig, slots: int) -> tuple[int, int, int]:
    """(H, slots, d_k) of the cached keys, or values, of a layer."""
    return config.kv_heads or config.heads, slots, config.width // config.heads


def prefix_past(model: GPT, ids: Sequence[int]) -> Past | None:
    """Keys and values of public tokens, which the holder of the model computes in the clear; None for no tokens."""
    if not ids:
        return None
    program, rows = "as_written", one_hot_rows(ids, model.config.vocabulary)
    weights = at_positions(weight_arrays(model, program), 0, len(ids))
    with jax.default_matmul_precision("highest"):
        _, keys, values = forward(call, model.architecture, model.config, program, weights, rows)
    return Past(keys, values)
