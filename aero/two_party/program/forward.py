"""The private forward pass: from the client's one-hot tokens and the server's weights to the last position's logits.

T: tokens of the prompt, V: vocabulary, d: width, H: heads, d_k = d / H.

"as_written" computes the network as it is written, with `jax.nn`'s functions and one product a weight matrix.
"tuned" computes the same function with the savings of `aero.two_party.program.optimizations`, each of which is a
switch.
"as_published" is what the published bytes were measured with, as far as is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.architecture import Architecture
from aero.model import ModelConfig
from aero.two_party.lattice.lookup import LEAST_VOCABULARY
from aero.two_party.program.operations import KINDS, SHARED, Operation, call, trace
from aero.two_party.program.optimizations import AS_PUBLISHED, Savings, chosen
from aero.two_party.program.weights import weight_shapes

# Encoded weights need memory, some 4 kB each when many rows are multiplied: 12 GB in one party for 4,096 entries of the
# embedding, 9 for 768 x 3,072; 7 GB for the whole vocabulary projection of one row. A run must stay below 8.
SLICE = 1024
HEAD_SLICE = 16384
WEIGHTS_AT_ONCE = 800_000
IDS_AT_ONCE = 2
COVER_BLOCKS = 16
Call = Callable[..., Array]
Named = Mapping[str, Array]


def forward(
    run: Call, architecture: Architecture, config: ModelConfig, program: str, weights: Named, prompt: Array
) -> Array:
    """Logits (V,) after the last of the T tokens of `prompt`, as `prompt_array` gives it.

    `run` computes or records each operation.
    """
    savings, _ = chosen(program)
    fitted = AS_PUBLISHED in savings
    if fitted:
        run = _of_shared_weights(run)
    tokens = prompt.shape[0]
    if "lattice_products" in savings:
        run = _LatticeProducts(run)
    x = embed(run, savings, weights["token_embedding"], prompt)  # (T, d)
    if "position_embedding" in weights:
        x = x + weights["position_embedding"][:tokens]
    block = _he_hofmann if architecture.block == "he_hofmann" else _pre_ln
    for layer in range(config.layers):
        w = {name.partition(".")[2]: value for name, value in weights.items() if name.startswith(f"{layer}.")}
        only_last = layer == config.layers - 1 and "last_row" in savings
        x = block(run, architecture, config, savings, w, x, only_last)
    if "last_row" in savings:
        x = x[-1:]
    if "basis" in weights:
        x = product(run, x if fitted else x[-1:], weights["basis"])
    if config.ln_f:
        if "folded_norms" in savings:
            return project(run, _normalise(run, savings, x)[-1:], weights["head"]) + weights["head_bias"]
        x = run("layer_norm", x, weights["ln_f.weight"], weights["ln_f.bias"])
    return project(run, x if fitted else x[-1:], weights["head"])


def _of_shared_weights(run: Call) -> Call:
    """`run` for weights that no party has in the clear."""

    def shared(kind: str, *arrays: Array, **constants: float) -> Array:
        return run(kind + SHARED if "server" in KINDS[kind].owners else kind, *arrays, **constants)

    return shared


@dataclass(frozen=True)
class _LatticeProducts:
    """`run`, and by this name that `product` multiplies several rows outside SPU. One row costs SPU little."""

    run: Call

    def __call__(self, kind: str, *arrays: Array, **constants: float) -> Array:
        return self.run(kind, *arrays, **constants)


def project(run: Call, x: Array, head: Array) -> Array:
    """Logits (V,) of the last row of states x (rows, d), in slices of the vocabulary."""
    size = HEAD_SLICE if x.shape[0] == 1 else SLICE
    edges = [*range(0, head.shape[1], size), head.shape[1]]
    parts = [run("vocabulary_slice", x, head[:, low:high]) for low, high in zip(edges, edges[1:], strict=False)]
    return jnp.concatenate(parts, 1)[-1]


def embed(run: Call, savings: Savings, table: Array, one_hot: Array) -> Array:
    """One-hot (T, V) times the table (V, d): a lookup, or in slices of the vocabulary; whole, it needs too much memory.

    A lookup is cheaper from LEAST_VOCABULARY entries on, whatever T and d. "as_published" has ids (T,), no rows.
    """
    if AS_PUBLISHED in savings:
        few = range(0, one_hot.shape[0], IDS_AT_ONCE)
        return jnp.concatenate([run("id_lookup", one_hot[low : low + IDS_AT_ONCE], table) for low in few])
    if "lattice_lookup" in savings and table.shape[0] >= LEAST_VOCABULARY:
        return run("embedding_lookup", one_hot, table)
    edges = [*range(0, table.shape[0], SLICE), table.shape[0]]
    parts = [
        run("embedding_slice", one_hot[:, low:high], table[low:high])
        for low, high in zip(edges, edges[1:], strict=False)
    ]
    return sum(parts[1:], parts[0])


def product(run: Call, x: Array, weight: Array) -> Array:
    """x (rows, n) times the server's (n, m), in slices of at most WEIGHTS_AT_ONCE weights where rows are many.

    Slices go along the longer side: columns are put side by side, inner ones added up. lattice_products needs none.
    """
    if isinstance(run, _LatticeProducts) and x.shape[0] > 1:
        return run("lattice_linear", x, weight)
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


def _split(x: Array, heads: int) -> Array:
    """(rows, d) -> (H, rows, d_k)."""
    return jnp.swapaxes(x.reshape(x.shape[0], heads, -1), 0, 1)


def _merge(x: Array) -> Array:
    """(H, rows, d_k) -> (rows, d)."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1)


def _product(run: Call, x: Array, w: Named, name: str) -> Array:
    return product(run, x, w[name]) + w[f"{name}_bias"]


def _normalise(run: Call, savings: Savings, x: Array) -> Array:
    return run("normalise_tiles" if "row_tiles" in savings and x.shape[0] > 1 else "normalise", x)


def _norm(run: Call, savings: Savings, w: Named, name: str, x: Array) -> Array:
    """LayerNorm, without gain and bias where these are folded away."""
    if f"{name}.weight" in w:
        return run("layer_norm", x, w[f"{name}.weight"], w[f"{name}.bias"])
    return _normalise(run, savings, x)


def _query_key_value(
    run: Call, config: ModelConfig, w: Named, n: Array, only_last: bool, name: str
) -> tuple[Array, ...]:
    """Q of all rows or of the last one, then K and V (with `name` "qk" K alone), 1/sqrt(d_k) inside Q."""
    d = config.width
    if "last_query" in w:
        query, others = _product(run, n[-1:], w, "last_query"), _product(run, n, w, "others")
        return query, *(others[:, start : start + d] for start in range(0, others.shape[1], d))
    if name in w:
        if only_last:
            # One query row; keys and values of all rows.
            others = product(run, n, w[name][:, d:]) + w[f"{name}_bias"][d:]
            query = product(run, n[-1:], w[name][:, :d]) + w[f"{name}_bias"][:d]
        else:
            whole = _product(run, n, w, name)
            query, others = whole[:, :d], whole[:, d:]
        return query, *(others[:, start : start + d] for start in range(0, others.shape[1], d))
    query = _product(run, n[-1:] if only_last else n, w, "query")
    query = run("scale_public", query, factor=float((d / config.heads) ** -0.5))
    rest = ("key",) if name == "qk" else ("key", "value")
    return query, *(_product(run, n, w, other) for other in rest)


def _attend(
    run: Call, config: ModelConfig, savings: Savings, w: Named, query: Array, key: Array, value: Array
) -> Array:
    """Attention output (rows, d) of `rows` trailing queries, Q already holding 1/sqrt(d_k)."""
    query, key, value = (_split(x, config.heads) for x in (query, key, value))
    logits = _scores(run, config, savings, w, query, key)
    if "late_division" in savings:
        weights = _exponentials(run, savings, logits)
        inverse = run("inverse_sums", weights)
        tiles = "row_tiles" in savings and query.shape[1] > 1
        return _merge(run("scale_row_tiles" if tiles else "scale_rows", run("mix", weights, value), inverse))
    return _merge(run("mix", _probabilities(run, savings, logits), value))


def _scores(run: Call, config: ModelConfig, savings: Savings, w: Named, query: Array, key: Array) -> Array:
    """Attention logits (H, rows, T) of heads (H, rows, d_k) and (H, T, d_k), positions and temperatures applied."""
    tokens, rows = key.shape[1], query.shape[1]
    if config.position == "rotary":
        query = run("rotate", query, dims=config.rotary_dims, first=tokens - rows)
        key = run("rotate", key, dims=config.rotary_dims, first=0)
    if "inverse_temperature" in w:
        factors = w["inverse_temperature"][:, tokens - rows : tokens]
        if "row_tiles" in savings and rows > 1:
            query = run("scale_row_tiles_by_server", query, factors)
        else:
            query = run("scale", query, factors[:, :, None])
    return run("scores", query, key)


def _blocks(savings: Savings, logits: Array) -> int:
    return min(COVER_BLOCKS, logits.shape[1]) if "causal_cover" in savings else 1


def _exponentials(run: Call, savings: Savings, logits: Array) -> Array:
    split = int("split_exponential" in savings)
    return run(
        "exponentials", logits, blocks=_blocks(savings, logits), split=split, **_narrow(savings), **_few(savings)
    )


def _narrow(savings: Savings) -> dict[str, int]:
    """The constant of operations that compare. It is left out where it is 0: their names are as they were before."""
    return {"narrow": 1} if "narrow_comparisons" in savings else {}


def _few(savings: Savings) -> dict[str, int]:
    """The same of operations that take exponentials."""
    return {"few": 1} if "fewer_squarings" in savings else {}


def _probabilities(run: Call, savings: Savings, logits: Array) -> Array:
    if AS_PUBLISHED in savings:
        return run("softmax_clipped", logits)
    if "split_exponential" in savings:
        return run("divide_by_sums", _exponentials(run, savings, logits))
    if "causal_cover" in savings:
        return run("softmax_cover", logits, blocks=_blocks(savings, logits), **_narrow(savings), **_few(savings))
    return run("softmax_plain", logits, **_narrow(savings), **_few(savings))


def _pre_ln(
    run: Call, architecture: Architecture, config: ModelConfig, savings: Savings, w: Named, x: Array, only_last: bool
) -> Array:
    if "basis" in w:
        x = product(run, x, w["basis"])
    n = _norm(run, savings, w, "ln_1", x) if architecture.layer_norm else x
    attended = _attend(run, config, savings, w, *_query_key_value(run, config, w, n, only_last, "qkv"))
    if only_last:
        x = x[-1:]
    if "from_both" in w:
        return product(run, jnp.concatenate([x, attended], 1), w["from_both"]) + w["block_bias"]
    if "from_attention" in w:
        return x + product(run, attended, w["from_attention"]) + w["block_bias"]
    attended = _product(run, attended, w, "output")
    after = x + attended
    if "fused" not in w and "up" not in w:
        return after
    # The parallel form reads x itself and adds the attention last, unscaled.
    read = x if config.parallel_residual else after
    y = (run("scale", read, w["beta"]) if "beta" in w else read) + _ffn(run, architecture, config, savings, w, read)
    return y + attended if config.parallel_residual else y


def _ffn(run: Call, architecture: Architecture, config: ModelConfig, savings: Savings, w: Named, x: Array) -> Array:
    n = _norm(run, savings, w, "ln_2", x) if architecture.layer_norm else x
    if "fused" in w:
        return _product(run, n, w, "fused")
    hidden = _product(run, n, w, "up")
    if architecture.ffn == "gelu":
        plain = "gelu_exact" if config.gelu == "exact" else "gelu_plain"
        segmented = "segmented_gelu" in savings
        hidden = run("gelu_segments", hidden, **_narrow(savings)) if segmented else run(plain, hidden)
    elif "slope" in w:
        hidden = run("leaky_relu", hidden, w["slope"], **_narrow(savings))
    elif architecture.ffn in ("relu", "leaky_relu"):
        hidden = run("relu", hidden, **_narrow(savings))
    y = _product(run, hidden, w, "down")
    return y + product(run, n, w["around"]) if "around" in w else y


def _he_hofmann(
    run: Call, architecture: Architecture, config: ModelConfig, savings: Savings, w: Named, x: Array, only_last: bool
) -> Array:
    """b_ff FFN(n) + b_sa Concat_h((a_h I + b_h P_h - g_h C) V_h)."""
    if "combine" in w:
        n = _normalise(run, savings, x) if "value" in w else x
        value = _product(run, n, w, "value") if "value" in w else n
        rows = 1 if only_last else n.shape[0]
        attended = _attend(run, config, savings, w, *_query_key_value(run, config, w, n, only_last, "qk"), value)
        joined = jnp.concatenate([n[-rows:], attended, run("causal_mean", n, rows=rows)], 1)  # (rows, 3d)
        return product(run, joined, w["combine"]) + w["block_bias"]
    # The shaped matrix a I + b P - g C, as it is defined, times V.
    n = run("layer_norm", x, w["ln_1.weight"], w["ln_1.bias"]) if "ln_1.weight" in w else x
    tokens = n.shape[0]
    query, key = (_split(m, config.heads) for m in _query_key_value(run, config, w, n, False, "qk"))
    probabilities = _probabilities(run, savings, _scores(run, config, savings, w, query, key))
    if "shape" in w:
        shaped = probabilities + w["shape"][:, :tokens, :tokens]
    else:
        centre = (np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]).astype(np.float32)
        shaped = run("scale", probabilities, w["shape_b"]) + (
            w["shape_a"] * np.eye(tokens, dtype=np.float32) - w["shape_g"] * centre
        )
    value = product(run, n, w["value"]) if "value" in w else n
    attended = _merge(run("mix", shaped, _split(value, config.heads)))
    if "fused" in w:
        return attended + _product(run, n, w, "fused")
    if "up" in w:
        return attended + _product(run, _product(run, n, w, "up"), w, "down")
    return attended + run("scale", n, w["b_ff"]) if "b_ff" in w else attended


def one_hot_rows(ids: Sequence[int] | np.ndarray, vocabulary: int) -> np.ndarray:
    """One row (V,) for each of `ids` (T,), 1 at the token and 0 elsewhere."""
    one_hot = np.zeros((len(ids), vocabulary), np.float32)
    one_hot[np.arange(len(ids)), ids] = 1.0
    return one_hot


def prompt_array(ids: Sequence[int] | np.ndarray, vocabulary: int, program: str) -> np.ndarray:
    """What `program` takes of the client for `ids` (T,): their one-hot rows (T, V), or "as_published" the ids."""
    return np.asarray(ids, np.int32) if program == AS_PUBLISHED else one_hot_rows(ids, vocabulary)


def prompt_type(tokens: int, vocabulary: int, program: str) -> tuple[tuple[int, ...], Any]:
    """Shape and type of `prompt_array`."""
    return ((tokens,), np.int32) if program == AS_PUBLISHED else ((tokens, vocabulary), np.float32)


def operations(architecture: Architecture, config: ModelConfig, program: str, context: int) -> Counter[Operation]:
    """Distinct operations of a forward pass over `context` tokens, with their counts."""
    shapes = {
        name: jax.ShapeDtypeStruct(shape, np.float32)
        for name, shape in weight_shapes(architecture, config, program).items()
    }
    prompt = jax.ShapeDtypeStruct(*prompt_type(context, config.vocabulary, program))
    return trace(lambda run, *arrays: forward(run, architecture, config, program, *arrays), shapes, prompt)


def plaintext(
    architecture: Architecture, config: ModelConfig, program: str, weights: Mapping[str, np.ndarray], ids: np.ndarray
) -> np.ndarray:
    """The same program in float32 in the clear: logits (V,) after the last of `ids` (T,)."""
    prompt = jnp.asarray(prompt_array(ids, config.vocabulary, program))
    with jax.default_matmul_precision("highest"):
        return np.asarray(forward(call, architecture, config, program, weights, prompt))
