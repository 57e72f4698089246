"""Monte Carlo for the theory of `variance_sensitivity`, every mean with its standard error.

No formula of `aero.sensitivity.theory` is used: entropies are of drawn attention rows, derivatives are difference
quotients of entropies at two variances on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr, softmax

from aero.attention_kernels import attend, core_named, normalise, row_entropy

Array = NDArray[np.float64]
CHUNK = 2_000_000
"""Normal deviates in memory at a time."""


class Estimate(NamedTuple):
    """A mean over independent draws and its standard error."""

    mean: float
    error: float


Sample = dict[str, Estimate]


def estimate(values: Array) -> Estimate:
    """Mean and standard error of two or more independent values."""
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def _estimates(draw: Callable[[int], dict[str, Array]], draws: int, size: int) -> Sample:
    """Estimates from `draws` draws of `size` normal deviates each; `draw` makes a number of them."""
    at_once = max(1, CHUNK // size)
    chunks = [draw(min(at_once, draws - start)) for start in range(0, draws, at_once)]
    return {name: estimate(np.concatenate([chunk[name] for chunk in chunks])) for name in chunks[0]}


def _entropy(p: Array) -> Array:
    return entr(p).sum(-1)


def sample_softmax(sigma: float, positions: int, draws: int, generator: np.random.Generator) -> Sample:
    """Over draws of z ~ N(0, sigma^2 I_N): entropy, and its slope in sigma^2.

    The slope is [H(1.01 sigma^2) - H(0.99 sigma^2)] / (0.02 sigma^2) on the same normal deviates.
    """

    def draw(rows: int) -> dict[str, Array]:
        normal = generator.standard_normal((rows, positions))
        above, below = (_entropy(softmax(sigma * math.sqrt(1 + step) * normal, -1)) for step in (0.01, -0.01))
        slope = (above - below) / (2 * 0.01 * sigma**2)
        return {"entropy": _entropy(softmax(sigma * normal, -1)), "slope": slope}

    return _estimates(draw, draws, positions)


def sample_relu(dims: int, positions: int, rows: int, generator: np.random.Generator, sigma: float = 1.0) -> Sample:
    """Over rows of the ReLU kernel, each with its own query and N keys, standard normal in D dimensions times sigma.

    entropy and square (the mean over keys of delta_ij^2, Appendix E.4) over rows that are defined. undefined: fraction
    of rows that are 0 / 0.
    """

    def draw(count: int) -> dict[str, Array]:
        query = np.maximum(sigma * generator.standard_normal((count, dims, 1)), 0)
        keys = np.maximum(sigma * generator.standard_normal((count, positions, dims)), 0)
        t = (keys @ query)[..., 0]  # (rows, N)
        total = t.sum(-1, keepdims=True)
        defined = total[:, 0] > 0
        p = t[defined] / total[defined]
        square = np.mean((positions * p - 1) ** 2, -1)
        return {"entropy": _entropy(p), "square": square, "undefined": (~defined).astype(float)}

    return _estimates(draw, rows, dims * positions)


def sample_controlled(
    core: str, sigma: float, positions: int, dims: int, matrices: int, seed: int
) -> tuple[Sample, Array]:
    """The experiment of section 5.1: unit-norm queries, keys from N(0, sigma^2 I), so that Z_ij ~ N(0, sigma^2).

    Returns variance of the logits (Definition 5.2) and entropy, each the mean over a matrix's rows, over attention
    matrices; and the weights (N,) of one query. The same seed gives the same directions for every sigma and core.
    QK-LayerNorm has its gains at 1.
    """
    chosen = core_named(core)
    generator = torch.Generator().manual_seed(seed)
    entropies, variances, weights = [], [], []
    for _ in range(matrices):
        query, key = (torch.randn(positions, dims, dtype=torch.float64, generator=generator) for _ in range(2))
        query = query / query.norm(dim=-1, keepdim=True)
        key = sigma * key
        normal_query, normal_key = normalise(chosen, query, key)
        _, probabilities = attend(chosen, query, key, key)
        entropies.append(row_entropy(probabilities).mean().item())
        variances.append((normal_query @ normal_key.T).var(-1, unbiased=False).mean().item())
        weights.append(probabilities[positions // 2].numpy())
    return {"variance": estimate(np.array(variances)), "entropy": estimate(np.array(entropies))}, weights[0]


def sample_dirichlet(alpha: float, positions: int, rows: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Entropy and l2 norm of `rows` rows drawn from Dirichlet(alpha 1) (Appendix F)."""
    p = generator.dirichlet(np.full(positions, alpha), rows)
    return _entropy(p), np.linalg.norm(p, axis=-1)
