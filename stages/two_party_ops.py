"""Measure every operation of the active runs' private programs at the dimensions that the scale names.

After an interruption it continues: measurements are kept beside the output until all are there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import run_main
from aero.two_party.cost import ledger
from aero.two_party.cost.counts import OWN
from aero.two_party.cost.resume import Wanted, measure_missing
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import Settings

RUNS = 3
"""Of each operation at a model's published size, because times vary."""


def wanted(parameters: Parameters) -> list[Wanted]:
    """Distinct operations of all active runs and programs, small ones first."""
    config, context = parameters.two_party_model()
    architectures = {str(parse(parameters.run(run).architecture).at_inference()) for run in parameters.active_runs}
    found: set[Operation] = set()
    for text in sorted(architectures):
        for program in parameters.two_party.programs:
            found |= set(operations(parse(text), config, program, context))
    rows = [Wanted(operation, parameters.active.two_party, context) for operation in found]
    return sorted(rows, key=lambda one: (one.elements, one.operation))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.two_party_ops", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/two_party/ops.csv"))
    out = parser.parse_args(arguments).out
    parameters = load()
    todo, own = wanted(parameters), parameters.active.two_party == OWN
    unfinished = out.with_name(out.stem + ".unfinished.csv")
    done = measure_missing(
        todo,
        unfinished,
        parameters.two_party.variant(),
        Settings(**parameters.two_party.settings()),
        rounds_runs=1 if own else 3,
        repeats={todo[0].context: 1 if own else RUNS},
    )
    ledger.write(out, sorted(done.values(), key=lambda row: row.key), ledger.Measurement)
    unfinished.unlink(missing_ok=True)
    print(f"{len(done)} operations at {parameters.active.two_party} dimensions: {out}")


if __name__ == "__main__":
    run_main(main)
