"""Performance on a task with its context in P segments, with attention entropy and the norms of keys and values."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aero.parallel_context.encoding import Encoded, Model, answer, encode, read
from aero.parallel_context.layout import PREFIX, split
from aero.parallel_context.selection import Selection
from aero.parallel_context.tasks import Batch

Judge = Callable[[list[int], tuple[str, ...]], bool]
"""Whether generated ids are one of the accepted answers."""
Norms = dict[str, list[float] | None]
"""Mean norms a layer by kind of token, None where there is no such token."""


@dataclass(frozen=True)
class Measurement:
    """One task at one setting.

    scores, entropies: one an episode: 1 or 0 for a right or wrong answer, or the mean loss in nats; the mean entropy
    over layers, heads and query rows in nats. entropy_by_layer: (L,).
    key_norms, value_norms: of the encoded context, by "prefix_first" (the shared prefix's first token),
    "segment_first" and "later". token_norms: one tensor a batch, (2, L, n), norms of keys and values of every context
    token. same_keys, same_values: norms of the tokens behind the first segment in segments ("first", "later") and in
    full attention ("first_full", "later_full"), of segments' first tokens and all others; None without `full`.
    """

    scores: np.ndarray
    entropies: np.ndarray
    entropy_by_layer: np.ndarray
    key_norms: Norms
    value_norms: Norms
    token_norms: list[Tensor]
    same_keys: Norms | None
    same_values: Norms | None


def measure(
    model: Model,
    batches: Iterable[Batch],
    segments: int,
    prefix: Tensor | None = None,
    selections: Sequence[Selection | None] = (None,),
    judge: Judge | None = None,
    answer_tokens: int | None = None,
    full: Sequence[Tensor] | None = None,
) -> list[Measurement]:
    """Run `batches` with contexts in P `segments` behind `prefix` (S,) or nothing; one result a selection.

    A batch with one question token and a longer answer is scored by its loss (language modelling), any other by its
    greedy answer: whether all ids are right, or what `judge` says of `answer_tokens` generated ones.
    full: `token_norms` of the same batches and prefix in one segment, for same_keys and same_values.
    """
    scores: list[list[float]] = [[] for _ in selections]
    entropies: list[list[float]] = [[] for _ in selections]
    by_layer: list[list[Tensor]] = [[] for _ in selections]  # (L, B) each
    kinds, by_token, groups = [], [], []
    for batch in batches:
        bounds = np.cumsum([0, *split(len(batch.units), segments)])
        parts = [torch.cat(batch.units[a:b], 1) for a, b in itertools.pairwise(bounds)]
        tokens = answer_tokens or batch.answer.shape[1]
        encoded = encode(model, parts, prefix, batch.question.shape[1] + tokens - 1)
        norms, in_segment = _token_norms(encoded), encoded.groups != PREFIX
        kinds.append(_by_kind(norms, encoded.groups))
        by_token.append(norms[..., in_segment].float().cpu())
        groups.append(encoded.groups[in_segment].cpu())
        for index, selection in enumerate(selections):
            given, seen = _answered(model, encoded, batch, tokens, selection, judge)
            seen = seen.double()
            scores[index] += given
            entropies[index] += seen.mean((0, 2, 3)).tolist()
            by_layer[index].append(seen.mean((2, 3)))
    key_norms, value_norms = _mean_norms(kinds, ("prefix_first", "segment_first", "later"))
    same = (None, None) if full is None or segments < 2 else _same_tokens(by_token, full, groups)
    found = []
    for given, seen, layers in zip(scores, entropies, by_layer, strict=True):
        mean = torch.cat(layers, 1).mean(1).cpu().numpy()
        found.append(Measurement(np.array(given), np.array(seen), mean, key_norms, value_norms, by_token, *same))
    return found


def _answered(
    model: Model, encoded: Encoded, batch: Batch, tokens: int, selection: Selection | None, judge: Judge | None
) -> tuple[list[float], Tensor]:
    """Scores of the episodes of a batch and the entropies (L, B, H, m) of their query rows."""
    if is_language_modelling(batch):
        query = torch.cat([batch.question, batch.answer[:, :-1]], 1)
        reading = read(model, encoded, query, selection)
        losses = F.cross_entropy(reading.logits.float().flatten(0, 1), batch.answer.flatten(), reduction="none")
        return losses.view(batch.answer.shape).mean(1).tolist(), reading.entropies
    given, seen = answer(model, encoded, batch.question, tokens, selection)
    if judge is None:
        return (given == batch.answer).all(1).double().tolist(), seen
    return [float(judge(*pair)) for pair in zip(given.tolist(), batch.accepted, strict=True)], seen


def is_language_modelling(batch: Batch) -> bool:
    """Whether a batch is scored by its loss: a token between context and predicted text, and nothing accepted."""
    return batch.question.shape[1] == 1 and batch.answer.shape[1] > 1 and not batch.accepted


def contains_answer(text: str, accepted: Sequence[str]) -> bool:
    """Substring exact match (SubEM): an accepted answer occurs in `text`, both in lower case, without punctuation and
    articles."""
    return any(_plain(one) in _plain(text) for one in accepted if _plain(one))


def first_word_is(text: str, accepted: Sequence[str]) -> bool:
    """Whether an answer begins with an accepted word: a label 1 must not be found in 12."""
    words = _plain(text).split()
    return bool(words) and words[0] in accepted


def _plain(text: str) -> str:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def _token_norms(encoded: Encoded) -> Tensor:
    """(2, L, n): norms of keys and of values, mean over sequences and heads."""
    parts = zip(*encoded.cache, strict=True)
    return torch.stack([torch.stack([x.double().norm(dim=-1).mean((0, 1)) for x in layers]) for layers in parts])


def _begins(groups: Tensor) -> Tensor:
    """Whether a token is the first of its group, (n,)."""
    first = torch.ones_like(groups, dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    return first


def _over(norms: Tensor, mask: Tensor) -> Tensor | None:
    """Means (2, L) of norms (2, L, n) over the tokens of a mask (n,); None if there is no such token."""
    return norms[..., mask].mean(-1).double() if mask.any() else None


def _by_kind(norms: Tensor, groups: Tensor) -> list[Tensor | None]:
    """Means of norms (2, L, n) over the prefix's first, the segments' first and their later tokens."""
    first, in_prefix = _begins(groups), groups == PREFIX
    return [_over(norms, mask) for mask in (first & in_prefix, first & ~in_prefix, ~first & ~in_prefix)]


def _same_tokens(parallel: Sequence[Tensor], full: Sequence[Tensor], groups: Sequence[Tensor]) -> tuple[Norms, Norms]:
    """Norms (2, L, n) of every batch in segments and in full attention, of tokens behind the first segment."""
    batches = []
    for one, whole, own in zip(parallel, full, groups, strict=True):
        first, behind = _begins(own), own > 0
        batches.append([_over(norms, m) for m in (behind & first, behind & ~first) for norms in (one, whole)])
    return _mean_norms(batches, ("first", "first_full", "later", "later_full"))


def _mean_norms(batches: list[list[Tensor | None]], names: Sequence[str]) -> tuple[Norms, Norms]:
    """Keys' and values' norms by name, from (2, L) a batch and name; the mean over batches, None if any lacks it."""
    keys: Norms = dict.fromkeys(names)
    values: Norms = dict.fromkeys(names)
    for name, column in zip(names, zip(*batches, strict=True), strict=True):
        if all(x is not None for x in column):
            keys[name], values[name] = torch.stack(column).mean(0).tolist()
    return keys, values


def interval(values: np.ndarray, proportion: bool, mean: float | None = None) -> tuple[float, float]:
    """95 % interval of the mean over episodes: Wilson's for a proportion, the normal one otherwise.

    mean: given where it is not the mean of the values, but of several sets' means.
    """
    count, z = len(values), 1.959963984540054
    mean = float(values.mean()) if mean is None else mean
    if proportion:
        centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
        half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
        return centre - half, centre + half
    if count < 2:
        return math.nan, math.nan
    half = z * float(values.std(ddof=1)) / math.sqrt(count)
    return mean - half, mean + half
