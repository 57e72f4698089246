"""Cost of the default set's rows: measure operations without a committed cost, then add up each row's costs.

Writes runs/two_party/ops.csv and rows.csv. After an interruption it continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import run_main
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import compose
from aero.two_party.cost.counts import OWN
from aero.two_party.cost.resume import Wanted, measure_missing, signature, usable
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import Settings

RUNS = 3
"""Of each operation at a model's published size, because times vary."""
COMMITTED = Path("results/two_party/ops.csv")


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
    parser.add_argument("--folder", type=Path, default=Path("runs/two_party"))
    parser.add_argument("--anew", action="store_true", help="measure every operation again; about ten minutes")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder
    parameters = load()
    two_party, todo, own = parameters.two_party, wanted(parameters), parameters.active.two_party == OWN
    path = folder / "ops.csv"
    signatures = {one.key: signature(one.operation) for one in todo}
    known = {row.key: row for file in (() if chosen.anew else (COMMITTED, path)) for row in usable(file, signatures)}
    ledger.write(path, [known[key] for key in sorted(known)], ledger.Measurement)
    done = measure_missing(
        todo,
        path,
        Settings(**two_party.settings()),
        rounds_runs=1 if own else 3,
        repeats={todo[0].context: 1 if own else RUNS},
    )
    config, context = parameters.two_party_model()
    rows = []
    # Without its regulariser, a regularised row and its architecture are the same program.
    for text in dict.fromkeys(parameters.run(run).architecture for run in parameters.active_runs):
        for program in two_party.programs:
            model = parameters.active.two_party
            rows.append(compose(parse(text), config, model, program, context, done, two_party.networks))
    ledger.write(folder / "rows.csv", rows, ledger.Row)
    measured = len(done.keys() - known.keys())
    print(f"{len(rows)} rows of {len(done)} operations, {measured} of them measured now: {folder / 'rows.csv'}")


if __name__ == "__main__":
    run_main(main)
