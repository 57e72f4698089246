"""The private forward pass: from the client's one-hot tokens and the server's weights to the last position's logits.

T: tokens of the prompt, V: vocabulary, d: width, H: heads, d_k = d / H.

"as_published" computes the network as it is written, with `jax.nn`'s functions and one product a weight matrix.
"tuned" computes the same function with less: Q, K, V as one product; gains of LayerNorm folded into the next product;
a linear FFN folded into W_O, [x | A] [[M], [W_O M]]; the He & Hofmann combination as one product; softmax exponentials
on a block-lower-triangular cover; GELU in segments; in the last layer only the last query row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.architecture import Architecture
from aero.model import ModelConfig
from aero.two_party.operations import Operation, call, trace
from aero.two_party.weights import weight_shapes

# Encoded weights need memory, some 4 kB each when many rows are multiplied: 12 GB in one party for 4,096 entries of the
# embedding, 9 for 768 x 3,072; 7 GB for the whole vocabulary projection of one row. A run must stay below 8.
SLICE = 1024
HEAD_SLICE = 16384
WEIGHTS_AT_ONCE = 800_000
COVER_BLOCKS = 8
Call = Callable[..., Array]
Named = Mapping[str, Array]


def forward(
    run: Call, architecture: Architecture, config: ModelConfig, program: str, weights: Named, one_hot: Array
) -> Array:
    """Logits (V,) after the last of the T tokens in `one_hot` (T, V). `run` computes or records each operation."""
    tokens = one_hot.shape[0]
    x = embed(run, weights["token_embedding"], one_hot) + weights["position_embedding"][:tokens]  # (T, d)
    for layer in range(config.layers):
        w = {name.partition(".")[2]: value for name, value in weights.items() if name.startswith(f"{layer}.")}
        last = layer == config.layers - 1
        if architecture.block == "he_hofmann":
            x = _he_hofmann_tuned(run, config, w, x, last) if program == "tuned" else _he_hofmann(run, config, w, x)
        elif program == "tuned":
            x = _pre_ln_tuned(run, architecture, config, w, x, last)
        else:
            x = _pre_ln(run, architecture, config, w, x)
    if program == "tuned":
        x = x[-1:]
        if config.ln_f:
            return project(run, run("normalise", x), weights["head"]) + weights["head_bias"]
    elif config.ln_f:
        x = run("layer_norm", x, weights["ln_f.weight"], weights["ln_f.bias"])
    return project(run, x[-1:], weights["head"])


def project(run: Call, x: Array, head: Array) -> Array:
    """Logits (V,) of the last position's state (1, d), in slices of the vocabulary."""
    edges = [*range(0, head.shape[1], HEAD_SLICE), head.shape[1]]
    parts = [run("vocabulary_slice", x, head[:, low:high]) for low, high in zip(edges, edges[1:], strict=False)]
    return jnp.concatenate(parts, 1)[0]


def embed(run: Call, table: Array, one_hot: Array) -> Array:
    """One-hot (T, V) times the table (V, d), in slices of the vocabulary: whole, it needs too much memory."""
    edges = [*range(0, table.shape[0], SLICE), table.shape[0]]
    parts = [
        run("embedding_slice", one_hot[:, low:high], table[low:high])
        for low, high in zip(edges, edges[1:], strict=False)
    ]
    return sum(parts[1:], parts[0])


def product(run: Call, x: Array, weight: Array) -> Array:
    """x (rows, n) times the server's (n, m), in slices of at most WEIGHTS_AT_ONCE weights where rows are many.

    Slices go along the longer side: columns are put side by side, inner ones added up.
    """
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


def _logits(run: Call, config: ModelConfig, w: Named, n: Array) -> Array:
    """Scaled attention logits (H, T, T) with separate products for Q and K."""
    query = run("scale_public", _product(run, n, w, "query"), factor=float((config.width / config.heads) ** -0.5))
    query = _split(query, config.heads)
    if "inverse_temperature" in w:
        query = run("scale", query, w["inverse_temperature"][:, : n.shape[0], None])
    return run("scores", query, _split(_product(run, n, w, "key"), config.heads))


def _pre_ln(run: Call, architecture: Architecture, config: ModelConfig, w: Named, x: Array) -> Array:
    n = run("layer_norm", x, w["ln_1.weight"], w["ln_1.bias"]) if architecture.layer_norm else x
    probabilities = run("softmax_plain", _logits(run, config, w, n))
    value = _split(_product(run, n, w, "value"), config.heads)
    x = x + _product(run, _merge(run("mix", probabilities, value)), w, "output")
    if "fused" in w:
        return run("scale", x, w["beta"]) + _product(run, x, w, "fused")
    if "up" not in w:
        return x
    n = run("layer_norm", x, w["ln_2.weight"], w["ln_2.bias"]) if architecture.layer_norm else x
    hidden = _product(run, n, w, "up")
    if architecture.ffn in ("gelu", "relu"):
        hidden = run({"gelu": "gelu_plain", "relu": "relu"}[architecture.ffn], hidden)
    return (run("scale", x, w["beta"]) if "beta" in w else x) + _product(run, hidden, w, "down")


def _attend_tuned(run: Call, config: ModelConfig, query: Array, key: Array, value: Array, w: Named) -> Array:
    """Attention output (rows, d) of `rows` trailing queries, Q already holding 1/sqrt(d_k)."""
    query = _split(query, config.heads)
    tokens, rows = key.shape[0], query.shape[1]
    if "inverse_temperature" in w:
        query = run("scale", query, w["inverse_temperature"][:, tokens - rows : tokens, None])
    logits = run("scores", query, _split(key, config.heads))
    probabilities = run("softmax_cover", logits, blocks=min(COVER_BLOCKS, rows))
    return _merge(run("mix", probabilities, _split(value, config.heads)))


def _pre_ln_tuned(run: Call, architecture: Architecture, config: ModelConfig, w: Named, x: Array, last: bool) -> Array:
    d = config.width
    n = run("normalise", x) if architecture.layer_norm else x
    if last:
        # One query row; keys and values of all rows.
        key_value = product(run, n, w["qkv"][:, d:]) + w["qkv_bias"][d:]
        query = product(run, n[-1:], w["qkv"][:, :d]) + w["qkv_bias"][:d]
        key, value = key_value[:, :d], key_value[:, d:]
        x = x[-1:]
    else:
        qkv = _product(run, n, w, "qkv")
        query, key, value = qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :]
    attended = _attend_tuned(run, config, query, key, value, w)
    if "from_both" in w:
        return product(run, jnp.concatenate([x, attended], 1), w["from_both"]) + w["block_bias"]
    if "from_attention" in w:
        return x + product(run, attended, w["from_attention"]) + w["block_bias"]
    x = x + _product(run, attended, w, "output")
    n = run("normalise", x) if architecture.layer_norm else x
    if "ffn" in w:
        return x + _product(run, n, w, "ffn")
    activation = {"gelu": "gelu_segments", "relu": "relu"}[architecture.ffn]
    return x + _product(run, run(activation, _product(run, n, w, "up")), w, "down")


def _he_hofmann(run: Call, config: ModelConfig, w: Named, x: Array) -> Array:
    """The shaped matrix a I + b P - g C, as it is defined, times V."""
    n = run("layer_norm", x, w["ln_1.weight"], w["ln_1.bias"]) if "ln_1.weight" in w else x
    tokens = n.shape[0]
    probabilities = run("softmax_plain", _logits(run, config, w, n))
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
    return attended + run("scale", n, w["b_ff"])


def _he_hofmann_tuned(run: Call, config: ModelConfig, w: Named, x: Array, last: bool) -> Array:
    d = config.width
    n = run("normalise", x) if "value" in w else x
    value = _product(run, n, w, "value") if "value" in w else n
    rows = 1 if last else n.shape[0]
    if last:
        key = product(run, n, w["qk"][:, d:]) + w["qk_bias"][d:]
        query = product(run, n[-1:], w["qk"][:, :d]) + w["qk_bias"][:d]
    else:
        query_key = _product(run, n, w, "qk")
        query, key = query_key[:, :d], query_key[:, d:]
    attended = _attend_tuned(run, config, query, key, value, w)
    joined = jnp.concatenate([n[-rows:], attended, run("causal_mean", n, rows=rows)], 1)  # (rows, 3d)
    return product(run, joined, w["combine"]) + w["block_bias"]


def operations(architecture: Architecture, config: ModelConfig, program: str, context: int) -> Counter[Operation]:
    """Distinct operations of a forward pass over `context` tokens, with their counts."""
    shapes = {
        name: jax.ShapeDtypeStruct(shape, np.float32)
        for name, shape in weight_shapes(architecture, config, program).items()
    }
    one_hot = jax.ShapeDtypeStruct((context, config.vocabulary), np.float32)
    return trace(lambda run, *arrays: forward(run, architecture, config, program, *arrays), shapes, one_hot)


def plaintext(
    architecture: Architecture, config: ModelConfig, program: str, weights: Mapping[str, np.ndarray], ids: np.ndarray
) -> np.ndarray:
    """The same program in float32 in the clear: logits (V,) after the last of `ids` (T,)."""
    one_hot = jax.nn.one_hot(jnp.asarray(ids), config.vocabulary, dtype=jnp.float32)
    with jax.default_matmul_precision("highest"):
        return np.asarray(forward(call, architecture, config, program, weights, one_hot))
