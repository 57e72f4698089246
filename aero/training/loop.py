"""The training loop of one run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from aero.architecture import Architecture
from aero.attention_kernels import causal_mask, frobenius_norm
from aero.entropy import Reduction, entropy_regularization, headwise
from aero.model import GPT, ModelConfig
from aero.records import Row
from aero.training import state
from aero.training.compiled import as_it_stands, compile_step, tensor_cores
from aero.training.log import Observer
from aero.training.processes import Processes
from aero.training.products import faster_products
from aero.training.schedule import linear_warmup_decay, make_optimizer, ramped_cosine

ALONE = Processes()
FLOAT16_MAX = 65504.0


class TrainSettings(Protocol):
    """Fields the loop reads; `aero.config.TrainParameters` has them."""

    steps: int
    batch_size: int
    accumulation: int
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    clip: float | None
    warmup: float
    warmup_steps: int | None
    optimizer: Literal["adamw", "adam"]
    schedule: Literal["linear", "cosine"]
    final_learning_rate: float | None
    precision: str
    compile: bool
    log_every: int
    log_attention: bool
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
    first_nonfinite: {"step", "layer", "where"}. If every activation was finite, `where` says which gradient was not and
        the layer is the one nearest to the loss, as the backward pass meets it first; `find_nonfinite` has the words.
    cpu_seconds: processor time, which other work on the machine does not lengthen as it does `seconds`.
    float16_overflow: first logged {"step", "layer", "value"} with an activation beyond 65504, where the papers' fp16
        training would have turned infinite; value None if it was not finite here either.
    """

    model: GPT
    rows: list[Row] = field(default_factory=list)
    steps_done: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    diverged_at_step: int | None = None
    first_nonfinite: dict[str, Any] | None = None
    float16_overflow: dict[str, Any] | None = None


IGNORED = -100
"""Target of a position that nothing follows."""


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy in nats of predicting ids[:, 1:] from logits[:, :-1]; (B, T, V), (B, T)."""
    # The last position is given a target that is ignored rather than cut off: logits[:, :-1] would copy nearly all
    # logits, and their gradient once more. The mean is nll_loss's, whose order of summation gives the bits that the
    # mean over the cut logits has.
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORED).flatten()
    logits = logits.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    scored = losses.view(ids.shape)[:, :-1].reshape(-1, 1)
    return F.nll_loss(-scored, targets.new_zeros(len(scored)))


def configuration_hash(values: dict[str, Any]) -> str:
    """SHA-256 of a configuration; a training state is only resumed under the hash it was written with."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def evaluate(
    model: GPT, batches: Iterable[Tensor], device: torch.device | str = "cpu", processes: Processes = ALONE
) -> float:
    """Mean next-token loss in nats over all predicted tokens of `batches`, which the processes share.

    In float32, on a GPU by its matrix units.
    """
    model.eval()
    total, tokens = 0.0, 0
    with as_it_stands(), tensor_cores(device), faster_products(model):
        for ids in itertools.islice(batches, processes.rank, None, processes.count):
            ids = ids.to(device)
            predicted = ids[:, 1:].numel()
            total += next_token_loss(model(ids), ids).item() * predicted
            tokens += predicted
    model.train()
    total, tokens = processes.total(total, tokens)
    if not tokens:
        raise ValueError("no evaluation batch: the validation split has too few tokens for one sequence")
    return total / tokens


@dataclass(frozen=True)
class LayerStatistics:
    """Of every layer: mean attention entropy in nats, the largest magnitude of the block's output, and how many of its
    values float16 cannot hold (beyond 65504, infinite or not a number)."""

    entropy: list[float]
    activation: list[float]
    overflow: list[int]


@torch.no_grad()
def layer_statistics(model: GPT, ids: Tensor) -> LayerStatistics:
    """What `model` does on `ids` (B, T), layer by layer."""
    model.eval()  # a spectral norm would go on iterating otherwise, and measuring would change the training
    with as_it_stands():
        states, entropies = model.hidden_states(ids, entropy=True)
    model.train()
    blocks = [state.float() for state in states[1:]]
    return LayerStatistics(
        [row.float().mean().item() for row in entropies],
        [block.abs().max().item() for block in blocks],
        [int((~(block.abs() <= FLOAT16_MAX)).sum()) for block in blocks],
    )


@torch.no_grad()
def attention_statistics(model: GPT, ids: Tensor) -> tuple[list[float], list[float]]:
    """Of every layer on `ids` (B, T): the mean ||P||_F of its attention matrices, and the mean variance of the logits
    that a query has for the keys it may see (`variance_sensitivity`, Definition 5.2)."""
    model.eval()
    with as_it_stands():
        states, _ = model.hidden_states(ids)
    allowed = causal_mask(ids.shape[1], ids.device).float()  # (T, T)
    keys = allowed.sum(-1)  # (T,)
    norms, variances = [], []
    for block, x in zip(model.blocks, states, strict=False):
        probabilities, logits = block.attention.matrices(block.ln_1(x))
        norms.append(frobenius_norm(probabilities.float()).mean().item())
        logits = logits.float()
        mean = (logits * allowed).sum(-1) / keys  # (B, H, T)
        variance = ((logits - mean[..., None]).square() * allowed).sum(-1) / keys
        variances.append(variance.mean().item())
    model.train()
    return norms, variances


@torch.no_grad()
def find_nonfinite(
    model: GPT,
    ids: Tensor,
    step: int,
    processes: Processes = ALONE,
    backward: Callable[[list[Tensor], list[Tensor]], None] | None = None,
) -> dict[str, Any]:
    """The first layer whose output is not finite on `ids`, of any process: {"step", "layer", "where"}.

    If all activations and logits are finite, "gradient"; then, given `backward`, where the gradient breaks first, from
    the loss down: "gradient of block output" or "gradient of weights", with the layer. "gradient" without a layer then
    means that each is finite and only their norm, a sum of squares, is not.
    backward: is given the states (L + 1 of (B, T, d)) and row entropies of a pass, and calls backward() on its loss.
    """
    model.eval()
    with as_it_stands():
        states, _ = model.hidden_states(ids)
        values = [*states, model(ids)]
    model.train()
    # 0: embedding, 1 … L: blocks, L + 1: logits, L + 2: none of them
    place = next((index for index, value in enumerate(values) if not torch.isfinite(value).all()), len(values))
    place = processes.lowest(place)
    if place == 0:
        return {"step": step, "layer": None, "where": "embedding"}
    if place < len(states):
        return {"step": step, "layer": place - 1, "where": "block output"}
    if place == len(states):
        return {"step": step, "layer": None, "where": "logits"}
    found = {"step": step, "layer": None, "where": "gradient"}
    return found if backward is None else found | _nonfinite_gradient(model, ids, backward, processes)


@torch.enable_grad()
def _nonfinite_gradient(
    model: GPT, ids: Tensor, backward: Callable[[list[Tensor], list[Tensor]], None], processes: Processes
) -> dict[str, Any]:
    """Of one more pass over `ids`, its gradients: the layer nearest to the loss with one that is not finite."""
    model.zero_grad(set_to_none=True)
    with as_it_stands():
        states, entropies = model.hidden_states(ids, entropy=model.architecture.entropy_regularized)
        for state_ in states:
            state_.retain_grad()
        backward(states, entropies)

    def broken(tensors: Iterable[Tensor]) -> bool:
        return any(tensor.grad is not None and not torch.isfinite(tensor.grad).all() for tensor in tensors)

    last = len(model.blocks) - 1
    # 2 d for what the block d below the last gives on, 2 d + 1 for its weights; beyond them neither
    places = [
        place
        for depth, block in enumerate(reversed(model.blocks))
        for place, tensors in ((2 * depth, states[last + 1 - depth :][:1]), (2 * depth + 1, block.parameters()))
        if broken(tensors)
    ]
    place = processes.lowest(min(places, default=2 * last + 2))
    model.zero_grad(set_to_none=True)
    if place > 2 * last + 1:
        return {}
    where = "gradient of weights" if place % 2 else "gradient of block output"
    return {"layer": last - place // 2, "where": where}


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
    stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Train one model; resumes from `state_path` if it holds a state with the same `state_hash`.

    A run killed at any point and started again ends with the same weights, bit for bit on CPU, as one that was not:
    batches depend on the step alone, and the state holds weights, moments and the log. A non-finite loss or gradient
    ends the run in order. `stop` is asked before every step; True ends the training there with a saved state, and
    `Outcome.steps_done` tells that it is unfinished.

    With several `processes`, each takes its share of every batch and all end with the same weights; the first alone
    writes the state and tells `observers`. `settings.compile` has effect on CUDA.
    """
    if settings.log_attention and architecture.block == "he_hofmann":
        raise ValueError(
            f"{architecture}: log_attention knows no shaped attention; leave it out of the run's overrides"
        )
    torch.manual_seed(seed)
    model = GPT(architecture, config).to(device)
    on_gpu = torch.device(device).type == "cuda"
    optimizer = make_optimizer(
        model,
        settings.learning_rate,
        settings.betas,
        settings.epsilon,
        settings.weight_decay,
        settings.optimizer,
        fused=on_gpu,
    )
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=settings.precision == "float16")
    outcome = Outcome(model)
    if state_path is not None and state_path.is_file():
        state.restore(state_path, state_hash, outcome, optimizer, scaler, settings)
    if not processes.agree(outcome.steps_done):
        raise ValueError(f"the processes read different training states; {state_path} must be in a folder they share")
    token_loss = compile_step(model, next_token_loss) if settings.compile and on_gpu else next_token_loss
    together = processes.wrap(model)
    began, cpu_began = time.monotonic() - outcome.seconds, time.process_time() - outcome.cpu_seconds
    observers = observers if processes.first else ()
    model.train()
    bar = tqdm(
        total=settings.steps,
        initial=outcome.steps_done,
        desc=label,
        unit="step",
        disable=None if progress and processes.first else True,
        mininterval=1.0,
    )

    def save_state() -> None:
        if state_path is not None and processes.first:
            state.store(state_path, state_hash, outcome, optimizer, scaler)

    def keep(row: Row) -> None:
        outcome.rows.append(row)
        for observer in observers:
            observer.add(row)

    with bar, faster_products(model), contextlib.ExitStack() as followed:
        for observer in observers:
            followed.callback(observer.end)
            observer.begin(outcome.rows)
        for step in range(outcome.steps_done, settings.steps):
            if stop is not None and processes.total(stop())[0]:
                save_state()
                return outcome
            factor = learning_rate_factor(settings, step)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * factor
            parts: list[Tensor] = []  # ids of the micro-batches
            measured: list[Tensor] = []  # loss and penalty of each, then the norm of the gradient
            for part in range(settings.accumulation):
                ids = processes.share(batches.batch(step * settings.accumulation + part)).to(device)
                waits = processes.several and part < settings.accumulation - 1
                with together.no_sync() if waits else contextlib.nullcontext():
                    with _autocast(settings.precision, device):
                        if architecture.entropy_regularized:
                            logits, entropies = together(ids, entropy=True)
                            regularization = _regularization(entropies.float(), model, regularizer, processes)
                        else:
                            logits, regularization = together(ids), None
                        cross_entropy = token_loss(logits, ids)
                    objective = cross_entropy
                    if regularization is not None:
                        objective = cross_entropy + regularizer.lambda_ * regularization
                    scaler.scale(objective / settings.accumulation).backward()
                parts.append(ids)
                measured += [cross_entropy.detach().double(), torch.zeros_like(cross_entropy).double()]
                if regularization is not None:
                    measured[-1] = regularization.detach().double()
            scaler.unscale_(optimizer)
            measured.append(_clip(model, settings.clip).double())
            # One transfer a step: a GPU stands still while the host waits for a number.
            *values, norm = torch.stack(measured).tolist()
            if not math.isfinite(norm):
                norm = _clip_in_double(model, settings.clip)
            losses, penalties = values[::2], values[1::2]
            loss, penalty = processes.mean(
                sum(value / settings.accumulation for value in losses),
                sum(regularizer.lambda_ * value / settings.accumulation for value in penalties),
            )
            # Under fp16 the scaler skips a step with an infinite gradient and halves its scale: no divergence until the
            # gradient is infinite unscaled.
            scaled = scaler.is_enabled() and scaler.get_scale() > 1.0
            if not math.isfinite(loss) or (not math.isfinite(norm) and not scaled):
                outcome.diverged_at_step = step
                row = _row(settings, config, step + 1, loss, penalty, norm, factor, began)

                def backward(states: list[Tensor], entropies: list[Tensor], ids: Tensor) -> None:
                    value = next_token_loss(model.logits(states[-1]), ids)
                    if entropies:
                        rows = torch.stack(entropies).float()
                        value = value + regularizer.lambda_ * _regularization(rows, model, regularizer, processes)
                    scaler.scale(value / settings.accumulation).backward()

                with _autocast(settings.precision, device):
                    # Every process takes as many turns, those with a part whose loss is not finite begin with it.
                    for turn in sorted(range(len(parts)), key=lambda index: math.isfinite(losses[index])):
                        broken = parts[turn]
                        found = find_nonfinite(model, broken, step, processes, functools.partial(backward, ids=broken))
                        if found["where"] != "gradient":
                            break
                    outcome.first_nonfinite = found
                    _measure_layers(model, broken, row)
                overflows = [f"overflow_layer_{layer}" for layer in range(config.layers)]
                counts = processes.total(*(row[name] for name in overflows))
                row |= {name: int(count) for name, count in zip(overflows, counts, strict=True)}
                keep(row)
                break
            scaler.step(optimizer)
            scaler.update()
            model.clip_gains()
            optimizer.zero_grad(set_to_none=True)
            done = step + 1
            outcome.steps_done, outcome.seconds = done, time.monotonic() - began
            outcome.cpu_seconds = time.process_time() - cpu_began
            evaluates = done % settings.evaluate_every == 0 or done == settings.steps
            if done % settings.log_every == 0 or done == 1 or evaluates:
                row = _row(settings, config, done, loss, penalty, norm, factor, began) | _slopes(model)
                if evaluates or done == 1:
                    row["eval_loss"] = _finite(evaluate(model, evaluation, device, processes))
                    _measure_layers(model, evaluation[0].to(device), row)
                    if settings.log_attention:
                        _measure_attention(model, evaluation[0].to(device), row)
                    outcome.float16_overflow = outcome.float16_overflow or _first_overflow(row, config.layers)
                keep(row)
                rate = row["tokens"] / max(row["seconds"], 1e-9)
                bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
            bar.update()
            if done % settings.checkpoint_every == 0 and done < settings.steps:
                save_state()
    outcome.seconds, outcome.cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    return outcome


def learning_rate_factor(settings: TrainSettings, step: int) -> float:
    """Factor on the learning rate at `step` (0-based), by the settings' schedule."""
    warmup_steps = settings.warmup_steps or max(1, round(settings.warmup * settings.steps))
    if settings.schedule == "cosine":
        return ramped_cosine(step, settings.steps, warmup_steps, settings.final_learning_rate / settings.learning_rate)
    return linear_warmup_decay(step, settings.steps, warmup_steps)


def _regularization(entropies: Tensor, model: GPT, regularizer: Regularizer, processes: Processes) -> Tensor:
    """The regulariser of entropies (L, B, H, T); its average over processes, and that of its gradient, is the one of
    the whole batch.

    `position_sum` adds over sequences, so each process's sum counts `processes.count` times. `head_mean` is not linear
    in the mean entropy: every process takes the penalty at the mean over all, its own entropies carrying the gradient.
    """
    if processes.several and regularizer.reduction == "head_mean":
        own = headwise(entropies).detach()  # (L, H)
        entropies = entropies + (processes.mean_of(own) - own)[:, None, :, None]
    penalty = entropy_regularization(entropies, model.reg_threshold_weights, regularizer.gamma, regularizer.reduction)
    return penalty * processes.count if processes.several and regularizer.reduction == "position_sum" else penalty


def _measure_layers(model: GPT, ids: Tensor, row: Row) -> None:
    """Add entropies, activation sizes and float16 overflows of every layer on `ids` to `row`."""
    statistics = layer_statistics(model, ids)
    for layer, entropy in enumerate(statistics.entropy):
        row[f"entropy_layer_{layer}"] = _finite(entropy)
        row[f"activation_layer_{layer}"] = _finite(statistics.activation[layer])
        row[f"overflow_layer_{layer}"] = statistics.overflow[layer]


def _measure_attention(model: GPT, ids: Tensor, row: Row) -> None:
    """Add norms of the attention matrices and variances of their logits, layer by layer, to `row`."""
    for name, values in zip(("norm", "variance"), attention_statistics(model, ids), strict=True):
        row |= {f"{name}_layer_{layer}": _finite(value) for layer, value in enumerate(values)}


def _slopes(model: GPT) -> Row:
    """The learned negative slopes of the leaky ReLU: one a layer, one for all of them, or none."""
    values = [] if model.leaky_slopes is None else model.leaky_slopes.tolist()
    return {f"slope_{index}": _finite(value) for index, value in enumerate(values)}


def _first_overflow(row: Row, layers: int) -> dict[str, Any] | None:
    """The first layer of `row` with a value that float16 cannot hold."""
    for layer in range(layers):
        if row[f"overflow_layer_{layer}"]:
            return {"step": row["step"], "layer": layer, "value": row[f"activation_layer_{layer}"]}
    return None


def _clip(model: GPT, most: float | None) -> Tensor:
    """Clip the gradient to the norm `most`, if there is one, and return the norm it had. A norm that is not finite
    leaves the gradient as it is."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # A norm of 0 is clipped to nothing; an infinite one would make a finite gradient 0.
    finite = torch.where(norm.isfinite(), norm, torch.zeros_like(norm))
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), most or math.inf, finite)
    return norm


def _clip_in_double(model: GPT, most: float | None) -> float:
    """`_clip` for a gradient whose norm is beyond float32, where squares overflow from entries of 2e19 on, although the
    entries are finite. If one is not, neither is what this returns."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if math.isfinite(norm) and norm > (most or math.inf):
        for gradient in gradients:
            gradient.mul_(most / norm)
    return norm


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
