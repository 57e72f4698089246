"""A training step of this project beside one of Hugging Face's GPT-2.

    python -m benchmarks.training_step [--repeats N] [--threads N] [--widths 128 768]

GPT-2's layout with 12 layers, on the same weights, batch and threads: forward and backward pass, clipped gradients,
AdamW. The other side is `GPT2LMHeadModel` with its default attention and the AdamW that its Trainer takes by default,
without dropout. The sides' losses are compared. Writes results/bench/training_step.json.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aero.architecture import parse
from aero.entropy import entropy_regularization
from aero.hf.convert import copy_weights
from aero.model import GPT, ModelConfig
from aero.training.kernels import faster_matmul
from aero.training.loop import next_token_loss
from aero.training.schedule import parameter_groups, takes_faster_kernels
from benchmarks.timing import FOLDER, Make, Measured, in_turn, load, of, ratio, save, side, spread

LAYERS = 12
TOKENS = 1024  # in a batch
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0
GAMMA, LAMBDA, THRESHOLD = 0.2, 1e-2, 0.5
PLAIN, REGULARIZED, THEIRS, AUTHORS = "plain", "aero", "transformers", "authors"
"""This project without and with the regulariser, Hugging Face's model, and that with the authors' regulariser."""
ARCHITECTURE = {PLAIN: "SM+LN+G", REGULARIZED: "EReg(SM+LN+G)"}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and its batch; heads are 64 wide as GPT-2's, or 32 where that would leave two."""

    width: int
    context: int
    vocabulary: int

    @property
    def heads(self) -> int:
        return max(4, self.width // 64)

    @property
    def batch(self) -> int:
        return max(1, TOKENS // self.context)


SHAPES = tuple(Shape(width, t, vocabulary) for vocabulary in (1024, 50257) for width in (128, 768) for t in (128, 512))
"""Each with a small vocabulary and with GPT-2's, where the projection onto it is the larger part."""
FIRST_APART, APART = 1e-5, 1e-2
"""How far the sides' losses may differ, relatively: at the first step by the rounding of sums; later by more, since
Adam's first update is the sign of a gradient however small."""


def their_model(shape: Shape, attention: str | None = None) -> nn.Module:
    """`GPT2LMHeadModel` with random weights, the same ones at every call; attention None is its default."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": shape.vocabulary, "n_positions": shape.context, "n_embd": shape.width, "n_head": shape.heads}
    config = GPT2Config(
        **sizes,
        n_layer=LAYERS,
        use_cache=False,  # as their Trainer sets it: else every step keeps keys and values for a generation
        attn_implementation=attention,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    )
    return GPT2LMHeadModel(config).train()


def our_model(shape: Shape, theirs: nn.Module, architecture: str = ARCHITECTURE[PLAIN]) -> GPT:
    """Our model with the weights of theirs."""
    sizes = (shape.vocabulary, shape.context, LAYERS, shape.heads, shape.width, 4 * shape.width)
    model = GPT(parse(architecture), ModelConfig(*sizes, vo_bias=True, ffn_bias=True, threshold_init=THRESHOLD))
    copy_weights(theirs, model)
    return model


def batch_of(shape: Shape) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, shape.vocabulary, (shape.batch, shape.context), generator=generator)


def algorithm_1(attentions: Sequence[Tensor], thresholds: Tensor, gamma: float) -> Tensor:
    """The penalty of Algorithm 1, line by line: attentions, one (B, H, T, T) a layer; thresholds (L, H)."""
    maximum = math.log(attentions[0].shape[-1])
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


def model_and_losses(side: str, shape: Shape) -> tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]]]:
    """The model of one side, and a function that gives cross-entropy and penalty of its batch."""
    ids, model = batch_of(shape), their_model(shape, "eager" if side == AUTHORS else None)
    if side in ARCHITECTURE:
        model = our_model(shape, model, ARCHITECTURE[side])
    elif side == AUTHORS:
        model.thresholds = nn.Parameter(torch.full((LAYERS, shape.heads), THRESHOLD))

    def losses() -> tuple[Tensor, Tensor]:
        if side == AUTHORS:
            output = model(ids, labels=ids, output_attentions=True)
            return output.loss, algorithm_1(output.attentions, model.thresholds, GAMMA)
        if side == THEIRS:
            return model(ids, labels=ids).loss, torch.zeros(())
        with faster_matmul(model):
            if side == PLAIN:
                return next_token_loss(model(ids), ids), torch.zeros(())
            logits, entropies = model(ids, entropy=True)
            penalty = entropy_regularization(entropies, model.reg_threshold_weights, GAMMA, "head_mean")
            return next_token_loss(logits, ids), penalty

    return model, losses


def side_of(side: str, shape: Shape) -> Callable[[], Measured]:
    """The training step of one side as its user would have it: its seconds, processor seconds, losses and penalty."""
    model, losses = model_and_losses(side, shape)
    parameters = list(model.parameters())
    if side in ARCHITECTURE:
        groups, fused = parameter_groups(model, WEIGHT_DECAY), takes_faster_kernels(model) or None
        optimizer = torch.optim.AdamW(groups, LEARNING_RATE, BETAS, EPSILON, fused=fused)
    else:
        optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True)
    first: list[float] = []

    def step() -> Measured:
        began, cpu_began = time.perf_counter(), time.process_time()
        loss, penalty = losses()
        (loss + LAMBDA * penalty).backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        first.append(loss.item())
        found = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        return found | {"loss": loss.item(), "first_loss": first[0], "penalty": penalty.item()}

    return step


def taken(make: Make, names: Sequence[str], shape: Shape, threads: int, *counts: int) -> dict[str, list[Measured]]:
    """Steps of each of the named sides, taken in turn; counts: repeats and warm-ups."""
    return in_turn({name: side(make, threads, side=name, shape=shape) for name in names}, *counts)


def compare(shape: Shape, repeats: int, threads: int) -> tuple[dict[str, Any], str]:
    """Our step against theirs: what is saved, and what is printed of it."""
    ours, theirs = taken(side_of, (PLAIN, THEIRS), shape, threads, repeats, 3).values()
    first, apart = (
        max(abs(a[name] / b[name] - 1) for a, b in zip(ours, theirs, strict=True)) for name in ("first_loss", "loss")
    )
    if first > FIRST_APART or apart > APART:
        raise RuntimeError(f"{shape}: losses differ by {first:.1e} at first and {apart:.1e} later: not the same model")
    sides = {"aero": ours, THEIRS: theirs}
    found = {
        "tokens_per_second": {name: spread([TOKENS / s for s in of(steps)]) for name, steps in sides.items()},
        "ratio": ratio(of(theirs), of(ours)),
        "cpu_ratio": ratio(of(theirs, "cpu_seconds"), of(ours, "cpu_seconds")),
        "first_losses_apart": first,
        "losses_apart": apart,
    }
    return found, f"{found['ratio']} x transformers' tokens/s"


def run(name: str, purpose: str, shapes: Sequence[Shape], compared: Callable[..., Any], **settings: float) -> None:
    """Compare the sides at the chosen widths of `shapes` and save results/bench/<name>.json, with `settings`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 768])
    chosen = parser.parse_args()
    steps, values = [], {"threads": chosen.threads, "repeats": chosen.repeats, "load_before": load()} | settings
    for shape in shapes:
        if shape.width in chosen.widths:
            found, said = compared(shape, chosen.repeats, chosen.threads)
            steps.append(asdict(shape) | {"heads": shape.heads, "layers": LAYERS, "batch": shape.batch} | found)
            print(f"{shape}: {said}", flush=True)
    save(name, values | {"steps": steps}, chosen.folder)


if __name__ == "__main__":
    run("training_step", __doc__.splitlines()[0], SHAPES, compare, tokens=TOKENS)
