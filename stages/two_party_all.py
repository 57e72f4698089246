"""Measure the operations of every row of AERO Tables 4-7 and Figure 15 at their published sizes, and compose the rows.

Given architectures, measure those at the given sizes instead, for `aero cost` (asked_ops.csv).

At GPT-2's published sizes all rows take hours, and T=512 takes most of this time. The files are written after every
group of operations; after an interruption or --minutes, the same command continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import UserError, check_minutes, run_main
from aero.families import CHANGEABLE
from aero.hf.convert import describe
from aero.records import lock
from aero.two_party.cost import ledger
from aero.two_party.cost.counts import OWN, model_config
from aero.two_party.cost.resume import PrintedRow, measure_rows
from aero.two_party.program.forward import operations


def printed_rows(parameters: Parameters) -> list[PrintedRow]:
    """The rows that AERO prints costs of, in the order of params.yaml."""
    found: dict[tuple[str, str, int], PrintedRow] = {}
    for name, run in parameters.runs.items():
        if not (places := run.priced_places()):
            continue
        architecture, family, context = parse(run.architecture), run.model, parameters.resolve(name).context
        if parameters.active.two_party == OWN:
            config = parameters.resolve(name).model_config()
            family, context = f"{OWN} {family}", config.context
        else:
            config = model_config(architecture, family, context)
        key = str(architecture), family, context
        before = found[key].places if key in found else ()
        found[key] = PrintedRow(architecture, family, config, context, (*before, *places))
    return list(found.values())


def asked_rows(chosen: argparse.Namespace) -> list[PrintedRow]:
    """The architectures of the command line. UserError for an unknown one or impossible sizes."""
    if (folder := Path(chosen.model)).is_dir():
        architecture, config = describe(folder)
        return [PrintedRow(architecture, folder.name, config, chosen.context, (), (chosen.program,))]
    changes = {name: getattr(chosen, name) for name in CHANGEABLE if getattr(chosen, name) is not None}
    found = []
    for text in chosen.architectures:
        try:
            architecture = parse(text)
            config = model_config(architecture, chosen.model, chosen.context, **changes)
            operations(architecture, config, chosen.program, chosen.context)
        except ValueError as error:
            raise UserError(str(error)) from None
        found.append(PrintedRow(architecture, chosen.model, config, chosen.context, (), (chosen.program,)))
    return found


def rounds_runs(parameters: Parameters, wanted: bool = True) -> int:
    """Repetitions of the measurement of rounds, 0 for none."""
    return 0 if not wanted else 1 if parameters.active.two_party == OWN else 3


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.two_party_all", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/two_party"))
    parser.add_argument("--minutes", type=float, help="stop after about this long, between two measurements")
    parser.add_argument("--no-rounds", action="store_true", help="do not measure rounds, which need further sessions")
    parser.add_argument("--no-seconds", action="store_true", help="do not record seconds, for a busy machine")
    parser.add_argument("architectures", nargs="*", help="in the papers' notation; default: every printed row")
    parser.add_argument(
        "--model", default="gpt2", help="family of the architectures (default gpt2); or a Hugging Face model's folder"
    )
    parser.add_argument("--context", type=int, default=128, help="tokens of the architectures, T (default 128)")
    parser.add_argument("--program", default="tuned", help="private program of the architectures (default tuned)")
    for name in CHANGEABLE:
        parser.add_argument(f"--{name}", type=int, help="overrides the family's published value")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)  # 0: compose what is measured, and measure nothing
    parameters = load()
    options: dict[str, Any] = {}
    rows, programs = printed_rows(parameters), parameters.two_party.programs
    ops_file, rows_file = chosen.folder / "all_ops.csv", chosen.folder / "all_rows.csv"
    if asked := chosen.architectures or Path(chosen.model).is_dir():
        rows, programs = asked_rows(chosen), [chosen.program]
        ops_file, rows_file = chosen.folder / "asked_ops.csv", None
    with lock(ops_file, f"adding to {ops_file}"):
        if asked and ops_file.exists():
            options["others"] = ledger.read(ops_file, ledger.Measurement)
        options |= {"rounds_runs": rounds_runs(parameters, not chosen.no_rounds), "seconds": not chosen.no_seconds}
        measure_rows(parameters.two_party, rows, programs, ops_file, rows_file, minutes=chosen.minutes, **options)


if __name__ == "__main__":
    run_main(main)
