"""What AERO's rows cost as published, as the best fit of docs/forensics.md has them, and tuned, measured together.

    python -m benchmarks.as_fitted [--minutes M]

The rows of Tables 4 to 7 at their own sizes, those of He & Hofmann in "as_fitted" alone. Every operation of the
programs is measured by the same command, three times at T=128 and once beyond: seconds are compared with
each other, so they must not be of different days. It writes results/two_party/fitted_ops.csv and fitted_rows.csv after
every few operations and goes on where it was killed. Rounds are not measured. About an hour and a half on 2 cores.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from aero.errors import UserError, check_minutes, run_main
from aero.parameters import Parameters, load
from aero.report.best_fit import PROGRAMS
from aero.report.costs import FITTED
from aero.two_party.savings import AS_FITTED
from stages.two_party_all import PrintedRow, measure_rows, printed_rows

TABLES = ("aero/table4", "aero/table5", "aero/table6", "aero/table7")
REPEATS = {128: 3}


def fitted_rows(parameters: Parameters) -> list[PrintedRow]:
    """The rows of TABLES; those of He & Hofmann in "as_fitted" alone, as they have no target to be held against."""
    return [
        replace(row, programs=(AS_FITTED,)) if row.architecture.block == "he_hofmann" else row
        for row in printed_rows(parameters)
        if any(place.startswith(TABLES) for place in row.places)
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.as_fitted", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after about so long, between two sessions")
    parser.add_argument("--folder", type=Path, default=FITTED.parent)
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)
    parameters = load()
    if parameters.active.two_party != "gpt2":
        raise UserError(f"scale {parameters.scale} has operations of its own sizes; take scale: laptop in params.yaml")
    ops_file, rows_file = (chosen.folder / f"fitted_{what}.csv" for what in ("ops", "rows"))
    measure_rows(
        parameters,
        fitted_rows(parameters),
        PROGRAMS,
        ops_file,
        rows_file,
        chosen.minutes,
        rounds=False,
        repeats=REPEATS,
    )


if __name__ == "__main__":
    run_main(main)
