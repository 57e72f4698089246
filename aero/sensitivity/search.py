"""The search over what the paper leaves open: which settings are reasonable, and what each of them gives.

A setting is what a training depends on (`Setting`); a reading is what is made of its losses afterwards (`Reading`).
The reasonable settings are the product of REASONABLE, fixed before any of them was run; how their losses are read was
mended after a first search (docs/decisions.md tells what and why). The search
draws from them without replacement in an order that a seed fixes, so whatever part of it has been run is a random
sample, and the share of settings for which a conclusion holds has an interval.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.sensitivity.metric import final_losses, sensitivity
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import Trained, train

REASONABLE: dict[str, tuple[object, ...]] = {
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
"""Training losses averaged as the final loss. The last one alone is no reading: it is that of 4 or 16 sequences, whose
labels, squared, have a standard deviation of twice their mean, and says more of them than of the model."""
SEARCHED_CORES = (
    "softmax",
    "window_softmax",
    "sigma_reparam",
    "sigmoid",
    "elu",
    "qk_layernorm",
    "relu",
    "relu_performer",
)
"""The rows of Table 1, and the second usual form of its last one."""
RELU_CORES = ("relu", "relu_performer")
"""Either can be Table 1's row."""
ORDER_SEED = 2025


@dataclass(frozen=True)
class Reading:
    """steps: after which the loss is final. initial: l_0 is the loss of the untrained models ("measured") or of
    predicting 0 ("zero"), on the sequences of the final loss. relu: the core that Table 1's ReLU row is.
    """

    steps: int
    initial: str
    relu: str


def reasonable(steps: int = STEPS[-1]) -> list[Setting]:
    """Every reasonable setting, in the order in which the search runs them."""
    products = (dict(zip(REASONABLE, values, strict=True)) for values in itertools.product(*REASONABLE.values()))
    found = [
        Setting(**values, steps=steps)
        for values in products
        if not (values["hidden"] == "embedded" and values["readout"] == "slot")
    ]
    random.Random(ORDER_SEED).shuffle(found)
    return found


def readings() -> Iterator[Reading]:
    for values in itertools.product(STEPS, ("measured", "zero"), RELU_CORES):
        yield Reading(*values)


def lines(
    number: int, setting: Setting, core: str, trained: Trained, seeds: tuple[int, ...]
) -> list[dict[str, object]]:
    """Lines of search.csv of one core in one setting: a line a seed and number of steps, its final losses by rate;
    "inf" for a diverged one.
    """
    made = []
    for steps in STEPS:
        if steps > setting.steps:
            continue
        window = min(WINDOW, steps)
        final, untrained, zero = (
            final_losses(losses[:steps], window)
            for losses in (trained.losses, trained.untrained_losses, trained.zero_losses)
        )
        for k, seed in enumerate(seeds):
            values = [f"{value:.5g}" for value in final[:, k].tolist()]
            made.append(
                {
                    "number": number,
                    **{name: getattr(setting, name) for name in REASONABLE},
                    "core": core,
                    "seed": seed,
                    "steps": steps,
                    "initial_loss": f"{untrained[k].item():.6g}",
                    "zero_loss": f"{zero[k].item():.6g}",
                    **{f"{rate:g}": value for rate, value in zip(learning_rates(), values, strict=True)},
                }
            )
    return made


def run(number: int, setting: Setting, core: str, seeds: tuple[int, ...]) -> list[dict[str, object]]:
    """Train one core in one setting at all rates and seeds."""
    return lines(number, setting, core, train(CORES[core], setting, learning_rates(), seeds), seeds)


def read_losses(line: Mapping[str, str]) -> Tensor:
    """Final losses (R,) of a line of search.csv."""
    return torch.tensor([float(line[f"{rate:g}"]) for rate in learning_rates()], dtype=torch.float64)


def sensitivities(lines: list[Mapping[str, str]]) -> dict[tuple[int, Reading], dict[str, float]]:
    """Sensitivity by core for every setting (its number) and reading, the mean over its seeds.

    Settings that lack a core are left out.
    """
    found: dict[tuple[int, Reading], dict[str, list[float]]] = {}
    for line in lines:
        losses = read_losses(line)[:, None]
        for reading in readings():
            if int(line["steps"]) != reading.steps or line["core"] in RELU_CORES and line["core"] != reading.relu:
                continue
            core = "relu" if line["core"] in RELU_CORES else line["core"]
            initial = float(line["initial_loss" if reading.initial == "measured" else "zero_loss"])
            value = sensitivity(losses, initial)[0].item()
            found.setdefault((int(line["number"]), reading), {}).setdefault(core, []).append(value)
    wanted = len(SEARCHED_CORES) - 1
    means = {key: {core: sum(v) / len(v) for core, v in values.items()} for key, values in found.items()}
    return {key: values for key, values in means.items() if len(values) == wanted}
