"""Trainings one after the other in this process within a time limit, for a time-limited machine.

One process pays once for loading PyTorch and the corpus. A run that does not fit into the time left is stopped with a
saved state, and the next call resumes it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from aero.config import ResolvedRun
from aero.data.tokens import Tokens
from aero.errors import one_line
from aero.records import lock
from aero.training.distributed import default_device
from aero.training.run import STATE, finished_metrics, train_run


@dataclass(frozen=True)
class Ending:
    """How one training ended. found: it was done before. metrics: of a finished or found one."""

    run: ResolvedRun
    how: Literal["finished", "found", "unfinished", "failed"]
    metrics: dict[str, Any] | None = None
    line: str = ""


@dataclass
class Limit:
    """The time limit, and the time it takes to start a run and to end one, on the clock of `time.monotonic`.

    seconds: None for no limit. interrupted: called before every step; True ends the run as the limit does.
    """

    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)
    starting: float | None = None
    ending: float | None = None

    def elapsed(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def left(self) -> float:
        """Seconds left."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()

    def reserve(self, measured: float | None) -> float:
        """Seconds kept free to start or end a run: 1.25 times the longest so far, before the first 4 % of the limit."""
        if self.seconds is None:
            return 0.0
        return 0.04 * self.seconds if measured is None else 1.25 * measured

    def may_start(self) -> bool:
        """Whether there is time to start a run and save it."""
        return not self.interrupted() and self.left() > self.reserve(self.starting) + self.reserve(self.ending)

    def stop(self) -> bool:
        """Whether a run must stop now, to be saved or evaluated in time."""
        return self.interrupted() or self.left() < self.reserve(self.ending)

    def took(self, starting: float | None, ending: float | None) -> None:
        self.starting = max(filter(None, (self.starting, starting)), default=None)
        if ending is not None:
            self.ending = max(self.ending or 0.0, ending)


def train_in_turn(
    runs: Sequence[ResolvedRun],
    tokens_of: Callable[[ResolvedRun], Tokens],
    folder_of: Callable[[ResolvedRun], Path],
    limit: Limit,
    device: str | None = None,
) -> Iterator[Ending]:
    """Train one run after the other and measure their entropies, while there is time.

    folder_of: folder of metrics.json, entropy.json, log.csv and the state of an unfinished run; no checkpoint is
    written. A run that fails stops no other. Ends after the run that the limit stops.
    """
    device = device or default_device()
    steps: list[float] = []  # when each step of the current run began

    def stop() -> bool:
        steps.append(time.monotonic())
        return limit.stop()

    for run in runs:
        if not limit.may_start():
            return
        began, folder, tokens = time.monotonic(), folder_of(run), tokens_of(run)
        if metrics := finished_metrics(folder, run.hash(tokens.manifest)):
            yield Ending(run, "found", metrics)
            continue
        steps.clear()
        try:
            with lock(folder / STATE):
                metrics = train_run(run, tokens, folder, device, stop=stop, checkpoint=False)
        except Exception as error:  # a failing run must not cost the time of the others
            yield Ending(run, "failed", line=one_line(error))
            continue
        finally:
            _free_memory(device)
        ending = time.monotonic() - (steps[-1] if steps else began)  # no step: it was saved after its last one
        limit.took(steps[1] - began if len(steps) > 1 else None, ending)
        if metrics is None:
            yield Ending(run, "unfinished")
            return
        yield Ending(run, "finished", metrics)


def _free_memory(device: str) -> None:
    """Free the memory of the last model and its compilation."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
