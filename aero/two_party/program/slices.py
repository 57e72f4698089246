"""Matrix multiplication in slices, which bound the memory of a party."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

# Encoded weights take some 4 kB each when many rows are multiplied: 12 GB in one party for 4,096 entries of the
# embedding, 9 for 768 x 3,072; 7 GB for the whole vocabulary projection of one row. These sizes keep a run below 8 GB.
SLICE = 1024
HEAD_SLICE = 16384
WEIGHTS_AT_ONCE = 800_000
IDS_AT_ONCE = 2


def matmul(run: Callable[..., Array], x: Array, weight: Array) -> Array:
    """x (rows, n) times the server's (n, m) by SPU, in slices of at most WEIGHTS_AT_ONCE weights for several rows.

    Slices go along the longer side: columns are concatenated, inner ones added.
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
