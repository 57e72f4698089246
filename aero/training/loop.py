"""The training loop of one run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from aero.architecture import Architecture
from aero.checkpoint import read_tensors, write_tensors
from aero.entropy import Reduction, entropy_regularization
from aero.model import GPT, ModelConfig
from aero.training.log import Row
from aero.training.schedule import linear_warmup_decay, make_optimizer

STATE_FORMAT = "aero-training-state-1"
FLOAT16_MAX = 65504.0


class TrainSettings(Protocol):
    """Fields the loop reads; `aero.parameters.TrainParameters` has them."""

    steps: int
    batch_size: int
    accumulation: int
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    clip: float
    warmup: float
    precision: str
    compile: bool
    log_every: int
    evaluate_every: int
    checkpoint_every: int


@dataclass(frozen=True)
class Regularizer:
    """The entropy regulariser of a run: which reading, margin gamma and effective weight lambda."""

    reduction: Reduction
    gamma: float
    lambda_: float


class BatchSource(Protocol):
    """`aero.data.Batches`: the same batch for the same step, whatever came before."""

    def batch(self, step: int) -> Tensor: ...


@dataclass
class Outcome:
    """What a training left: the model, the log and how it ended.

    diverged_at_step: step whose loss or gradient was not finite, None if the run went through.
    first_nonfinite: {"step", "layer", "where"}; layer None and where "gradient" if every activation was finite.
    float16_overflow: first logged {"step", "layer", "value"} with an activation beyond 65504, where the papers' fp16
        training would have turned infinite; value None if it was not finite here either.
    """

    model: GPT
    rows: list[Row] = field(default_factory=list)
    steps_done: int = 0
    seconds: float = 0.0
    diverged_at_step: int | None = None
    first_nonfinite: dict[str, Any] | None = None
    float16_overflow: dict[str, Any] | None = None


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy in nats of predicting ids[:, 1:] from logits[:, :-1]; (B, T, V), (B, T)."""
    logits = logits[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), ids[:, 1:].flatten())


def configuration_hash(values: dict[str, Any]) -> str:
    """SHA-256 of a configuration; a training state is only resumed under the hash it was written with."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def evaluate(model: GPT, batches: Iterable[Tensor], device: torch.device | str = "cpu") -> float:
    """Mean next-token loss in nats over all predicted tokens of `batches`."""
    model.eval()
    total, tokens = 0.0, 0
    for ids in batches:
        ids = ids.to(device)
        predicted = ids[:, 1:].numel()
        total += next_token_loss(model(ids), ids).item() * predicted
        tokens += predicted
    model.train()
    if not tokens:
        raise ValueError("no evaluation batch: the validation split has too few tokens for one sequence")
    return total / tokens


@torch.no_grad()
def layer_statistics(model: GPT, ids: Tensor) -> tuple[list[float], list[float]]:
    """Per layer: mean attention entropy in nats (L), and the largest activation magnitude (L), on `ids` (B, T)."""
    model.eval()  # a spectral norm would go on iterating otherwise, and measuring would change the training
    states, entropies = model.hidden_states(ids, entropy=True)
    model.train()
    return (
        [row.float().mean().item() for row in entropies],
        [state.float().abs().max().item() for state in states[1:]],
    )


@torch.no_grad()
def find_nonfinite(model: GPT, ids: Tensor, step: int) -> dict[str, Any]:
    """The first layer whose output is not finite on `ids`; "gradient" if all activations and logits are."""
    states, _ = model.hidden_states(ids)
    for index, state in enumerate(states):
        if not torch.isfinite(state).all():
            where = "embedding" if index == 0 else "block output"
            return {"step": step, "layer": None if index == 0 else index - 1, "where": where}
    where = "gradient" if torch.isfinite(model(ids)).all() else "logits"
    return {"step": step, "layer": None, "where": where}


def train(
    architecture: Architecture,
    config: ModelConfig,
    settings: TrainSettings,
    regularizer: Regularizer,
    batches: BatchSource,
    evaluation: list[Tensor],
    seed: int,
    state_path: Path | None = None,
    state_hash: str = "",
    device: torch.device | str = "cpu",
    progress: bool = True,
    label: str = "",
    stop_at: float | None = None,
) -> Outcome:
    """Train one model; resumes from `state_path` if it holds a state with the same `state_hash`.

    A run killed at any point and started again ends with the same weights, bit for bit on CPU, as one that was not:
    batches depend on the step alone, and the state holds weights, moments and the log. A non-finite loss or gradient
    ends the run in order. `stop_at` (time.monotonic seconds) ends it at the next step boundary with a saved state;
    `Outcome.steps_done` then tells that it is unfinished.
    """
    torch.manual_seed(seed)
    model = GPT(architecture, config).to(device)
    optimizer = make_optimizer(model, settings.learning_rate, settings.betas, settings.epsilon, settings.weight_decay)
    outcome = Outcome(model)
    if state_path is not None and state_path.is_file():
        _restore(state_path, state_hash, outcome, optimizer)
    compiled = torch.compile(model) if settings.compile else model
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=settings.precision == "float16")
    began = time.monotonic() - outcome.seconds
    model.train()
    bar = tqdm(
        total=settings.steps,
        initial=outcome.steps_done,
        desc=label,
        unit="step",
        disable=None if progress else True,
        mininterval=1.0,
    )
    with bar:
        for step in range(outcome.steps_done, settings.steps):
            if stop_at is not None and time.monotonic() > stop_at:
                if state_path is not None:
                    _store(state_path, state_hash, outcome, optimizer)
                return outcome
            factor = linear_warmup_decay(step, settings.steps, settings.warmup)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * factor
            loss, penalty = 0.0, 0.0
            for part in range(settings.accumulation):
                ids = batches.batch(step * settings.accumulation + part).to(device)
                with _autocast(settings.precision, device):
                    if architecture.entropy_regularized:
                        logits, entropies = compiled(ids, entropy=True)
                        regularization = entropy_regularization(
                            entropies.float(), model.reg_threshold_weights, regularizer.gamma, regularizer.reduction
                        )
                    else:
                        logits, regularization = compiled(ids), None
                    cross_entropy = next_token_loss(logits, ids)
                objective = cross_entropy
                if regularization is not None:
                    objective = cross_entropy + regularizer.lambda_ * regularization
                    penalty += regularizer.lambda_ * regularization.item() / settings.accumulation
                scaler.scale(objective / settings.accumulation).backward()
                loss += cross_entropy.item() / settings.accumulation
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip).item()
            # Under fp16 the scaler skips a step with an infinite gradient and lowers its scale: no divergence yet.
            if not math.isfinite(loss) or (not math.isfinite(norm) and not scaler.is_enabled()):
                outcome.diverged_at_step = step
                outcome.first_nonfinite = find_nonfinite(model, ids, step)
                outcome.rows.append(_row(settings, config, step, loss, penalty, norm, factor, began))
                break
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            done = step + 1
            outcome.steps_done, outcome.seconds = done, time.monotonic() - began
            evaluates = done % settings.evaluate_every == 0 or done == settings.steps
            if done % settings.log_every == 0 or done == 1 or evaluates:
                row = _row(settings, config, done, loss, penalty, norm, factor, began)
                if evaluates or done == 1:
                    _measure(model, evaluation, device, row, outcome)
                outcome.rows.append(row)
                rate = row["tokens"] / max(row["seconds"], 1e-9)
                bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
            bar.update()
            if state_path is not None and done % settings.checkpoint_every == 0 and done < settings.steps:
                _store(state_path, state_hash, outcome, optimizer)
    outcome.seconds = time.monotonic() - began
    return outcome


def _measure(model: GPT, evaluation: list[Tensor], device: torch.device | str, row: Row, outcome: Outcome) -> None:
    """Add evaluation loss, layer entropies and activation sizes to `row`; note the first float16 overflow."""
    row["eval_loss"] = _finite(evaluate(model, evaluation, device))
    entropies, activations = layer_statistics(model, evaluation[0].to(device))
    for layer, (entropy, activation) in enumerate(zip(entropies, activations, strict=True)):
        row[f"entropy_layer_{layer}"] = _finite(entropy)
        row[f"activation_layer_{layer}"] = _finite(activation)
        if outcome.float16_overflow is None and not activation <= FLOAT16_MAX:
            outcome.float16_overflow = {"step": row["step"], "layer": layer, "value": _finite(activation)}


def _row(
    settings: TrainSettings,
    config: ModelConfig,
    step: int,
    loss: float,
    penalty: float,
    norm: float,
    factor: float,
    began: float,
) -> Row:
    per_step = settings.batch_size * settings.accumulation * config.context
    return {
        "step": step,
        "tokens": step * per_step,
        "train_loss": _finite(loss),
        "regularization": _finite(penalty),
        "learning_rate": settings.learning_rate * factor,
        "gradient_norm": _finite(norm),
        "seconds": round(time.monotonic() - began, 3),
    }


def _finite(value: float) -> float | None:
    """A gap for what is not a number, so that every reader of CSV and JSON agrees on it."""
    return value if math.isfinite(value) else None


def _autocast(precision: str, device: torch.device | str) -> contextlib.AbstractContextManager[Any]:
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=getattr(torch, precision))


def _store(path: Path, state_hash: str, outcome: Outcome, optimizer: torch.optim.Optimizer) -> None:
    """Save weights, AdamW's moments and the log under the configuration's hash."""
    tensors = {f"model.{name}": value.detach().cpu().contiguous() for name, value in outcome.model.state_dict().items()}
    for name, parameter in outcome.model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{moment}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    header = {
        "format": STATE_FORMAT,
        "hash": state_hash,
        "steps_done": str(outcome.steps_done),
        "seconds": repr(outcome.seconds),
        "rows": json.dumps(outcome.rows),
        "float16_overflow": json.dumps(outcome.float16_overflow),
    }
    write_tensors(path, tensors, header)


def _restore(path: Path, state_hash: str, outcome: Outcome, optimizer: torch.optim.Optimizer) -> None:
    """Load a state written by `_store`. One of another configuration, or a damaged one, is ignored: training starts
    anew, which costs time and never a wrong result."""
    try:
        tensors, header = read_tensors(path, STATE_FORMAT)
    except ValueError as error:
        tqdm.write(f"starting anew: {error}")
        return
    if header.get("hash") != state_hash:
        tqdm.write(f"starting anew: {path} belongs to another configuration")
        return
    outcome.model.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )
    for name, parameter in outcome.model.named_parameters():
        moments = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
        if moments["step"] is not None:
            optimizer.state[parameter] = {
                "step": moments["step"],
                "exp_avg": moments["exp_avg"].to(parameter.device),
                "exp_avg_sq": moments["exp_avg_sq"].to(parameter.device),
            }
    outcome.steps_done = int(header["steps_done"])
    outcome.seconds = float(header["seconds"])
    outcome.rows = json.loads(header["rows"])
    outcome.float16_overflow = json.loads(header["float16_overflow"])
