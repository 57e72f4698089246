"""Parallel Context Encoding: what was measured on the pretrained model; tables of performance, remedies and cost."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import pearsonr

from aero.published import Table, load
from aero.report.results import Results
from aero.report.statistics import CONFIDENCE, Estimate, estimate
from aero.report.tables import COLUMNS, NOT_COMPARABLE, csv_text

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


@functools.cache
def _read(root: Path, path: Path, changed: int) -> Measured:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows: dict[tuple[str, Setting], list[Row]] = {}
    for row in lines:
        if "task" in row:
            setting = Setting(**{name: row[name] for name in Setting.__dataclass_fields__})
            rows.setdefault((row["task"], setting), []).append(row)
    about = next(row["run"] for row in reversed(lines) if "run" in row)
    return Measured(str(path.relative_to(root)), about, rows, about["selection"], tuple(about["sinks"]))


def models(results: Results) -> dict[str, Measured]:
    """Every measured model by name; fresh files replace committed ones."""
    found = {}
    for folder in ("results/parallel_context", "runs/parallel_context"):
        for path in sorted((results.root / folder).glob("*.jsonl")):
            found[path.stem] = _read(results.root, path, path.stat().st_mtime_ns)
    return found


def measured(results: Results) -> Measured | None:
    """The pretrained model that the report is about; None if it was not measured."""
    return models(results).get(MODEL)


def costs(results: Results) -> Row | None:
    """Time and memory, fresh or committed, with the file's `path`; None if they were not measured."""
    for folder in ("runs/parallel_context", "results/parallel_context"):
        path = results.root / folder / "cost.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8")) | {"path": f"{folder}/cost.json"}
    return None


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
    mean, count, z = sum(values) / len(values), len(values), 1.959963984540054
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return Estimate(100 * mean, 100 * (centre - half), 100 * (centre + half), ())


def over(values: Sequence[float]) -> Estimate:
    """Mean and t-interval over episodes."""
    found = estimate(dict(enumerate(values)))
    return Estimate(found.mean, found.low, found.high, ())


def lost(model: Measured, task: str, one: Setting, other: Setting) -> Estimate | None:
    """How much more is lost at `one` than at `other`, over the episodes of both: nats, or points of per cent.

    Of points the interval of Agresti and Min, which adds half an episode to each of the four outcomes of a pair.
    """
    first, second = model.values(task, one), model.values(task, other)
    pairs = [(first[episode], second[episode]) for episode in first.keys() & second.keys()]
    if not pairs:
        return None
    if is_text(task):
        return over([a - b for a, b in pairs])
    worse, better, count = (sum(a < b for a, b in pairs), sum(a > b for a, b in pairs), len(pairs))
    difference = (worse - better) / (count + 2)
    half = 1.959963984540054 * math.sqrt((worse + better + 1) / (count + 2) - difference**2) / math.sqrt(count + 2)
    ends = (max(-100.0, 100 * (difference - half)), min(100.0, 100 * (difference + half)))
    return Estimate(100 * (worse - better) / count, *ends, ())


def entropy_change(model: Measured, task: str, one: Setting, other: Setting) -> Estimate | None:
    """Entropy of the query's attention at `one` minus that at `other`, over the episodes of both, in nats."""
    first, second = (model.values(task, setting, "entropies") for setting in (one, other))
    both = sorted(first.keys() & second.keys())
    return over([first[episode] - second[episode] for episode in both]) if both else None


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
    has_interval = len(x) > 3 and abs(found.statistic) < 1 - 1e-12
    low, high = map(float, found.confidence_interval(CONFIDENCE)) if has_interval else (None, None)
    return Estimate(float(found.statistic), low, high, ())


def correlation_text(found: Estimate) -> str:
    return "not defined" if math.isnan(found.mean) else found.text()


# Tables ---------------------------------------------------------------------------------------------------------------


def files(results: Results) -> dict[Path, str]:
    """reports/tables/parallel_context_table_main.csv and _ablation.csv: a line a published cell and task."""
    folder, printed = Path("reports/tables"), load(PAPER).tables
    return {folder / f"{PAPER}_table_{name}.csv": _csv(measured(results), printed[name]) for name in printed}


def _csv(model: Measured | None, printed: Table) -> str:
    lines = []
    for row in printed.rows:
        for kind, cell in row.cells.items():
            for task in [task for task in model.tasks if KINDS[task] == kind] if model else [None]:
                setting = _setting_of(model, printed, row.name, task) if task else None
                found = score(model, task, setting) if task else None
                lines.append(
                    {
                        "row": row.name,
                        "column": cell.column.label,
                        "published": cell.text,
                        "measured": f"{found.mean:.6g}" if found else "",
                        "unit": cell.column.unit,
                        "scale": SCALE if found else "",
                        "seeds": "",
                        "ci_low": f"{found.low:.6g}" if found and found.has_interval else "",
                        "ci_high": f"{found.high:.6g}" if found and found.has_interval else "",
                        "note": _note(model, task, setting) if found else "not measured yet",
                    }
                )
    return csv_text(lines, COLUMNS)


def _note(model: Measured, task: str, setting: Setting) -> str:
    episodes = len(model.values(task, setting))
    own = f"{MODEL}, {TITLES[task]}, P={setting.segments}: interval over {episodes} episodes"
    return f"{NOT_COMPARABLE}: published for another model and other data; {own}"


def _setting_of(model: Measured, printed: Table, row: str, task: str) -> Setting:
    """The setting that a printed row is measured at; the ablation's at the largest P of the task."""
    if printed.number == "main":
        return model.setting(task, 1 if row.startswith("Full") else int(row.removeprefix("P=")))
    kind, _, value = row.partition("=")
    change = {"top_k": int(value)} if kind == "TopK" else {"aggregation": value or "none"}
    return model.setting(task, max(model.segments(task)), "select", **change)


def table_main(results: Results) -> pd.DataFrame:
    """Full attention against P segments without a remedy: published / measured."""
    return _beside_published(measured(results), load(PAPER).tables["main"])


def table_ablation(results: Results) -> pd.DataFrame:
    """Selective attention by K and aggregation at the largest P of each task: published / measured."""
    return _beside_published(measured(results), load(PAPER).tables["ablation"])


def _beside_published(model: Measured | None, printed: Table) -> pd.DataFrame:
    rows = []
    for row in printed.rows:
        line = {"attention": row.name}
        for task in model.tasks if model else ():
            if KINDS[task] in row.cells:
                found = score(model, task, _setting_of(model, printed, row.name, task))
                line[TITLES[task]] = f"{row.cells[KINDS[task]].text} / {_cell(task, found)}"
        rows.append(line)
    return pd.DataFrame(rows)


def _cell(task: str, found: Estimate | None) -> str:
    """A score with its interval, a dash where there is none."""
    return found.text(1 if is_text(task) else 0) if found else "–"


def table_methods(model: Measured | None) -> pd.DataFrame:
    """Performance with every remedy, the oracles and the adaptive K at the largest P of each task."""
    ways: dict[str, Callable[[Measured, str, int], Setting]] = {"full attention": lambda m, task, _: m.setting(task, 1)}
    for method, words in METHODS.items():
        ways[words] = functools.partial(lambda m, task, p, method: m.setting(task, p, method), method=method)
    for name in model.sinks[1:] if model else ():
        ways[f"sink: {name}"] = functools.partial(lambda m, task, p, name: Setting(p, sink=name), name=name)
    for mass in sorted({setting.mass for _, setting in model.rows if setting.mass}) if model else ():
        ways[f"selective, {mass:.0%} of the scores"] = functools.partial(
            lambda m, task, p, mass: m.setting(task, p, "select", top_k=None, mass=mass), mass=mass
        )
    for which in ("keys", "values"):
        ways[f"{which} of full attention"] = functools.partial(
            lambda m, task, p, which: Setting(p, oracle=which), which=which
        )
    return pd.DataFrame(
        {"encoding": words}
        | {TITLES[t]: _cell(t, score(model, t, of(model, t, max(model.segments(t))))) for t in model.tasks}
        for words, of in (ways.items() if model else ())
    )


def table_cost(results: Results) -> pd.DataFrame:
    """Time and memory of encoding the context, against full attention at the same length."""
    return pd.DataFrame(_cost_lines((costs(results) or {"rows": []})["rows"]))


def _cost_lines(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        full = next(one for one in rows if one["tokens"] == row["tokens"] and one["segments"] == 1)
        yield {
            "tokens": str(row["tokens"]),
            "P": str(row["segments"]),
            "query-key pairs, of full": f"{row['attention_pairs'] / full['attention_pairs']:.3f}",
            "processor time, s": f"{row['cpu_s']:.1f} ({row['cpu_s'] / full['cpu_s']:.2f} of full)",
            "memory, MiB": f"{row['peak_bytes'] / 2**20:.0f}",
        }
