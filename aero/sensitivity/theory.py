"""Theorem 5.1 and Proposition 5.3 of `variance_sensitivity`, as printed and as derived (docs/variance_sensitivity.md).

N positions, D dimensions of a query or key, logits z ~ N(0, sigma^2 I_N), p = softmax(z), H the entropy in nats.
Expectations over z are computed by quadrature to machine precision; `aero.sensitivity.sampling` is an independent
Monte Carlo check.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = Literal["full", "causal"]


class SoftmaxEntropy(NamedTuple):
    """Expectation over z of the entropy, and its derivative in sigma^2: as derived, and as printed in two places.

    derivative: -E[Var_p(z)] / (2 sigma^2), the last line of Appendix E.3, which is correct. theorem_derivative:
    -E[sum_i z_i^2 p_i], of Theorem 5.1. appendix_derivative: of the line of Appendix E.3 that takes the derivative; its
    last two terms lack the factor 1 / (2 sigma).
    """

    entropy: float
    derivative: float
    theorem_derivative: float
    appendix_derivative: float


def softmax_entropy(sigma: float, positions: int) -> SoftmaxEntropy:
    """Expectations over z ~ N(0, sigma^2 I_N), by quadrature.

    With S = sum_j exp(z_j), 1/S and 1/S^2 are the integrals of exp(-t S) and t exp(-t S) over t > 0, and log S that of
    (exp(-t) - exp(-t S)) / t. Under them the z_i are independent, so every expectation is an integral over u = log t of
    products of one-dimensional normal expectations. Both are trapezoidal sums with an error below 1e-10 up to sigma 15.
    """
    u, survival, first, second, doubled = _one_position(sigma)
    others = survival ** (positions - 1)
    pairs = positions * (positions - 1) * survival ** max(positions - 2, 0) * first**2
    mean = positions * np.sum(others * first) * 0.1  # E[sum_i z_i p_i]
    log_sum = np.sum(np.exp(-np.exp(np.minimum(u, 700.0))) - survival**positions) * 0.1  # E[log S]
    squares = float(positions * np.sum(others * second) * 0.1)  # E[sum_i z_i^2 p_i]
    variance = squares - float(np.sum(positions * others * doubled + pairs) * 0.1)  # E[Var_p(z)]
    return SoftmaxEntropy(float(log_sum - mean), -variance / (2 * sigma**2), -squares, -variance / sigma)


@lru_cache(maxsize=64)  # the same for every N
def _one_position(sigma: float) -> tuple[Array, Array, Array, Array, Array]:
    """u = log t; at every u, with x = t exp(z), the means of exp(-x), z x exp(-x), z^2 x exp(-x), (z x)^2 exp(-x)."""
    step = 0.04
    g = np.arange(-12, 12 + step / 2, step)
    weight = np.exp(-g * g / 2) * step / math.sqrt(2 * math.pi)
    z = sigma * g
    width = 10 * sigma + 40
    u = np.arange(-width, width, 0.1)
    x = u[:, None] + z  # log(t exp(z))
    tail = np.exp(np.minimum(x, 700.0))
    log_term = x - tail  # of t exp(z) exp(-t exp(z))
    once = np.exp(log_term)
    square = z * z * weight
    return u, np.exp(-tail) @ weight, once @ (z * weight), once @ square, np.exp(x + log_term) @ square


def entropy_expansion(sigma: float, positions: int) -> float:
    """log N - (N-1)/(2N) sigma^2 (Theorem 5.1); E[H] is 3(N-1)/(4 N^2) sigma^4 + O(sigma^6) above it."""
    return math.log(positions) - (positions - 1) / (2 * positions) * sigma**2


RELU_VARIANCE = math.pi * (math.pi - 1)
"""D E[delta_ij^2] for large N and D: the variance of t_ij over the keys of one query, over (D mu)^2."""
RELU_VARIANCE_PRINTED = math.pi**2 - 1
"""tau^2 / mu^2 of Appendix E.4: the variance over queries and keys."""


def relu_undefined(dims: int, positions: int) -> float:
    """Probability that a row of the ReLU kernel is 0 / 0: no component has both the query and some key positive.

    For one component that has probability 1/2 (query not positive) + 2^-(N+1) (query positive, no key positive).
    """
    return ((1 + 2.0**-positions) / 2) ** dims


def visible_keys(mask: Mask, positions: int) -> NDArray[np.int64]:
    """How many keys each of the N queries sees: all, or those up to its own position."""
    return np.full(positions, positions) if mask == "full" else np.arange(positions) + 1


def norm_range(keys: NDArray[np.int64]) -> tuple[float, float]:
    """Least and greatest ||P||_F where row i sees `keys[i]` keys: of uniform and of one-hot rows.

    With all N keys visible these are 1 and sqrt(N) (Proposition 5.3).
    """
    return math.sqrt(np.sum(1.0 / keys)), math.sqrt(len(keys))


def entropy_maximum(keys: NDArray[np.int64]) -> float:
    """Greatest H(P), the mean over rows (Eq. 7), where row i sees `keys[i]` keys."""
    return float(np.mean(np.log(keys)))


def least_row_norm(entropy: float) -> float:
    """exp(-H/2), the least l2 norm of a row of entropy H: the collision entropy -log |p|^2 is at most H."""
    return math.exp(-entropy / 2)


def greatest_row_norm(entropy: float, positions: int) -> float:
    """The greatest l2 norm of a row of entropy H in [0, log N]: one large entry, the others equal.

    Harremoes and Topsoe 2001, upper boundary of the index of coincidence.
    """
    low, high = 1 / positions, 1.0
    for _ in range(50):  # halvings, to an error of 1e-15
        largest = (low + high) / 2
        rest = 1 - largest
        if -largest * math.log(largest) - rest * math.log(rest / (positions - 1)) > entropy:
            low = largest
        else:
            high = largest
    return math.sqrt(high**2 + (1 - high) ** 2 / (positions - 1))
