"""Maxima by wide nodes, and reciprocals of numbers in a known range: fewer rounds than SPU's own.

A comparison takes some six rounds however many entries it has, so what can be compared at once is.
"""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.two_party.lattice.share_steps import negative

BUCKET, WIDE_BUCKET = 1.22, 1.4
"""Largest ratio of the two ends of a bucket of `reciprocal`; of a wide range, where the error then is 1e-4."""
LEAST = 1.0 - 2.0**-8
"""Least argument of `reciprocal`: 1, less what truncations may take off."""
LARGEST = 2.0**12
"""Largest argument of `reciprocal_root`; its comparisons hold no more (`fixed_point`)."""
RECIPROCAL_ROOT_ERROR = 1.2e-4


def node_widths(entries: int, wide: int) -> list[int]:
    """Entries of a node at each level of `wide_maximum`: as few levels as `wide` allows, narrow nodes first."""
    widths = []
    while entries > 1:
        above = wide ** (math.ceil(round(math.log(entries, wide), 9)) - 1)
        widths.append(-(-entries // above))
        entries = -(-entries // widths[-1])
    return widths


def wide_maximum(x: Array, wide: int, narrow: bool) -> Array:
    """Maxima over the last axis of x as a tree of nodes of up to `wide` entries.

    All pairs of a node are compared at once; then its largest entry is selected, of equal ones the first.
    """
    for width in node_widths(x.shape[-1], wide):
        missing = -x.shape[-1] % width
        if missing:
            x = jnp.concatenate([x, *[x[..., -1:]] * missing], -1)
        entries = jnp.moveaxis(x.reshape(*x.shape[:-1], -1, width), -1, 0)
        pairs = list(itertools.combinations(range(width), 2))
        low, high = (entries[np.array(side)] for side in zip(*pairs, strict=True))
        below = negative(low - high) if narrow else low - high < 0.0
        smaller = dict(zip(pairs, below, strict=True))
        # One entry wins in every node, so the last needs no bit of its own.
        wins = [
            jnp.stack([_beats(smaller, i, (i + step) % width) for i in range(width - 1)]) for step in range(1, width)
        ]
        while len(wins) > 1:
            half = len(wins) // 2
            both = jnp.logical_and(jnp.stack(wins[:half]), jnp.stack(wins[half : 2 * half]))
            wins = [*both, *wins[2 * half :]]
        last = entries[-1]
        x = last + jnp.sum(jnp.where(wins[0], entries[:-1] - last, 0.0), 0)
    return x[..., 0]


def _beats(smaller: dict[tuple[int, int], Array], i: int, j: int) -> Array:
    """Whether entry i of a node is larger than entry j, or equal and before it."""
    return jnp.logical_not(smaller[i, j]) if i < j else smaller[j, i]


def reciprocal(x: Array, most: float) -> Array:
    """1 / x for x in [LEAST, most], within 1 / T_4(1 / e) of its value and a few units of fixed point.

    Public thresholds, all compared at once, give w = s y near s / x for one of a few y. With E = s - x w = s (1 - x y),
    w (s + E) (s^2 (1 - e^2) + E^2) is the minimax cubic in 1 - x y, which is at most e in size: 1 - x times it is
    T_4(z) / T_4(1 / e).
    """
    buckets = _buckets(most)
    return _inverted(x, negative(x - _first_axis(buckets[0], x.ndim)), buckets)


def checked_reciprocal(x: Array, least: float, most: float) -> tuple[Array, Array]:
    """`reciprocal` with buckets of WIDE_BUCKET, and how many x lie outside [least, most]; for x in [0, 2^24]."""
    buckets = _buckets(most, least, WIDE_BUCKET)
    # Comparisons hold 2^13: the last one is of x / 2^11.
    ends = jnp.stack([x - np.float32(least), (np.float32(most) - x) * np.float32(2.0**-11)])
    below = negative(jnp.concatenate([x - _first_axis(buckets[0], x.ndim), ends]))
    return _inverted(x, below[:-2], buckets), jnp.sum(jnp.where(below[-2:], 1.0, 0.0))


def _inverted(x: Array, below: Array, buckets: tuple[np.ndarray, np.ndarray, float, float]) -> Array:
    """`reciprocal` by the result of its comparisons."""
    _, starts, spread, s = buckets
    (w,) = _chosen(below, starts)
    error = s - x * w
    square, first = jnp.stack([error, w]) * jnp.stack([error, s + error])
    return first * (square + s * s * (1 - spread * spread))


def _first_axis(values: np.ndarray, axes: int) -> np.ndarray:
    """(m,) as (m, 1, ...), to broadcast with so many further axes."""
    return values[(slice(None),) + (None,) * axes].astype(np.float32)


def _chosen(below: Array, *values: np.ndarray) -> list[Array]:
    """Of each array of public values (m + 1,) that of the bucket that an entry lies in; below (m, ...): whether it lies
    below each of the edges between buckets."""
    return [
        np.float32(one[-1]) + jnp.sum(jnp.where(below, _first_axis(one[:-1] - one[1:], below.ndim - 1), 0.0), 0)
        for one in values
    ]


def _fixed(values: np.ndarray) -> np.ndarray:
    """Rounded to 18 fraction bits, so that sums of their differences are exact."""
    return np.rint(values * 2.0**18) / 2.0**18


def _borders(least: float, most: float, bucket: float = BUCKET) -> tuple[np.ndarray, float]:
    """Ends of buckets in equal ratios, and e: x / (centre of its bucket) is within 1 - e and 1 + e."""
    many = max(2, math.ceil(math.log(most / least) / math.log(bucket)))
    borders = np.geomspace(least, most, many + 1)
    ratio = borders[1] / borders[0]
    return borders, float((ratio - 1) / (ratio + 1))


def _buckets(most: float, least: float = LEAST, bucket: float = BUCKET) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Inner edges (m,) of the buckets of [least, most], starts w (m + 1,), e and s of `reciprocal`."""
    borders, spread = _borders(least, most, bucket)
    s = float(8 / (spread**4 * _chebyshev(1 / spread))) ** 0.25
    return borders[1:-1], _fixed(s * 2 / (borders[:-1] + borders[1:])), spread, s


def _chebyshev(x: float) -> float:
    """T_4(x)."""
    return 2 * (2 * x * x - 1) ** 2 - 1


def reciprocal_root(x: Array, least: float, factor: float = 1.0) -> Array:
    """factor / sqrt(x) for x in [least, LARGEST], within RECIPROCAL_ROOT_ERROR of its value and a few units of fixed
    point.

    As `reciprocal`, with w near 1 / x, e = 1 - x w, and sqrt(w) (c_0 + c_1 e + c_2 e^2).
    """
    edges, inverses, roots, (c0, c1, c2) = _root_buckets(least, factor)
    shift = c1 / (2 * c2)
    w, root = _chosen(negative(x - _first_axis(edges, x.ndim)), inverses, roots)
    moved = 1.0 + shift - x * w
    return root * (moved * moved + (c0 / c2 - shift * shift))


def _root_buckets(least: float, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, ...]]:
    """Inner edges (m,), w (m + 1,), factor c_2 sqrt(w) (m + 1,), and c of `reciprocal_root`."""
    borders, spread = _borders(least, LARGEST)
    inverses = _fixed(2 / (borders[:-1] + borders[1:]))
    c = np.polynomial.Chebyshev.interpolate(lambda e: (1 - e) ** -0.5, 2, domain=[-spread, spread])
    c = c.convert(kind=np.polynomial.Polynomial).coef.tolist()
    return borders[1:-1], inverses, _fixed(factor * c[2] * np.sqrt(inverses)), tuple(c)
