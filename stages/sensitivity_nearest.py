"""The settings of the search that came nearest to Table 1, with fresh seeds: `python -m stages.sensitivity_nearest`.

Which settings and seeds: `aero.report.sensitivity_nearest`, from the search's result that the report reads. Appends to
runs/sensitivity/nearest.csv, the lines of search.csv with five seeds each, one setting and core at a time; started
again, it goes on where it stopped. Not a part of `make repro`: the report draws its kept result,
results/sensitivity/nearest.csv.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from aero.errors import UserError, check_minutes, run_main
from aero.pipeline import ROOT
from aero.records import csv_text, provenance, write_text
from aero.report.results import load
from aero.report.sensitivity import read
from aero.report.sensitivity_nearest import FRESH, trainings
from aero.sensitivity.search import run


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_nearest", description=__doc__)
    parser.add_argument("--minutes", type=float, default=240, help="start no core after this many")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("runs/sensitivity/nearest.csv"))
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    if not 1 <= chosen.threads <= 1024:
        raise UserError(f"--threads {chosen.threads} must be 1 to 1024")
    wanted = trainings(load(ROOT))
    if not wanted:
        raise UserError("there is no search to choose from; run python -m stages.sensitivity_search first")
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)
    origin = {name: str(value) for name, value in provenance(torch=torch.__version__).items()}
    rows = read(chosen.to)
    done = {(row["number"], row["steps"], row["core"]) for row in rows if int(row["seed"]) in FRESH}
    began = time.monotonic()
    for number, setting, core in wanted:
        if (str(number), str(setting.steps), core) in done:
            continue
        if time.monotonic() - began > 60 * chosen.minutes:
            break
        started = time.process_time()
        made = [row for row in run(number, setting, core, FRESH) if row["steps"] == setting.steps]
        seconds = f"{time.process_time() - started:.1f}"
        rows += [{**{k: str(v) for k, v in row.items()}, "cpu_seconds": seconds, **origin} for row in made]
        write_text(chosen.to, csv_text(list(rows[0]), rows))
        print(f"{number}, {core}: {setting}, {seconds} s of processor time", flush=True)


if __name__ == "__main__":
    run_main(main)
