"""The theory of `variance_sensitivity` in the report: what is printed, what was derived, what was drawn."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.attention_kernels import core_named
from aero.report.drawing import GRID, MUTED, WIDTH, say_missing, spread, style
from aero.report.marks import Html, gap, grid, number
from aero.report.results import Results
from aero.sensitivity import theory

FOLDERS = (Path("runs/sensitivity"), Path("results/sensitivity"))
TABLES = ("softmax", "curves", "relu", "controlled", "weights", "bounds", "dirichlet")
CORE_COLOURS = {
    "softmax": "#d55e00",
    "window_softmax": "#e69f00",
    "sigma_reparam": "#cc79a7",
    "qk_layernorm": "#009e73",
    "qk_layernorm_fixed": "#009e73",
    "relu": "#0072b2",
    "elu": "#56b4e9",
    "sigmoid": "#8a6d3b",
}
"""One colour a core in all figures of the paper, warm for the softmax-based ones."""
DRAWS = {"softmax": ("draws", "draws of z"), "relu": ("rows", "rows")}
"""Column that counts the independent draws of a cell, and what is drawn, by table."""
EXPANSION_POSITIONS = (2.0, 20.0, 200.0, 768.0)

Line = dict[str, Any]


@dataclass(frozen=True)
class TheoryResults:
    """theory.json and the tables beside it, numbers as floats."""

    folder: Path
    summary: dict[str, Any]
    tables: dict[str, list[Line]]

    def lines(self, table: str, **where: object) -> list[Line]:
        """The lines of a table whose columns have the given values."""
        return [line for line in self.tables[table] if all(line[key] == value for key, value in where.items())]


def load_theory(root: Path) -> TheoryResults | None:
    """Fresh results of the stage if they are whole, else kept ones; None if there are none."""
    for folder in FOLDERS:
        try:
            summary = json.loads((root / folder / "theory.json").read_text(encoding="utf-8"))
            tables = {name: _read(root / folder / f"theory_{name}.csv") for name in TABLES}
        except (OSError, ValueError):
            continue
        return TheoryResults(folder, summary, tables)
    return None


def _read(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in line.items()} for line in csv.DictReader(file)]


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def with_error(mean: float, error: float) -> str:
    """A mean with its standard error in brackets, to two digits of the error: "-0.3786(12)"."""
    if not error > 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f}({error * 10**digits:.0f})"


# Tables -----------------------------------------------------------------------------------------------------------


def table_derivative(results: Results) -> Html:
    """Theorem 5.1's derivative, Appendix E.3's line and its last line beside the drawn slope of the entropy."""
    found = load_theory(results.root)
    if found is None:
        return Html(f"<p>The theory against Monte Carlo: {gap()}.</p>")
    wanted = ((1.0, (1.0,)), (2.0, (0.1, 1.0, 4.0)), (20.0, (0.1, 0.5, 1.0, 3.0)), (200.0, (0.1, 1.0, 3.0, 8.0)))
    rows = []
    for positions, sigmas in wanted:
        for sigma in sigmas:
            for line in found.lines("softmax", positions=positions, sigma=sigma):
                rows.append(
                    [
                        f"{positions:.0f}",
                        f"<code>{sigma:g}</code>",
                        number(_short(line["theorem_slope_quadrature"]), "published", "Theorem 5.1, evaluated"),
                        number(_short(line["appendix_slope_quadrature"]), "published", "Appendix E.3, evaluated"),
                        _ours(_short(line["slope_quadrature"]), found, "softmax"),
                        _ours(with_error(line["slope"], line["slope_error"]), found, "softmax"),
                    ]
                )
    caption = (
        "<b>The derivative ∂H/∂σ² of the softmax’s entropy.</b> Printed formulas are evaluated as they stand. Drawn: "
        "difference quotient of the entropy itself at σ²(1 ± 0.01) on the same normal draws, standard error of the "
        f"last digits in brackets; it uses no formula for the derivative. "
        f"{caption_of(found, 'softmax', [positions for positions, _ in wanted])}"
    )
    heads = [
        "N",
        "σ",
        "Theorem 5.1: −E[Σ z²p]",
        "E.3, differentiated line: −E[Var_p z]/σ",
        "E.3, last line: −E[Var_p z]/2σ²",
        "drawn",
    ]
    return Html(grid(heads, rows, caption, "theory-derivative", (0.07, 0.07, 0.2, 0.24, 0.22, 0.2), "dense"))


def table_relu(results: Results) -> Html:
    """The ReLU kernel's entropy and its squared deviations by D, printed, derived and drawn; undefined rows."""
    found = load_theory(results.root)
    if found is None:
        return Html(f"<p>The ReLU kernel’s entropy: {gap()}.</p>")
    rows = []
    for line in found.lines("relu", positions=20.0):
        scaled = line["dimensions"]
        rows.append(
            [
                f"{scaled:.0f}",
                number(f"{scaled * line['square_printed']:.3f}", "published", "Appendix E.4, tau^2 / mu^2"),
                _ours(f"{scaled * line['square_derived']:.3f}", found, "relu"),
                _ours(with_error(scaled * line["square"], scaled * line["square_error"]), found, "relu"),
                number(f"{line['entropy_printed']:.4f}", "published", "from Appendix E.4's moments"),
                _ours(f"{line['entropy_derived']:.4f}", found, "relu"),
                _ours(with_error(line["entropy"], line["entropy_error"]), found, "relu"),
                _ours(f"{_percent(line['undefined'])} ({_percent(line['undefined_exact'])})", found, "relu"),
            ]
        )
    heads = [
        "D",
        "D E[δ²] printed",
        "derived",
        "drawn",
        "E[H] printed",
        "derived",
        "drawn",
        "rows 0/0, drawn (exact)",
    ]
    scale_key = "relu_scale_difference"
    caption = (
        f"<b>The ReLU kernel, N = 20</b> (log N = {math.log(20):.4f}). Printed: τ²/μ² of Appendix E.4, and log N minus "
        "half of it over D. Drawn over rows that are defined; the expansions are for large D. The largest change of "
        "the mean entropy when queries and keys are scaled by 0.01 to 1,000 is "
        f"{_ours(f'{found.summary[scale_key]:.1e}', found, 'json')}. {caption_of(found, 'relu', [20.0])}"
    )
    return Html(grid(heads, rows, caption, "theory-relu", (0.06, 0.11, 0.1, 0.14, 0.11, 0.1, 0.16, 0.22), "dense"))


def table_bounds(results: Results) -> Html:
    """Proposition 5.3 as printed, and what the masks of the paper's models allow; the norms of three matrices."""
    found = load_theory(results.root)
    if found is None:
        return Html(f"<p>Proposition 5.3: {gap()}.</p>")
    rows = [
        [
            escape(f"{line['model']}, {line['mask']} attention"),
            f"{line['positions']:.0f}",
            number(f"{line['norm_least_printed']:.2f}", "published", "Proposition 5.3"),
            _ours(f"{line['norm_least']:.2f}", found, "bounds"),
            number(f"{line['norm_greatest_printed']:.2f}", "published", "Proposition 5.3"),
            _ours(f"{line['norm_greatest']:.2f}", found, "bounds"),
            number(f"{line['entropy_greatest_printed']:.2f}", "published", "Proposition 5.3"),
            _ours(f"{line['entropy_greatest']:.2f}", found, "bounds"),
        ]
        for line in found.tables["bounds"]
    ]
    heads = ["model", "N", "least ‖P‖_F printed", "is", "greatest printed", "is", "greatest H printed", "is"]
    caption = (
        "<b>Proposition 5.3</b> assumes that every query sees every key. Causal and windowed rows see fewer, so that "
        "the lines at 1 and log N which the paper draws for its language models cannot be reached. " + caption_of(found)
    )
    first = grid(heads, rows, caption, "theory-bounds", (0.36, 0.07, 0.11, 0.07, 0.11, 0.08, 0.12, 0.08), "dense")
    matrices = [
        [
            escape(line["matrix"]),
            *(_ours(f"{line[key]:.2f}", found, "json") for key in ("entropy", "frobenius", "spectral")),
        ]
        for line in found.summary["matrices"]
    ]
    least = found.summary["least_entropy"]
    shrunk = {line["factor"]: line["entropy"] for line in found.summary["layernorm"]}
    words = "; ".join(
        f"{escape(line['model'])} (D = {line['dimensions']}, N = {line['positions']}, |Z| ≤ {line['bound']:g}) "
        + _ours(f"{line['entropy_least']:.4f}", found, "json")
        for line in least
    )
    caption = (
        f"<b>Eq. 9 and QK-LayerNorm.</b> Three attention matrices, N = {found.summary['matrices'][0]['positions']}: "
        "the gradient through P V is multiplied by at most the spectral norm, which a collapse to the own key does not "
        f"raise. Least entropy that γ = 1 leaves: {words}. Its invariance under scaled queries is exact where their "
        f"variance is far above LayerNorm’s ε of 1e-5: mean entropy {_ours(f'{shrunk[1.0]:.4f}', found, 'json')} at "
        f"factor 1, {_ours(f'{shrunk[1000.0]:.4f}', found, 'json')} at 1,000, "
        f"{_ours(f'{shrunk[0.001]:.4f}', found, 'json')} at 0.001. {caption_of(found)}"
    )
    heads = ["attention matrix", "H(P)", "‖P‖_F", "spectral norm"]
    return Html(first + grid(heads, matrices, caption, "theory-matrices", (0.4, 0.2, 0.2, 0.2), "dense"))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share > 1e-8 or not share else "below 10⁻⁶ %"


def _short(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1000 else "0" if abs(value) < 1e-9 else f"{value:.3g}"


def _ours(text: str, found: TheoryResults, table: str) -> str:
    file = "theory.json" if table == "json" else f"theory_{table}.csv"
    return number(text, "paper_dimensions", f"{found.folder}/{file}")


def caption_of(found: TheoryResults, table: str = "", positions: Sequence[float] = ()) -> str:
    """Seed, commit and machine of the theory's results, and how many were drawn for a cell.

    table: the one of `DRAWS` that is shown, if any. positions: those N of it that are shown.
    """
    origin, settings = found.summary["provenance"], found.summary["settings"]
    drawn = ""
    if table:
        column, unit = DRAWS[table]
        counts = [int(line[column]) for line in found.tables[table] if line["positions"] in positions]
        few, many = min(counts), max(counts)
        drawn = f"{few:,} {unit} a cell, " if few == many else f"{few:,} to {many:,} {unit} a cell, "
    return escape(
        f"Computed here: {drawn}seed {settings['seed']}, "
        f"{origin['seconds']:.0f} s; commit {str(origin['commit'])[:10]}; {origin['machine']}."
    )


# Figures ----------------------------------------------------------------------------------------------------------


def sensitivity_expansion(results: Results) -> Figure:
    """Theorem 5.1 against draws: entropy and its derivative over sigma, for several N."""
    found = load_theory(results.root)
    with style():
        figure = Figure(figsize=(WIDTH, 3.3))
        entropy, slope = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.07, right=0.985, top=0.84, bottom=0.14, wspace=0.2)
        if found is None:
            say_missing(entropy, "not measured yet"), say_missing(slope, "not measured yet")
            return figure
        for positions, colour in zip(EXPANSION_POSITIONS, ("#8a6d3b", "#009e73", "#0072b2", "#cc79a7"), strict=True):
            lines, curve = (found.lines(table, positions=positions) for table in ("softmax", "curves"))
            sigmas = [line["sigma"] for line in curve]
            for panel, exact, printed in ((entropy, "entropy", "expansion_2"), (slope, "slope", "theorem_slope")):
                panel.plot(sigmas, [line[exact] for line in curve], color=colour)
                dashed = [line[printed] for line in curve]
                panel.plot(sigmas, dashed, color=colour, linewidth=0.9, linestyle="--")
                _points(panel, lines, exact, colour)
            entropy.annotate(
                f"N = {positions:.0f}", (0.05, curve[0]["entropy"]), (0.25, curve[0]["entropy"] - 0.5), color=colour
            )
        entropy.set_ylim(-0.6, math.log(768) + 0.7)
        entropy.set_title("E[H], nats")
        slope.set_title("∂E[H]/∂σ²")
        slope.set_ylim(-1.5, 0.05)
        slope.axhline(-0.5, color=MUTED, linewidth=0.7, linestyle=":")
        slope.text(8, -0.52, "−½", ha="right", va="top", color=MUTED)
        for panel in (entropy, slope):
            panel.set_xlabel("σ, standard deviation of the logits")
            panel.grid(color=GRID)
        entries = (("●", "drawn, ± 2 standard errors"), ("—", "exact, by quadrature"), ("- -", "Theorem 5.1"))
        _key(figure, entries, gap_=0.3)
    return figure


def _points(panel: Axes, lines: Iterable[Line], key: str, colour: str) -> None:
    for line in lines:
        panel.errorbar(
            line["sigma"],
            line[key],
            yerr=2 * line[f"{key}_error"],
            fmt="o",
            markersize=3.4,
            color=colour,
            elinewidth=0.9,
            capsize=1.5,
        )


def _key(figure: Figure, entries: Sequence[tuple[str, str]], start: float = 0.07, gap_: float = 0.26) -> None:
    for index, (mark, text) in enumerate(entries):
        figure.text(start + gap_ * index, 0.96, f"{mark}  {text}", va="center")


def sensitivity_figure_3(results: Results) -> Figure:
    """Figure 3: attention weights of one query at sigma = 1, 2, 4, 8, and entropy and its rate of change over the
    variance of the logits."""
    found = load_theory(results.root)
    with style():
        figure = Figure(figsize=(WIDTH, 4.2))
        panels = figure.subplots(2, 6, gridspec_kw={"width_ratios": (1, 1, 1, 1, 0.32, 1.9)})
        figure.subplots_adjust(left=0.075, right=0.985, top=0.91, bottom=0.11, wspace=0.18, hspace=0.5)
        for panel in panels[:, 4]:
            panel.set_visible(False)
        if found is None:
            for panel in (*panels[:, :4].flat, *panels[:, 5]):
                say_missing(panel, "not\nmeasured\nyet")
            return figure
        size = found.summary["settings"]["controlled"]["positions"]
        for row, core in enumerate(("softmax", "relu")):
            for panel, sigma in zip(panels[row], (1.0, 2.0, 4.0, 8.0), strict=False):
                weights = [line["weight"] for line in found.lines("weights", core=core, sigma=sigma)]
                panel.hist(
                    np.maximum(weights, 1e-6), bins=np.logspace(-6, 0, 19), color=CORE_COLOURS[core], linewidth=0
                )
                panel.set_xscale("log")
                panel.set_xticks([1e-5, 1e-3, 1e-1], ["10⁻⁵", "10⁻³", "0.1"])
                panel.minorticks_off()
                panel.set_ylim(0, size)
                panel.set_title(f"σ = {sigma:g}", fontsize=8, fontweight="normal")
                entropy = found.lines("controlled", core=core, sigma=sigma)[0]["entropy"]
                panel.text(0.03, 0.97, f"H = {entropy:.2f}", transform=panel.transAxes, va="top", fontsize=7.5)
                if panel is not panels[row, 0]:
                    panel.set_yticklabels([])
            panels[row, 0].set_ylabel(f"{core_named(core).title}\nkeys of one query", fontsize=8)
        panels[1, 1].set_xlabel("attention weight (those below 10⁻⁶ at 10⁻⁶)", x=1.1)
        _entropy_by_variance(panels[0, 5], found, size)
        _rate_by_variance(panels[1, 5], found)
    return figure


def _entropy_by_variance(panel: Axes, found: TheoryResults, size: float) -> None:
    ends = []
    for core in found.summary["settings"]["controlled"]["cores"]:
        lines = found.lines("controlled", core=core)
        panel.plot(
            [line["sigma"] ** 2 for line in lines], [line["entropy"] for line in lines], color=CORE_COLOURS[core]
        )
        ends.append((lines[-1]["sigma"] ** 2, lines[-1]["entropy"], core))
    panel.plot([lines[0]["sigma"] ** 2, ends[0][0]], [math.log(size)] * 2, color=MUTED, linewidth=0.8, linestyle=":")
    panel.set_xscale("log")
    panel.set_xlim(right=ends[0][0] * 90)
    panel.set_xticks([0.1, 1, 10, 64], ["0.1", "1", "10", "64"])
    panel.minorticks_off()
    panel.set_ylim(0, math.log(size) * 1.14)
    for (x, _, core), y in zip(ends, spread([y for _, y, _ in ends], 0.5), strict=True):
        title = core_named(core).title.replace(" Kernel", "").replace("QK-LayerNorm", "QK-LN")
        panel.text(x * 1.25, y, title, color=CORE_COLOURS[core], fontsize=6.5, va="center")
    panel.text(0.06, math.log(size) * 1.02, "log N", color=MUTED, fontsize=7, va="bottom")
    panel.set_title("entropy, nats", fontsize=8)
    panel.set_xlabel("σ² of the keys")


def _rate_by_variance(panel: Axes, found: TheoryResults) -> None:
    for core in ("softmax", "relu"):
        lines = found.lines("controlled", core=core)
        squares = np.array([line["sigma"] ** 2 for line in lines])
        rate = np.diff([line["entropy"] for line in lines]) / np.diff(squares)
        panel.plot(np.sqrt(squares[1:] * squares[:-1]), rate, color=CORE_COLOURS[core], marker="o", markersize=2.5)
    panel.set_xscale("log")
    panel.set_xticks([0.1, 1, 10, 64], ["0.1", "1", "10", "64"])
    panel.minorticks_off()
    panel.set_ylim(-0.6, 0.05)
    panel.axhline(0, color=MUTED, linewidth=0.6)
    panel.text(30, -0.06, "ReLU", color=CORE_COLOURS["relu"], fontsize=7, va="top")
    panel.text(0.1, -0.44, "Softmax", color=CORE_COLOURS["softmax"], fontsize=7, va="bottom")
    panel.set_title("ΔH / Δσ²", fontsize=8)
    panel.set_xlabel("σ² of the keys")


def sensitivity_figure_10(results: Results) -> Figure:
    """Figure 10: entropy and l2 norm of Dirichlet rows, between the two bounds that hold for every row."""
    found = load_theory(results.root)
    with style():
        figure = Figure(figsize=(WIDTH, 3.1))
        panel = figure.subplots()
        figure.subplots_adjust(left=0.08, right=0.97, top=0.96, bottom=0.15)
        if found is None:
            say_missing(panel, "not measured yet")
            return figure
        size = int(found.summary["settings"]["dirichlet"]["positions"])
        entropies = np.linspace(0, math.log(size), 200)
        panel.fill_between(
            entropies,
            [theory.least_row_norm(h) for h in entropies],
            [theory.greatest_row_norm(h, size) for h in entropies],
            color=GRID,
            alpha=0.6,
            linewidth=0,
        )
        for line, colour in zip(found.summary["dirichlet"], ("#0072b2", "#d55e00", "#009e73"), strict=False):
            rows = found.lines("dirichlet", alpha=line["alpha"])
            panel.scatter(
                [r["entropy"] for r in rows], [r["norm"] for r in rows], s=6, color=colour, alpha=0.6, linewidth=0
            )
            mean = np.mean([r["entropy"] for r in rows]), np.mean([r["norm"] for r in rows])
            text = f"α = {line['alpha']:g}\ncorrelation {line['correlation']:.2f}"
            panel.text(mean[0] + 0.5, mean[1] + (0.1 if mean[1] < 0.5 else -0.06), text, color=colour, fontsize=8)
        panel.text(2.6, 0.17, "least norm exp(−H/2)", color=MUTED, ha="right", va="top", fontsize=7.5)
        panel.text(3.0, 0.66, "greatest norm: one large entry, the others equal", color=MUTED, fontsize=7.5)
        panel.axvline(math.log(size), color=MUTED, linewidth=0.8, linestyle=":")
        panel.set_xlim(-0.05, math.log(size) + 0.1)
        panel.set_ylim(0, 1.03)
        panel.set_xlabel(f"entropy of a row over N = {size} keys, nats (dotted: log N)")
        panel.set_ylabel("ℓ₂ norm of the row")
        panel.grid(color=GRID)
    return figure


def caption_expansion(results: Results) -> str:
    """What the caption of the expansion's figure says beyond its title."""
    found = load_theory(results.root)
    if found is None:
        return "Not measured yet."
    return (
        "Left, the expansion holds for σ² small against 2 log N; right, the printed derivative starts at 0, where the "
        f"expansion's slope is −(N−1)/2N, and falls without bound. {caption_of(found, 'softmax', EXPANSION_POSITIONS)}"
    )


def caption_3(results: Results) -> str:
    """What Figure 3's caption says beyond its title."""
    found = load_theory(results.root)
    if found is None:
        return "Not measured yet."
    settings = found.summary["settings"]["controlled"]
    relu = found.lines("controlled", core="relu", sigma=1.0)[0]["entropy"]
    return (
        f"N = {settings['positions']}, unit-norm queries, keys from N(0, σ² I), D = {settings['dimensions']}; mean "
        f"over {settings['matrices']} matrices, histograms of one query. The paper prints no D, but an entropy of "
        "“around 5.0” for the ReLU kernel, which depends on D and N alone: "
        f"{_ours(f'{relu:.2f}', found, 'controlled')} at this one. QK-LayerNorm with γ = 1; its logits have a variance "
        f"of about D whatever σ is. {caption_of(found)}"
    )


def caption_10(results: Results) -> str:
    """What Figure 10's caption says beyond its title."""
    found = load_theory(results.root)
    if found is None:
        return "Not measured yet."
    parts = []
    for line in found.summary["dirichlet"]:
        words = f"α = {line['alpha']:g}:"
        for key, name in (("entropy", "mean entropy"), ("square", "mean squared norm")):
            drawn = _ours(with_error(line[key], line[f"{key}_error"]), found, "json")
            exact = _ours(f"{line[key + '_exact']:.4f}", found, "json")
            words += f" {name} {drawn}, exact {exact};"
        parts.append(words.rstrip(";"))
    rows = found.summary["settings"]["dirichlet"]["rows"]
    return (
        f"{rows} rows of Dirichlet(α1) each; the paper prints no N. {'; '.join(parts)}. Grey: where a row of that "
        f"entropy can lie at all. {caption_of(found)}"
    )
