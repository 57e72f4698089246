"""Timings that can be compared, and provenance: each side in a process of its own, their steps taken in turn.

So each side has its own allocator, threads and settings, and both run under the same load. A side gives a
median with its lowest and highest value; two sides give the ratio of each pair of repeats.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from aero.records import csv_text, now, provenance, read_csv, write_text

FOLDER = Path("results/bench")
Measured = dict[str, float]
"""What a side reports on one step; `seconds` among it."""
Make = Callable[..., Callable[[], Measured]]
"""Makes the step of a side, in its process."""


def load() -> float:
    """Load of the machine over the last minute."""
    return round(os.getloadavg()[0], 2)


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process, by default this one."""
    return int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Peak resident memory of this process, since the start or since `added_peak`.

    Not getrusage's ru_maxrss, which on Linux includes the peak of the process that started this one.
    """
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[1])


def added_peak(step: Callable[[], object]) -> Measured:
    """How far `step` raises this process's peak of resident memory over what it has before. Linux only."""
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the peak so far
    step()
    return {"peak_bytes": peak_bytes() - before}


_step: Callable[[], Measured]


def _make(make: Make, threads: int | None, settings: Mapping[str, Any]) -> None:
    global _step
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    _step = make(**settings)


def _take() -> Measured:
    return _step()


def side(make: Make, threads: int | None = None, **settings: Any) -> ProcessPoolExecutor:
    """A fresh process that will do the step `make(**settings)`."""
    return ProcessPoolExecutor(1, get_context("spawn"), _make, (make, threads, settings))


def in_turn(sides: Mapping[str, Executor], repeats: int, warm_ups: int = 1) -> dict[str, list[Measured]]:
    """`repeats` steps of every side, one of each in turn, in reverse order every other time; then ends the sides."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    with ExitStack() as running:
        for one in sides.values():
            running.enter_context(one)
        for repeat in range(warm_ups + repeats):
            for name in list(sides)[:: 1 if repeat % 2 else -1]:
                step = sides[name].submit(_take).result()
                if repeat >= warm_ups:
                    found[name].append(step)
    return found


def spread(values: Sequence[float], digits: int = 5) -> dict[str, float]:
    """Median, lowest and highest."""
    found = {"median": median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.{digits}g}") for name, value in found.items()}


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """`over` / `under`, repeat by repeat: median, lowest and highest."""
    return spread([a / b for a, b in zip(over, under, strict=True)], 4)


def of(steps: Sequence[Measured], name: str = "seconds") -> list[float]:
    return [step[name] for step in steps]


def save(name: str, values: Mapping[str, Any], folder: Path = FOLDER, **more: Any) -> None:
    """results/bench/<name>.json with where and when it was made, and `more` of that; replaced at once."""
    import torch

    made = provenance(torch=torch.__version__, measured=now(), load=load(), **more)
    write_text(folder / f"{name}.json", json.dumps({**values, "provenance": made}, indent=1) + "\n")


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a CSV file at once; keys that are not in `columns` are left out."""
    write_text(path, csv_text(columns, [{name: line.get(name, "") for name in columns} for line in lines]))


def replace_lines(path: Path, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], *key: str) -> None:
    """Add lines to a CSV file, in place of those that have the same values in the columns `key`."""
    new = {tuple(str(line[name]) for name in key) for line in lines}
    kept = [old for old in read_csv(path) if tuple(old[name] for name in key) not in new]
    write_lines(path, columns, [*kept, *lines])
