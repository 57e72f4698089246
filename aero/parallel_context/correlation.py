"""Pearson's correlation with an interval, for entropy against performance over degrees of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z = 1.959963984540054


@dataclass(frozen=True)
class Correlation:
    """r over `points` pairs, with Fisher's 95 % interval (None below four points, or where a side is constant)."""

    r: float | None
    low: float | None
    high: float | None
    points: int


def pearson(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Correlation of x and y; tanh(artanh r ± 1.96 / sqrt(n - 3)). ValueError for sides of different length."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"a correlation needs pairs, got {a.shape} and {b.shape} values")
    if len(a) < 2 or not a.std() or not b.std():
        return Correlation(None, None, None, len(a))
    r = float(np.clip(np.corrcoef(a, b)[0, 1], -1.0, 1.0))
    if len(a) < 4 or abs(r) > 1 - 1e-12:
        return Correlation(r, None, None, len(a))
    centre, half = math.atanh(r), _Z / math.sqrt(len(a) - 3)
    return Correlation(r, math.tanh(centre - half), math.tanh(centre + half), len(a))
