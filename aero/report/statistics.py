"""Means over seeds and their t-intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `seeds` with its 95 % t-interval; `low` and `high` are None for a single seed, which has none."""

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    def excludes(self, value: float = 0.0) -> int:
        """+1 if the whole interval lies above `value`, -1 if below, 0 if it contains it or there is no interval."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > value else -1 if self.high < value else 0

    def contains(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def text(self, digits: int = 2, unit: str = "") -> str:
        """ "3.21 [3.10, 3.32]", without the interval for one seed."""
        unit = f" {unit}" if unit else ""
        if not self.has_interval:
            return f"{self.mean:.{digits}f}{unit}"
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]{unit}"


def estimate(values: Mapping[int, float]) -> Estimate | None:
    """Mean and t-interval of one value a seed; None if there is no finite value.

    The interval is mean ± t(n-1, 0.975) · s / sqrt(n) with the sample standard deviation s.
    """
    finite = {seed: value for seed, value in sorted(values.items()) if value is not None and math.isfinite(value)}
    return interval(finite, 0.0, 0) if finite else None


def interval(values: Mapping[int, float], deviation: float, freedom: int) -> Estimate:
    """Mean of one value a seed, with the 95 % t-interval by a standard deviation of so many degrees of freedom; with 0
    degrees by that of the values themselves. One value has no interval."""
    count, mean = len(values), math.fsum(values.values()) / len(values)
    if count == 1:
        return Estimate(mean, None, None, tuple(values))
    if not freedom:
        freedom = count - 1
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values.values()) / freedom)
    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, tuple(values))


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """value - base for every seed both have."""
    return {seed: values[seed] - base[seed] for seed in sorted(values) if seed in base}


RESAMPLES = 400


def sampling_error(
    statistic: Callable[..., ArrayLike], *blocks: ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> NDArray[np.float64] | None:
    """Bootstrap standard error of `statistic` for the held-out tokens; None for fewer than two blocks.

    blocks: one array (K, …) a model, entropies averaged over each of K blocks of held-out sequences. K blocks are drawn
    with replacement, the same of every model; `statistic` takes their means. The spread over seeds is in `estimate`.
    """
    arrays = [np.asarray(block, dtype=float) for block in blocks]
    if not arrays or any(len(array) < 2 or len(array) != len(arrays[0]) for array in arrays):
        return None
    draw = np.random.default_rng(seed)
    count = len(arrays[0])
    found = [
        np.asarray(statistic(*(np.add.reduce(array[chosen]) / count for array in arrays)), dtype=float)
        for chosen in draw.integers(0, count, (resamples, count))
    ]
    return np.std(found, axis=0, ddof=1)
