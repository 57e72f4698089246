"""Attention entropy of Hugging Face's causal language models.

It goes through transformers' public attention interface: a model is switched to an attention function of ours, which
returns the same output and knows the entropy of every row, a layer at a time and never as a T x T matrix. Any model
works whose attention goes through that interface, with grouped queries, a sliding window or padding. Measuring falls
back on the weights that a model gives away (aero.hf.attentions), in memory that grows as T squared; the regulariser
(aero.hf.regularizer) needs the interface.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from aero.entropy_statistics import EntropyStatistics, check_ids, statistics_of
from aero.hf.attentions import row_entropies_given
from aero.hf.padding import check_mask
from aero.row_entropy import attention_with_entropy

IMPLEMENTATION = "aero_entropy"
"""The name of our attention function in transformers' interface."""

Batch = Tensor | Mapping[str, Tensor]


class SeenKeys:
    """Which keys a block of queries sees, as an `aero.row_entropy.Mask`, from what transformers makes its masks of."""

    def __init__(self, **arguments: Any) -> None:
        """arguments: those of a mask function of transformers (`transformers.masking_utils.sdpa_mask`)."""
        self.arguments = arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        self.query_offset = arguments["q_offset"]

    def __call__(self, start: int, stop: int) -> Tensor:
        return sdpa_mask(
            **self.arguments | {"q_length": stop - start, "q_offset": self.query_offset + start}
        )  # (B, 1, stop - start, S)

    def contiguous(self) -> Tensor:
        """All of it as one tensor (B, 1, T, S): what `generate` asks of the masks that it makes for a static cache."""
        mask = self(0, self.arguments["q_length"]).contiguous()
        mask.query_offset = int(self.query_offset)  # such a cache's keys do not tell how many are filled
        return mask

    @cached_property
    def counts(self) -> Tensor:
        """How many keys every query sees, (B, T)."""
        steps = range(0, self.arguments["q_length"], 64)
        ends = [min(start + 64, self.arguments["q_length"]) for start in steps]
        return torch.cat([self(*block)[:, 0].sum(-1) for block in zip(steps, ends, strict=True)], -1)


def _seen_keys(**arguments: Any) -> SeenKeys | None:
    """A mask function of transformers; None for the plain causal mask, which has a kernel of its own.

    `allow_is_causal_skip` is true where transformers knows of no deviation but padding and a window of `local_size`.
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
    return None if plain else SeenKeys(**arguments)


@dataclass(frozen=True)
class Rows:
    """What one attention module did: entropies (B, H, T) and how many keys each query saw, (B, T). module: None where
    only the weights it gave away are known."""

    module: nn.Module | None
    entropies: Tensor
    seen: Tensor


recorded_rows: ContextVar[list[Rows] | None] = ContextVar("recorded", default=None)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: SeenKeys | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: query (B, H, T, d_k), key and value (B, H / groups, S, ...).

    The temperature of `EntropyRegularizer` divides the logits of its query row (AERO Eq. 11).
    """
    if dropout:
        raise ValueError(
            f"attention dropout {dropout:g} is on, and the entropy of dropped weights means nothing: load the model "
            "with attn_pdrop=0.0 (GPT-2) or attention_dropout=0.0 (others)"
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ValueError(f"{type(module).__name__} uses {name}, which changes the logits: not supported")
    seen = _as_mask(attention_mask, query.shape[-2], key.shape[-2])
    temperature = getattr(module, "entropy_temperature", None)
    if temperature is not None:
        query = query / _at_queries(temperature, seen, query.shape[-2])[..., None]
    groups = query.shape[1] // key.shape[1]
    output, entropies = attention_with_entropy(
        query,
        key.repeat_interleave(groups, 1),
        value.repeat_interleave(groups, 1),
        1 / math.sqrt(query.shape[-1]) if scaling is None else scaling,
        seen,
    )
    if (recorded := recorded_rows.get()) is not None:
        counts = torch.arange(1, query.shape[-2] + 1, device=query.device)[None] if seen is None else seen.counts
        recorded.append(Rows(module, entropies, counts.expand(len(query), -1)))
    return output.transpose(1, 2).contiguous(), None


def _at_queries(temperature: Tensor, seen: SeenKeys | _GivenMask | None, queries: int) -> Tensor:
    """The temperatures (H, T) of `queries` query positions, which follow what a cache holds."""
    first = 0 if seen is None else int(seen.query_offset)
    if first + queries > temperature.shape[1]:
        raise ValueError(
            f"{first + queries} tokens, but temperatures for {temperature.shape[1]} positions: give EntropyRegularizer "
            "the longest context"
        )
    return temperature[:, first : first + queries]


class _GivenMask:
    """A mask (B, 1, T, S) that the caller made: bool, or 0 where a key is seen and hugely negative where not.

    query_offset: the position of the first query.
    """

    def __init__(self, mask: Tensor, query_offset: int) -> None:
        self.query_offset = query_offset
        if mask.dtype != torch.bool:
            seen = mask == 0
            if not (seen | (mask <= -1e4)).all():
                raise ValueError("the attention mask adds to the logits; only masks that hide keys are supported")
            mask = seen
        self.mask = mask
        self.counts = mask[:, 0].sum(-1)

    def __call__(self, start: int, stop: int) -> Tensor:
        return self.mask[:, :, start:stop]


def _as_mask(given: SeenKeys | Tensor | None, queries: int, keys: int) -> SeenKeys | _GivenMask | None:
    if given is None and queries != keys:
        raise ValueError(f"the model gave no mask for {queries} queries and {keys} keys")
    if isinstance(given, Tensor):  # the queries are the last of the keys, but in a cache that is not full
        return _GivenMask(given[..., :keys], getattr(given, "query_offset", keys - queries))
    return given


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _seen_keys)


@contextlib.contextmanager
def recording(model: PreTrainedModel) -> Iterator[list[Rows]]:
    """Within it, `model` uses our attention function, which appends what every attention module does to the list.

    NotSwitched if the model's attention does not go through transformers' interface.
    """
    before = model.config._attn_implementation
    if not switch_attention(model):
        raise NotSwitched(model)
    rows: list[Rows] = []
    token = recorded_rows.set(rows)
    try:
        yield rows
    finally:
        recorded_rows.reset(token)
        model.set_attn_implementation(before)


def switch_attention(model: PreTrainedModel) -> bool:
    """Whether `model` now uses our attention function: its attention goes through transformers' interface."""
    # transformers' own flag first, as it logs a warning where it cannot be switched; it is a heuristic, so look after.
    if model._can_set_attn_implementation():
        model.set_attn_implementation(IMPLEMENTATION)
    return model.config._attn_implementation == IMPLEMENTATION


class NotSwitched(ValueError):
    """The model's attention does not go through transformers' interface."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            f"the attention of {type(model).__name__} cannot be switched to one that knows its entropies: it does not "
            "go through transformers' attention interface; use a model whose attention does (GPT-2, GPT-NeoX, Llama, "
            "Mistral, Qwen2 and most newer ones)"
        )


def _hides(model: nn.Module) -> ValueError:
    return ValueError(
        f"{type(model).__name__} hides its attention weights, or has none: it neither computes them through "
        "transformers' attention interface nor gives any with output_attentions=True, so there is nothing to take an "
        "entropy of"
    )


def positions_of(model: PreTrainedModel) -> int | None:
    """The most tokens that the configuration of `model` says it takes; None if it says nothing."""
    config = model.config.get_text_config()
    said = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next((most for most in said if isinstance(most, int) and most > 0), None)


@torch.no_grad()
def row_entropies(model: PreTrainedModel, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Entropy of every attention row, (L, B, H, T) nats, float32; 0 where the query is padding.

    ids: (B, T); attention_mask: (B, T), 0 where a token is padding, at either end. L: layers with attention. The model
    is run in evaluation mode and left as it was. ValueError as `measure`.
    """
    _check_whole(model)
    rows, real = run(model, ids, attention_mask)
    return torch.stack([torch.where(real[:, None], row.entropies, 0.0) for row in rows])


def measure(model: PreTrainedModel, ids: Batch | Iterable[Batch]) -> EntropyStatistics:
    """Attention entropies of `model` on `ids`; `aero.entropy.measure` calls this for a Hugging Face model.

    ids: token ids (B, T), or a tokenizer's output with `input_ids` and `attention_mask`, or several of either. Padding
    counts nowhere (`aero.entropy_statistics.statistics_of`).
    Raises ValueError if there are no tokens or more than the model has positions, ids are no token ids of the model,
    the mask is not (B, T) of 0 and 1, the model does not expose its attention or has an encoder and a decoder, or it
    was saved with a regulariser that was not loaded.
    """
    _check_whole(model)
    return statistics_of(_measured_batches(model, [ids] if isinstance(ids, Tensor | Mapping) else ids))


def _measured_batches(model: PreTrainedModel, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in batches:
        given = batch if isinstance(batch, Mapping) else {"input_ids": batch}
        with torch.no_grad():
            rows, real = run(model, given.get("input_ids"), given.get("attention_mask"))
        yield torch.stack([row.entropies for row in rows]), real, torch.stack([row.seen for row in rows])


def _check_whole(model: PreTrainedModel) -> None:
    """ValueError for a model saved with temperatures, which `from_pretrained` does not know and leaves out."""
    if getattr(model.config, "entropy_regularizer", None) is not None and not hasattr(model, "reg_threshold_weights"):
        raise ValueError(
            f"this {type(model).__name__} was saved with an entropy regulariser, whose temperatures it is measured "
            "with: EntropyRegularizer.load(model, folder) first (or it shares the configuration of a model that has "
            "one: give it a copy)"
        )


def check_kind(model: PreTrainedModel) -> None:
    """ValueError for a model that takes no token ids or has more than one kind of attention."""
    name = type(model).__name__
    if model.main_input_name != "input_ids":
        raise ValueError(f"{name} takes no token ids: it is no language model")
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{name} has an encoder and a decoder, whose attention is of three kinds (its own in both, and from one to "
            "the other) that no table of layers and heads holds: use a model of one stack"
        )


def run(
    model: PreTrainedModel, ids: Tensor, attention_mask: Tensor | None, switched: bool = False
) -> tuple[list[Rows], Tensor]:
    """What the attention of every layer does on `ids` (B, T), and which of them are real, (B, T) bool.

    switched: only by our own attention function; ValueError if the model cannot be switched to it.
    """
    check_kind(model)
    check_ids(ids, vocabulary(model))
    positions = positions_of(model)
    if positions is not None and ids.shape[1] > positions:
        raise ValueError(f"{ids.shape[1]} tokens exceed the {positions} positions of {type(model).__name__}")
    given = {"input_ids": ids.to(model.device), "use_cache": False}
    real = torch.ones_like(given["input_ids"], dtype=torch.bool)
    if attention_mask is not None:
        check_mask(attention_mask, ids)
        given["attention_mask"] = attention_mask.to(model.device)
        real = given["attention_mask"].bool()
        if "position_ids" in inspect.signature(model.base_model.forward).parameters:
            given["position_ids"] = (real.cumsum(-1) - 1).clamp_min(0)  # the first real token is the first
    training, rows = model.training, []
    model.eval()
    try:
        try:
            with recording(model) as rows:
                # Without the vocabulary projection, whose T x V logits are not needed.
                model.base_model(**given)
        except NotSwitched:
            if switched:
                raise
        if not rows and not switched:
            rows = [Rows(None, *row) for row in row_entropies_given(model, given, real)]
    finally:
        model.train(training)
    if not rows:
        raise _hides(model)
    if len({row.entropies.shape for row in rows}) > 1:
        raise ValueError(f"the layers of {type(model).__name__} differ in their number of heads: not supported")
    # The layers of one model may lie on several devices.
    return [Rows(row.module, row.entropies.to(real.device), row.seen.to(real.device)) for row in rows], real


def vocabulary(model: PreTrainedModel) -> int | None:
    """How many tokens the model embeds; None if it does not say."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
        return None
