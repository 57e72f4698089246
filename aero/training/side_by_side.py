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
from aero.training.run import finish_run, finished_metrics, trainer_of
from aero.training.schedule import learning_rate_factor
from aero.training.time_limited import Ending, Limit

WARM_UP = 3
"""Steps before the capture, in which PyTorch chooses kernels; they are undone."""


class CapturedTraining:
    """One training, each step of which is one launch of a CUDA graph. On a CPU, for tests, it is an ordinary call.

    ValueError for a run that accumulates gradients or trains in float16.
    """

    def __init__(self, run: ResolvedRun, tokens: Tokens, state: Path, device: str) -> None:
        settings = run.train
        if settings.accumulation != 1 or settings.precision == "float16":
            raise ValueError(f"{run.name} accumulates gradients or trains in float16; train it alone")
        self.run, self.state, self.state_hash = run, state, run.hash(tokens.manifest)
        self.on_gpu = device.startswith("cuda")
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.trainer = trainer = trainer_of(run, tokens, device)
        trainer.compiled = False
        if self.on_gpu:
            torch.cuda.synchronize()  # the model was moved there on another stream
        with self.on_stream():
            trainer.resume(state, self.state_hash)
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
        objective = loss if penalty is None else loss + trainer.regularizer.lambda_ * penalty
        objective.backward()
        norm = _clip(trainer.model, self.run.train.clip)
        penalty = torch.zeros_like(loss) if penalty is None else trainer.regularizer.lambda_ * penalty
        values = torch.stack([loss.detach().double(), penalty.detach().double(), norm])
        self.results.index_copy_(0, step, values[None])
        trainer.update()
        self.step += 1

    def _capture(self) -> Callable[[], None]:
        """`_step` as a CUDA graph, with weights and moments as they are now."""
        resumed = bool(self.trainer.optimizer.state)
        with eager(), self.on_stream():
            before = [value.clone() for value in self._tensors()]
            for _ in range(WARM_UP):
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
            trainer.factor = learning_rate_factor(self.run.train, done - 1)
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
        if not limit.may_start():
            return
        with contextlib.ExitStack() as locks:
            group = _Group(todo[first : first + together], tokens_of, folder_of, limit, device, locks)
            yield from group.endings()
            if group.left:
                return


class _Group:
    """Runs that train at the same time."""

    def __init__(
        self,
        runs: Sequence[ResolvedRun],
        tokens_of: Callable[[ResolvedRun], Tokens],
        folder_of: Callable[[ResolvedRun], Path],
        limit: Limit,
        device: str,
        locks: contextlib.ExitStack,
    ) -> None:
        began, self.count = time.monotonic(), len(runs)
        self.tokens_of, self.folder_of, self.limit = tokens_of, folder_of, limit
        self.left: list[CapturedTraining] = []
        self.failed: list[Ending] = []
        for run in runs:
            state = folder_of(run) / "resume.safetensors"
            try:  # a failing run must not cost the time of the others
                locks.enter_context(records.lock(state))
                self.left.append(CapturedTraining(run, tokens_of(run), state, device))
            except Exception as error:
                self.failed.append(Ending(run, "failed", line=one_line(error)))
        limit.took(time.monotonic() - began, None)

    def endings(self) -> Iterator[Ending]:
        """How the trainings end; those that the limit stops stay in `left`, saved."""
        yield from self.failed
        while self.left and not self.limit.stop():
            for training in self.left:
                training.advance()
            for training in list(self.left):
                if not training.log():
                    self.left.remove(training)
                    yield Ending(training.run, "failed", line="a loss or gradient is not finite; train it alone")
                elif training.trainer.outcome.steps_done == training.run.train.steps:
                    self.left.remove(training)
                    began = time.monotonic()
                    yield self._finished(training)
                    self.limit.took(None, self.count * (time.monotonic() - began))
        for training in self.left:
            training.trainer.save(training.state, training.state_hash)
            yield Ending(training.run, "unfinished")

    def _finished(self, training: CapturedTraining) -> Ending:
        run, place = training.run, (self.tokens_of(training.run), self.folder_of(training.run))
        try:
            with training.on_stream():
                metrics = finish_run(run, training.trainer, *place, side_by_side=self.count)
        except Exception as error:
            return Ending(run, "failed", line=one_line(error))
        training.state.unlink(missing_ok=True)
        return Ending(run, "finished", metrics)
