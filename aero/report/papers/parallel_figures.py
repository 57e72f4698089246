"""Parallel Context Encoding: figures of performance, entropy, their relation, norms and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aero.report.papers.parallel_context import (
    METHODS,
    TASKS,
    UNITS,
    Row,
    all_segments,
    by_seed,
    correlation,
    correlation_text,
    largest,
    mean_curve,
    own_models,
)
from aero.report.results import Results
from aero.report.style import GRID, MUTED, no_data, subplots

COLOURS = {"naive": "#d55e00", "sink": "#0072b2", "select": "#009e73", "both": "#cc79a7"}
MARKERS = {"naive": "o", "sink": "s", "select": "^", "both": "D"}


def figure_performance(results: Results) -> Figure:
    """Performance against P, one panel a task, one line a remedy."""
    return _four_panels(results, "score", lambda task: UNITS[task])


def figure_entropy(results: Results) -> Figure:
    """Mean attention entropy of the query's tokens against P."""
    return _four_panels(results, "entropy", lambda task: "attention entropy, nats")


def _four_panels(results: Results, what: str, label: Callable[[str], str]) -> Figure:
    models = own_models(results)
    figure, panels = subplots(2, 2, height=5.0)
    for axes, (task, words) in zip(panels.flat, TASKS.items(), strict=True):
        axes.set_title(words)
        if not (ps := all_segments(models, task)):
            no_data(axes, "not measured")
            continue
        for method, colour in COLOURS.items():
            found = {p: values for p in ps if (values := list(by_seed(models, task, p, method, what).values()))}
            means = [sum(values) / len(values) for values in found.values()]
            axes.plot(list(found), means, color=colour, marker=MARKERS[method], markersize=4)
            low, high = map(min, found.values()), map(max, found.values())
            axes.fill_between(list(found), list(low), list(high), color=colour, alpha=0.15, linewidth=0)
        full = by_seed(models, task, 1, "naive", what).values()
        axes.axhline(sum(full) / len(full), color=MUTED, linewidth=0.9, linestyle="--")
        _over_p(axes, ps)
        axes.set_ylabel(label(task))
    _legend(figure)
    return figure


def figure_correlation(results: Results) -> Figure:
    """Entropy against loss: every P of every task, all remedies; r of those without a remedy."""
    models = own_models(results)
    figure, panels = subplots(2, 2, height=5.0)
    for axes, (task, words) in zip(panels.flat, TASKS.items(), strict=True):
        for method, colour in COLOURS.items():
            curve = mean_curve(models, task, method)
            entropies, losses = [x for _, x, _ in curve], [y for _, _, y in curve]
            axes.scatter(entropies, losses, color=colour, marker=MARKERS[method], s=18, linewidth=0)
            if method == "naive":
                axes.plot(entropies, losses, color=colour, linewidth=0.7)
                for p, x, y in curve[:: max(1, len(curve) - 1)]:
                    axes.annotate(f"P={p}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        axes.set(xlabel="attention entropy, nats", ylabel="loss, nats" if task == "lm" else "% wrong")
        axes.set_title(f"{words}: r {correlation_text(correlation(models, task))}")
        axes.grid(color=GRID)
    _legend(figure)
    return figure


def figure_norms(results: Results) -> Figure:
    """Norms of keys and values by layer in language modelling; dashed: of the same tokens in full attention."""
    models, task = own_models(results), "lm"
    most = largest(models, task) or 1
    panels_of = [("full, P=1", 1, "naive"), (f"P={most}", most, "naive"), (f"P={most}, sink", most, "sink")]
    kinds = {
        "prefix_first": ("shared prefix", "#0072b2", "s"),
        "segment_first": ("first token of a segment", "#d55e00", "o"),
        "later": ("later tokens", MUTED, "^"),
    }
    figure, grid = subplots(2, 3, height=4.4, sharex=True, sharey="row")
    for line, which in zip(grid, ("key", "value"), strict=True):
        for axes, (title, p, method) in zip(line, panels_of, strict=True):
            rows = [row for m in models if (row := m.row(task, p, method))]
            for kind, (_, colour, marker) in kinds.items():
                solid, dashed = _norms(rows, which, kind)
                layers = range(1, len(solid) + 1)
                axes.plot(layers, solid, color=colour, marker=marker, markersize=4)
                axes.plot(layers[: len(dashed)], dashed, color=colour, linestyle="--", linewidth=0.9)
                axes.set_xticks(layers)
            axes.set_title(title)
            axes.grid(color=GRID)
        line[0].set(ylabel=f"{which} norm", ylim=(0, None))
    for axes in grid[1]:
        axes.set_xlabel("layer")
    handles = [Line2D([], [], color=c, marker=m, markersize=4, label=words) for words, c, m in kinds.values()]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="the same tokens in full attention"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _norms(rows: Sequence[Row], which: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Norms a layer, means over seeds, in segments and in full attention; of the same tokens where measured."""
    name = {"segment_first": "first", "later": "later"}.get(kind)
    same = [row["same_tokens"][f"{which}s"] for row in rows if name and row.get("same_tokens")]
    if same and all(one and one[name] for one in same):
        return np.mean([one[name] for one in same], 0), np.mean([one[f"{name}_full"] for one in same], 0)
    plain = [row[f"{which}_norms"][kind] for row in rows if row[f"{which}_norms"][kind]]
    return np.mean(plain, 0) if plain else np.array([]), np.array([])


def _over_p(axes: Axes, ps: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ps), [str(p) for p in ps])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("segments P")
    axes.grid(color=GRID)


def _legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=COLOURS[method], marker=MARKERS[method], markersize=4, label=words)
        for method, words in METHODS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(METHODS), frameon=False)
