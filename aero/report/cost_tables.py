"""Further tables of the page about private inference: the other printed rows, the audit of the savings, the laws."""

from __future__ import annotations

import csv
import json
import math
from html import escape

from aero.config import TwoPartyParameters
from aero.published import Table, load
from aero.report.costs import (
    ALL_PROGRAMS,
    COSTED,
    FIGURE_15_SIZES,
    FITTED,
    GB,
    all_costs,
    audit,
    costs_by_kind,
    costs_by_place,
    figure_15_costs,
    published_saving,
    saving,
    slower_day,
    wire_bytes_of,
)
from aero.report.marks import Html, cost_caption, gap, grid, number, row_label
from aero.report.put_backs import note
from aero.report.results import Cost, Results
from aero.two_party.cost.cost_model import law_errors, measured_operations
from aero.two_party.cost.network import Network

FORENSICS_OPERATIONS = "results/two_party/forensics_ops.csv"
"""Single operations under two versions of SPU, as `python -m benchmarks.forensics_ops` keeps them."""
NUMBERS = COSTED[1:]
"""Those that stand beside Table 4."""


def other_rows(results: Results) -> Html:
    """Tables 5, 6 and 7: published bytes and latencies beside the measured ones of the programs."""
    return Html("".join(_rows_of(results, number_) for number_ in NUMBERS) + _figure_15(results))


BASELINE_TARGETS = {"SM+LN+G": 0.30, "SM+LN+R": 0.35}
ROW_TARGETS = {"4": 0.30, "5": 0.35, "6": 0.30, "7": 0.35}
"""Most bytes of the tuned program over the published ones, by baseline and, for the other rows, by table."""
OWN_TARGET = 0.5
"""Most bytes and most seconds of the tuned program over those as written, measured here, for AERO's own rows."""


def target(table: Table, row: str) -> float | None:
    """The most that `row`'s tuned bytes are to be of the published ones; None where no target was set.

    The He & Hofmann rows (SOTA) have none.
    """
    return None if row.startswith("SOTA") else BASELINE_TARGETS.get(row, ROW_TARGETS[table.number])


_HEADS = [
    "configuration",
    "GB pub­lished",
    "as pub­lished, GB",
    "of the pub­lished",
    "as written, GB",
    "of the pub­lished",
    "tuned, GB",
    "of the pub­lished",
    "min pub­lished",
    "as pub­lished, WAN min, modelled",
    "as written, WAN min, modelled",
    "tuned, WAN min, modelled",
]
_WIDTHS = (0.19, 0.065, *(0.0745,) * 10)


def _rows_of(results: Results, which: str) -> str:
    table = load("aero").tables[which]
    place, sizes = f"AERO Table {which}", table.dimensions
    rows = []
    for row in table.rows:
        printed = {key: row.cells[key].value for key in ("communication", "latency")}
        costs = all_costs(results, table, row.name)
        line = [row_label(row.name), number(f"{printed['communication']:.2f}", "published", place)]
        for program in ALL_PROGRAMS:
            line += _gigabytes(costs.get(program), printed["communication"])
        line.append(number(f"{printed['latency']:.2f}", "published", place))
        line += [_minutes(costs.get(program)) for program in ALL_PROGRAMS]
        rows.append(line)
    stated = f"L={sizes['layers']}, H={sizes['heads']}, d={sizes['width']}, T={sizes['context']}"
    caption = f"<b>Table {which}, cost columns</b>: {stated}. {_source(results, table)} {note(results, table)}"
    return grid(_HEADS, rows, caption, f"costs-{which}", _WIDTHS, "dense")


def _figure_15(results: Results) -> str:
    """Pythia-70M, T=256: what is measured; the printed figure is lost from the text."""
    rows = []
    for architecture, found in figure_15_costs(results).items():
        line = [row_label(architecture)]
        for program in ALL_PROGRAMS:
            line += [_gigabytes(found.get(program), None)[0], _minutes(found.get(program))]
        rows.append(line)
    heads = ["configuration"]
    for program in ALL_PROGRAMS:
        heads += [f"{program.replace('_', ' ')}, GB", "WAN min"]
    caption = (
        f"<b>AERO Figure 15, costs</b>: {FIGURE_15_SIZES}. The printed values are lost from the text "
        f"that is used here, so nothing stands beside them. {slower_day(results, 'pythia-70m', 256)}"
        f"{_exact_gelu(results)}"
    )
    return grid(heads, rows, caption, "costs-figure-15", (0.28, *(0.12,) * 6), "dense")


def _exact_gelu(results: Results) -> str:
    """What of the baseline's bytes is SPU's erf, which another version computes with a third of them."""
    path, lines = costs_by_kind(results)
    try:
        by_kind = json.loads(lines["SM+LN+G", "pythia-70m", "256", "as_written"]["bytes_by_kind"])
        here, then = (_erf_bytes(results, spu) for spu in ("0.9.5", "0.9.2b0"))
        amounts = [f"{by_kind['gelu_exact'] / GB:.1f}", f"{sum(by_kind.values()) / GB:.1f}"]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return ""
    gelu, whole = (number(amount, "paper_dimensions", path) for amount in amounts)
    entry, before = (number(f"{amount:,.0f}", "paper_dimensions", FORENSICS_OPERATIONS) for amount in (here, then))
    return (
        f" Pythia’s GELU is the exact one: {gelu} of the {whole} GB of SM+LN+G as written, because SPU 0.9.5 takes "
        f"{entry} bytes an entry for erf; 0.9.2b0, of which the papers’ bytes seem to be (docs/forensics.md), takes "
        f"{before}. Most of what lies between SM+LN+G and the other rows here is that."
    )


def _erf_bytes(results: Results, spu: str) -> float:
    """Bytes in both directions of an entry of an exact GELU under that version of SPU; KeyError if not measured."""
    with (results.root / FORENSICS_OPERATIONS).open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if (line["spu"], line["op"], line["settings"]) == (spu, "gelu_erf", "default"):
                entries = math.prod(map(int, line["shape"].split("x")))
                return (float(line["bytes_client"]) + float(line["bytes_server"])) / entries
    raise KeyError(spu)


def on_networks(results: Results) -> Html:
    """Messages, rounds, computing and modelled latency on every network of params.yaml, of all rows that are measured.

    A grid for each of Tables 4 to 7 and one for Figure 15.
    """
    networks = {
        name: Network(network["bandwidth_mbit"], network["rtt_ms"])
        for name, network in (results.parameters.get("two_party", {}).get("networks") or {}).items()
    }
    places = costs_by_place(results)
    grids = [text for place, costs in places.items() if (text := _on_networks(results, place, costs, networks))]
    return Html("".join(grids) if grids else f"<p>Latencies on the networks: {gap()}.</p>")


def _on_networks(results: Results, place: str, costs: dict[str, dict[str, Cost]], networks: dict[str, Network]) -> str:
    rows = []
    for name, programs in costs.items():
        for program, cost in programs.items():

            def shown(value: float | None, form: str, source: str = cost.path) -> str:
                return gap("–") if value is None else number(form.format(value), "paper_dimensions", source)

            wire = wire_bytes_of(results, cost)
            line = [row_label(name), f"<code>{program}</code>", shown(cost.messages, "{:,.0f}")]
            line += [shown(cost.rounds, "{:,.0f}"), shown(cost.seconds, "{:,.0f}")]
            for network in networks.values():
                known = None not in (wire, cost.seconds, cost.rounds)
                latency = network.latency_seconds(cost.seconds, wire, 0.0, cost.rounds) / 60 if known else None
                line.append(shown(latency, "{:.1f}"))
            rows.append(line)
    if not rows:
        return ""
    heads = ["configuration", "program", "messages", "rounds", "computing, s"]
    heads += [f"{name}, min" for name in networks]
    links = "; ".join(f"{name}: {one.bandwidth_mbit:g} Mbit/s, {one.rtt_ms:g} ms" for name, one in networks.items())
    caption = (
        f"<b>On every network, AERO {place}</b>: computing and latency of a forward pass by the model computing + wire "
        "bytes / rate + rounds × round-trip time. <i>implied</i> is what the papers' printed latencies allow at the "
        f"least. {escape(links)}. Messages, rounds and seconds are sums over operations, most without and a few with a "
        "refill of the stock of oblivious transfers, 1,281 messages and some rounds each, so that messages are too few "
        "and files differ in them; the complete passes at the papers' own size say by how much. Passes over shaped "
        "links (below) held the model against operations of their own session and shapes; these latencies take the "
        f"rounds of most operations from smaller ones and were held against no pass. {slower_day(results)}"
    )
    identifier = f"networks-{place.split()[1]}"
    width = 0.3 / max(1, len(networks))
    return grid(heads, rows, caption, identifier, (0.26, 0.14, 0.11, 0.08, 0.11, *(width for _ in networks)), "dense")


def _gigabytes(cost: Cost | None, published: float | None) -> list[str]:
    if cost is None:
        return [gap(), gap("–")]
    ratio = gap("–") if not published else number(f"{cost.bytes / GB / published:.2f}", "paper_dimensions", cost.path)
    return [number(f"{cost.bytes / GB:.2f}", "paper_dimensions", cost.path), ratio]


def _minutes(cost: Cost | None) -> str:
    if cost is None or cost.latency_wan is None:
        return gap("–")
    return number(f"{cost.latency_wan / 60:.1f}", "paper_dimensions", cost.path)


def _source(results: Results, table: Table) -> str:
    costs = [cost for row in table.rows for cost in all_costs(results, table, row.name).values()]
    if not costs:
        return "Not measured yet (<code>python -m stages.two_party_all</code>)."
    methods = ", ".join(sorted({cost.method for cost in costs}))
    known = f"{len(costs)} of {len(table.rows) * len(ALL_PROGRAMS)}"
    return f"Measured side: {known} costs, {escape(methods)}. {slower_day(results)}"


def savings(results: Results) -> Html:
    """Both savings columns: printed, measured in both programs, and with the baseline's GELU alone exchanged.

    A grid for each of Tables 4 to 6.
    """
    return Html("".join(_savings_of(results, which) for which in ("4", "5", "6")))


def _savings_of(results: Results, which: str) -> str:
    table, rows = load("aero").tables[which], []
    for row in table.rows[1:]:
        line = [row_label(row.name)]
        for key, quantity in (("savings_communication", "bytes"), ("savings_latency", "latency_wan")):
            line += _saving_cells(results, table, row.name, key, quantity)
        rows.append(line)
    heads = ["configuration"]
    for what in ("GB", "WAN"):
        heads += [f"{what} pub­lished", "both as pub­lished", "both as written", "seg­mented GELU", "own share"]
        heads += ["both tuned"]
    caption = (
        f"<b>Savings against SM+LN+G, Table {which}</b>, in communication (GB) and in latency on the WAN: printed; "
        "with both rows as <code>as_published</code> has them, the program made of what explains the printed bytes "
        "best, on today’s SPU, which makes its GELU a fifth cheaper; with both as written; with the baseline as "
        "written but for its GELU, which is the segmented one; the architecture’s own share of the saving, in "
        "logarithms; and with both rows tuned. "
        f"{cost_caption(results, table)} {slower_day(results)} {note(results, table)}"
    )
    identifier = "savings-audit" if which == "4" else f"savings-audit-{which}"
    widths = (0.154, *(0.075, 0.075, 0.07, 0.075, 0.06, 0.068) * 2)
    return grid(heads, rows, caption, identifier, widths, "dense")


def _saving_cells(results: Results, table: Table, row: str, key: str, quantity: str) -> list[str]:
    printed = table.row(row).cells[key]
    found = audit(results, table, row, quantity)
    source = f"{', '.join(found.rows)}; GELU from {found.gelu}"
    share = found.share

    def shown(value: float | None, form: str = "{:.2f}×") -> str:
        return gap("–") if value is None else number(form.format(value), "paper_dimensions", source)

    times = published_saving(results, table, row, quantity)
    return [
        number(f"{printed.text}×", "published", f"AERO Table {table.number}"),
        gap("–") if times is None else number(f"{times:.2f}×", "paper_dimensions", FITTED.as_posix()),
        shown(found.as_written),
        shown(found.one_gelu),
        shown(None if share is None else 100 * share, "{:.0f} %"),
        shown(saving(results, table, row, "tuned", quantity)),
    ]


def cost_model(results: Results) -> Html:
    """What `aero cost` interpolates by, and how wrong each law is at a measured shape that it was fitted without."""
    try:
        settings = TwoPartyParameters(**results.parameters["two_party"])
        measured = measured_operations(settings.variant(), results.root)
    except (KeyError, ValueError):
        return Html(f"<p>Laws between measured shapes: {gap()}.</p>")
    source = "results/two_party/ops.csv, all_ops.csv, asked_ops.csv, aero.two_party.cost.cost_model.law_errors"
    rows = []
    for group, points, *of_laws in law_errors(measured):
        errors = [
            gap("too few shapes")
            if error is None
            else number(f"{100 * error:.{2 if error < 0.01 else 0}f} %", "paper_dimensions", source)
            for error in of_laws
        ]
        rows.append([f"<code>{escape(group)}</code>", number(str(points), "paper_dimensions", source), *errors])
    heads = ["operation", "shapes measured", "error of the bytes", "error of the rounds", "error of the seconds"]
    caption = (
        "<b>What <code>aero cost</code> interpolates by.</b> Bytes are sums over ciphertexts and entries, as SPU packs "
        "them; the error is the largest at a measured shape between others when the law is fitted without it, and an "
        "answer’s bound is wider where other coefficients fit the measured shapes as well and put another cost on the "
        "shape that is asked. Where "
        "too few shapes are measured to tell, only those shapes have an answer; where that is so of the rounds alone, "
        "rounds and latency have no bound."
    )
    return Html(grid(heads, rows, caption, "cost-model", (0.36, 0.16, 0.16, 0.16, 0.16), "dense"))
