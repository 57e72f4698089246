"""Timings that can be compared, and provenance: each side in a process of its own, their steps taken in turn.

So each side has its own allocator, threads and settings, and both run under the same load. A side gives a
median with its lowest and highest value; two sides give the ratio of each pair of repeats.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from aero import records
from aero.records import write_text

FOLDER = Path("results/bench")
MB = 1e6

Measured = dict[str, float]
"""What a side reports on one step; `seconds` among it."""


def cores() -> int:
    return len(os.sched_getaffinity(0))


def load() -> float:
    """Load of the machine over the last minute."""
    return round(os.getloadavg()[0], 2)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def reset_peak() -> None:
    """Let `peak_bytes` count from now on. Linux only; OSError elsewhere."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_bytes() -> int:
    """Peak resident memory since `reset_peak`, or since the start.

    Not getrusage's ru_maxrss, which on Linux includes the peak of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


_step: Callable[[], Measured]


def _make(make: Callable[..., Callable[[], Measured]], threads: int | None, settings: Mapping[str, Any]) -> None:
    global _step
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    _step = make(**settings)


def _take() -> Measured:
    return _step()


def side(
    make: Callable[..., Callable[[], Measured]], threads: int | None = None, **settings: Any
) -> ProcessPoolExecutor:
    """A fresh process that will do the step `make(**settings)`; a context manager, which ends it."""
    return ProcessPoolExecutor(1, get_context("spawn"), _make, (make, threads, settings))


def in_turn(sides: Mapping[str, Executor], repeats: int, warm_ups: int = 1) -> dict[str, list[Measured]]:
    """`repeats` steps of every side, one of each in turn, in reverse order every other time."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for repeat in range(warm_ups + repeats):
        for name in list(sides)[:: 1 if repeat % 2 else -1]:
            step = sides[name].submit(_take).result()
            if repeat >= warm_ups:
                found[name].append(step)
    return found


def spread(values: Sequence[float], digits: int = 5) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        name: float(f"{value:.{digits}g}")
        for name, value in (("median", median(values)), ("low", min(values)), ("high", max(values)))
    }


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """`over` / `under`, repeat by repeat: median, lowest and highest."""
    return spread([a / b for a, b in zip(over, under, strict=True)], 4)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value over log size, by least squares: 1 is linear, 0 is flat."""
    return linear_regression(list(map(math.log, sizes)), list(map(math.log, values))).slope


def arguments_of(name: str, purpose: str, repeats: int = 7) -> argparse.ArgumentParser:
    """The options that benchmarks share whose sides are processes."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 768])
    return parser


def of(steps: Sequence[Measured], name: str = "seconds") -> list[float]:
    return [step[name] for step in steps]


def save(name: str, values: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """results/bench/<name>.json with where and when it was made; replaced at once."""
    import torch

    made = records.provenance(torch=torch.__version__, measured=records.now(), load=load())
    write_text(folder / f"{name}.json", json.dumps({**values, "provenance": made}, indent=1) + "\n")


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a CSV file at once; keys that are not in `columns` are left out."""
    write_text(path, records.csv_text(columns, [{name: line.get(name, "") for name in columns} for line in lines]))
