"""Train every attention core over a grid of learning rates (`variance_sensitivity`, Table 1): `python -m
stages.sensitivity`.

All (rate, seed) pairs of an attention core train together. Writes to runs/sensitivity: losses.csv, a row per core,
rate and seed; traces.csv and gains.csv, training behaviour at the learning rate of the figures, for which every core is
trained again with attention measured before every step; sweep.json, setting and provenance.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.attention_kernels import CORES
from aero.config import load
from aero.errors import UserError, json_file, run_main
from aero.records import csv_text, write_together
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import Trained, train
from aero.sensitivity.sweep import figure_rate, gain_rows, loss_rows, shown_rate, trace_rows


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity", description=__doc__)
    parser.add_argument("--scale", help="scale (default: that of params.yaml)")
    parser.add_argument(
        "--figures-at", type=float, metavar="RATE", help="only repeat the trainings of the figures, at this rate"
    )
    parser.add_argument("--to", type=Path, default=Path("runs/sensitivity"), help="folder of the results")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    sizes, section = parameters.active.sensitivity, parameters.sensitivity
    setting = Setting(**section.experiment(), steps=sizes.steps)
    rates, seeds = learning_rates(), tuple(range(sizes.seeds))
    torch.set_num_threads(section.threads or torch.get_num_threads())
    described = {
        "setting": {**section.experiment(), "steps": sizes.steps, "window": section.window, "initial": section.initial},
        "seeds": list(seeds),
    }
    if chosen.figures_at is not None:
        repeat_figures(chosen.figures_at, setting, described, chosen.to)
        return
    started, trained, seconds = records.now(), {}, {}
    for name, found, spent in train_cores(setting, rates, seeds, (setting.steps - 1,)):
        trained[name], seconds[name] = found, spent
        print(f"{name}: {len(rates) * len(seeds)} models, {sizes.steps} steps, {spent} s", flush=True)
    rows = [row for n in trained for row in loss_rows(n, trained[n], rates, seeds, section.window, section.initial)]
    rate = figure_rate(trained, rates, section.window)
    about = {
        "scale": parameters.scale,
        **described,
        "figure_rate": rate,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "provenance": records.provenance(torch=torch.__version__, started=started),
    }
    files = {"losses.csv": csv_text(list(rows[0]), rows)}
    files |= figure_files(shown_rate(about), setting, seeds)
    write(chosen.to, files, about)


def train_cores(
    setting: Setting, rates: Sequence[float], seeds: Sequence[int], observe_at: Container[int]
) -> Iterator[tuple[str, Trained, float]]:
    """Every core's trainings and their seconds, in the order of CORES; several cores train at a time."""
    threads = torch.get_num_threads()

    def prepare() -> None:  # these settings are a thread's own
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)  # collapsed attention is full of denormal numbers, which are slow

    def train_core(name: str) -> tuple[str, Trained, float]:
        began = time.perf_counter()
        trained = train(CORES[name], setting, rates, seeds, observe_at=observe_at)
        return name, trained, round(time.perf_counter() - began, 1)

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // threads), initializer=prepare) as pool:
        yield from pool.map(train_core, CORES)


def repeat_figures(rate: float, setting: Setting, described: dict[str, Any], folder: Path) -> None:
    """Replace traces.csv and gains.csv by trainings at a manually chosen rate; sweep.json records it.

    UserError unless the folder's sweep has the same setting and seeds.
    """
    about = json_file(folder / "sweep.json")
    if any(about[key] != described[key] for key in described):
        raise UserError(f"{folder / 'sweep.json'} has another setting or other seeds than params.yaml")
    about |= {"figure_rate": rate, "figure_rate_by_hand": True}
    about |= {"figures_provenance": records.provenance(torch=torch.__version__)}
    write(folder, figure_files(rate, setting, tuple(described["seeds"])), about)


def figure_files(rate: float, setting: Setting, seeds: tuple[int, ...]) -> dict[str, str]:
    """traces.csv and gains.csv of trainings of every core at one rate."""
    traces, gains = [], []
    for name, trained, _ in train_cores(setting, (rate,), seeds, range(setting.steps)):
        traces += trace_rows(name, trained, seeds)
        gains += gain_rows(name, CORES[name], trained, seeds)
    return {"traces.csv": csv_text(list(traces[0]), traces), "gains.csv": csv_text(list(gains[0]), gains)}


def write(folder: Path, files: dict[str, str], about: dict[str, Any]) -> None:
    files |= {"sweep.json": json.dumps(about, indent=1) + "\n"}
    write_together({folder / name: text for name, text in files.items()})


if __name__ == "__main__":
    run_main(main)
