"""Tests of the claims of `parallel_context`.

By the common rules of `decisions`: an interval needs two seeds of the model trained here, and an effect that is absent
or opposite at this scale is not seen, not contradicted. A context in one segment is full attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aero.published import Paper
from aero.report.decisions import PUBLISHED_ONLY, Decision, Verdict, claim_test
from aero.report.parallel_context import (
    METHODS,
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
from aero.report.statistics import estimate, share

_SEEN_HERE = "not seen at this scale"
_UNITS = {"lm": "nats"}
"""Of what is lost; every other task's are points of per cent."""


def _at(models: Sequence[Measured], task: str) -> int:
    """The largest P of a task that was measured."""
    p = largest(models, task)
    assert p is not None, f"{task}: `_models` lets none through"
    return p


def _evidence(models: Sequence[Measured], *more: str) -> str:
    seeds = ", ".join(str(m.seed) for m in models)
    solved = sum(bool(m.values["solves_retrieval"]) for m in models)
    model = f"rotary decoder trained here, seeds {seeds}; {solved} of {len(models)} solve retrieval with full attention"
    return "; ".join([model, *(text for text in more if text)])


def _models(rule: str, results: Results, tasks: Sequence[str], *methods: str) -> tuple[list[Measured], Decision | None]:
    """The models that were measured on all `tasks`, with full attention and at the largest P without a remedy and by
    `methods`; and the decision where fewer than two were, None if a test can go on."""
    found = own_models(results)
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
        return models, None
    scale = found[0].values["scale"] if found else results.scale
    if not found:
        reason = "not run yet: make parallel"
    elif lacking:
        reason = f"not measured: {'; '.join(lacking.values())}; make parallel measures all"
    else:
        reason = f"one seed ({models[0].seed}): no interval, so no verdict"
    return models, Decision(rule, "", scale, "not testable here", reason)


def _direction(found: Summary | None, sign: int) -> Verdict:
    if found is None or found.estimate.excludes(0.0) != sign:
        return _SEEN_HERE
    return "direction reproduced"


def _changes(models: Sequence[Measured], task: str, one: tuple[int, str], other: tuple[int, str]) -> Summary | None:
    """What is lost at one (P, remedy) more than at the other."""
    return lost({m.seed: (m.row(task, *one), m.row(task, *other)) for m in models})


def _entropies(models: Sequence[Measured], task: str, one: tuple[int, str], other: tuple[int, str]) -> Summary | None:
    rows = {m.seed: (m.row(task, *one), m.row(task, *other)) for m in models}
    found = estimate({seed: a["entropy"] - b["entropy"] for seed, (a, b) in rows.items()})
    return None if found is None else Summary(found)


@claim_test
def degrades_with_segments(results: Results, paper: Paper, task: str) -> Decision:
    """A task is done worse with its context in segments."""
    rule = (
        "what is lost at the largest P minus full attention, over seeds (over episodes where the seeds agree): the 95 %"
        " interval lies above 0"
    )
    models, undecided = _models(rule, results, [task])
    if undecided:
        return undecided
    p = _at(models, task)
    found = _changes(models, task, (p, "naive"), (1, "naive"))
    unit = _UNITS.get(task, "points")
    table = paper.tables["main"]
    rows = [f"P={n}: {_mean(by_seed(models, task, n, 'naive')):.2f}" for n in models[0].segments(task)]
    return Decision(
        rule,
        f"{_digits(found, unit)} at P={p}",
        models[0].values["scale"],
        _direction(found, 1),
        _evidence(models, "; ".join(rows), f"published at P=64: {table.row('P=64').cells[task].text}"),
    )


@claim_test
def entropy_rises(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """The query's attention is more dispersed with segments than without, in every task."""
    rule = "entropy at the largest P minus full attention, over seeds: above 0 in every task"
    models, undecided = _models(rule, results, tasks)
    if undecided:
        return undecided
    found = {task: _entropies(models, task, (_at(models, task), "naive"), (1, "naive")) for task in tasks}
    return _all_of(rule, found, 1, dict.fromkeys(tasks, "nats"), models)


@claim_test
def correlation(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """Entropy and what is lost go together over degrees of parallelism."""
    published = paper.facts["correlation"]["r"]
    rule = (
        f"Pearson's r over P of the curves averaged over seeds: reproduced if Fisher's interval holds {published} in"
        " every task, direction reproduced if it excludes 0 in every task"
    )
    models, undecided = _models(rule, results, tasks)
    if undecided:
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
    return _remedy(rule, results, method, tasks, _entropies, dict.fromkeys(tasks, "nats"))


@claim_test
def remedy_helps(results: Results, paper: Paper, method: str, tasks: list[str]) -> Decision:
    """A remedy wins back performance at the largest P."""
    rule = (
        f"what is lost at the largest P with {METHODS[method]} minus without, over seeds (over episodes where the seeds"
        " agree): below 0 in every task named"
    )
    return _remedy(rule, results, method, tasks, _changes, {task: _UNITS.get(task, "points") for task in tasks})


def _remedy(
    rule: str,
    results: Results,
    method: str,
    tasks: list[str],
    compare: Callable[..., Summary | None],
    units: Mapping[str, str],
) -> Decision:
    models, undecided = _models(rule, results, tasks, method)
    if undecided:
        return undecided
    found = {task: compare(models, task, (p := _at(models, task), method), (p, "naive")) for task in tasks}
    return _all_of(rule, found, -1, units, models)


@claim_test
def sink_content_is_indifferent(results: Results, paper: Paper, tasks: list[str], points: float) -> Decision:
    """What the shared prefix says makes no difference, where having one makes a difference."""
    rule = (
        "a task counts if, within two seeds or more, the score with some prefix differs from that without by more than"
        " the sampling error (the two rows' 95 % half-widths, root of the sum of squares); none counts: not testable."
        " In each such seed the largest difference in what is lost between prefixes at the largest P: reproduced if at"
        f" most {points} % of the loss without remedy in language modelling and {points} points in others"
    )
    models, undecided = _models(rule, results, tasks, "sink")
    if undecided:
        return undecided
    counting, seen, unseen = {}, [], []
    for task in tasks:
        p = _at(models, task)
        spreads = {}
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
    measured = ", ".join(f"{t} {value:.1f} {'%' if t == 'lm' else 'points'}" for t, value in counting.items())
    verdict: Verdict = "not testable here"
    if counting:
        verdict = "reproduced" if max(counting.values()) <= points else _SEEN_HERE
    changed = f"a prefix changes the score beyond sampling error: {', '.join(unseen)}" if unseen else ""
    evidence = _evidence(models, changed, *seen)
    return Decision(rule, measured, models[0].values["scale"], verdict, evidence)


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows' scores differ by more than the root of the sum of their squared 95 % half-widths."""
    if any(row[end] is None for row in (one, other) for end in ("low", "high")):
        return False
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (one, other)))
    return abs(one["score"] - other["score"]) > half


@claim_test
def first_keys_are_smaller(results: Results, paper: Paper, tasks: list[str]) -> Decision:
    """Keys of segments' first tokens are smaller than those of the same tokens in full attention."""
    rule = (
        "norm of the keys of the first tokens of segments 2 to P, at the largest P, over that of the same tokens in"
        " full attention, mean over layers but the first (whose keys know nothing but their token), minus 1, over"
        " seeds: below 0 in every task"
    )
    models, undecided = _models(rule, results, tasks)
    if undecided:
        return undecided
    ratios = {task: {m.seed: _same_ratio(m, task, _at(models, task), "first") for m in models} for task in tasks}
    if any(ratio is None for seeds in ratios.values() for ratio in seeds.values()):
        files = ", ".join(m.path for m in models if any(ratios[task][m.seed] is None for task in tasks))
        reason = (
            "not measured yet: norms of the same tokens in segments and in full attention, in more than one layer, are"
            f" not in {files}; make parallel measures them. Norms of first against later tokens, which are there,"
            " compare kinds of token and decide nothing"
        )
        return Decision(rule, "", models[0].values["scale"], "not testable here", reason)
    found = {}
    for task in tasks:
        one = estimate({seed: ratio - 1 for seed, ratio in ratios[task].items()})
        found[task] = None if one is None else Summary(one)
    later = {t: {m.seed: _same_ratio(m, t, _at(models, t), "later") for m in models} for t in tasks}
    shown = [f"{t} {_mean(v):.3f}" for t, v in later.items() if all(ratio is not None for ratio in v.values())]
    units = dict.fromkeys(tasks, "of 1")
    return _all_of(rule, found, -1, units, models, f"ratio of all other tokens: {', '.join(shown) or 'none'}")


def _same_ratio(model: Measured, task: str, p: int, kind: str) -> float | None:
    """Mean over layers but the first: key norm in segments over that in full attention; None if it was not measured."""
    row = model.row(task, p, "naive")
    same = ((row or {}).get("same_tokens") or {}).get("keys")
    if same is None or same[kind] is None or len(same[kind]) < 2:
        return None
    ratios = [apart / whole for apart, whole in zip(same[kind][1:], same[f"{kind}_full"][1:], strict=True)]
    return sum(ratios) / len(ratios)


@claim_test
def retrieval_prefers_fewer(results: Results, paper: Paper) -> Decision:
    """The best K of key-value retrieval is smaller than that of classification and of retrieved passages."""
    rule = "the K with the best mean over seeds: that of key-value retrieval below both others"
    models, undecided = _models(rule, results, ("icl", "rag", "synthetic"), "select")
    if undecided:
        return undecided
    best, alike, shown = {}, {}, []
    for task in ("icl", "rag", "synthetic"):
        aggregation = models[0].values["selection"]["aggregation"][task]
        p = _at(models, task)
        ks = sorted({row["top_k"] for row in models[0].values["rows"] if row["task"] == task and row["top_k"]})
        found = {k: [m.exact(task, p, None, k, aggregation) for m in models] for k in ks}
        means = {
            k: _mean({i: row["score"] for i, row in enumerate(rows) if row}) for k, rows in found.items() if all(rows)
        }
        best[task] = max(means, key=lambda k: (means[k], -k))
        alike[task] = [k for k in ks if means.get(k) == means[best[task]]]
        shown.append(f"{task}: " + ", ".join(f"K={k} {value:.1f}" for k, value in means.items()))
    verdict: Verdict = "direction reproduced" if best["synthetic"] < min(best["icl"], best["rag"]) else _SEEN_HERE
    measured = ", ".join(f"{task} K={' or '.join(map(str, ks))}" for task, ks in alike.items())
    return Decision(rule, measured, models[0].values["scale"], verdict, _evidence(models, *shown))


@claim_test
def costs_a_share(results: Results, paper: Paper, percent: float) -> Decision:
    """Encoding in P segments costs about 1/P of the query-key pairs, which is what the paper counts."""
    rule = (
        "query-key pairs of the encoded context over those of full attention, which is the count the claim rests on:"
        f" reproduced if within {percent:g} % of 1/P at every P, contradicted if not; time and memory, as measured,"
        " beside it"
    )
    found = costs(results)
    rows = found.values["rows"] if found else []
    full = next((row for row in rows if row["way"] == "full"), None)
    parts = sorted((row for row in rows if row["way"] == "segments"), key=lambda row: row["segments"])
    if found is None or full is None or not parts:
        return Decision(rule, "", results.scale, "not testable here", "not measured yet: make parallel")
    pairs = {row["segments"]: row["attention_pairs"] / full["attention_pairs"] for row in parts}
    held = all(abs(ratio * p - 1) <= percent / 100 for p, ratio in pairs.items())
    last, model = parts[-1], found.values["model"]
    p = last["segments"]
    memory = ""
    if full["peak_bytes"] and last["peak_bytes"]:
        memory = f", memory {last['peak_bytes'] / full['peak_bytes']:.2f}"
    return Decision(
        rule,
        f"query-key pairs {pairs[p]:.4f} at P={p} (1/P = {1 / p:.4f}); measured: time"
        f" {last['cpu_s'] / full['cpu_s']:.2f}{memory} of full attention's",
        found.values["scale"],
        "reproduced" if held else "contradicted",
        f"{found.path}: {full['tokens']} tokens, d={model['width']}, one thread; projections and feed-forward networks"
        f" cost the same whatever P, so by multiplications time cannot fall below {_least_time(full, last, model):.2f}",
    )


def _least_time(full: dict[str, Any], last: dict[str, Any], model: dict[str, Any]) -> float:
    """Multiplications of a layer at `last` over those of full attention: 12 d^2 a token, and 2 d a query-key pair."""
    linear = 12 * model["width"] ** 2 * full["tokens"]
    one, whole = (linear + 2 * model["width"] * row["attention_pairs"] for row in (last, full))
    return one / whole


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
    rule: str,
    found: dict[str, Summary | None],
    sign: int,
    units: Mapping[str, str],
    models: Sequence[Measured],
    *more: str,
) -> Decision:
    """Reproduced in direction if every task's interval lies on that side of 0; those on the other side are named."""
    sides = {task: 0 if one is None else one.estimate.excludes(0.0) for task, one in found.items()}
    held = [side == sign for side in sides.values()]
    measured = ", ".join(
        f"{task} {_digits(one, units[task]) if one else 'not measured'}" for task, one in found.items()
    )
    verdict: Verdict = "direction reproduced" if all(held) else _SEEN_HERE
    holding = f"holds in {sum(held)} of {len(held)} tasks ({share(held):.0%})"
    opposite = [task for task, side in sides.items() if side == -sign]
    against = f"the opposite, the interval on the other side of 0: {', '.join(opposite)}" if opposite else ""
    return Decision(rule, measured, models[0].values["scale"], verdict, _evidence(models, holding, against, *more))


def _digits(found: Summary, unit: str) -> str:
    return found.text(1 if unit == "points" else 3, "" if unit == "of 1" else unit, "over episodes")


def _mean(values: dict[Any, float]) -> float:
    return math.fsum(values.values()) / len(values) if values else math.nan
