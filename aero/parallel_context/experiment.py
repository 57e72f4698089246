"""The grid of settings that is measured for one model, and its results as rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from aero.errors import UserError
from aero.parallel_context.encoding import Model
from aero.parallel_context.evaluate import Judge, Measurement, interval, measure
from aero.parallel_context.selection import Selection
from aero.parallel_context.settings import ParallelContextSettings, TaskName
from aero.parallel_context.tasks import Batch

METRICS: dict[TaskName, str] = {
    "lm": "perplexity",
    "icl": "accuracy",
    "rag": "substring match",
    "synthetic": "substring match",
}


@dataclass(frozen=True)
class Task:
    """A task ready to be measured. description: of its contexts, for readers of the result.

    sets: name and number of episodes of the sets that the batches hold one after the other; empty for one set.
    """

    name: TaskName
    batches: Sequence[Batch]
    description: str
    judge: Judge | None = None
    answer_tokens: int | None = None
    sets: tuple[tuple[str, int], ...] = ()

    @property
    def units(self) -> int:
        """Units of the shortest context, the most segments that are possible."""
        return min(len(batch.units) for batch in self.batches)

    def to(self, device: str) -> Task:
        """The task with its batches on `device`."""
        return replace(self, batches=[batch.to(device) for batch in self.batches])


def possible(task: Task, segments: Sequence[int]) -> tuple[list[int], list[int]]:
    """The P, rising, that a task's contexts have enough units for, and the others; UserError if none is possible."""
    wanted = sorted(set(segments))
    usable = [p for p in wanted if 1 <= p <= task.units]
    if not usable or wanted[0] < 1:
        raise UserError(f"{task.name}: P={wanted} is not possible: P must be 1 to {task.units}, the context's units")
    return usable, wanted[len(usable) :]


def rows_of(
    model: Model,
    task: Task,
    segments: Sequence[int],
    section: ParallelContextSettings,
    prefix: Tensor,
    prefixes: dict[str, Tensor],
    log: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """All rows of one task: every possible P with and without sink and selection, ablations at the largest P.

    prefix: the shared sink. prefixes: others by name, to compare with it.
    """
    usable, left_out = possible(task, segments)
    if left_out:
        log(f"{task.name}: P={left_out} left out, the context has only {task.units} units")
    selection = section.select(task.name)
    rows: list[dict[str, Any]] = []
    full: dict[str | None, list[Tensor]] = {}

    def add(p: int, sink: str | None, with_prefix: Tensor | None, selections: Sequence[Selection | None]) -> None:
        found = measure(model, task.batches, p, with_prefix, selections, task.judge, task.answer_tokens, full.get(sink))
        if p == 1:
            full[sink] = found[0].token_norms
        rows.extend(row(task, p, sink, one, measured) for one, measured in zip(selections, found, strict=True))
        log(f"{task.name} P={p} sink={sink}: " + ", ".join(f"{r['score']:.3f}" for r in rows[-len(selections) :]))

    for p in usable:
        more = ablation(section, task.name, selection) if p == usable[-1] and p > 1 else []
        add(p, None, None, [None, selection, *more])
        add(p, "sink", prefix, [None, selection])
    for name, other in prefixes.items():
        add(usable[-1], name, other, [None])
    return rows


def ablation(section: ParallelContextSettings, task: TaskName, default: Selection) -> list[Selection]:
    """K and aggregation varied one at a time, without the default itself; language modelling has no aggregation."""
    varied = [section.select(task, top_k=k) for k in section.ablation.top_k]
    varied += [section.select(task, aggregation=a) for a in section.ablation.aggregation if task != "lm"]
    return list(dict.fromkeys(one for one in varied if one != default))


def row(task: Task, p: int, sink: str | None, selection: Selection | None, found: Measurement) -> dict[str, Any]:
    """One measurement: score (perplexity, or per cent) with its 95 % interval over episodes, entropies and norms.

    Of several sets the score is the mean of their scores; `sets` has each of them.
    """
    metric = METRICS[task.name]
    is_loss = metric == "perplexity"
    sizes = [count for _, count in task.sets] or [len(found.scores)]
    parts = np.split(found.scores, np.cumsum(sizes)[:-1])
    mean = math.fsum(float(part.mean()) for part in parts) / len(parts)
    low, high = interval(found.scores, proportion=not is_loss, mean=mean)
    score, low, high = (_finite(math.exp(v) if is_loss else 100 * v) for v in (mean, low, high))
    entropy_low, entropy_high = interval(found.entropies, proportion=False)
    return {
        "task": task.name,
        "metric": metric,
        "segments": p,
        "sink": sink,
        "top_k": None if selection is None else selection.top_k,
        "aggregation": None if selection is None else selection.aggregation,
        "episodes": len(found.scores),
        "score": score,
        "low": low,
        "high": high,
        "sets": {name: 100 * float(part.mean()) for (name, _), part in zip(task.sets, parts, strict=False)},
        "entropy": float(found.entropies.mean()),
        "entropy_low": _finite(entropy_low),
        "entropy_high": _finite(entropy_high),
        "entropy_by_layer": found.entropy_by_layer.tolist(),
        "key_norms": found.key_norms,
        "value_norms": found.value_norms,
        "same_tokens": {"keys": found.same_keys, "values": found.same_values},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
