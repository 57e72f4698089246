"""The report's sections on attention entropy: every figure with its caption, their index, and the heads by rule."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aero.architecture import parse
from aero.entropy import quarter_fractions
from aero.published import load
from aero.report import diagram_figures, entropy_figures, evidence, flops_figures, landscape_figures
from aero.report import figures as aero_figures
from aero.report.entropy_drawing import row_name
from aero.report.entropy_figures import MARGIN_RUNS, PRUNED_RUNS, STABILISED_RUNS
from aero.report.failure_modes import architecture, overflows
from aero.report.figure_index import FIGURES, PAPERS, Drawn
from aero.report.figures import TABLE_2_RUNS
from aero.report.marks import Html, figure_caption, gap, grid, number, row_label, training_caption
from aero.report.page import figure_of
from aero.report.quantities.entropy import clipped
from aero.report.results import Results, Run
from aero.report.statistics import estimate, sampling_error
from aero.report.tables import csv_text, training_origin

MODULES = (entropy_figures, diagram_figures, landscape_figures, flops_figures)
"""Where the figures are; importing them makes them known."""

ELSEWHERE = (
    Drawn(aero_figures.figure_3b, ("aero/figure3",), "AERO Figure 3b, evaluation loss", "", TABLE_2_RUNS, seeds="all"),
)
"""Figures that the report shows beside their table, not with those of entropy; the index names them too."""

TEMPERATURES = Path("reports/tables/learned_temperatures.csv")
"""The file of `files`."""

HEAD_RUNS = (*TABLE_2_RUNS, *STABILISED_RUNS, *PRUNED_RUNS, *MARGIN_RUNS.values())


def figures(results: Results, paper: str) -> Html:
    """The figures that stand first for one of the paper's ("": for none), each with its caption, in their order: on a
    page of all papers each stands once.
    """
    return Html("".join(_shown(results, drawn) for drawn in FIGURES if _first_paper(drawn) == paper))


def all_figures(results: Results, paper: str) -> Html:
    """Every figure that stands for one of the paper's, also where it stands for another paper's first, in the order of
    that paper.
    """
    own = {int(number_): drawn for drawn in FIGURES for number_ in _numbers(drawn, paper)}
    return Html("".join(_shown(results, own[number_]) for number_ in sorted(own)))


def _numbers(drawn: Drawn, paper: str) -> list[str]:
    """The numbers of the paper's figures that one stands for."""
    return re.findall(rf"{paper}/figure(\d+)", " ".join(drawn.published))


def _first_paper(drawn: Drawn) -> str:
    return drawn.papers[0] if drawn.papers else ""


def _shown(results: Results, drawn: Drawn) -> str:
    named = str(TEMPERATURES)
    parts = [escape(drawn.note).replace(named, evidence.link(named))]
    if len(drawn.published) > 1:
        parts.append(f"Stands for {escape(drawn.numbers)}.")
    parts += [f"{escape(said)}." for said in _absent(results, drawn)]
    parts += [_overflows(results, run) for run in drawn.overflows if results.seeds(run)]
    if drawn.runs:
        parts.append(figure_caption(results, drawn.shown(results), drawn.seeds == "first"))
    if drawn.untrained:
        parts.append(escape(drawn.untrained.caption(results)))
    return figure_of(results, drawn.draw, drawn.title, " ".join(parts), drawn.papers).text


def _overflows(results: Results, run: str) -> str:
    """In how many of all its seeds a run overflows float16, and whether in the first, which is drawn."""
    seeds, first = results.seeds(run), results.first(run)
    count = sum(overflows(trained) for trained in seeds)
    of_first = "" if count in (0, len(seeds)) else f", the first {'among' if overflows(first) else 'not among'} them"
    source = f"{first.path}, float16_overflow, and those of its other seeds"
    told = number(f"{count} of {len(seeds)} seeds", training_origin(results.scale), source)
    return f"{row_label(architecture(results, run))}: overflow in {told}{of_first}."


def _absent(results: Results, drawn: Drawn) -> list[str]:
    """ "Slopes not logged: sm-leakyr", a sentence a reason, without its full stop."""
    missing = drawn.missing(results)
    return [f"{reason[0].upper()}{reason[1:]}: {', '.join(runs)}" for reason, runs in missing.items()]


def index(results: Results) -> Html:
    """Published figure, the function that draws it, its runs, and how many of them it shows with how many seeds."""
    rows = []
    listed = [*FIGURES]
    for drawn in ELSEWHERE:  # after the last that stands for the same figure
        same = [place for place, one in enumerate(listed) if set(drawn.published) & set(one.published)]
        listed.insert(same[-1] + 1 if same else len(listed), drawn)
    for drawn in sorted(listed, key=lambda d: (not d.published, list(PAPERS).index(_first_paper(d) or "aero"))):
        whole = {run: trained for run, trained in drawn.whole(results).items() if trained}
        present = drawn.untrained.present(results) if drawn.untrained else f"{len(whole)} of {len(drawn.runs)}"
        lost = "<br>".join(gap(said) for said in _absent(results, drawn))
        how_many = _span([len(results.seeds(run)) if drawn.seeds == "first" else len(whole[run]) for run in whole])
        if drawn.seeds == "first" and how_many not in ("", "1"):
            how_many = f"first of {how_many}"
        rows.append(
            [
                escape(drawn.numbers or "in no paper"),
                f"{escape(drawn.title)}<br><code>{drawn.draw.__module__}.{drawn.name}</code>",
                f"{escape(present)}{'<br>' + lost if lost else ''}",
                escape(drawn.untrained.sizes if drawn.untrained else results.scale),
                "none" if drawn.untrained else how_many,
            ]
        )
    return Html(
        grid(
            ["published", "here", "runs", "scale or sizes", "seeds a run"],
            rows,
            "Every figure of the three papers on entropy; a run counts where all that the figure needs of it is there, "
            "and seeds are those that are drawn. AERO's Figure 1 is of costs and stands with them; its Figures 2 and 8 "
            "are diagrams of the same things as Entropy-Guided Attention's 1 and 3.",
            "figure-index",
            (0.24, 0.36, 0.22, 0.1, 0.08),
            "dense",
        )
    )


def _span(counts: Sequence[int]) -> str:
    """ "3", "1 to 3", or nothing of nothing."""
    ends = sorted(set(counts))
    return f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else "".join(map(str, ends))


def heads_by_rule(results: Results, runs: Sequence[str] = HEAD_RUNS) -> Html:
    """Overloaded and collapsed heads of every run against three maxima, with the sampling error of the first."""
    printed = _printed()
    rows = []
    for run in dict.fromkeys(runs):
        trained = results.first(run)
        facts = [printed.get((run, quarters), "") for quarters in ((3,), (1, 2), (0,))]
        published = [number(text, "published", "AERO, Figures 3a and 18") + "<br>" if text else "" for text in facts]
        if trained is None or trained.entropy is None:
            said = gap("not run yet" if trained is None else "entropies not usable")
            rows.append([_label(results, run), published[0] + said, "", "", published[1], published[2], "", ""])
            continue
        rows.append(
            [
                _label(results, run),
                published[0] + _fraction(results, run, "observed", (3,)),
                _fraction(results, run, "causal_bound", (3,)),
                _fraction(results, run, "log_T", (3,)),
                published[1] + _fraction(results, run, "observed", (1, 2)),
                published[2] + _fraction(results, run, "observed", (0,)),
                *_layers(trained),
            ]
        )
    caption = (
        "<b>Overload and collapse by rule.</b> A head is overloaded if its mean entropy is in the highest quarter of "
        "the maximum, collapsed if in the lowest or not finite; a layer is named where more than half of its heads "
        "are. The papers' maximum is the largest entropy observed in the model. Brackets: 95 % t-interval over seeds, "
        "cut at 0 and 100 %; ±: standard error of the first seed for the held-out tokens, by a bootstrap over blocks "
        "of them, where they are stored. "
        f"{training_caption(results, [run for run in runs if results.seeds(run)])}"
    )
    heads = [
        "configuration",
        "over­loaded, of observed max.",
        "of causal bound",
        "of log T",
        "in the middle, of observed max.",
        "col­lapsed, of observed max.",
        "layers over­loaded",
        "layers col­lapsed",
    ]
    return Html(grid(heads, rows, caption, "heads-by-rule", (0.22, 0.17, 0.09, 0.08, 0.15, 0.15, 0.07, 0.07), "dense"))


def _printed() -> dict[tuple[str, tuple[int, ...]], str]:
    """The papers' fractions of heads by run and quarters, as text."""
    figures_ = load("aero").facts["figures"]
    names = {row_name(run): run for run in TABLE_2_RUNS}
    found = {
        (names[entry["row"]], tuple(entry["quarters"])): ("about " if entry.get("approximate") else "")
        + f"{100 * entry['value']:.0f} %"
        for entry in figures_["3a"]["fractions"]
    }
    margins = figures_["18"]["fractions"]
    return found | {(run, (3,)): f"{100 * margins[gamma]:.3g} %" for gamma, run in MARGIN_RUNS.items()}


def _label(results: Results, run: str) -> str:
    """Architecture of a run, and its margin where it is not the common one."""
    entry = (results.parameters.get("runs") or {}).get(run) or {}
    gamma = (entry.get("regularizer") or {}).get("gamma")
    return row_label(entry.get("architecture", run)) + (f", γ = {gamma:.2f}" if gamma is not None else "")


def _fraction(results: Results, run: str, maximum: str, quarters: Sequence[int]) -> str:
    seeds = results.share_of_heads(run, quarters, maximum)
    found = clipped(estimate({seed: 100 * share for seed, share in seeds.items()}), 0, 100)
    if found is None:
        return gap("–")
    text = found.text(0, "%") if maximum == "observed" else f"{found.mean:.0f} %"
    trained = results.first(run)
    if maximum == "observed" and (error := fraction_error(trained, quarters)) is not None:
        text += f" ± {100 * error:.1f}"
    return number(text, training_origin(results.scale), trained.path)


def fraction_error(run: Run, quarters: Sequence[int]) -> float | None:
    """Standard error, for the held-out tokens, of the fraction of heads in the quarters of the observed maximum, those
    that are not finite with the lowest; None if the blocks of them are not stored.
    """

    def fraction(heads: NDArray[np.float64]) -> float:
        if not np.isfinite(heads).any() or (top := np.max(heads[np.isfinite(heads)])) <= 0:
            return math.nan
        shares = quarter_fractions(torch.from_numpy(heads), top)
        broken = float(np.mean(~np.isfinite(heads))) if 0 in quarters else 0.0
        return math.fsum([*(shares[q] for q in quarters), broken])

    found = sampling_error(fraction, np.array(run.entropy.blocks)) if run.entropy.blocks else None
    return None if found is None else float(found)


def _layers(run: Run) -> list[str]:
    """Layers where most heads are overloaded, and those where most have collapsed: "1-7" for neighbours."""
    texts = []
    for failures in (run.entropy.overload, run.entropy.collapse):
        spans: list[list[int]] = []
        for layer in failures["layers"]:
            if spans and spans[-1][-1] == layer - 1:
                spans[-1].append(layer)
            else:
                spans.append([layer])
        texts.append(", ".join(f"{s[0] + 1}–{s[-1] + 1}" if len(s) > 1 else str(s[0] + 1) for s in spans) or "none")
    return texts


def sampling_summary(results: Results) -> Html:
    """How large the sampling errors of headwise entropies are, and how the spread of blocks compares with that of
    sequences, in a sentence.
    """
    ratios, errors, files = [], [], []
    for run in dict.fromkeys(HEAD_RUNS):
        trained = results.first(run)
        if trained is None or trained.entropy is None or not trained.entropy.blocks or not trained.entropy.sem:
            continue
        error = sampling_error(lambda heads: heads, np.array(trained.entropy.blocks))
        by_sequence = np.array(trained.entropy.sem)
        usable = by_sequence > 1e-6
        errors.append(float(np.nanmax(error)))
        files.append(str(Path(trained.path).with_name("entropy.json" + "l" * trained.path.endswith("l"))))
        ratios += (error[usable] / by_sequence[usable]).tolist()
    if not errors:
        return Html("<p>No run here has blocks of held-out tokens stored, so no sampling error is shown.</p>")
    origin, source = training_origin(results.scale), ", ".join(files)
    largest, ratio = (
        number(text, origin, source) for text in (f"{max(errors):.3f}", f"{float(np.median(ratios)):.1f}")
    )
    return Html(
        f"<p>The mean entropy of a head has a standard error of {largest} nats at most for the held-out tokens "
        f"({len(errors)} runs with blocks of them stored); errors over blocks of consecutive sequences are {ratio} "
        "times those over sequences taken as independent (median over heads).</p>"
    )


def files(results: Results) -> dict[Path, str]:
    """Path below the project's root and text of the table of learned temperatures, of every run that learns them.

    A line a run, seed, layer and head, counted from 1: the mean over query positions. A line a layer, `head` "mean":
    the mean over its heads, which alone is stored by position, with its lowest and highest position and the share of
    positions where it is below 0. A line without a number for a run that has none.
    """
    columns = ("run", "architecture", "scale", "seed", "layer", "head", "temperature")
    lines = []
    for name, entry in (results.parameters.get("runs") or {}).items():
        if not parse(entry["architecture"]).temperature:
            continue
        common = {"run": name, "architecture": entry["architecture"], "scale": results.scale}
        lines += [common | line for trained in results.seeds(name) for line in _temperatures(trained)]
        if not results.seeds(name):
            lines.append(common | {"note": "not run yet"})
    return {TEMPERATURES: csv_text(lines, (*columns, "lowest", "highest", "share_below_0", "note"))}


def _temperatures(trained: Run) -> list[dict[str, object]]:
    learned = trained.entropy.learned if trained.entropy else {}
    seed = {"seed": trained.seed}
    if not (by_head := learned.get("temperature_mean")):
        return [seed | {"note": "temperatures not stored"}]
    by_position = learned.get("temperature_by_position") or [None] * len(by_head)
    lines: list[dict[str, object]] = []
    for layer, (heads, positions) in enumerate(zip(by_head, by_position, strict=True), start=1):
        place = seed | {"layer": layer}
        lines += [place | {"head": head, "temperature": f"{value:.6g}"} for head, value in enumerate(heads, start=1)]
        mean = {"head": "mean", "temperature": f"{math.fsum(heads) / len(heads):.6g}"}
        lines.append(place | mean | _over_positions(positions))
    return lines


def _over_positions(values: Sequence[float] | None) -> dict[str, str]:
    if values is None:
        return {"note": "temperatures by position not stored"}
    found = {"lowest": min(values), "highest": max(values), "share_below_0": np.mean(np.array(values) < 0)}
    return {name: f"{value:.6g}" for name, value in found.items()}
