"""Costs of the rows of AERO Tables 4-7: counted operations, composed bytes and seconds, the fit to the published bytes.

Bytes count both directions. Programs: "as_published" (the fit as a program on today's SPU), "as_written" (stock SPU),
"tuned" (optimised).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aero.architecture import parse
from aero.flops import Count, Sizes, count
from aero.published import Table, fact
from aero.records import read_csv
from aero.report.results import Cost, Results
from aero.schema import Network, RunParameters
from aero.two_party.cost.network import wire_bytes
from aero.two_party.program.optimizations import AS_PUBLISHED

GB = 1e9
"""The papers do not say whether a GB is 1e9 or 2^30 bytes; 1e9 is the smaller claim."""
MIB = 2**20

STOCK, OPTIMISED = "as_written", "tuned"
PROGRAMS = (STOCK, OPTIMISED)
COST_TABLES = ("4", "5", "6", "7")
FIGURE_15 = "aero/figure15"


def counted(row: str, table: Table) -> Count:
    """FLOPs and nonlinear operations of the architecture of `row` at the table's own dimensions (AERO Appendix E)."""
    sizes = table.dimensions
    return count(parse(row), Sizes(sizes["layers"], sizes["heads"], sizes["width"]), sizes["context"])


def least_minutes(table: Table, row: str) -> float:
    """Least time of the published bytes of `row` on the published network, both directions of equal share and always
    busy. All bytes one after the other need twice that."""
    bits_a_minute = fact(table.paper, "network")["bandwidth_mbit"] * 1e6 * 60
    return table.value(row, "communication") * GB * 8 / bits_a_minute / 2


def needed_mbit(table: Table, row: str) -> float:
    """The least bandwidth for the published minutes of `row`, directions overlapped."""
    network = fact(table.paper, "network")
    return network["bandwidth_mbit"] * least_minutes(table, row) / table.value(row, "latency")


@dataclass(frozen=True)
class Fit:
    """A published row composed from operations in the configuration that fits all 35 rows best."""

    gigabytes: float
    residual_percent: float
    configuration: str


FITS = Path("results/two_party/forensics_fits.csv")


@cache
def fits(results: Results) -> dict[tuple[str, str], Fit]:
    """The best fit by table and row; empty without the file. This is what "reproduced" means for bytes."""
    return {
        (line["table"], line["row"]): Fit(
            float(line["fitted_gb"]), float(line["residual_percent"]), line["configuration"]
        )
        for line in read_csv(results.root / FITS)
        if line["rank"] == "1"
    }


def row_family(results: Results, table: Table, row: str) -> str:
    """Model family of the row's runs. Table 7's GPT-2, for example, has a vocabulary of its own."""
    runs = results.parameters.runs
    named = [run for printed in table.rows if printed.name == row for run in printed.trained.values() if run in runs]
    return runs[named[0]].model if named else str(table.dimensions["model"])


def row_costs(results: Results, table: Table, row: str) -> dict[str, Cost]:
    """Composed costs of `row` at the table's dimensions by program ("as_written", "tuned"), those that exist."""
    family, context = row_family(results, table, row), table.dimensions["context"]
    found = {program: results.cost(row, program, context, family) for program in PROGRAMS}
    return {program: cost for program, cost in found.items() if cost is not None}


def all_costs(results: Results, table: Table, row: str) -> dict[str, Cost]:
    """`row_costs`, preceded by the cost of "as_published" where it was measured."""
    fitted = published_cost(results, table, row)
    return ({} if fitted is None else {AS_PUBLISHED: fitted}) | row_costs(results, table, row)


def published_cost(results: Results, table: Table, row: str, program: str = AS_PUBLISHED) -> Cost | None:
    """Cost of the fit as a program, or of another program measured in its session; None if not measured."""
    return results.fitted.get((row, row_family(results, table, row), table.dimensions["context"], program))


def saving(results: Results, table: Table, row: str, program: str, quantity: str) -> float | None:
    """Ratio of the first row's `quantity` ("bytes", "latency_wan", "latency_lan") to that of `row`."""
    base, own = (all_costs(results, table, name).get(program) for name in (table.rows[0].name, row))
    if base is None or own is None or not getattr(base, quantity) or not getattr(own, quantity):
        return None
    return float(getattr(base, quantity) / getattr(own, quantity))


@dataclass(frozen=True)
class Audit:
    """Savings of a row over SM+LN+G, and the saving that remains if the baseline has a cheap (segmented) GELU.

    as_written, tuned: both rows in that program. one_gelu: stock SPU, segmented GELU in the baseline. None: not
    measured. rows, gelu: files of the rows and of both GELUs.
    """

    as_written: float | None
    one_gelu: float | None
    tuned: float | None
    rows: tuple[str, ...]
    gelu: str

    @property
    def by_gelu(self) -> float | None:
        """The factor due to the baseline's GELU."""
        return self.as_written / self.one_gelu if self.as_written and self.one_gelu else None

    @property
    def share(self) -> float | None:
        """The architecture's share of the saving in logarithms, 0 to 1."""
        if not self.as_written or not self.one_gelu or self.as_written <= 1:
            return None
        return math.log(self.one_gelu) / math.log(self.as_written)


def audit(results: Results, table: Table, row: str, quantity: str) -> Audit:
    """Savings of `row` of a table in "bytes" or "latency_wan"."""
    stock, optimised = (saving(results, table, row, program, quantity) for program in PROGRAMS)
    first = row_costs(results, table, table.rows[0].name)
    files = {cost.path for costs in (first, row_costs(results, table, row)) for cost in costs.values()}
    base, segmented, one_gelu = first.get(STOCK), baseline_with_segments(results, table), None
    if segmented is not None and stock:
        one_gelu = stock * segmented[quantity] / getattr(base, quantity)
    return Audit(stock, one_gelu, optimised, tuple(sorted(files)), "" if base is None else base.operations_path)


def baseline_with_segments(results: Results, table: Table) -> dict[str, float] | None:
    """Bytes and WAN latency of the table's first row on stock SPU with the segmented GELU in place of its own.

    Both GELUs as measured among the operations of the row; None if either was not.
    """
    base = row_costs(results, table, table.rows[0].name).get(STOCK)
    wan = network(results, "wan")
    if base is None or base.latency_wan is None or wan is None:
        return None
    sizes = table.dimensions
    shape = f"{sizes['context']}x{4 * sizes['width']}"
    path = results.root / base.operations_path
    plain, segments = (operation(path, kind, shape) for kind in ("gelu_plain", "gelu_segments"))
    if plain is None or segments is None:
        return None
    more = {key: sizes["layers"] * (segments[key] - plain[key]) for key in plain}
    slower = wan.latency_seconds(more["seconds"], more["wire_bytes"], more["rounds"])
    return {"bytes": base.bytes + more["bytes"], "latency_wan": base.latency_wan + slower}


def operation(path: Path, kind: str, shape: str) -> dict[str, float] | None:
    """Bytes both ways and on the wire, rounds and seconds of an operation; None if it is not in the file."""
    for line in read_csv(path):
        if (line.get("op"), line.get("shape")) == (kind, shape):
            sent = [float(line[f"bytes_sent_{side}"]) for side in ("client", "server")]
            found = {key: float(line[key]) for key in ("rounds", "seconds")}
            return found | {"bytes": sum(sent), "wire_bytes": wire_bytes(kind, *sent)}
    return None


def network(results: Results, name: str) -> Network | None:
    """A network of params.yaml."""
    return results.parameters.two_party.networks.get(name)


@dataclass(frozen=True)
class Minutes:
    """WAN latency of a pass by the model computing + transfer + rounds, in minutes."""

    computing: float
    transfer: float
    rounds: float

    @property
    def on_network(self) -> float:
        return self.transfer + self.rounds

    @property
    def total(self) -> float:
        return self.computing + self.on_network


def wan_minutes(results: Results, cost: Cost | None) -> Minutes | None:
    """The parts of a row's WAN latency; None where one is missing."""
    wan = network(results, "wan")
    if cost is None or wan is None or None in (cost.seconds, cost.rounds, cost.latency_wan):
        return None
    waiting = cost.rounds * wan.rtt_ms / 1e3
    return Minutes(cost.seconds / 60, (cost.latency_wan - cost.seconds - waiting) / 60, waiting / 60)


def compared_runs(results: Results) -> dict[str, RunParameters]:
    """Runs with softmax attention and no change of the recipe, whose perplexity and cost can be compared."""
    runs = results.parameters.runs.items()
    return {name: run for name, run in runs if not run.overrides and parse(run.architecture).core == "softmax"}


def parts(line: Mapping[str, str], quantity: str) -> dict[str, float]:
    """Bytes or seconds of a row of all_rows.csv by part of the model."""
    found = dict.fromkeys(PARTS, 0.0)
    for kind, amount in json.loads(line[f"{quantity}_by_kind"]).items():
        found[next((part for part, kinds in PARTS.items() if kind.startswith(kinds)), "other")] += amount
    if quantity == "bytes":
        found["other"] += float(line["setup_bytes"])
    return found


PARTS = {
    "GELU or ReLU": ("gelu", "relu"),
    "softmax": ("softmax", "exponentials", "inverse_sums", "reciprocal_sums", "divide_by_sums", "scale_row"),
    "LayerNorm": ("layer_norm", "normalise"),
    "attention matmuls": ("scores", "mix"),
    "linear layers": ("linear", "lattice_linear"),
    "embedding, logits": ("embedding", "id_lookup", "vocabulary"),
    "other": (),
}
"""Parts of a model and how the kinds of operations that compute them begin."""


GENERATION = Path("results/two_party/generation.csv")


def next_tokens(results: Results, program: str = OPTIMISED) -> dict[str, dict[str, tuple[float, float]]]:
    """Bytes, rounds, seconds and logit error by row: of a whole pass, and the largest of later tokens with a cache.

    Of a program, as `python -m benchmarks.generation` writes them; empty without the file.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    lines = [line for line in read_csv(results.root / GENERATION) if line["program"] == program]
    for row in dict.fromkeys(line["run"] for line in lines):
        own = [line for line in lines if line["run"] == row]
        passes = [line for line in own if line["cached"] == "0"], [line for line in own if line["rows"] == "1"]
        found[row] = {
            name: tuple(max((float(line[name] or "nan") for line in some), default=math.nan) for some in passes)
            for name in ("bytes", "rounds", "seconds", "logit_error")
        }
    return found


COST_COLUMNS = (
    *("row", "program", "bytes", "set_up_bytes", "embedding_bytes", "head_bytes", "ln_f_bytes", "messages", "rounds"),
    *("compute_s", "latency_wan_min", "latency_lan_min", "method", "max_logit_error", "published_gb"),
    *("bytes_over_published", "published_min", "bound_overlapped_min", "bound_one_way_min", "needed_mbit"),
)


def cost_rows(results: Results, printed: Table) -> list[dict[str, str | float | None]]:
    """One entry a row and program: what was measured, and the bound the published bytes put on the published latency.

    Rows without a measurement have one entry with the published side alone. Bytes are both ways; minutes and seconds.
    """
    entries = []
    for row in printed.rows:
        gigabytes, minutes = row.cells["communication"].value, row.cells["latency"].value
        least = least_minutes(printed, row.name)
        side = {"row": row.name, "published_gb": gigabytes, "published_min": minutes}
        side |= {"bound_overlapped_min": least, "bound_one_way_min": 2 * least}
        side |= {"needed_mbit": needed_mbit(printed, row.name)}
        costs = all_costs(results, printed, row.name)
        entries += [side | _measured(cost, gigabytes) for cost in costs.values()] or [side | {"program": None}]
    return entries


def _measured(cost: Cost, gigabytes: float | None) -> dict[str, str | float | None]:
    more = {name: cost.more.get(name) for name in ("embedding_bytes", "head_bytes", "ln_f_bytes")}
    more |= {"set_up_bytes": cost.more.get("setup_bytes")}
    return {name: float(text) if text else None for name, text in more.items()} | {
        "program": cost.program,
        "bytes": cost.bytes,
        "messages": cost.messages,
        "rounds": cost.rounds,
        "compute_s": cost.seconds,
        "latency_wan_min": None if cost.latency_wan is None else cost.latency_wan / 60,
        "latency_lan_min": None if cost.latency_lan is None else cost.latency_lan / 60,
        "method": cost.method,
        "max_logit_error": cost.max_logit_error,
        "bytes_over_published": cost.bytes / GB / gigabytes if gigabytes else None,
    }
