"""Search over what `variance_sensitivity` leaves open: `python -m stages.sensitivity_search --minutes 60`.

Appends to runs/sensitivity/search.csv, one setting and core at a time, and resumes where it stopped. Not part of
`make repro`: the report uses the committed results/sensitivity/search.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aero.errors import UserError, check_minutes, run_main
from aero.records import commit
from aero.sensitivity.search import SEARCHED_CORES, extend, plausible_settings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_search", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="start no training after this many")
    parser.add_argument("--first", type=int, default=0, help="number of the first setting of the order")
    parser.add_argument("--settings", type=int, help="at most this many settings")
    parser.add_argument("--threads", type=int, choices=range(1, 1025), default=1, metavar="N")
    parser.add_argument("--to", type=Path, default=Path("runs/sensitivity/search.csv"))
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    settings = plausible_settings()
    if not 0 <= chosen.first < len(settings):
        raise UserError(f"--first must be 0 to {len(settings) - 1}, got {chosen.first}")
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    last = len(settings) if chosen.settings is None else min(len(settings), chosen.first + chosen.settings)
    # Every setting has its own seed, so that the settings do not share the chance of one seed.
    trainings = [(n, settings[n], core, (n,)) for n in range(chosen.first, last) for core in SEARCHED_CORES]
    extend(chosen.to, trainings, chosen.minutes, lambda seconds: {"seconds": f"{seconds:.1f}", "commit": commit()})


if __name__ == "__main__":
    run_main(main)
