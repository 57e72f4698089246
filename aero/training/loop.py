"""The training loop of one run.

Letters of shapes: B sequences, T tokens, L layers, H heads, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from aero import records
from aero.architecture import Architecture
from aero.attention_kernels import causal_mask
from aero.data.batches import Batches
from aero.entropy_statistics import Reduction, entropy_regularization
from aero.errors import interruption_noted
from aero.model import GPT, ModelConfig
from aero.records import Row, finite
from aero.schema import TrainParameters
from aero.training import diagnostics, state
from aero.training.kernels import compile_step, eager, faster_matmul
from aero.training.schedule import learning_rate_factor, make_optimizer
from aero.training.state import Outcome


@dataclass(frozen=True)
class Regularizer:
    """The entropy regulariser of a run: which reading, margin gamma and effective weight lambda."""

    reduction: Reduction
    gamma: float
    lambda_: float


@dataclass(frozen=True)
class Step:
    """One step before its update: mean loss and penalty of the batch, norm of the gradient before clipping; of every
    micro-batch its ids and its loss."""

    loss: float
    penalty: float
    norm: float
    parts: list[Tensor]
    losses: list[float]


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy in nats of predicting ids[:, 1:] from logits[:, :-1]; (B, T, V), (B, T)."""
    # Ignoring the last position avoids the copy of nearly all logits that logits[:, :-1] would make. nll_loss sums in
    # the order that gives the same bits as the mean over the cut logits.
    targets = F.pad(ids[:, 1:], (0, 1), value=-100).flatten()  # the target that cross_entropy ignores
    logits = logits.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, targets, reduction="none")
    scored = losses.view(ids.shape)[:, :-1].reshape(-1, 1)
    return F.nll_loss(-scored, targets.new_zeros(len(scored)))


@torch.no_grad()
def evaluate(model: GPT, batches: Iterable[Tensor], device: torch.device | str = "cpu") -> float:
    """Mean next-token loss in nats over all predicted tokens of `batches`.

    In float32.
    """
    model.eval()
    total, tokens = 0.0, 0
    with eager(), faster_matmul(model):
        for ids in batches:
            ids = ids.to(device)
            predicted = ids[:, 1:].numel()
            total += next_token_loss(model(ids), ids).item() * predicted
            tokens += predicted
    model.train()
    if not tokens:
        raise ValueError("no evaluation batch: the validation split has too few tokens for one sequence")
    return total / tokens


def train(
    training: Trainer,
    state_path: Path | None = None,
    state_hash: str = "",
    label: str = "",
    log: Callable[[list[Row]], None] = lambda rows: None,
) -> Outcome:
    """Train one model; resumes from `state_path` if it holds a state with the same `state_hash`.

    A run that is killed and started again ends with the same weights as one that was not, bit for bit on a CPU. A
    non-finite loss or gradient ends the run in order. SIGINT or SIGTERM raises KeyboardInterrupt after the step, with a
    saved state. `log` is called with all rows after each. `settings.compile` has an effect on CUDA only.
    """
    training.resume(state_path, state_hash)
    settings, outcome = training.settings, training.outcome
    done = outcome.steps_done
    bar = tqdm(total=settings.steps, initial=done, desc=label, unit="step", disable=None, mininterval=1.0)
    log(outcome.rows)
    with bar, faster_matmul(training.model), interruption_noted() as interrupted:
        for step in range(outcome.steps_done, settings.steps):
            result = training.train_step(step)
            if training.diverged(result):
                row = training.divergence(step, result)
            else:
                training.update(result.parts)
                row = training.log_row(step, result)
            if row is not None:
                outcome.rows.append(row)
                log(outcome.rows)
                rate = row["tokens"] / max(row["seconds"], 1e-9)
                bar.set_postfix_str(f"loss {result.loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
            if outcome.diverged_at_step is not None:
                break
            bar.update()
            if interrupted():
                training.save()
                raise KeyboardInterrupt
            if outcome.steps_done % settings.checkpoint_every == 0 and outcome.steps_done < settings.steps:
                training.save()
    training.time()
    return outcome


class Trainer:
    """Model, optimiser and data of one training, and when it started."""

    def __init__(
        self,
        architecture: Architecture,
        config: ModelConfig,
        settings: TrainParameters,
        regularizer: Regularizer,
        batches: Batches,
        evaluation: list[Tensor],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if settings.log_attention and architecture.block == "he_hofmann":
            raise ValueError(f"{architecture}: log_attention does not support shaped attention; remove it")
        plain = (architecture.block, architecture.core, architecture.weight_norm) == ("pre_ln", "softmax", None)
        if settings.qk_clip and (not plain or config.kv_heads):
            raise ValueError(f"{architecture}: qk_clip needs plain softmax attention; remove it")
        torch.manual_seed(seed)
        self.started, self.clock = records.now(), time.monotonic()
        self.architecture, self.config, self.settings, self.regularizer = architecture, config, settings, regularizer
        self.batches, self.evaluation, self.device = batches, evaluation, device
        self.model = GPT(architecture, config).to(device)
        on_gpu = torch.device(device).type == "cuda"
        self.optimizer = make_optimizer(self.model, settings, fused=on_gpu)
        self.scaler = torch.amp.GradScaler(torch.device(device).type, enabled=settings.precision == "float16")
        self.outcome = Outcome(self.model)
        self.compiled = settings.compile and on_gpu

    def resume(self, path: Path | None, state_hash: str) -> None:
        """Load the state at `path` if there is one, and start the clocks. `save` writes it there."""
        outcome, self.state_path, self.state_hash = self.outcome, path, state_hash
        if path is not None and path.is_file():
            state.restore(path, state_hash, outcome, self.optimizer, self.scaler)
        self.token_loss = compile_step(self.model, next_token_loss) if self.compiled else next_token_loss
        self.began = time.monotonic() - outcome.seconds
        self.cpu_began = time.process_time() - outcome.cpu_seconds
        self.model.train()

    def save(self) -> None:
        """Save the state that `resume` loads."""
        if self.state_path is not None:
            state.store(self.state_path, self.state_hash, self.outcome, self.optimizer, self.scaler)

    def time(self) -> None:
        self.outcome.seconds = time.monotonic() - self.began
        self.outcome.cpu_seconds = time.process_time() - self.cpu_began

    def train_step(self, step: int) -> Step:
        """Gradient of the batch of `step`, accumulated over micro-batches and clipped; no update yet."""
        settings, accumulation = self.settings, self.settings.accumulation
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_factor(settings, step)
        parts: list[Tensor] = []
        measured: list[Tensor] = []  # loss and penalty of each micro-batch, then the norm of the gradient
        for part in range(accumulation):
            ids = self.batches.batch(step * accumulation + part).to(self.device)
            cross_entropy, penalty = self.losses(ids)
            objective = cross_entropy + self.regularizer.lambda_ * penalty
            self.scaler.scale(objective / accumulation).backward()
            parts.append(ids)
            measured += [cross_entropy.detach().double(), penalty.detach().double()]
        self.scaler.unscale_(self.optimizer)
        measured.append(clip(self.model, settings.clip).double())
        *values, norm = torch.stack(measured).tolist()  # one transfer a step: a GPU waits for each
        if not math.isfinite(norm):
            norm = _clip_in_double(self.model, settings.clip)
        losses, penalties = values[::2], values[1::2]
        loss = sum(value / accumulation for value in losses)
        penalty = sum(self.regularizer.lambda_ * value / accumulation for value in penalties)
        return Step(loss, penalty, norm, parts, losses)

    def losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of a micro-batch, and its penalty on entropies, 0 if the architecture has none."""
        with _autocast(self.settings.precision, self.device):
            if not self.architecture.entropy_regularized:
                cross_entropy = self.token_loss(self.model(ids), ids)
                return cross_entropy, torch.zeros_like(cross_entropy)
            logits, entropies = self.model(ids, entropy=True)
            thresholds, gamma = self.model.reg_threshold_weights, self.regularizer.gamma
            penalty = entropy_regularization(entropies.float(), thresholds, gamma, self.regularizer.reduction)
            return self.token_loss(logits, ids), penalty

    def update(self, parts: Sequence[Tensor]) -> None:
        """Apply the gradient of these micro-batches, of which `qk_clip` needs the ids."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.model.clip_gains()
        if self.settings.qk_clip:
            for ids in parts:
                clip_logits(self.model, ids, self.settings.qk_clip)
        self.optimizer.zero_grad(set_to_none=True)

    def log_row(self, step: int, result: Step) -> Row | None:
        """Row of the log after the update of `step`, with an evaluation where one is due; None if nothing is due."""
        settings, done = self.settings, step + 1
        self.outcome.steps_done = done
        self.time()
        evaluates = done % settings.evaluate_every == 0 or done == settings.steps
        if not (done % settings.log_every == 0 or done == 1 or evaluates):
            return None
        slopes = [] if self.model.leaky_slopes is None else self.model.leaky_slopes.tolist()
        row = self._row(done, result) | {f"slope_{index}": finite(value) for index, value in enumerate(slopes)}
        if evaluates or done == 1:
            row["eval_loss"] = finite(evaluate(self.model, self.evaluation, self.device))
            ids = self.evaluation[0].to(self.device)
            row |= diagnostics.layer_columns(self.model, ids)
            if settings.log_attention:
                row |= diagnostics.attention_columns(self.model, ids)
            for layer in range(self.config.layers):
                if row[f"overflow_layer_{layer}"] and self.outcome.float16_overflow is None:
                    found = {"step": done, "layer": layer, "value": row[f"activation_layer_{layer}"]}
                    self.outcome.float16_overflow = found
        return row

    def diverged(self, result: Step) -> bool:
        # In float16 the scaler skips a step with an infinite gradient and halves its scale; this is a divergence only
        # if the gradient is infinite without a scale.
        scaled = self.scaler.is_enabled() and self.scaler.get_scale() > 1.0
        return not math.isfinite(result.loss) or (not math.isfinite(result.norm) and not scaled)

    def divergence(self, step: int, result: Step) -> Row:
        """Row of the log at a divergence; fills in `Outcome.diverged_at_step` and `first_nonfinite`."""
        self.outcome.diverged_at_step = step
        row = self._row(step + 1, result)
        with _autocast(self.settings.precision, self.device):
            # Micro-batches with a non-finite loss come first.
            for turn in sorted(range(len(result.parts)), key=lambda index: math.isfinite(result.losses[index])):
                ids = result.parts[turn]
                found = diagnostics.find_nonfinite(self.model, ids, step)
                if not found["where"].startswith("gradient"):
                    break
            self.outcome.first_nonfinite = found
            return row | diagnostics.layer_columns(self.model, ids)

    def _row(self, done: int, result: Step) -> Row:
        settings = self.settings
        return {
            "step": done,
            "tokens": done * settings.batch_size * settings.accumulation * self.config.context,
            "train_loss": finite(result.loss),
            "regularization": finite(result.penalty),
            "learning_rate": settings.learning_rate * learning_rate_factor(settings, done - 1),
            "gradient_norm": finite(result.norm),
            "seconds": round(time.monotonic() - self.began, 3),
        }


def clip(model: GPT, most: float | None) -> Tensor:
    """Clip the gradient to the norm `most`, if given; returns its norm before. A gradient of non-finite norm stays."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # A norm of 0 clips nothing; an infinite one would make a finite gradient 0.
    clippable = torch.where(norm.isfinite(), norm, torch.zeros_like(norm))
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), most or math.inf, clippable)
    return norm


@torch.no_grad()
def clip_logits(model: GPT, ids: Tensor, most: float) -> None:
    """QK-clip (arXiv 2507.20534): where the largest logit of a head on `ids` (B, T) exceeds `most`, scale its queries
    and its keys down, each by the root of the ratio."""
    with eager():
        states, _ = model.hidden_states(ids)
    visible = causal_mask(ids.shape[1], ids.device)  # (T, T)
    for block, x in zip(model.blocks, states, strict=False):
        logits = block.attention.matrices(block.ln_1(x))[1]
        largest = (logits.float().abs() * visible).amax((0, 2, 3))  # (H,)
        factor = (most / largest).clamp(max=1.0).sqrt()
        for layer in (block.attention.query, block.attention.key):
            for parameter in layer.parameters():
                parameter.view(len(factor), -1).mul_(factor[:, None])


def _clip_in_double(model: GPT, most: float | None) -> float:
    """`clip` for finite entries whose norm overflows float32 (entries above 2e19); not finite if an entry is not."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if math.isfinite(norm) and norm > (most or math.inf):
        for gradient in gradients:
            gradient.mul_(most / norm)
    return norm


def _autocast(precision: str, device: torch.device | str) -> contextlib.AbstractContextManager[Any]:
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=getattr(torch, precision))
