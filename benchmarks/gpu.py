"""Training speed on a GPU against the card's own rates: `python -m benchmarks.gpu --out DIR [--minutes M]`.

The rate of a bf16 matrix multiplication is measured first. Then tokens a second and model FLOPs utilisation (the
papers' FLOPs of three forward passes with the vocabulary projection, over the measured rate) of steps of the training
loop, with and without the regulariser, compiled and not. Writes DIR/gpu.json after every part. --tiny: a smoke test on
any device.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from aero.architecture import Architecture, parse
from aero.config import load
from aero.data.batches import Batches
from aero.data.tokens import TokenStream
from aero.errors import UserError, check_minutes, run_main
from aero.flops import count
from aero.model import ModelConfig
from aero.records import Row
from aero.training.kernels import default_device
from aero.training.loop import Regularizer, Trainer, train
from benchmarks.timing import save

ROWS = ("SM+LN+G", "SM(t)+LN+G", "EReg(SM(t)+LN+G)", "SM(t)+ScFuFFN", "EReg(SM(t)+ScFuFFN)")
"""Steps of these: the baseline, and two architectures each with and without the regulariser."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured: the model, contexts, tokens a step, steps, the side of the matrix product."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50257
    contexts: tuple[int, ...] = (128, 512)
    tokens: int = 16384
    steps: int = 40
    every: int = 5
    matrix: int = 8192
    repeats: int = 10


TINY = Sizes(2, 2, 32, 300, (16,), 64, 4, 2, 64, 2)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--minutes", type=float, default=5.0, help="start nothing new after this (default 5)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, which also run on a CPU")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)  # 0: what is there, and nothing new
    device = default_device()
    if device != "cuda" and not chosen.tiny:
        raise UserError("no CUDA device here; --tiny shows the form of the result on a CPU")
    sizes, deadline = TINY if chosen.tiny else Sizes(), time.monotonic() + 60 * chosen.minutes
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    found: dict[str, Any] = {"sizes": dataclasses.asdict(sizes), "tiny": chosen.tiny}
    found |= {"card": card(sizes, device), "steps": [], "left_out": []}

    def keep(said: str) -> None:
        save("gpu", found | {"overhead": overheads(found["steps"])}, chosen.out, device=name)
        print(said, flush=True)

    rate = found["card"]["matrix_flops"]
    keep(f"{name}: bf16 matrix product {rate / 1e12:.1f} TFLOP/s")
    steps = [(row, context, True) for context in sizes.contexts for row in ROWS]
    steps += [(row, context, False) for context in sizes.contexts for row in ROWS[1:3]]
    for row, context, compiled in steps:
        part, why = f"step of {row} at T={context}{'' if compiled else ', not compiled'}", "no time left"
        if time.monotonic() < deadline:
            try:
                found["steps"].append(line := step_speed(row, context, sizes, device, compiled, rate))
            except Exception as error:  # what fails on this card must not cost the other parts
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            else:
                keep(f"{part}: {line['tokens_per_second']:,.0f} tokens/s, {line['utilisation']:.0%}")
                continue
        found["left_out"].append({"part": part, "why": why})
        keep(f"{part}: {why}")


def timed(function: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """Seconds of `repeats` calls after two that warm up, each on an idle device."""
    seconds, wait = [], torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        function()
        wait()
        seconds.append(time.perf_counter() - began)
    return seconds[2:]


def card(sizes: Sizes, device: str) -> dict[str, float]:
    """The rate of a square bf16 matrix product, on random data."""
    side = sizes.matrix
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    product = timed(lambda: a @ b, sizes.repeats, device)
    return {"matrix_side": side, "matrix_flops": 2 * side**3 / median(product)}


def _steps(architecture: Architecture, config: ModelConfig, sizes: Sizes, device: str, compiled: bool) -> list[Row]:
    """Rows of a training on random tokens, by the loop that every run is trained with."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, sizes.vocabulary - 1, (4 * sizes.tokens,), generator=draw).numpy().astype("uint16")
    stream = TokenStream(ids, torch.tensor([0, len(ids)]).numpy().astype("uint64"))
    batch, precision = sizes.tokens // config.context, "bfloat16" if device == "cuda" else "float32"
    batches = Batches(stream, config.context, batch, 1, packing=True)
    changes = {"steps": sizes.steps, "batch_size": batch, "precision": precision, "compile": compiled}
    # One batch is evaluated, at the first step and the last, outside what is timed.
    changes |= {"log_every": sizes.every, "evaluate_every": 10**9, "checkpoint_every": 10**9}
    settings = load().at_scale("gpu").active.train.model_copy(update=changes)
    regularizer, held_out = Regularizer("position_sum", 0.2, 1e-5), [batches.batch(0)[:2].cpu()]
    trainer = Trainer(architecture, config, settings, regularizer, batches, held_out, 1, device)
    return train(trainer).rows


def step_speed(row: str, context: int, sizes: Sizes, device: str, compiled: bool, rate: float) -> dict[str, Any]:
    """Tokens a second of training steps, and their share of the measured rate of matrix products.

    Of the times between logged steps the median; the first, in which all is compiled, is told apart.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    architecture, width = parse(row), sizes.width
    config = ModelConfig(sizes.vocabulary, context, sizes.layers, sizes.heads, width, 4 * width)
    rows, counted = _steps(architecture, config, sizes, device, compiled), count(architecture, config, context)
    # By the papers' formulas: three forward passes, the vocabulary projection 2 d V with them.
    flops = 3 * sizes.tokens * ((counted.ffn + counted.attention) / context + 2 * width * sizes.vocabulary)
    logged = [one for one in rows if one["step"] > 1 and one["step"] % sizes.every == 0]
    seconds = [(b["seconds"] - a["seconds"]) / sizes.every for a, b in zip(logged, logged[1:], strict=False)]
    speeds = sorted(sizes.tokens / max(value, 1e-9) for value in seconds)
    found = {"architecture": row, "context": context, "tokens_per_step": sizes.tokens, "compiled": compiled}
    found |= {"seconds_to_first_step": rows[0]["seconds"], "final_loss": rows[-1]["train_loss"]}
    found |= {"tokens_per_second": median(speeds), "tokens_per_second_range": [speeds[0], speeds[-1]]}
    found |= {"peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None, "flops_per_step": flops}
    return found | {"utilisation": flops * median(speeds) / sizes.tokens / rate}


def overheads(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the regulariser adds to a step's time, pair by pair: tokens/s without it over with it, less 1.

    A ratio of medians: the two trainings ran one after the other, so no repeat of one belongs to one of the other.
    """
    by = {(line["architecture"], line["context"], line["compiled"]): line["tokens_per_second"] for line in steps}
    return [
        {"architecture": there, "context": t, "compiled": compiled, "overhead": by[plain, t, compiled] / speed - 1}
        for (there, t, compiled), speed in by.items()
        for plain in ROWS
        if there == f"EReg({plain})" and (plain, t, compiled) in by
    ]


if __name__ == "__main__":
    run_main(main)
