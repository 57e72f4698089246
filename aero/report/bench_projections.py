"""What was not run, from what was measured: the whole artifact at the papers' scale, and larger models privately.

Every function returns numbers with the inputs they follow from; nothing here is a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aero import catalogue
from aero.parameters import Parameters

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


def measured_speed(gpu: dict[str, Any] | None, device: str) -> float | None:
    """FLOP/s of the baseline's training steps at T=128, from results/bench/gpu.json, if that was made on `device`."""
    if gpu is None or device.lower() not in str(gpu.get("provenance", {}).get("device", "")).lower():
        return None
    for line in gpu.get("steps", ()):
        if (line.get("architecture"), line.get("context"), line.get("compiled")) == ("SM+LN+G", 128, True):
            return float(line["flops_per_step"] / line["tokens_per_step"] * line["tokens_per_second"])
    return None


def fitted_power(found: Mapping[str, Any]) -> float | None:
    """The power of d of a linear layer's seconds, as fitted to what was measured; None without."""
    for line in found["growth"]:
        if (line["axis"], line["kind"]) == ("d", "linear") and "seconds_exponent" in line:
            return float(line["seconds_exponent"])
    return None


def fitted_seconds_less(found: Mapping[str, Any], line: Mapping[str, Any]) -> float:
    """How many seconds less a line of `models` takes if its linear layers grow as L d^fitted instead of L d^2."""
    power = fitted_power(found)
    smallest = found["models"][0]
    rows = (row for row in found["rows"] if all(row[name] == line[name] for name in ("architecture", "program")))
    if power is None or (row := next(rows, None)) is None:
        return 0.0
    deep, wide = line["layers"] / smallest["layers"], line["width"] / smallest["width"]
    return float(row["parts"]["linear layers"]["seconds"] * deep * (wide**2 - wide**power))
