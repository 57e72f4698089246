"""A training step with the entropy regulariser: this project's against the way of the papers' authors.

    python -m benchmarks.regularized_step [--repeats N] [--threads N] [--widths 128 768]

Theirs: Hugging Face's GPT-2 with `output_attentions=True`, which takes its eager attention, and Algorithm 1 as it is
listed, a loop over layers and heads with log(A + 1e-9). Ours: `EReg(SM+LN+G)` with the reading `head_mean`. Beside
them both without the regulariser. Same weights, batch, threads and optimiser; losses and penalties are compared. Memory
is what a fresh process needs for one forward and backward pass beyond model and libraries.
Writes results/bench/regularized_step.json.
"""

from __future__ import annotations

import json
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
from benchmarks.timing import Measured, Side, in_turn, of, ratio, spread
from benchmarks.training_step import (
    AS_IT_COMES,
    BETAS,
    EPSILON,
    LAYERS,
    LEARNING_RATE,
    THEIRS,
    WEIGHT_DECAY,
    Shape,
    batch_of,
    our_model,
    settle,
    stepper,
    their_model,
)

PLAIN, OWN, AUTHORS = "plain", "aero", "authors"
TRAINING = (OWN, AUTHORS, PLAIN, THEIRS, AUTHORS + AS_IT_COMES)
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
    ids = batch_of(shape)
    # The thresholds draw nothing, so all sides start from the same weights.
    base = our_model(shape, ARCHITECTURE[PLAIN if side in (PLAIN, THEIRS) else OWN])
    parts: list[Tensor] = []
    if side == AUTHORS:
        theirs = their_model(shape, base, "eager")
        del base
        thresholds = nn.Parameter(torch.full((LAYERS, shape.heads), THRESHOLD))
        parameters = [*theirs.parameters(), thresholds]

        def loss() -> Tensor:
            output = theirs(ids, labels=ids, output_attentions=True)
            parts[:] = [output.loss, algorithm_1(output.attentions, thresholds, GAMMA)]
            return parts[0] + LAMBDA * parts[1]

    elif side == THEIRS:
        plain = their_model(shape, base)
        del base
        parameters = list(plain.parameters())

        def loss() -> Tensor:
            parts[:] = [plain(ids, labels=ids).loss, torch.zeros(())]
            return parts[0]

    else:
        parameters = list(base.parameters())

        def loss() -> Tensor:
            with faster_matmul(base):
                if side == PLAIN:
                    parts[:] = [next_token_loss(base(ids), ids), torch.zeros(())]
                    return parts[0]
                logits, entropies = base(ids, entropy=True)
                penalty = entropy_regularization(entropies, base.reg_threshold_weights, GAMMA, "head_mean")
                parts[:] = [next_token_loss(logits, ids), penalty]
                return parts[0] + LAMBDA * parts[1]

    return parameters, loss, lambda: [part.item() for part in parts]


def side_of(side: str, shape: Shape) -> Callable[[], Measured]:
    side = settle(side)
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


def memory_of(side: str, shape: Shape) -> Measured:
    """What one forward and backward pass needs beyond model and libraries, gradients included."""
    _, loss, _ = losses_of(side.removesuffix(AS_IT_COMES), shape)
    settle(side)  # after the model: what making it has freed is not there to be taken again
    before = timing.resident_bytes()
    timing.reset_peak()
    loss().backward()
    return {"seconds": 0.0, "peak_bytes": float(timing.peak_bytes() - before)}


def overhead(ours: Sequence[Measured], plain: Sequence[Measured], name: str) -> dict[str, float]:
    """What the regulariser adds, over the step without it."""
    return ratio([a - b for a, b in zip(of(ours, name), of(plain, name), strict=True)], of(plain, name))


def compare(shape: Shape, repeats: int, threads: int) -> dict[str, Any]:
    def started(running: ExitStack, sides: Sequence[str], **more: Any) -> dict[str, Side]:
        settings = {"shape": asdict(shape), "threads": threads, **more}
        return {
            name: running.enter_context(Side("benchmarks.regularized_step", side=name, **settings)) for name in sides
        }

    with ExitStack() as running:
        found = in_turn(started(running, TRAINING), repeats, warm_ups=3)
    ours, theirs = found[OWN], found[AUTHORS]
    pairs = list(zip(ours, theirs, strict=True))
    apart = {key: max(abs(a[key] / b[key] - 1) for a, b in pairs) for key in ("loss", "penalty")}
    if max(apart.values()) > 1e-2:
        raise RuntimeError(f"{shape}: losses or penalties differ, {apart}: the sides do not train the same model")
    with ExitStack() as running:
        peaks = {
            name: [step["peak_bytes"] for step in steps]
            for name, steps in in_turn(started(running, TRAINING, memory=True), 1, warm_ups=0).items()
        }
    return {
        **asdict(shape),
        "heads": shape.heads,
        "layers": LAYERS,
        "batch": shape.batch,
        "seconds": {name: spread(of(steps)) for name, steps in found.items()},
        "ratio": ratio(of(theirs), of(ours)),
        "cpu_ratio": ratio(of(theirs, "cpu_seconds"), of(ours, "cpu_seconds")),
        "ratio_as_it_comes": ratio(of(found[AUTHORS + AS_IT_COMES]), of(ours)),
        "plain_ratio": ratio(of(theirs), of(found[PLAIN])),
        "authors_over_transformers": ratio(of(theirs), of(found[THEIRS])),
        "overhead": overhead(ours, found[PLAIN], "seconds"),
        "cpu_overhead": overhead(ours, found[PLAIN], "cpu_seconds"),
        "peak_bytes": {name: values[0] for name, values in peaks.items()},
        "memory_ratio": round(peaks[OWN][0] / peaks[AUTHORS][0], 4),
        "apart": apart,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = timing.step_arguments("regularized_step", __doc__.splitlines()[0]).parse_args(arguments)
    if chosen.side:
        given = json.loads(chosen.side)
        side, shape = given["side"], Shape(**given["shape"])
        torch.set_num_threads(given["threads"])
        timing.serve((lambda: memory_of(side, shape)) if given.get("memory") else side_of(side, shape))
        return
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
