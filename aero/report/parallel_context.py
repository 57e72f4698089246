"""What was measured of parallel context encoding, and its tables (paper `parallel_context`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from aero.parallel_context.correlation import Correlation, pearson
from aero.published import Table
from aero.published import load as load_paper
from aero.report.marks import Html, gap, grid, number
from aero.report.results import SCALES, Results
from aero.report.statistics import Estimate, estimate

TASKS = {
    "lm": "language modelling",
    "icl": "in-context classification",
    "rag": "retrieved passages",
    "synthetic": "key-value retrieval",
}
METHODS = {"naive": "no remedy", "sink": "shared sink", "select": "selective", "both": "sink and selective"}
_HIGHER_IS_BETTER = {"lm": False, "icl": True, "rag": True, "synthetic": True}


@dataclass(frozen=True)
class Measured:
    """One model's result file: `values` as written by stages.parallel_context, `path` relative to the root."""

    path: str
    values: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    def segments(self, task: str) -> list[int]:
        """The degrees of parallelism that were measured, rising."""
        return sorted({row["segments"] for row in self.values["rows"] if row["task"] == task})

    def row(self, task: str, segments: int, method: str) -> dict[str, Any] | None:
        """The measurement of one of `METHODS`; None if there is none."""
        selection = self.values["selection"]
        default = (selection["top_k"], selection["aggregation"][task])
        chosen = default if method in ("select", "both") else (None, None)
        return self.exact(task, segments, "sink" if method in ("sink", "both") else None, *chosen)

    def exact(
        self, task: str, segments: int, sink: str | None, top_k: int | None, aggregation: str | None
    ) -> dict[str, Any] | None:
        wanted = {"task": task, "segments": segments, "sink": sink, "top_k": top_k, "aggregation": aggregation}
        return next((row for row in self.values["rows"] if all(row[key] == wanted[key] for key in wanted)), None)


def own_models(results: Results) -> list[Measured]:
    """The decoders trained here at one scale, by seed: the report's scale, else the largest that has results."""
    found = {(m.values["scale"], m.seed): m for m in _files(results.root) if m.values.get("model") == "own"}
    scales = [results.scale, *SCALES]
    scale = next((s for s in scales if any(key[0] == s for key in found)), None)
    return [found[key] for key in sorted(found) if key[0] == scale]


def other_models(results: Results) -> list[Measured]:
    """Models that were not trained here, one each."""
    found = {m.values["model"]: m for m in _files(results.root) if m.values.get("model") != "own"}
    return [found[name] for name in sorted(found)]


def _files(root: Path) -> Iterator[Measured]:
    """Kept files first, so that fresh ones replace them."""
    for folder in ("results/parallel_context", "runs/parallel_context"):
        for path in sorted((root / folder).rglob("*.json")):
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(values, dict) and {"rows", "selection", "scale", "seed"} <= values.keys():
                yield Measured(str(path.relative_to(root)), values)


def costs(results: Results) -> Measured | None:
    """Time and memory, fresh or kept; None if they were not measured."""
    for folder in ("runs/parallel_context", *(f"results/parallel_context/{s}" for s in (results.scale, *SCALES))):
        path = results.root / folder / "cost.json"
        if path.is_file():
            values = json.loads(path.read_text(encoding="utf-8"))
            return Measured(str(path.relative_to(results.root)), values | {"seed": 0})
    return None


def by_seed(models: Sequence[Measured], task: str, segments: int, method: str, what: str = "score") -> dict[int, float]:
    """A number of every seed at one setting; seeds without it are left out."""
    rows = {m.seed: m.row(task, segments, method) for m in models}
    return {seed: row[what] for seed, row in rows.items() if row is not None and row[what] is not None}


def correlations(models: Sequence[Measured], task: str, methods: Sequence[str] = ("naive",)) -> dict[int, Correlation]:
    """Pearson's r of entropy with performance over degrees of parallelism, P = 1 included, by seed.

    Performance counts so that more is worse, as entropy is expected to be: log-perplexity, or per cent wrong.
    """
    found = {}
    for model in models:
        rows = [row for p in model.segments(task) for method in methods if (row := model.row(task, p, method))]
        found[model.seed] = pearson([row["entropy"] for row in rows], [loss_of(row) for row in rows])
    return found


def loss_of(row: dict[str, Any]) -> float:
    """A score as what is lost: the mean loss in nats of a perplexity, per cent wrong of per cent right."""
    return math.log(row["score"]) if row["task"] == "lm" else 100 - row["score"]


def mean_correlation(models: Sequence[Measured], task: str, methods: Sequence[str] = ("naive",)) -> Correlation:
    """r of the curves averaged over seeds."""
    points = []
    for p in sorted({p for m in models for p in m.segments(task)}):
        for method in methods:
            rows = [row for m in models if (row := m.row(task, p, method))]
            if rows:
                points.append((sum(r["entropy"] for r in rows) / len(rows), sum(loss_of(r) for r in rows) / len(rows)))
    return pearson([x for x, _ in points], [y for _, y in points])


# Tables -----------------------------------------------------------------------------------------------------------


def table_main(results: Results) -> Html:
    """Full attention against P segments without a remedy: published above measured."""
    models, printed = own_models(results), load_paper("parallel_context").tables["main"]
    if not models:
        return Html(f"<p>Full against parallel: {gap()}; <code>make parallel</code> measures it.</p>")
    rows = []
    for name in (row.name for row in printed.rows):
        p = 1 if name.startswith("Full") else int(name.removeprefix("P="))
        line = [escape(name)]
        for task in TASKS:
            published = number(printed.row(name).cells[task].text, "published", printed.place)
            line.append(f"{published}<br>{_score(models, task, p, 'naive')}{_ratio(models, task, p, printed, name)}")
        rows.append(line)
    heads = ["attention", *(f"{words}, {_unit(task)}" for task, words in TASKS.items())]
    caption = (
        f"<b>Full against parallel.</b> From above: published for {escape(str(printed.dimensions['model']))} at 8K"
        f" tokens ({escape(printed.place)}), measured, their ratio. {caption_of(models)}"
    )
    return Html(grid(heads, rows, caption, "parallel-main", (0.16, 0.21, 0.21, 0.21, 0.21)))


def _ratio(models: Sequence[Measured], task: str, p: int, printed: Table, name: str) -> str:
    """Measured over published on a line of its own; nothing where one of them is not there or 0."""
    found, value = estimate(by_seed(models, task, p, "naive")), printed.row(name).cells[task].value
    if found is None or not value:
        return ""
    paths = ", ".join(m.path for m in models)
    return f'<br><span class="ratio">{number(f"{found.mean / value:.2f}", "smaller_scale", paths)}</span>'


def table_methods(results: Results) -> Html:
    """The remedies at every P: performance, with the entropy of the query's attention below it."""
    models = own_models(results)
    if not models:
        return Html("")
    rows = []
    for p in sorted({p for m in models for task in TASKS for p in m.segments(task)}):
        for method, words in METHODS.items():
            line = [f"P={p}" if p > 1 else "full, P=1", escape(words)]
            for task in TASKS:
                line.append(f"{_score(models, task, p, method)}<br>{_score(models, task, p, method, 'entropy')} nats")
            if p > 1 or method in ("naive", "sink"):
                rows.append(line)
    heads = ["attention", "remedy", *(f"{words}, {_unit(task)}" for task, words in TASKS.items())]
    caption = (
        "<b>The remedies.</b> Performance and, below it, the mean attention entropy of the query's tokens."
        f" {caption_of(models)}"
    )
    return Html(grid(heads, rows, caption, "parallel-methods", (0.1, 0.14, 0.19, 0.19, 0.19, 0.19), "dense"))


def table_ablation(results: Results) -> Html:
    """Selective attention by K and aggregation, and the shared sink by its content, at the largest P of each task."""
    models, printed = own_models(results), load_paper("parallel_context").tables["ablation"]
    if not models:
        return Html("")
    selection = models[0].values["selection"]
    largest = {task: max(models[0].segments(task)) for task in TASKS}
    lines: list[list[str]] = []
    for name in (row.name for row in printed.rows):
        kind, _, value = name.partition("=")
        line = [escape(name)]
        for task in TASKS:
            k, aggregation = selection["top_k"], selection["aggregation"][task]
            if kind == "TopK":
                k = int(value)
            else:
                aggregation = value or "none"
            cell = printed.row(name).cells.get(task)
            above = "" if cell is None else number(cell.text, "published", printed.place) + "<br>"
            line.append(above + _exact(models, task, largest[task], None, k, aggregation))
        lines.append(line)
    sinks = dict.fromkeys(row["sink"] for m in models for row in m.values["rows"] if row["sink"])
    for sink in (None, *sinks):
        label = "no remedy" if sink is None else f"shared sink: {'default' if sink == 'sink' else sink}"
        lines.append([escape(label), *(_exact(models, task, largest[task], sink, None, None) for task in TASKS)])
    heads = ["setting", *(f"{words}, P={largest[task]}, {_unit(task)}" for task, words in TASKS.items())]
    caption = (
        "<b>Ablation.</b> Selective attention without a shared sink, K and aggregation varied one at a time from"
        f" K={selection['top_k']} and HT; then the shared prefix by its content. Upper number published (P=64,"
        f" {escape(printed.place)}). {caption_of(models)}"
    )
    return Html(grid(heads, lines, caption, "parallel-ablation", (0.2, 0.2, 0.2, 0.2, 0.2), "dense"))


def table_correlation(results: Results) -> Html:
    """Entropy against performance: r over P, with Fisher's interval."""
    models = own_models(results)
    if not models:
        return Html("")
    rows = []
    for task, words in TASKS.items():
        line = [escape(words)]
        for methods in (("naive",), tuple(METHODS)):
            found = mean_correlation(models, task, methods)
            line.append(
                gap("not defined")
                if found.r is None
                else number(correlation_text(found), "smaller_scale", models[0].path) + f", {found.points} points"
            )
        paths = {model.seed: model.path for model in models}
        each = ", ".join(
            "–" if c.r is None else number(f"{c.r:.2f}", "smaller_scale", paths[seed])
            for seed, c in correlations(models, task).items()
        )
        rows.append([*line, each])
    heads = ["task", "r over P, no remedy", "r over P and remedies", "each seed, no remedy"]
    caption = (
        "<b>Entropy against performance.</b> Pearson's r of the mean attention entropy with what is lost"
        " (log-perplexity, per cent wrong), over full attention and every P; brackets: Fisher's 95 % interval over"
        f" those points, which are few and lie on one curve. Published: about 0.95. {caption_of(models)}"
    )
    return Html(grid(heads, rows, caption, "parallel-correlation", (0.25, 0.27, 0.27, 0.21)))


def table_others(results: Results) -> Html:
    """Models that were not trained here, on the real benchmarks: every P and remedy; how to measure one if none was."""
    models = other_models(results)
    if not models:
        return Html(
            f"<p>The paper's own models on its benchmarks: {gap()}; they need the weights and the benchmarks' files"
            " (<code>docs/parallel_context.md</code> has the command).</p>"
        )
    lines = []
    for model in models:
        tasks = list(dict.fromkeys(row["task"] for row in model.values["rows"]))
        for p in sorted({p for task in tasks for p in model.segments(task)}):
            for method, words in METHODS.items():
                cells = [_score([model], task, p, method) for task in TASKS]
                lines.append([escape(model.values["model"]), f"P={p}", escape(words), *cells])
    heads = ["model", "P", "remedy", *(f"{words}, {_unit(task)}" for task, words in TASKS.items())]
    caption = "<b>Other models</b> on the user's benchmark files; brackets: 95 % interval over examples."
    return Html(grid(heads, lines, caption, "parallel-others", (0.16, 0.06, 0.14, 0.16, 0.16, 0.16, 0.16), "dense"))


def table_cost(results: Results) -> Html:
    """Time and memory of encoding the context, against full attention."""
    found = costs(results)
    if found is None:
        return Html(f"<p>Time and memory of parallel encoding: {gap()}.</p>")
    values = found.values
    full = next(row for row in values["rows"] if row["way"] == "full")

    def cell(text: str) -> str:
        return number(text, "smaller_scale", found.path)

    rows = []
    for row in values["rows"]:
        peak = None if row["peak_bytes"] is None or not full["peak_bytes"] else row["peak_bytes"]
        rows.append(
            [
                "full attention" if row["way"] == "full" else f"P={row['segments']}, {_WAYS[row['way']]}",
                cell(f"{row['attention_pairs'] / full['attention_pairs']:.3f}"),
                cell(f"{row['cpu_s']:.2f} s"),
                cell(f"{row['cpu_s'] / full['cpu_s']:.2f}"),
                gap("not told") if peak is None else cell(f"{peak / 2**20:.0f} MiB"),
                gap("not told") if peak is None else cell(f"{peak / full['peak_bytes']:.2f}"),
                cell(f"{row['question_cpu_s']:.3f} s"),
            ]
        )
    model = values["model"]
    origin = values["provenance"]
    caption = (
        f"<b>Time and memory of encoding {full['tokens']} tokens.</b> A rotary decoder of L={model['layers']},"
        f" H={model['heads']}, d={model['width']} with random weights, float32, one thread, each setting in a process"
        f" of its own, the fastest of {full['repeats']} passes; ratios to full attention. Memory: the peak beyond that"
        " of the loaded model. Segments: each on its own, equal ones as one batch; mask: one pass under the block mask."
        f" Last column: 16 query tokens reading the encoded context. Commit {escape(str(origin['commit'])[:10])},"
        f" machine {escape(str(origin['machine']))}."
    )
    heads = ["context", "query-key pairs", "time", "ratio", "memory", "ratio", "question"]
    return Html(grid(heads, rows, caption, "parallel-cost", (0.28, 0.13, 0.12, 0.1, 0.14, 0.1, 0.13)))


_WAYS = {"segments": "as segments", "mask": "under a mask"}


def correlation_text(found: Correlation) -> str:
    if found.r is None:
        return "not defined"
    return f"{found.r:.2f}" + ("" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]")


def caption_of(models: Sequence[Measured]) -> str:
    """Scale, model, seeds, episodes, commit and machine."""
    first = models[0].values
    training, model = first["training"], first["training"]["model"]
    seeds = ", ".join(str(m.seed) for m in models)
    episodes = max(row["episodes"] for row in first["rows"])
    brackets = (
        "brackets: 95 % t-interval over seeds" if len(models) > 1 else "one seed; brackets: 95 % interval over episodes"
    )
    commits = ", ".join(sorted({str(m.values["provenance"]["commit"])[:10] for m in models}))
    return escape(
        f"Measured: a rotary decoder trained here on all four tasks (scale {first['scale']}: L={model['layers']},"
        f" H={model['heads']}, d={model['width']}, T={model['context']}, {training['tokens'] / 1e6:.1f} M tokens),"
        f" offline forms of the tasks, {episodes} episodes a setting; seeds {seeds}, {brackets}; commit {commits};"
        f" machine {first['provenance']['machine']}."
    )


def _unit(task: str) -> str:
    return {"lm": "perplexity", "icl": "% right", "rag": "% SubEM", "synthetic": "% SubEM"}[task]


def _score(models: Sequence[Measured], task: str, p: int, method: str, what: str = "score") -> str:
    rows = {m.seed: m.row(task, p, method) for m in models}
    return _cell(models, rows, what)


def _exact(
    models: Sequence[Measured], task: str, p: int, sink: str | None, top_k: int | None, aggregation: str | None
) -> str:
    return _cell(models, {m.seed: m.exact(task, p, sink, top_k, aggregation) for m in models}, "score")


def _cell(models: Sequence[Measured], rows: dict[int, dict[str, Any] | None], what: str) -> str:
    present = {seed: row for seed, row in rows.items() if row is not None}
    found = estimate({seed: row[what] for seed, row in present.items()})
    if found is None:
        return '<span class="none">–</span>'
    digits = 2 if what == "entropy" or next(iter(present.values()))["task"] == "lm" else 1
    if not found.has_interval:
        row = next(iter(present.values()))
        low, high = (row["entropy_low"], row["entropy_high"]) if what == "entropy" else (row["low"], row["high"])
        found = Estimate(found.mean, low, high, found.seeds)
    paths = ", ".join(m.path for m in models)
    return number(found.text(digits), "smaller_scale", paths)
