"""What AERO's rows cost as written, tuned, and tuned with products outside SPU, measured together.

    python -m benchmarks.lattice_products [--minutes M]

All rows of Tables 4 to 7 at their own sizes. Every operation of the programs is measured by the same command,
three times at T=128 and once beyond: seconds are compared with each other, so they must not be of different days. It
writes results/two_party/lattice_ops.csv and lattice_rows.csv after every few operations and goes on where it was
killed. About three quarters of an hour on 2 cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.config import Parameters, load
from aero.errors import UserError, check_minutes, run_main
from aero.two_party.cost.resume import PrintedRow, measure_rows
from benchmarks.as_published import REPEATS, TABLES
from stages.two_party_all import printed_rows, rounds_runs

PATH = Path("results/two_party/lattice_rows.csv")
PROGRAMS = ("as_written", "as_written+lattice_products", "tuned-lattice_products", "tuned")


def rows_of(parameters: Parameters) -> list[PrintedRow]:
    """The rows of TABLES."""
    return [row for row in printed_rows(parameters) if any(place.startswith(TABLES) for place in row.places)]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lattice_products", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after about so long, between two sessions")
    parser.add_argument("--folder", type=Path, default=PATH.parent)
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)
    parameters = load()
    if parameters.active.two_party != "gpt2":
        raise UserError(f"scale {parameters.scale} has operations of its own sizes; take scale: laptop in params.yaml")
    ops_file, rows_file = (chosen.folder / f"lattice_{what}.csv" for what in ("ops", "rows"))
    rows = rows_of(parameters)
    options = {"minutes": chosen.minutes, "rounds_runs": rounds_runs(parameters), "repeats": REPEATS}
    measure_rows(parameters.two_party, rows, PROGRAMS, ops_file, rows_file, **options)


if __name__ == "__main__":
    run_main(main)
