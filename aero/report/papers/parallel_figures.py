"""Parallel Context Encoding: tables of performance, remedies and cost, and the figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aero.published import Table, load
from aero.report.papers import parallel_context as pc
from aero.report.papers.parallel_context import (
    KINDS,
    METHODS,
    MODEL,
    PAPER,
    SCALE,
    TITLES,
    Measured,
    Row,
    Setting,
    costs,
    is_text,
    measured,
    score,
)
from aero.report.results import Results
from aero.report.show import GRID, MUTED, no_data, subplots
from aero.report.statistics import Estimate
from aero.report.tables import COLUMNS, NOT_COMPARABLE, csv_text

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


# Figures --------------------------------------------------------------------------------------------------------------


COLOURS = {"naive": "#d55e00", "sink": "#0072b2", "select": "#009e73", "both": "#cc79a7"}
MARKERS = {"naive": "o", "sink": "s", "select": "^", "both": "D"}


def figure_performance(results: Results) -> Figure:
    """Performance against P, one panel a task, one colour a remedy; bars: 95 % intervals over episodes."""
    return _panels(results, entropy=False)


def figure_entropy(results: Results) -> Figure:
    """Mean attention entropy of the query's tokens against P."""
    return _panels(results, entropy=True)


def _panels(results: Results, entropy: bool) -> Figure:
    model = pc.measured(results)
    tasks = model.tasks if model else [""]
    figure, panels = subplots(1, len(tasks), height=2.6, squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        if not model:
            no_data(axes, "not measured")
            continue
        for method, colour in COLOURS.items():
            points = []
            for p in model.segments(task):
                setting = model.setting(task, p, method)
                if found := pc.score(model, task, setting):
                    entropies = list(model.values(task, setting, "entropies").values())
                    points.append((p, pc.over(entropies) if entropy else found))
            if not points:
                continue
            means = [one.mean for _, one in points]
            # Wilson's ends of 0 and 100 % are those up to rounding.
            bars = [[max(0.0, one.mean - one.low) if one.has_interval else 0.0 for _, one in points]]
            bars.append([max(0.0, one.high - one.mean) if one.has_interval else 0.0 for _, one in points])
            style = {"color": colour, "marker": MARKERS[method], "markersize": 4, "linewidth": 1}
            axes.errorbar([p for p, _ in points], means, bars, capsize=2, elinewidth=0.7, **style)
        if not entropy and task in pc.CHANCE:
            axes.axhline(pc.CHANCE[task], color=MUTED, linewidth=0.8, linestyle=":")
        _over_p(axes, model.segments(task))
        axes.set_title(TITLES[task])
    panels[0][0].set_ylabel("entropy, nats" if entropy else "perplexity or % right")
    _legend(figure)
    return figure


def figure_correlation(results: Results) -> Figure:
    """Entropy against loss: every P of every task, all remedies; r of those without a remedy."""
    model = pc.measured(results)
    tasks = model.tasks if model else [""]
    figure, panels = subplots(1, len(tasks), height=2.7, squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        if not model:
            no_data(axes, "not measured")
            continue
        for method, colour in COLOURS.items():
            curve = pc.curve(model, task, method)
            entropies, losses = [x for _, x, _ in curve], [y for _, _, y in curve]
            axes.scatter(entropies, losses, color=colour, marker=MARKERS[method], s=16, linewidth=0)
            if method == "naive":
                axes.plot(entropies, losses, color=colour, linewidth=0.7)
                for p, x, y in curve[:: max(1, len(curve) - 1)]:
                    axes.annotate(f"P={p}", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
        axes.set_xlabel("entropy, nats")
        axes.set_title(f"{TITLES[task]}\nr {pc.correlation_text(pc.correlation(model, task))}", fontsize=8)
        axes.grid(color=GRID)
    panels[0][0].set_ylabel("loss, nats or % wrong")
    _legend(figure)
    return figure


LAYERS = {
    "entropy_by_layer": "entropy, nats",
    "sink_share": "attention on first tokens",
    "logit_mean": "mean size of logits",
    "key_first": "keys of first tokens,\nof full attention",
    "value_first": "values of first tokens,\nof full attention",
    "key_later": "later keys,\nof full attention",
}


def figure_layers(results: Results) -> Figure:
    """Sizes by layer at full attention and at the largest P, mean over tasks; norms as ratios of the same tokens."""
    model = pc.measured(results)
    figure, panels = subplots(2, 3, height=4.2, sharex=True)
    for axes, (what, words) in zip(panels.flat, LAYERS.items(), strict=True):
        axes.set_ylabel(words)
        axes.grid(color=GRID)
        if not model:
            no_data(axes, "not measured")
            continue
        for task, style in zip(model.tasks, ("-", "--", ":", "-.", (0, (1, 1))), strict=False):
            most = Setting(max(model.segments(task)))
            if what.startswith(("key", "value")):
                lines = {"naive": _ratio(model, task, most, what)}
            else:
                lines = {None: model.layers(task, Setting(1), what), "naive": model.layers(task, most, what)}
            for method, values in lines.items():
                if values is not None:
                    colour = COLOURS.get(method, MUTED)
                    axes.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, linewidth=0.9)
    for axes in panels[1]:
        axes.set_xlabel("layer")
    handles = [Line2D([], [], color=MUTED, label="full attention")]
    handles.append(Line2D([], [], color=COLOURS["naive"], label="largest P"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _ratio(model: Measured, task: str, setting: Setting, what: str):
    apart, whole = (model.layers(task, setting, name) for name in (what, f"{what}_full"))
    return None if apart is None or whole is None else apart / whole


def figure_selection(results: Results) -> Figure:
    """Performance at the largest P by the number of segments kept: a fixed K against the share of scores."""
    model = pc.measured(results)
    tasks = [task for task in model.tasks if len(_kept(model, task)) > 1] if model else []
    figure, panels = subplots(1, len(tasks) or 1, height=2.4, squeeze=False)
    if not tasks:
        no_data(panels[0][0], "not measured")
    for axes, task in zip(panels[0], tasks, strict=False):
        for adaptive, colour, marker in ((False, COLOURS["select"], "^"), (True, COLOURS["both"], "D")):
            points = sorted((kept, found.mean) for kept, found, own in _kept(model, task) if own == adaptive)
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, marker=marker, markersize=4)
        axes.set(title=TITLES[task], xlabel="segments kept, mean", xscale="log")
        axes.grid(color=GRID)
    panels[0][0].set_ylabel("perplexity or % right")
    handles = [Line2D([], [], color=COLOURS["select"], marker="^", label="fixed K")]
    handles.append(Line2D([], [], color=COLOURS["both"], marker="D", label="share of the scores"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _kept(model: Measured, task: str) -> list[tuple[float, pc.Estimate, bool]]:
    """Mean number of kept segments, score, and whether it is adaptive, at the largest P with the task's aggregation."""
    found = []
    aggregation = model.selection["aggregation"][pc.KINDS[task]]
    for (name, setting), rows in model.rows.items():
        wanted = name == task and setting.aggregation == aggregation and not setting.sink
        if wanted and setting.segments == max(model.segments(task)):
            kept = sum(row["kept"] for row in rows) / len(rows)
            found.append((kept, pc.score(model, task, setting), setting.mass is not None))
    return found


def _over_p(axes: Axes, ps: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ps)[::2], [str(p) for p in list(ps)[::2]])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("segments P")
    axes.grid(color=GRID)


def _legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=COLOURS[method], marker=MARKERS[method], markersize=4, label=words)
        for method, words in METHODS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(METHODS), frameon=False)
