"""Theorem 5.1, Proposition 5.3 and their surroundings in `variance_sensitivity`, as printed and as they hold.

N positions, D dimensions of a query or key, logits z ~ N(0, sigma^2 I_N), p = softmax(z), H entropy in nats. What
differs from the paper is derived in docs/variance_sensitivity.md. Expectations over z are computed here to machine
precision, by quadrature; `aero.sensitivity.sampling` draws them, as an independent check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mask = Literal["full", "causal", "window"]


# Softmax ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SoftmaxMoments:
    """Expectations over z: the entropy, sum_i z_i^2 p_i and (sum_i z_i p_i)^2."""

    sigma: float
    entropy: float
    second_moment: float
    squared_mean: float

    @property
    def derivative(self) -> float:
        """dH / d(sigma^2) = -E[Var_p(z)] / (2 sigma^2): the last line of Appendix E.3, which holds."""
        return -(self.second_moment - self.squared_mean) / (2 * self.sigma**2)

    @property
    def theorem_derivative(self) -> float:
        """-E[sum_i z_i^2 p_i], what Theorem 5.1 prints as the derivative."""
        return -self.second_moment

    @property
    def appendix_derivative(self) -> float:
        """The line of Appendix E.3 in which the derivative is taken: its last two terms lack the factor 1/(2 sigma)."""
        return -(self.second_moment - self.squared_mean) / self.sigma


def softmax_moments(sigma: float, positions: int) -> SoftmaxMoments:
    """The expectations over z ~ N(0, sigma^2 I_N), by quadrature.

    With S = sum_j exp(z_j), 1/S and 1/S^2 are the integrals of exp(-t S) and t exp(-t S) over t > 0, and
    log S that of (exp(-t) - exp(-t S)) / t. Under them the z_i are independent, so N dimensions become one, whatever N:
    every expectation is an integral over u = log t of products of one-dimensional normal expectations. Both integrals
    are trapezoidal sums of smooth functions that vanish at the ends, whose error is far below 1e-10.
    ValueError for a sigma that is not positive or fewer than one position.
    """
    _check(sigma, positions)
    one = _one_position(sigma)
    others = one.survival ** (positions - 1)
    pairs = positions * (positions - 1) * one.survival ** max(positions - 2, 0) * one.first**2
    mean = positions * np.sum(others * one.first) * 0.1  # E[sum_i z_i p_i]
    log_sum = np.sum(np.exp(-np.exp(np.minimum(one.u, 700.0))) - one.survival**positions) * 0.1  # E[log S]
    return SoftmaxMoments(
        sigma,
        float(log_sum - mean),
        float(positions * np.sum(others * one.second) * 0.1),
        float(np.sum(positions * others * one.doubled + pairs) * 0.1),
    )


@dataclass(frozen=True)
class _OnePosition:
    """At every u = log t, with x = t exp(z): E[exp(-x)], E[z x exp(-x)], E[z^2 x exp(-x)] and E[z^2 x^2 exp(-x)]."""

    u: NDArray[np.float64]
    survival: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    doubled: NDArray[np.float64]


@lru_cache(maxsize=64)  # the same for every N
def _one_position(sigma: float) -> _OnePosition:
    step = 0.02
    g = np.arange(-12, 12 + step / 2, step)
    weight = np.exp(-g * g / 2) * step / math.sqrt(2 * math.pi)
    z = sigma * g
    width = 10 * sigma + 40
    u = np.arange(-width, width, 0.1)
    x = u[:, None] + z  # log(t exp(z))
    tail = np.exp(np.minimum(x, 700.0))
    log_term = x - tail  # of t exp(z) exp(-t exp(z)); exp(-tail) alone where x does not count
    once = np.exp(log_term)
    return _OnePosition(
        u,
        np.exp(-tail) @ weight,
        once @ (z * weight),
        once @ (z * z * weight),
        np.exp(x + log_term) @ (z * z * weight),
    )


def entropy_expansion(sigma: float, positions: int, order: int = 2) -> float:
    """E[H] = log N - (N-1)/(2N) sigma^2 + 3(N-1)/(4 N^2) sigma^4 + O(sigma^6), up to `order` 2 or 4.

    Order 2 is Theorem 5.1's. The expansion is of the expectation: a single draw of z deviates by terms in sigma^2 and
    sigma^3.
    """
    _check(sigma, positions)
    if order not in (2, 4):
        raise ValueError(f"order must be 2 or 4, got {order}")
    found = math.log(positions) - (positions - 1) / (2 * positions) * sigma**2
    return found if order == 2 else found + 3 * (positions - 1) / (4 * positions**2) * sigma**4


def collapse_sigma(positions: int) -> float:
    """sqrt(2 log N): where log N - sigma^2 / 2, the expansion for many positions, reaches 0 (the freezing point of
    Derrida's random energy model). What a "small" sigma is depends on N through it."""
    _check(1.0, positions)
    return math.sqrt(2 * math.log(positions))


def least_entropy(bound: float, positions: int) -> float:
    """The smallest entropy of softmax(z) with every |z_i| <= bound.

    dH/dz_i = p_i (sum_j p_j z_j - z_i) changes its sign once, from + to -, so H is least at a corner: k logits at
    +bound, the others at -bound. QK-LayerNorm with gamma = 1 has |Z_ij| <= D (Eq. 2).
    """
    _check(bound, positions)
    entropies = []
    for high in range(1, positions + 1):
        low = (positions - high) * math.exp(-2 * bound)  # relative to exp(bound)
        total = high + low
        entropies.append(math.log(total) + 2 * bound * low / total)
    return min(entropies)


# ReLU kernel ------------------------------------------------------------------------------------------------------

RELU_VARIANCE = math.pi * (math.pi - 1)
"""D E[delta_ij^2] for many positions and dimensions: the variance of t_ij over the keys of one query, over (D mu)^2."""
RELU_VARIANCE_PRINTED = math.pi**2 - 1
"""tau^2 / mu^2 of Appendix E.4: the variance over queries and keys."""


def relu_entropy(dims: int, positions: int) -> float:
    """E[H] = log N - (N-1)/N pi (pi - 1) / (2 D) + O(D^-2) of the ReLU kernel, Gaussian queries and keys."""
    _check(1.0, positions), _check(1.0, dims)
    return math.log(positions) - (positions - 1) / positions * RELU_VARIANCE / (2 * dims)


def relu_entropy_printed(dims: int, positions: int) -> float:
    """The same from the moments that Appendix E.4 prints: log N - (pi^2 - 1) / (2 D)."""
    _check(1.0, positions), _check(1.0, dims)
    return math.log(positions) - RELU_VARIANCE_PRINTED / (2 * dims)


def relu_undefined(dims: int, positions: int) -> float:
    """Probability that a row of the ReLU kernel is 0 / 0: no component in which query and some key are both positive.

    Of the D components, each is harmless with probability 1/2 (query not positive) + 2^-(N+1) (it is, but no key is).
    """
    _check(1.0, positions), _check(1.0, dims)
    return ((1 + 2.0**-positions) / 2) ** dims


# Norm and entropy of an attention matrix --------------------------------------------------------------------------


def visible_keys(mask: Mask, positions: int, window: int = 8) -> NDArray[np.int64]:
    """How many keys each of the N queries may see: all, those up to its own position, or i - W ... i + W."""
    _check(1.0, positions)
    index = np.arange(positions)
    if mask == "full":
        return np.full(positions, positions)
    if mask == "causal":
        return index + 1
    if mask == "window":
        return np.minimum(index + window, positions - 1) - np.maximum(index - window, 0) + 1
    raise ValueError(f"unknown mask {mask!r}: full, causal or window")


def norm_range(keys: NDArray[np.int64]) -> tuple[float, float]:
    """Least and greatest ||P||_F where row i spreads over `keys[i]` positions: uniform rows and one-hot rows.

    With all N keys everywhere these are 1 and sqrt(N) (Proposition 5.3).
    """
    return math.sqrt(np.sum(1.0 / keys)), math.sqrt(len(keys))


def entropy_maximum(keys: NDArray[np.int64]) -> float:
    """Greatest H(P), the mean over rows (Eq. 7), where row i spreads over `keys[i]` positions."""
    return float(np.mean(np.log(keys)))


def least_row_norm(entropy: float) -> float:
    """exp(-H/2): no row of entropy H has a smaller l2 norm, since the collision entropy -log |p|^2 is at most H."""
    return math.exp(-entropy / 2)


def greatest_row_norm(entropy: float, positions: int) -> float:
    """The greatest l2 norm of a row of entropy H over N positions: one large entry, the others equal (Harremoes and
    Topsoe 2001, upper boundary of the index of coincidence). ValueError for an entropy outside [0, log N]."""
    if not -1e-12 <= entropy <= math.log(positions) + 1e-12:
        raise ValueError(f"entropy {entropy} is not within [0, log {positions}]")
    low, high = 1 / positions, 1.0
    for _ in range(200):
        largest = (low + high) / 2
        if _peaked_entropy(largest, positions) > entropy:
            low = largest
        else:
            high = largest
    rest = (1 - high) / max(positions - 1, 1)
    return math.sqrt(high**2 + (positions - 1) * rest**2)


def _peaked_entropy(largest: float, positions: int) -> float:
    rest = 1 - largest
    spread = rest * math.log(rest / (positions - 1)) if rest > 0 and positions > 1 else 0.0
    return -largest * math.log(largest) - spread


def dirichlet_entropy(alpha: float, positions: int) -> float:
    """E[H] of a row from Dirichlet(alpha 1) over N positions: psi(N alpha + 1) - psi(alpha + 1) (Eq. 39)."""
    import torch

    _check(alpha, positions)
    ends = torch.tensor([positions * alpha + 1, alpha + 1], dtype=torch.float64).digamma()
    return float(ends[0] - ends[1])


def dirichlet_square(alpha: float, positions: int) -> float:
    """E[|p|^2] of the same: (alpha + 1) / (N alpha + 1)."""
    _check(alpha, positions)
    return (alpha + 1) / (positions * alpha + 1)


def _check(scale: float, positions: int) -> None:
    if not scale > 0:
        raise ValueError(f"sigma, bound or concentration must be positive, got {scale}")
    if positions < 1:
        raise ValueError(f"positions and dimensions must be at least 1, got {positions}")
