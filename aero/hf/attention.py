"""An attention function for transformers' public attention interface that also computes row entropies.

Importing this module registers it as "aero_entropy". It returns the same output as the model's own attention and works
one block of rows at a time, without a T x T matrix, with grouped queries, a sliding window or padding.

Shapes: B sequences, H heads, T queries, S keys, d_k width of a head.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from aero.row_entropy import attention_with_entropy

IMPLEMENTATION = "aero_entropy"
"""The name of our attention function in transformers' interface."""


class VisibleKeys:
    """Which keys a block of queries sees (an `aero.row_entropy.Mask`), computed by transformers' mask function.

    arguments: those of `transformers.masking_utils.sdpa_mask`. first: position of the first query among the keys.
    real: keys that are no padding (B, S) bool, or None for all.
    """

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        self.first, self.real = int(arguments["q_offset"]), arguments.get("attention_mask")

    def __call__(self, start: int, stop: int) -> Tensor:
        """(B, 1, stop - start, S) bool."""
        return sdpa_mask(**self.arguments | {"q_length": stop - start, "q_offset": self.first + start})

    def contiguous(self) -> Tensor:
        """The whole mask (B, 1, T, S); `generate` calls this for the masks of a static cache."""
        mask = self(0, self.arguments["q_length"]).contiguous()
        mask.whole = self  # the keys of such a cache do not show how many are filled
        return mask

    @cached_property
    def counts(self) -> Tensor:
        """The number of keys that every query sees, (B, T)."""
        length = self.arguments["q_length"]
        blocks = [self(start, min(start + 64, length)) for start in range(0, length, 64)]  # (B, 1, <= 64, S) each
        return torch.cat([block[:, 0].sum(-1) for block in blocks], -1)


class GivenMask:
    """A mask (B, 1, T, S) made by the caller: bool, or added to the logits (0 for a visible key, else <= -1e4)."""

    def __init__(self, mask: Tensor, keys: int) -> None:
        whole, mask = getattr(mask, "whole", None), mask[..., :keys]
        if mask.dtype != torch.bool:
            if not ((mask == 0) | (mask <= -1e4)).all():
                raise ValueError("the attention mask adds to the logits; only masks that hide keys are supported")
            mask = mask == 0
        self.mask = mask
        self.counts = mask[:, 0].sum(-1)  # (B, T)
        self.first = mask.shape[-1] - mask.shape[-2] if whole is None else whole.first
        self.real = mask.any(1).any(1) if whole is None else whole.real  # (B, S), keys that some query sees

    def __call__(self, start: int, stop: int) -> Tensor:
        return self.mask[:, :, start:stop]


def _visible_keys(**arguments: Any) -> VisibleKeys | None:
    """A mask function of transformers; None for the plain causal mask, which has a faster kernel.

    `allow_is_causal_skip` is true if only padding and a window of `local_size` can differ from the causal mask.
    """
    padding, window = arguments.get("attention_mask"), arguments.get("local_size")
    length = arguments["q_length"]
    plain = (
        arguments.get("allow_is_causal_skip", False)
        and length == arguments["kv_length"]
        and int(arguments["q_offset"]) == 0
        and (window is None or length < window)
        and (padding is None or bool(padding.all()))
    )
    return None if plain else VisibleKeys(**arguments)


def token_positions(mask: VisibleKeys | GivenMask | None, position_ids: Tensor | None, queries: int) -> Tensor:
    """Position of every query among the real tokens of its document, (B or 1, T); that of padding means nothing.

    position_ids: the model's own (B, T). Where they do not go on by 1 a document of a packed row begins, unless a mask
    (B, S) was given: then transformers lets a row attend to itself as a whole.
    """
    first = 0 if mask is None else mask.first
    if mask is None or mask.real is None:
        positions = torch.arange(first, first + queries)[None]
    else:
        positions = (mask.real.cumsum(-1) - 1)[:, first : first + queries].clamp_min(0)
    padded = isinstance(mask, VisibleKeys) and mask.real is not None
    if mask is None or padded or first or position_ids is None or position_ids.ndim != 2:
        return positions
    starts = document_starts(position_ids)  # (B, T)
    positions = positions.to(starts.device)
    return positions - torch.where(starts, positions, 0).cummax(-1).values


def document_starts(position_ids: Tensor) -> Tensor:
    """Where a document of a packed row begins, (B, T) bool: position ids (B, T) that do not go on by 1."""
    return position_ids.diff(prepend=position_ids[:, :1]) != 1


@dataclass(frozen=True)
class Rows:
    """Result of one attention module: entropies (B, H, T), number of visible keys (B, T), `token_positions` (B or 1, T)
    and which queries are no padding (B, T). None where not known."""

    module: nn.Module
    entropies: Tensor
    seen: Tensor
    positions: Tensor
    real: Tensor | None


recorded_rows: ContextVar[list[Rows] | None] = ContextVar("recorded_rows", default=None)
"""Where the attention function appends its results; None if nobody wants them."""


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: VisibleKeys | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers. query: (B, H, T, d_k), key and value: (B, H / groups, S, ...).

    The temperature of `EntropyRegularizer` divides the logits of its query row (AERO Eq. 11).
    Raises ValueError for attention dropout and for options that change the logits, NotSwitched for selected keys.
    """
    if dropout:
        raise ValueError(f"attention dropout {dropout:g}: the entropy of dropped weights is meaningless; set it to 0")
    for name in ("softcap", "s_aux", "sinks", "position_bias"):
        if others.get(name) is not None:
            raise ValueError(f"{type(module).__name__} uses {name}, which changes the logits: not supported")
    if others.get("indices") is not None or others.get("block_indices") is not None:
        raise NotSwitched(module)  # the keys that an indexer selects are not in the mask
    queries, keys = query.shape[-2], key.shape[-2]
    mask = GivenMask(attention_mask, keys) if isinstance(attention_mask, Tensor) else attention_mask
    if mask is None and queries != keys:
        raise ValueError(f"the model gave no mask for {queries} queries and {keys} keys")
    recorded, temperature = recorded_rows.get(), getattr(module, "entropy_temperature", None)
    if temperature is not None or recorded is not None:
        positions = token_positions(mask, others.get("position_ids"), queries).to(query.device)
    if temperature is not None:
        temperature = temperature.weight  # (H, context)
        if keys > temperature.shape[1] and (longest := int(positions.max()) + 1) > temperature.shape[1]:
            raise ValueError(
                f"{longest} tokens, but temperatures for {temperature.shape[1]} positions: create EntropyRegularizer "
                "with the longest context (and call a model on packed rows with use_cache=False)"
            )
        query = query / temperature[:, positions].transpose(0, 1)[..., None]  # (B, H, T, d_k)
    groups = query.shape[1] // key.shape[1]
    output, entropies = attention_with_entropy(
        query,
        key.repeat_interleave(groups, 1),  # (B, H, S, d_k)
        value.repeat_interleave(groups, 1),
        1 / math.sqrt(query.shape[-1]) if scaling is None else scaling,
        mask,
    )
    if recorded is not None:
        counts = torch.arange(1, queries + 1, device=query.device)[None] if mask is None else mask.counts
        real = None if mask is None or mask.real is None else mask.real[:, mask.first : mask.first + queries]
        recorded.append(Rows(module, entropies, counts.expand(len(query), -1), positions, real))
    return output.transpose(1, 2).contiguous(), None  # (B, T, H, d_v)


AttentionInterface.register(IMPLEMENTATION, attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, _visible_keys)


def switch_attention(model: PreTrainedModel) -> bool:
    """Make `model` use our attention function; False if its attention does not go through transformers' interface."""
    if model._can_set_attn_implementation():  # a heuristic of transformers, so the result is checked
        model.set_attn_implementation(IMPLEMENTATION)
    return model.config._attn_implementation == IMPLEMENTATION


@contextlib.contextmanager
def recording(model: PreTrainedModel) -> Iterator[list[Rows]]:
    """Inside, `model` uses our attention function and the list collects the rows of every attention module.

    NotSwitched if the attention of the model does not go through transformers' interface, or needs a mask in full.
    """
    before = model.config._attn_implementation
    if not switch_attention(model):
        raise NotSwitched(model)
    rows: list[Rows] = []
    token = recorded_rows.set(rows)
    try:
        yield rows
    except (AttributeError, TypeError) as error:
        if VisibleKeys.__name__ not in str(error):
            raise
        raise NotSwitched(model) from None  # the model computes with the mask itself
    finally:
        recorded_rows.reset(token)
        model.set_attn_implementation(before)


class NotSwitched(ValueError):
    """The attention of the model does not go through transformers' interface, or not with the mask alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            f"{type(model).__name__} has no attention, or one that bypasses transformers' attention interface or "
            "changes its mask, so its entropies are not known; use GPT-2, GPT-NeoX, Llama, Mistral, Qwen2 or most "
            "newer models"
        )
