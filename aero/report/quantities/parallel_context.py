"""Quantities of `parallel_context`: a decoder trained here, whose context is encoded in P segments.

P = 1 is full attention. What is lost is the mean loss in nats for language modelling (`lm`), per cent wrong for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aero.published import table
from aero.report.parallel_context import (
    Measured,
    Summary,
    by_seed,
    correlation_text,
    costs,
    largest,
    loss_of,
    lost,
    mean_correlation,
    own_models,
)
from aero.report.results import Results
from aero.report.statistics import Estimate, estimate
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"


def _unit(task: str) -> str:
    return "nats" if task == "lm" else "points"


def _models(results: Results, tasks: Sequence[str], *methods: str) -> tuple[list[Measured], str]:
    """The models measured on all `tasks` with full attention and at the largest P, without a remedy and with
    `methods`; and why there are fewer than two, "" if there are."""
    found = own_models(results)
    if not found:
        return [], "not run yet: make parallel"
    lacking = {}
    for model in found:
        for task in tasks:
            p = largest(found, task)
            wanted = [(1, "naive"), *((p, method) for method in ("naive", *methods))]
            if p is None or any(model.row(task, n, method) is None for n, method in wanted):
                lacking[model.seed] = f"seed {model.seed} lacks some of {task} ({model.path})"
                break
    models = [model for model in found if model.seed not in lacking]
    if len(models) >= 2:
        return models, ""
    if lacking:
        return models, f"not measured: {'; '.join(lacking.values())}; make parallel measures all"
    return models, f"one seed ({models[0].seed}): no interval, so no verdict"


def _measurement(
    results: Results, models: Sequence[Measured], text: str = "", *notes: str, **parts: Any
) -> Measurement:
    """A measurement of the decoder trained here."""
    solved = sum(bool(m.values["solves_retrieval"]) for m in models)
    seeds = ", ".join(str(m.seed) for m in models)
    words = f"rotary decoder trained here, seeds {seeds}; {solved} of {len(models)} solve retrieval with full attention"
    evidence = "; ".join(filter(None, (words if models else "", *notes)))
    scale = models[0].values["scale"] if models else (own_models(results) or [None])[0]
    scale = scale if isinstance(scale, str) else results.scale if scale is None else scale.values["scale"]
    return Measurement(text, scale, evidence, own_size=False, **parts)


def _by_task(
    results: Results, models: Sequence[Measured], found: dict[str, Summary | None], unit: dict[str, str], *notes: str
) -> Measurement:
    """A measurement with one effect a task."""
    text = ", ".join(
        f"{task} {one.text(1 if unit[task] == 'points' else 3, unit[task], 'over episodes')}"
        for task, one in found.items()
        if one
    )
    effects = {task: one.estimate if one else Estimate(math.nan, None, None, ()) for task, one in found.items()}
    return _measurement(results, models, text, *notes, effects=effects)


def loss_with_segments(results: Results, task: str) -> Measurement:
    """What is lost at the largest P more than with full attention, over seeds (over episodes where the seeds agree)."""
    models, missing = _models(results, [task])
    if missing:
        return _measurement(results, models, missing=missing)
    p = largest(models, task)
    found = lost({m.seed: (m.row(task, p, "naive"), m.row(task, 1, "naive")) for m in models})
    scores = {n: by_seed(models, task, n, "naive") for n in models[0].segments(task)}
    rows = "; ".join(f"P={n}: {math.fsum(values.values()) / len(values):.2f}" for n, values in scores.items())
    published = table("parallel_context/tablemain").row("P=64").cells[task].text
    text = f"{found.text(1 if _unit(task) == 'points' else 3, _unit(task), 'over episodes')} at P={p}"
    return _measurement(results, models, text, rows, f"published at P=64: {published}", effects={"": found.estimate})


def _entropy_change(
    results: Results, tasks: list[str], one: tuple[int | None, str], other: tuple[int | None, str]
) -> Measurement:
    """Entropy of the query's attention at one (P, remedy) minus another, by task; P None is the largest."""
    models, missing = _models(results, tasks, *({one[1], other[1]} - {"naive"}))
    if missing:
        return _measurement(results, models, missing=missing)
    found = {}
    for task in tasks:
        rows = {m.seed: [m.row(task, p or largest(models, task), method) for p, method in (one, other)] for m in models}
        change = estimate({seed: a["entropy"] - b["entropy"] for seed, (a, b) in rows.items()})
        found[task] = None if change is None else Summary(change)
    return _by_task(results, models, found, dict.fromkeys(tasks, "nats"))


def entropy_with_segments(results: Results, tasks: list[str]) -> Measurement:
    """Entropy of the query's attention at the largest P minus that with full attention, over seeds."""
    return _entropy_change(results, tasks, (None, "naive"), (1, "naive"))


def entropy_with_remedy(results: Results, method: str, tasks: list[str]) -> Measurement:
    """Entropy of the query's attention at the largest P with a remedy (sink, select, both) minus without, over
    seeds."""
    return _entropy_change(results, tasks, (None, method), (None, "naive"))


def loss_with_remedy(results: Results, method: str, tasks: list[str]) -> Measurement:
    """What is lost at the largest P with a remedy (sink, select, both) minus without, over seeds (over episodes where
    the seeds agree)."""
    models, missing = _models(results, tasks, method)
    if missing:
        return _measurement(results, models, missing=missing)
    found = {}
    for task in tasks:
        p = largest(models, task)
        found[task] = lost({m.seed: (m.row(task, p, method), m.row(task, p, "naive")) for m in models})
    return _by_task(results, models, found, {task: _unit(task) for task in tasks})


def correlation_with_loss(results: Results, tasks: list[str]) -> Measurement:
    """Pearson's r over P of entropy with what is lost, of the curves averaged over seeds, with Fisher's interval."""
    models, missing = _models(results, tasks)
    if missing:
        return _measurement(results, models, missing=missing)
    found = {task: mean_correlation(models, task) for task in tasks}
    text = ", ".join(f"{task} {correlation_text(c)}" for task, c in found.items())
    points = f"points: {', '.join(f'{task} {c.points}' for task, c in found.items())}"
    effects = {task: Estimate(math.nan if c.r is None else c.r, c.low, c.high, ()) for task, c in found.items()}
    return _measurement(results, models, text, points, effects=effects)


def difference_between_sinks(results: Results, tasks: list[str]) -> Measurement:
    """Largest difference in what is lost between shared prefixes at the largest P, in per cent of the loss without one
    for `lm` and in points for others. Only for tasks in which, within two seeds or more, some prefix changes the score
    by more than the sampling error."""
    models, missing = _models(results, tasks, "sink")
    if missing:
        return _measurement(results, models, missing=missing)
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
    text = ", ".join(f"{task} {value:.1f} {'%' if task == 'lm' else 'points'}" for task, value in counting.items())
    changed = f"a prefix changes the score beyond sampling error: {', '.join(unseen)}" if unseen else ""
    missing = "" if counting else "no task in which a prefix changes the score in two seeds"
    effects = {task: exact(value) for task, value in counting.items()}
    return _measurement(results, models, text, changed, *seen, effects=effects, missing=missing)


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows' scores differ by more than the root of the sum of their squared 95 % half-widths."""
    if any(row[end] is None for row in (one, other) for end in ("low", "high")):
        return False
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (one, other)))
    return abs(one["score"] - other["score"]) > half


def size_of_first_keys(results: Results, tasks: list[str]) -> Measurement:
    """Norm of the keys of the first tokens of segments 2 to P, at the largest P, over that of the same tokens in full
    attention, minus 1; mean over layers but the first, whose keys depend on their token alone."""
    models, missing = _models(results, tasks)
    if missing:
        return _measurement(results, models, missing=missing)
    ratios = {task: {m.seed: _key_ratio(m, task, largest(models, task), "first") for m in models} for task in tasks}
    if any(ratio is None for seeds in ratios.values() for ratio in seeds.values()):
        missing = "norms of the same tokens in segments and in full attention not measured yet: make parallel"
        return _measurement(results, models, missing=missing)
    changes = {task: estimate({s: ratio - 1 for s, ratio in seeds.items()}) for task, seeds in ratios.items()}
    later = {task: [_key_ratio(m, task, largest(models, task), "later") for m in models] for task in tasks}
    shown = [f"{task} {sum(v) / len(v):.3f}" for task, v in later.items() if None not in v]
    found = {task: one and Summary(one) for task, one in changes.items()}
    note = f"ratio of all other tokens: {', '.join(shown) or 'none'}"
    return _by_task(results, models, found, dict.fromkeys(tasks, ""), note)


def _key_ratio(model: Measured, task: str, p: int, kind: str) -> float | None:
    """Mean over layers but the first: key norm in segments over that in full attention; None if not measured."""
    keys = ((model.row(task, p, "naive") or {}).get("same_tokens") or {}).get("keys")
    if keys is None or keys[kind] is None or len(keys[kind]) < 2:
        return None
    ratios = [apart / whole for apart, whole in zip(keys[kind][1:], keys[f"{kind}_full"][1:], strict=True)]
    return sum(ratios) / len(ratios)


def best_k(results: Results) -> Measurement:
    """How much larger the K of selective attention with the best mean over seeds is in classification and in retrieved
    passages than in key-value retrieval."""
    tasks = ("icl", "rag", "synthetic")
    models, missing = _models(results, tasks, "select")
    if missing:
        return _measurement(results, models, missing=missing)
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
    text = ", ".join(f"{task} K={' or '.join(map(str, ks))}" for task, ks in alike.items())
    effects = {task: exact(float(best[task] - best["synthetic"])) for task in ("icl", "rag")}
    return _measurement(results, models, text, *shown, effects=effects)


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
