"""Compose the cost of every active run from the measured operations, and gather the end-to-end passes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aero.architecture import parse
from aero.config import load
from aero.errors import run_main
from aero.records import write_text
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import compose, without_details
from aero.two_party.cost.network import Network


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.two_party_rows", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/two_party"))
    folder = parser.parse_args(arguments).folder
    parameters = load()
    config, context = parameters.two_party_model()
    measured = ledger.by_operation(ledger.read(folder / "ops.csv", ledger.Measurement))
    networks = {name: Network(one.bandwidth_mbit, one.rtt_ms) for name, one in parameters.two_party.networks.items()}
    passes = []
    for run in parameters.two_party.end_to_end_runs:
        passes += json.loads((folder / "passes" / f"{run}.json").read_text(encoding="utf-8"))
    write_text(folder / "end_to_end.json", json.dumps(passes, indent=1) + "\n")
    rows = []
    # Without its regulariser, a regularised row and its architecture are the same program.
    for text in dict.fromkeys(parameters.run(run).architecture for run in parameters.active_runs):
        for program in parameters.two_party.programs:
            model = parameters.active.two_party
            rows.append(without_details(compose(parse(text), config, model, program, context, measured, networks)))
    ledger.write(folder / "rows.csv", rows, ledger.Row)
    print(f"{len(rows)} rows: {folder / 'rows.csv'}")


if __name__ == "__main__":
    run_main(main)
