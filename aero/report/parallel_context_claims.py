"""Tests of the claims of `parallel_context`.

By the common rules of `decisions`: an interval needs two seeds of the model trained here, and an effect that is absent
or opposite at this scale is not seen, not contradicted. A context in one segment is full attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from aero.published import Paper
from aero.report.decisions import PUBLISHED_ONLY, Decision, Verdict, claim_test
from aero.report.parallel_context import (
    METHODS,
    Measured,
    by_seed,
    correlation_text,
    costs,
    loss_of,
    mean_correlation,
    own_models,
)
from aero.report.results import Results
from aero.report.statistics import Estimate, difference, estimate, share

_SEEN_HERE = "not seen at this scale"


def _largest(models: Sequence[Measured], task: str) -> int:
    return max(models[0].segments(task))


def _evidence(models: Sequence[Measured], *more: str) -> str:
    seeds = ", ".join(str(m.seed) for m in models)
    solved = sum(bool(m.values["solves_retrieval"]) for m in models)
    model = f"rotary decoder trained here, seeds {seeds}; {solved} of {len(models)} solve retrieval with full attention"
    return "; ".join([model, *more])


def _undecided(rule: str, results: Results, models: Sequence[Measured]) -> Decision | None:
    """The decision where there is nothing, or one seed; None if a test can go on."""
    if len(models) >= 2:
        return None
    reason = "not run yet: make parallel" if not models else f"one seed ({models[0].seed}): no interval, so no verdict"
    scale = results.scale if not models else models[0].values["scale"]
    return Decision(rule, "", scale, "not testable here", reason)


def _direction(found: Estimate | None, sign: int) -> Verdict:
    if found is None or found.excludes(0.0) != sign:
        return _SEEN_HERE
    return "direction reproduced"


@claim_test
def degrades_with_segments(results: Results, paper: Paper, task: str) -> Decision:
    """A task is done worse with its context in segments."""
    rule = "what is lost at the largest P minus full attention, over seeds: the 95 % interval lies above 0"
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    p = _largest(models, task)
    lost = {m.seed: loss_of(m.row(task, p, "naive")) - loss_of(m.row(task, 1, "naive")) for m in models}
    found = estimate(lost)
    unit = "nats" if task == "lm" else "points"
    table = paper.tables["main"]
    rows = [f"P={n}: {_mean(by_seed(models, task, n, 'naive')):.2f}" for n in models[0].segments(task)]
    return Decision(
        rule,
        f"{found.text(3 if task == 'lm' else 1, unit)} at P={p}",
        models[0].values["scale"],
        _direction(found, 1),
        _evidence(models, "; ".join(rows), f"published at P=64: {table.row('P=64').cells[task].text}"),
    )


@claim_test
def entropy_rises(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """The query's attention is more dispersed with segments than without, in every task."""
    rule = "entropy at the largest P minus full attention, over seeds: above 0 in every task"
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    found = {}
    for task in tasks:
        high, base = (by_seed(models, task, p, "naive", "entropy") for p in (_largest(models, task), 1))
        found[task] = estimate(difference(high, base))
    return _all_of(rule, found, 1, "nats", models)


@claim_test
def correlation(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """Entropy and what is lost go together over degrees of parallelism."""
    published = paper.facts["correlation"]["r"]
    rule = (
        f"Pearson's r over P of the curves averaged over seeds: reproduced if Fisher's interval holds {published} in"
        " every task, direction reproduced if it excludes 0 in every task"
    )
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    found = {task: mean_correlation(models, task) for task in tasks}
    sure = [c.low is not None and c.low > 0 for c in found.values()]
    holds = [c.low is not None and c.low <= published <= c.high for c in found.values()]
    verdict: Verdict = "reproduced" if all(sure) and all(holds) else "direction reproduced" if all(sure) else _SEEN_HERE
    measured = ", ".join(f"{task} {correlation_text(c)}" for task, c in found.items())
    points = ", ".join(f"{task} {c.points}" for task, c in found.items())
    return Decision(rule, measured, models[0].values["scale"], verdict, _evidence(models, f"points: {points}"))


@claim_test
def remedy_lowers_entropy(results: Results, paper: Paper, method: str, tasks: list[str]) -> Decision:
    """A remedy lowers the entropy of the query's attention at the largest P."""
    rule = f"entropy at the largest P with {METHODS[method]} minus without, over seeds: below 0 in every task"
    return _remedy(rule, results, method, tasks, "entropy", -1, "nats", lambda row: row["entropy"])


@claim_test
def remedy_helps(results: Results, paper: Paper, method: str, tasks: list[str]) -> Decision:
    """A remedy wins back performance at the largest P."""
    rule = (
        f"what is lost at the largest P with {METHODS[method]} minus without, over seeds: below 0 in every task named"
    )
    return _remedy(rule, results, method, tasks, "score", -1, "nats or points", loss_of)


def _remedy(
    rule: str,
    results: Results,
    method: str,
    tasks: list[str],
    what: str,
    sign: int,
    unit: str,
    value: Callable[[dict[str, Any]], float],
) -> Decision:
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    found = {}
    for task in tasks:
        p = _largest(models, task)
        rows = {m.seed: (m.row(task, p, method), m.row(task, p, "naive")) for m in models}
        found[task] = estimate({seed: value(a) - value(b) for seed, (a, b) in rows.items() if a and b})
    return _all_of(rule, found, sign, unit, models)


@claim_test
def sink_content_is_indifferent(results: Results, paper: Paper, points: float) -> Decision:
    """What the shared prefix says makes no difference."""
    rule = (
        "the largest difference in what is lost between shared prefixes, mean over seeds, at the largest P: reproduced"
        f" if at most {points} % of the loss without remedy in language modelling and {points} points in others"
    )
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    sinks = sorted({row["sink"] for m in models for row in m.values["rows"] if row["sink"]})
    spreads = {}
    for task in sorted({row["task"] for row in models[0].values["rows"]}):
        p = _largest(models, task)
        means = []
        for sink in sinks:
            rows = [row for m in models if (row := m.exact(task, p, sink, None, None))]
            means.append(_mean({i: loss_of(row) for i, row in enumerate(rows)}))
        naive = _mean({m.seed: loss_of(m.row(task, p, "naive")) for m in models})
        spreads[task] = (max(means) - min(means)) * (100 / naive if task == "lm" else 1)
    measured = ", ".join(f"{task} {value:.1f}{' %' if task == 'lm' else ''}" for task, value in spreads.items())
    verdict: Verdict = "reproduced" if max(spreads.values()) <= points else _SEEN_HERE
    return Decision(
        rule, measured, models[0].values["scale"], verdict, _evidence(models, f"prefixes: {', '.join(sinks)}")
    )


@claim_test
def first_keys_are_smaller(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """Segments' first tokens have smaller keys than later tokens."""
    rule = (
        "norm of the keys of segments' first tokens over that of later tokens at the largest P, mean over layers, minus"
        " 1, over seeds: below 0 in every task"
    )
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    found = {task: estimate({m.seed: _first_ratio(m, task, "naive") - 1 for m in models}) for task in tasks}
    sink = ", ".join(f"{t} {_mean({m.seed: _first_ratio(m, t, 'sink') for m in models}):.2f}" for t in tasks)
    return _all_of(rule, found, -1, "", models, f"ratio with a shared sink: {sink}")


def _first_ratio(model: Measured, task: str, method: str) -> float:
    """Over layers: key norm of segments' first tokens over that of later ones, at the largest P that has later ones."""
    for p in reversed(model.segments(task)):
        norms = model.row(task, p, method)["key_norms"]
        if norms["later"] is not None:
            ratios = [a / b for a, b in zip(norms["segment_first"], norms["later"], strict=True)]
            return sum(ratios) / len(ratios)
    raise ValueError(f"{model.path}: no segment of {task} has more than one token")


@claim_test
def retrieval_prefers_fewer(results: Results, paper: Paper) -> Decision:
    """The best K of key-value retrieval is smaller than that of classification and of retrieved passages."""
    rule = "the K with the best mean over seeds: that of key-value retrieval below both others"
    models = own_models(results)
    if (undecided := _undecided(rule, results, models)) is not None:
        return undecided
    best, shown = {}, []
    for task in ("icl", "rag", "synthetic"):
        aggregation = models[0].values["selection"]["aggregation"][task]
        p = _largest(models, task)
        ks = sorted({row["top_k"] for row in models[0].values["rows"] if row["task"] == task and row["top_k"]})
        found = {k: [m.exact(task, p, None, k, aggregation) for m in models] for k in ks}
        means = {
            k: _mean({i: row["score"] for i, row in enumerate(rows) if row}) for k, rows in found.items() if all(rows)
        }
        best[task] = max(means, key=lambda k: (means[k], -k))
        shown.append(f"{task}: " + ", ".join(f"K={k} {value:.1f}" for k, value in means.items()))
    verdict: Verdict = "direction reproduced" if best["synthetic"] < min(best["icl"], best["rag"]) else _SEEN_HERE
    measured = ", ".join(f"{task} K={k}" for task, k in best.items())
    return Decision(rule, measured, models[0].values["scale"], verdict, _evidence(models, *shown))


@claim_test
def costs_a_share(results: Results, paper: Paper, factor: float) -> Decision:
    """Encoding in P segments costs about 1/P."""
    rule = (
        f"time of encoding at the largest P over full attention: reproduced if within a factor {factor:g} of 1/P,"
        " contradicted if not; the number of query-key pairs beside it"
    )
    found = costs(results)
    if found is None:
        return Decision(rule, "", results.scale, "not testable here", "not measured yet: make parallel")
    rows = found.values["rows"]
    full = next(row for row in rows if row["way"] == "full")
    last = max((row for row in rows if row["way"] == "segments"), key=lambda row: row["segments"])
    ratio, share_of_pairs = last["cpu_s"] / full["cpu_s"], last["attention_pairs"] / full["attention_pairs"]
    verdict: Verdict = "reproduced" if ratio <= factor / last["segments"] else "contradicted"
    p = last["segments"]
    return Decision(
        rule,
        f"time {ratio:.2f}, query-key pairs {share_of_pairs:.4f} at P={p} (1/P = {1 / p:.4f})",
        found.values["scale"],
        verdict,
        f"{found.path}: {full['tokens']} tokens, d={found.values['model']['width']}, one thread; projections and"
        " feed-forward networks cost the same whatever P",
    )


@claim_test
def default_k_of_the_ablation(results: Results, paper: Paper) -> Decision:
    """The ablation's rows at default K and default aggregation are one setting and must agree."""
    table, default = paper.tables["ablation"], paper.facts["selection"]["top_k"]
    by_k = table.row(f"TopK={default}").cells
    by_aggregation = table.row("Aggr.=HT").cells
    differ = [key for key in by_k if by_k[key].value != by_aggregation[key].value]
    same_as = {
        key: [row.name for row in table.rows if row.group == "K" and row.cells[key].value == by_aggregation[key].value]
        for key in differ
    }
    return Decision(
        f"the rows TopK={default} and Aggr.=HT equal in every column; contradicted if not",
        "; ".join(f"{key}: {by_k[key].text} and {by_aggregation[key].text}" for key in differ) or "equal",
        PUBLISHED_ONLY,
        "contradicted" if differ else "reproduced",
        "; ".join(f"{key}: Aggr.=HT is what {', '.join(names) or 'no row'} has" for key, names in same_as.items()),
    )


def _all_of(
    rule: str, found: dict[str, Estimate | None], sign: int, unit: str, models: Sequence[Measured], *more: str
) -> Decision:
    """Reproduced in direction if every task's interval lies on that side of 0."""
    held = [one is not None and one.excludes(0.0) == sign for one in found.values()]
    measured = ", ".join(f"{task} {one.text(3, unit) if one else 'not measured'}" for task, one in found.items())
    verdict: Verdict = "direction reproduced" if all(held) else _SEEN_HERE
    holding = f"holds in {sum(held)} of {len(held)} tasks ({share(held):.0%})"
    return Decision(rule, measured, models[0].values["scale"], verdict, _evidence(models, holding, *more))


def _mean(values: dict[Any, float]) -> float:
    return math.fsum(values.values()) / len(values) if values else math.nan
