"""The report's section on speed, private inference: part by part, how it grows, which resource limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from aero.report import bench_figures
from aero.report.bench import GROWTH, OPERATIONS, file_of, kept_kinds, kept_seconds, missing, read, where
from aero.report.costs import GB
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.page import figure_of
from aero.report.results import Results
from aero.two_party.cost import packing

SHOWN_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)")
LIMITS = "What limits a private pass"
BELOW = 0.25
"""How far an exponent of seconds lies below its expected order where the report says so."""
PRODUCTS: Mapping[tuple[str, str], Callable[[int], tuple[int, int, int]]] = {
    ("T", "scores"): lambda t: (t, 64, t),
    ("T", "mix"): lambda t: (t, t, 64),
    ("d", "linear"): lambda d: (128, d, d),
}
"""Rows, inner size and columns of the products whose growth is measured, as in `benchmarks.two_party.growing`."""


def figure_growth(results: Results) -> Html:
    return figure_of(results, bench_figures.bench_growth, "How private operations grow", caption_growth(results))


def figure_layers(results: Results) -> Html:
    title = "How private passes grow with their depth"
    return figure_of(results, bench_figures.bench_layers, title, caption_layers(results))


def figure_limits(results: Results) -> Html:
    return figure_of(results, bench_figures.bench_limits, LIMITS, caption_limits(results))


def table_parts(results: Results) -> Html:
    """Bytes and seconds of each part of a private pass: as written, and tuned."""
    found = read(results.root, "two_party")
    if found is None:
        return Html(missing("Private passes part by part", "benchmarks.two_party"))
    source = file_of("two_party")
    by_row = {(row["architecture"], row["program"]): row["parts"] for row in found["rows"]}
    names = list(dict.fromkeys(part for row in found["rows"] for part in row["parts"]))
    lines = []
    for name in [*names, "all"]:
        cells = [name]
        for row in SHOWN_ROWS:
            both = [by_row[row, program] for program in ("as_written", "tuned")]
            for quantity, unit, digits in (("bytes", GB, 2), ("seconds", 60.0, 1)):
                values = [_sum(parts, name, quantity) for parts in both]
                cells.append(
                    " → ".join(
                        "–" if value is None else number(f"{value / unit:.{digits}f}", "paper_dimensions", source)
                        for value in values
                    )
                )
        lines.append(cells)
    caption = (
        "<b>Part by part</b>, as written → tuned: GB in both directions and minutes of computing on loopback, of a "
        "forward pass at GPT-2’s dimensions and T=128, set-up left out; a dash where the program has no such part. "
        f"{kept_seconds(results.root, OPERATIONS)} {where(found, 'two_party')}"
    )
    heads = ["part", *(f"{row_label(row)} {unit}" for row in SHOWN_ROWS for unit in ("GB", "min"))]
    return Html(grid(heads, lines, caption, "bench-parts", (), "dense"))


def _sum(parts: Mapping[str, Mapping[str, float]], name: str, quantity: str) -> float | None:
    if name == "all":
        return sum(part[quantity] for part in parts.values())
    return parts[name][quantity] if name in parts else None


def caption_growth(results: Results) -> str:
    found = read(results.root, "two_party")
    if found is None:
        return gap()
    depth = "; ".join(
        f"{line['program']} bytes as L<sup>{line['bytes_exponent']:.2f}</sup>, seconds as "
        f"L<sup>{line['seconds_exponent']:.2f}</sup>"
        for line in found["depth"]
    )
    return (
        "Two processes, one head of width 64 and rows of width 768 against T; 128 positions, and d/64 heads, against "
        "d. Values over that at the smallest size; behind the name the fitted exponent; dashed, the orders that are "
        "expected: T² of what has an entry for every pair of positions, T of the rest and of the bytes of P V, which "
        "sends the values and its result only; d² of a linear layer’s computing, d of its bytes and of the rest. "
        "Growth with L is composed from the same kept operations, not measured: layers repeat them, so L is expected; "
        "embedding, vocabulary projection and the shorter last layer of the tuned program keep SM+LN+G from it: "
        f"{depth}, of L=6 to 18. {_once(found)}{_below_order(found)}"
        f"{_left_out(results, found)}{kept_seconds(results.root, GROWTH)} "
        f"{where(found, 'two_party')}"
    )


def caption_layers(results: Results) -> str:
    """How far passes of every depth are from what is composed of their operations."""
    found = read(results.root, bench_figures.LAYERS)
    if found is None:
        return f"Complete passes of other depths: {gap()} (<code>python -m benchmarks.growth_layers</code>)."
    points = [(line, point) for line in found["lines"] for point in line["points"]]
    off = {name: [point[name] / point[f"composed_{name}"] - 1 for _, point in points] for name in ("bytes", "seconds")}
    apart = {name: f"{100 * min(values):+.1f} to {100 * max(values):+.1f} %" for name, values in off.items()}
    orders = "; ".join(
        f"{row_label(line['architecture'])} {line['program']} L<sup>{line['bytes_exponent']:.2f}</sup> and "
        f"L<sup>{line['seconds_exponent']:.2f}</sup>"
        for line in found["lines"]
    )
    sizes, depths = found["sizes"], sorted({point["size"] for _, point in points})
    source = file_of(bench_figures.LAYERS)
    return (
        f"Complete passes (points) of a model of d={sizes['width']}, T={sizes['context']}, "
        f"V={sizes['vocabulary']} at L={', '.join(map(str, depths))}, over the sum of its operations run alone in the "
        f"same sessions (lines), MB and seconds. Bytes are exact and lie "
        f"{number(apart['bytes'], 'smaller_scale', source)} from the sum; seconds are of {sizes['passes']} pass each"
        f"{_loads(points)}, {number(apart['seconds'], 'smaller_scale', source)} from it. "
        f"Bytes and seconds grow as {orders}. "
        f"{where(found, bench_figures.LAYERS)}"
    )


def _loads(points: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """How busy the machine was around each pass, where the file tells; the two parties alone are a load of 2."""
    loads = [point["load"] for _, point in points if "load" in point]
    return f", at a load of {min(loads):.1f} to {max(loads):.1f} with the parties’ own" if loads else ""


def _once(found: Mapping[str, Any]) -> str:
    """How many of the measured points were run once: what seconds' exponents rest on."""
    runs = [point.get("runs") for line in found["growth"] for point in line["points"]]
    if not (single := runs.count(1)):
        return ""
    mark = bench_figures.SINGLE
    return (
        f"{mark} Seconds of one run each, of one point of the line at least; so are {single} of {len(runs)} points "
        f"here, on a machine that was not always quiet, and exponents fitted to them have no range. "
    )


def _below_order(found: Mapping[str, Any]) -> str:
    """The kinds whose seconds grow clearly slower than expected over the measured sizes, and what is known of why."""
    told, packed = [], []
    for line in found["growth"]:
        if line.get("seconds_exponent", math.inf) > line["expected_seconds"] - BELOW:
            continue
        title = bench_figures.KINDS[line["kind"]][0]
        power = number(f"{line['seconds_exponent']:.2f}", "paper_dimensions", file_of("two_party"))
        name = f"{title} against {line['axis']}"
        caveat = f", {once}" if (once := single_runs(line)) else ""
        told.append(f"{name} (exponent {power}, expected {line['expected_seconds']:.0f}{caveat})")
        if product := PRODUCTS.get((line["axis"], line["kind"])):
            sizes = [point["size"] for point in line["points"]]
            small, large = (packing.ciphertexts(*product(size)) for size in (min(sizes), max(sizes)))
            packed.append(f"{name} {large.multiplied / small.multiplied:.0f} and {large.turned / small.turned:.0f}")
        else:
            packed.append(f"{name} not explained")
    if not told:
        return ""
    return (
        f"Seconds below the expected order over the measured range: {'; '.join(told)}. Products of ciphertexts grow in "
        "that order, automorphisms, by which SPU packs answers, in a lower one, and some of the time does not grow. At "
        "the largest size there are so many times the products and automorphisms of the smallest, by SPU’s packing "
        f"(<code>aero/two_party/cost/packing.py</code>): {'; '.join(packed)}. "
    )


def single_runs(line: Mapping[str, Any]) -> str:
    """How many sizes of a line of the growth were run once, in words; nothing if none was."""
    single = [point.get("runs") for point in line["points"]].count(1)
    if not single:
        return ""
    return "one run each" if single == len(line["points"]) else f"{single} of {len(line['points'])} sizes run once"


def _left_out(results: Results, found: Mapping[str, Any]) -> str:
    """The kinds of kept operations whose growth was not measured."""
    kinds = kept_kinds(results.root) - {line["kind"] for line in found["growth"]}
    return f"Left out: {', '.join(f'<code>{escape(kind)}</code>' for kind in sorted(kinds))}. " if kinds else ""


def caption_limits(results: Results) -> str:
    found = read(results.root, "two_party")
    if found is None or not found.get("resources"):
        return f"{gap()} (<code>python -m benchmarks.resources</code>, then <code>benchmarks.two_party</code>)"
    lines = [line for line in found["resources"] if line["architecture"] in bench_figures.LIMIT_ROWS]
    links = "; ".join(
        f"{escape(name)} {net['bandwidth_mbit']:g} Mbit/s and {net['rtt_ms']:g} ms"
        for name, net in found["networks"].items()
    )
    return (
        "GPT-2’s dimensions, T=128, composed of single operations. Computing is split by SPU’s own profile of its "
        "kernels, run once each: on ciphertexts (products of matrices and of entries, shared ones too, and, as a "
        "whole, what this project computes outside SPU: encrypted look-ups and products with the server’s matrices), "
        "in oblivious transfers (comparisons, truncations, conversions of bits) and the rest (on a party’s own shares, "
        "and SPU’s interpreter). A kernel’s seconds hold its wait for the other party and loopback; a share is the "
        "mean of both parties’. The machine was shared while kernels were profiled, so their shares are taken of the "
        f"seconds of <code>{OPERATIONS}</code>. Networks: {links}, rate "
        "in each direction and round-trip time. Ciphertexts and transfers as a share of all seconds of computing (from "
        f"the two parties’ profiles) and in GB: {'; '.join(map(_computing, lines))}. The largest share of the latency: "
        f"{'; '.join(_largest(found, name) for name in found['networks'])}. {kept_seconds(results.root, OPERATIONS)} "
        f"<code>results/two_party/resources.csv</code>; {where(found, 'two_party')}"
    )


def _computing(line: Mapping[str, Any]) -> str:
    whole = sum(work["mean"] for work in line["seconds"].values())
    told = []
    for work, name in (("he", "ciphertexts"), ("ot", "transfers")):
        low, high = (f"{100 * line['seconds'][work][end] / whole:.0f}" for end in ("low", "high"))
        share = f"{low} %" if low == high else f"{low}–{high} %"
        told.append(f"{name} {share}, {line['bytes'][work] / GB:.2f} GB")
    if line.get("unprofiled"):
        told.append(f"not profiled {100 * line['unprofiled'] / whole:.1f} %")
    text = number(", ".join(told), "paper_dimensions", file_of("two_party"))
    return f"{row_label(line['architecture'])} {line['program']} {text}"


def _largest(found: Mapping[str, Any], network: str) -> str:
    """What takes most of the latency on `network`, of how many of all rows and programs whose kernels are profiled."""
    limits = [
        max(latency, key=latency.__getitem__)
        for latency in (bench_figures.latency_of(line, network) for line in found["resources"])
    ]
    counted = {name: limits.count(name) for name in dict.fromkeys(limits)}
    told = ", ".join(f"{name} for {many}" for name, many in sorted(counted.items(), key=lambda one: -one[1]))
    return f"{escape(network)}: {told} of {len(limits)} rows and programs"
