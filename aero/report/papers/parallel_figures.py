"""Parallel Context Encoding: tables of performance and remedies, and the figures."""

from __future__ import annotations

import functools
import itertools
import textwrap
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from aero.published import Table, load
from aero.records import csv_text
from aero.report.papers import parallel_context as parallel
from aero.report.papers.panels import heads, line_legend
from aero.report.papers.parallel_context import KINDS, METHODS, TITLES, Measured, Setting
from aero.report.results import Results
from aero.report.show import GRID, INK, MUTED, drawn_of, subplots
from aero.report.tables import COLUMNS, NOT_COMPARABLE, csv_line

# Tables ---------------------------------------------------------------------------------------------------------------


def files(results: Results) -> dict[Path, str]:
    """reports/tables/parallel_context_table_main.csv and _ablation.csv: a line a published cell and task."""
    folder, printed = Path("reports/tables"), load(parallel.PAPER).tables
    return {
        folder / f"{parallel.PAPER}_table_{name}.csv": _csv(parallel.measured(results), printed[name])
        for name in printed
    }


def _csv(model: Measured | None, printed: Table) -> str:
    lines = []
    for row, task in itertools.product(printed.rows, model.tasks if model else ()):
        if cell := row.cells.get(KINDS[task]):
            setting = _setting_of(model, printed, row.name, task)
            found = parallel.score(model, task, setting)
            value, scale, note = "", "", "not measured yet"
            if found:
                own = f"{parallel.MODEL}, {TITLES[task]}, P={setting.segments}"
                note = f"{NOT_COMPARABLE}: published for another model and other data; {own}: interval over "
                note += f"{len(model.values(task, setting))} episodes"
                value, scale = f"{found.mean:.6g}", parallel.SCALE
            lines.append(csv_line(row.name, cell.column.label, cell.text, value, cell.column.unit, scale, found, note))
    return csv_text(COLUMNS, lines)


def _setting_of(model: Measured, printed: Table, row: str, task: str) -> Setting:
    """The setting that a printed row is measured at; the ablation's at the largest P of the task."""
    if printed.number == "main":
        return model.setting(task, 1 if row.startswith("Full") else int(row.removeprefix("P=")))
    kind, _, value = row.partition("=")
    change = {"top_k": int(value)} if kind == "TopK" else {"aggregation": value or "none"}
    return model.setting(task, max(model.segments(task)), "select", **change)


def _beside_published(results: Results, number: str) -> pd.DataFrame:
    """A printed table, published / measured: full attention against P segments without a remedy, or selective attention
    by K and aggregation at the largest P of each task."""
    model, printed, rows = parallel.measured(results), load(parallel.PAPER).tables[number], []
    for row in printed.rows:
        line = {"attention": row.name}
        for task in model.tasks if model else ():
            if cell := row.cells.get(KINDS[task]):
                setting = _setting_of(model, printed, row.name, task)
                line[TITLES[task]] = f"{cell.text} / {_cell(model, task, setting)}"
        rows.append(line)
    return pd.DataFrame(rows)


table_main, table_ablation = (functools.partial(_beside_published, number=number) for number in ("main", "ablation"))


def _cell(model: Measured, task: str, setting: Setting) -> str:
    """A score with its interval, a dash where there is none."""
    found = parallel.score(model, task, setting)
    return found.text(1 if parallel.is_text(task) else 0) if found else "–"


def table_methods(model: Measured | None) -> pd.DataFrame:
    """Performance with every remedy, the oracles, other K, and the adaptive K with its mean over questions and layers;
    at the largest P of each task."""
    columns = {}
    for task in model.tasks if model else ():
        p = max(model.segments(task))
        settings = {"full attention": model.setting(task, 1)}
        settings |= {words: model.setting(task, p, method) for method, words in METHODS.items()}
        settings |= {f"sink: {name}": Setting(p, sink=name) for name in model.sinks[1:]}
        for top_k in sorted({setting.top_k for _, setting in model.rows if setting.top_k} - {model.selection["top_k"]}):
            settings[f"selective, K = {top_k}"] = model.setting(task, p, "select", top_k=top_k)
        masses = sorted({setting.mass for _, setting in model.rows if setting.mass})
        adaptive = {f"selective, {mass:.0%} of the scores": mass for mass in masses}
        for words, mass in adaptive.items():
            settings[words] = model.setting(task, p, "select", top_k=None, mass=mass)
        settings |= {f"{which} of full attention": Setting(p, oracle=which) for which in ("keys", "values")}
        cells = {words: _cell(model, task, setting) for words, setting in settings.items()}
        for words in adaptive:
            if rows := model.rows.get((task, settings[words])):
                cells[words] += f", K = {fmean(row['kept'] for row in rows):.1f}"
        columns[f"{TITLES[task]}, P = {p}"] = cells
    return pd.DataFrame(columns).rename_axis("encoding").reset_index()


def table_lengths(results: Results) -> pd.DataFrame:
    """Scores by length of the context: full attention, the largest P with and without a remedy; and r over P."""
    rows = []
    for task, model in itertools.product(("bible", "docs", "words", "pairs"), parallel.by_length(results).values()):
        if full := model.rows.get((task, Setting(1))):
            settings = {"full attention": Setting(1)}
            for name in ("naive", "sink", "select"):
                settings[METHODS[name]] = model.setting(task, max(model.segments(task)), name)
            cells = {words: _cell(model, task, setting) for words, setting in settings.items()}
            found = parallel.correlation_text(parallel.correlation(model, task))
            rows.append({"task, tokens": f"{TITLES[task]}, {full[0]['tokens']:,}"} | cells | {"r": found})
    return pd.DataFrame(rows)


# Figures --------------------------------------------------------------------------------------------------------------


COLOURS = {"naive": "#d55e00", "sink": "#0072b2", "select": "#009e73", "both": "#cc79a7"}
MARKERS = {"naive": "o", "sink": "s", "select": "^", "both": "D"}


@drawn_of(parallel.measured)
def _panels(results: Results, model: parallel.Measured, entropy: bool) -> Figure:
    """Performance, or mean attention entropy of the query's tokens, against P: one panel a task, one colour a remedy;
    bars: 95 % intervals over episodes."""
    figure, panels = subplots(1, len(model.tasks), height=2.6, squeeze=False)
    for axes, task in zip(panels[0], model.tasks, strict=True):
        for method, colour in COLOURS.items():
            points = {}
            for p in model.segments(task):
                setting = model.setting(task, p, method)
                if found := parallel.score(model, task, setting):
                    points[p] = (
                        parallel.over([*model.values(task, setting, "entropies").values()]) if entropy else found
                    )
            if points:
                means = [one.mean for one in points.values()]
                # Wilson's ends of 0 and 100 % are those up to rounding. Without an interval there is no bar.
                below = [max(0.0, one.mean - (one.low if one.has_interval else one.mean)) for one in points.values()]
                above = [max(0.0, (one.high if one.has_interval else one.mean) - one.mean) for one in points.values()]
                style = {"color": colour, "marker": MARKERS[method], "markersize": 4, "linewidth": 1}
                axes.errorbar(list(points), means, (below, above), capsize=2, elinewidth=0.7, **style)
        if not entropy and task in parallel.CHANCE:
            axes.axhline(parallel.CHANCE[task], color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(model.segments(task)[::2], model.segments(task)[::2])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="segments P", title=textwrap.fill(TITLES[task], 11))
        axes.grid(color=GRID)
    panels[0][0].set_ylabel("entropy, nats" if entropy else "perplexity or % right")
    _legend(figure)
    return figure


figure_performance, figure_entropy = (functools.partial(_panels, entropy=entropy) for entropy in (False, True))


@drawn_of(parallel.measured)
def figure_correlation(results: Results, model: parallel.Measured) -> Figure:
    """Entropy against loss: every P of every task, all remedies; r of those without a remedy."""
    figure, panels = subplots(1, len(model.tasks), height=2.7, squeeze=False)
    for axes, task in zip(panels[0], model.tasks, strict=True):
        for method, colour in COLOURS.items():
            points = parallel.curve(model, task, method)
            entropies, losses = [x for _, x, _ in points], [y for _, _, y in points]
            axes.scatter(entropies, losses, color=colour, marker=MARKERS[method], s=16, linewidth=0)
            if method == "naive":
                axes.plot(entropies, losses, color=colour, linewidth=0.7)
                for p, x, y in points[:: max(1, len(points) - 1)]:
                    place = (3, 3) if p > 1 else (-3, -11)  # right of P=1 are the next points
                    axes.annotate(f"P={p}", (x, y), xytext=place, textcoords="offset points")
        axes.xaxis.set_major_locator(MaxNLocator(2))
        strength, _, interval = parallel.correlation_text(parallel.correlation(model, task)).partition(" ")
        axes.set(xlabel="entropy, nats", title=f"{TITLES[task]}\nr {strength}\n{interval}")
        axes.margins(x=0.3, y=0.15)
        axes.grid(color=GRID)
    panels[0][0].set_ylabel("loss, nats or % wrong")
    _legend(figure)
    return figure


LAYERS = {
    "entropy_by_layer": "entropy, nats",
    "sink_share": "attention on first tokens",
    "logit_mean": "mean size of logits",
    "key_first": "keys of first tokens\nover full attention's",
    "value_first": "values of first tokens\nover full attention's",
    "key_later": "later keys\nover full attention's",
}


@drawn_of(parallel.measured)
def figure_layers(results: Results, model: parallel.Measured) -> Figure:
    """Sizes by layer at full attention and at the largest P, mean and range over tasks; norms as ratios of the same
    tokens.

    Beside the entropies, those of the papers' GPT-2 at scale desk.
    """
    figure, panels = subplots(2, 3, height=4.2, sharex=True)
    for axes, (what, words) in zip(panels.flat, LAYERS.items(), strict=True):
        axes.set_ylabel(words)
        axes.grid(color=GRID)
        if what.startswith(("key", "value")):
            lines = {COLOURS["naive"]: [model.over_full(task, what) for task in model.tasks]}
        else:
            lines = {MUTED: [model.layers(task, Setting(1), what) for task in model.tasks]}
            lines[COLOURS["naive"]] = [
                model.layers(task, Setting(max(model.segments(task))), what) for task in model.tasks
            ]
        for colour, found in lines.items():
            tasks = np.array([values for values in found if values is not None])
            if tasks.size:
                depths = range(1, tasks.shape[1] + 1)
                axes.plot(depths, tasks.mean(axis=0), color=colour)
                axes.fill_between(depths, tasks.min(axis=0), tasks.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    setp(panels[1], xlabel="layer")
    styles = {"full attention": {"color": MUTED}, "largest P": {"color": COLOURS["naive"]}}
    gpt2 = heads(results.at("desk"), "sm-ln-g")
    if gpt2 is not None:
        depths = np.linspace(1, len(model.layers(model.tasks[0], Setting(1), "entropy_by_layer")), len(gpt2))
        styles["GPT-2 (SM+LN+G)"] = {"color": INK, "linewidth": 1.5}
        panels[0, 0].plot(depths, gpt2.mean(axis=1), **styles["GPT-2 (SM+LN+G)"])
    line_legend(figure, styles, "lower center")
    return figure


def _legend(figure: Figure) -> None:
    styles = {
        words: {"color": COLOURS[method], "marker": MARKERS[method], "markersize": 4}
        for method, words in METHODS.items()
    }
    line_legend(figure, styles, "lower center")
