"""A training step with the entropy regulariser: this project's against the way of the papers' authors.

    python -m benchmarks.regularized_step [--repeats N] [--threads N] [--widths 128 768]

Theirs: Hugging Face's GPT-2 with `output_attentions=True`, which takes its eager attention, and Algorithm 1 as it is
listed, a loop over layers and heads with log(A + 1e-9). Ours: `EReg(SM+LN+G)` with the reading `head_mean`. Beside
them both without the regulariser. Same weights, batch, threads and optimiser; losses and penalties are compared. Memory
is what a fresh process needs for one forward and backward pass beyond model and libraries.
Writes results/bench/regularized_step.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from aero.entropy import entropy_regularization
from aero.training.kernels import faster_matmul
from aero.training.loop import next_token_loss
from aero.training.schedule import make_optimizer
from benchmarks import timing
from benchmarks.timing import Measured, in_turn, of, ratio, side, spread
from benchmarks.training_step import (
    BETAS,
    EPSILON,
    LAYERS,
    LEARNING_RATE,
    THEIRS,
    WEIGHT_DECAY,
    Shape,
    batch_of,
    our_model,
    stepper,
    their_model,
)

PLAIN, OWN, AUTHORS = "plain", "aero", "authors"
TRAINING = (OWN, AUTHORS, PLAIN, THEIRS)
ARCHITECTURE = {PLAIN: "SM+LN+G", OWN: "EReg(SM+LN+G)"}
GAMMA, LAMBDA, THRESHOLD = 0.2, 1e-2, 0.5
SHAPES = tuple(Shape(width, context, 1024) for width in (128, 768) for context in (128, 512))


def algorithm_1(attentions: Sequence[Tensor], thresholds: Tensor, gamma: float) -> Tensor:
    """The penalty of Algorithm 1, line by line: attentions, one (B, H, T, T) a layer; thresholds (L, H)."""
    context = attentions[0].shape[-1]
    maximum = math.log(context)
    margin = gamma * maximum
    loss = torch.zeros(())
    for layer, attention in enumerate(attentions):
        of_layer = torch.zeros(())
        entropies = -(attention * torch.log(attention + 1e-9)).sum(-1).mean(-1)  # (B, H)
        heads = entropies.shape[1]
        for head in range(heads):
            entropy = entropies[:, head].mean()
            deviation = entropy - thresholds[layer, head] * maximum
            of_layer = of_layer + torch.where(deviation.abs() > margin, deviation**2, 0.0)
        loss = loss + of_layer / heads
    return loss / len(attentions)


def losses_of(side: str, shape: Shape) -> tuple[list[nn.Parameter], Callable[[], Tensor], Callable[[], list[float]]]:
    """Parameters, the loss of a step, and its cross-entropy and penalty for comparison."""
    ids, parts = batch_of(shape), []
    # The thresholds draw nothing, so all sides start from the same weights.
    base = our_model(shape, ARCHITECTURE[OWN if side in (OWN, AUTHORS) else PLAIN])
    model = base if side in (OWN, PLAIN) else their_model(shape, base, "eager" if side == AUTHORS else None)
    thresholds = nn.Parameter(torch.full((LAYERS, shape.heads), THRESHOLD))

    def both() -> tuple[Tensor, Tensor]:
        if side == AUTHORS:
            output = model(ids, labels=ids, output_attentions=True)
            return output.loss, algorithm_1(output.attentions, thresholds, GAMMA)
        if side == THEIRS:
            return model(ids, labels=ids).loss, torch.zeros(())
        with faster_matmul(model):
            if side == PLAIN:
                return next_token_loss(model(ids), ids), torch.zeros(())
            logits, entropies = model(ids, entropy=True)
            penalty = entropy_regularization(entropies, model.reg_threshold_weights, GAMMA, "head_mean")
            return next_token_loss(logits, ids), penalty

    def loss() -> Tensor:
        parts[:] = both()
        return parts[0] + LAMBDA * parts[1]

    parameters = [*model.parameters(), *([thresholds] if side == AUTHORS else ())]
    return parameters, loss, lambda: [part.item() for part in parts]


def side_of(side: str, shape: Shape) -> Callable[[], Measured]:
    parameters, loss, parts = losses_of(side, shape)
    if side in (AUTHORS, THEIRS):
        optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True)
    else:
        # `make_optimizer` asks a module for its parameters' names.
        holder = nn.ParameterDict({str(index): parameter for index, parameter in enumerate(parameters)})
        optimizer = make_optimizer(holder, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY)
    step = stepper(parameters, optimizer, loss)

    def with_parts() -> Measured:
        measured = step()
        cross_entropy, penalty = parts()
        return {**measured, "loss": cross_entropy, "penalty": penalty}

    return with_parts


def memory_of(side: str, shape: Shape) -> Callable[[], Measured]:
    """What one forward and backward pass needs beyond model and libraries, gradients included."""
    _, loss, _ = losses_of(side, shape)

    def measured() -> Measured:
        before = timing.resident_bytes()
        timing.reset_peak()
        loss().backward()
        return {"seconds": 0.0, "peak_bytes": float(timing.peak_bytes() - before)}

    return measured


def overhead(ours: Sequence[Measured], plain: Sequence[Measured], name: str) -> dict[str, float]:
    """What the regulariser adds, over the step without it."""
    return ratio([a - b for a, b in zip(of(ours, name), of(plain, name), strict=True)], of(plain, name))


def compare(shape: Shape, repeats: int, threads: int) -> dict[str, Any]:
    def taken(make: Callable[..., Callable[[], Measured]], repeats: int, warm_ups: int) -> dict[str, list[Measured]]:
        with ExitStack() as running:
            started = {name: side(make, threads, side=name, shape=shape) for name in TRAINING}
            return in_turn({name: running.enter_context(one) for name, one in started.items()}, repeats, warm_ups)

    found = taken(side_of, repeats, 3)
    ours, theirs = found[OWN], found[AUTHORS]
    pairs = list(zip(ours, theirs, strict=True))
    apart = {key: max(abs(a[key] / b[key] - 1) for a, b in pairs) for key in ("loss", "penalty")}
    if max(apart.values()) > 1e-2:
        raise RuntimeError(f"{shape}: losses or penalties differ, {apart}: the sides do not train the same model")
    peaks = {name: steps[0]["peak_bytes"] for name, steps in taken(memory_of, 1, 0).items()}
    return {
        **asdict(shape),
        "heads": shape.heads,
        "layers": LAYERS,
        "batch": shape.batch,
        "seconds": {name: spread(of(steps)) for name, steps in found.items()},
        "ratio": ratio(of(theirs), of(ours)),
        "cpu_ratio": ratio(of(theirs, "cpu_seconds"), of(ours, "cpu_seconds")),
        "plain_ratio": ratio(of(theirs), of(found[PLAIN])),
        "authors_over_transformers": ratio(of(theirs), of(found[THEIRS])),
        "overhead": overhead(ours, found[PLAIN], "seconds"),
        "cpu_overhead": overhead(ours, found[PLAIN], "cpu_seconds"),
        "peak_bytes": peaks,
        "memory_ratio": round(peaks[OWN] / peaks[AUTHORS], 4),
        "apart": apart,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = timing.arguments_of("regularized_step", __doc__.splitlines()[0]).parse_args(arguments)
    steps, load_before = [], timing.load()
    for shape in SHAPES:
        if shape.width in chosen.widths:
            line = compare(shape, chosen.repeats, chosen.threads)
            steps.append(line)
            print(
                f"{shape}: {line['ratio']['median']:.2f} x the authors' way, {line['memory_ratio']:.2f} x its memory, "
                f"{100 * line['overhead']['median']:.0f} % slower than without",
                flush=True,
            )
    values = {
        "threads": chosen.threads,
        "repeats": chosen.repeats,
        "gamma": GAMMA,
        "lambda": LAMBDA,
        "load_before": load_before,
        "steps": steps,
    }
    timing.save("regularized_step", values, chosen.folder)


if __name__ == "__main__":
    main()
