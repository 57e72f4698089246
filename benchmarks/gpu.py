"""Training speed on a GPU against what the card can do: `python -m benchmarks.gpu --out DIR [--minutes M]`.

The card's own rates first: a bf16 matrix product and a copy, measured, not looked up. Then tokens a second and model
FLOPs utilisation (the papers' FLOPs of three forward passes with the vocabulary projection, over the measured rate) of
steps of the training loop itself, with and without the regulariser, compiled and not; attention with entropy by every
way this project has; which kernels a step spends its time in; and how far every way is off float64, last, as a test
looks at that too. Writes DIR/gpu.json after every part, so that what is done survives the end of the machine. --tiny is
the same in small, on any device, for a look at the form.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from aero import records
from aero.architecture import parse
from aero.attention import matrix_attention
from aero.data.batches import Batches
from aero.data.tokens import TokenStream
from aero.errors import UserError, check_minutes, run_main
from aero.flops import count
from aero.model import ModelConfig
from aero.records import Row, write_text
from aero.row_entropy import blocked, can_fuse, fused
from aero.training.distributed import default_device
from aero.training.loop import Regularizer, train

ROWS = ("SM+LN+G", "SM(t)+LN+G", "EReg(SM(t)+LN+G)", "SM(t)+ScFuFFN", "EReg(SM(t)+ScFuFFN)")
"""Steps of these: the baseline, and two architectures each with and without the regulariser."""
PAIRS = (("SM(t)+LN+G", "EReg(SM(t)+LN+G)"), ("SM(t)+ScFuFFN", "EReg(SM(t)+ScFuFFN)"))
TARGETS = {"utilisation": {"128": 0.35, "512": 0.45}, "overhead": 0.10}
"""What the project set itself, for the model of 12 layers; beside them stands what was measured."""


LOGITS = (1.0, 12.0, 100.0)
"""Standard deviations of the logits at which errors are recorded; the largest logits are about 6 times as large."""


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
    attention: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)


TINY = Sizes(2, 2, 32, 300, (16, 32), 128, 8, 2, 64, 2, (16, 32))


@dataclasses.dataclass(frozen=True)
class Settings:
    """The papers' optimiser; one evaluation batch, at the first step and the last, outside what is timed."""

    steps: int
    batch_size: int
    precision: str
    compile: bool
    log_every: int
    accumulation: int = 1
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    warmup: float = 0.05
    warmup_steps: int | None = None
    optimizer: str = "adamw"
    schedule: str = "linear"
    final_learning_rate: float | None = None
    log_attention: bool = False
    evaluate_every: int = 10**9
    checkpoint_every: int = 10**9


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--minutes", type=float, default=5.0, help="start nothing new after this (default 5)")
    parser.add_argument("--tiny", action="store_true", help="in small, on the CPU too")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)  # 0: what is there, and nothing new
    device = default_device()
    if device != "cuda" and not chosen.tiny:
        raise UserError("no CUDA device here; --tiny shows the form of the result on a CPU")
    sizes, deadline = TINY if chosen.tiny else Sizes(), time.monotonic() + 60 * chosen.minutes
    made = records.provenance(
        torch=torch.__version__,
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        measured=records.now(),
    )
    found: dict[str, Any] = {"sizes": dataclasses.asdict(sizes), "tiny": chosen.tiny, "targets": TARGETS}
    found |= {"card": {}, "steps": [], "attention": [], "errors": [], "profile": [], "left_out": [], "provenance": made}

    def keep() -> None:
        found["overhead"] = overheads(found["steps"])
        write_text(chosen.out / "gpu.json", json.dumps(found, indent=1) + "\n")

    found["card"] = card(sizes, device)
    keep()
    print(f"{made['device']}: bf16 matrix product {found['card']['matrix_flops'] / 1e12:.1f} TFLOP/s", flush=True)
    parts: list[tuple[str, str, Callable[[], Any]]] = []
    for compiled in (True, False):
        for context in sizes.contexts:
            for row in ROWS if compiled else ROWS[1:3]:
                name = f"step of {row} at T={context}{'' if compiled else ', not compiled'}"
                parts.append(("steps", name, partial(step_speed, row, context, sizes, device, compiled, found["card"])))
    for context in sizes.attention:
        parts.append(("attention", f"attention at T={context}", partial(attention, context, sizes, device)))
    for context in sizes.contexts:
        for row in ROWS[1:3]:
            parts.append(("profile", f"profile of {row} at T={context}", partial(profile, row, context, sizes, device)))
    for context in sizes.attention:
        parts.append(("errors", f"errors of attention at T={context}", partial(errors, context, sizes, device)))
    for key, name, part in parts:
        if time.monotonic() > deadline:
            found["left_out"].append({"part": name, "why": "no time left"})
            continue
        try:
            lines = part()
            lines = lines if isinstance(lines, list) else [lines]
        except Exception as error:  # what one way cannot do on this card must not cost what the others can
            lines, said = [], f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found["left_out"].append({"part": name, "why": said})
            print(f"{name}: {said}", flush=True)
        found[key] += lines
        for line in lines:
            print(f"{name}: {in_words(line)}", flush=True)
        keep()
        if device == "cuda":
            torch.cuda.empty_cache()
    keep()


def in_words(line: dict[str, Any]) -> str:
    if "utilisation" in line:
        return f"{line['tokens_per_second']:,.0f} tokens/s, {line['utilisation']:.0%} of the matrix rate"
    if "errors" in line:
        off = " ".join(f"{name} {error:.1e}" for name, error in line["errors"].items())
        return f"{line['way']}, logits up to {line['largest_logit']:.0f}: {off}"
    if "way" in line:
        return f"{line['way']} {1e3 * line['seconds']:.2f} ms"
    return f"{line['steps']} steps, {len(line['kernels'])} kernels"


def timed(function: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """Seconds of `repeats` calls after two that warm up, each on an idle device."""
    seconds = []
    for repeat in range(repeats + 2):
        _wait(device)
        began = time.perf_counter()
        function()
        _wait(device)
        if repeat >= 2:
            seconds.append(time.perf_counter() - began)
    return seconds


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def card(sizes: Sizes, device: str) -> dict[str, float]:
    """The rates of a square bf16 matrix product, on random data, and of a copy (bytes read and written)."""
    side = sizes.matrix
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    product = timed(lambda: a @ b, sizes.repeats, device)
    large = torch.randn(side * side * (4 if device == "cuda" else 1), device=device)
    target = torch.empty_like(large)
    copy = timed(lambda: target.copy_(large), sizes.repeats, device)
    return {
        "matrix_side": side,
        "matrix_flops": 2 * side**3 / median(product),
        "matrix_flops_range": [2 * side**3 / max(product), 2 * side**3 / min(product)],
        "copy_bytes_per_second": 2 * large.numel() * large.element_size() / median(copy),
    }


def step_flops(architecture: str, context: int, sizes: Sizes) -> float:
    """FLOPs of one step by the papers' formulas: three forward passes, the vocabulary projection 2 d V with them."""
    config = _config(context, sizes)
    counted = count(parse(architecture), config, context)
    return 3 * sizes.tokens * ((counted.ffn + counted.attention) / context + 2 * sizes.width * sizes.vocabulary)


def _config(context: int, sizes: Sizes) -> ModelConfig:
    return ModelConfig(sizes.vocabulary, context, sizes.layers, sizes.heads, sizes.width, 4 * sizes.width)


class _Rows:
    """An observer that keeps the log's rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def begin(self, rows: Sequence[Row]) -> None:
        pass

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def end(self) -> None:
        pass


def _steps(architecture: str, context: int, sizes: Sizes, device: str, compiled: bool, steps: int) -> list[Row]:
    """Rows of a training of so many steps on random tokens, by the loop that every run is trained with."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, sizes.vocabulary - 1, (4 * sizes.tokens,), generator=draw).numpy().astype("uint16")
    stream = TokenStream(ids, torch.tensor([0, len(ids)]).numpy().astype("uint64"))
    batch = sizes.tokens // context
    batches = Batches(stream, context, batch, 1, packing=True, device=device)
    precision = "bfloat16" if device == "cuda" else "float32"
    settings = Settings(steps, batch, precision, compiled, sizes.every)
    watch = _Rows()
    train(
        parse(architecture),
        _config(context, sizes),
        settings,
        Regularizer("position_sum", 0.2, 1e-5),
        batches,
        [batches.batch(0)[:2].cpu()],
        1,
        device=device,
        progress=False,
        observers=[watch],
    )
    return watch.rows


def step_speed(
    architecture: str, context: int, sizes: Sizes, device: str, compiled: bool, rates: dict[str, float]
) -> dict[str, Any]:
    """Tokens a second of training steps, and their share of the measured matrix rate.

    Of the times between logged steps the median; the first, in which all is compiled, is told apart.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rows = _steps(architecture, context, sizes, device, compiled, sizes.steps)
    logged = [row for row in rows if row["step"] > 1 and row["step"] % sizes.every == 0]
    seconds = [(b["seconds"] - a["seconds"]) / sizes.every for a, b in zip(logged, logged[1:], strict=False)]
    speeds = sorted(sizes.tokens / max(value, 1e-9) for value in seconds)
    flops = step_flops(architecture, context, sizes)
    return {
        "architecture": architecture,
        "context": context,
        "tokens_per_step": sizes.tokens,
        "compiled": compiled,
        "seconds_to_first_step": rows[0]["seconds"],
        "tokens_per_second": median(speeds),
        "tokens_per_second_range": [speeds[0], speeds[-1]],
        "flops_per_step": flops,
        "utilisation": flops * median(speeds) / sizes.tokens / rates["matrix_flops"],
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "final_loss": rows[-1]["train_loss"],
    }


def overheads(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the regulariser adds to a step's time, pair by pair: tokens/s without it over with it, less 1.

    A ratio of medians: the two trainings ran one after the other, so no repeat of one belongs to one of the other.
    """
    by = {(line["architecture"], line["context"], line["compiled"]): line["tokens_per_second"] for line in steps}
    return [
        {"architecture": there, "context": t, "compiled": compiled, "overhead": by[plain, t, compiled] / speed - 1}
        for (there, t, compiled), speed in by.items()
        for plain, with_ in PAIRS
        if there == with_ and (plain, t, compiled) in by
    ]


Way = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def _matrix(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    assert scale == query.shape[-1] ** -0.5
    return matrix_attention(query, key, value)


def _no_entropy(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return output, output[..., 0].float()


def _ways(given: Sequence[Tensor]) -> dict[str, Way]:
    """Every way to an entropy that such a query, key and value have."""
    ways: dict[str, Way] = {
        "matrix": _matrix,
        "matrix, compiled": torch.compile(_matrix) if given[0].device.type == "cuda" else _matrix,
        "blocks": blocked,
    }
    if can_fuse(given[0], given[2]):
        ways |= {"flex": fused, "flex, compiled": torch.compile(fused)}
    return ways


def attention(context: int, sizes: Sizes, device: str) -> list[dict[str, Any]]:
    """One layer's attention, forward and backward, by every way: seconds, memory, and how far its entropies are off.

    float32 for those that give entropies, bf16 for plain attention, as a training step under autocast runs them.
    """
    torch._dynamo.reset()  # compiled for this context alone, not for any
    heads, width = sizes.heads, sizes.width // sizes.heads
    shape = (max(1, sizes.tokens // context), heads, context, width)
    draw = torch.Generator(device).manual_seed(0)
    given = [torch.randn(shape, generator=draw, device=device).requires_grad_() for _ in range(3)]
    scale = 1 / math.sqrt(width)
    exact = _matrix(*(x[:1, :1].detach().double() for x in given), scale)[1]
    lines = []
    for name, way in {"no entropy, bf16": _no_entropy, **_ways(given)}.items():
        inputs = [x.detach().bfloat16().requires_grad_() if "bf16" in name else x for x in given]

        def step(way: Any = way, inputs: list[Tensor] = inputs) -> Tensor:
            output, entropies = way(*inputs, scale)
            (output.sum() + entropies.sum()).backward()
            return entropies.detach()

        line: dict[str, Any] = {"way": name, "context": context, "shape": list(shape)}
        try:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            entropies = step()
            seconds = timed(step, sizes.repeats, device)
        except Exception as error:  # one way's failure is a finding about that way
            lines.append(line | {"seconds": math.nan, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
            continue
        off = None if "bf16" in name else (entropies[:1, :1].double() - exact).abs().max().item()
        lines.append(
            line
            | {
                "seconds": median(seconds),
                "seconds_range": [min(seconds), max(seconds)],
                "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
                "entropy_error": off,
            }
        )
    return [line if math.isfinite(line["seconds"]) else line | {"seconds": 0.0} for line in lines]


def errors(context: int, sizes: Sizes, device: str) -> list[dict[str, Any]]:
    """Largest error against float64 of one layer's output, entropies and gradients with respect to its inputs, over all
    heads of two sequences, by every way and at every size of logits; and how large each of these is itself.

    The objective is a random weight of every output and entropy. The float64 matrices are held for one head at a time:
    128 MiB each at T = 4096.
    """
    torch._dynamo.reset()
    heads, width = sizes.heads, sizes.width // sizes.heads
    shape, scale = (2, heads, context, width), 1 / math.sqrt(width)
    draw = torch.Generator(device).manual_seed(0)
    query, key, value, *weights = (
        torch.randn(size, generator=draw, device=device) for size in (*4 * (shape,), shape[:-1])
    )
    lines = []
    for size in LOGITS:
        given = [size * query, key, value]
        exact, largest = _in_float64(given, weights, scale)
        for name, way in _ways(given).items():
            line = {"way": name, "context": context, "shape": list(shape), "logits": size, "largest_logit": largest}
            try:
                found = _values_and_gradients(way, given, weights, scale)
            except Exception as error:  # as in `attention`
                lines.append(line | {"errors": {}, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
                continue
            off = {what: (found[what].double() - exact[what]).abs().max().item() for what in exact}
            lines.append(line | {"errors": off, "largest": {what: x.abs().max().item() for what, x in exact.items()}})
    return lines


def _values_and_gradients(
    way: Way, given: Sequence[Tensor], weights: Sequence[Tensor], scale: float
) -> dict[str, Tensor]:
    """Output, entropies, and the gradients of their sum by `weights`."""
    inputs = [x.detach().requires_grad_() for x in given]
    output, entropies = way(*inputs, scale)
    gradients = torch.autograd.grad((output * weights[0]).sum() + (entropies * weights[1]).sum(), inputs)
    names = ("output", "entropy", "d_query", "d_key", "d_value")
    return dict(zip(names, (output.detach(), entropies.detach(), *gradients), strict=True))


def _in_float64(given: Sequence[Tensor], weights: Sequence[Tensor], scale: float) -> tuple[dict[str, Tensor], float]:
    """`_values_and_gradients` through the matrix, one head after the other, and the largest logit."""
    found, largest = [], 0.0
    for place in itertools.product(*map(range, given[0].shape[:2])):
        one, by = ([x[place][None, None].double() for x in some] for some in (given, weights))
        found.append(_values_and_gradients(_matrix, one, by, scale))
        largest = max(largest, (scale * one[0] @ one[1].mT).abs().max().item())
    heads = given[0].shape[:2]
    return {what: torch.cat([x[what][0] for x in found]).unflatten(0, heads) for what in found[0]}, largest


def profile(architecture: str, context: int, sizes: Sizes, device: str, most: int = 25) -> dict[str, Any]:
    """The kernels that steps of the training loop spend most time in: seconds and calls, compilation left out."""
    _steps(architecture, context, sizes, device, device == "cuda", 3)  # compiled once: the cache on disk has it then
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as traced:
        _steps(architecture, context, sizes, device, device == "cuda", sizes.steps // 2)
    kernels = []
    for event in traced.key_averages():
        seconds = (event.self_device_time_total if device == "cuda" else event.self_cpu_time_total) / 1e6
        if seconds > 0:
            kernels.append({"kernel": event.key[:120], "seconds": seconds, "calls": event.count})
    kernels.sort(key=lambda kernel: -kernel["seconds"])
    return {
        "architecture": architecture,
        "context": context,
        "steps": sizes.steps // 2,
        "seconds": sum(kernel["seconds"] for kernel in kernels),
        "kernels": kernels[:most],
    }


if __name__ == "__main__":
    run_main(main)
