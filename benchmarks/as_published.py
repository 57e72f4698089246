"""AERO's rows measured in one go: fitted to the published bytes, stock SPU, and optimised.

    python -m benchmarks.as_published [--figure15] [--minutes M]

The rows of Tables 4 to 7 at their own sizes; He & Hofmann's with the program `as_published` only. Every operation of
the programs is measured by the same command, three times at T=128 and once beyond, since seconds of different days
cannot be compared. Writes results/two_party/fitted_ops.csv and fitted_rows.csv after every few operations and resumes
where it stopped; about an hour and a half on 2 cores. Rounds are taken from other files where the operation is the
same.

--figure15: the rows of Figure 15, as published and stock, into fitted_figure15_*.csv. Ten minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from aero.config import load
from aero.errors import check_minutes, run_main
from aero.report.results import FITTED
from aero.two_party.cost.resume import measure_rows
from aero.two_party.program.optimizations import AS_PUBLISHED
from stages.two_party_all import printed_rows, rounds_runs

TABLES = ("aero/table4", "aero/table5", "aero/table6", "aero/table7")
FIGURE = ("aero/figure15",)
PROGRAMS = ("as_published", "as_written", "tuned-lattice_products", "tuned-lattice_products-row_tiles")
REPEATS = {128: 3}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.as_published", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after about this long, between two sessions")
    parser.add_argument("--figure15", action="store_true", help="the rows of Figure 15")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)
    parameters = load().at_scale("laptop")  # whose operations have the published sizes
    stem, programs, places = "fitted", PROGRAMS, TABLES
    known = [FITTED.parent / name for name in ("ops.csv", "all_ops.csv", "fitted_ops.csv")]
    if chosen.figure15:
        stem, programs, places = "fitted_figure15", PROGRAMS[:2], FIGURE
    rows = [row for row in printed_rows(parameters) if any(place.startswith(places) for place in row.places)]
    own = {"programs": (AS_PUBLISHED,)}  # rows of He & Hofmann have no target that other programs could be held to
    rows = [replace(row, **own) if row.architecture.block == "he_hofmann" else row for row in rows]
    files = [FITTED.parent / f"{stem}_{what}.csv" for what in ("ops", "rows")]
    options = {"minutes": chosen.minutes, "rounds_runs": rounds_runs(parameters), "repeats": REPEATS}
    measure_rows(parameters.two_party, rows, programs, *files, rounds_from=known, **options)


if __name__ == "__main__":
    run_main(main)
