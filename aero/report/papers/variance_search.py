"""Variance Sensitivity: the search over the settings that the paper leaves open, and the settings nearest to Table 1.

The settings nearest to Table 1 by the search's single seeds are trained again with fresh seeds. Which ones, and how the
best of them is chosen, was fixed before those trainings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

import pandas as pd
import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.report.papers.variance_sensitivity import FOLDERS, Line, published, short_name, sweep
from aero.report.results import Results
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.metric import TRAINS, sensitivity, sensitivity_of_means
from aero.sensitivity.search import (
    CHOICES,
    RELU_CORES,
    Reading,
    plausible_settings,
    read,
    read_losses,
    sensitivities,
)
from aero.sensitivity.setting import Setting


@dataclass(frozen=True)
class Search:
    """Sensitivities by core of every (setting number, reading), and the settings' values by number.

    learning: (number, steps) of the settings in which softmax trains at some rate.
    """

    file: str
    found: dict[tuple[int, Reading], dict[str, float]]
    settings: dict[int, dict[str, str]]
    learning: frozenset[tuple[int, int]]

    @property
    def numbers(self) -> list[int]:
        return sorted({number for number, _ in self.found})


@dataclass(frozen=True)
class Share:
    """A fraction of settings with Wilson's 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.value:.0%} [{self.low:.0%}, {self.high:.0%}]"


def search(results: Results) -> Search | None:
    """The larger of the fresh and the committed search; None if there is none."""
    file = _larger(results, "search.csv")
    return _read_search(results.root, file) if file else None


def _larger(results: Results, name: str) -> str | None:
    files = [path for folder in FOLDERS if (path := results.root / folder / name).is_file()]
    return str(max(files, key=lambda path: path.stat().st_size).relative_to(results.root)) if files else None


@cache
def _read_search(root: Path, file: str) -> Search:
    lines = read(root / file)
    settings = {int(line["number"]): {name: line[name] for name in CHOICES} for line in lines}
    softmax = [line for line in lines if line["core"] == "softmax"]
    learning = {
        (int(line["number"]), int(line["steps"]))
        for line in softmax
        if read_losses(line).min() < TRAINS * float(line["zero_loss"])
    }
    return Search(file, sensitivities(lines), settings, frozenset(learning))


def share(found: Search, conclusion: str, among: Collection[tuple[int, int]] | None = None) -> Share:
    """How often a conclusion holds: every setting counts once, with the fraction of its readings that agree.

    among: (number, steps) of the settings and readings that count; None for all.
    """
    holds = CONCLUSIONS[conclusion].holds
    by_setting: dict[int, list[bool]] = {}
    for (number, reading), values in found.found.items():
        if among is None or (number, reading.steps) in among:
            by_setting.setdefault(number, []).append(holds(values))
    fractions = [sum(flags) / len(flags) for flags in by_setting.values()]
    mean, count, square = sum(fractions) / len(fractions), len(fractions), 1.959964**2
    centre = (mean + square / (2 * count)) / (1 + square / count)
    half = math.sqrt(square * (mean * (1 - mean) / count + square / (4 * count**2))) / (1 + square / count)
    return Share(mean, max(0.0, centre - half), min(1.0, centre + half))


def distance(values: Mapping[str, float]) -> float:
    """Root mean square of the differences from the published seven."""
    printed = published()
    return math.sqrt(sum((values[core] - printed[core]) ** 2 for core in ORDER) / len(ORDER))


def ranked(found: Search, relu: str) -> list[tuple[int, float, Reading]]:
    """Number, distance and nearest reading of every setting, the nearest first, for one form of the ReLU kernel."""
    best: dict[int, tuple[float, Reading]] = {}
    for (number, reading), values in found.found.items():
        if reading.relu == relu and (number not in best or distance(values) < best[number][0]):
            best[number] = distance(values), reading
    return sorted(((number, *of) for number, of in best.items()), key=lambda item: item[1])


NEAREST = 5
FRESH_SEEDS = (1001, 1002, 1003, 1004, 1005)
"""Seeds of the settings that are trained again: neither the search (0 to 239) nor the sweep (0 to 4) uses them."""


def nearest(results: Results) -> list[tuple[int, Reading]]:
    """The NEAREST settings of the search for each form of the ReLU kernel, with their readings."""
    found = search(results)
    if found is None:
        return []
    return [(number, reading) for form in RELU_CORES for number, _, reading in ranked(found, form)[:NEAREST]]


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
    """A setting trained with fresh seeds: by core, final losses (R, K) and l_0 (K,) as its reading has it."""

    number: int
    reading: Reading
    final: Mapping[str, Tensor]
    initial: Mapping[str, Tensor]

    def values(self) -> dict[str, float]:
        """Sensitivity by core, of losses clipped and then averaged over seeds, as in Table 1."""
        return {core: sensitivity_of_means(self.final[core], self.initial[core]) for core in ORDER}

    def seeds_with(self, conclusion: str) -> int:
        """In how many seeds a conclusion holds."""
        own = {core: sensitivity(self.final[core], self.initial[core]).tolist() for core in ORDER}
        by_seed = [{core: values[k] for core, values in own.items()} for k in range(len(FRESH_SEEDS))]
        return sum(map(CONCLUSIONS[conclusion].holds, by_seed))


def repeated(results: Results) -> list[Repeated]:
    """The settings of `nearest` that were trained again with every seed and core, in its order."""
    if (file := _larger(results, "nearest.csv")) is None:
        return []
    by_training: dict[tuple[str, str, str], dict[int, Line]] = {}
    for line in read(results.root / file):
        by_training.setdefault((line["number"], line["steps"], line["core"]), {})[int(line["seed"])] = line
    made = []
    for number, reading in nearest(results):
        column = "initial_loss" if reading.initial == "measured" else "zero_loss"
        final, initial = {}, {}
        for core in ORDER:
            lines = by_training.get((str(number), str(reading.steps), _trained(core, reading)), {})
            if set(FRESH_SEEDS) <= set(lines):
                final[core] = torch.stack([read_losses(lines[seed]) for seed in FRESH_SEEDS], 1)
                initial[core] = torch.tensor([float(lines[seed][column]) for seed in FRESH_SEEDS], dtype=torch.float64)
        if set(final) == set(ORDER):
            made.append(Repeated(number, reading, final, initial))
    return made


def best(results: Results) -> Repeated | None:
    """The repeated setting nearest to Table 1."""
    return min(repeated(results), key=lambda one: distance(one.values()), default=None)


# Tables ---------------------------------------------------------------------------------------------------------------


def table_nearest(results: Results) -> pd.DataFrame:
    """The published seven values beside Table 1's setting, the nearest one and seven equal values; and how far off."""
    printed, measured, found, one = published(), sweep(results), search(results), best(results)
    columns = {"published": printed, "all equal": dict.fromkeys(ORDER, fmean(printed.values()))}
    if measured is not None:
        columns["setting of Table 1"] = {core: measured.of_means(core) for core in ORDER}
    if one is not None and found is not None:
        columns["nearest, one seed"] = found.found[one.number, one.reading]
        columns["nearest, five fresh seeds"] = one.values()
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


def table_conclusions(results: Results) -> pd.DataFrame:
    """Each conclusion of the paper: in which share of settings, seeds of Table 1 and seeds of the nearest it holds."""
    found, measured, one = search(results), sweep(results), best(results)
    rows = []
    for name, conclusion in CONCLUSIONS.items():
        row = {"conclusion": f"{conclusion.text} ({conclusion.where})"}
        if found is not None:
            row["share of settings"] = share(found, name).text
            row["where softmax trains"] = share(found, name, found.learning).text if found.learning else ""
        if measured is not None:
            seeds = [{core: measured.sensitivities(core)[seed] for core in ORDER} for seed in measured.seeds]
            row["Table 1, seeds"] = f"{sum(map(conclusion.holds, seeds))} of {len(seeds)}"
        if one is not None:
            row["nearest, seeds"] = f"{one.seeds_with(name)} of {len(FRESH_SEEDS)}"
        rows.append(row)
    return pd.DataFrame(rows)


def table_choices(results: Results) -> pd.DataFrame:
    """What each open choice does: medians over all settings and readings that share a value."""
    found = search(results)
    if found is None:
        return pd.DataFrame()
    grouped: dict[tuple[str, str], list[dict[str, float]]] = {}
    for (number, reading), values in found.found.items():
        made = {**found.settings[number], "steps": str(reading.steps), "l₀": reading.initial}
        made["ReLU kernel"] = CORES[reading.relu].title
        for choice in made.items():
            grouped.setdefault(choice, []).append(values)
    order = list(dict.fromkeys(name for name, _ in grouped))
    rows = []
    for (name, value), group in sorted(grouped.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        agree = fmean(CONCLUSIONS["stable_below_softmax"].holds(values) for values in group)
        rows.append(
            {
                "choice": f"{name}: {value}",
                "softmax, median": f"{median(values['softmax'] for values in group):.2f}",
                "QK-LayerNorm, median": f"{median(values['qk_layernorm'] for values in group):.2f}",
                "ReLU, median": f"{median(values['relu'] for values in group):.2f}",
                "both below softmax-based cores": f"{agree:.0%}",
                "least distance from published": f"{min(map(distance, group)):.2f}",
            }
        )
    return pd.DataFrame(rows)
