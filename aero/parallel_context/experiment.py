"""The grid of settings that is measured for one model, and its result as rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aero.errors import UserError
from aero.parallel_context.encoding import Model
from aero.parallel_context.evaluate import Measurement, interval, measure
from aero.parallel_context.selection import Selection
from aero.parallel_context.settings import ParallelContextSettings, TaskName
from aero.parallel_context.tasks import Batch

Judge = Callable[[list[int], tuple[str, ...]], bool]


@dataclass(frozen=True)
class Task:
    """A task ready to be measured. metric: perplexity, accuracy or substring match, as the paper's column has it.

    description: what its contexts are, in words, for whoever reads the result. sets: name and number of episodes of
    the sets that the batches hold one after the other; empty for one set.
    """

    name: TaskName
    batches: Sequence[Batch]
    metric: str
    description: str
    judge: Judge | None = None
    answer_tokens: int | None = None
    sets: tuple[tuple[str, int], ...] = ()

    @property
    def units(self) -> int:
        """Pieces of the context with the fewest: more segments than that are impossible."""
        return min(len(batch.units) for batch in self.batches)


def possible(task: Task, segments: Sequence[int]) -> tuple[list[int], list[int]]:
    """The P, rising, that a task's contexts have pieces for, and those they have too few for; UserError if all are."""
    wanted = sorted(set(segments))
    if wanted[0] < 1:
        raise UserError(f"P={wanted[0]} segments: there must be at least one")
    usable = [p for p in wanted if p <= task.units]
    if not usable:
        raise UserError(
            f"{task.name}: none of P={', '.join(map(str, wanted))} is possible, the context has only {task.units}"
            " pieces; add a smaller P, or leave the task out by --tasks"
        )
    return usable, [p for p in wanted if p > task.units]


def rows_of(
    model: Model,
    task: Task,
    segments: Sequence[int],
    section: ParallelContextSettings,
    prefix: Tensor,
    prefixes: dict[str, Tensor],
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """All rows of one task: every P with and without sink and selection, the ablations at the largest P.

    prefix: the shared sink. prefixes: others, by name, to be set against it. P beyond the task's units are left out,
    and said to be.
    """
    usable, left_out = possible(task, segments)
    if left_out:
        numbers = ", ".join(map(str, left_out))
        say(f"{task.name}: P={numbers} left out, the context has only {task.units} pieces to divide")
    selection = section.select(task.name)
    rows: list[dict[str, Any]] = []
    full: dict[str | None, list[Tensor]] = {}

    def add(p: int, sink: str | None, with_prefix: Tensor | None, selections: Sequence[Selection | None]) -> None:
        found = measure(model, task.batches, p, with_prefix, selections, task.judge, task.answer_tokens, full.get(sink))
        if p == 1:
            full[sink] = found[0].token_norms
        for one, measurement in zip(selections, found, strict=True):
            rows.append(row(task, p, sink, one, measurement))
        say(f"{task.name} P={p} sink={sink}: " + ", ".join(f"{r['score']:.3f}" for r in rows[-len(selections) :]))

    for p in usable:
        more = ablation(section, task.name, selection) if p == usable[-1] and p > 1 else []
        add(p, None, None, [None, selection, *more])
        add(p, "sink", prefix, [None, selection])
    for name, other in prefixes.items():
        add(usable[-1], name, other, [None])
    return rows


def ablation(section: ParallelContextSettings, task: TaskName, default: Selection) -> list[Selection]:
    """K and aggregation varied one at a time, without the default itself."""
    varied = [section.select(task, top_k=k) for k in section.ablation.top_k]
    # A task without aggregation is compared as the others are, so that the table has one meaning.
    varied += [section.select(task, aggregation=a) for a in section.ablation.aggregation if task != "lm"]
    return list(dict.fromkeys(one for one in varied if one != default))


def row(task: Task, p: int, sink: str | None, selection: Selection | None, found: Measurement) -> dict[str, Any]:
    """One measurement as a line of the result: score (perplexity, or per cent) with its 95 % interval over episodes.

    Of several sets the score is the mean of theirs, each counting equally; `sets` has them apart."""
    is_loss = task.metric == "perplexity"
    sizes = [count for _, count in task.sets] or [len(found.scores)]
    parts = np.split(found.scores, np.cumsum(sizes)[:-1])
    mean = math.fsum(float(part.mean()) for part in parts) / len(parts)
    low, high = interval(found.scores, proportion=not is_loss, mean=mean)
    score, low, high = (_finite(math.exp(v) if is_loss else 100 * v) for v in (mean, low, high))
    entropy = found.entropies
    return {
        "task": task.name,
        "metric": task.metric,
        "segments": p,
        "sink": sink,
        "top_k": None if selection is None else selection.top_k,
        "aggregation": None if selection is None else selection.aggregation,
        "episodes": len(found.scores),
        "score": score,
        "low": low,
        "high": high,
        "sets": {name: 100 * float(part.mean()) for (name, _), part in zip(task.sets, parts, strict=False)},
        "entropy": float(entropy.mean()),
        "entropy_low": _finite(interval(entropy, proportion=False)[0]),
        "entropy_high": _finite(interval(entropy, proportion=False)[1]),
        "entropy_by_layer": found.entropy_by_layer.tolist(),
        "key_norms": vars(found.key_norms),
        "value_norms": vars(found.value_norms),
        "same_tokens": {
            "keys": None if found.same_keys is None else vars(found.same_keys),
            "values": None if found.same_values is None else vars(found.same_values),
        },
    }


def text_prefix(encode: Callable[[str], list[int]], text: str) -> Tensor:
    """A shared prefix of the tokens of `text`; ValueError for a text without any."""
    ids = encode(text)
    if not ids:
        raise ValueError(f"the prefix {text!r} has no token")
    return torch.tensor(ids)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
