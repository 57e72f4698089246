"""AERO: its tables of perplexity and counts, and its figures other than those of attention entropy.

Costs of private inference are in `private_inference` and `private_tables`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.figure import Figure

from aero.architecture import parse
from aero.flops import GPT2, PYTHIA, Sizes, count, crossover
from aero.published import load
from aero.records import read_csv
from aero.report import show
from aero.report.costs import GB, PROGRAMS, counted, fits, row_costs
from aero.report.papers.panels import PRUNED, TABLE_2_RUNS, layer_lines, learned, mean_and_range, notation
from aero.report.papers.private_tables import PROGRAM_NAMES, text
from aero.report.papers.variance_cores import COMPARED, run_name
from aero.report.results import Results
from aero.report.statistics import (
    change,
    estimate,
    gate,
    gate_values,
    log_ratios,
    ngrams,
    outcomes,
    pooled_deviation,
    registered,
    seed_count,
    trained,
)
from aero.report.tables import perplexities
from aero.report.trainings import perplexity_change
from aero.report.verdicts import decide

FIGURE_1_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFNi_6", "SOTA(SM+ScFuFFNi_1)")
TABLE_1 = ("SM+LN+G", "SM+LN+R", "SM+LN", "SM+G", "SM+R", "SM")
CHANGES = (
    *(("2", row) for row in ("SM+LN+R", "SM+R", "SM+G", "SM")),
    *(("4", row) for row in ("SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFNi_6")),
    *(("4", f"EReg(SM(t)+{row})") for row in ("ScFuFFN", "ScFuFFNi_6")),
    ("4", "SOTA(SM+ScFFN)"),
)
"""Rows of AERO's tables whose change in perplexity is drawn."""
CONTEXTS = 2 ** np.arange(7, 14)


table_2, table_3, table_4, table_5, table_6, table_7, table_8, table_9 = (
    partial(perplexities, address=f"aero/table{number}") for number in range(2, 10)
)


def table_4_counts(results: Results) -> pd.DataFrame:
    """Table 4's FLOPs and nonlinear operations, printed and counted by Appendix E."""
    printed = load("aero").tables["4"]
    lines = []
    for row in printed.rows:
        counts = counted(row.name, printed)
        same = [str(one) for one in row.cells["nonlinear"].operations] == [str(one) for one in counts.nonlinear]
        lines.append(
            {
                "configuration": row.name,
                "FFN GFLOPs, published": row.cells["flops_ffn"].text,
                "counted": f"{counts.ffn / 1e9:.1f}",
                "attention GFLOPs, published": row.cells["flops_attention"].text,
                "counted ": f"{counts.attention / 1e9:.1f}",
                "nonlinear operations": "as printed" if same else "; ".join(map(str, counts.nonlinear)),
            }
        )
    return pd.DataFrame(lines)


def table_1(results: Results) -> pd.DataFrame:
    """Table 1's six architectures as the parser reads them, with their nonlinear operations at Table 4's sizes."""
    printed = load("aero").tables["4"]
    return pd.DataFrame(
        {
            "abbreviation": name,
            "LayerNorm": "yes" if parse(name).layer_norm else "no",
            "feed-forward network": parse(name).ffn,
            "nonlinear operations": "; ".join(f"{one.name}: {one.count} of {one.rows}×{one.columns}" for one in found),
        }
        for name in TABLE_1
        for found in [counted(name, printed).nonlinear]
    )


NGRAM = "best n-gram model of the same tokens"
NGRAM_LINE = {"color": show.MUTED, "linewidth": 0.9, "linestyle": ":"}


def ngram_line(results: Results, draw: Callable[..., object], **parts: Any) -> None:
    """Draw a line at the perplexity of the best n-gram model of SM+LN+G's tokens, over that of SM+LN+G."""
    if (found := gate_values(results, "sm-ln-g")) is not None:
        draw(found[1] / found[0], **NGRAM_LINE, **parts)


def figure_1(results: Results) -> Figure:
    """GB, WAN minutes and perplexity (over SM+LN+G's) along AERO's steps, published and here."""
    table, fitted = load("aero").tables["4"], fits(results)
    colours = {"paper": show.PUBLISHED, "reproduced": show.AS_PUBLISHED, "stock SPU": show.AS_WRITTEN}
    colours |= {"optimised": show.TUNED, "trained here": show.MEASURED}
    rows = [table.row(name) for name in FIGURE_1_ROWS]
    fit = [fitted.get(("4", row.name)) for row in rows]
    found = [change(results, row.run or "", "sm-ln-g").estimate for row in rows]
    gigabytes = {"paper": [row.cells["communication"].value for row in rows]}
    gigabytes["reproduced"] = [one and one.gigabytes for one in fit]
    minutes = {"paper": [row.cells["latency"].value for row in rows], "reproduced": [None] * len(rows)}
    for program in PROGRAMS:
        costs = [row_costs(results, table, row.name).get(program) for row in rows]
        gigabytes[PROGRAM_NAMES[program]] = [cost and cost.bytes / GB for cost in costs]
        minutes[PROGRAM_NAMES[program]] = [cost and cost.latency_wan and cost.latency_wan / 60 for cost in costs]
    ratios = {"paper": [row.cells["ppl"].value / table.value("SM+LN+G", "ppl") for row in rows]}
    ratios["trained here"] = [one and 1 + one.mean / 100 for one in found]
    figure, panels = show.subplots(1, 3, height=3.6, sharey=True)
    shown = {"GB": gigabytes, "minutes, WAN": minutes, "perplexity ratio": ratios}
    for panel, (title, bars) in zip(panels, shown.items(), strict=True):
        for number, (label, values) in enumerate(bars.items()):
            heights = np.arange(len(rows)) + (number - (len(bars) - 1) / 2) * 0.9 / len(bars)
            drawn = panel.barh(heights, np.array(values, float), 0.82 / len(bars), color=colours[label])
            if label not in ("reproduced", "stock SPU"):  # numbers of neighbours would overlap
                panel.bar_label(drawn, fmt=" {:.2f}" if bars is ratios else " {:.2g}")
        panel.set_title(title)
        panel.grid(axis="x")
        panel.margins(x=0.14)
    ngram_line(results, panels[2].axvline)
    panels[0].set_yticks(range(len(rows)), FIGURE_1_ROWS)
    panels[0].tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    handles = [panels[0].barh(0, 0, color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


def figure_3b(results: Results) -> Figure:
    """Evaluation loss of Table 2's configurations over training: mean and range over the seeds that did not diverge,
    the loss axis zoomed."""
    figure, axes = show.subplots(height=1.55)
    ends = []
    for run in TABLE_2_RUNS:
        seeds = results.seeds(run)
        whole = [one for one in seeds if not one.diverged]
        diverged, curves = len(seeds) - len(whole), [one.series("eval_loss") for one in whole or seeds]
        label = notation(results, run) + f" ({diverged} of {len(seeds)} diverged)" * bool(diverged)
        mean = mean_and_range(axes, curves, color=show.SERIES[run], label=label)
        ends.extend(mean.iloc[-1:])
    if not ends:
        return show.not_measured()
    if (found := gate_values(results, "sm-ln-g")) is not None:
        axes.axhline(math.log(found[1]), label=NGRAM, **NGRAM_LINE)
    # The worst run (SM) would stretch the axis.
    axes.set(ylim=(min(ends) - 0.1, sorted(ends)[-2:][0] + 0.5), xlabel="training step", ylabel="loss, nats")
    axes.grid(axis="y")
    figure.legend(loc="outside right center", frameon=False)
    return figure


def perplexity_changes(results: Results) -> Figure:
    """Perplexity over that of SM+LN+G: published, and measured with its 95 % t-interval over seeds."""
    figure, axes = show.subplots(height=2.2)
    measured = "measured, line: 95 % interval over seeds"
    for place, (number, name) in enumerate(CHANGES):
        table = load("aero").tables[number]
        printed = table.value(name, "ppl") / table.value("SM+LN+G", "ppl")
        axes.plot([printed], [place], "D", color=show.PUBLISHED, label="" if place else "published")
        compared = change(results, table.row(name).run or "", "sm-ln-g")
        found = compared.estimate
        if found is None:
            why = "training failed" if compared.failed else "not measured"
            axes.text(0.98, place, why, va="center", ha="right", color=show.MUTED, style="italic")
            continue
        if found.has_interval:
            ends = [1 + end / 100 for end in (found.low, found.high)]
            axes.plot(ends, [place] * 2, color=show.AS_WRITTEN, linewidth=2.2)
        axes.plot([1 + found.mean / 100], [place], "o", color=show.AS_WRITTEN, markersize=5.5, label=measured)
        measured = ""
    axes.axvline(1, color=show.INK, linewidth=0.8)
    ngram_line(results, axes.axvline, label=NGRAM)
    axes.set(xscale="log", xlabel="perplexity over that of SM+LN+G")
    axes.set_xticks([0.5, 0.7, 1, 1.4, 2, 3], ["0.5", "0.7", "1", "1.4", "2", "3"])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(CHANGES)), [name for _, name in CHANGES])
    axes.set_ylim(len(CHANGES) - 0.5, -0.6)
    axes.grid(axis="x")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def predicted_differences(results: Results) -> pd.DataFrame:
    """Differences in perplexity of scale desk, and their signs and published sizes as registered before training."""
    lines, desk = [], results.at("desk")
    for one in registered(results):
        run, against, size = one["run"], one["against"], one["published"]
        if desk.seeds(run) and desk.seeds(against):
            measured, own = change(desk, run, against).estimate, estimate(log_ratios(desk, run, against))
            by_pooling = own is not None and own.has_interval and measured.excludes(0) and not own.excludes(0)
            sign = {"+": "above 0", "-": "below 0"}[one["sign"]]
            lines.append(
                {
                    "configuration": notation(results, run),
                    "against": notation(results, against),
                    "predicted, %": f"{size:+g}" + " (Pythia)" * ("Pythia" in one["where"]) if size else sign,
                    "measured, %": measured.text(1, signed=True) + " *" * by_pooling if measured else "–",
                    "seeds": len(measured.seeds) if measured else 0,
                    "verdict": _verdict(desk, one),
                }
            )
    return pd.DataFrame(lines)


def _verdict(results: Results, registered_one: Mapping[str, Any]) -> str:
    """On a registered comparison, by the rules registered with it."""
    run, against, size = (registered_one[key] for key in ("run", "against", "published"))
    measured = perplexity_change(results, run, against)
    reasons = filter(None, (measured.missing, gate(results, run), gate(results, against)))
    measured = dataclasses.replace(measured, missing="; ".join(reasons))
    if size:
        return decide("equal_within", measured, value=size).verdict
    return decide("above" if registered_one["sign"] == "+" else "below", measured).verdict


def papers_width(results: Results) -> pd.DataFrame:
    """The trainings of scale gpu: perplexity or the step at which it diverged, and the published perplexity."""
    tables = load("aero").tables
    printed = {row.name: row.cells["ppl"].text for table in "42" for row in tables[table].rows}
    return pd.DataFrame(
        {
            "configuration": run.architecture,
            "perplexity": text(one.perplexity),
            "diverged at step": f"{one.diverged_at} of {one.metrics['train']['steps']:,}" if one.diverged else "–",
            "published perplexity": printed.get(run.architecture) or "–",
        }
        for name, run in results.parameters.runs.items()
        for one in results.at("gpu").seeds(name)
    )


def repeated(results: Results) -> dict[str, object]:
    """How many trainings of scale desk there are, how many of a GPU, and which runs diverged; for those repeated on a
    CPU, its perplexity over the GPU's and how many lie within the range of the run's seeds."""
    lines, desk = read_csv(results.root / "results/desk/repeated.csv"), results.at("desk")
    repeats = {one["run"]: float(one["cpu"]) for one in lines if one["quantity"] == "perplexity"}
    ratios = {one["run"]: float(one["cpu"]) / float(one["gpu"]) for one in lines if one["run"] in repeats}
    seeds = {run: [one.metrics["eval_perplexity"] for one in desk.seeds(run)] for run in repeats}
    within = sum(min(seeds[run]) <= cpu <= max(seeds[run]) for run, cpu in repeats.items() if seeds[run])
    changes = ", ".join(f"{notation(results, run)} {100 * (ratio - 1):+.1f} %" for run, ratio in ratios.items())
    kept = {run: found for run in results.parameters.runs if (found := desk.seeds(run))}
    devices = [one.metrics["provenance"]["device"] for found in kept.values() for one in found]
    counts = {run: sum(one.diverged for one in found) for run, found in kept.items()}
    diverged = [f"{notation(results, run)} ({n} of {len(kept[run])})" for run, n in counts.items() if n]
    known = {"all": len(devices), "gpu": len(devices) - devices.count("cpu"), "diverged": ", ".join(diverged)}
    return known | {"changes": changes, "within": within, "repeats": len(repeats)}


def training_numbers(results: Results) -> dict[str, str]:
    """Of scale desk: the gate's numbers, the price of AERO's last steps, and how many trainings of some runs failed."""
    desk, numbers = results.at("desk"), {}
    for name, run in {"sm": "sm", "scaled": "sm-scffn", "fused": "sm-scfuffn", "weight_norm": "sm-wnorm-ffn"}.items():
        every = sum(outcomes(desk, run).values(), [])
        numbers[name] = f"{sum(every)} of {len(every)}"
    for name, run in {"pruned": "sm-scfuffni-6", "final": "ereg-smt-scfuffni-6"}.items():
        price = change(desk, run, "sm-ln-g").estimate
        numbers[name] = f"{price.text(1, signed=True)} %" if price else "not measured"
    found = gate_values(desk, "sm-ln-g")
    gate_of = (text(found[0]), text(found[1]), f"{found[2]:.0%}") if found else ("not measured",) * 3
    deviation, freedom = pooled_deviation(desk)
    numbers |= {"deviation": f"{100 * deviation:.1f} %", "freedom": str(freedom)}
    return numbers | dict(zip(("perplexity", "best", "heads"), gate_of, strict=True))


def _outcome(perplexity: float, diverged_at: object) -> str:
    return f"diverged at {diverged_at}" if diverged_at else text(perplexity)


def learning_rates(results: Results) -> pd.DataFrame:
    """Perplexity of short trainings of scale desk, or the step at which they diverged, by learning rate; first the runs
    whose order was predicted."""
    cells: dict[tuple[int, float], dict[str, str]] = defaultdict(dict)
    lines = read_csv(results.root / "results/desk/learning_rates.csv")
    names = [notation(results, run) for run in registered(results, "learning_rate_limits")] if lines else []
    for line in lines:
        outcome = _outcome(float(line["eval_perplexity"] or math.nan), line["diverged_at_step"])
        names.append(notation(results, line["run"]))
        cells[int(line["accumulation"]), float(line["learning_rate"])][names[-1]] = outcome
    by_rate = {f"{rate:g}" + f", {n} micro-batches a step" * (n > 1): cells[n, rate] for n, rate in sorted(cells)}
    return pd.DataFrame(by_rate, dict.fromkeys(names)).fillna("–").T.rename_axis("learning rate").reset_index()


def pruning(results: Results) -> pd.DataFrame:
    """Perplexity of SM+ScFuFFN by number of pruned feed-forward networks: first seed, mean of seeds that trained."""
    lines, seed = [], results.parameters.seeds[0]
    for pruned, run in enumerate(PRUNED):
        of_seed = [_outcome(one.perplexity, one.diverged_at) for one in results.seeds(run) if one.seed == seed]
        succeeded = list(trained(results, run).values())
        mean = text(float(np.mean(succeeded)) if succeeded else None)
        first = of_seed[0] if of_seed else "–"
        lines.append({"pruned": pruned, f"seed {seed}": first, "mean": mean, "seeds": seed_count(results, run)})
    return pd.DataFrame(lines)


def against_ngrams(results: Results) -> Figure:
    """Perplexity of scale desk's runs (of pruned ones that with six, no cores) and of n-gram models of their tokens."""
    desk = results.at("desk")
    left_out = {*PRUNED, *map(run_name, COMPARED)} - {"sm-scfuffn", "sm-scfuffni-6"}
    names = [one for one in results.parameters.runs if desk.perplexity(one) and one not in left_out]
    if not names:
        return show.not_measured()
    figure, axes = show.subplots(height=0.85 + 0.132 * max(len(names), 4))
    for place, name in enumerate(names):
        values = list(desk.perplexity(name).values())
        axes.plot([min(values), max(values)], [place, place], color=show.MEASURED)
        axes.plot([sum(values) / len(values)], [place], "o", color=show.MEASURED)
    tokens = desk.first(names[0]).metrics["tokens"]
    for order, perplexity in ngrams(results, "desk", tokens).items():
        if order > 1:
            axes.axvline(perplexity, **NGRAM_LINE)
            axes.text(perplexity, -0.6, f"{order}", ha="center", color=show.MUTED)
    axes.set_yticks(range(len(names)), [notation(results, name) for name in names])
    axes.set(ylim=(len(names) - 0.5, -1.3), xlabel="evaluation perplexity")
    axes.grid(axis="x")
    return figure


def figure_4(results: Results) -> Figure:
    """Learned negative slopes of the leaky ReLU over training, one a layer and one for all layers."""
    figure, panels = show.subplots(1, 2, height=1.3)
    layer_lines(panels[0], results, "sm-leakyr", "(a) one slope per layer", "slope")
    layer_lines(panels[1], results, "sm-leakyr-global", "(b) one slope for all layers", "slope")
    for panel in panels:
        panel.axhline(0, color=show.INK, linewidth=0.7)
        panel.set_xlabel("training step")
    panels[0].set_ylabel("negative slope")
    return figure


def figure_11(results: Results) -> Figure:
    """Learned alpha (divides the FFN's output) and beta (scales the residual) of each layer; dots: trained seeds."""
    figure, panels = show.subplots(1, 2, height=1.2)
    for panel, name, sign in zip(panels, ("alpha", "beta"), ("α", "β"), strict=True):
        panel.set_title(sign)
        runs = (run for run in results.seeds("sm-scffn") if run.seed in trained(results, "sm-scffn"))
        found = [values for run in runs if (values := learned(run, name)) is not None]
        if not found:
            show.no_data(panel, "not measured")
            continue
        layers = np.arange(1, len(found[0]) + 1)
        panel.bar(layers, np.mean(found, axis=0), 0.7, color=show.AS_WRITTEN)
        for values in found:
            panel.plot(layers, values, linestyle="none", marker="o", markersize=2.5, color=show.INK)
        panel.axhline(1, color=show.MUTED, linewidth=0.8, linestyle=":")
        panel.set(xticks=layers, xlabel="layer")
        panel.grid(axis="y")
    return figure


def _flops(results: Results, models: Mapping[str, Sizes]) -> Figure:
    """FLOPs per token of a family, smallest to largest, from 128 to 8K tokens: stacked bars with the FFN's share above;
    dotted: T = 8d/3, where attention and FFN are equal."""
    figure, panels = show.subplots(len(models) // 4, 4, height=0.35 + 1.25 * len(models) / 4, squeeze=False)
    places = np.arange(len(CONTEXTS))
    for panel, (name, sizes) in zip(panels.flat, models.items(), strict=True):
        panel.set_title(f"{name}\nL={sizes.layers}, d={sizes.width}")
        counts = [count(parse("SM+LN+G"), sizes, context) for context in CONTEXTS]
        ffn, attention = (
            np.array([getattr(c, part) for c in counts]) / CONTEXTS / 1e9 for part in ("ffn", "attention")
        )
        panel.bar(places, ffn, 0.72, color=show.AS_WRITTEN, label="feed-forward network")
        drawn = panel.bar(places, attention, 0.72, bottom=ffn, color=show.PUBLISHED, label="attention")
        box = {"facecolor": show.PAPER, "edgecolor": "none", "pad": 0.5}  # over the dotted line
        panel.bar_label(drawn, [f"{100 * one.ffn_share:.0f}" for one in counts], rotation=90, bbox=box)
        equal = np.log2(crossover(sizes.width) / CONTEXTS[0])
        if equal < len(CONTEXTS) - 0.5:
            panel.axvline(equal, color=show.INK, linewidth=0.9, linestyle=":")
        panel.set_xticks(places[::2], [str(c) if c < 1024 else f"{c // 1024}K" for c in CONTEXTS[::2]])
        panel.margins(y=0.45)
    setp(panels[:, 0], ylabel="GFLOPs")
    setp(panels[-1], xlabel="context length T")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


figure_20, figure_21 = (partial(_flops, models=models) for models in (GPT2, PYTHIA))
