"""Means over seeds with t-intervals; perplexities compared by the rules of results/desk/predictions.yaml.

`change` is the paired difference of two rows, `gate` says whether the control of a row is good enough for any verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev, variance
from typing import Any

from scipy.special import stdtrit

from aero.errors import yaml_file
from aero.records import read_csv
from aero.report.results import Results, Run

CONFIDENCE = 0.95
Z = 1.959963984540054
"""The normal distribution's quantile of 0.975."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `seeds` with its 95 % t-interval; `low` and `high` are None for a single seed, which has none."""

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    def excludes(self, value: float = 0.0) -> int:
        """+1 if the whole interval lies above `value`, -1 if below, 0 if it contains it or there is no interval."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > value else -1 if self.high < value else 0

    def contains(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def text(self, digits: int = 2, unit: str = "", signed: bool = False) -> str:
        """ "3.21 [3.10, 3.32]", without the interval for one seed."""
        values = (self.mean, self.low, self.high) if self.has_interval else (self.mean,)
        mean, *ends = (f"{value:+z.{digits}f}" if signed else f"{value:.{digits}f}" for value in values)
        return mean + (f" [{', '.join(ends)}]" if ends else "") + (f" {unit}" if unit else "")


def estimate(values: Mapping[int, float]) -> Estimate | None:
    """Mean and t-interval of one value a seed; None if there is no finite value.

    The interval is mean ± t(n-1, 0.975) · s / sqrt(n) with the sample standard deviation s.
    """
    finite = {seed: value for seed, value in sorted(values.items()) if value is not None and math.isfinite(value)}
    return interval(finite, 0.0, 0) if finite else None


def interval(values: Mapping[int, float], deviation: float, freedom: int) -> Estimate:
    """Mean of one value a seed, with the 95 % t-interval by a standard deviation of so many degrees of freedom; with 0
    degrees by that of the values themselves. One value has no interval."""
    mean = fmean(values.values())
    if len(values) == 1:
        return Estimate(mean, None, None, tuple(values))
    if not freedom:
        deviation, freedom = stdev(values.values()), len(values) - 1
    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, tuple(values))


def wilson(mean: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a fraction `mean` of `count` trials."""
    square = Z**2
    centre = (mean + square / (2 * count)) / (1 + square / count)
    half = Z * math.sqrt(mean * (1 - mean) / count + square / (4 * count**2)) / (1 + square / count)
    return centre - half, centre + half


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """value - base for every seed both have."""
    return {seed: values[seed] - base[seed] for seed in sorted(values) if seed in base}


CONTROL = "SM+LN+G"


def evidence(results: Results, *runs: str) -> Results:
    """The same results, seen from scale desk if all the runs (default: the baseline) are trained there."""
    return results.at("desk") if all(results.seeds(run, "desk") for run in runs or ("sm-ln-g",)) else results


# n-gram models of the same tokens -------------------------------------------------------------------------------------


@cache
def ngrams(results: Results, scale: str, tokens: int, corpus: str | None = None) -> dict[int, float]:
    """Perplexity by order of the n-gram models of the text that a training on so many tokens reads; empty if none was
    counted.

    Repeated text is counted once, so trainings of several passes share the models of the longest text. corpus: the hash
    that the counted corpus must have, if given.
    """
    lines = read_csv(results.root / "results" / scale / "ngrams.csv")
    lines = [line for line in lines if corpus in (None, line["corpus_sha256"])]
    counts = sorted({int(line["tokens"]) for line in lines})
    text = next((count for count in counts if count >= tokens), max(counts, default=0))
    return {int(line["order"]): float(line["perplexity"]) for line in lines if int(line["tokens"]) == text}


def _ngrams_of(results: Results, run: Run) -> dict[int, float]:
    corpus = str(run.provenance.get("corpus_sha256", ""))
    return ngrams(results, run.scale, int(run.metrics.get("tokens") or 0), corpus)


# Failed trainings and the gate ----------------------------------------------------------------------------------------


def failed(results: Results, run: Run) -> bool:
    """Whether a loss or gradient was not finite, or the bigram model of the same tokens has a lower perplexity."""
    bigrams = _ngrams_of(results, run).get(2, math.inf)
    return run.diverged or not run.perplexity <= bigrams


def outcomes(results: Results, run: str) -> dict[int, list[bool]]:
    """By seed, which trainings of a run failed: first the kept one, then attempts in whose place it is kept."""
    found = {one.seed: [failed(results, one)] for one in results.seeds(run)}
    for one in read_csv(results.root / "results/gpu/attempts.csv"):
        if (one["scale"], one["run"]) == (results.scale, run) and one["failed"]:
            found.setdefault(int(one["seed"]), []).append(one["failed"] == "1")
    return found


def seed_count(results: Results, run: str) -> str:
    """How many seeds of a run trained, and how many trainings failed, with those not kept: "2 (1 of 3 failed)"."""
    seeds, every = len(trained(results, run)), sum(outcomes(results, run).values(), [])
    return f"{seeds} ({sum(every)} of {len(every)} failed)" if any(every) else str(seeds)


def trained(results: Results, run: str) -> dict[int, float]:
    """Evaluation perplexity by seed, failed trainings left out."""
    return {one.seed: one.perplexity for one in results.seeds(run) if not failed(results, one)}


def control(results: Results, run: str) -> str | None:
    """The run that a run's verdicts rest on: SM+LN+G with the same model, context and budget."""
    runs = results.parameters.runs
    own = runs[run]
    wanted = (CONTROL, own.model, own.context, own.budget)
    same = [name for name, one in runs.items() if (one.architecture, one.model, one.context, one.budget) == wanted]
    return next((name for name in same if runs[name].overrides == own.overrides), same[0] if same else None)


def gate_values(results: Results, control: str) -> tuple[float, float, float] | None:
    """Of a control, means over seeds: perplexity, that of the best n-gram model of its tokens, and the share of heads
    in the middle half of the entropy range. None if it was not trained, or no n-gram models were counted."""
    seeds = results.seeds(control)
    best = min(_ngrams_of(results, seeds[0]).values(), default=None) if seeds else None
    if best is None:
        return None
    heads = results.share_of_heads(control, (1, 2), "causal_bound")
    return fmean(one.perplexity for one in seeds), best, fmean(heads.values()) if heads else 0.0


def gate(results: Results, run: str) -> str:
    """Why the control of a run fails the gate at the results' scale; "" if it passes: with a perplexity below 95 % of
    the best n-gram model's, and half of its heads in the middle half of the entropy range."""
    name = control(results, run)
    if not name or not results.seeds(name):
        return f"the control of {run} ({name or CONTROL}) has not been trained"
    if (found := gate_values(results, name)) is None:
        return f"no n-gram models of the tokens of {name} have been counted at scale {results.scale}"
    perplexity, best, heads = found
    if perplexity < 0.95 * best and heads >= 0.5:
        return ""
    return (
        f"the control {name} fails the gate at scale {results.scale}: perplexity {perplexity:.2f}, "
        f"n-grams of the same tokens {best:.2f}; {heads:.0%} of its heads in the middle half of the entropy range"
    )


# Paired differences ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Perplexity of a run over that of another, minus 1, in per cent.

    estimate: None, and a note that says why, if there is none. failed: whether every training of the run failed.
    """

    estimate: Estimate | None
    note: str
    failed: bool = False


def change(results: Results, run: str, base: str, base_name: str = "") -> Change:
    """Perplexity of `run` over that of `base`, over the seeds of which neither failed; not across corpora.

    The mean is of log ratios, the interval by their pooled standard deviation. base_name: for notes.
    """
    own, other = results.seeds(run), results.seeds(base)
    base_name = base_name or base
    if not own or not other:
        return Change(None, f"{base_name} not run yet" if own else "not run yet")
    corpora = {one.provenance.get("corpus_sha256") for one in (*own, *other)}
    if len(corpora) > 1:
        unknown = "not every training says which corpus it had"
        return Change(None, f"{unknown if None in corpora else f'another corpus than {base_name}'}: not comparable")
    logs = log_ratios(results, run, base)
    notes = []
    for name, runs, others in ((f"{run} ", own, other), (f"{base_name} ", other, own)):
        notes += [f"{name}seed {one.seed} diverged at step {one.diverged_at}" for one in runs if one.diverged]
        worse = [str(one.seed) for one in runs if not one.diverged and failed(results, one)]
        lacking = sorted({one.seed for one in others} - {one.seed for one in runs})
        for which, what in ((worse, "did worse than bigrams"), (lacking, "not run")):
            notes += [f"{name}seed {', '.join(map(str, which))} {what}"] if which else []
    if len(logs) == 1:
        notes.append(f"one seed ({next(iter(logs))}), no interval")
    note, all_failed = "; ".join(notes), all(failed(results, one) for one in own)
    if not logs:
        return Change(None, note, all_failed)
    log = interval(logs, *pooled_deviation(results))
    mean, low, high = (None if one is None else 100 * math.expm1(one) for one in (log.mean, log.low, log.high))
    return Change(Estimate(mean, low, high, log.seeds), note)


@cache
def pooled_deviation(results: Results) -> tuple[float, int]:
    """Standard deviation over seeds of a log ratio of two perplexities, pooled over the registered comparisons of the
    results' scale that have two seeds or more, and its degrees of freedom; (0, 0) if none has."""
    squares, freedom = 0.0, 0
    for one in registered(results):
        logs = log_ratios(results, one["run"], one["against"]).values()
        if len(logs) > 1:
            squares += variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (0.0, 0)


def registered(results: Results, part: str = "perplexity") -> list[Any]:
    """A list registered before the data, by default the comparisons: run, against, sign, published, where."""
    path = results.root / "results/desk/predictions.yaml"
    return yaml_file(path)[part] if path.is_file() else []


def log_ratios(results: Results, run: str, base: str) -> dict[int, float]:
    """log(perplexity of run / perplexity of base) by seed, failed trainings left out."""
    own, other = trained(results, run), trained(results, base)
    return {seed: math.log(own[seed] / other[seed]) for seed in sorted(own) if seed in other}
