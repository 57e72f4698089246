"""Variance Sensitivity: the search over the settings that the paper leaves open, and the settings nearest to Table 1.

The settings nearest to Table 1 by the search's single seeds are trained again with fresh seeds. Which ones, and how the
best of them is chosen, was fixed before those trainings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import pandas as pd
import torch

from aero.attention_kernels import CORES
from aero.report.papers.variance_sensitivity import FOLDERS, published, short_name, sweep
from aero.report.results import Results
from aero.report.statistics import Estimate
from aero.sensitivity.metric import CONCLUSIONS, ORDER, sensitivity_of_means
from aero.sensitivity.search import RELU_CORES, Reading, plausible_settings, read, read_losses, sensitivities
from aero.sensitivity.setting import Setting

NEAREST = 5
FRESH_SEEDS = (1001, 1002, 1003, 1004, 1005)
"""Seeds of the settings that are trained again: neither the search (0 to 239) nor the sweep (0 to 4) uses them."""


@dataclass(frozen=True)
class Search:
    """Sensitivities by core of every (setting number, reading)."""

    file: str
    found: dict[tuple[int, Reading], dict[str, float]]

    @property
    def numbers(self) -> list[int]:
        return sorted({number for number, _ in self.found})


def search(results: Results) -> Search | None:
    """The larger of the fresh and the committed search; None if there is none."""
    file = _larger(results, "search.csv")
    return _read_search(results.root, file) if file else None


def _larger(results: Results, name: str) -> str | None:
    files = [path for folder in FOLDERS if (path := results.root / folder / name).is_file()]
    return str(max(files, key=lambda path: path.stat().st_size).relative_to(results.root)) if files else None


@cache
def _read_search(root: Path, file: str) -> Search:
    return Search(file, sensitivities(read(root / file)))


def share(found: Search, conclusion: str) -> Estimate:
    """In which fraction of settings a conclusion holds, with Wilson's 95 % interval.

    Every setting counts once, with the fraction of its readings that agree.
    """
    by_setting: dict[int, list[bool]] = {}
    for (number, _), values in found.found.items():
        by_setting.setdefault(number, []).append(CONCLUSIONS[conclusion](values))
    mean, count, square = fmean(map(fmean, by_setting.values())), len(by_setting), 1.959964**2
    centre = (mean + square / (2 * count)) / (1 + square / count)
    half = math.sqrt(square * (mean * (1 - mean) / count + square / (4 * count**2))) / (1 + square / count)
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half), ())


def distance(values: Mapping[str, float]) -> float:
    """Root mean square of the differences from the published seven."""
    printed = published()
    return math.sqrt(sum((values[core] - printed[core]) ** 2 for core in ORDER) / len(ORDER))


def nearest(results: Results) -> list[tuple[int, Reading]]:
    """The NEAREST settings of the search for each form of the ReLU kernel, each with its nearest reading."""
    found = search(results)
    chosen: list[tuple[int, Reading]] = []
    for form in RELU_CORES if found else ():
        own = [key for key in found.found if key[1].relu == form]
        readings: dict[int, Reading] = {}
        for number, reading in sorted(own, key=lambda key: distance(found.found[key])):
            readings.setdefault(number, reading)
        chosen += list(readings.items())[:NEAREST]
    return chosen


def nearest_trainings(results: Results) -> list[tuple[int, Setting, str]]:
    """Number, setting and core of the trainings that `nearest` needs, each once."""
    needed = [
        (number, plausible_settings(reading.steps)[number], _trained(core, reading))
        for number, reading in nearest(results)
        for core in ORDER
    ]
    return list(dict.fromkeys(needed))


def _trained(core: str, reading: Reading) -> str:
    return reading.relu if core == "relu" else core


@dataclass(frozen=True)
class Repeated:
    """A setting trained with fresh seeds: sensitivity by core, of losses clipped and averaged over seeds as in Table 1.

    The clipping is at l_0 as the reading has it.
    """

    number: int
    reading: Reading
    values: Mapping[str, float]


def repeated(results: Results) -> list[Repeated]:
    """The settings of `nearest` that were trained again with every seed and core, in its order."""
    file = _larger(results, "nearest.csv")
    rows = read(results.root / file) if file else []
    lines = {(row["number"], row["steps"], row["core"], row["seed"]): row for row in rows}
    made = []
    for number, reading in nearest(results):
        column, values = "initial_loss" if reading.initial == "measured" else "zero_loss", {}
        for core in ORDER:
            place = (str(number), str(reading.steps), _trained(core, reading))
            own = [lines[*place, str(seed)] for seed in FRESH_SEEDS if (*place, str(seed)) in lines]
            if len(own) == len(FRESH_SEEDS):
                initial = torch.tensor([float(line[column]) for line in own], dtype=torch.float64)
                values[core] = sensitivity_of_means(torch.stack([read_losses(line) for line in own], 1), initial)
        if len(values) == len(ORDER):
            made.append(Repeated(number, reading, values))
    return made


def best(results: Results) -> Repeated | None:
    """The repeated setting nearest to Table 1."""
    return min(repeated(results), key=lambda one: distance(one.values), default=None)


def table_nearest(results: Results) -> pd.DataFrame:
    """The published seven values beside Table 1's setting, the nearest one and seven equal values; and how far off."""
    printed, measured, found, one = published(), sweep(results), search(results), best(results)
    columns = {"published": printed, "all equal": dict.fromkeys(ORDER, fmean(printed.values()))}
    if measured is not None:
        columns["setting of Table 1"] = {core: measured.of_means(core) for core in ORDER}
    if one is not None and found is not None:
        columns["nearest, one seed"] = found.found[one.number, one.reading]
        columns["nearest, five fresh seeds"] = one.values
    rows = [
        {"re-weighting function": short_name(core)} | {name: f"{v[core]:.2f}" for name, v in columns.items()}
        for core in ORDER
    ]
    off = {name: f"{distance(values):.2f}" for name, values in columns.items()}
    return pd.DataFrame([*rows, {"re-weighting function": "distance from published (RMS)"} | off])


def nearest_setting(results: Results) -> str:
    """The nearest setting in words."""
    one = best(results)
    if one is None:
        return "not measured"
    form = CORES[one.reading.relu].title
    return f"{plausible_settings(one.reading.steps)[one.number]}, l₀ {one.reading.initial}, {form}"
