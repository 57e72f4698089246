"""Figures of parallel context encoding: performance, entropy, their relation, key norms, and time and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.report.drawing import GRID, INK, MUTED, WIDTH, say_missing, style
from aero.report.parallel_context import (
    METHODS,
    TASKS,
    by_seed,
    correlation_text,
    costs,
    largest,
    loss_of,
    mean_correlation,
    own_models,
)
from aero.report.results import Results

COLOURS = {"naive": "#d55e00", "sink": "#0072b2", "select": "#009e73", "both": "#cc79a7"}
MARKERS = {"naive": "o", "sink": "s", "select": "^", "both": "D"}
_LABELS = {"lm": "perplexity", "icl": "% right", "rag": "% SubEM", "synthetic": "% SubEM"}


def figure_parallel_performance(results: Results) -> Figure:
    """Performance against P, one panel a task, one line a remedy."""
    return _four_panels(results, "score", lambda task: _LABELS[task])


def figure_parallel_entropy(results: Results) -> Figure:
    """Mean attention entropy of the query's tokens against P."""
    return _four_panels(results, "entropy", lambda task: "attention entropy, nats")


def _four_panels(results: Results, what: str, label: Callable[[str], str]) -> Figure:
    models = own_models(results)
    if not models:
        return _missing()
    with style():
        figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
        for axes, (task, words) in zip(figure.subplots(2, 2).flat, TASKS.items(), strict=True):
            ps = sorted({p for m in models for p in m.segments(task)})
            for method in METHODS:
                usable = [p for p in ps if by_seed(models, task, p, method, what)]
                values = [list(by_seed(models, task, p, method, what).values()) for p in usable]
                means = [sum(v) / len(v) for v in values]
                axes.plot(usable, means, color=COLOURS[method], marker=MARKERS[method], markersize=4)
                if len(models) > 1:
                    low, high = [min(v) for v in values], [max(v) for v in values]
                    axes.fill_between(usable, low, high, color=COLOURS[method], alpha=0.15, linewidth=0)
            full = list(by_seed(models, task, 1, "naive", what).values())
            if not ps:
                say_missing(axes, "not measured")
                continue
            if full:
                axes.axhline(sum(full) / len(full), color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            _over_p(axes, ps)
            axes.set_ylabel(label(task))
            axes.set_title(words)
        _legend(figure)
    return figure


def figure_parallel_correlation(results: Results) -> Figure:
    """Entropy against what is lost: every P of every task, all remedies; r of those without a remedy."""
    models = own_models(results)
    if not models:
        return _missing()
    with style():
        figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
        for axes, (task, words) in zip(figure.subplots(2, 2).flat, TASKS.items(), strict=True):
            for method in METHODS:
                ps, entropies, losses = [], [], []
                for p in sorted({p for m in models for p in m.segments(task)}):
                    rows = [row for m in models if (row := m.row(task, p, method))]
                    if rows:
                        ps.append(p)
                        entropies.append(_mean(row["entropy"] for row in rows))
                        losses.append(_mean(loss_of(row) for row in rows))
                colour = COLOURS[method]
                axes.scatter(entropies, losses, color=colour, marker=MARKERS[method], s=18, linewidth=0)
                if method == "naive":
                    axes.plot(entropies, losses, color=colour, linewidth=0.7)
                    for p, x, y in list(zip(ps, entropies, losses, strict=True))[:: max(1, len(ps) - 1)]:
                        axes.annotate(f"P={p}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
            axes.set_xlabel("attention entropy, nats")
            axes.set_ylabel("loss, nats" if task == "lm" else "% wrong")
            axes.set_title(f"{words}: r {correlation_text(mean_correlation(models, task))}")
            axes.grid(color=GRID)
        _legend(figure)
    return figure


def figure_parallel_norms(results: Results) -> Figure:
    """Norms of keys and values, a layer, of the first tokens and of all later ones; language modelling. Dashed, where
    the files have them: of the same tokens in full attention."""
    models, task = own_models(results), "lm"
    p = largest(models, task)
    if p is None:
        return _missing()
    panels = [("full, P=1", 1, "naive"), (f"P={p}", p, "naive"), (f"P={p}, sink", p, "sink")]
    kinds = {
        "prefix_first": ("shared prefix", "#0072b2", "s"),
        "segment_first": ("first token of a segment", "#d55e00", "o"),
        "later": ("later tokens", MUTED, "^"),
    }
    with style():
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        grid = figure.subplots(2, 3, sharex=True, sharey="row")
        for line, (which, name) in zip(grid, (("key_norms", "key norm"), ("value_norms", "value norm")), strict=True):
            for axes, (title, p, method) in zip(line, panels, strict=True):
                rows = [row for m in models if (row := m.row(task, p, method))]
                for kind, (_, colour, marker) in kinds.items():
                    _by_layer(axes, [_norms(row, which, kind) for row in rows], color=colour, marker=marker)
                    dashed = [_in_full(row, which, kind) for row in rows]
                    _by_layer(axes, dashed, color=colour, linestyle=(0, (4, 3)), linewidth=0.9)
                axes.grid(color=GRID)
                if which == "key_norms":
                    axes.set_title(title)
                else:
                    axes.set_xlabel("layer")
                    axes.set_xticks(range(1, models[0].values["training"]["model"]["layers"] + 1))
            line[0].set_ylabel(name)
            line[0].set_ylim(bottom=0)  # shared, so only once all three are drawn
        handles = [
            grid[0, 0].plot([], [], color=colour, marker=marker, markersize=4, label=words)[0]
            for words, colour, marker in kinds.values()
        ]
        if any(_in_full(row, "key_norms", "segment_first") for m in models if (row := m.row(task, p, "naive"))):
            dashed = grid[0, 0].plot([], [], color=MUTED, linestyle=(0, (4, 3)), label="the same in full attention")
            handles += dashed
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _by_layer(axes: Axes, series: Sequence[list[float] | None], **look: Any) -> None:
    """The mean of several seeds' numbers a layer; nothing where there are none."""
    there = [layers for layers in series if layers is not None]
    if there:
        mean = [_mean(layer) for layer in zip(*there, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, markersize=4, **look)


_SAME = {"segment_first": "first", "later": "later"}


def _norms(row: dict[str, Any], which: str, kind: str) -> list[float] | None:
    """Norms a layer, of the tokens that `_in_full` has where it has any, and of all if not."""
    if kind in _SAME and (same := _same_tokens(row, which)):
        return same[_SAME[kind]]
    return row[which][kind]


def _in_full(row: dict[str, Any], which: str, kind: str) -> list[float] | None:
    """Norms in full attention of the tokens that are first, or later, in segments of this row; None if not measured."""
    same = _same_tokens(row, which)
    return same[f"{_SAME[kind]}_full"] if same and kind in _SAME else None


def _same_tokens(row: dict[str, Any], which: str) -> dict[str, Any] | None:
    return (row.get("same_tokens") or {}).get(f"{which.partition('_')[0]}s")


def figure_parallel_cost(results: Results) -> Figure:
    """Time and memory of encoding, relative to full attention, against P."""
    found = costs(results)
    if found is None:
        return _missing()
    rows = found.values["rows"]
    full = next(row for row in rows if row["way"] == "full")
    ps = sorted({row["segments"] for row in rows})
    with style():
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        panels = [("cpu_s", "time, ratio to full attention"), ("peak_bytes", "memory, ratio to full attention")]
        for axes, (what, label) in zip(figure.subplots(1, 2), panels, strict=True):
            axes.axhline(1.0, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            for way, colour, marker, words in (
                ("segments", "#0072b2", "o", "as segments"),
                ("mask", "#d55e00", "s", "under a mask"),
            ):
                own = [row for row in rows if row["way"] == way and row[what] is not None and full[what]]
                ratios = [row[what] / full[what] for row in own]
                axes.plot(
                    [1, *(row["segments"] for row in own)], [1.0, *ratios], color=colour, marker=marker, label=words
                )
            if what == "cpu_s":
                pairs = {row["segments"]: row["attention_pairs"] / full["attention_pairs"] for row in rows}
                axes.plot(ps, [pairs[p] for p in ps], color=INK, linewidth=0.9, label="query-key pairs")
            _over_p(axes, ps)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(label)
            axes.legend(frameon=False)
    return figure


def _over_p(axes: Axes, ps: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ps), [str(p) for p in ps])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("segments P")
    axes.grid(color=GRID)


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them."""
    axes = figure.axes[0]
    handles = [
        axes.plot([], [], color=COLOURS[method], marker=MARKERS[method], markersize=4, label=words)[0]
        for method, words in METHODS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(METHODS), frameon=False)


def _mean(values: Any) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _missing() -> Figure:
    with style():
        figure = Figure(figsize=(WIDTH, 1.2))
        say_missing(figure.subplots(), "not measured yet: make parallel")
    return figure
