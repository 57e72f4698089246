"""Quantities of `parallel_context`: a decoder trained here, whose context is encoded in P segments.

P = 1 is full attention. What is lost is the mean loss in nats for language modelling (`lm`), per cent wrong for others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from aero.published import table
from aero.report.papers.parallel_context import (
    Measured,
    Summary,
    by_seed,
    correlation,
    correlation_text,
    costs,
    largest,
    loss_of,
    lost,
    mean_curve,
    own_models,
)
from aero.report.results import Results
from aero.report.statistics import Estimate, estimate
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"


def _of_decoder(quantity: Callable[..., dict[str, Any]]) -> Callable[..., Measurement]:
    """Make a measurement of what `quantity` returns for the decoders trained here, one a seed, that were measured on
    all its tasks: with full attention, and at the largest P without a remedy and with its method."""

    @functools.wraps(quantity)
    def measure(results: Results, **parameters: Any) -> Measurement:
        found = own_models(results)
        methods = {"naive", parameters.get("method", "naive")}
        lacking = {
            model.seed: f"seed {model.seed} lacks some of {task} ({model.path})"
            for model in found
            for task in parameters.get("tasks") or [parameters["task"]]
            for place in [(1, "naive"), *((largest(found, task), method) for method in methods)]
            if place[0] is None or model.row(task, *place) is None
        }
        models = [model for model in found if model.seed not in lacking]
        missing = f"not measured: {'; '.join(lacking.values())}" if lacking else "fewer than two seeds: make parallel"
        parts: dict[str, Any] = {"missing": missing}
        if len(models) >= 2:
            parts = quantity(models, **parameters)
        seeds = ", ".join(str(m.seed) for m in models)
        solved = sum(bool(m.values["solves_retrieval"]) for m in models)
        notes = [f"decoder trained here, seeds {seeds}; {solved} of {len(models)} solve retrieval with full attention"]
        evidence = "; ".join(filter(None, notes * bool(models) + parts.pop("notes", [])))
        scale = found[0].values["scale"] if found else results.scale
        return Measurement(**{"text": "", "scale": scale, "evidence": evidence, "trained": True} | parts)

    return measure


def _by_task(found: dict[str, Summary | None], unit: str = "", *notes: str) -> dict[str, Any]:
    """The parts of a measurement with one effect a task; unit: "" for what is lost, nats or points of per cent."""
    parts = []
    for task, one in found.items():
        own = unit or ("nats" if task == "lm" else "points")
        if one:
            parts.append(f"{task} {one.text(1 if own == 'points' else 3, own.strip(), 'over episodes')}")
    effects = {task: one.estimate if one else Estimate(math.nan, None, None, ()) for task, one in found.items()}
    return {"text": ", ".join(parts), "effects": effects, "notes": list(notes)}


def _lost(models: Sequence[Measured], task: str, one: tuple[int, str], other: tuple[int, str]) -> Summary | None:
    """What is lost at one (P, remedy) more than at the other."""
    return lost({m.seed: (m.row(task, *one), m.row(task, *other)) for m in models})


def _entropy(models: Sequence[Measured], task: str, one: tuple[int, str], other: tuple[int, str]) -> Summary | None:
    """Entropy of the query's attention at one (P, remedy) minus that at the other."""
    found = estimate({m.seed: m.row(task, *one)["entropy"] - m.row(task, *other)["entropy"] for m in models})
    return found and Summary(found)


@_of_decoder
def loss_with_segments(models: Sequence[Measured], task: str) -> dict[str, Any]:
    """What is lost at the largest P more than with full attention, over seeds (over episodes where the seeds agree)."""
    p = largest(models, task)
    found = _by_task({task: _lost(models, task, (p, "naive"), (1, "naive"))})
    scores = {n: by_seed(models, task, n, "naive") for n in models[0].segments(task)}
    rows = "; ".join(f"P={n}: {math.fsum(values.values()) / len(values):.2f}" for n, values in scores.items())
    published = table("parallel_context/tablemain").row("P=64").cells[task].text
    text = f"{found['text'].removeprefix(task).strip()} at P={p}"
    return found | {"text": text, "notes": [rows, f"published at P=64: {published}"]}


@_of_decoder
def entropy_with_segments(models: Sequence[Measured], tasks: list[str]) -> dict[str, Any]:
    """Entropy of the query's attention at the largest P minus that with full attention, over seeds."""
    return _by_task({t: _entropy(models, t, (largest(models, t), "naive"), (1, "naive")) for t in tasks}, "nats")


@_of_decoder
def entropy_with_remedy(models: Sequence[Measured], method: str, tasks: list[str]) -> dict[str, Any]:
    """Entropy of the query's attention at the largest P with a remedy (sink, select, both) minus without, over
    seeds."""
    at = {task: largest(models, task) for task in tasks}
    return _by_task({t: _entropy(models, t, (p, method), (p, "naive")) for t, p in at.items()}, "nats")


@_of_decoder
def loss_with_remedy(models: Sequence[Measured], method: str, tasks: list[str]) -> dict[str, Any]:
    """What is lost at the largest P with a remedy (sink, select, both) minus without, over seeds (over episodes where
    the seeds agree)."""
    at = {task: largest(models, task) for task in tasks}
    return _by_task({t: _lost(models, t, (p, method), (p, "naive")) for t, p in at.items()})


@_of_decoder
def correlation_with_loss(models: Sequence[Measured], tasks: list[str]) -> dict[str, Any]:
    """Pearson's r over P of entropy with what is lost, of the curves averaged over seeds, with Fisher's interval."""
    found = {task: correlation(models, task) for task in tasks}
    points = ", ".join(f"{task} {len(mean_curve(models, task, 'naive'))}" for task in tasks)
    return {
        "text": ", ".join(f"{task} {correlation_text(c)}" for task, c in found.items()),
        "effects": found,
        "notes": [f"points: {points}"],
    }


@_of_decoder
def difference_between_sinks(models: Sequence[Measured], method: str, tasks: list[str]) -> dict[str, Any]:
    """Largest difference in what is lost between shared prefixes at the largest P, in per cent of the loss without one
    for `lm` and in points for others. Only for tasks in which, within two seeds or more, some prefix changes the score
    by more than the sampling error."""
    counting, seen, unseen = {}, [], []
    for task in tasks:
        p, spreads = largest(models, task), {}
        for model in models:
            naive = model.row(task, p, "naive")
            rows = [row for row in model.values["rows"] if row["task"] == task and row["segments"] == p]
            rows = {row["sink"]: row for row in rows if row["sink"] and row["top_k"] is None}
            if len(rows) < 2 or not any(_differ(row, naive) for row in rows.values()):
                continue
            losses = [loss_of(row) for row in rows.values()]
            spreads[model.seed] = (max(losses) - min(losses)) * (100 / loss_of(naive) if task == "lm" else 1)
            scores = ", ".join(f"{sink} {row['score']:.1f}" for sink, row in rows.items())
            seen.append(f"{task}, seed {model.seed}: without {naive['score']:.1f}, {scores}")
        if len(spreads) >= 2:
            counting[task] = max(spreads.values())
        else:
            unseen.append(f"{task} in {len(spreads)} of {len(models)} seeds")
    changed = f"a prefix changes the score beyond sampling error: {', '.join(unseen)}" if unseen else ""
    return {
        "text": ", ".join(
            f"{task} {value:.1f} {'%' if task == 'lm' else 'points'}" for task, value in counting.items()
        ),
        "effects": {task: exact(value) for task, value in counting.items()},
        "notes": [changed, *seen],
        "missing": "" if counting else "no task in which a prefix changes the score in two seeds",
    }


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows' scores differ by more than the root of the sum of their squared 95 % half-widths."""
    if any(row[end] is None for row in (one, other) for end in ("low", "high")):
        return False
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (one, other)))
    return abs(one["score"] - other["score"]) > half


@_of_decoder
def size_of_first_keys(models: Sequence[Measured], tasks: list[str]) -> dict[str, Any]:
    """Norm of the keys of the first tokens of segments 2 to P, at the largest P, over that of the same tokens in full
    attention, minus 1; mean over layers but the first, whose keys depend on their token alone."""
    first, later = (
        {task: {m.seed: _key_ratio(m, task, largest(models, task), kind) for m in models} for task in tasks}
        for kind in ("first", "later")
    )
    if any(ratio is None for seeds in first.values() for ratio in seeds.values()):
        return {"missing": "keys of the same tokens in segments and in full attention not measured yet: make parallel"}
    changes = {task: estimate({s: ratio - 1 for s, ratio in seeds.items()}) for task, seeds in first.items()}
    shown = [f"{task} {sum(v.values()) / len(v):.3f}" for task, v in later.items() if None not in v.values()]
    note = f"ratio of all other tokens: {', '.join(shown) or 'none'}"
    return _by_task({task: one and Summary(one) for task, one in changes.items()}, " ", note)


def _key_ratio(model: Measured, task: str, p: int, kind: str) -> float | None:
    """Mean over layers but the first: key norm in segments over that in full attention; None if not measured."""
    keys = ((model.row(task, p, "naive") or {}).get("same_tokens") or {}).get("keys")
    if keys is None or keys[kind] is None or len(keys[kind]) < 2:
        return None
    ratios = [apart / whole for apart, whole in zip(keys[kind][1:], keys[f"{kind}_full"][1:], strict=True)]
    return sum(ratios) / len(ratios)


@_of_decoder
def best_k(models: Sequence[Measured], method: str, tasks: list[str]) -> dict[str, Any]:
    """How much larger the K of selective attention with the best mean over seeds is in each task than in the last."""
    best, alike, shown = {}, {}, []
    for task in tasks:
        aggregation, p = models[0].values["selection"]["aggregation"][task], largest(models, task)
        means = {}
        for k in sorted({row["top_k"] for row in models[0].values["rows"] if row["task"] == task and row["top_k"]}):
            rows = [m.exact(task, p, None, k, aggregation) for m in models]
            if all(rows):
                means[k] = math.fsum(row["score"] for row in rows) / len(rows)
        best[task] = max(means, key=lambda k: (means[k], -k))
        alike[task] = [k for k in means if means[k] == means[best[task]]]
        shown.append(f"{task}: " + ", ".join(f"K={k} {value:.1f}" for k, value in means.items()))
    return {
        "text": ", ".join(f"{task} K={' or '.join(map(str, ks))}" for task, ks in alike.items()),
        "effects": {task: exact(float(best[task] - best[tasks[-1]])) for task in tasks[:-1]},
        "notes": shown,
    }


def cost_of_segments(results: Results, percent: float) -> Measurement:
    """Query-key pairs of a context encoded in P segments over those of full attention: whether they are within
    `percent` % of 1/P at every P."""
    found = costs(results)
    rows = found.values["rows"] if found else []
    full = next((row for row in rows if row["way"] == "full"), None)
    parts = sorted((row for row in rows if row["way"] == "segments"), key=lambda row: row["segments"])
    if found is None or full is None or not parts:
        return Measurement("", results.scale, missing="not measured yet: make parallel")
    pairs = {row["segments"]: row["attention_pairs"] / full["attention_pairs"] for row in parts}
    last, model = parts[-1], found.values["model"]
    p, memory = last["segments"], ""
    if full["peak_bytes"] and last["peak_bytes"]:
        memory = f", memory {last['peak_bytes'] / full['peak_bytes']:.2f}"
    # Multiplications of a layer: 12 d^2 a token, and 2 d a query-key pair.
    linear = 12 * model["width"] ** 2 * full["tokens"]
    least, whole = (linear + 2 * model["width"] * row["attention_pairs"] for row in (last, full))
    return Measurement(
        f"query-key pairs {pairs[p]:.4f} at P={p} (1/P = {1 / p:.4f}); measured: time"
        f" {last['cpu_s'] / full['cpu_s']:.2f}{memory} of full attention's",
        found.values["scale"],
        f"{found.path}: {full['tokens']} tokens, d={model['width']}, one thread; projections and feed-forward networks"
        f" cost the same at every P, so time cannot fall below {least / whole:.2f}",
        checks={f"P={n}": abs(ratio * n - 1) <= percent / 100 for n, ratio in pairs.items()},
    )
