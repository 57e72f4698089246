"""Measure every operation of the active runs' private programs at the dimensions of the scale's `two_party` block."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tqdm import tqdm

from aero.architecture import parse
from aero.errors import run_main
from aero.parameters import Parameters, load
from aero.two_party import ledger
from aero.two_party.measure import measure
from aero.two_party.operations import Operation
from aero.two_party.program import operations
from aero.two_party.settings import Settings


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
    chosen = parser.parse_args(arguments)
    parameters = load()
    todo = wanted(parameters)
    model = parameters.active.two_party
    with tqdm(total=len(todo), desc="two-party operations", unit="op", disable=None) as bar:
        measured = measure(
            todo,
            model,
            parameters.two_party_model()[1],
            parameters.two_party.variant(),
            Settings(**parameters.two_party.settings()),
            on_measured=lambda _: bar.update(),
            with_rounds=not chosen.no_rounds,
        )
    ledger.write(chosen.out, measured, ledger.Measurement)
    print(f"{len(measured)} operations at {model} dimensions: {chosen.out}")


if __name__ == "__main__":
    run_main(main)
