"""Means over seeds and their t-intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
LOWEST = {"perplexity": 1.0, "%": -100.0}
"""Smallest feasible value by unit: perplexity, and its change in per cent."""


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

    def possible(self, unit: str = "%") -> Estimate:
        """The interval clipped to the feasible range, for showing: perplexity from 1, its change from -100 %."""
        lowest = LOWEST.get(unit, -math.inf)
        return self if self.low is None or self.low >= lowest else dataclasses.replace(self, low=lowest)

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
    if not finite:
        return None
    numbers = list(finite.values())
    count, mean = len(numbers), math.fsum(numbers) / len(numbers)
    if count == 1:
        return Estimate(mean, None, None, tuple(finite))
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (count - 1)
    half = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, tuple(finite))


def relative(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """100 · (value / base - 1), in per cent, for every seed both have: paired, so what a seed shares cancels."""
    return {seed: 100.0 * (values[seed] / base[seed] - 1.0) for seed in sorted(values) if seed in base}


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """value - base for every seed both have."""
    return {seed: values[seed] - base[seed] for seed in sorted(values) if seed in base}


def share(flags: Sequence[bool]) -> float:
    """The fraction of true ones; ValueError for none at all."""
    if not flags:
        raise ValueError("a share of nothing is not defined")
    return sum(flags) / len(flags)


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
