"""Cross-entropy of next tokens over a large vocabulary on a CPU, without a second tensor of the logits' size.

    loss = mean_i (lse_i - z_i,target),    d loss / d z_ij = (exp(z_ij - lse_i) - [j = target]) / count

PyTorch's own makes the log-probabilities, their gradient and the logits' gradient, each as large as the logits; for
GPT-2's vocabulary fetching that memory takes longer than the arithmetic in it (docs/decisions.md).

Shapes: N positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 2**20
"""Logits from which on this is used; the laptop scale's trainings stay below and keep their last bits."""
BLOCK = 2**19
"""Logits that are worked on at once: 2 MB, which stay in a core's cache."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits (N, V) for targets (N), over those that are not negative.

    The backward pass writes the gradient into `logits`, so their values are gone after it.
    """
    return _CrossEntropy.apply(logits, targets)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        sums = torch.cat([block.logsumexp(-1) for block in _blocks(logits)])  # (N,)
        counted = targets >= 0
        chosen = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
        count = counted.sum()
        ctx.save_for_backward(logits, targets, sums, count)
        return torch.where(counted, sums - chosen, 0.0).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor, None]:
        logits, targets, sums, count = ctx.saved_tensors
        weights = torch.where(targets >= 0, d_loss / count, 0.0)[:, None]  # (N, 1)
        rows = _blocks(sums[:, None], logits.shape[1])
        for block, lse, weight in zip(_blocks(logits), rows, _blocks(weights, logits.shape[1]), strict=True):
            block.sub_(lse).exp_().mul_(weight)
        logits.scatter_add_(1, targets.clamp_min(0)[:, None], -weights)
        return logits, None


def _blocks(rows: Tensor, vocabulary: int | None = None) -> tuple[Tensor, ...]:
    """`rows` (N, …) in views of as many as have BLOCK logits."""
    return rows.split(max(1, BLOCK // (vocabulary or rows.shape[1])))
