"""The search over what `variance_sensitivity` leaves open: `python -m stages.sensitivity_search --minutes 60`.

Appends to runs/sensitivity/search.csv, one setting and core at a time; started again, it goes on where it stopped.
Not a part of `make repro`: the report draws its kept result, results/sensitivity/search.csv.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch

from aero.errors import UserError, check_minutes, run_main
from aero.records import commit, csv_text, write_text
from aero.sensitivity.search import SEARCHED_CORES, reasonable, run


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_search", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="start no setting after this many")
    parser.add_argument("--first", type=int, default=0, help="number of the first setting of the order")
    parser.add_argument("--settings", type=int, help="at most this many settings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("runs/sensitivity/search.csv"))
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    settings = reasonable()
    if not 0 <= chosen.first < len(settings):
        raise UserError(f"--first must be 0 to {len(settings) - 1}, got {chosen.first}")
    if not 1 <= chosen.threads <= 1024:
        raise UserError(f"--threads {chosen.threads} must be 1 to 1024")
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    rows = read(chosen.to)
    done = {(row["number"], row["core"]) for row in rows}
    last = len(settings) if chosen.settings is None else min(len(settings), chosen.first + chosen.settings)
    began = time.monotonic()
    for number in range(chosen.first, last):
        if time.monotonic() - began > 60 * chosen.minutes:
            break
        for core in SEARCHED_CORES:
            if (str(number), core) in done:
                continue
            started = time.monotonic()
            # A seed of its own for every setting: what all settings share is then not the luck of one seed.
            made = run(number, settings[number], core, (number,))
            seconds = f"{time.monotonic() - started:.1f}"
            rows += [{**{k: str(v) for k, v in row.items()}, "seconds": seconds, "commit": commit()} for row in made]
            write_text(chosen.to, csv_text(list(rows[0]), rows))
        print(f"{number}: {settings[number]}", flush=True)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of search.csv, none if it is not there."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    run_main(main)
