"""Memory of attention with entropy: by the T x T matrix, and by blocks of rows, recomputed for the gradient or kept.

    python -m benchmarks.entropy_memory

One attention layer, forward and backward, float32, CPU. Peak memory is what a fresh process needs beyond its inputs.
Writes results/bench/entropy_memory.json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from aero.attention import KEPT_UP_TO, MATRIX_UP_TO, matrix_attention
from aero.row_entropy import ROWS, attention_with_entropy, kept_blocks
from benchmarks import timing

HEADS, WIDTH = 4, 64
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384)
MOST = {"matrix": 4096, "kept": 4096}
"""The longest context of a way."""
WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]] = {
    "matrix": lambda query, key, value, scale: matrix_attention(query, key, value),
    "kept": lambda *inputs: kept_blocks(*inputs, entropy=True),
    "blocks": attention_with_entropy,
}


def inputs(context: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, context, WIDTH, generator=generator).requires_grad_() for _ in range(3)]


def forward_and_backward(way: str, given: list[Tensor]) -> None:
    """Output and entropies, and the gradients of their weighted sum."""
    output, entropies = WAYS[way](*given, 1 / math.sqrt(given[0].shape[-1]))
    weights = torch.linspace(-1, 1, entropies.shape[-1], dtype=output.dtype)
    torch.autograd.grad((output * weights[:, None]).sum() + (entropies * weights).sum(), given)


def peak_of(way: str, context: int) -> Callable[[], timing.Measured]:
    """What one layer needs beyond its inputs."""
    forward_and_backward(way, inputs(64))  # libraries are loaded
    return partial(timing.added_peak, partial(forward_and_backward, way, inputs(context)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entropy_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    parser.add_argument("--longest", type=int, default=max(CONTEXTS))
    chosen = parser.parse_args()
    lines = []
    for way in WAYS:
        for context in (t for t in CONTEXTS if t <= min(chosen.longest, MOST.get(way, t))):
            (found,) = timing.in_turn({way: timing.side(peak_of, 1, way=way, context=context)}, 1, warm_ups=0)[way]
            lines.append({"way": way, "context": context, **found})
            print(f"{way} T={context}: {found['peak_bytes'] / 1e6:.1f} MB", flush=True)
    result = {"heads": HEADS, "width": WIDTH, "threads": 1, "memory": lines}
    result |= {"rows_of_a_block": ROWS, "matrix_up_to": MATRIX_UP_TO, "kept_up_to": KEPT_UP_TO}
    timing.save("entropy_memory", result, chosen.folder)


if __name__ == "__main__":
    main()
