"""Costs of a row of AERO Tables 4-7: counted operations, measured bytes and latencies, and the bound bytes put on
latency.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.architecture import parse
from aero.families import FAMILIES
from aero.flops import Count, Sizes, count
from aero.published import Paper, Table, load
from aero.report.results import Cost, Results, read_costs
from aero.two_party.cost.counts import counts, published_sizes
from aero.two_party.cost.network import Network, implied_bandwidth_mbit, lower_bound_seconds, wire_bytes
from aero.two_party.program.optimizations import AS_PUBLISHED

GB = 1e9
"""Bytes of a GB as used here. The papers do not say whether theirs are 1e9 or 2^30 bytes; 1e9 is the smaller claim."""
MIB, GIB = 2**20, 2**30
"""Bytes of what memory is told in."""

PROGRAMS = ("as_written", "tuned")
ALL_PROGRAMS = (AS_PUBLISHED, *PROGRAMS)


def counted(row: str, table: Table) -> Count:
    """FLOPs and nonlinear operations of the architecture of `row` at the table's own dimensions (AERO Appendix E)."""
    sizes = table.dimensions
    return count(parse(row), Sizes(sizes["layers"], sizes["heads"], sizes["width"]), sizes["context"])


@dataclass(frozen=True)
class LatencyBound:
    """The least time in which `gigabytes` can cross a link of `bandwidth` Mbit/s, in minutes, and the reverse.

    one_way: all bytes one after the other. overlapped: the count is of both directions together, of equal share, and
    both are always busy at once: the most favourable reading, half of one_way. needed_mbit: the bandwidth that a stated
    latency needs at the very least, by the favourable reading.
    """

    gigabytes: float
    bandwidth_mbit: float

    @property
    def one_way(self) -> float:
        return lower_bound_seconds(self.gigabytes * GB, self.bandwidth_mbit, "one_way") / 60

    @property
    def overlapped(self) -> float:
        return lower_bound_seconds(self.gigabytes * GB, self.bandwidth_mbit, "both_overlapping") / 60

    def needed_mbit(self, minutes: float) -> float:
        return implied_bandwidth_mbit(self.gigabytes * GB, minutes * 60)


def published_bound(paper: Paper, table: str, row: str) -> LatencyBound | None:
    """What the published bytes of `row` allow on the published network; None where no bytes are printed."""
    gigabytes = paper.tables[table].value(row, "communication")
    return None if gigabytes is None else LatencyBound(gigabytes, paper.facts["network"]["bandwidth_mbit"])


def row_costs(results: Results, table: Table, row: str) -> dict[str, Cost]:
    """The measured cost of `row` at the table's dimensions, by program; programs without a measurement are left out."""
    family, context = row_family(results, table, row), table.dimensions["context"]
    found = {program: results.cost(row, program, context, family) for program in PROGRAMS}
    return {program: cost for program, cost in found.items() if cost is not None}


def all_costs(results: Results, table: Table, row: str) -> dict[str, Cost]:
    """`row_costs`, and before them that of "as_published"."""
    return _with(published_cost(results, table, row), row_costs(results, table, row))


def _with(published: Cost | None, costs: dict[str, Cost]) -> dict[str, Cost]:
    return costs if published is None else {AS_PUBLISHED: published, **costs}


COSTED = ("4", "5", "6", "7")
"""AERO's tables with columns of costs."""
FIGURE_15 = "aero/figure15"
FIGURE_15_SIZES = "Pythia-70M, L=6, H=8, d=512, T=256"


def costs_by_place(results: Results) -> dict[str, dict[str, dict[str, Cost]]]:
    """The measured costs by place (Tables 4 to 7, Figure 15), row and program; those that there are."""
    places = {}
    for which in COSTED:
        table = load("aero").tables[which]
        places[f"Table {which}"] = {row.name: all_costs(results, table, row.name) for row in table.rows}
    return places | {"Figure 15": figure_15_costs(results)}


def figure_15_costs(results: Results) -> dict[str, dict[str, Cost]]:
    """The measured costs of Figure 15's architectures by program, those that there are."""
    found: dict[str, dict[str, Cost]] = {}
    for run in (results.parameters.get("runs") or {}).values():
        if FIGURE_15 in run.get("figures", ()):
            place = (run.get("context", 128), run.get("model", "gpt2"))
            costs = {program: results.cost(run["architecture"], program, *place) for program in PROGRAMS}
            costs = {program: cost for program, cost in costs.items() if cost is not None}
            found[run["architecture"]] = _with(fitted_cost(results, run["architecture"], *place[::-1]), costs)
    return found


def row_family(results: Results, table: Table, row: str) -> str:
    """The model family that the row's runs are of: Table 7's GPT-2 has a vocabulary of its own, for one."""
    runs = results.parameters.get("runs") or {}
    named = [run for printed in table.rows if printed.name == row for run in printed.trained.values() if run in runs]
    return str(runs[named[0]].get("model", "gpt2") if named else table.dimensions["model"])


LinesByRow = dict[tuple[str, str, str, str], dict[str, str]]
KEYS = ("architecture", "model", "context", "program")
"""What tells a line of a file of rows from the others."""


def lines_by_row(path: Path) -> LinesByRow:
    """Those lines of a file with the columns of all_rows.csv that are told by kind of operation; OSError without it."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line.get("bytes_by_kind")]
    return {tuple(line[key] for key in KEYS): line for line in lines}


FITTED = Path("results/two_party/fitted_rows.csv")
FITTED_FIGURE_15 = Path("results/two_party/fitted_figure15_rows.csv")
"""As `python -m benchmarks.as_published` keeps them."""


def fitted_cost(
    results: Results, architecture: str, family: str, context: int, program: str = AS_PUBLISHED
) -> Cost | None:
    """The cost of "as_published", the best fit of the printed bytes as a program, or of another `program` measured with
    it; None if it was not measured."""
    wanted = architecture, family, context, program
    for path in (FITTED, FITTED_FIGURE_15):
        for cost in read_costs(results.root / path, results.root, []):
            if (cost.architecture, cost.model, cost.context, cost.program) == wanted and cost.bytes:
                return cost
    return None


def published_cost(results: Results, table: Table, row: str, program: str = AS_PUBLISHED) -> Cost | None:
    """`fitted_cost` of a row of a table."""
    return fitted_cost(results, row, row_family(results, table, row), table.dimensions["context"], program)


def published_saving(results: Results, table: Table, row: str, quantity: str) -> float | None:
    """`saving` with both rows "as_published"; None if either was not measured so."""
    base, own = (published_cost(results, table, name) for name in (table.rows[0].name, row))
    return _times_less(base, own, quantity)


def _times_less(base: Cost | None, own: Cost | None, quantity: str) -> float | None:
    if base is None or own is None or not getattr(base, quantity) or not getattr(own, quantity):
        return None
    return float(getattr(base, quantity) / getattr(own, quantity))


def slower_day(results: Results, family: str = "gpt2", context: int = 128) -> str:
    """A sentence on the minutes as published of a model and context, where they are of another session than the others;
    else empty."""
    name = "SM+LN+G"
    that_day = fitted_cost(results, name, family, context, "as_written")
    other = results.cost(name, "as_written", context, family)
    if that_day is None or other is None or None in (that_day.latency_wan, other.latency_wan):
        return ""
    commit = json.loads(that_day.more.get("provenance") or "{}").get("commit", "")[:10]
    minutes, faster = (f"{cost.latency_wan / 60:.2f}" for cost in (that_day, other))
    day = "a day with a slower machine" if that_day.latency_wan > other.latency_wan else "another day"
    return (
        f"Seconds and minutes as published are of {f'commit {commit} and ' if commit else ''}{day}: {name} as written "
        f"took {minutes} WAN minutes then and not {faster}."
    )


def costs_by_kind(results: Results) -> tuple[str, LinesByRow]:
    """The file of every row's cost, fresh or kept, and its lines."""
    for folder in ("runs", "results"):
        path = Path(folder) / "two_party" / "all_rows.csv"
        try:
            return path.as_posix(), lines_by_row(results.root / path)
        except OSError:
            continue
    return "", {}


def exchanges_by_kind(line: Mapping[str, str], measured: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, float]]:
    """Messages and rounds by kind of operation of a line that is told by kind, from the `measured` operations by name
    and shape; none unless they add up to the bytes that it says."""
    sizes = published_sizes(line["model"], int(line["context"]))
    needed, _ = counts(parse(line["architecture"]), sizes, line["program"])
    found: dict[str, dict[str, float]] = {what: {} for what in ("bytes", "messages", "rounds")}
    for key, times in needed.items():
        if key not in measured:
            return {}
        kind = key[0].partition("(")[0]
        for what, by_kind in found.items():
            by_kind[kind] = by_kind.get(kind, 0.0) + times * getattr(measured[key], what)
    told, summed = json.loads(line["bytes_by_kind"]), found.pop("bytes")
    agree = set(summed) == set(told) and all(math.isclose(summed[kind], told[kind], rel_tol=1e-6) for kind in told)
    return found if agree else {}


ROW_FACTORS = ("scale_row_tiles", "scale_row_tiles_by_server", "normalise_tiles", "inverse_sums")
"""Kinds of operations that divide rows: by their sums, by temperatures, by their standard deviation."""
PRODUCTS = ("linear", "lattice_linear", "scores", "mix")


@dataclass(frozen=True)
class Least:
    """What no exchange of bytes for seconds takes from a tuned row, over the seconds as written of the same file.

    factors: with all that divides rows (`ROW_FACTORS`) for nothing; products: with all but the products for nothing.
    """

    factors: float
    products: float
    path: str


def least_seconds(results: Results, table: Table, row: str) -> Least | None:
    """From all_rows.csv, where both programs are from one session; None where that file has not got them."""
    path, lines = costs_by_kind(results)
    key = row, row_family(results, table, row), str(table.dimensions["context"])
    if not all((*key, program) in lines for program in PROGRAMS):
        return None
    plain, tuned = (json.loads(lines[*key, program]["seconds_by_kind"]) for program in PROGRAMS)
    whole = sum(plain.values())
    return Least(
        sum(seconds for kind, seconds in tuned.items() if kind not in ROW_FACTORS) / whole,
        sum(tuned.get(kind, 0.0) for kind in PRODUCTS) / whole,
        path,
    )


def saving(results: Results, table: Table, row: str, program: str, quantity: str) -> float | None:
    """How many times less `quantity` ("bytes", "latency_wan", "latency_lan") `row` needs than the table's first row."""
    base, cost = (row_costs(results, table, name).get(program) for name in (table.rows[0].name, row))
    return _times_less(base, cost, quantity)


def at_dimensions(results: Results, table: Table) -> tuple[tuple[Cost, ...], tuple[dict[str, str], ...]]:
    """Costs at the table's own models and context, and the operations in the files that these are composed from; other
    sizes are left out.
    """
    models = {row_family(results, table, row.name) for row in table.rows} or {table.dimensions["model"]}
    context = table.dimensions["context"]
    costs = tuple(cost for cost in results.costs if cost.model in models and cost.context == context)
    # An operation is measured for the first row that needs it, whose model may be one of another depth.
    widths = [_widths(model) for model in models]
    files = {cost.operations_path: results.operations_of(cost) for cost in costs}
    operations = tuple(
        line
        for lines in files.values()
        for line in lines
        if line.get("context") == str(context) and _widths(line.get("model") or "") in widths
    )
    return costs, operations


def _widths(model: str) -> object:
    """What the shapes of a model's operations follow from, beside its context; the name where it is no family's."""
    sizes = FAMILIES[model].sizes if model in FAMILIES else {"name": model}
    return {key: size for key, size in sizes.items() if key != "layers"}


def compared_runs(results: Results) -> dict[str, dict[str, Any]]:
    """Runs that are compared: those with overrides of the recipe stand for another question, and a private pass
    computes softmax alone.
    """
    runs = results.parameters.get("runs") or {}
    return {
        name: run
        for name, run in runs.items()
        if not run.get("overrides") and parse(run["architecture"]).core == "softmax"
    }


def cost_files(results: Results, table: Table) -> str:
    """The files that hold the costs at the table's dimensions."""
    return ", ".join(sorted({cost.path for cost in at_dimensions(results, table)[0]})) or "results/two_party/rows.csv"


@dataclass(frozen=True)
class Audit:
    """How many times less of a quantity a row needs than SM+LN+G, and what is left without the baseline's GELU.

    as_written, tuned: both rows in that program. one_gelu: the row as written, and the baseline as written but
    for its GELU, which is the segmented one. None: not measured. rows, gelu: the files of the rows, and of both GELUs.
    """

    as_written: float | None
    one_gelu: float | None
    tuned: float | None
    rows: tuple[str, ...] = ()
    gelu: str = ""

    @property
    def by_gelu(self) -> float | None:
        """The factor that the baseline's GELU alone is worth."""
        return self.as_written / self.one_gelu if self.as_written and self.one_gelu else None

    @property
    def share(self) -> float | None:
        """The share of the saving, in logarithms, that is left without the GELU: the architecture's own."""
        if not self.as_written or not self.one_gelu or self.as_written <= 1:
            return None
        return math.log(self.one_gelu) / math.log(self.as_written)


def audit(results: Results, table: Table, row: str, quantity: str) -> Audit:
    """Savings of `row` of a table in "bytes" or "latency_wan"."""
    found = {program: saving(results, table, row, program, quantity) for program in PROGRAMS}
    first = row_costs(results, table, table.rows[0].name)
    base = first.get("as_written")
    files = {cost.path for costs in (first, row_costs(results, table, row)) for cost in costs.values()}
    segmented, both = baseline_with_segments(results, table), found["as_written"]
    one_gelu = None
    if base is not None and segmented is not None and both:
        one_gelu = both * segmented[quantity] / getattr(base, quantity)
    return Audit(both, one_gelu, found["tuned"], tuple(sorted(files)), "" if base is None else base.operations_path)


def baseline_with_segments(results: Results, table: Table) -> dict[str, float] | None:
    """Bytes and WAN latency of the table's first row as written but for its GELU, which is the segmented one.

    The row less its GELUs, plus as many of the same shape in segments, each as it was measured alone among the
    operations that the row is composed from; None if one of them was not.
    """
    base = row_costs(results, table, table.rows[0].name).get("as_written")
    wan = results.parameters.get("two_party", {}).get("networks", {}).get("wan")
    if base is None or base.latency_wan is None or not wan:
        return None
    sizes = table.dimensions
    shape = f"{sizes['context']}x{4 * sizes['width']}"
    measured = results.operations_of(base)
    both = [operation(measured, kind, shape) for kind in ("gelu_plain", "gelu_segments")]
    if None in both:
        return None
    plain, segments = both
    more = {key: sizes["layers"] * (segments[key] - plain[key]) for key in plain}
    network = Network(wan["bandwidth_mbit"], wan["rtt_ms"])
    slower = network.latency_seconds(more["seconds"], more["wire_bytes"], 0.0, more["rounds"])
    bytes_ = more["bytes_sent_client"] + more["bytes_sent_server"]
    return {"bytes": base.bytes + bytes_, "latency_wan": base.latency_wan + slower}


def operation(measured: Iterable[Mapping[str, str]], kind: str, shape: str) -> dict[str, float] | None:
    """Bytes each way and on the wire, rounds and seconds of an operation; None if it is not among those `measured`."""
    for line in measured:
        if (line.get("op"), line.get("shape")) == (kind, shape):
            try:
                found = {
                    key: float(line[key]) for key in ("bytes_sent_client", "bytes_sent_server", "rounds", "seconds")
                }
                return found | {"wire_bytes": wire_bytes(kind, found["bytes_sent_client"], found["bytes_sent_server"])}
            except (KeyError, ValueError):
                continue
    return None


_AGREE = 1e-3
"""How far the latencies of a file, relative, may be from those of its own bytes and rounds: what its digits allow."""


def wire_bytes_of(results: Results, cost: Cost) -> float | None:
    """The bytes that cost time, from a row's own latencies; None where they are not those of params.yaml's networks."""
    networks = results.parameters.get("two_party", {}).get("networks", {})
    if None in (cost.seconds, cost.rounds, cost.latency_wan, cost.latency_lan) or not {"wan", "lan"} <= set(networks):
        return None
    wan, lan = (Network(networks[name]["bandwidth_mbit"], networks[name]["rtt_ms"]) for name in ("wan", "lan"))
    transfer = cost.latency_wan - cost.seconds - cost.rounds * wan.rtt_ms / 1e3
    wire = transfer * wan.bytes_per_second
    agrees = math.isclose(lan.latency_seconds(cost.seconds, wire, 0.0, cost.rounds), cost.latency_lan, rel_tol=_AGREE)
    return wire if agrees and wire >= 0 else None


PARTS = {
    "embedding_bytes": "embedding",
    "head_bytes": "vocabulary projection",
    "ln_f_bytes": "final LayerNorm",
    "setup_bytes": "set-up",
}
"""Columns of rows.csv that are parts of a row's bytes, and what they are."""


def part_bytes(cost: Cost, part: str) -> float | None:
    """One of `PARTS` of a cost in bytes, None if its file does not tell it."""
    text = cost.more.get(part) or ""
    return float(text) if text else None


FULL_PASSES = Path("results/two_party/full_passes.json")
"""Passes at the papers' own size, as `python -m benchmarks.full_passes` keeps them."""


def full_passes(results: Results) -> list[dict[str, Any]]:
    """The entries of full_passes.json; none if there is no readable one."""
    try:
        found = json.loads((results.root / FULL_PASSES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
