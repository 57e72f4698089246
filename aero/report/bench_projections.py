"""What was not run, from what was measured: the whole artifact at the papers' scale, and larger models privately.

Every function returns numbers with the inputs they follow from; nothing here is a measurement.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.config import Parameters
from aero.report.unreadable import UNREADABLE
from aero.training import catalogue
from aero.two_party.cost import ledger

SCALE = "paper"
CODEPARROT_BYTES = 8e9
"""Of the papers' training text (AERO Appendix C: "contains 8 GB of files")."""


@dataclass(frozen=True)
class Training:
    """All trainings of the papers at their own scale.

    trainings: how many. flops: model FLOPs of all, three forward passes a token. longest: of the longest one, on one
    device, hours. hours, hours_of_eight: on one device, and on eight with a training on each. speed: FLOP/s that one
    reaches, and where that number is from.
    """

    device: str
    trainings: int
    tokens: float
    flops: float
    speed: float
    speed_from: str
    hours: float
    longest: float
    hours_of_eight: float
    usd_per_hour: float | None

    @property
    def cost(self) -> float | None:
        return None if self.usd_per_hour is None else self.hours * self.usd_per_hour

    @property
    def cost_of_eight(self) -> float | None:
        """All eight are paid for until the last training ends."""
        return None if self.usd_per_hour is None else 8 * self.hours_of_eight * self.usd_per_hour


def on_several(hours: Sequence[float], devices: int) -> float:
    """When the last of `devices` is done, if each takes the longest training that is left: at most 4/3 of the best."""
    busy = [0.0] * devices
    for length in sorted(hours, reverse=True):
        place = busy.index(min(busy))
        busy[place] += length
    return max(busy)


def training(parameters: Parameters, device: str, measured: float | None = None, source: str = "") -> Training:
    """The papers' trainings on `device`, at `measured` FLOP/s or else at the share of its peak that is assumed."""
    there = parameters.at_scale(SCALE)
    chosen = there.device(device)
    speed = measured or chosen.peak_tflops * 1e12 * chosen.utilisation
    assumed = f"assumed: {chosen.utilisation:g} of {chosen.peak_tflops:g} TFLOP/s"
    flops = {run: catalogue.training_flops(there, run) for run in there.runs}
    each = [flops[run] / speed / 3600 for run, _ in there.trainings()]
    return Training(
        device=device,
        trainings=len(each),
        tokens=float(sum(catalogue.tokens(there, run) for run, _ in there.trainings())),
        flops=sum(flops[run] for run, _ in there.trainings()),
        speed=speed,
        speed_from=source if measured else assumed,
        hours=sum(each),
        longest=max(each),
        hours_of_eight=on_several(each, 8),
        usd_per_hour=chosen.usd_per_hour,
    )


PARTIES = 2
"""Processes of private inference, with one thread and so one core each."""
PRIVATE = ("results/two_party/ops.csv", "results/two_party/all_ops.csv")
SWEEP = "results/sensitivity/sweep.json"
PARALLEL = "results/parallel_context/laptop"


@dataclass(frozen=True)
class Stage:
    """What a stage beside the trainings takes at the papers' scale. hours: of one core, or of one device.

    inputs: the formula with its numbers. source: the files these are from.
    """

    name: str
    hours: float
    usd_per_hour: float | None
    of: str
    inputs: str
    source: str

    @property
    def cost(self) -> float | None:
        return None if self.usd_per_hour is None else self.hours * self.usd_per_hour


def other_stages(parameters: Parameters, root: Path, device: str, measured: float | None = None) -> list[Stage]:
    """The stages beside the trainings, as far as the files they are projected from are there and hold what they should.

    measured: FLOP/s of `device`, as in `training`.
    """
    found = [_entropy(parameters, device, measured)]
    for stage in (_private, _sweep, _parallel):
        with contextlib.suppress(*UNREADABLE):  # a damaged file is said where its own measurements are shown
            if (one := stage(parameters, root)) is not None:
                found.append(one)
    return found


def _private(parameters: Parameters, root: Path) -> Stage | None:
    if not (paths := [name for name in PRIVATE if (root / name).is_file()]):
        return None
    # A file of all operations repeats what one of a few has.
    by_key = {(one.op, one.shape): one for name in paths for one in _measured(root / name)}
    seconds = sum(one.seconds * one.runs for one in by_key.values())
    inputs = f"{PARTIES} processes x {seconds:,.0f} s of {len(by_key)} operations and their runs"
    hours = PARTIES * seconds / 3600
    return Stage("two-party measurement", hours, parameters.core_usd_per_hour, "core", inputs, ", ".join(paths))


def _sweep(parameters: Parameters, root: Path) -> Stage | None:
    if (sweep := _json(root / SWEEP)) is None:
        return None
    there = parameters.at_scale(SCALE).active.sensitivity
    seconds = sum(sweep["seconds"].values()) * sweep["threads"]
    times = there.steps / sweep["setting"]["steps"] * there.seeds / len(sweep["seeds"])
    inputs = f"{seconds:.0f} core seconds x {times:g} for the steps and seeds of the scale over the kept ones"
    hours = seconds * times / 3600
    return Stage("learning-rate sensitivity", hours, parameters.core_usd_per_hour, "core", inputs, SWEEP)


def _parallel(parameters: Parameters, root: Path) -> Stage | None:
    if not (seeds := sorted((root / PARALLEL).glob("seed_*.json"))):
        return None
    kept = [_json(path) or {} for path in seeds]
    trained = [one["training"]["provenance"]["seconds"] for one in kept]
    asked = [one["provenance"]["seconds"] for one in kept]
    cost = (_json(root / PARALLEL / "cost.json") or {}).get("provenance", {}).get("seconds", 0.0)
    inputs = (
        f"{len(kept)} models: {sum(trained):,.0f} s of training, {sum(asked):,.0f} s of tasks, {cost:,.0f} s of "
        "costs, one thread; the scales laptop and paper have the same sizes here"
    )
    hours = (sum(trained) + sum(asked) + cost) / 3600
    return Stage("parallel contexts", hours, parameters.core_usd_per_hour, "core", inputs, f"{PARALLEL}/")


def _entropy(parameters: Parameters, device: str, measured: float | None) -> Stage:
    """One forward pass over the scale's tokens of the measurement for every training."""
    there = parameters.at_scale(SCALE)
    chosen, tokens = there.device(device), there.active.entropy.tokens
    speed = measured or chosen.peak_tflops * 1e12 * chosen.utilisation
    # A training is three forward passes a token.
    each = [catalogue.training_flops(there, run) / 3 / catalogue.tokens(there, run) for run, _ in there.trainings()]
    flops = sum(each) * tokens
    inputs = (
        f"{len(each)} trainings x {tokens:,} tokens x forward FLOPs = {flops:.2g} FLOPs / {speed / 1e12:.0f} TFLOP/s"
    )
    return Stage("entropy", flops / speed / 3600, chosen.usd_per_hour, device, inputs, "params.yaml")


def _measured(path: Path) -> list[ledger.Measurement]:
    return ledger.read(path, ledger.Measurement, ledger.NO_SECONDS)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def core_cost(seconds: float, usd_per_hour: float) -> float:
    """Rent of both parties' cores while they compute."""
    return PARTIES * seconds / 3600 * usd_per_hour


def measured_speed(gpu: dict[str, Any] | None, device: str) -> float | None:
    """FLOP/s of the baseline's training steps at T=128, from results/bench/gpu.json, if that was made on `device`."""
    if gpu is None or device.lower() not in str(gpu.get("provenance", {}).get("device", "")).lower():
        return None
    for line in gpu.get("steps", ()):
        if (line.get("architecture"), line.get("context"), line.get("compiled")) == ("SM+LN+G", 128, True):
            return float(line["flops_per_step"] / line["tokens_per_step"] * line["tokens_per_second"])
    return None


LINEAR = {"as_written": "linear", "tuned": "lattice_linear"}
"""The operation that linear layers of several rows are, by program."""


def fitted_power(found: Mapping[str, Any], program: str) -> float | None:
    """The power of d of the seconds of a program's linear layers, as fitted to what was measured; None without."""
    for line in found["growth"]:
        if (line["axis"], line["kind"]) == ("d", LINEAR[program]) and "seconds_exponent" in line:
            return float(line["seconds_exponent"])
    return None


def fitted_seconds_less(found: Mapping[str, Any], line: Mapping[str, Any]) -> float:
    """How many seconds less a line of `models` takes if its linear layers grow as L d^fitted instead of L d^2."""
    power = fitted_power(found, line["program"])
    smallest = found["models"][0]
    rows = (row for row in found["rows"] if all(row[name] == line[name] for name in ("architecture", "program")))
    if power is None or (row := next(rows, None)) is None:
        return 0.0
    deep, wide = line["layers"] / smallest["layers"], line["width"] / smallest["width"]
    return float(row["parts"]["linear layers"]["seconds"] * deep * (wide**2 - wide**power))
