"""Trainings one after the other in this process, within a time limit: for a machine that is lent by the minute.

Starting a process, loading PyTorch and the corpus, costs seconds that a run of a minute should not pay. A run that does
not fit into the time left is stopped with a saved state, and the next call goes on with it.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from aero.config import Parameters
from aero.data.tokens import Tokens
from aero.errors import UserError
from aero.model import GPT
from aero.records import Row, lock
from aero.training.processes import default_device
from aero.training.run import metrics_of, run_hash, train_run
from aero.training.trained_entropy import write_entropy

SAFETY = 1.25
"""What is kept free for starting and for ending a run: the longest so far, times this."""
FIRST_SHARE = 0.04
"""The same before there is any: this share of the time limit."""

How = Literal["finished", "found", "unfinished", "failed"]


@dataclass(frozen=True)
class Ending:
    """How one training ended. found: it was done before. metrics: of a finished or found one."""

    run: str
    seed: int
    how: How
    seconds: float
    metrics: dict[str, Any] | None = None
    line: str = ""


@dataclass
class Limit:
    """The time limit, and what it takes to start a run and to end one, on the clock of `time.monotonic`.

    seconds: None for no limit. interrupted: asked before every step; True ends the run as the limit does.
    """

    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)
    starting: float | None = None
    ending: float | None = None

    def left(self) -> float:
        """Seconds left."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()

    def reserve(self, measured: float | None) -> float:
        if self.seconds is None:
            return 0.0
        return FIRST_SHARE * self.seconds if measured is None else SAFETY * measured

    def may_start(self) -> bool:
        """Whether a run can begin, be stopped after a few steps and saved."""
        return not self.interrupted() and self.left() > self.reserve(self.starting) + self.reserve(self.ending)

    def stop(self) -> bool:
        """Whether a run must stop now, to be saved or evaluated in time."""
        return self.interrupted() or self.left() < self.reserve(self.ending)

    def took(self, starting: float | None, ending: float) -> None:
        self.starting = max(filter(None, (self.starting, starting)), default=None)
        self.ending = max(self.ending or 0.0, ending)


class _Stopwatch:
    """An observer of a training that sees when its first step and its last one were done."""

    def __init__(self) -> None:
        self.began = self.stopped = time.monotonic()
        self.first: float | None = None

    def begin(self, rows: Sequence[Row]) -> None:
        pass

    def add(self, row: Row) -> None:
        self.first = self.first or time.monotonic()

    def end(self) -> None:
        self.stopped = time.monotonic()


def back_to_back(
    parameters: Parameters,
    trainings: Sequence[tuple[str, int]],
    tokens_of: Callable[[str], Tokens],
    folder_of: Callable[[str, int], Path],
    limit: Limit,
    device: str | None = None,
) -> Iterator[Ending]:
    """Train (run, seed) after (run, seed) at the active scale and measure their entropies, while there is time.

    folder_of: where metrics.json, entropy.json, log.csv and, of an unfinished run, its state are; no checkpoint is
    kept. A run that fails is told and stops no other. What cannot be compiled, or fails when it is, is trained again
    without compiling. Ends after the run that the limit stops.
    """
    device = device or default_device()
    for run, seed in trainings:
        if not limit.may_start():
            return
        began, folder, tokens = time.monotonic(), folder_of(run, seed), tokens_of(run)
        if metrics := metrics_of(folder, run_hash(parameters, run, seed, tokens)):
            yield Ending(run, seed, "found", 0.0, metrics)
            continue
        watch = _Stopwatch()
        try:
            metrics = _train(parameters, run, seed, tokens, folder, limit, device, watch)
        except Exception as error:  # one run's fault, of whatever kind, must not cost the time of the others
            line = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            yield Ending(run, seed, "failed", time.monotonic() - began, line=str(error) if _ours(error) else line)
            continue
        finally:
            _forget(device)
        limit.took(None if watch.first is None else watch.first - began, time.monotonic() - watch.stopped)
        seconds = time.monotonic() - began
        if metrics is None:
            yield Ending(run, seed, "unfinished", seconds)
            return
        yield Ending(run, seed, "finished", seconds, metrics)


def _train(
    parameters: Parameters,
    run: str,
    seed: int,
    tokens: Tokens,
    folder: Path,
    limit: Limit,
    device: str,
    watch: _Stopwatch,
) -> dict[str, Any] | None:
    def entropy(model: GPT, metrics: dict[str, Any]) -> None:
        path = folder / "entropy.json"
        path.unlink(missing_ok=True)
        # A model whose last step left it without finite values has no entropies to write.
        with contextlib.suppress(ValueError) if metrics["diverged_at_step"] is not None else contextlib.nullcontext():
            write_entropy(path, model, metrics, tokens, parameters, device)

    def once() -> dict[str, Any] | None:
        return train_run(
            parameters,
            run,
            seed,
            tokens,
            folder,
            state,
            device,
            stop=limit.stop,
            observers=[watch],
            checkpoint=False,
            after=entropy,
        )

    state = folder / "resume.safetensors"
    with lock(state):
        try:
            return once()
        except Exception as error:
            if _ours(error) or not (parameters.train(run).compile and device.startswith("cuda")):
                raise
            print(f"{run} seed {seed}: {type(error).__name__}, again without compiling: {str(error)[:300]}", flush=True)
            _forget(device)
            with torch.compiler.set_stance("force_eager"):
                return once()


def _ours(error: Exception) -> bool:
    """Whether an error is of the input, told in a line that a person can act on."""
    return isinstance(error, UserError | ValueError)


def _forget(device: str) -> None:
    """Give back what the last model and its compilation held."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
