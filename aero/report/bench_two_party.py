"""The report's section on speed, private inference: part by part, how it grows, which resource limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from aero.report import bench_figures
from aero.report.bench import GROWTH, OPERATIONS, file_of, kept_kinds, kept_seconds, missing, read, where
from aero.report.costs import GB
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.page import figure_of
from aero.report.results import Results
from aero.two_party import packing

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


def parts(results: Results) -> list[Html]:
    return [
        table_parts(results),
        figure_of(results, bench_figures.bench_growth, "How private operations grow", caption_growth(results)),
        figure_of(results, bench_figures.bench_limits, LIMITS, caption_limits(results)),
    ]


def table_parts(results: Results) -> Html:
    """Bytes and seconds of each part of a private pass: as published, and tuned."""
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
            both = [by_row[row, program] for program in ("as_published", "tuned")]
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
        "<b>Part by part</b>, as published → tuned: GB in both directions and minutes of computing on loopback, of a "
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
        f"{depth}, of L=6 to 18. {_below_order(found)}{_left_out(results, found)}{kept_seconds(results.root, GROWTH)} "
        f"{where(found, 'two_party')}"
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
        told.append(f"{name} (exponent {power}, expected {line['expected_seconds']:.0f})")
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
        f"(<code>aero/two_party/packing.py</code>): {'; '.join(packed)}. "
    )


def _left_out(results: Results, found: Mapping[str, Any]) -> str:
    """The kinds of kept operations whose growth was not measured."""
    kinds = kept_kinds(results.root) - {line["kind"] for line in found["growth"]}
    return f"Left out: {', '.join(f'<code>{escape(kind)}</code>' for kind in sorted(kinds))}. " if kinds else ""


def caption_limits(results: Results) -> str:
    found = read(results.root, "two_party")
    if found is None:
        return gap()
    told = []
    for network in found["networks"]:
        limits = [row["limit"][network] for row in found["rows"]]
        most = max(set(limits), key=limits.count)
        told.append(f"on {network.upper()} {most} of {limits.count(most)} of {len(limits)} rows and programs")
    return (
        "GPT-2’s dimensions, T=128, composed. Computing is split by part of the program, not by what the processor "
        "did: encrypted products are all of the parts that multiply matrices under homomorphic encryption, nonlinear "
        "functions all others, with oblivious transfers for comparisons and truncations and products of shared "
        "entries. Bandwidth and round "
        f"trips: {found['networks']['wan']['bandwidth_mbit']:g} Mbit/s, {found['networks']['wan']['rtt_ms']:g} ms. "
        f"Computing is that of two processes on two shared cores, one thread each. The largest share: "
        f"{'; '.join(told)}. {kept_seconds(results.root, OPERATIONS)} {where(found, 'two_party')}"
    )
