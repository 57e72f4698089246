"""The entropy landscape of multi-head attention: steepness and differences between heads (paper `entropy_landscape`).

A landscape is an array (L, H) with the mean or median attention entropy of every head, nats. Heads that are not finite
are NaN and left out of every statistic unless stated otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Landscape = NDArray[np.float64]


def steepness(landscape: ArrayLike) -> Landscape:
    """|grad E| = sqrt((dE/dlayer)^2 + (dE/dhead)^2) on the grid of layers and heads (Section 4.1): (L, H) -> (L, H).

    Differences as in numpy.gradient: central, one-sided at the edges; a direction with a single layer or head adds
    nothing. NaN where a required neighbour is NaN. For Figure 2, E is the mean of a head's token entropies according to
    the caption and their median according to the text; the caller decides.
    """
    values = _grid(landscape)
    squares = [np.gradient(values, axis=axis) ** 2 for axis in (0, 1) if values.shape[axis] > 1]
    return np.sqrt(sum(squares, start=np.zeros_like(values)))


def steepness_over_orders(landscape: ArrayLike, orders: int = 200, seed: int = 0) -> Landscape:
    """Mean of `steepness` over random orders of the heads within every layer, reported for each head: (L, H).

    Heads have no natural order: exchanging two, with their weights, gives the same model but another map. This mean
    does not depend on the numbering, up to sampling error.
    """
    values = _grid(landscape)
    draw = np.random.default_rng(seed)
    total = np.zeros_like(values)
    for _ in range(orders):
        order = draw.permuted(np.tile(np.arange(values.shape[1]), (values.shape[0], 1)), axis=1)  # (L, H)
        moved = steepness(np.take_along_axis(values, order, axis=1))
        np.put_along_axis(total, order, np.take_along_axis(total, order, axis=1) + moved, axis=1)
    return total / orders


def gini(values: ArrayLike) -> float:
    """Gini coefficient of non-negative values, sum_ij |x_i - x_j| / (2 n^2 mean): 0 if equal, at most (n - 1) / n.

    0 if all values are 0, NaN without values. ValueError for a negative value.
    """
    x = _finite(values)
    if len(x) == 0:
        return float("nan")
    # An entropy of 0 can be a rounding error below 0.
    if x.min() < -1e-6:
        raise ValueError(f"a Gini coefficient needs values that are not negative, got {x.min():.6g}")
    x = np.sort(x.clip(0))
    total = x.sum()
    ranks = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float((ranks * x).sum() / (len(x) * total)) if total > 0 else 0.0


def gini_by_layer(landscape: ArrayLike) -> NDArray[np.float64]:
    """Gini coefficient of the heads of each layer: (L, H) -> (L,) (Figure 3b)."""
    return np.array([gini(layer) for layer in _grid(landscape)])


def wasserstein_1(values: ArrayLike, others: ArrayLike) -> float:
    """Wasserstein-1 distance of two empirical distributions on the line, in their unit; NaN if one is empty."""
    from scipy.stats import wasserstein_distance

    one, other = _finite(values), _finite(others)
    return float(wasserstein_distance(one, other)) if len(one) and len(other) else float("nan")


def wasserstein_1_by_layer(landscape: ArrayLike, baseline: ArrayLike) -> NDArray[np.float64]:
    """Distance of each layer's heads from those of the baseline's same layer, nats: (L, H), (L, H') -> (L,).

    Figure 3c. Its mean is never below the distance of all heads from all heads; Table 1 does not say which it states.
    ValueError for landscapes of different depth.
    """
    one, other = _grid(landscape), _grid(baseline)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} layers cannot be compared with {len(other)} layer by layer")
    return np.array([wasserstein_1(a, b) for a, b in zip(one, other, strict=True)])


def entropy_range(landscape: ArrayLike) -> tuple[float, float]:
    """Lowest and highest head, nats (Table 1, "Ent. Range"); NaN without any."""
    x = _finite(landscape)
    return (float(x.min()), float(x.max())) if len(x) else (float("nan"), float("nan"))


def _grid(landscape: ArrayLike) -> Landscape:
    values = np.asarray(landscape, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a landscape is an array of layers and heads (L, H), got shape {values.shape}")
    return values


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64).ravel()
    return x[np.isfinite(x)]
