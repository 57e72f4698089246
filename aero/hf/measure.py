"""Attention entropy of Hugging Face's causal language models.

They are measured with `aero.hf.attention`, in memory O(T), so their attention must go through transformers' interface.

Shapes: L layers with attention, B sequences, H heads, T positions.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from aero.entropy_statistics import EntropyStatistics, check_ids, statistics_of
from aero.hf.attention import NotSwitched, Rows, document_starts, recording

Batch = Tensor | Mapping[str, Tensor]


def measure(model: PreTrainedModel, ids: Batch | Iterable[Batch]) -> EntropyStatistics:
    """Attention entropies of `model` on `ids`; `aero.entropy.measure` calls this for a Hugging Face model.

    ids: token ids (B, T), or a batch with `input_ids` and possibly `attention_mask`, `position_ids` and
    `token_type_ids`, or several of either. Padding counts nowhere (`statistics_of`). Documents
    packed into a row by position ids are sequences of their own.
    Raises ValueError if there are no tokens or more than the model has positions, ids are no token ids of the model, a
    batch has other entries than these and `labels`, the mask is not (B, T) of 0 and 1, the model does not expose its
    attention or has an encoder and a decoder, or it was saved with a regulariser that was not loaded.
    """
    return statistics_of(_measured_batches(model, [ids] if isinstance(ids, Tensor | Mapping) else ids))


def _measured_batches(model: PreTrainedModel, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    _check_regularizer_loaded(model)
    for batch in batches:
        given = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
        given.pop("labels", None)
        with torch.no_grad():
            rows, real = run(model, given.pop("input_ids", None), **given)
        yield torch.stack([row.entropies for row in rows]), real, torch.stack([row.seen for row in rows])


def _check_regularizer_loaded(model: PreTrainedModel) -> None:
    """ValueError for a model saved with temperatures, which `from_pretrained` and PEFT ignore."""
    saved = [name for adapter in getattr(model, "peft_config", {}).values() for name in adapter.modules_to_save or ()]
    asked = getattr(model.config, "entropy_regularizer", None) is not None or "entropy_temperature" in saved
    if asked and not hasattr(model, "reg_threshold_weights"):
        raise ValueError(
            f"this {type(model).__name__} was saved with an entropy regulariser, whose temperatures it needs: call "
            "EntropyRegularizer.load(model, folder) first, or for a PEFT adapter create the same EntropyRegularizer on "
            "the base model before the adapter is loaded"
        )


def run(model: PreTrainedModel, ids: Tensor, **others: Tensor | None) -> tuple[list[Rows], Tensor]:
    """The rows of every attention layer on `ids` (B, T), and which tokens are real, (B, T) bool.

    others: `attention_mask`, `token_type_ids`, `position_ids`; these may pack documents into rows, each is then a row
    of the result.
    """
    name = type(model).__name__
    if model.main_input_name != "input_ids":
        raise ValueError(f"{name} takes no token ids: it is no language model")
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} has an encoder and a decoder: only models of one stack can be measured")
    check_ids(ids, vocabulary(model))
    taken = inspect.signature(model.base_model.forward).parameters.keys()
    given = _unpacked({"input_ids": ids} | _checked(others, ids, taken, name))
    longest, positions = given["input_ids"].shape[1], positions_of(model)
    if positions is not None and longest > positions:
        raise ValueError(f"{longest} tokens exceed the {positions} positions of {name}")
    # Offloaded weights are on no device, and accelerate's hooks move the inputs to them.
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    given = {key: value.to(device) for key, value in given.items()}
    real = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
    if "attention_mask" in given and "position_ids" in taken:  # positions count from the first real token
        given.setdefault("position_ids", (real.cumsum(-1) - 1).clamp_min(0))
    rows = _rows(model, given | {"use_cache": False}, device)
    if not rows:
        raise NotSwitched(model)
    if len({row.entropies.shape for row in rows}) > 1:
        raise ValueError(f"the layers of {name} differ in their number of heads: not supported")
    return rows, real


def _rows(model: PreTrainedModel, given: dict[str, Any], device: torch.device) -> list[Rows]:
    """The rows of every attention layer in evaluation mode."""
    training, calls = model.training, Counter()
    hooks = [part.register_forward_pre_hook(lambda part, _: calls.update([part])) for part in model.modules()]
    model.eval()
    try:
        with recording(model) as rows:
            model.base_model(**given)  # without the vocabulary projection
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    for module, number in Counter(row.module for row in rows).items():
        if number > calls[module]:  # such as the difference of two softmaxes of DiffLlama
            raise ValueError(
                f"{type(module).__name__} combines {number} attentions in each layer: there is no one entropy of a head"
            )
    # Layers may be on several devices.
    return [replace(row, entropies=row.entropies.to(device), seen=row.seen.to(device)) for row in rows]


def _checked(others: Mapping[str, Tensor | None], ids: Tensor, taken: Set[str], name: str) -> dict[str, Tensor]:
    """The other entries of a batch that the model takes; ValueError for those that cannot be measured with."""
    neutral = {"attention_mask": 1, "token_type_ids": 0, "position_ids": torch.arange(ids.shape[1])}
    used = {}
    for key, value in others.items():
        if value is None:
            continue
        if key not in neutral:
            raise ValueError(f"the batch has {key!r}, which is not used: leave it out to measure {name} without it")
        if not isinstance(value, Tensor) or value.shape not in (ids.shape, (1, ids.shape[1])):
            raise ValueError(f"{key} must be a tensor of the ids' shape {tuple(ids.shape)}")
        if key in taken:
            used[key] = value.expand_as(ids)
        elif bool((value.cpu() != neutral[key]).any()):
            raise ValueError(f"{name} takes no {key}: leave them out")
    if "attention_mask" in used:
        check_padding(used["attention_mask"], ids)
    return used


def _unpacked(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The documents that position ids pack into rows as padded rows of their own, which are measured alike."""
    if "position_ids" not in given:
        return given
    starts = document_starts(given["position_ids"])  # (B, T)
    real = given.get("attention_mask", torch.ones_like(starts)).bool().to(starts.device)
    if not bool((starts & real)[:, 1:].logical_and(real[:, :-1]).any()):
        return given
    if "attention_mask" in given:
        raise ValueError(
            "position_ids pack documents into a row, which an attention_mask undoes: leave one of them out"
        )
    numbers = starts.flatten().cumsum(0) - 1
    lengths = numbers.bincount().tolist()
    given |= {"attention_mask": torch.ones_like(given["input_ids"])}
    return {key: pad_sequence(value.flatten().split(lengths), batch_first=True) for key, value in given.items()}


def positions_of(model: PreTrainedModel) -> int | None:
    """The maximum number of tokens in the configuration of `model`, if it is there."""
    config = model.config.get_text_config()
    values = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next((most for most in values if isinstance(most, int) and most > 0), None)


def vocabulary(model: PreTrainedModel) -> int | None:
    """The number of tokens that the model embeds, if it is known."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
        return None


def check_padding(mask: object, ids: Tensor | None) -> None:
    """ValueError unless `mask` shows which tokens are padding: (B, T) of 0 and 1, or (B or 1, 1, T, S).

    ids: (B, T), or None for embeddings.
    """
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        raise ValueError("the attention mask must be a tensor (sequences, tokens) or (sequences, 1, queries, keys)")
    if ids is not None:
        fits = len(mask) == len(ids) or (mask.ndim == 4 and len(mask) == 1)
        if not fits or mask.shape[-1] < ids.shape[1]:
            raise ValueError(f"the attention mask {tuple(mask.shape)} does not fit ids of shape {tuple(ids.shape)}")
    if mask.ndim == 2 and mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("the attention mask must be 1 where a token is real and 0 where it is padding")
