"""What was measured of parallel context encoding, and its tables (paper `parallel_context`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from aero.parallel_context.correlation import Correlation, pearson
from aero.published import Table
from aero.published import load as load_paper
from aero.report.costs import MIB
from aero.report.marks import Html, gap, grid, number, origin, short_commit
from aero.report.results import SCALES, Results, chosen_settings
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

    def units(self, task: str) -> int | None:
        """Pieces of the task's shortest context, which P cannot exceed; None if the file does not say."""
        return self.values.get("tasks", {}).get(task, {}).get("units")

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
    found: dict[tuple[str, int], Measured] = {}
    for measured in _files(results.root):
        key = (measured.values["scale"], measured.seed)
        # A measurement of some tasks or some P does not take the place of a whole one.
        if measured.values.get("model") == "own" and not (measured.values.get("part") and key in found):
            found[key] = measured
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


def largest(models: Sequence[Measured], task: str) -> int | None:
    """The largest P at which any of the models was measured; None if the task was not."""
    return max((p for m in models for p in m.segments(task)), default=None)


def impossible(models: Sequence[Measured], task: str, segments: int) -> str:
    """ "only 32 pieces" where the task's contexts have fewer than P; "" where P is possible."""
    units = [m.units(task) for m in models]
    most = max((u for u in units if u is not None), default=None)
    return f"only {most} pieces" if most is not None and segments > most else ""


@dataclass(frozen=True)
class Summary:
    """A mean over seeds with a 95 % interval. episodes: how many the interval is over, None for one over seeds."""

    estimate: Estimate
    episodes: int | None = None

    def text(self, digits: int, unit: str = "", label: str = "ep.") -> str:
        """ "99.2 [95.7, 99.9] ep." for an interval over episodes."""
        return self.estimate.text(digits, unit) + (f" {label}" if self.episodes else "")


def summary(rows: Mapping[int, dict[str, Any]], what: str = "score") -> Summary | None:
    """Of one number of every seed's row; None if there is none.

    The seeds share their episodes: where they all agree, or there is one, the spread over seeds is no interval, and the
    row's own is taken, Wilson's over episodes for a share of right answers. Per cents end at 0 and 100.
    """
    found = estimate({seed: row[what] for seed, row in rows.items()})
    if found is None:
        return None
    first = next(iter(rows.values()))
    per_cent = what == "score" and first["task"] != "lm"
    if len(found.seeds) == 1 or (per_cent and len({row[what] for row in rows.values()}) == 1):
        low, high = (
            (first[f"{what}_low"], first[f"{what}_high"]) if what == "entropy" else (first["low"], first["high"])
        )
        return Summary(Estimate(found.mean, low, high, found.seeds), int(first["episodes"]))
    if per_cent:
        low, high = max(0.0, found.low), min(100.0, found.high)
        found = Estimate(found.mean, low, high, found.seeds)
    return Summary(found)


def lost(pairs: Mapping[int, tuple[dict[str, Any], dict[str, Any]]]) -> Summary | None:
    """What the first of two rows loses more than the second, of every seed; None for no seed. Points end at ±100.

    Where all seeds agree on per cents, the interval is Newcombe's of the two Wilson intervals over episodes: wider than
    it need be, since both rows are of the same episodes.
    """
    differences = {seed: loss_of(one) - loss_of(other) for seed, (one, other) in pairs.items()}
    found = estimate(differences)
    if found is None or not found.has_interval:
        return None if found is None else Summary(found)
    one, other = next(iter(pairs.values()))
    if one["task"] == "lm":
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
            ratio = _ratio(models, task, p, printed, name)
            line.append(f"{published}<br>{_score(models, task, p, 'naive') or _absent(models, task, p)}{ratio}")
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


def table_methods(results: Results, other: Measured | None = None) -> Html:
    """The remedies at every P: performance, with the entropy of the query's attention below it; of another model than
    the one trained here on request."""
    models = [other] if other else own_models(results)
    if not models:
        return Html("")
    rows = []
    for p in sorted({p for m in models for task in TASKS for p in m.segments(task)}):
        for method, words in METHODS.items():
            line = [f"P={p}" if p > 1 else "full, P=1", escape(words)]
            for task in TASKS:
                score = _score(models, task, p, method)
                below = f"{score}<br>{_score(models, task, p, method, 'entropy')} nats"
                line.append(below if score else _absent(models, task, p))
            if p > 1 or method in ("naive", "sink"):
                rows.append(line)
    heads = ["attention", "remedy", *(f"{words}, {_unit(task)}" for task, words in TASKS.items())]
    caption = (
        "<b>The remedies.</b> Performance and, below it, the mean attention entropy of the query's tokens."
        f" {caption_of(models)}"
    )
    identifier = "parallel-methods" + _suffix(other)
    return Html(grid(heads, rows, caption, identifier, (0.1, 0.14, 0.19, 0.19, 0.19, 0.19), "dense"))


def table_ablation(results: Results, other: Measured | None = None) -> Html:
    """Selective attention by K and aggregation, and the shared sink by its content, at the largest P of each task."""
    models = [other] if other else own_models(results)
    printed = load_paper("parallel_context").tables["ablation"]
    if not models:
        return Html("")
    selection = models[0].values["selection"]
    at = {task: largest(models, task) for task in TASKS}
    measured = {task: p for task, p in at.items() if p is not None}
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
            found = _exact(models, task, measured[task], None, k, aggregation) if task in measured else gap()
            # Language modelling is measured at one aggregation: the paper has no column of it.
            line.append(above + (found or ('<span class="none">–</span>' if task == "lm" else gap())))
        lines.append(line)
    sinks = dict.fromkeys(row["sink"] for m in models for row in m.values["rows"] if row["sink"])
    for sink in (None, *sinks):
        label = "no remedy" if sink is None else f"shared sink: {'default' if sink == 'sink' else sink}"
        cells = (_exact(models, task, measured[task], sink, None, None) if task in measured else "" for task in TASKS)
        lines.append([escape(label), *(cell or gap() for cell in cells)])
    heads = ["setting", *(f"{words}, P={at[task] or '?'}, {_unit(task)}" for task, words in TASKS.items())]
    defaults = ", ".join(f"{selection['aggregation'][task]} for {words}" for task, words in TASKS.items())
    published_at = int(printed.dimensions["segments"])
    others = [task for task, p in measured.items() if task != "lm" and p != published_at]
    note = (
        f" The published cells are at P={published_at}: where the head names another P, sizes do not compare, and no"
        " ratio is taken."
        if others
        else ""
    )
    caption = (
        "<b>Ablation.</b> Selective attention without a shared sink, K and aggregation varied one at a time from"
        f" K={selection['top_k']} and the default aggregation ({escape(defaults)}); then the shared prefix by its"
        f" content. Upper number published ({escape(printed.place)}).{note} {caption_of(models)}"
    )
    identifier = "parallel-ablation" + _suffix(other)
    return Html(grid(heads, lines, caption, identifier, (0.2, 0.2, 0.2, 0.2, 0.2), "dense"))


def table_correlation(results: Results, other: Measured | None = None) -> Html:
    """Entropy against performance: r over P, with Fisher's interval."""
    models = [other] if other else own_models(results)
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
    return Html(grid(heads, rows, caption, "parallel-correlation" + _suffix(other), (0.25, 0.27, 0.27, 0.21)))


def table_others(results: Results) -> Html:
    """Models that were not trained here, on the real benchmarks: the tables of the decoder trained here, for each of
    them; how to measure one if none was."""
    models = other_models(results)
    if not models:
        return Html(
            f"<p>The paper's own models on its benchmarks: {gap()}; they need the weights and the benchmarks' files"
            " (<code>docs/parallel_context.md</code> has the command).</p>"
        )
    made = [table(results, model) for model in models for table in (table_methods, table_correlation, table_ablation)]
    return Html("".join(one.text for one in made))


def _suffix(other: Measured | None) -> str:
    """What tells the tables of one model from another's in the page's addresses."""
    return "" if other is None else "-" + re.sub(r"[^a-z0-9]+", "-", str(other.values["model"]).lower()).strip("-")


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
                gap("not told") if peak is None else cell(f"{peak / MIB:.0f} MiB"),
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
    """Model, seeds, episodes, what the brackets are, commits and machines; whether the seeds are not of one recipe."""
    first = models[0].values
    episodes = max((row["episodes"] for m in models for row in m.values["rows"]), default=0)
    made = origins(models)
    unit = "in the column's unit, cut at 0 and 100 %"
    if first["model"] != "own":
        return escape(
            f"Measured: {first['model']} on the user's benchmark files, up to {episodes} examples a task; brackets:"
            f" 95 % interval over examples (ep.), {unit}; {made}."
        )
    seeds = ", ".join(str(m.seed) for m in models)
    brackets = (
        f"brackets: 95 % t-interval over seeds, {unit}; ep.: the seeds agree, so Wilson's 95 % interval over the"
        " episodes, which are the same for all"
        if len(models) > 1
        else f"one seed; brackets: 95 % interval over episodes (ep.), {unit}"
    )
    return escape(
        f"Measured: a rotary decoder trained here on all four tasks (scale {first['scale']}: {_trained_as(models)}),"
        f" offline forms of the tasks, {episodes} episodes a setting; seeds {seeds}, {brackets}; {made}."
    )


def origins(models: Sequence[Measured]) -> str:
    """Commits and machines of the measurements and of the trainings before them, "mixed" where they are several."""
    parts = [part.get("provenance") or {} for m in models for part in (m.values, m.values.get("training") or {})]
    commits = origin("commit", "commits", (short_commit(part.get("commit")) for part in parts))
    return f"{commits}; " + origin("machine", "machines", (str(part.get("machine") or "") for part in parts))


def _trained_as(models: Sequence[Measured]) -> str:
    """Sizes and budget; where the seeds are not of one recipe, every one's, and the settings they differ in."""
    sizes = []
    for training in (m.values["training"] for m in models):
        model = training["model"]
        stated = ", ".join(
            f"{letter}={model[key]}"
            for letter, key in (("L", "layers"), ("H", "heads"), ("d", "width"), ("T", "context"))
        )
        sizes.append(f"{stated}, {training['tokens'] / 1e6:.1f} M tokens")
    recipes = [_recipe(m) for m in models]
    names = sorted({name for recipe in recipes for name in recipe})
    differing = [name for name in names if len({recipe.get(name) for recipe in recipes}) > 1]
    if not differing:
        return sizes[0]
    count = len({tuple(recipe.get(name) for name in differing) for recipe in recipes})
    return f"mixed: {count} recipes, which differ in {', '.join(differing)} ({'; '.join(dict.fromkeys(sizes))})"


def _recipe(model: Measured) -> dict[str, str]:
    """What must agree before two seeds are put in one mean, by its name; as `aero.report.results.Run.recipe`."""
    values, training = model.values, model.values["training"]
    train, sizes = chosen_settings(training.get("train") or {}, training["model"])
    settings = {name: training.get(name) for name in ("architecture", "corpus", "corpus_sha256", "curriculum")}
    settings |= {"selection": values["selection"], "tokens": training["tokens"]}
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in (settings | train | sizes).items()}


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
    """The number with its interval; "" where no model has one."""
    present = {seed: row for seed, row in rows.items() if row is not None}
    found = summary(present, what)
    if found is None:
        return ""
    digits = 2 if what == "entropy" or next(iter(present.values()))["task"] == "lm" else 1
    return number(found.text(digits), "smaller_scale", ", ".join(m.path for m in models))


def _absent(models: Sequence[Measured], task: str, p: int) -> str:
    """Why a cell is empty: P is impossible, or was not measured."""
    reason = impossible(models, task, p)
    return f'<span class="none">{escape(reason)}</span>' if reason else gap()
