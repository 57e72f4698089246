"""The search over what `variance_sensitivity` leaves open: all plausible settings, and the sensitivities of each.

A `Setting` determines a training, a `Reading` how its losses become a sensitivity. The settings are the product of
CHOICES, fixed before any was run, in an order that ORDER_SEED fixes: any first part of them is a random sample.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.records import csv_text, read_csv, write_text
from aero.sensitivity.metric import final_losses, sensitivity
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import Trained, train

CHOICES: dict[str, tuple[object, ...]] = {
    "hidden": ("x3+y", "x2+y", "embedded"),
    "residual": (True, False),
    "readout": ("slot", "linear"),
    "init": ("normal_0.1", "linear", "xavier"),
    "batch": (4, 16),
    "data": ("fresh", "set"),
    "reduction": ("mean", "sum"),
}
STEPS = (500, 2000)
WINDOW = 50
"""Training losses averaged as the final loss: a single one is of 4 or 16 sequences and mostly noise."""
RELU_CORES = ("relu", "relu_performer")
"""Two usual forms of the ReLU kernel; either can be Table 1's row."""
SEARCHED_CORES = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", *RELU_CORES)
ORDER_SEED = 2025


@dataclass(frozen=True)
class Reading:
    """steps: after which the loss is final. initial: l_0 is the loss of the untrained models ("measured") or of
    predicting 0 ("zero"). relu: the core of Table 1's ReLU row."""

    steps: int
    initial: str
    relu: str


def plausible_settings(steps: int = STEPS[-1]) -> list[Setting]:
    """Every plausible setting, in the order in which the search runs them."""
    products = (dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values()))
    found = [Setting(**one, steps=steps) for one in products if (one["hidden"], one["readout"]) != ("embedded", "slot")]
    random.Random(ORDER_SEED).shuffle(found)
    return found


def rows(number: int, setting: Setting, core: str, trained: Trained, seeds: tuple[int, ...]) -> list[dict[str, object]]:
    """Rows of search.csv of one core in one setting, one a seed and number of steps: final losses by rate, "inf" for a
    diverged training."""
    made = []
    for steps in (steps for steps in STEPS if steps <= setting.steps):
        final, untrained, zero = (
            final_losses(losses[:steps], WINDOW)
            for losses in (trained.losses, trained.untrained_losses, trained.zero_losses)
        )
        for k, seed in enumerate(seeds):
            row = {"number": number, **{name: getattr(setting, name) for name in CHOICES}}
            row |= {"core": core, "seed": seed, "steps": steps}
            row |= {"initial_loss": f"{untrained[k].item():.6g}", "zero_loss": f"{zero[k].item():.6g}"}
            losses = zip(learning_rates(), final[:, k].tolist(), strict=True)
            made.append(row | {f"{rate:g}": f"{value:.5g}" for rate, value in losses})
    return made


def extend(
    path: Path,
    trainings: Iterable[tuple[int, Setting, str, tuple[int, ...]]],
    minutes: float,
    origin: Callable[[float], Mapping[str, object]],
    last_only: bool = False,
) -> None:
    """Train every (number, setting, core, seeds) at all rates and append its rows to `path`; skip those in the file.

    No training starts after `minutes`. origin: further columns, from the seconds of processor time that it took.
    last_only: only the rows of the setting's own number of steps.
    """
    found = read_csv(path)
    done = {(row["number"], row["steps"], row["core"]) for row in found}
    end = time.monotonic() + 60 * minutes
    for number, setting, core, seeds in trainings:
        if (str(number), str(setting.steps), core) in done:
            continue
        if time.monotonic() > end:
            break
        began = time.process_time()
        made = rows(number, setting, core, train(CORES[core], setting, learning_rates(), seeds), seeds)
        more = origin(time.process_time() - began)
        made = [row | dict(more) for row in made if not last_only or row["steps"] == setting.steps]
        found += [{key: str(value) for key, value in row.items()} for row in made]
        write_text(path, csv_text(list(found[0]), found))
        print(f"{number}, {core}: {setting}", flush=True)


def read_losses(row: Mapping[str, str]) -> Tensor:
    """Final losses (R,) of a row of search.csv."""
    return torch.tensor([float(row[f"{rate:g}"]) for rate in learning_rates()], dtype=torch.float64)


def sensitivities(rows: list[Mapping[str, str]]) -> dict[tuple[int, Reading], dict[str, float]]:
    """Sensitivity by core for every (setting number, reading), the mean over seeds; incomplete settings are left
    out."""
    found: dict[tuple[int, Reading], dict[str, list[float]]] = {}
    for row in rows:
        losses = read_losses(row)[:, None]
        core, forms = ("relu", (row["core"],)) if row["core"] in RELU_CORES else (row["core"], RELU_CORES)
        for initial, relu in itertools.product(("measured", "zero"), forms):
            value = sensitivity(losses, float(row["initial_loss" if initial == "measured" else "zero_loss"])).item()
            place = int(row["number"]), Reading(int(row["steps"]), initial, relu)
            found.setdefault(place, {}).setdefault(core, []).append(value)
    means = {place: {core: fmean(own) for core, own in values.items()} for place, values in found.items()}
    return {place: values for place, values in means.items() if len(values) == len(SEARCHED_CORES) - 1}
