"""Parallel Context Encoding: what was measured on the pretrained model, its statistics and the quantities of claims.

P = 1 is full attention. What is lost is the mean loss in nats for language modelling, per cent wrong for other tasks.
Claims leave out tasks at which full attention is not above chance, or perfect.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr

from aero.report.results import Results
from aero.report.statistics import CONFIDENCE, Estimate, Z, estimate, wilson
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"
PAPER = "parallel_context"
MODEL = "smollm2-135m"
SCALE = "pretrained"
KINDS = {"bible": "lm", "docs": "lm", "words": "icl", "people": "rag", "pairs": "synthetic"}
TITLES = {
    "bible": "King James Bible",
    "docs": "reference prose",
    "words": "word classes",
    "people": "people and towns",
    "pairs": "UUID pairs",
}
CHANCE = {"words": 25.0, "people": 100 / 24, "pairs": 0.0}
"""Per cent right of a guess."""
CEILING = 98.0
COST = "parallel_context/cost.json"
METHODS = {"naive": "no remedy", "sink": "shared sink", "select": "selective", "both": "sink and selective"}
Row = dict[str, Any]


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """P, and the names of what differs from plain parallel encoding: a shared prefix, a selection, an oracle."""

    segments: int
    sink: str | None = None
    top_k: int | None = None
    aggregation: str | None = None
    mass: float | None = None
    oracle: str | None = None


@dataclass(frozen=True)
class Measured:
    """One model's file: `about` is its last run, `rows` by task and setting, one a context; path from the root."""

    path: str
    about: Row
    rows: dict[tuple[str, Setting], list[Row]]
    selection: Row
    sinks: tuple[str, ...]

    @property
    def tasks(self) -> list[str]:
        """The measured tasks, in order."""
        return [task for task in KINDS if self.segments(task)]

    def segments(self, task: str) -> list[int]:
        """The P that were measured, rising."""
        return sorted({setting.segments for name, setting in self.rows if name == task})

    def setting(self, task: str, segments: int, method: str = "naive", **changes: Any) -> Setting:
        """One of `METHODS` at P segments, with `changes` of its selection."""
        chosen = {"sink": self.sinks[0]} if method in ("sink", "both") else {}
        if method in ("select", "both"):
            chosen |= {"top_k": self.selection["top_k"], "aggregation": self.selection["aggregation"][KINDS[task]]}
        return Setting(segments, **chosen | changes)

    def values(self, task: str, setting: Setting, what: str = "scores") -> dict[tuple[int, int], float]:
        """A number of every episode, by context and place: `scores` (1, 0, or nats) or `entropies`."""
        found = self.rows.get((task, setting), [])
        return {(row["context"], place): value for row in found for place, value in enumerate(row[what])}

    def layers(self, task: str, setting: Setting, what: str) -> np.ndarray | None:
        """A number of every layer, mean over contexts; None if not measured."""
        found = [row[what] for row in self.rows.get((task, setting), []) if what in row]
        return np.mean(found, 0) if found else None

    def over_full(self, task: str, what: str) -> np.ndarray | None:
        """A number of every layer at the largest P over that in full attention; of keys and values, of the same tokens
        in both."""
        setting = Setting(max(self.segments(task)))
        full = (
            self.layers(task, Setting(1), what) if what == "logit_mean" else self.layers(task, setting, f"{what}_full")
        )
        apart = self.layers(task, setting, what)
        return None if apart is None or full is None else apart / full


def _read(results: Results, path: Path) -> Measured:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows: dict[tuple[str, Setting], list[Row]] = {}
    for row in lines:
        if "task" in row:
            setting = Setting(**{field.name: row[field.name] for field in fields(Setting)})
            rows.setdefault((row["task"], setting), []).append(row)
    about = next(row["run"] for row in reversed(lines) if "run" in row)
    return Measured(str(path.relative_to(results.root)), about, rows, about["selection"], tuple(about["sinks"]))


@functools.cache
def models(results: Results) -> dict[str, Measured]:
    """Every measured model by name; fresh files replace committed ones."""
    found = {}
    for folder in ("results/parallel_context", "runs/parallel_context"):
        for path in sorted((results.root / folder).glob("*.jsonl")):
            found[path.stem] = _read(results, path)
    return found


def measured(results: Results) -> Measured | None:
    """The pretrained model that the report is about; None if it was not measured."""
    return models(results).get(MODEL)


def by_length(results: Results) -> dict[int, Measured]:
    """The pretrained model by the length of its texts in tokens; the shortest are those of `measured`."""
    longer = sorted((results.root / "results/parallel_context").glob(f"*/{MODEL}.jsonl"))
    found, first = [measured(results), *(_read(results, path) for path in longer)], ("bible", Setting(1))
    return dict(sorted((model.rows[first][0]["tokens"], model) for model in found if model and first in model.rows))


def peak_memory(results: Results) -> float:
    """The most memory that measuring took, in bytes; NaN if it was not recorded."""
    rows = [row for model in by_length(results).values() for found in model.rows.values() for row in found]
    return max((row["peak_bytes"] for row in rows if "peak_bytes" in row), default=math.nan)


# Statistics -----------------------------------------------------------------------------------------------------------


def is_text(task: str) -> bool:
    return KINDS[task] == "lm"


def score(model: Measured, task: str, setting: Setting) -> Estimate | None:
    """Perplexity, or per cent right, with a 95 % interval over episodes; None if not measured.

    Of perplexity the t-interval of the mean loss, of per cent Wilson's.
    """
    values = list(model.values(task, setting).values())
    if not values:
        return None
    if is_text(task):
        nats = over(values)
        ends = (math.exp(end) if end is not None else None for end in (nats.low, nats.high))
        return Estimate(math.exp(nats.mean), *ends, ())
    mean = sum(values) / len(values)
    return Estimate(100 * mean, *(100 * end for end in wilson(mean, len(values))), ())


def over(values: Sequence[float]) -> Estimate | None:
    """Mean and t-interval over episodes; None without any."""
    found = estimate(dict(enumerate(values)))
    return found and replace(found, seeds=())


def lost(model: Measured, task: str, one: Setting, other: Setting) -> Estimate | None:
    """How much more is lost at `one` than at `other`, over the episodes of both: nats, or points of per cent.

    Of points the interval of Agresti and Min, which adds half an episode to each of the four outcomes of a pair.
    """
    differences = _differences(model, task, one, other, "scores")
    if not differences or is_text(task):
        return over(differences)
    worse, better, count = sum(d < 0 for d in differences), sum(d > 0 for d in differences), len(differences)
    difference = (worse - better) / (count + 2)
    half = Z * math.sqrt((worse + better + 1) / (count + 2) - difference**2) / math.sqrt(count + 2)
    ends = (max(-100.0, 100 * (difference - half)), min(100.0, 100 * (difference + half)))
    return Estimate(100 * (worse - better) / count, *ends, ())


def entropy_change(model: Measured, task: str, one: Setting, other: Setting) -> Estimate | None:
    """Entropy of the query's attention at `one` minus that at `other`, over the episodes of both, in nats."""
    return over(_differences(model, task, one, other, "entropies"))


def _differences(model: Measured, task: str, one: Setting, other: Setting, what: str) -> list[float]:
    first, second = (model.values(task, setting, what) for setting in (one, other))
    return [value - second[episode] for episode, value in first.items() if episode in second]


def gate(model: Measured, task: str) -> str:
    """Why full attention leaves a task nothing to show, "" if it does not: it must beat chance, and not be perfect."""
    full = score(model, task, model.setting(task, 1))
    if full is None or len(model.segments(task)) < 2:
        return "not measured"
    if is_text(task):
        return ""
    if full.low <= CHANCE[task]:
        return f"full attention is not above chance: {full.text(0)} % of {CHANCE[task]:.0f} %"
    return f"full attention is at the ceiling: {full.text(0)} %" if full.mean >= CEILING else ""


def loss_of(task: str, value: float) -> float:
    """A score as a loss: nats for a perplexity, per cent wrong for per cent right."""
    return math.log(value) if is_text(task) else 100 - value


def curve(model: Measured, task: str, method: str = "naive") -> list[tuple[int, float, float]]:
    """P, mean entropy and loss with one of `METHODS`, where measured."""
    points = []
    for p in model.segments(task):
        setting = model.setting(task, p, method)
        if (found := score(model, task, setting)) is not None:
            entropies = list(model.values(task, setting, "entropies").values())
            points.append((p, sum(entropies) / len(entropies), loss_of(task, found.mean)))
    return points


def correlation(model: Measured, task: str) -> Estimate:
    """Pearson's r of entropy and loss over P, P = 1 included, without a remedy."""
    points = curve(model, task)
    return pearson([entropy for _, entropy, _ in points], [loss for _, _, loss in points])


def pearson(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """r of three points or more, with Fisher's 95 % interval for four; NaN where it is not defined."""
    if len(x) < 3 or not np.std(x) or not np.std(y):
        return Estimate(math.nan, None, None, ())
    found = pearsonr(x, y)
    low, high = found.confidence_interval(CONFIDENCE) if len(x) > 3 else (None, None)
    return Estimate(found.statistic, low, high, ())


def correlation_text(found: Estimate) -> str:
    return "not defined" if math.isnan(found.mean) else found.text()


# Quantities of claims -------------------------------------------------------------------------------------------------


def _of_model(quantity: Callable[..., dict[str, Any]]) -> Callable[..., Measurement]:
    """Make a measurement of the effects by task that `quantity` returns for the tasks that pass the gate; a key `notes`
    holds further evidence, a key `what` says what the numbers are."""

    @functools.wraps(quantity)
    def measure(results: Results, tasks: list[str], **parameters: Any) -> Measurement:
        model = measured(results)
        if model is None:
            return Measurement("", SCALE, missing="not measured: make parallel")
        closed = {task: why for task in tasks if (why := gate(model, task))}
        found = quantity(model, [task for task in tasks if task not in closed], **parameters)
        notes, what = [f"{model.path}, {model.about['model']}", *found.pop("notes", [])], found.pop("what", "")
        effects = {task: effect for task, effect in found.items() if effect is not None}
        notes += [f"{task} left out: {why}" for task, why in closed.items()]
        text = what + ", ".join(f"{task} {effect.text(2)}" for task, effect in effects.items())
        missing = "" if effects else "no task that can show it"
        return Measurement(text, SCALE, "; ".join(notes), effects=effects, missing=missing, trained=True)

    return measure


def _between(model: Measured, task: str, one: str, other: str) -> tuple[Setting, Setting]:
    """Two settings at the largest P, each one of METHODS, "newline" (the shared prefix) or an oracle; or "full"."""
    p = max(model.segments(task))
    others = {"full": Setting(1), "newline": Setting(p, sink=model.sinks[-1])}
    others |= {oracle: Setting(p, oracle=oracle) for oracle in ("keys", "values")}
    first, second = (others.get(name) or model.setting(task, p, name) for name in (one, other))
    return first, second


@_of_model
def loss_between(model: Measured, tasks: list[str], one: str, other: str = "naive") -> dict[str, Any]:
    """What is lost at the largest P with `one` minus with `other`, over episodes. Each is full attention ("full"), no
    remedy ("naive"), a remedy (sink, select, both), a newline as the shared prefix, or full attention's keys or values.
    """
    return {task: lost(model, task, *_between(model, task, one, other)) for task in tasks}


@_of_model
def entropy_between(model: Measured, tasks: list[str], one: str, other: str = "naive") -> dict[str, Any]:
    """Entropy of the query's attention at the largest P with `one` minus with `other`, each as in `loss_between`, over
    episodes, in nats."""
    return {task: entropy_change(model, task, *_between(model, task, one, other)) for task in tasks}


@_of_model
def correlation_with_loss(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """Pearson's r over P of entropy with what is lost, without a remedy, with Fisher's interval."""
    return {task: found for task in tasks if not math.isnan((found := correlation(model, task)).mean)}


@_of_model
def size_in_segments(model: Measured, tasks: list[str], of: str) -> dict[str, Any]:
    """What the largest P makes of a size without a remedy, over that in full attention, minus 1: of the keys of
    segments' first tokens (key_first) or of later ones (key_later), of the same tokens in both; or of the query's
    logits (logit_mean). Over layers but the first, which knows nothing but its tokens."""
    ratios = {task: model.over_full(task, of) for task in tasks}
    return {task: None if ratio is None else over(list(ratio[1:] - 1)) for task, ratio in ratios.items()}


@_of_model
def best_k(model: Measured, tasks: list[str]) -> dict[str, Any]:
    """How much larger the K of selective attention with the best score is in each task than in the last."""
    best, shown = {}, []
    for task in tasks:
        p = max(model.segments(task))
        fixed = sorted({s.top_k for name, s in model.rows if name == task and s.top_k})
        scores = {k: score(model, task, model.setting(task, p, "select", top_k=k)) for k in fixed}
        means = {k: found.mean for k, found in scores.items() if found}
        if means:
            best[task] = min(means, key=lambda k: (loss_of(task, means[k]), k))
            shown.append(f"{task}: " + ", ".join(f"K={k} {mean:.1f}" for k, mean in means.items()))
    last = best.get("pairs")
    found = {task: exact(float(k - last)) for task, k in best.items() if last and task != "pairs"}
    return found | {"notes": shown, "what": "best K minus that of pairs: "}


def cost_of_segments(results: Results, percent: float) -> Measurement:
    """Query-key pairs of a context encoded in P segments over those of full attention: whether they are within
    `percent` % of 1/P at every P."""
    path, found = results.file(COST), results.json(COST)
    if path is None:
        return Measurement("", SCALE, missing="not measured yet: make parallel")
    rows = found["rows"]
    whole = {row["tokens"]: row for row in rows if row["segments"] == 1}
    parts = [(row, whole[row["tokens"]]) for row in rows if row["segments"] > 1]
    last, full = parts[-1]
    pairs, time, memory = (last[key] / full[key] for key in ("attention_pairs", "cpu_s", "peak_bytes"))
    held = {
        f"{row['tokens']} tokens, P={row['segments']}": math.isclose(
            row["attention_pairs"] * row["segments"], full["attention_pairs"], rel_tol=percent / 100
        )
        for row, full in parts
    }
    text = (
        f"query-key pairs {pairs:.4f} at P={last['segments']}; measured: time {time:.2f}, memory {memory:.2f} of full"
    )
    evidence = (
        f"{path.relative_to(results.root)}: {last['tokens']} tokens, {found['model']}, one thread; projections and "
        "feed-forward networks cost the same at every P"
    )
    return Measurement(f"{text} attention's", SCALE, evidence, checks=held)
