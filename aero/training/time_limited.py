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
from aero.training.kernels import default_device
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
    """The time limit on the clock of `time.monotonic`.

    seconds: None for no limit. interrupted: called before every step; True ends the run as the limit does.
    """

    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def stop(self) -> bool:
        """Whether a run must stop now, to be saved or evaluated in the last tenth of the limit."""
        return self.interrupted() or (self.seconds is not None and self.elapsed() > 0.9 * self.seconds)


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
    for run in runs:
        if limit.stop():
            return
        folder, tokens = folder_of(run), tokens_of(run)
        if metrics := finished_metrics(folder, run.hash(tokens.manifest)):
            yield Ending(run, "found", metrics)
            continue
        try:
            with lock(folder / STATE):
                metrics = train_run(run, tokens, folder, device, stop=limit.stop, checkpoint=False)
        except Exception as error:  # a failing run must not cost the time of the others
            yield Ending(run, "failed", line=one_line(error))
            continue
        finally:
            _free_memory(device)
        if metrics is None:
            yield Ending(run, "unfinished")
            return
        yield Ending(run, "finished", metrics)


def _free_memory(device: str) -> None:
    """Free the memory of the last model and its compilation."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
