"""How well a model does a task with its context in P segments, and how its attention and its keys look meanwhile."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aero.parallel_context.encoding import Encoded, Model, answer, encode, read
from aero.parallel_context.layout import PREFIX, split
from aero.parallel_context.selection import Selection
from aero.parallel_context.tasks import Batch


@dataclass(frozen=True)
class Norms:
    """Mean norms, a layer, of the vectors of three kinds of token: the shared prefix's first, the segments' first, and
    all later ones of the segments. None where there is no such token."""

    prefix_first: list[float] | None
    segment_first: list[float]
    later: list[float] | None


@dataclass(frozen=True)
class SameTokens:
    """Mean norms, a layer, of the tokens of all segments but the first, in segments and in full attention behind the
    same prefix: what encoding apart does to a token. The first segment sees the same at any P. first: the segments'
    first tokens. later: all others, None where there are none."""

    first: list[float]
    first_full: list[float]
    later: list[float] | None
    later_full: list[float] | None


@dataclass(frozen=True)
class Measurement:
    """One task at one setting.

    scores: a number an episode: 1 or 0 for a right or wrong answer, or the mean loss in nats. entropies: a number an
    episode, the mean over layers, heads and query rows, nats. entropy_by_layer: (L,). key_norms, value_norms: of the
    encoded context. token_norms: a tensor a batch, (2, L, n), mean norms of keys and of values of every token of the
    context, to be given to the measurements of more segments as `full`. same_keys, same_values: those set against
    `full`; None without it, and for one segment.
    """

    scores: np.ndarray
    entropies: np.ndarray
    entropy_by_layer: np.ndarray
    key_norms: Norms
    value_norms: Norms
    token_norms: list[Tensor] = field(default_factory=list)
    same_keys: SameTokens | None = None
    same_values: SameTokens | None = None


def measure(
    model: Model,
    batches: Iterable[Batch],
    segments: int,
    prefix: Tensor | None = None,
    selections: Sequence[Selection | None] = (None,),
    judge: Callable[[list[int], tuple[str, ...]], bool] | None = None,
    answer_tokens: int | None = None,
    full: Sequence[Tensor] | None = None,
) -> list[Measurement]:
    """Run `batches` with contexts in P `segments` behind `prefix` (S,), None for none; one result a selection.

    A batch with one question token and a longer answer is scored by its loss (language modelling), any other by its
    greedy answer: whether all ids are right, or what `judge(ids, accepted)` says of `answer_tokens` generated ones.
    full: `token_norms` of the same batches and prefix in one segment, to set those of more segments against.
    ValueError as `encode` and `split`, and if there is no batch.
    """
    found = [_Collected() for _ in selections]
    keys, values, by_token, groups = [], [], [], []
    for batch in batches:
        bounds = np.cumsum([0, *split(len(batch.units), segments)])
        parts = [torch.cat(batch.units[a:b], 1) for a, b in zip(bounds, bounds[1:], strict=False)]
        tokens = answer_tokens or batch.answer.shape[1]
        encoded = encode(model, parts, prefix, batch.question.shape[1] + tokens - 1)
        norms = _token_norms(encoded)
        keys.append(_norms(norms[0], encoded.groups))
        values.append(_norms(norms[1], encoded.groups))
        groups.append(encoded.groups[encoded.groups != PREFIX].cpu())
        by_token.append(norms[..., encoded.groups != PREFIX].float().cpu())
        for selection, collected in zip(selections, found, strict=True):
            scores, seen = _answered(model, encoded, batch, tokens, selection, judge)
            collected.add(scores, seen.double())
    if not keys:
        raise ValueError("no episode to measure")
    norms = _mean_norms(keys), _mean_norms(values), by_token
    same = (None, None) if full is None or segments < 2 else _same_tokens(by_token, full, groups)
    return [
        Measurement(
            np.array(c.scores), np.array(c.entropies), torch.cat(c.by_layer, 1).mean(1).cpu().numpy(), *norms, *same
        )
        for c in found
    ]


@dataclass
class _Collected:
    scores: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    by_layer: list[Tensor] = field(default_factory=list)

    def add(self, scores: list[float], seen: Tensor) -> None:
        """seen: entropies (L, B, H, m)."""
        self.scores += scores
        self.entropies += seen.mean((0, 2, 3)).tolist()
        self.by_layer.append(seen.mean((2, 3)))  # (L, B)


def _answered(
    model: Model,
    encoded: Encoded,
    batch: Batch,
    tokens: int,
    selection: Selection | None,
    judge: Callable[[list[int], tuple[str, ...]], bool] | None,
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
    return torch.stack(
        [torch.stack([layer[which].double().norm(dim=-1).mean((0, 1)) for layer in encoded.cache]) for which in (0, 1)]
    )


def _begins(groups: Tensor) -> Tensor:
    """Whether a token's group is another than that of the token before, (n,)."""
    first = torch.ones_like(groups, dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    return first


def _norms(norms: Tensor, groups: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Of norms (L, n): (L,) means of prefix first, segment first and later tokens."""
    first = _begins(groups)
    in_prefix = groups == PREFIX
    later = ~first & ~in_prefix
    return (
        norms[:, 0] if in_prefix.any() else None,
        norms[:, first & ~in_prefix].mean(1),
        norms[:, later].mean(1) if later.any() else None,
    )


def _same_tokens(
    apart: Sequence[Tensor], full: Sequence[Tensor], groups: Sequence[Tensor]
) -> tuple[SameTokens, SameTokens]:
    """Keys' and values' norms (2, L, n) of every batch against `full`, means over batches. groups: (n,) a batch."""
    columns = []  # first, first_full, later, later_full; each (2, L) a batch
    for one, whole, own in zip(apart, full, groups, strict=True):
        first, moved = _begins(own), own > 0
        chosen = (moved & first, moved & ~first)
        columns.append([norms[..., mask].mean(-1) for mask in chosen for norms in (one, whole)])
    means = [torch.stack(column).double().mean(0) for column in zip(*columns, strict=True)]
    keys, values = ([None if mean.isnan().any() else mean[which].tolist() for mean in means] for which in (0, 1))
    return SameTokens(*keys), SameTokens(*values)


def _mean_norms(parts: list[tuple[Tensor | None, Tensor, Tensor | None]]) -> Norms:
    means = [
        None if any(part is None for part in column) else torch.stack(column).mean(0).tolist()
        for column in zip(*parts, strict=True)
    ]
    return Norms(*means)


def interval(values: np.ndarray, proportion: bool, mean: float | None = None) -> tuple[float, float]:
    """95 % interval of the mean over episodes: Wilson's for a proportion, the normal one otherwise.

    mean: the mean itself where it is one of several sets' means.
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
