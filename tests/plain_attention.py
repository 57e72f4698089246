"""Causal softmax and its entropy by the plain formula, through autograd: the reference for everything faster."""

import torch
from torch import Tensor


def softmax_with_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (..., T, T) and row entropies (..., T) of logits (..., T, T)."""
    logits = logits if logits.dtype.itemsize > 2 else logits.float()
    future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    p = logits.masked_fill(future, -torch.inf).softmax(-1)
    return p, -(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(-1)
