"""In-context linear regression (Appendix C.2): predict w^T x_N from x_N and the pairs (x_i, w^T x_i), i < N."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aero.sensitivity.setting import TOKENS, TRAINING_SET, Setting


def sequences(dimensions: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` sequences (B, N, d + 1) of tokens (x_i, y_i) with the last label set to 0, and that label (B,).

    x_i and w ~ N(0, I_d), y_i = w^T x_i; every sequence has its own w.
    """
    x = torch.randn(count, TOKENS, dimensions, generator=generator)
    w = torch.randn(count, dimensions, generator=generator)
    y = torch.einsum("bnd,bd->bn", x, w)
    tokens = torch.cat([x, y[..., None]], -1)
    tokens[:, -1, -1] = 0.0
    return tokens, y[:, -1]


class Batches:
    """Training batches of K seeds: tokens (K, B, N, d + 1) and targets (K, B).

    They depend on the seed alone: every learning rate and every core of one seed sees the same batches.
    """

    def __init__(self, setting: Setting, seeds: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self._setting, self._dtype, self._step = setting, dtype, 0
        self._generators = [torch.Generator().manual_seed(2 * seed + 1) for seed in seeds]
        self._set = self._draw(TRAINING_SET) if setting.data == "set" else None

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        drawn = [sequences(self._setting.dimensions, count, generator) for generator in self._generators]
        tokens, targets = (torch.stack(parts).to(self._dtype) for parts in zip(*drawn, strict=True))
        return tokens, targets

    def next(self) -> tuple[Tensor, Tensor]:
        batch = self._setting.batch
        if self._set is None:
            return self._draw(batch)
        start = self._step * batch % TRAINING_SET
        self._step += 1
        tokens, targets = (x[:, start : start + batch] for x in self._set)
        return tokens, targets
