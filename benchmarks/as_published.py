"""What AERO's rows cost as written, as the best fit of docs/forensics.md has them, and tuned, measured together.

    python -m benchmarks.as_published [--figure15] [--minutes M]

The rows of Tables 4 to 7 at their own sizes, those of He & Hofmann in "as_published" alone. Every operation of the
programs is measured by the same command, three times at T=128 and once beyond: seconds are compared with
each other, so they must not be of different days. It writes results/two_party/fitted_ops.csv and fitted_rows.csv after
every few operations and goes on where it was killed. Rounds are those of ops.csv, all_ops.csv and fitted_ops.csv where
the operation is the same, and measured where there are none. About an hour and a half on 2 cores.

--figure15: the rows of Figure 15, as published and as written, into fitted_figure15_ops.csv and _rows.csv. Ten minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from aero.config import Parameters, load
from aero.errors import UserError, check_minutes, run_main
from aero.report.costs import FITTED
from aero.two_party.cost.resume import PrintedRow, measure_rows
from aero.two_party.program.optimizations import AS_PUBLISHED
from stages.two_party_all import printed_rows, rounds_runs

TABLES = ("aero/table4", "aero/table5", "aero/table6", "aero/table7")
FIGURE = ("aero/figure15",)
PROGRAMS = ("as_published", "as_written", "tuned-lattice_products", "tuned-lattice_products-row_tiles")
FIGURE_PROGRAMS = PROGRAMS[:2]
REPEATS = {128: 3}


def fitted_rows(parameters: Parameters, places: tuple[str, ...] = TABLES) -> list[PrintedRow]:
    """The rows of `places`; those of He & Hofmann in "as_published" alone, as they have no target to be held to."""
    return [
        replace(row, programs=(AS_PUBLISHED,)) if row.architecture.block == "he_hofmann" else row
        for row in printed_rows(parameters)
        if any(place.startswith(places) for place in row.places)
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.as_published", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after about so long, between two sessions")
    parser.add_argument("--figure15", action="store_true", help="the rows of Figure 15 in place of the tables'")
    parser.add_argument("--folder", type=Path, default=FITTED.parent)
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)
    parameters = load()
    if parameters.active.two_party != "gpt2":
        raise UserError(f"scale {parameters.scale} has operations of its own sizes; take scale: laptop in params.yaml")
    stem = "fitted_figure15" if chosen.figure15 else "fitted"
    ops_file, rows_file = (chosen.folder / f"{stem}_{what}.csv" for what in ("ops", "rows"))
    measure_rows(
        parameters.two_party,
        fitted_rows(parameters, FIGURE if chosen.figure15 else TABLES),
        FIGURE_PROGRAMS if chosen.figure15 else PROGRAMS,
        ops_file,
        rows_file,
        minutes=chosen.minutes,
        rounds_runs=rounds_runs(parameters),
        repeats=REPEATS,
        rounds_from=[FITTED.parent / name for name in ("ops.csv", "all_ops.csv", "fitted_ops.csv")],
    )


if __name__ == "__main__":
    run_main(main)
