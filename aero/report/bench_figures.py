"""Figures of the speed measurements, each drawn by the function named after it from results/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from aero.report.bench import STEP, read
from aero.report.drawing import AS_WRITTEN, GRID, INK, MUTED, PAPER, TUNED, WIDTH, say_missing, spread, style
from aero.report.results import Results

CUT = 1.5
"""A range is drawn up to so many times the highest median, so that one outlier does not stretch a figure."""
KINDS = {
    "softmax_plain": ("softmax", "#0072b2", "o"),
    "exponentials": ("softmax, tuned", "#56b4e9", "s"),
    "scores": ("Q Kᵀ", "#d55e00", "^"),
    "mix": ("P V", "#e69f00", "v"),
    "linear": ("linear layer", "#009e73", "D"),
    "lattice_linear": ("linear layer, tuned", "#7fbf7b", "d"),
    "layer_norm": ("LayerNorm", "#cc79a7", "P"),
    "normalise_tiles": ("LayerNorm, tuned", "#8a6d3b", "X"),
    "gelu_segments": ("GELU, tuned", "#000000", "h"),
    "relu": ("ReLU", "#6b7480", "*"),
}
PASSES = {
    "as_written": ("as written", "#0072b2", "o"),
    "tuned": ("tuned", "#56b4e9", "s"),
    "tuned-lattice_products": ("within SPU", "#56b4e9", "s"),
}
"""Programs of whole passes, which are drawn against L."""
RESOURCES = {
    "ciphertexts": "#0072b2",
    "oblivious transfers": "#d55e00",
    "other computing": "#9aa4ad",
    "bandwidth": "#009e73",
    "round trips": "#cc79a7",
}
LIMIT_ROWS = ("SM+LN+G", "SM+ScFuFFN")
PASS_COLOURS = {
    ("SM+LN+G", "as_written"): "#0072b2",
    ("SM+LN+G", "tuned"): "#56b4e9",
    ("SM+ScFuFFN", "as_written"): "#d55e00",
    ("SM+ScFuFFN", "tuned"): "#e69f00",
}
LAYERS = "two_party_growth_layers"
SINGLE = "*"
"""Behind an exponent of seconds that were run once."""


def bench_training(results: Results) -> Figure:
    """Tokens a second over transformers', with the range over repeats; and the rows' speed-up against their FLOPs."""
    found = read(results.root, "training_step")
    with style():
        figure = Figure(figsize=(WIDTH, 3.3))
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.25, 1]})
        figure.subplots_adjust(left=0.23, right=0.97, top=0.89, bottom=0.15, wspace=0.4)
        if found is None:
            for panel in (left, right):
                say_missing(panel, "not measured yet")
            return figure
        steps = found["steps"]
        most = cut([step["ratio"] for step in steps])
        for place, step in enumerate(steps):
            ratio = step["ratio"]
            end = min(ratio["high"], most)
            left.plot([ratio["low"], end], [place, place], color=TUNED, linewidth=3, alpha=0.45)
            if ratio["high"] > most:
                left.plot(most, place, ">", color=TUNED, markersize=5)
            left.plot(ratio["median"], place, "o", color=TUNED, markersize=5)
            left.text(end + 0.05, place, f"{ratio['median']:.2f}", va="center", fontsize=8)
        left.axvline(1, color=AS_WRITTEN, linewidth=1)
        left.axvline(STEP, color=MUTED, linewidth=1, linestyle="--")
        left.text(STEP + 0.02, -0.55, "target", ha="left", va="center", fontsize=7.5, color=MUTED)
        labels = [f"d={s['width']} T={s['context']} V={s['vocabulary']:,}" for s in steps]
        left.set_yticks(range(len(steps)), labels)
        left.set_ylim(len(steps) - 0.4, -0.9)
        lowest, highest = min(step["ratio"]["low"] for step in steps), max(step["ratio"]["high"] for step in steps)
        left.set_xlim(min(0.8, lowest - 0.05), max(1.6, min(highest, most) + 0.3))
        left.set_title("step, over transformers’ GPT-2")
        left.set_xlabel("times its tokens a second")
        _rows(right, found["rows"])
    return figure


def cut(ranges: Sequence[Mapping[str, float]]) -> float:
    """Where ranges end that go further."""
    return CUT * max(one["median"] for one in ranges)


def _rows(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Speed-up over SM+LN+G against how many times fewer FLOPs; the line is proportion."""
    most = cut([row["speedup"] for row in rows])
    largest = max(max(row["flops_ratio"], min(row["speedup"]["high"], most)) for row in rows) * 1.08
    panel.plot([1, largest], [1, largest], color=AS_WRITTEN, linewidth=1)
    for width, marker, colour in ((128, "o", TUNED), (768, "s", "#d55e00")):
        of_width = [row for row in rows if row["width"] == width]
        for row in of_width:
            speed = row["speedup"]
            ends = [speed["low"], min(speed["high"], most)]
            panel.plot([row["flops_ratio"]] * 2, ends, color=colour, linewidth=2, alpha=0.4)
            if speed["high"] > most:
                panel.plot(row["flops_ratio"], most, "^", color=colour, markersize=4.5)
        panel.plot(
            [row["flops_ratio"] for row in of_width],
            [row["speedup"]["median"] for row in of_width],
            marker,
            color=colour,
            markersize=4.5,
            markeredgecolor=PAPER,
            markeredgewidth=0.5,
            label=f"d={width}",
        )
    panel.legend(frameon=False, loc="upper center")
    panel.set_title("rows, over SM+LN+G")
    panel.set_xlabel("times fewer FLOPs")
    panel.set_ylabel("times faster")
    panel.grid()


def bench_growth(results: Results) -> Figure:
    """Bytes and seconds between two parties over those at the smallest size: operations against T and d, composed
    passes against L."""
    found = read(results.root, "two_party")
    with style():
        figure = Figure(figsize=(WIDTH, 7.6))
        panels = figure.subplots(3, 2)
        figure.subplots_adjust(left=0.06, right=0.79, top=0.96, bottom=0.06, wspace=0.85, hspace=0.45)
        lines = [] if found is None else [*found["growth"], *map(_in_proportion, found["depth"])]
        for row, (axis, name) in enumerate((("T", "positions T"), ("d", "width d"), ("L", "layers L, of SM+LN+G"))):
            for column, quantity in enumerate(("bytes", "seconds")):
                panel = panels[row][column]
                of_axis = [line for line in lines if line["axis"] == axis and len(line["points"]) > 1]
                if not of_axis:
                    say_missing(panel, "not measured yet")
                    continue
                _growth(panel, of_axis, quantity)
                panel.set_title(f"{quantity} against {axis}{', composed' if axis == 'L' else ''}")
                panel.set_xlabel(name)
    return figure


def bench_layers(results: Results) -> Figure:
    """Bytes and seconds of complete passes of a small model by its depth, as measured and as composed."""
    found = read(results.root, LAYERS)
    with style():
        figure = Figure(figsize=(WIDTH, 2.8))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.06, right=0.77, top=0.9, bottom=0.17, wspace=1.0)
        for panel, (quantity, unit, shown) in zip(panels, (("bytes", 1e6, "MB"), ("seconds", 1.0, "s")), strict=True):
            if found is None:
                say_missing(panel, "not measured yet")
                continue
            _passes(panel, found["lines"], quantity, unit)
            panel.set_title(f"{quantity} ({shown}), measured")
            panel.set_xlabel("layers L")
    return figure


def _passes(panel: Axes, lines: Sequence[Mapping[str, Any]], quantity: str, unit: float) -> None:
    """Complete passes as points, over what is composed of their operations as a line."""
    ends = []
    for line in lines:
        colour = PASS_COLOURS[line["architecture"], line["program"].partition("-")[0]]
        sizes = [point["size"] for point in line["points"]]
        panel.plot(
            sizes, [point[f"composed_{quantity}"] / unit for point in line["points"]], color=colour, linewidth=1.2
        )
        panel.plot(sizes, [point[quantity] / unit for point in line["points"]], "o", color=colour, markersize=4)
        name = f"{line['architecture']} {PASSES[line['program']][0]}"
        ends.append((line["points"][-1][quantity] / unit, f"{name} {line[f'{quantity}_exponent']:.2f}", colour))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(sorted({p["size"] for line in lines for p in line["points"]})))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.grid()
    _name_ends(panel, max(point["size"] for line in lines for point in line["points"]), ends)


def _in_proportion(line: Mapping[str, Any]) -> dict[str, Any]:
    """Passes by depth as lines of the growth with L."""
    return {"axis": "L", "kind": line["program"], "expected_bytes": 1, "expected_seconds": 1, **line}


def _growth(panel: Axes, lines: Sequence[Mapping[str, Any]], quantity: str) -> None:
    sizes = [point["size"] for point in lines[0]["points"]]
    first = sizes[0]
    for order in sorted({line[f"expected_{quantity}"] for line in lines}):
        panel.plot(sizes, [(size / first) ** order for size in sizes], "--", color=GRID, linewidth=2.2, zorder=0)
    ends = []
    for line in lines:
        title, colour, marker = (KINDS | PASSES)[line["kind"]]
        values = [point[quantity] / line["points"][0][quantity] for point in line["points"]]
        panel.plot(sizes, values, marker=marker, color=colour, markersize=4, linewidth=1.2)
        mark = SINGLE if quantity == "seconds" and run_once(line) else ""
        ends.append((values[-1], f"{title} {line[f'{quantity}_exponent']:.2f}{mark}", colour))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    for axis, places in ((panel.xaxis, sizes), (panel.yaxis, (0.5, 1, 2, 4, 8, 16, 32))):
        axis.set_major_locator(FixedLocator(places))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.grid()
    _name_ends(panel, sizes[-1], ends)


def run_once(line: Mapping[str, Any]) -> bool:
    """Whether seconds of a line of the growth rest on single runs: of every size, or of some."""
    return any(point.get("runs") == 1 for point in line["points"])


def _name_ends(panel: Axes, last: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names of lines beside the panel, near where they end at `last`."""
    low, high = panel.get_ylim()
    to_share = panel.transAxes.inverted().transform
    shares = [float(to_share(panel.transData.transform((last, value)))[1]) for value, _, _ in ends]
    for share, (_, text, colour) in zip(spread(shares, 0.085), ends, strict=True):
        panel.text(1.03, share, text, transform=panel.transAxes, va="center", fontsize=7, color=colour)
    panel.set_ylim(low, high)


def latency_of(line: Mapping[str, Any], network: str) -> dict[str, float]:
    """Seconds of a pass on `network`, by `RESOURCES`; computing is the mean of what the two parties' profiles say."""
    computing = {work: line["seconds"][work]["mean"] for work in ("he", "ot", "local", "other")}
    return {
        "ciphertexts": computing["he"],
        "oblivious transfers": computing["ot"],
        "other computing": computing["local"] + computing["other"],
        **line["links"][network],
    }


def bench_limits(results: Results) -> Figure:
    """Which share of a private pass's latency goes into which resource, by network, row and program."""
    found = read(results.root, "two_party")
    lines = [line for line in (found or {}).get("resources", ()) if line["architecture"] in LIMIT_ROWS]
    with style():
        figure = Figure(figsize=(WIDTH, 3.6))
        panel = figure.subplots()
        figure.subplots_adjust(left=0.36, right=0.97, top=0.86, bottom=0.12)
        if found is None or not lines:
            say_missing(panel, "not measured yet")
            return figure
        bars = [(network, line) for network in found["networks"] for line in lines]
        for place, (network, line) in enumerate(bars):
            latency, start = latency_of(line, network), 0.0
            for resource, colour in RESOURCES.items():
                share = 100 * latency[resource] / sum(latency.values())
                panel.barh(place, share, 0.72, left=start, color=colour, edgecolor=PAPER, linewidth=0.6)
                if share >= 4:
                    panel.text(
                        start + share / 2, place, f"{share:.0f}", ha="center", va="center", fontsize=7, color=PAPER
                    )
                start += share
        for place, (resource, colour) in zip((-0.3, -0.04, 0.31, 0.62, 0.82), RESOURCES.items(), strict=True):
            panel.text(place, 1.05, f"■ {resource}", transform=panel.transAxes, color=colour, fontsize=8)
        panel.set_yticks(
            range(len(bars)), [f"{network}: {line['architecture']}, {line['program']}" for network, line in bars]
        )
        panel.set_xlim(0, 100)
        panel.invert_yaxis()
        panel.set_xlabel("% of a private pass’s latency")
        panel.tick_params(colors=INK)
        panel.grid(axis="x")
    return figure
