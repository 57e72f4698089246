"""AERO's rows measured in one go: fitted to the published bytes, stock SPU, and optimised.

    python -m benchmarks.as_published [--figure15 | --lattice] [--minutes M]

The rows of Tables 4 to 7 at their own sizes; He & Hofmann's with the program `as_published` only. Every operation of
the programs is measured by the same command, three times at T=128 and once beyond, since seconds of different days
cannot be compared. Writes results/two_party/fitted_ops.csv and fitted_rows.csv after every few operations and resumes
where it stopped; about an hour and a half on 2 cores. Rounds are taken from other files where the operation is the
same.

--figure15: the rows of Figure 15, as published and stock, into fitted_figure15_*.csv. Ten minutes.
--lattice: stock, optimised within SPU, and optimised, into lattice_*.csv. 45 minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from aero.config import Parameters, load
from aero.errors import UserError, check_minutes, run_main
from aero.report.results import FITTED
from aero.two_party.cost.resume import PrintedRow, measure_rows
from aero.two_party.program.optimizations import AS_PUBLISHED
from stages.two_party_all import printed_rows, rounds_runs

TABLES = ("aero/table4", "aero/table5", "aero/table6", "aero/table7")
FIGURE = ("aero/figure15",)
PROGRAMS = ("as_published", "as_written", "tuned-lattice_products", "tuned-lattice_products-row_tiles")
LATTICE_PROGRAMS = ("as_written", "as_written+lattice_products", "tuned-lattice_products", "tuned")
REPEATS = {128: 3}


def fitted_rows(parameters: Parameters, places: tuple[str, ...] = TABLES) -> list[PrintedRow]:
    """The rows of `places`; those of He & Hofmann in "as_published" alone, as they have no target to be held to."""
    return [
        replace(row, programs=(AS_PUBLISHED,)) if row.architecture.block == "he_hofmann" else row
        for row in printed_rows(parameters)
        if any(place.startswith(places) for place in row.places)
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.as_published", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after about this long, between two sessions")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--figure15", action="store_true", help="the rows of Figure 15")
    which.add_argument("--lattice", action="store_true", help="stock, optimised within SPU, and optimised")
    parser.add_argument("--folder", type=Path, default=FITTED.parent)
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)
    parameters = load()
    if parameters.active.two_party != "gpt2":
        raise UserError(f"scale {parameters.scale} has operations of its own sizes; take scale: laptop in params.yaml")
    stem, programs, rows = "fitted", PROGRAMS, fitted_rows(parameters, FIGURE if chosen.figure15 else TABLES)
    if chosen.figure15:
        stem, programs = "fitted_figure15", PROGRAMS[:2]
    elif chosen.lattice:
        stem, programs = "lattice", LATTICE_PROGRAMS
        rows = [row for row in printed_rows(parameters) if any(place.startswith(TABLES) for place in row.places)]
    known = () if chosen.lattice else [FITTED.parent / name for name in ("ops.csv", "all_ops.csv", "fitted_ops.csv")]
    files = [chosen.folder / f"{stem}_{what}.csv" for what in ("ops", "rows")]
    options = {"minutes": chosen.minutes, "rounds_runs": rounds_runs(parameters), "repeats": REPEATS}
    measure_rows(parameters.two_party, rows, programs, *files, rounds_from=known, **options)


if __name__ == "__main__":
    run_main(main)
