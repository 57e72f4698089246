"""Figures of what private inference costs: bytes and minutes by part, the published minutes, Pareto front;
tables of the same under SPU's other protocols, and of other systems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from aero.architecture import parse
from aero.published import PEERS, load
from aero.records import read_csv
from aero.report import costs, show
from aero.report.costs import GB, OPTIMISED, PROGRAMS, STOCK
from aero.report.papers.private_tables import HEADLINE, OUTSIDE, PROGRAM_NAMES, ROW, gigabytes, text
from aero.report.results import Results
from aero.report.statistics import CONTROL, trained
from aero.two_party.cost.composition import estimate
from aero.two_party.cost.cost_model import measured_operations
from aero.two_party.cost.counts import published_sizes

PART_COLOURS = ("#d55e00", "#e69f00", "#f0e442", "#56b4e9", "#0072b2", "#009e73", "#9aa3ae")
"""Okabe and Ito's, one a part of the model."""


def by_part(results: Results, quantity: str) -> Figure:
    """GB, or seconds of computing, of the first table's rows by part of the model, stock SPU above optimised."""
    lines = {
        (line["architecture"], line["program"]): line
        for line in read_csv(results.root / "results/two_party/all_rows.csv")
        if (line["model"], line["context"]) == ("gpt2", "128") and line["bytes_by_kind"]
    }
    unit, label = {
        "bytes": (GB, "GB of one forward pass, both directions"),
        "seconds": (1.0, "seconds of computing, two processes on 2 cores"),
    }[quantity]
    bars = [
        (name, program, {part: amount / unit for part, amount in costs.parts(lines[name, program], quantity).items()})
        for name in HEADLINE
        for program in PROGRAMS
        if (name, program) in lines
    ]
    return _stacked(bars, dict(zip(costs.PARTS, PART_COLOURS, strict=True)), label)


def minutes_by_part(results: Results) -> Figure:
    """Minutes of the first table's rows on the published network: computing, transfer, rounds; published as a mark."""
    table, bars, printed = load("aero").tables["4"], [], {}
    for name in HEADLINE:
        printed[name] = table.value(name, "latency")
        for program, cost in costs.row_costs(results, table, name).items():
            if (found := costs.wan_minutes(results, cost)) is not None:
                bars.append((name, program, vars(found)))
    colours = {"computing": show.MUTED, "transfer": "#56b4e9", "rounds": "#e69f00"}
    return _stacked(bars, colours, "minutes at 100 Mbit/s and 80 ms", printed)


def _stacked(
    bars: Sequence[tuple[str, str, Mapping[str, float]]],
    colours: Mapping[str, str],
    label: str,
    printed: Mapping[str, float] | None = None,
) -> Figure:
    """Horizontal bars, one a row and program, of amounts by kind; colours: by kind. printed: the published value of a
    row, a diamond on its bars."""
    if not bars:
        return show.not_measured()
    figure, axes = show.subplots(height=0.8 + 0.27 * len(bars), layout=None)
    names = list(dict.fromkeys(name for name, *_ in bars))
    places = [place + 0.35 * names.index(name) for place, (name, *_) in enumerate(bars)]
    values = np.array([[amounts[kind] for kind in colours] for *_, amounts in bars])  # (bars, kinds)
    ends = values.cumsum(axis=1)
    for (kind, colour), widths, right in zip(colours.items(), values.T, ends.T, strict=True):
        look = {"height": 0.8, "color": colour, "edgecolor": show.PAPER, "lw": 0.4}
        drawn = axes.barh(places, widths, left=right - widths, label=kind, **look)
        if printed:
            shown = [text(width, 2) if width > 0.035 * ends.max() else "" for width in widths]
            axes.bar_label(drawn, shown, label_type="center", color="white" if colour == show.MUTED else "black")
    axes.bar_label(drawn, [f" {text(total, 2)}" for total in ends[:, -1]])
    if printed:
        published = [printed[name] for name, *_ in bars]
        axes.plot(published, places, "D", color=show.PAPER, markeredgecolor=show.INK, markersize=5, label="paper")
    axes.set_yticks(places, [f"{name}, {PROGRAM_NAMES[program]}" for name, program, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set(xlim=(0, ends.max() * 1.08), xlabel=label)
    axes.legend(ncols=len(colours) + bool(printed), loc="lower left", bbox_to_anchor=(-0.35, 1), frameon=False,
                handlelength=1, columnspacing=1)  # fmt: skip
    return figure


def points(
    results: Results, model: str, context: int, program: str, extrapolate: bool = False
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The runs of a model family and context, as `with_front` gives them, and those left out with the reason.

    perplexity: mean over `seeds`; bytes, bytes_error: of a private pass at the published sizes.
    """
    parameters = results.parameters
    operations = measured_operations(results.root)
    sizes = published_sizes(model, context)
    found, without = [], {}
    for name, run in parameters.runs.items():
        if run.model != model or parameters.resolve(name).context != context:
            continue
        if run.overrides:
            without[name] = "trained by a recipe of its own"
            continue
        by_seed = trained(results, name)
        if not by_seed:
            without[name] = "failed" if results.seeds(name) else "not trained yet"
            continue
        try:
            cost = estimate(parse(run.architecture), sizes, program, operations, extrapolate)
        except ValueError as error:
            without[name] = str(error)
            continue
        mean = sum(by_seed.values()) / len(by_seed)
        found.append((name, cost.architecture, mean, tuple(by_seed), cost.bytes, cost.bytes_error))
    columns = ["run", "architecture", "perplexity", "seeds", "bytes", "bytes_error"]
    return with_front(pd.DataFrame(found, columns=columns)), without


def with_front(found: pd.DataFrame) -> pd.DataFrame:
    """Points, cheapest first; `front` marks those that no other point beats in bytes and perplexity."""
    found = found.sort_values(["bytes", "perplexity"], ignore_index=True)
    least_so_far = found["perplexity"].astype(float).cummin()
    return found.assign(front=least_so_far < least_so_far.shift(fill_value=math.inf))


def pareto(results: Results) -> Figure:
    """Rows of AERO's Table 4: published perplexity against GB of the optimised program, both of GPT-2's size."""
    table, found = load("aero").tables["4"], []
    for row in table.rows:
        cost, perplexity = costs.row_costs(results, table, row.name).get(OPTIMISED), row.cells["ppl"].value
        if cost is not None and perplexity is not None:
            found.append((row.name, perplexity, cost.bytes))
    frame = pd.DataFrame(found, columns=["architecture", "perplexity", "bytes"])
    return draw_pareto(with_front(frame), "", "published perplexity")


def draw_pareto(found: pd.DataFrame, title: str, label: str) -> Figure:
    """Perplexity (axis `label`) against GB, both in logarithms. Named: the points of the front, and SM+LN+G."""
    if found.empty:
        return show.not_measured()
    figure, axes = show.subplots(height=3.0, layout=None)
    front, rest = found[found["front"]], found[~found["front"]]
    axes.step(front["bytes"] / GB, front["perplexity"], where="post", color=show.TUNED)
    for some, colour, size in ((rest, show.AS_WRITTEN, 18), (front, show.TUNED, 36)):
        axes.scatter(some["bytes"] / GB, some["perplexity"], s=size, color=colour,
                     edgecolor=show.PAPER, linewidth=0.6, zorder=3)  # fmt: skip
    for point in found[found["front"] | (found["architecture"] == CONTROL)].itertuples():
        # No point lies below and to the left of the front.
        axes.annotate(point.architecture, (point.bytes / GB, point.perplexity), xytext=(-5, 1), ha="right",
                      textcoords="offset points", va="top")  # fmt: skip
    axes.set(xscale="log", yscale="log", title=title, ylabel=label)
    axes.set_xlabel("communication of one private forward pass, GB (both directions)")
    axes.grid()
    axes.margins(x=0.12, y=0.08)
    axes.set_xlim(left=found["bytes"].min() / GB / 2.6)
    values = [digit * 10.0**power for power in range(-1, 4) for digit in (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8)]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = [value for value in values if low <= value <= high]
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    return figure


PROTOCOLS = Path("results/two_party/protocols.csv")


def protocols(results: Results, number: str) -> pd.DataFrame:
    """GB and rounds of stock SPU under three protocols; savings over the first row, printed and measured."""
    table, lines, first = load("aero").tables[number], [], {}
    others = [line for line in read_csv(results.root / PROTOCOLS) if line["table"] == number]
    for row in table.rows:
        stock = costs.row_costs(results, table, row.name).get(STOCK)
        sizes = {} if stock is None else {"Cheetah": stock.bytes}
        rounds = [] if stock is None else [stock.rounds]
        for line in others:
            if line["run"] == row.name:
                sizes[line["protocol"]] = float(line["bytes"])
                rounds.append(float(line["rounds"]))
        first = first or sizes
        savings = {name: text(first[name] / size if name in first else None, 3, "x") for name, size in sizes.items()}
        printed = text(row.cells["savings_communication"].value, 3, "x")
        cells = {name: f"{gigabytes(size)} GB, {savings[name]}" for name, size in sizes.items()}
        ordered = " / ".join(text(one, 3) for one in rounds)
        lines.append({ROW: row.name, "saving, paper": printed, **cells, "rounds": ordered})
    return pd.DataFrame(lines)


def peers(results: Results) -> pd.DataFrame:
    """Other systems for private inference with transformers, after this project's optimised program and the one with
    all optimizations but bounded logits."""
    measured = read_csv(results.root / OUTSIDE)
    programs = {OPTIMISED: "optimised"}
    programs |= {line["program"]: "all optimizations but bounded logits" for line in measured[-1:]}
    lines = [
        {
            "system": f"here, {programs[line['program']]}: {line['architecture']}",
            "setting": "2PC",
            "network": "GPT-2, T=128",
            "communication": f"{gigabytes(float(line['bytes']))} GB, {text(float(line['rounds']))} rounds",
            "time": f"{text(float(line['seconds']))} s, 2 cores; {text(float(line['wan_seconds']) / 60, 3)} min at "
            "100 Mbit/s, 80 ms",
            "source": "measured here",
        }
        for line in measured
        if line["architecture"] != "SM+LN+R" and line["program"] in programs
    ]
    return pd.DataFrame([*lines, *read_csv(PEERS)]).drop(columns="gigabytes")


def bytes_over_peers(results: Results) -> dict[str, float]:
    """Bytes of our SM+LN+G with all optimizations but bounded logits, over systems of its setting and network."""
    measured = {line["architecture"]: float(line["bytes"]) for line in read_csv(results.root / OUTSIDE)}
    found = {line["system"]: float(line["gigabytes"]) for line in read_csv(PEERS) if line["gigabytes"]}
    return {system: measured["SM+LN+G"] / GB / size for system, size in found.items()} if measured else {}
