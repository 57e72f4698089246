"""Memory of attention with entropy: through the T x T matrix, by blocks of rows that are recomputed for the gradient,
and by blocks that are kept for it.

    python -m benchmarks.entropy_memory

One attention layer, forward and backward, float32, CPU. Peak memory is what a fresh process needs beyond its inputs.
Writes results/bench/entropy_memory.json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from aero.attention import KEPT_UP_TO, MATRIX_UP_TO, matrix_attention
from aero.row_entropy import ROWS, blocked, kept_blocks
from benchmarks import timing

OUT = Path("results/bench/entropy_memory.json")
HEADS, WIDTH = 4, 64
CONTEXTS = {
    "matrix": (256, 512, 1024, 2048, 4096),
    "kept": (256, 512, 1024, 2048, 4096),
    "blocks": (256, 512, 1024, 2048, 4096, 8192, 16384),
}


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]] = {
    "matrix": lambda query, key, value, scale: matrix_attention(query, key, value),
    "kept": lambda *inputs: kept_blocks(*inputs, entropy=True),
    "blocks": blocked,
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
    """How far one layer raises the process's high-water mark above its inputs."""
    forward_and_backward(way, inputs(64))  # libraries are loaded
    given = inputs(context)

    def measured() -> timing.Measured:
        resident = timing.resident_bytes()
        timing.reset_peak()
        forward_and_backward(way, given)
        return {"peak_bytes": timing.peak_bytes() - resident}

    return measured


def memory(contexts: Mapping[str, Sequence[int]]) -> list[dict[str, object]]:
    lines = []
    for way, lengths in contexts.items():
        for context in lengths:
            with timing.side(peak_of, 1, way=way, context=context) as one:
                (found,) = timing.in_turn({way: one}, 1, warm_ups=0)[way]
            lines.append({"way": way, "context": context, **found})
            print(f"{way} T={context}: {found['peak_bytes'] / 1e6:.1f} MB", flush=True)
    return lines


def growth(lines: list[dict[str, object]], way: str) -> float:
    """The exponent of T between the two longest contexts."""
    longest = [line for line in lines if line["way"] == way][-2:]
    return timing.exponent(*([line[name] for line in longest] for name in ("context", "peak_bytes")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--longest", type=int, default=max(CONTEXTS["blocks"]))
    chosen = parser.parse_args()
    lines = memory({way: [t for t in contexts if t <= chosen.longest] for way, contexts in CONTEXTS.items()})
    result = {
        "heads": HEADS,
        "width": WIDTH,
        "rows_of_a_block": ROWS,
        "matrix_up_to": MATRIX_UP_TO,
        "kept_up_to": KEPT_UP_TO,
        "memory": lines,
        "growth": {way: round(growth(lines, way), 3) for way in WAYS},
        "threads": 1,
    }
    timing.save(chosen.out.stem, result, chosen.out.parent)


if __name__ == "__main__":
    main()
