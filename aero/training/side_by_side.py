"""Small models trained side by side on one GPU.

A step of a small model is hundreds of kernels of a few microseconds each; started one by one from Python they leave a
GPU mostly idle. Here the step of every model is captured once as a CUDA graph, which one call starts, and the graphs of
several models run at the same time. Batches and learning rates of all steps are tensors on the GPU.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero import records
from aero.config import ResolvedRun
from aero.data.tokens import Tokens
from aero.errors import one_line
from aero.model import GPT
from aero.training.distributed import default_device
from aero.training.kernels import eager
from aero.training.loop import Step
from aero.training.run import STATE, finish_run, finished_metrics, trainer_of
from aero.training.schedule import learning_rate_factor
from aero.training.time_limited import Ending, Limit


class CapturedTraining:
    """One training, each step of which is one launch of a CUDA graph. On a CPU, for tests, it is an ordinary call.

    ValueError for a run that accumulates gradients or trains in float16.
    """

    def __init__(self, run: ResolvedRun, tokens: Tokens, state: Path, device: str) -> None:
        settings = run.train
        if settings.accumulation != 1 or settings.precision == "float16" or settings.qk_clip:
            raise ValueError(f"{run.name} accumulates gradients or trains in float16, or has qk_clip; train it alone")
        self.run, self.state = run, state
        self.on_gpu = device.startswith("cuda")
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.trainer = trainer = trainer_of(run, tokens, device)
        trainer.compiled = False
        if self.on_gpu:
            torch.cuda.synchronize()  # the model was moved there on another stream
        with self.on_stream():
            trainer.resume(state, run.hash(tokens.manifest))
            batches = [trainer.batches.batch(step).int() for step in range(settings.steps)]
            self.batches = torch.stack(batches)  # (steps, B, T)
            factors = [learning_rate_factor(settings, step) for step in range(settings.steps)]
            self.rates = settings.learning_rate * torch.tensor(factors, device=device)  # (steps)
            self.results = torch.zeros(settings.steps, 3, dtype=torch.float64, device=device)
            self.step = torch.tensor([trainer.outcome.steps_done], device=device)
            self.rate = self.rates[0].clone()
        for group in trainer.optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, self.on_gpu
        self.start_step: Callable[[], None] = self._capture() if self.on_gpu else self._step

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.on_gpu else contextlib.nullcontext()

    def _step(self) -> None:
        """One step with its update; loss, penalty and norm of the gradient go to `results`."""
        trainer = self.trainer
        step = self.step.clamp(max=self.run.train.steps - 1)  # warm-up steps may be more than are left
        self.rate.copy_(self.rates.index_select(0, step)[0])
        loss, penalty = trainer.losses(self.batches.index_select(0, step)[0].long())
        penalty = trainer.regularizer.lambda_ * penalty
        (loss + penalty).backward()
        norm = _clip(trainer.model, self.run.train.clip)
        values = torch.stack([loss.detach().double(), penalty.detach().double(), norm])
        self.results.index_copy_(0, step, values[None])
        trainer.update()
        self.step += 1

    def _capture(self) -> Callable[[], None]:
        """`_step` as a CUDA graph, with weights and moments as they are now."""
        resumed = bool(self.trainer.optimizer.state)
        with eager(), self.on_stream():
            before = [value.clone() for value in self._tensors()]
            for _ in range(3):  # PyTorch chooses kernels; these steps are undone
                self._step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self._step()
            now = self._tensors()
            for value, saved in zip(now, before, strict=False):  # moments are made by the first step: zero before it
                value.copy_(saved)
            if not resumed:
                for value in now[len(before) :]:
                    value.zero_()
            torch.cuda.synchronize()  # before other streams get the memory of `before`
        return graph.replay

    @torch.no_grad()
    def _tensors(self) -> list[Tensor]:
        """All that a step changes: the counter, weights and buffers, moments."""
        moments = [value for state in self.trainer.optimizer.state.values() for value in state.values()]
        model = self.trainer.model
        return [self.step, *(value.detach() for value in [*model.parameters(), *model.buffers()]), *moments]

    def next_row(self) -> int:
        """The steps that are done when the next row of the log is due."""
        settings, done = self.run.train, self.trainer.outcome.steps_done
        due = (done - done % every + every for every in (settings.log_every, settings.evaluate_every))
        return min(*due, settings.steps) if done else 1

    def advance(self) -> None:
        """Start the steps up to the next row of the log, without waiting for them."""
        with self.on_stream():
            for _ in range(self.trainer.outcome.steps_done, self.next_row()):
                self.start_step()

    def log(self) -> bool:
        """Wait for the steps that `advance` started and log them. False if a loss or gradient was not finite."""
        trainer, done = self.trainer, self.next_row()
        with self.on_stream():
            values = self.results[trainer.outcome.steps_done : done].tolist()
            if not all(math.isfinite(value) for row in values for value in row):
                return False
            row = trainer.log_row(done - 1, Step(*values[-1], [], []))
            trainer.outcome.rows.append(row)
        return True


def _clip(model: GPT, most: float | None) -> Tensor:
    """As `loop.clip`, without waiting for the GPU where the norm overflows float32 but no entry does."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients, 2, torch.float64)).norm()
    torch._foreach_mul_(gradients, ((most or math.inf) / (norm + 1e-6)).clamp(max=1.0).float())
    return norm


def train_side_by_side(
    runs: Sequence[ResolvedRun],
    tokens_of: Callable[[ResolvedRun], Tokens],
    folder_of: Callable[[ResolvedRun], Path],
    limit: Limit,
    together: int,
    device: str | None = None,
) -> Iterator[Ending]:
    """Train `together` runs at a time, then measure them; the arguments are those of `time_limited.train_in_turn`.

    A run whose loss or gradient is not finite ends as "failed": only the ordinary loop finds where that began. State is
    saved only when the limit stops the runs; they resume here or alone.
    """
    device, todo = device or default_device(), []
    for run in runs:
        if metrics := finished_metrics(folder_of(run), run.hash(tokens_of(run).manifest)):
            yield Ending(run, "found", metrics)
        else:
            todo.append(run)
    for first in range(0, len(todo), together):
        if limit.may_start():
            yield from _train_group(todo[first : first + together], tokens_of, folder_of, limit, device)


def _train_group(
    runs: Sequence[ResolvedRun],
    tokens_of: Callable[[ResolvedRun], Tokens],
    folder_of: Callable[[ResolvedRun], Path],
    limit: Limit,
    device: str,
) -> Iterator[Ending]:
    """Train `runs` at the same time; those that the limit stops are saved."""
    began, left = time.monotonic(), []
    with contextlib.ExitStack() as locks:
        for run in runs:
            state = folder_of(run) / STATE
            try:  # a failing run must not cost the time of the others
                locks.enter_context(records.lock(state))
                left.append(CapturedTraining(run, tokens_of(run), state, device))
            except Exception as error:
                yield Ending(run, "failed", line=one_line(error))
        limit.took(time.monotonic() - began, None)
        while left and not limit.stop():
            for training in left:
                training.advance()
            for training in list(left):
                run = training.run
                if not training.log():
                    left.remove(training)
                    yield Ending(run, "failed", line="a loss or gradient is not finite; train it alone")
                elif training.trainer.outcome.steps_done == run.train.steps:
                    left.remove(training)
                    began = time.monotonic()
                    yield _finished(training, tokens_of(run), folder_of(run), len(runs))
                    limit.took(None, len(runs) * (time.monotonic() - began))
        for training in left:
            training.trainer.save()
            yield Ending(training.run, "unfinished")


def _finished(training: CapturedTraining, tokens: Tokens, folder: Path, together: int) -> Ending:
    try:
        with training.on_stream():
            metrics = finish_run(training.run, training.trainer, tokens, folder, side_by_side=together)
    except Exception as error:
        return Ending(training.run, "failed", line=one_line(error))
    training.state.unlink(missing_ok=True)
    return Ending(training.run, "finished", metrics)
