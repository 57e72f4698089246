"""Train the settings of the search nearest to Table 1 with fresh seeds: `python -m stages.sensitivity_nearest`.

`aero.report.papers.variance_search` chooses them from the search's result. Appends to runs/sensitivity/nearest.csv
and resumes where it stopped. Not part of `make repro`: the report uses the committed results/sensitivity/nearest.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aero.errors import UserError, check_minutes, run_main
from aero.records import provenance
from aero.report.papers.variance_search import FRESH_SEEDS, nearest_trainings
from aero.report.results import load
from aero.sensitivity.search import extend


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_nearest", description=__doc__)
    parser.add_argument("--minutes", type=float, default=240, help="start no training after this many")
    parser.add_argument("--threads", type=int, choices=range(1, 1025), default=1, metavar="N")
    parser.add_argument("--to", type=Path, default=Path("runs/sensitivity/nearest.csv"))
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    trainings = [(*training, FRESH_SEEDS) for training in nearest_trainings(load(Path()))]
    if not trainings:
        raise UserError("there is no search to choose from; run python -m stages.sensitivity_search first")
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    made_by = {name: str(value) for name, value in provenance(torch=torch.__version__).items()}
    extend(
        chosen.to,
        trainings,
        chosen.minutes,
        lambda seconds: {"cpu_seconds": f"{seconds:.1f}", **made_by},
        last_only=True,
    )


if __name__ == "__main__":
    run_main(main)
