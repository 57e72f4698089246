"""Interpolated n-gram language models: the reference that a trained model has to beat.

Modified Kneser-Ney smoothing (Chen & Goodman 1999, section 4.3): three discounts an order, estimated from counts of
counts; orders below the highest count in how many contexts an n-gram occurs. The unigrams are interpolated with the
uniform distribution. N-grams do not reach over the ends of a sequence, as the model's attention does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class _Order:
    """Counts of one order n: packed n-grams, and of every packed context its total and the mass it hands down."""

    grams: Array  # (G,) uint64, sorted
    discounted: Array  # (G,) float64, max(c - D(c), 0)
    contexts: Array  # (C,) uint64, sorted
    totals: Array  # (C,) float64, sum of c over the context
    handed_down: Array  # (C,) float64, the discounted mass


class NGrams:
    """Counts of all n-grams of up to `order` tokens in `sequences` (S, T); `perplexity` evaluates any order of them."""

    def __init__(self, sequences: Array, vocabulary: int, order: int = 5) -> None:
        """ValueError unless `order` tokens of this vocabulary fit into 64 bits."""
        self.bits = max(1, int(vocabulary - 1).bit_length())
        if order < 1 or order * self.bits > 64:
            raise ValueError(f"{order} tokens of a vocabulary of {vocabulary} do not fit into 64 bits; lower the order")
        self.vocabulary, self.order = vocabulary, order
        counted = [np.unique(self._packed(sequences, n).ravel(), return_counts=True) for n in range(1, order + 1)]
        self._highest = [self._smoothed(*counted[n - 1], n) for n in range(1, order + 1)]
        self._lower = []
        for n in range(1, order):
            # the number of different tokens seen before each n-gram: its (n+1)-grams without their first token
            suffixes = counted[n][0] & np.uint64((1 << (n * self.bits)) - 1)
            self._lower.append(self._smoothed(*np.unique(suffixes, return_counts=True), n))

    def perplexity(self, sequences: Array, order: int) -> float:
        """exp of the mean negative log-likelihood of every token but the first of each sequence of (S, T)."""
        levels = [*self._lower[: order - 1], self._highest[order - 1]]
        probability = np.full(sequences[:, 1:].shape, 1.0 / self.vocabulary)  # (S, T-1)
        for n, level in enumerate(levels, start=1):
            if n > sequences.shape[1]:
                break
            # the first n-2 predicted tokens have no context of n-1 tokens and keep the lower order's probability
            first = max(n - 2, 0)
            packed = self._packed(sequences, n)[:, 1 if n == 1 else 0 :]  # (S, T-1-first)
            below = probability[:, first:]
            probability[:, first:] = self._interpolated(level, packed, below)
        return float(np.exp(-np.log(probability).mean()))

    def _packed(self, sequences: Array, n: int) -> Array:
        """Every n-gram of (S, T) as one integer: (S, T-n+1) uint64, the first token in the highest bits."""
        width = sequences.shape[1] - n + 1
        packed = np.zeros((len(sequences), max(width, 0)), dtype=np.uint64)
        for place in range(n):
            packed = (packed << np.uint64(self.bits)) | sequences[:, place : place + width].astype(np.uint64)
        return packed

    def _smoothed(self, grams: Array, counts: Array, n: int) -> _Order:
        discounts = _discounts(counts)
        taken = discounts[np.minimum(counts, 3)]
        contexts, inverse = np.unique(grams >> np.uint64(self.bits), return_inverse=True)
        return _Order(
            grams,
            np.maximum(counts - taken, 0.0),
            contexts,
            np.bincount(inverse, weights=counts, minlength=len(contexts)),
            np.bincount(inverse, weights=np.minimum(taken, counts), minlength=len(contexts)),
        )

    def _interpolated(self, level: _Order, packed: Array, below: Array) -> Array:
        gram, seen = _find(level.grams, packed)
        context, known = _find(level.contexts, packed >> np.uint64(self.bits))
        total = np.where(known, level.totals[context], 1.0)
        own = np.where(seen, level.discounted[gram], 0.0)
        return np.where(known, (own + level.handed_down[context] * below) / total, below)


def _find(keys: Array, wanted: Array) -> tuple[Array, Array]:
    """Places of `wanted` in the sorted `keys`, and whether they are there."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return places, keys[places] == wanted


def _discounts(counts: Array) -> Array:
    """D(0) = 0, D(1), D(2), D(3+) of Chen & Goodman (1999), Eq. 26, from how many n-grams occur one to four times."""
    n1, n2, n3, n4 = (float((counts == c).sum()) for c in (1, 2, 3, 4))
    if not min(n1, n2, n3):  # too few n-grams for the estimate
        return np.array([0.0, 0.5, 0.75, 0.9])
    y = n1 / (n1 + 2 * n2)
    estimates = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    return np.array([0.0, *(min(max(d, 0.0), c) for c, d in enumerate(estimates, start=1))])
