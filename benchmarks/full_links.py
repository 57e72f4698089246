"""What operations of the papers' own size cost on a link, each at its own shape.

    python -m benchmarks.full_links --minutes 30

The latencies of AERO's tables take rounds from smaller operations, because a delayed link makes large ones slow, and
count bytes that cost time by a rule (`aero.two_party.cost.network.wire_bytes`). Here every operation of `ROWS` but
products
of matrices, and a GELU of the exact kind, runs over links that only pass on, only delay, or only limit the rate: an
hour or more on a quiet machine, three runs each (of single ones, tiles of rows that compute for seconds showed fewer
bytes than none). Written to results/two_party/full_links.csv as they are measured, cheapest first; what has a line is
not measured again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import math
import time
from pathlib import Path

from aero import records
from aero.architecture import parse
from aero.config import load
from aero.errors import UserError, check_minutes, run_main
from aero.records import write_text
from aero.two_party.cost.ledger import as_json
from aero.two_party.cost.packing import MATRICES
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import Settings
from benchmarks.latency import Cost, measure_costs

ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")
FURTHER = (Operation("gelu_exact", ((16, 1024),)),)
"""Of Pythia's baseline, fewer entries: the bytes of 256 x 2048 would take a quarter of an hour on the limited link."""
PATH = Path("results/two_party/full_links.csv")
COLUMNS = (*(field.name for field in dataclasses.fields(Cost)), "provenance")


def wanted() -> list[Operation]:
    """The operations of all rows and programs of params.yaml that no product of matrices is, cheapest first."""
    parameters = load()
    config, context = parameters.at_scale("laptop").two_party_model()
    found: dict[Operation, None] = dict.fromkeys(FURTHER)
    for row in ROWS:
        for program in parameters.two_party.programs:
            found |= dict.fromkeys(operations(parse(row), config, program, context))
    apart = [one for one in found if one.kind not in MATRICES]
    return sorted(apart, key=lambda one: (sum(map(math.prod, one.shapes)), one))


def kept() -> dict[tuple[str, str], dict[str, str]]:
    """The lines that are there, by operation and shape."""
    if not PATH.exists():
        return {}
    with PATH.open(encoding="utf-8", newline="") as file:
        return {(line["op"], line["shape"]): line for line in csv.DictReader(file)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="begin no operation later than this")
    parser.add_argument("--repeats", type=int, default=3, help="runs of an operation on each link")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    if chosen.repeats < 1:
        raise UserError(f"--repeats must be at least 1, got {chosen.repeats}")
    parameters = load()
    made = as_json(**records.provenance(measured=records.now(), settings=parameters.two_party.variant()))
    lines = kept()
    began = time.monotonic()

    def keep(cost: Cost) -> None:
        line = {name: str(value) for name, value in dataclasses.asdict(cost).items()} | {"provenance": made}
        lines[cost.op, cost.shape] = line
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[key] for key in sorted(lines))
        write_text(PATH, text.getvalue())
        print(f"{cost.op} {cost.shape}: {cost.seconds:.1f} s, {cost.rounds:.1f} rounds, {cost.wire_bytes / 1e6:.1f} MB")

    settings = Settings(**parameters.two_party.settings())
    for operation in wanted():
        if (operation.name, operation.shape) in lines:
            continue
        if chosen.minutes is not None and time.monotonic() - began > 60 * chosen.minutes:
            print(f"{chosen.minutes:g} minutes are over; the same command goes on")
            return
        measure_costs([operation], settings, chosen.repeats, keep, with_refill=False)


if __name__ == "__main__":
    run_main(main)
