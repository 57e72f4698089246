"""Latencies of complete rows with what their operations cost on a link at their own shapes, beside the tables'."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aero.architecture import parse
from aero.report.costs import GB, PROGRAMS
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results
from aero.two_party.cost import ledger
from aero.two_party.cost.counts import counts, published_sizes
from aero.two_party.cost.network import Network, wire_bytes
from aero.two_party.cost.packing import MATRICES

PATH = Path("results/two_party/full_links.csv")
"""As `python -m benchmarks.full_links` keeps it."""
OPERATIONS = Path("results/two_party/ops.csv")
ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")


@dataclass(frozen=True)
class OnLink:
    """Of a pass, summed over its operations: seconds of computing, bytes that cost time on a link, round trips."""

    seconds: float
    wire_bytes: float
    rounds: float

    def minutes(self, network: Network) -> float:
        return network.latency_seconds(self.seconds, self.wire_bytes, 0.0, self.rounds) / 60


def both_ways(root: Path, row: str, program: str) -> tuple[OnLink, OnLink] | None:
    """What the tables take, rounds of smaller shapes and wire bytes by rule, and what was measured at the shapes
    themselves, products of matrices as in the tables; None where an operation is in neither file."""
    try:
        one = {line.key: line for line in ledger.read(root / OPERATIONS, ledger.Measurement)}
        own = {key: tuple(float(line[name]) for name in ("wire_bytes", "rounds")) for key, line in lines(root).items()}
        return _sums(one, own, row, program)
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return None


def lines(root: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of the file by operation and shape. OSError without it."""
    with (root / PATH).open(encoding="utf-8", newline="") as file:
        return {(line["op"], line["shape"]): line for line in csv.DictReader(file)}


def _sums(
    one: Mapping[tuple[str, str], ledger.Measurement],
    own: Mapping[tuple[str, str], tuple[float, ...]],
    row: str,
    program: str,
) -> tuple[OnLink, OnLink]:
    needed, _ = counts(parse(row), published_sizes("gpt2", 128), program)
    seconds, told, measured = 0.0, [0.0, 0.0], [0.0, 0.0]
    for key, times in needed.items():
        line = one[key]
        seconds += times * line.seconds
        by_rule = wire_bytes(line.op, line.bytes_sent_client, line.bytes_sent_server), line.rounds
        at_its_shape = by_rule if key[0].partition("(")[0] in MATRICES else own[key]
        for sums, values in ((told, by_rule), (measured, at_its_shape)):
            sums[0], sums[1] = sums[0] + times * values[0], sums[1] + times * values[1]
    return OnLink(seconds, *told), OnLink(seconds, *measured)


def table(results: Results) -> Html:
    """Rounds, wire bytes and WAN latency of complete passes both ways; a gap where an operation was not measured."""
    network = Network(**results.parameters["two_party"]["networks"]["wan"])
    rows = []
    for row in ROWS:
        for program in PROGRAMS:
            if found := both_ways(results.root, row, program):
                told, own = found
                source = f"{OPERATIONS}, {PATH}"
                cells = [f"{told.rounds:,.0f}", f"{own.rounds:,.0f}", f"{told.wire_bytes / GB:.2f}"]
                cells += [f"{own.wire_bytes / GB:.2f}", f"{told.minutes(network):.1f}", f"{own.minutes(network):.1f}"]
                cells.append(f"{own.minutes(network) / told.minutes(network) - 1:+.1%}")
                shown = [number(cell, "paper_dimensions", source, PATH.as_posix()) for cell in cells]
                rows.append([row_label(row), f"<code>{program}</code>", *shown])
    if not rows:
        return Html(f"<p>Operations of the papers' own size on links: {gap()} (python -m benchmarks.full_links).</p>")
    caption = (
        "<b>What the tables’ latencies leave out, AERO Table 4</b>: rounds as they take them, from smaller shapes, and "
        "of every operation at its own shape over a delayed link; bytes that cost time by their rule, and as a link of "
        "limited rate shows them; and the latency on the WAN either way, with the same seconds of computing. Products "
        f"of matrices are in both as the tables have them.{_exact_gelu(results)} The least of three runs on each link."
    )
    heads = ["configuration", "program", "rounds, tables", "own shapes", "GB that cost time, tables", "measured"]
    heads += ["WAN min, tables", "own shapes", "difference"]
    return Html(grid(heads, rows, caption, "full-links", (0.2, 0.14, *(0.66 / 7 for _ in range(7))), "dense"))


def _exact_gelu(results: Results) -> str:
    """Whether a GELU of the exact kind, Pythia's, uses both directions at once as the rule has it."""
    try:
        (line,) = [line for (op, _), line in lines(results.root).items() if op == "gelu_exact"]
        share = number(f"{float(line['wire_bytes']) / float(line['bytes']):.2f}", "smaller_scale", PATH.as_posix())
    except (OSError, ValueError, KeyError, csv.Error):
        return ""
    return (
        f" An exact GELU of {line['shape'].replace('x', ' × ')}, as Pythia’s, costs the time of {share} of its bytes; "
        "the rule counts the larger direction."
    )
