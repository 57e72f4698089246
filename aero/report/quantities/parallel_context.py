"""Quantities of `parallel_context`: a pretrained model whose context is encoded in P segments.

P = 1 is full attention. What is lost is the mean loss in nats for language modelling, per cent wrong for other tasks.
Tasks at which full attention is not above chance, or perfect, are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aero.published import table
from aero.report.papers import parallel_context as pc
from aero.report.papers.parallel_context import KINDS, SCALE, Measured, Setting
from aero.report.results import Results
from aero.report.statistics import Estimate
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"
Effect = Estimate | None


def _of_model(quantity: Callable[..., dict[str, Effect] | dict[str, Any]]) -> Callable[..., Measurement]:
    """Make a measurement of the effects by task that `quantity` returns for the tasks that pass the gate; a key `notes`
    holds further evidence."""

    @functools.wraps(quantity)
    def measure(results: Results, **parameters: Any) -> Measurement:
        model = pc.measured(results)
        wanted = parameters.pop("tasks")
        if model is None:
            return Measurement("", SCALE, missing="not measured: make parallel")
        closed = {task: why for task in wanted if (why := pc.gate(model, task))}
        found = quantity(model, [task for task in wanted if task not in closed], **parameters)
        notes = [f"{model.path}, {model.about['model']}", *found.pop("notes", [])]
        effects = {task: effect for task, effect in found.items() if effect is not None}
        notes += [f"{task} left out: {why}" for task, why in closed.items()]
        return Measurement(
            ", ".join(f"{task} {effect.text(2)}" for task, effect in effects.items()),
            SCALE,
            "; ".join(notes),
            effects=effects,
            missing="" if effects else "no task that can show it",
            trained=True,
        )

    return measure


def _most(model: Measured, task: str) -> int:
    return max(model.segments(task))


def _between(model: Measured, task: str, method: str, other: str = "naive") -> tuple[Setting, Setting]:
    p = _most(model, task)
    return model.setting(task, p, method), model.setting(task, p, other)


@_of_model
def loss_with_segments(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """What is lost at the largest P more than with full attention, over episodes."""
    found: dict[str, Any] = {
        task: pc.lost(model, task, model.setting(task, _most(model, task)), model.setting(task, 1)) for task in tasks
    }
    rows = [
        f"{task} " + ", ".join(f"P={p}: {pc.score(model, task, model.setting(task, p)).mean:.1f}" for p in ps)
        for task in tasks
        if (ps := [p for p in model.segments(task) if model.values(task, model.setting(task, p))])
    ]
    printed = {KINDS[task]: table("parallel_context/tablemain").row("P=64").cells[KINDS[task]].text for task in tasks}
    return found | {"notes": [*rows, f"published at P=64: {', '.join(printed.values())}"]}


@_of_model
def entropy_with_segments(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """Entropy of the query's attention at the largest P minus that with full attention, over episodes, in nats."""
    return {
        task: pc.entropy_change(model, task, model.setting(task, _most(model, task)), model.setting(task, 1))
        for task in tasks
    }


@_of_model
def entropy_with_remedy(model: Measured, tasks: list[str], method: str) -> dict[str, Any]:
    """Entropy of the query's attention at the largest P with a remedy (sink, select, both) minus without, over
    episodes, in nats."""
    return {task: pc.entropy_change(model, task, *_between(model, task, method)) for task in tasks}


@_of_model
def loss_with_remedy(model: Measured, tasks: list[str], method: str) -> dict[str, Any]:
    """What is lost at the largest P with a remedy (sink, select, both) minus without, over episodes."""
    return {task: pc.lost(model, task, *_between(model, task, method)) for task in tasks}


@_of_model
def correlation_with_loss(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """Pearson's r over P of entropy with what is lost, without a remedy, with Fisher's interval."""
    return {task: found for task in tasks if not math.isnan((found := pc.correlation(model, task)).mean)}


@_of_model
def loss_with_newline(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """What is lost at the largest P with a newline as the shared prefix minus with none, over episodes."""
    return {
        task: pc.lost(model, task, Setting(_most(model, task), sink=model.sinks[-1]), Setting(_most(model, task)))
        for task in tasks
    }


@_of_model
def size_in_segments(model: Measured, tasks: list[str], of: str) -> dict[str, Any]:
    """What the largest P makes of a size without a remedy, over that in full attention, minus 1: of the keys of
    segments' first tokens (key_first) or of later ones (key_later), of the same tokens in both; or of the query's
    logits (logit_mean). Over layers but the first, which knows nothing but its tokens."""
    found: dict[str, Any] = {}
    for task in tasks:
        setting = Setting(_most(model, task))
        whole = (setting, f"{of}_full") if of.startswith("key") else (Setting(1), of)
        apart, full = model.layers(task, setting, of), model.layers(task, *whole)
        found[task] = None if apart is None or full is None else pc.over(list(apart[1:] / full[1:] - 1))
    return found


@_of_model
def loss_with_oracle(model: Measured, tasks: list[str], oracle: str, method: str) -> dict[str, Any]:
    """What is lost at the largest P with the keys or values of full attention minus with a remedy, over episodes."""
    at = {task: _most(model, task) for task in tasks}
    return {
        task: pc.lost(model, task, Setting(p, oracle=oracle), model.setting(task, p, method)) for task, p in at.items()
    }


@_of_model
def best_k(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """How much larger the K of selective attention with the best score is in each task than in the last."""
    best, shown = {}, []
    for task in tasks:
        p = _most(model, task)
        fixed = sorted({s.top_k for name, s in model.rows if name == task and s.top_k})
        scores = {k: pc.score(model, task, model.setting(task, p, "select", top_k=k)) for k in fixed}
        means = {k: -pc.loss_of(task, found.mean) for k, found in scores.items() if found}
        if means:
            best[task] = max(means, key=lambda k: (means[k], -k))
            shown.append(f"{task}: " + ", ".join(f"K={k} {scores[k].mean:.1f}" for k in means))
    last = best.get("pairs")
    found = {task: exact(float(k - last)) for task, k in best.items() if last and task != "pairs"}
    return found | {"notes": shown}


def cost_of_segments(results: Results, percent: float) -> Measurement:
    """Query-key pairs of a context encoded in P segments over those of full attention: whether they are within
    `percent` % of 1/P at every P."""
    found = pc.costs(results)
    if found is None:
        return Measurement("", SCALE, missing="not measured yet: make parallel")
    rows = found["rows"]
    whole = {row["tokens"]: row for row in rows if row["segments"] == 1}
    parts = [(row, whole[row["tokens"]]) for row in rows if row["segments"] > 1]
    last, full = parts[-1]
    pairs, time, memory = (last[key] / full[key] for key in ("attention_pairs", "cpu_s", "peak_bytes"))
    return Measurement(
        f"query-key pairs {pairs:.4f} at P={last['segments']}; measured: time {time:.2f}, memory {memory:.2f} of full"
        " attention's",
        SCALE,
        f"{found['path']}: {last['tokens']} tokens, {found['model']}, one thread; projections and feed-forward networks"
        " cost the same at every P",
        checks={
            f"{row['tokens']} tokens, P={row['segments']}": bool(
                np.isclose(row["attention_pairs"] * row["segments"], full["attention_pairs"], rtol=percent / 100)
            )
            for row, full in parts
        },
    )
