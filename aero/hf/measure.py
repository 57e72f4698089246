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

from aero.entropy import BLOCKS, EntropyStatistics, check_ids, standard_error
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
    """Attention entropies of `model` on `ids`; what `aero.entropy.measure` calls for a Hugging Face model.

    ids: token ids (B, T), or a tokenizer's output with `input_ids` and `attention_mask`, or several of either. A
    position is counted from a sequence's first real token, and padding counts nowhere. A head's mean is taken over the
    queries of a sequence and then over sequences; its median is that of all rows, which are held until the end in
    float32. `sem` is over sequences as if they were independent, `by_position_sem` over blocks of consecutive ones that
    have the position. All of it lies on the CPU, wherever the model is.
    ValueError if there are no tokens or more than the model has positions, if ids are no token ids of the model or the
    mask is not (B, T) of 0 and 1, if the model hides its attention weights or has an encoder and a decoder, or if it
    was saved with a regulariser that was not loaded.
    """
    _check_whole(model)
    batches = [ids] if isinstance(ids, Tensor | Mapping) else ids
    try:
        batches = iter(batches)  # of what can be indexed alone, too
    except TypeError:
        check_ids(batches, None)
        raise
    means, bounds, positions, lengths, held = [], [], [], [], []
    for batch in batches:
        given = batch if isinstance(batch, Mapping) else {"input_ids": batch}
        with torch.no_grad():
            rows, real = run(model, given.get("input_ids"), given.get("attention_mask"))
        length = real.sum(-1)  # (B)
        if not length.all():
            raise ValueError("a sequence without a token has no entropy: every row of the attention mask needs a 1")
        real = real.cpu()  # as all of it: not every accelerator knows float64
        rows = [Rows(row.module, row.entropies.cpu(), row.seen.cpu()) for row in rows]
        entropies = torch.stack([torch.where(real[:, None], row.entropies.double(), 0.0) for row in rows])
        seen = torch.stack([row.seen.clamp_min(1).double().log() * real for row in rows])  # (L, B, T)
        means.append(entropies.sum(-1) / length[:, None])  # (L, B, H)
        bounds.append(seen.sum(-1) / length)  # (L, B)
        order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)  # real tokens first, in their order
        positions.append(entropies.mean(2).gather(-1, order.expand(len(rows), *order.shape)))  # (L, B, T)
        lengths.append(length)
        held.append(torch.stack([row.entropies.transpose(1, 2)[real] for row in rows]).float().cpu())  # (L, rows, H)
    if not lengths:
        raise ValueError("no tokens to measure entropy on")
    sequences, length = torch.cat(means, 1), torch.cat(lengths)  # (L, N, H), (N)
    longest = int(length.max())
    by_position = torch.cat([nn.functional.pad(part, (0, longest))[..., :longest] for part in positions], 1)
    there = torch.arange(longest, device=length.device) < length[:, None]  # (N, T)
    return EntropyStatistics(
        mean=sequences.mean(1),
        sem=standard_error(sequences, 1),
        by_position=by_position.sum(1) / there.sum(0),
        tokens=int(length.sum()),
        median=torch.stack([_median([part[layer] for part in held]) for layer in range(len(sequences))]),
        by_position_sem=_error_over_blocks(by_position, there),
        blocks=torch.stack([sequences[:, block].mean(1) for block in _blocks(len(length))]),
        bound=torch.cat(bounds, 1).mean(1),
    )


def _median(parts: list[Tensor]) -> Tensor:
    """Median over rows of entropies, each (rows, H): (H,). The mean of both middle ones where their number is even."""
    values = torch.cat(parts)
    return (values.median(0).values.double() - (-values).median(0).values.double()) / 2


def _blocks(sequences: int) -> tuple[Tensor, ...]:
    """Indices of up to BLOCKS runs of consecutive sequences, as `aero.entropy.measure` makes them."""
    return torch.arange(sequences).tensor_split(min(BLOCKS, sequences))


def _error_over_blocks(by_position: Tensor, there: Tensor) -> Tensor:
    """Standard error (L, T) of the mean at each position, over the blocks of sequences that have it.

    by_position: (L, N, T), 0 where a sequence, by there (N, T), has no such position. NaN with fewer than two blocks.
    """
    blocks = _blocks(len(there))
    counts = torch.stack([there[block].sum(0) for block in blocks])  # (K, T)
    means = torch.stack([by_position[:, block].sum(1) for block in blocks]) / counts.clamp_min(1)[:, None]  # (K, L, T)
    has = counts[:, None] > 0
    number = has.sum(0)  # (1, T)
    squares = torch.where(has, means - means.sum(0) / number, 0.0).square().sum(0)
    return torch.where(number > 1, (squares / (number - 1).clamp_min(1) / number).sqrt(), math.nan)


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
