"""Fragments of the report's page about private inference: rows, their parts, single operations, complete passes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from aero.published import load
from aero.report.costs import (
    ALL_PROGRAMS,
    FIGURE_15_SIZES,
    FITTED,
    FULL_PASSES,
    GB,
    KEYS,
    PARTS,
    cost_files,
    costs_by_kind,
    costs_by_place,
    exchanges_by_kind,
    full_passes,
    part_bytes,
    slower_day,
)
from aero.report.marks import Html, cost_caption, gap, grid, number, row_label
from aero.report.put_backs import note
from aero.report.results import Cost, Results
from aero.report.tables import cost_rows
from aero.two_party.cost import ledger
from aero.two_party.cost.packing import EMBEDDINGS, VOCABULARY_PROJECTIONS
from aero.two_party.program.optimizations import AS_PUBLISHED

COST_WIDTHS = (0.16, 0.06, 0.06, 0.09, *(0.07,) * 9)


def table_costs(results: Results) -> Html:
    """What a forward pass costs in the programs, and what the published bytes say of the published latency."""
    place = "AERO Table 4"
    source = cost_files(results, load("aero").tables["4"])
    lines: dict[str, dict[str, dict[str, object]]] = {}
    for entry in cost_rows(results):
        lines.setdefault(str(entry["row"]), {})[str(entry["program"])] = entry
    rows = []
    for name, programs in lines.items():
        side = next(iter(programs.values()))
        line = [
            row_label(name),
            number(f"{side['published_gb']:.2f}", "published", place),
            number(f"{side['published_min']:.2f}", "published", place),
            number(
                f"{side['bound_overlapped_min']:.1f} – {side['bound_one_way_min']:.1f}",
                "published",
                "derived from the published GB",
                "aero/published/aero.yaml",
            ),
        ]
        for program in ALL_PROGRAMS:
            entry = programs.get(program, {})
            of_program = FITTED.as_posix() if program == AS_PUBLISHED else source
            for key, factor, digits in (("bytes", 1e-9, 2), ("latency_wan_min", 1, 2), ("latency_lan_min", 1, 2)):
                value = entry.get(key)
                line.append(
                    gap("–")
                    if value is None
                    else number(f"{float(value) * factor:.{digits}f}", "paper_dimensions", of_program)
                )
        rows.append(line)
    heads = [
        "configuration",
        "GB pub­lished",
        "min pub­lished",
        "least min those GB allow",
        "as pub­lished, GB",
        "WAN, mod­elled min",
        "LAN, mod­elled min",
        "as written, GB",
        "WAN, mod­elled min",
        "LAN, mod­elled min",
        "tuned, GB",
        "WAN, mod­elled min",
        "LAN, mod­elled min",
    ]
    bandwidth = load("aero").facts["network"]["bandwidth_mbit"]
    caption = (
        f"<b>Cost of one forward pass</b>, from token ids to the logits of the last position. Least min: the time "
        f"the published bytes need at {number(f'{bandwidth} Mbit/s', 'published', 'AERO Appendix C')}, "
        f"both directions always busy, or one at a time. {cost_caption(results)} {slower_day(results)} "
        f"{note(results, load('aero').tables['4'])}"
    )
    return Html(grid(heads, rows, caption, "costs", COST_WIDTHS, "dense"))


def table_parts(results: Results) -> Html:
    """Where the bytes of each row go: embedding, vocabulary projection, final LayerNorm, set-up, and all the blocks.

    A grid for each of Tables 4 to 7 and Figure 15 that has a measured row, with messages, rounds and seconds.
    """
    grids = [text for place, costs in costs_by_place(results).items() if (text := _parts_of(results, place, costs))]
    return Html("".join(grids) if grids else f"<p>Where the bytes of a row go: {gap()}.</p>")


def _parts_of(results: Results, place: str, costs: dict[str, dict[str, Cost]]) -> str:
    rows = []
    for name, programs in costs.items():
        for program, cost in programs.items():
            parts = {part: part_bytes(cost, part) for part in PARTS}
            if any(value is None for value in parts.values()):
                continue
            amounts = [cost.bytes - sum(value or 0.0 for value in parts.values()), *parts.values(), cost.bytes]
            others = [
                gap("–") if value is None else number(f"{value:,.0f}", "paper_dimensions", cost.path)
                for value in (cost.messages, cost.rounds, cost.seconds)
            ]
            rows.append(
                [row_label(name), f"<code>{program}</code>"]
                + [number(f"{(amount or 0.0) / GB:.3f}", "paper_dimensions", cost.path) for amount in amounts]
                + others
            )
    if not rows:
        return ""
    heads = ["configuration", "program", "blocks, GB", *(f"{name}, GB" for name in PARTS.values()), "all, GB"]
    heads += ["messages", "rounds", "s"]
    which = place.split()[1]
    measured = f"{FIGURE_15_SIZES}." if place == "Figure 15" else cost_caption(results, load("aero").tables[which])
    caption = (
        f"<b>Where the bytes go, {place}.</b> The final LayerNorm is the one that every variant keeps after its "
        "last block and that the papers do not count. Seconds are of computing, without a network; messages and rounds "
        f"mostly without refills of the stock of oblivious transfers. {measured} {slower_day(results)}"
    )
    widths = (0.15, 0.09, 0.07, 0.1, 0.1, 0.1, 0.07, 0.07, 0.09, 0.08, 0.08)
    return grid(heads, rows, caption, "parts" if which == "4" else f"parts-{which}", widths, "dense")


LEAST_SHARE = 0.01
"""Kinds of operations below this share of a row's bytes, or of its seconds, are added up."""


def table_kinds(results: Results) -> Html:
    """Bytes and seconds of all published rows by kind of operation, where all_rows.csv has them, and in a second grid
    their messages and rounds."""
    amounts: list[list[str]] = []
    exchanges: list[list[str]] = []
    path, lines = costs_by_kind(results)
    measured: dict[str, dict[tuple[str, str], ledger.Measurement]] = {}
    sources: dict[str, None] = {}
    for place, costs in costs_by_place(results).items():
        for name, programs in costs.items():
            for program, cost in programs.items():
                own = program == AS_PUBLISHED  # its line came with the cost, from a file of its own
                key = name, cost.model, str(cost.context), program
                if line := {**cost.more, **dict(zip(KEYS, key, strict=True))} if own else lines.get(key):
                    start, source = [place, row_label(name), f"<code>{program}</code>"], cost.path if own else path
                    operations = source.replace("rows", "ops")
                    if operations not in measured:
                        measured[operations] = _measured_operations(results, operations)
                    cells = [_kinds(json.loads(line[f"{what}_by_kind"]), unit, source) for what, unit in UNITS.items()]
                    amounts.append([*start, *cells])
                    sources.setdefault(source)
                    found = exchanges_by_kind(line, measured[operations])
                    exchanges.append([*start, *(_kinds(by_kind, 1.0, operations) for by_kind in found.values())])
    if not amounts:
        return Html(f"<p>Costs of the rows by kind of operation: {gap()}.</p>")
    rule = (
        f"largest first; kinds below {LEAST_SHARE:.0%} of a row's whole are added up as others, but for those of the "
        "embedding and the vocabulary projection, which are always told. Each place's own dimensions; "
    )
    caption = (
        "<b>Costs by kind of operation</b>, Tables 4 to 7 and Figure 15: GB in both directions and seconds of "
        f"computing, {rule}{escape(', '.join(sources))}. {slower_day(results)}"
    )
    heads, widths = ["place", "configuration", "program"], (0.07, 0.18, 0.1, 0.32, 0.33)
    text = grid([*heads, "GB", "s"], amounts, caption, "kinds", widths, "dense")
    exchanges = [row for row in exchanges if len(row) == len(widths)]
    if exchanges:
        caption = (
            f"<b>Messages and rounds by kind of operation</b>, {rule}{escape(', '.join(measured))}, mostly without "
            "refills of the stock of oblivious transfers."
        )
        text += grid([*heads, "messages", "rounds"], exchanges, caption, "kinds-exchanges", widths, "dense")
    return Html(text)


def _measured_operations(results: Results, path: str) -> dict[tuple[str, str], ledger.Measurement]:
    try:
        return {one.key: one for one in ledger.read(results.root / path, ledger.Measurement)}
    except (OSError, ValueError):
        return {}


UNITS = {"bytes": GB, "seconds": 1.0}
APART = {*EMBEDDINGS, *VOCABULARY_PROJECTIONS}


def _kinds(amounts: Mapping[str, float], unit: float, path: str) -> str:
    by_kind = {kind: amount / unit for kind, amount in amounts.items()}
    whole, parts, rest = sum(by_kind.values()), [], 0.0
    for kind, amount in sorted(by_kind.items(), key=lambda item: -item[1]):
        if amount < LEAST_SHARE * whole and kind not in APART:
            rest += amount
            continue
        parts.append(f"{kind} {_amount(amount)}")
    if rest:
        parts.append(f"others {_amount(rest)}")
    # One mark for the cell: its numbers are all of one line of one file.
    return number("; ".join(parts), "paper_dimensions", path)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table_operations(results: Results) -> Html:
    """Every distinct operation as measured, one line each."""
    columns = {
        "op": "operation",
        "shape": "shape",
        "bytes": "MB, both ways",
        "messages": "messages",
        "rounds": "rounds",
        "setup_bytes": "set-up, MB",
        "seconds": "s",
    }
    sizes = load("aero").tables["4"].dimensions
    measured_for = sizes["model"], str(sizes["context"])
    operations = [line for line in results.operations if (line.get("model"), line.get("context")) == measured_for]
    rows = [_operation(line, columns) for line in operations]
    if not rows:
        return Html(f"<p>Single operations: {gap()}.</p>")
    caption = f"<b>Every distinct operation</b>, in its steady state. {cost_caption(results)}"
    return Html(
        grid(list(columns.values()), rows, caption, "operations", (0.27, 0.27, 0.11, 0.1, 0.08, 0.1, 0.07), "dense")
    )


def _operation(line: dict[str, str], columns: Iterable[str]) -> list[str]:
    values = line | {"bytes": _sum(line.get("bytes_sent_client"), line.get("bytes_sent_server"))}
    cells = []
    for column in columns:
        text = values.get(column) or ""
        if column in ("op", "shape"):
            pieces = re.split(r"(?<=[,_ ])|(?<=\dx)", text)
            cells.append(f"<code>{'<wbr>'.join(escape(piece) for piece in pieces)}</code>")
            continue
        try:
            amount = float(text)
        except ValueError:
            cells.append(gap("–"))
            continue
        shown = (
            f"{amount / 1e6:.2f}" if "bytes" in column else f"{amount:.2f}" if column == "seconds" else f"{amount:.0f}"
        )
        cells.append(number(shown, "paper_dimensions", f"results/two_party/ops.csv, {line['op']}"))
    return cells


def _sum(*texts: str | None) -> str:
    try:
        return str(sum(float(text or "") for text in texts))
    except ValueError:
        return ""


END_TO_END = {
    "architecture": "configuration",
    "program": "program",
    "prompts": "prompts",
    "max_logit_error": "largest logit error",
    "same_top_token": "same top token",
    "megabytes": "MB",
    "composed_over_measured": "composed over measured",
    "messages": "messages",
    "seconds": "s",
}
"""Columns of the table of complete passes: keys of end_to_end.json and what they are called."""


def end_to_end(results: Results) -> Html:
    """The complete private forward passes: how far their logits are off, and their bytes against the composition."""
    found = results.end_to_end
    entries = [entry for entry in (found if isinstance(found, list) else [found]) if isinstance(entry, dict)]
    if not entries:
        return Html(f"<p>No complete private forward pass: {gap()}.</p>")
    rows = [[_end_to_end_value(key, entry.get(key)) for key in END_TO_END] for entry in entries]
    scales = ", ".join(sorted({str(entry["scale"]) for entry in entries if "scale" in entry})) or "not recorded"
    lengths = ", ".join(sorted({str(entry["tokens"]) for entry in entries if "tokens" in entry})) or "not recorded"
    caption = (
        "<b>Complete private forward passes</b> of models trained here, from token ids to logits revealed to the "
        "client alone; the error is against the same checkpoint in PyTorch, the composition the sum of its operations. "
        f"Scale {escape(scales)}; tokens of a prompt: {escape(lengths)}."
    )
    widths = (0.15, 0.15, 0.09, 0.12, 0.1, 0.1, 0.11, 0.1, 0.08)
    return Html(grid(list(END_TO_END.values()), rows, caption, "end-to-end", widths, "dense"))


def _end_to_end_value(key: str, value: object) -> str:
    if value is None or isinstance(value, list | dict):
        return gap("–")
    if not isinstance(value, int | float):
        return row_label(str(value))
    if key == "composed_over_measured":
        return number(f"{value:.4f}", "smaller_scale", f"results/two_party/end_to_end.json, {key}")
    text = (
        f"{value:.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
    )
    return number(text, "smaller_scale", f"results/two_party/end_to_end.json, {key}")


COMPOSED_WITHIN = {"bytes": 0.03, "seconds": 0.15}
"""How near the sum of the operations is to come to a complete pass: this project's own targets."""


def table_full_passes(results: Results) -> Html:
    """Complete passes at the papers' own size beside the sums of their operations; a gap if none was measured."""
    entries = full_passes(results)
    try:
        rows = [_full_pass(entry) for entry in entries]
    except (KeyError, TypeError):
        rows = []
    if not rows:
        how = "<code>python -m benchmarks.full_passes</code>, 10 to 40 minutes a pass"
        return Html(f"<p>Complete private passes at the papers' own size: {gap()} ({how}).</p>")
    sizes = {(entry["layers"], entry["width"], entry["tokens"], entry["vocabulary"]) for entry in entries}
    sizes_text = "; ".join(f"L={size[0]}, d={size[1]}, T={size[2]}, V={size[3]}" for size in sorted(sizes))
    caption = (
        f"<b>Complete private passes at the papers' own size</b>, {sizes_text}: one pass each, between two processes "
        "on one machine, of a model with random weights (bytes do not depend on them); its last logits beside "
        "PyTorch's. Composition: the sum of the operations measured alone, over the pass; the targets are 1 within "
        f"{COMPOSED_WITHIN['bytes']:g} for bytes and within {COMPOSED_WITHIN['seconds']:g} for time. Measured, of the "
        f"pass and of its operations: {_when(entries)}. {_of_other_files(entries)}Seconds of other days compare less "
        "well (docs/decisions.md, Private inference). Messages of a tuned pass are more than their composition's by "
        "refills of the stock of oblivious transfers, 1,281 messages and some rounds each, which most operations were "
        "measured without; one measured with a refill counts it in every layer. Load: of the machine, at start and end."
    )
    heads = ["configuration", "program", "GB", "composition", "minutes", "composition", "messages", "composition"]
    heads += ["logit error", "load"]
    widths = (0.18, 0.13, 0.07, 0.12, 0.09, 0.12, 0.08, 0.09, 0.07, 0.07)
    return Html(grid(heads, rows, caption, "full-passes", widths, "dense"))


def _of_other_files(entries: list[dict[str, Any]]) -> str:
    """A sentence on passes that are composed of operations of their own session; empty if there are none."""
    own = [
        f"{row_label(entry['architecture'])} {escape(entry['program'])} ({escape(entry['operations_file'])})"
        for entry in entries
        if entry.get("operations_file")
    ]
    return f"Composed of operations measured beside it, when the machine was slower: {'; '.join(own)}. " if own else ""


def _when(entries: list[dict[str, Any]]) -> str:
    """The hours of passes and of the last of their operations, as YYYY-MM-DD HH."""
    said = []
    for entry in entries:
        times = (entry.get("provenance", {}).get("measured"), (entry.get("operations_measured") or [None])[-1])
        hours = ("unknown" if time is None else f"{time[:13].replace('T', ' ')} h" for time in times)
        said.append(f"{row_label(entry['architecture'])} {escape(entry['program'])} {' and '.join(hours)}")
    return "; ".join(said)


def _full_pass(entry: dict[str, Any]) -> list[str]:
    def measured(text: str) -> str:
        return number(text, "paper_dimensions", FULL_PASSES.as_posix())

    def ratio(what: str) -> str:
        value = entry[f"composed_over_measured_{what}"]
        if value is None:
            return gap("–")
        if what not in COMPOSED_WITHIN:
            return measured(f"{value:.4f}")
        return measured(f"{value:.4f}") + (" met" if abs(value - 1) <= COMPOSED_WITHIN[what] else " missed")

    return [
        row_label(entry["architecture"]),
        escape(entry["computed_as"]),
        measured(f"{(entry['bytes_client'] + entry['bytes_server']) / 1e9:.2f}"),
        ratio("bytes"),
        measured(f"{entry['seconds'] / 60:.1f}"),
        ratio("seconds"),
        measured(f"{entry['messages']:,}"),
        ratio("messages"),
        measured(f"{entry['max_logit_error']:.4f}"),
        measured(f"{entry['load_before']:g}, {entry['load_after']:g}"),
    ]


SHAPED = Path("results/two_party/shaped.csv")
"""Passes over shaped links, as `python -m benchmarks.shaped_network` keeps them."""
SHAPED_OPERATIONS = Path("results/two_party/shaped_ops.csv")
REFILL = "refill"
"""Its line in that file: a new stock of oblivious transfers, as `aero.two_party.cost.latency` measures it."""


def table_shaped(results: Results) -> Html:
    """Measured latency of complete passes over shaped links, beside what the latency model predicts from operations."""
    try:
        with (results.root / SHAPED).open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.DictReader(file) if line.get("predicted")]
        rows = [_shaped(line) for line in lines]
        sizes = {
            (size["layers"], size["width"], size["context"]) for size in map(json.loads, (x["model"] for x in lines))
        }
    except (OSError, ValueError, KeyError, TypeError):
        rows, sizes = [], set()
    if not rows:
        return Html(f"<p>Private passes over shaped links: {gap()}.</p>")
    models = "; ".join(f"{layers} layers, d={width}, T={context}" for layers, width, context in sorted(sizes))
    caption = (
        "<b>Latency on shaped links</b>: complete private passes of models trained here, between two processes on one "
        "machine joined by a link of that rate and round-trip time (a relay in user space that delays and limits, "
        "which a test holds against known transfers), beside the model: computing + wire bytes / rate + "
        "rounds x round-trip time, summed over operations. Computing is measured of each operation alone, at its own "
        "shape; so are wire bytes and rounds, by links that only limit the rate or only delay, but for products of "
        "matrices: their wire bytes are counted bytes, the larger direction alone where both are used at once, their "
        f"rounds those of a small product. {_refills(results)} Loopback: neither rate nor delay. A program's @ names "
        "the layers before which the residual stream is put back into its own basis; implied is the link that the "
        "papers' printed latencies allow at the least. Operations and passes are of one session; with operations of "
        "another day the same model told some passes too short by a quarter (docs/decisions.md, What a link costs). "
        f"{escape(models)}."
    )
    heads = [
        "configuration",
        "program",
        "link",
        "MB",
        "s measured",
        "s predicted",
        "computing",
        "transfer",
        "rounds",
        "error",
    ]
    widths = (0.15, 0.13, 0.16, 0.07, 0.1, 0.1, 0.08, 0.08, 0.07, 0.06)
    return Html(grid(heads, rows, caption, "shaped", widths, "dense"))


def _refills(results: Results) -> str:
    """What a refill is counted at, which the pass's operations leave out."""
    path = results.root / SHAPED_OPERATIONS
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    if any(line.startswith(f"{REFILL},") for line in lines):
        return "Refills of oblivious transfers are measured like operations, as many of them as the loopback pass made."
    return (
        "Refills of oblivious transfers, as many as the loopback pass made, are counted at what docs/decisions.md says "
        "was measured of one: typed from there, as no file of results holds that measurement."
    )


def _shaped(line: dict[str, str]) -> list[str]:
    link = line["network"]
    if line["bandwidth_mbit"]:
        link += f", {float(line['bandwidth_mbit']):g} Mbit/s, {float(line['rtt_ms']):g} ms"
    cells = [row_label(line["architecture"]), f"<code>{escape(line['program'])}</code>", escape(link)]
    cells.append(number(f"{float(line['bytes']) / 1e6:.0f}", "smaller_scale", f"{SHAPED}, bytes"))
    for key in ("seconds", "predicted", "compute", "transfer", "rounds"):
        cells.append(number(f"{float(line[key]):.1f}", "smaller_scale", f"{SHAPED}, {key}"))
    return [*cells, number(f"{float(line['error']):+.1%}", "smaller_scale", f"{SHAPED}, error")]
