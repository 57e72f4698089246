"""Search over what `variance_sensitivity` leaves open: `python -m stages.sensitivity_search --minutes 60`.

Appends to runs/sensitivity/search.csv, one setting and core at a time, and resumes where it stopped. With --nearest it
trains the settings of the search nearest to Table 1 with fresh seeds, into nearest.csv. Not part of `make repro`: the
report uses the committed results/sensitivity/search.csv and nearest.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aero.errors import UserError, check_minutes, run_main
from aero.records import commit, provenance
from aero.sensitivity.search import SEARCHED_CORES, extend, plausible_settings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_search", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="start no training after this many minutes")
    parser.add_argument("--first", type=int, default=0, help="index of the first setting to train")
    parser.add_argument("--settings", type=int, help="at most this many settings")
    parser.add_argument("--nearest", action="store_true", help="train the nearest settings with fresh seeds")
    parser.add_argument("--threads", type=int, choices=range(1, 1025), default=1, metavar="N")
    parser.add_argument("--to", type=Path, help="default: search.csv or nearest.csv in runs/sensitivity")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    settings = plausible_settings()
    if not 0 <= chosen.first < len(settings):
        raise UserError(f"--first must be 0 to {len(settings) - 1}, got {chosen.first}")
    path = chosen.to or Path("runs/sensitivity", "nearest.csv" if chosen.nearest else "search.csv")
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    if chosen.nearest:
        extend_nearest(path, chosen.minutes)
        return
    last = len(settings) if chosen.settings is None else min(len(settings), chosen.first + chosen.settings)
    # Every setting has its own seed, so that the settings do not share the chance of one seed.
    trainings = [(n, settings[n], core, (n,)) for n in range(chosen.first, last) for core in SEARCHED_CORES]
    extend(path, trainings, chosen.minutes, lambda seconds: {"seconds": f"{seconds:.1f}", "commit": commit()})


def extend_nearest(path: Path, minutes: float) -> None:
    from aero.report.papers.variance_search import FRESH_SEEDS, nearest_trainings
    from aero.report.results import load

    trainings = [(*training, FRESH_SEEDS) for training in nearest_trainings(load(Path()))]
    if not trainings:
        raise UserError("there is no search to choose from; run python -m stages.sensitivity_search first")
    made_by = {name: str(value) for name, value in provenance(torch=torch.__version__).items()}
    extend(path, trainings, minutes, lambda seconds: {"cpu_seconds": f"{seconds:.1f}", **made_by}, last_only=True)


if __name__ == "__main__":
    run_main(main)
