"""Variance Sensitivity: the paper's theory as printed, as derived (docs/variance_sensitivity.md) and as drawn."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aero.report.papers.variance_sensitivity import COLOURS, FOLDERS, core_legend, line_style, short_name
from aero.report.results import Results
from aero.report.style import GRID, MUTED, no_data, subplots
from aero.sensitivity import theory

POSITION_COLOURS = {2: "#8a6d3b", 20: "#009e73", 200: "#0072b2", 768: "#cc79a7"}


@dataclass(frozen=True)
class TheoryResults:
    """theory.json, and the tables of theory.jsonl by name."""

    folder: Path
    summary: dict[str, Any]
    tables: dict[str, pd.DataFrame]

    def frame(self, table: str, **where: object) -> pd.DataFrame:
        """The rows of a table whose columns have the given values."""
        found = self.tables[table]
        return found[(found[list(where)] == pd.Series(where)).all(axis=1)]


def load_theory(root: Path) -> TheoryResults | None:
    """Fresh results of the stage, else the committed ones; None if there are none."""
    folder = next((folder for folder in map(Path, FOLDERS) if (root / folder / "theory.json").is_file()), None)
    if folder is None:
        return None
    tables: dict[str, list[dict[str, Any]]] = {}
    for text in (root / folder / "theory.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        tables.setdefault(line.pop("table"), []).append(line)
    summary = json.loads((root / folder / "theory.json").read_text(encoding="utf-8"))
    return TheoryResults(folder, summary, {name: pd.DataFrame(lines) for name, lines in tables.items()})


def with_error(mean: float, error: float) -> str:
    """A mean with its standard error in brackets, to two digits of the error: "-0.3786(12)"."""
    if not error > 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f}({error * 10**digits:.0f})"


# Figures --------------------------------------------------------------------------------------------------------------


def figure_expansion(results: Results) -> Figure:
    """Theorem 5.1 against draws: entropy and its derivative over sigma, for several N."""
    found = load_theory(results.root)
    figure, panels = subplots(1, 2, height=2.3)
    if found is None:
        return _empty(figure)
    for n, colour in POSITION_COLOURS.items():
        drawn, curve = found.frame("softmax", positions=n), found.frame("curves", positions=n)
        for panel, exact, printed in zip(panels, ("entropy", "slope"), ("expansion_2", "theorem_slope"), strict=True):
            panel.plot(curve["sigma"], curve[exact], color=colour)
            panel.plot(curve["sigma"], curve[printed], color=colour, linewidth=0.9, linestyle="--")
            errors = 2 * drawn[f"{exact}_error"]
            panel.errorbar(drawn["sigma"], drawn[exact], errors, fmt="o", markersize=3.4, color=colour, capsize=1.5)
    panels[0].set(title="E[H], nats", ylim=(-0.6, math.log(768) + 0.7))
    panels[1].set(title="∂E[H]/∂σ²", ylim=(-1.5, 0.05))
    for panel in panels:
        panel.set_xlabel("σ, standard deviation of the logits")
        panel.grid(color=GRID)
    handles = [Line2D([], [], color=colour, label=f"N = {n}") for n, colour in POSITION_COLOURS.items()]
    handles.append(Line2D([], [], color=MUTED, marker="o", linestyle="", label="drawn"))
    handles.append(Line2D([], [], color=MUTED, label="exact"))
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="Theorem 5.1"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return figure


def figure_3_left(results: Results) -> Figure:
    """Figure 3, left: attention weights of one query at sigma = 1, 2, 4, 8, softmax and ReLU kernel."""
    found = load_theory(results.root)
    figure, panels = subplots(2, 4, height=2.7, sharex=True, sharey=True)
    if found is None:
        return _empty(figure)
    for row, core in zip(panels, ("softmax", "relu"), strict=True):
        for panel, sigma in zip(row, (1.0, 2.0, 4.0, 8.0), strict=True):
            weights = found.frame("weights", core=core, sigma=sigma)["weight"]
            panel.hist(np.maximum(weights, 1e-6), bins=np.logspace(-6, 0, 19), color=COLOURS[core])
            entropy = found.frame("controlled", core=core, sigma=sigma)["entropy"].item()
            panel.set_title(f"σ = {sigma:g}, H = {entropy:.2f}", fontsize=8, fontweight="normal")
            panel.set_xscale("log")
        row[0].set_ylabel(f"{short_name(core)}, keys")
    for panel in panels[1]:
        panel.set_xlabel("attention weight")
    return figure


def figure_3_right(results: Results) -> Figure:
    """Figure 3, right: entropy and its rate of change over the variance of the keys, which is that of the logits."""
    found = load_theory(results.root)
    figure, panels = subplots(1, 2, height=2.0)
    if found is None:
        return _empty(figure)
    settings = found.summary["settings"]["controlled"]
    cores = {core: core.removesuffix("_fixed") for core in settings["cores"]}
    for core, coloured in cores.items():
        frame = found.frame("controlled", core=core)
        squares, entropies = frame["sigma"].to_numpy() ** 2, frame["entropy"].to_numpy()
        panels[0].plot(squares, entropies, **line_style(coloured))
        rate, middle = np.diff(entropies) / np.diff(squares), np.sqrt(squares[1:] * squares[:-1])
        panels[1].plot(middle, rate, **line_style(coloured), marker="o", markersize=2.5)
    panels[0].axhline(math.log(settings["positions"]), color=MUTED, linewidth=0.8, linestyle=":")
    panels[0].set(title="entropy, nats (dotted: log N)", ylim=(0, None))
    panels[1].set_title("ΔH / Δσ²")
    for panel in panels:
        panel.set(xscale="log", xlabel="σ² of the keys")
        panel.grid(color=GRID)
    core_legend(figure, {core: short_name(core) for core in cores.values()})
    return figure


def figure_10(results: Results) -> Figure:
    """Entropy and l2 norm of Dirichlet rows, between the bounds that hold for every row."""
    found = load_theory(results.root)
    figure, panel = subplots(height=2.0)
    if found is None:
        return _empty(figure)
    size = int(found.summary["settings"]["dirichlet"]["positions"])
    entropies = np.linspace(0, math.log(size), 200)
    low, high = zip(*((theory.least_row_norm(h), theory.greatest_row_norm(h, size)) for h in entropies), strict=True)
    panel.fill_between(entropies, low, high, color=GRID, alpha=0.6, linewidth=0, label="possible")
    for line, colour in zip(found.summary["dirichlet"], ("#0072b2", "#d55e00", "#009e73"), strict=False):
        rows = found.frame("dirichlet", alpha=line["alpha"])
        label = f"α = {line['alpha']:g}, correlation {line['correlation']:.2f}"
        panel.scatter(rows["entropy"], rows["norm"], s=6, color=colour, alpha=0.6, linewidth=0, label=label)
    panel.axvline(math.log(size), color=MUTED, linewidth=0.8, linestyle=":")
    panel.set(xlabel=f"entropy of a row over N = {size} keys, nats (dotted: log N)", ylabel="ℓ₂ norm", ylim=(0, 1.03))
    panel.legend(frameon=False)
    panel.grid(color=GRID)
    return figure


def _empty(figure: Figure) -> Figure:
    for panel in figure.axes:
        no_data(panel, "not measured")
    return figure
