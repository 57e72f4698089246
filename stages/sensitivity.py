"""Learning-rate sensitivity of every attention core (`variance_sensitivity`, Table 1): `python -m stages.sensitivity`.

All (rate, seed) pairs of a core are trained at once. Writes to runs/sensitivity: losses.csv, a line a core, rate and
seed; traces.csv and gains.csv, how training goes at the rate that the figures show, for which all cores are trained
once more, looked at before every step; sweep.json, setting and provenance.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.attention_kernels import CORES
from aero.config import load
from aero.errors import UserError, run_main
from aero.records import csv_text, write_together
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import train
from aero.sensitivity.sweep import figure_rate, gain_rows, loss_rows, trace_rows

FOLDER = Path("runs/sensitivity")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity", description=__doc__)
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument(
        "--figures-at", type=float, metavar="RATE", help="only train anew, at this rate, what the figures show"
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the results")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    sizes, open_ = parameters.active.sensitivity, parameters.sensitivity
    setting = Setting(**open_.experiment(), steps=sizes.steps)
    rates, seeds = learning_rates(), tuple(range(sizes.seeds))
    torch.set_num_threads(open_.threads or torch.get_num_threads())
    torch.set_flush_denormal(True)  # collapsed attention is full of numbers too small to be worth their time
    described = {
        "setting": {**open_.experiment(), "steps": sizes.steps, "window": open_.window, "initial": open_.initial},
        "seeds": list(seeds),
    }
    if chosen.figures_at is not None:
        figures_at(chosen.figures_at, setting, described, chosen.to)
        return
    started, trained, seconds = records.now(), {}, {}
    for name, core in CORES.items():
        began = time.perf_counter()
        trained[name] = train(core, setting, rates, seeds, looks=(setting.steps - 1,))
        seconds[name] = round(time.perf_counter() - began, 1)
        print(f"{name}: {len(rates) * len(seeds)} models, {sizes.steps} steps, {seconds[name]} s", flush=True)
    rows = [row for n in trained for row in loss_rows(n, trained[n], rates, seeds, open_.window, open_.initial)]
    shown = figure_rate(trained, rates, open_.window)
    # Where the rule finds none, the figures show the middle rate.
    files = {"losses.csv": csv_text(list(rows[0]), rows)} | followed(shown or rates[len(rates) // 2], setting, seeds)
    files["sweep.json"] = (
        json.dumps(
            {
                "scale": parameters.scale,
                **described,
                "figure_rate": shown,
                "seconds": seconds,
                "threads": torch.get_num_threads(),
                "provenance": records.provenance(torch=torch.__version__, started=started),
            },
            indent=1,
        )
        + "\n"
    )
    write_together({chosen.to / name: text for name, text in files.items()})


def figures_at(rate: float, setting: Setting, described: dict[str, Any], folder: Path) -> None:
    """Write traces.csv and gains.csv anew, at a learning rate given by hand instead of the one that the rule chose.

    `figure_rate_by_hand` of sweep.json then tells the report so. described: setting and seeds as sweep.json has them;
    UserError without a sweep, or if its own are others: its losses would be of other trainings than the figures.
    """
    if not (path := folder / "sweep.json").is_file():
        raise UserError(f"{path} is not there; run python -m stages.sensitivity first")
    about = json.loads(path.read_text(encoding="utf-8"))
    if others := _differences(about, described):
        raise UserError(f"{path} is of another sweep than params.yaml describes: {others}")
    about |= {"figure_rate": rate, "figure_rate_by_hand": True}
    about |= {"figures_provenance": records.provenance(torch=torch.__version__)}
    files = followed(rate, setting, tuple(described["seeds"])) | {path.name: json.dumps(about, indent=1) + "\n"}
    write_together({folder / name: text for name, text in files.items()})


def followed(rate: float, setting: Setting, seeds: tuple[int, ...]) -> dict[str, str]:
    """traces.csv and gains.csv: trainings of every core at one rate, looked at before every step."""
    traces, gains = [], []
    for name, core in CORES.items():
        trained = train(core, setting, (rate,), seeds, looks=range(setting.steps))
        traces += trace_rows(name, trained, 0, seeds)
        gains += gain_rows(name, core, trained, 0, seeds)
    tables = {"traces.csv": traces, "gains.csv": gains}
    return {name: csv_text(list(rows[0]), rows) for name, rows in tables.items()}


def _differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """In what the setting and seeds of sweep.json differ from those of params.yaml, in words; "" if in nothing."""
    first, second = ({**about["setting"], "seeds": about["seeds"]} for about in (there, here))
    names = dict.fromkeys([*first, *second])
    return ", ".join(
        f"{name} {first.get(name)} there, {second.get(name)} here"
        for name in names
        if first.get(name) != second.get(name)
    )


if __name__ == "__main__":
    run_main(main)
