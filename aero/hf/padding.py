"""Which tokens of a batch are real and which padding, by an attention mask as Hugging Face's models take one."""

from __future__ import annotations

import torch
from torch import Tensor


def check_mask(mask: object, ids: Tensor) -> None:
    """ValueError unless `mask` is (B, T) for ids (B, T), 1 where a token is real and 0 where it is padding."""
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"the attention mask must be a tensor of the ids' shape, (sequences, tokens) = {tuple(ids.shape)}; "
            f"got {given}"
        )
    _check_ones(mask)


def _check_ones(mask: Tensor) -> None:
    # A mask to be added to the logits has 0 where this one has 1.
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(
            "the attention mask must be 1 where a token is real and 0 where it is padding; it holds other values, from "
            f"{mask.min().item():g} to {mask.max().item():g}"
        )


def check_padding(mask: object, ids: Tensor | None) -> None:
    """ValueError unless `real_of` can tell from `mask` which tokens are real. ids: (B, T), or None for embeddings."""
    shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        raise ValueError(
            "the regulariser leaves padding out, so the attention mask must be a tensor (sequences, tokens) or "
            f"(sequences, 1, queries, keys); got {shape}"
        )
    if ids is not None:
        one_for_all = mask.ndim == 4 and len(mask) == 1
        if not (len(mask) == len(ids) or one_for_all) or mask.shape[-1] < ids.shape[1]:
            raise ValueError(f"the attention mask of shape {shape} does not fit ids of shape {tuple(ids.shape)}")
    if mask.ndim == 2:
        _check_ones(mask)


def real_of(mask: Tensor) -> Tensor:
    """Which tokens are real, (B, S) bool, by a mask (B, S) or (B, 1, T, S): there those that some query sees. Padding
    that sees itself cannot be told from a sequence of one token packed beside others."""
    if mask.ndim == 2:
        return mask.bool()
    seen = mask if mask.dtype == torch.bool else mask == 0
    return seen.any(1).any(1)
