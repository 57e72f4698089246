"""The paper's four kinds of task in an offline form that a small model can learn.

A context is a list of indivisible units, divided among P segments; a question follows, then an answer.

synthetic   key-value retrieval instead of JSON key-value retrieval. A unit is a pair "key value", the question is
            "? key". Pairs are drawn for every episode, so only the context has the answer.
rag         answers from passages instead of NQ, TriviaQA, HotpotQA and PopQA. A unit is a passage "entity attribute
            value attribute value", the question is "? entity attribute"; other passages have the same attribute of
            other entities.
icl         in-context classification instead of TREC, NLU, BANKING77 and CLINC150. A unit is an example "word word
            label". Words belong to topics, which the weights can learn; the label of a topic is drawn for every
            episode, so only the examples have it.
lm          language modelling of held-out text of the run's corpus instead of PG-19. Units are tokens; the last ones
            are predicted.

The symbols of the first three are single tokens behind the text's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from aero.data.tokens import TokenStream

TOPICS = 8


@dataclass(frozen=True)
class Vocabulary:
    """Ids of text tokens, 0 to text - 1, then `ask`, which begins a question, then one range a kind of symbol.

    Word i belongs to topic i mod TOPICS.
    """

    text: int
    keys: int = 64
    values: int = 32
    words: int = 32
    labels: int = 16
    attributes: int = 8

    @property
    def ask(self) -> int:
        return self.text

    def first(self, kind: str) -> int:
        """The first id of a kind of symbol."""
        kinds = ("keys", "values", "words", "labels", "attributes")
        return self.text + 1 + sum(getattr(self, other) for other in kinds[: kinds.index(kind)])

    @property
    def size(self) -> int:
        return self.first("attributes") + self.attributes


@dataclass(frozen=True)
class Batch:
    """Episodes of equal shape: units (U tensors of (B, w_u) ids), question (B, m), answer (B, a).

    accepted: the accepted answers of each episode as texts, which replace `answer`.
    """

    units: list[Tensor]
    question: Tensor
    answer: Tensor
    accepted: list[tuple[str, ...]] = field(default_factory=list)

    def to(self, device: str) -> Batch:
        units = [unit.to(device) for unit in self.units]
        return Batch(units, self.question.to(device), self.answer.to(device), self.accepted)


class EpisodeTask:
    """One of the three symbolic tasks. units: of a context; width: tokens of a unit."""

    def __init__(self, name: str, vocabulary: Vocabulary, units: int) -> None:
        self.name, self.units, self._vocabulary = name, units, vocabulary
        self.width = {"synthetic": 2, "rag": 5, "icl": 3}[name]
        if name != "icl" and units > vocabulary.keys:
            raise ValueError(f"{name}: {units} units, but there are only {vocabulary.keys} keys")

    def episode(self, random: np.random.Generator, units: int, questions: int) -> tuple[np.ndarray, ...]:
        """Context (units, width), questions (questions, m) and answers (questions, 1) of one episode."""
        if self.name == "icl":
            return self._examples(random, units, questions)
        context = self._pairs(random, units) if self.name == "synthetic" else self._passages(random, units)
        return context, *self._asked(random, context[random.integers(units, size=questions)])

    def batches(self, episodes: int, batch_size: int, seed: int) -> Iterator[Batch]:
        """`episodes` episodes with one question each; the same for the same seed."""
        random = np.random.default_rng(seed)
        for start in range(0, episodes, batch_size):
            drawn = [self.episode(random, self.units, 1) for _ in range(min(batch_size, episodes - start))]
            context, question, answer = (torch.from_numpy(np.stack(part)) for part in zip(*drawn, strict=True))
            yield Batch(list(context.unbind(1)), question[:, 0], answer[:, 0])

    def sequence(self, random: np.random.Generator, length: int, grown: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """A training sequence of `length` tokens, and which of them are answers (bool).

        The context comes in parts, each followed by as many questions as it has units. The size of a part is drawn
        log-uniformly from 2 to a maximum that the curriculum raises from 4 (`grown` 0) to the evaluated size (1). A
        classification is a list of examples, with 2 (`grown` 0) to all topics.
        """
        if self.name == "icl":
            units, topics = -(-length // self.width), 2 + round(grown * (TOPICS - 2))
            context, *_ = self._examples(random, units, 0, topics)
            answers = np.tile([False, False, True], units)
            return context.reshape(-1)[:length], answers[:length]
        context, *_ = self.episode(random, self.units, 0)
        most = min(self.units, 4) + grown * max(0, self.units - 4)
        ids: list[int] = []
        answers: list[bool] = []
        part = context[:0]
        while len(ids) < length:
            if len(context):
                units = int(round(np.exp(random.uniform(np.log(2), np.log(most)))))
                part, context = context[:units], context[units:]
                ids += part.reshape(-1).tolist()
                answers += [False] * part.size
            # With replacement: if every unit were asked about once, the last answers would follow by elimination.
            drawn = part[random.integers(len(part), size=len(part))]
            for question, answer in zip(*self._asked(random, drawn), strict=True):
                ids += [*question.tolist(), *answer.tolist()]
                answers += [False] * len(question) + [True]
        return np.array(ids[:length]), np.array(answers[:length])

    def _symbols(self, random: np.random.Generator, kind: str, count: int, distinct: bool = False) -> np.ndarray:
        return self._vocabulary.first(kind) + random.choice(getattr(self._vocabulary, kind), count, not distinct)

    def _pairs(self, random: np.random.Generator, units: int) -> np.ndarray:
        return np.stack([self._symbols(random, "keys", units, True), self._symbols(random, "values", units)], 1)

    def _passages(self, random: np.random.Generator, units: int) -> np.ndarray:
        entities = self._symbols(random, "keys", units, True)
        attributes = np.stack([self._symbols(random, "attributes", 2, True) for _ in range(units)])
        values = self._symbols(random, "values", 2 * units).reshape(units, 2)
        facts = np.stack([attributes, values], -1).reshape(units, 4)
        return np.concatenate([entities[:, None], facts], 1)

    def _asked(self, random: np.random.Generator, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Questions (q, m) about each of q units, of a passage about one of its facts, and answers (q, 1)."""
        ask = np.full(len(units), self._vocabulary.ask)
        if self.name == "synthetic":
            return np.stack([ask, units[:, 0]], 1), units[:, 1:]
        place = np.stack([1 + 2 * random.integers(2, size=len(units))], 1)
        attribute, value = np.take_along_axis(units, place, 1), np.take_along_axis(units, place + 1, 1)
        return np.concatenate([ask[:, None], units[:, :1], attribute], 1), value

    def _examples(
        self, random: np.random.Generator, units: int, questions: int, active: int = TOPICS
    ) -> tuple[np.ndarray, ...]:
        labels = self._symbols(random, "labels", TOPICS, True)
        topics = random.permutation(TOPICS)[random.integers(active, size=units + questions)]
        per_topic = self._vocabulary.words // TOPICS
        words = random.integers(per_topic, size=(units + questions, 2)) * TOPICS + topics[:, None]
        words += self._vocabulary.first("words")
        answers = labels[topics][:, None]
        return np.concatenate([words, answers], 1)[:units], words[units:], answers[units:]


def make_episode_tasks(vocabulary: Vocabulary, units: Mapping[str, int]) -> list[EpisodeTask]:
    """The three symbolic tasks with the given numbers of units a context."""
    return [EpisodeTask(name, vocabulary, units[name]) for name in ("synthetic", "rag", "icl")]


class TextTask:
    """Language modelling of a token stream: a context of `units` tokens, one token, then `predicted` tokens.

    The token between is the query's first, as in the authors' code, so that every predicted token has a query row.
    """

    name, width = "lm", 1

    def __init__(self, stream: TokenStream, units: int, predicted: int) -> None:
        self._stream, self.units, self.predicted = stream, units, predicted

    def batches(self, episodes: int, batch_size: int, seed: int) -> Iterator[Batch]:
        """Up to `episodes` windows from different places of the stream; the same for the same seed."""
        length, tokens = self.units + 1 + self.predicted, self._stream.tokens
        windows = len(tokens) // length
        if not windows:
            raise ValueError(f"the held-out text has {len(tokens)} tokens, fewer than one window of {length}")
        starts = np.sort(np.random.default_rng(seed).permutation(windows)[:episodes]) * length
        for start in range(0, len(starts), batch_size):
            rows = starts[start : start + batch_size, None] + np.arange(length)
            ids = torch.from_numpy(tokens[rows].astype(np.int64))
            context, question, answer = ids.split([self.units, 1, self.predicted], 1)
            yield Batch(list(context.split(1, 1)), question, answer)


UNSCORED = -100
"""Target of tokens that are not scored; F.cross_entropy ignores it."""


class Mixture:
    """Training batches of the symbolic tasks and text, one task a sequence, in turn."""

    def __init__(self, tasks: list[EpisodeTask], stream: TokenStream, length: int, batch_size: int, seed: int) -> None:
        self._tasks, self._stream, self._length = {task.name: task for task in tasks}, stream, length
        self._batch_size, self._seed = batch_size, seed
        self.kinds = [*(task.name for task in tasks), "lm"]

    def batch(self, step: int, grown: Mapping[str, float], kinds: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Sequences of one step and their targets, (B, T) int64 both: answers only, or all of a text.

        grown: curriculum of each symbolic task, see `EpisodeTask.sequence`. kinds: row b is of kind b mod their number.
        """
        random = np.random.default_rng((self._seed, step))
        rows, scored = [], []
        for place in range(self._batch_size):
            kind = kinds[place % len(kinds)]
            if kind == "lm":
                start = int(random.integers(len(self._stream.tokens) - self._length + 1))
                ids = self._stream.tokens[start : start + self._length].astype(np.int64)
                answers = np.ones(self._length, dtype=bool)
            else:
                ids, answers = self._tasks[kind].sequence(random, self._length, grown[kind])
            rows.append(ids)
            scored.append(answers)
        ids = torch.from_numpy(np.stack(rows))
        return ids, ids.masked_fill(~torch.from_numpy(np.stack(scored)), UNSCORED)
