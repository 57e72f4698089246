"""Measure every operation of the active runs' private programs at the dimensions that the scale names.

Killed half-way, it goes on where it stopped: what is measured is kept beside the output until all is there.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tqdm import tqdm

from aero import records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import UserError, run_main
from aero.two_party.cost import ledger
from aero.two_party.cost.measure import measure
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import Settings, TwoPartyError

RUNS = 3
"""Of each operation at a model's published size: one product makes half of a pass's seconds, and its time varies."""


def wanted(parameters: Parameters) -> list[Operation]:
    """Distinct operations of all active runs and programs; runs that differ in training alone share theirs."""
    config, context = parameters.two_party_model()
    architectures = {str(parse(parameters.run(run).architecture).at_inference()) for run in parameters.active_runs}
    found: set[Operation] = set()
    for text in sorted(architectures):
        for program in parameters.two_party.programs:
            found |= set(operations(parse(text), config, program, context))
    # The cheap ones first: a fault then shows early.
    return sorted(found, key=lambda operation: (sum(math.prod(shape) for shape in operation.shapes), operation))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.two_party_ops", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/two_party/ops.csv"))
    parser.add_argument("--no-rounds", action="store_true", help="leave rounds out (they need a second session)")
    parser.add_argument(
        "--add", action="store_true", help="keep the rows of --out, of whatever code, and measure what is missing there"
    )
    chosen = parser.parse_args(arguments)
    parameters = load()
    todo = wanted(parameters)
    model, (_, context) = parameters.active.two_party, parameters.two_party_model()
    variant = parameters.two_party.variant()
    unfinished = chosen.out.with_name(chosen.out.stem + ".unfinished.csv")
    rows = resumable(unfinished, variant, model, context)
    kept = ledger.read(chosen.out, ledger.Measurement) if chosen.add else []
    if any((row.variant, row.model, row.context) != (variant, model, context) for row in kept):
        raise UserError(f"{chosen.out} holds operations of other settings or sizes; measure it anew, without --add")
    done = ledger.by_operation([*kept, *rows])
    left = [operation for operation in todo if (operation.name, operation.shape) not in done]
    total = len(todo)
    with tqdm(total=total, initial=total - len(left), desc="two-party operations", unit="op", disable=None) as bar:

        def keep(row: ledger.Measurement) -> None:
            rows.append(row)
            ledger.write(unfinished, rows, ledger.Measurement)
            bar.set_postfix_str(f"{row.op} {row.shape}: {row.bytes / 1e6:.1f} MB in {row.seconds:.1f} s")
            bar.update()

        settings = Settings(**parameters.two_party.settings())
        rounds_runs = 0 if chosen.no_rounds else 1 if model == "own" else 3
        try:
            runs = 1 if model == "own" else RUNS
            measure(left, model, context, variant, settings, runs, on_measured=keep, rounds_runs=rounds_runs)
        except TwoPartyError:
            raise
        except ValueError:
            unfinished.unlink(missing_ok=True)  # the parties disagree about what was sent: nothing of it stands
            raise
    rows += [row for row in kept if row.key not in ledger.by_operation(rows)]
    ledger.write(chosen.out, sorted(rows, key=lambda row: row.key), ledger.Measurement)
    unfinished.unlink(missing_ok=True)
    print(f"{len(rows)} operations at {model} dimensions: {chosen.out}")


def resumable(path: Path, variant: str, model: str, context: int) -> list[ledger.Measurement]:
    """Rows that an interrupted measurement of this code, these settings and sizes left behind; empty if none."""
    try:
        rows = ledger.read(path, ledger.Measurement)
    except (OSError, ValueError):
        return []
    commit = records.commit()
    if commit == "unknown" or commit.endswith("+changes"):
        return []  # nobody can tell whether it was the same code
    same = all(
        (row.variant, row.model, row.context) == (variant, model, context) and f'"commit":"{commit}"' in row.provenance
        for row in rows
    )
    return rows if same else []


if __name__ == "__main__":
    run_main(main)
