"""Parallel Context Encoding: results, and tables of performance, remedies, correlation and cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import pearsonr

from aero.published import Table, load
from aero.report.results import SCALES, Results
from aero.report.statistics import CONFIDENCE, Estimate, estimate
from aero.report.tables import COLUMNS, NOT_COMPARABLE, csv_text

PAPER = "parallel_context"
TASKS = {
    "lm": "language modelling",
    "icl": "in-context classification",
    "rag": "retrieved passages",
    "synthetic": "key-value retrieval",
}
UNITS = {"lm": "perplexity", "icl": "% right", "rag": "% SubEM", "synthetic": "% SubEM"}
METHODS = {"naive": "no remedy", "sink": "shared sink", "select": "selective", "both": "sink and selective"}
Row = dict[str, Any]


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One model's result file: `values` as stages.parallel_context writes them, `path` relative to the root."""

    path: str
    values: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    def segments(self, task: str) -> list[int]:
        """The P that were measured, rising."""
        return sorted({row["segments"] for row in self.values["rows"] if row["task"] == task})

    def units(self, task: str) -> int | None:
        """Units of the task's shortest context, which P cannot exceed; None if the file does not say."""
        return self.values.get("tasks", {}).get(task, {}).get("units")

    def row(self, task: str, segments: int, method: str) -> Row | None:
        """The measurement of one of `METHODS`, if any."""
        selection = self.values["selection"]
        default = (selection["top_k"], selection["aggregation"][task])
        chosen = default if method in ("select", "both") else (None, None)
        return self.exact(task, segments, "sink" if method in ("sink", "both") else None, *chosen)

    def exact(
        self, task: str, segments: int, sink: str | None, top_k: int | None, aggregation: str | None
    ) -> Row | None:
        wanted = {"task": task, "segments": segments, "sink": sink, "top_k": top_k, "aggregation": aggregation}
        return next((row for row in self.values["rows"] if all(row[key] == wanted[key] for key in wanted)), None)


def own_models(results: Results) -> list[Measured]:
    """The decoders trained here at one scale, by seed: the report's scale, else the largest that has results."""
    found: dict[tuple[str, int], Measured] = {}
    for measured in _files(results.root):
        key = (measured.values["scale"], measured.seed)
        # A measurement of some tasks or some P does not replace a whole one.
        if measured.values.get("model") == "own" and not (measured.values.get("part") and key in found):
            found[key] = measured
    scale = next((s for s in (results.scale, *SCALES) if any(key[0] == s for key in found)), None)
    return [found[key] for key in sorted(found) if key[0] == scale]


def other_models(results: Results) -> list[Measured]:
    """Models that were not trained here, one each."""
    found = {m.values["model"]: m for m in _files(results.root) if m.values.get("model") != "own"}
    return [found[name] for name in sorted(found)]


def _files(root: Path) -> Iterator[Measured]:
    """Committed files first, so that fresh ones replace them."""
    for folder in ("results/parallel_context", "runs/parallel_context"):
        for path in sorted((root / folder).rglob("*.json")):
            values = json.loads(path.read_text(encoding="utf-8"))
            if {"rows", "selection", "scale", "seed"} <= values.keys():
                yield Measured(str(path.relative_to(root)), values)


def costs(results: Results) -> Measured | None:
    """Time and memory, fresh or committed; None if they were not measured."""
    for folder in ("runs/parallel_context", *(f"results/parallel_context/{s}" for s in (results.scale, *SCALES))):
        path = results.root / folder / "cost.json"
        if path.is_file():
            return Measured(str(path.relative_to(results.root)), json.loads(path.read_text(encoding="utf-8")))
    return None


def largest(models: Sequence[Measured], task: str) -> int | None:
    """The largest P of any of the models; None if the task was not measured."""
    return max((p for m in models for p in m.segments(task)), default=None)


def all_segments(models: Sequence[Measured], task: str) -> list[int]:
    """The P of all models, rising."""
    return sorted({p for m in models for p in m.segments(task)})


def impossible(models: Sequence[Measured], task: str, segments: int) -> str:
    """ "only 32 pieces" where the task's contexts have fewer units than P, else ""."""
    units = [u for m in models if (u := m.units(task)) is not None]
    return f"only {max(units)} pieces" if units and segments > max(units) else ""


@dataclass(frozen=True)
class Summary:
    """A mean over seeds with a 95 % interval. episodes: how many the interval is over, None for one over seeds."""

    estimate: Estimate
    episodes: int | None = None

    def text(self, digits: int, unit: str = "", label: str = "ep.") -> str:
        """ "99.2 [95.7, 99.9] ep." for an interval over episodes."""
        return self.estimate.text(digits, unit) + (f" {label}" if self.episodes else "")


def summary(rows: Mapping[int, Row]) -> Summary | None:
    """The mean score over seeds; None if there is none.

    The seeds share their episodes. Where all seeds agree, or there is one, the spread over seeds is no interval, and
    the row's own interval over episodes is used. Per cents are clipped to 0 and 100.
    """
    found = estimate({seed: row["score"] for seed, row in rows.items()})
    if found is None:
        return None
    first = next(iter(rows.values()))
    per_cent = first["task"] != "lm"
    if len(found.seeds) == 1 or (per_cent and len({row["score"] for row in rows.values()}) == 1):
        return Summary(Estimate(found.mean, first["low"], first["high"], found.seeds), int(first["episodes"]))
    if per_cent:
        found = Estimate(found.mean, max(0.0, found.low), min(100.0, found.high), found.seeds)
    return Summary(found)


def lost(pairs: Mapping[int, tuple[Row, Row]]) -> Summary | None:
    """How much more the first of two rows loses than the second, over seeds; None for no seed.

    Where all seeds agree on per cents, the interval is Newcombe's, of the two Wilson intervals over episodes.
    """
    differences = {seed: loss_of(one) - loss_of(other) for seed, (one, other) in pairs.items()}
    found = estimate(differences)
    if found is None:
        return None
    one, other = next(iter(pairs.values()))
    if not found.has_interval or one["task"] == "lm":
        return Summary(found)
    low, high, episodes = found.low, found.high, None
    if len(set(differences.values())) == 1:
        low = found.mean - math.hypot(one["high"] - one["score"], other["score"] - other["low"])
        high = found.mean + math.hypot(one["score"] - one["low"], other["high"] - other["score"])
        episodes = int(one["episodes"])
    return Summary(Estimate(found.mean, max(-100.0, low), min(100.0, high), found.seeds), episodes)


def by_seed(models: Sequence[Measured], task: str, segments: int, method: str, what: str = "score") -> dict[int, float]:
    """A number of every seed at one setting; seeds without it are left out."""
    rows = {m.seed: m.row(task, segments, method) for m in models}
    return {seed: row[what] for seed, row in rows.items() if row is not None and row[what] is not None}


def loss_of(row: Row) -> float:
    """A score as a loss: nats for a perplexity, per cent wrong for per cent right."""
    return math.log(row["score"]) if row["task"] == "lm" else 100 - row["score"]


def mean_curve(models: Sequence[Measured], task: str, method: str) -> list[tuple[int, float, float]]:
    """P, entropy and loss, means over seeds, of one of `METHODS`."""
    points = []
    for p in all_segments(models, task):
        if rows := [row for m in models if (row := m.row(task, p, method))]:
            points.append((p, _mean(row["entropy"] for row in rows), _mean(loss_of(row) for row in rows)))
    return points


def correlation(models: Sequence[Measured], task: str) -> Estimate:
    """Pearson's r of entropy and loss over P, P = 1 included, of the curves averaged over seeds, without a remedy."""
    points = mean_curve(models, task, "naive")
    return pearson([entropy for _, entropy, _ in points], [loss for _, _, loss in points])


def pearson(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """r with Fisher's 95 % interval for four points or more; NaN where it is not defined."""
    if len(x) < 2 or not np.std(x) or not np.std(y):
        return Estimate(math.nan, None, None, ())
    found = pearsonr(x, y)
    has_interval = len(x) > 3 and abs(found.statistic) < 1 - 1e-12
    low, high = map(float, found.confidence_interval(CONFIDENCE)) if has_interval else (None, None)
    return Estimate(float(found.statistic), low, high, ())


def correlation_text(found: Estimate) -> str:
    return "not defined" if math.isnan(found.mean) else found.text()


def _mean(values: Iterator[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


# Tables ---------------------------------------------------------------------------------------------------------------


def files(results: Results) -> dict[Path, str]:
    """reports/tables/parallel_context_table_main.csv and _ablation.csv: a line a published cell."""
    models, printed = own_models(results), load(PAPER).tables
    folder = Path("reports/tables")
    return {folder / f"{PAPER}_table_{name}.csv": _csv(models, printed[name]) for name in ("main", "ablation")}


def _csv(models: Sequence[Measured], printed: Table) -> str:
    lines = []
    for row in printed.rows:
        for task, cell in row.cells.items():
            p = _segments_of(models, printed, row.name, task)
            of = summary(_rows_of(models, printed, row.name, task, p))
            found = of.estimate if of else None
            interval = found is not None and found.has_interval
            lines.append(
                {
                    "row": row.name,
                    "column": cell.column.label,
                    "published": cell.text,
                    "measured": f"{found.mean:.6g}" if found else "",
                    "unit": cell.column.unit,
                    "scale": models[0].values["scale"] if found else "",
                    "seeds": " ".join(map(str, found.seeds)) if found else "",
                    "ci_low": f"{found.low:.6g}" if interval else "",
                    "ci_high": f"{found.high:.6g}" if interval else "",
                    "note": _note(of, models, printed, task, p),
                }
            )
    return csv_text(lines, COLUMNS)


def _segments_of(models: Sequence[Measured], printed: Table, row: str, task: str) -> int | None:
    """The P at which a printed cell is measured: its own, or for an ablation the largest of the task."""
    if printed.number == "main":
        return 1 if row.startswith("Full") else int(row.removeprefix("P="))
    return largest(models, task)


def _rows_of(models: Sequence[Measured], printed: Table, row: str, task: str, p: int | None) -> dict[int, Row]:
    """The measurements by seed for one printed cell."""
    if not models or p is None:
        return {}
    if printed.number == "main":
        found = {m.seed: m.row(task, p, "naive") for m in models}
    else:
        selection = models[0].values["selection"]
        kind, _, value = row.partition("=")
        top_k = int(value) if kind == "TopK" else selection["top_k"]
        aggregation = selection["aggregation"][task] if kind == "TopK" else value or "none"
        found = {m.seed: m.exact(task, p, None, top_k, aggregation) for m in models}
    return {seed: entry for seed, entry in found.items() if entry is not None}


def _note(found: Summary | None, models: Sequence[Measured], printed: Table, task: str, p: int | None) -> str:
    if found is None:
        return (p is not None and impossible(models, task, p)) or "not measured yet"
    notes = []
    published_at = printed.dimensions.get("segments")
    if published_at is not None and p != int(published_at):
        notes.append(f"{NOT_COMPARABLE}: measured at P={p}, published at P={published_at}")
    if found.episodes:
        why = "one seed" if len(found.estimate.seeds) == 1 else "seeds agree"
        notes.append(f"{why}: Wilson interval over {found.episodes} episodes")
    return "; ".join(notes)


def table_main(results: Results) -> pd.DataFrame:
    """Full attention against P segments without a remedy: published / measured."""
    return _published_and_measured(own_models(results), load(PAPER).tables["main"])


def table_ablation(results: Results) -> pd.DataFrame:
    """Selective attention by K and aggregation at the largest P of each task: published / measured."""
    return _published_and_measured(own_models(results), load(PAPER).tables["ablation"])


def _published_and_measured(models: Sequence[Measured], printed: Table) -> pd.DataFrame:
    rows = []
    for row in printed.rows:
        line = {"attention": row.name}
        for task in TASKS:
            p = _segments_of(models, printed, row.name, task)
            found = _cell(_rows_of(models, printed, row.name, task, p))
            cell = row.cells.get(task)
            absent = impossible(models, task, p) if p is not None else ""
            line[f"{TASKS[task]}, {UNITS[task]}"] = f"{cell.text if cell else '–'} / {found or absent or '–'}"
        rows.append(line)
    return pd.DataFrame(rows)


def _cell(rows: Mapping[int, Row]) -> str:
    """The mean score with its interval, "" where there is none."""
    found = summary(rows)
    return found.text(2 if next(iter(rows.values()))["task"] == "lm" else 1) if found else ""


def table_methods(models: Sequence[Measured]) -> pd.DataFrame:
    """Performance with every remedy at every P."""
    rows = []
    for p in sorted({p for task in TASKS for p in all_segments(models, task)}):
        for method, words in METHODS.items():
            if p == 1 and method not in ("naive", "sink"):
                continue
            line = {"P": str(p), "remedy": words}
            for task in TASKS:
                found = {m.seed: row for m in models if (row := m.row(task, p, method))}
                line[f"{TASKS[task]}, {UNITS[task]}"] = _cell(found) or impossible(models, task, p) or "–"
            rows.append(line)
    return pd.DataFrame(rows)


def table_cost(results: Results) -> pd.DataFrame:
    """Time and memory of encoding the context, against full attention."""
    found = costs(results)
    rows = found.values["rows"] if found else []
    ways = {"full": "full attention", "segments": "as segments", "mask": "under a mask"}
    full = next((row for row in rows if row["way"] == "full"), None)
    return pd.DataFrame(
        {
            "context": f"P={row['segments']}, {ways[row['way']]}",
            "query-key pairs, of full": f"{row['attention_pairs'] / full['attention_pairs']:.3f}",
            "time, s": f"{row['cpu_s']:.2f}",
            "time, of full": f"{row['cpu_s'] / full['cpu_s']:.2f}",
            "memory, MiB": f"{row['peak_bytes'] / 2**20:.0f}",
            "question, s": f"{row['question_cpu_s']:.3f}",
        }
        for row in rows
    )
