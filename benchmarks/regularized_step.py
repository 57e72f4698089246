"""A training step with the entropy regulariser: this project's and the papers' authors'.

    python -m benchmarks.regularized_step [--repeats N] [--threads N] [--widths 128 768]

Theirs: Hugging Face's GPT-2 with `output_attentions=True`, which takes its eager attention, and Algorithm 1 as it is
listed, a loop over layers and heads with log(A + 1e-9). Ours: `EReg(SM+LN+G)` with the reduction `head_mean`. Both are
also timed without the regulariser. Same weights, batch, threads and optimiser; losses and penalties are compared.
Memory is what a fresh process needs for one forward and backward pass beyond model and libraries. Writes
results/bench/regularized_step.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks import training_step
from benchmarks.timing import Measured, added_peak, of, ratio, spread
from benchmarks.training_step import AUTHORS, LAMBDA, PLAIN, REGULARIZED, THEIRS, Shape, taken

TRAINING = (REGULARIZED, AUTHORS, PLAIN, THEIRS)
SHAPES = [shape for shape in training_step.SHAPES if shape.vocabulary == 1024]


def memory_of(side: str, shape: Shape) -> Callable[[], Measured]:
    """What one forward and backward pass needs beyond model and libraries, gradients included."""
    _, losses = training_step.model_and_losses(side, shape)

    def passes() -> None:
        loss, penalty = losses()
        (loss + LAMBDA * penalty).backward()

    return partial(added_peak, passes)


def overhead(ours: Sequence[Measured], plain: Sequence[Measured]) -> dict[str, float]:
    """What the regulariser adds, over the step without it."""
    return ratio([a - b for a, b in zip(of(ours), of(plain), strict=True)], of(plain))


def compare(shape: Shape, repeats: int, threads: int) -> tuple[dict[str, Any], str]:
    """Every side's step: what is saved, and what is printed of it."""
    found = taken(training_step.side_of, TRAINING, shape, threads, repeats, 3)
    ours, theirs = found[REGULARIZED], found[AUTHORS]
    pairs = list(zip(ours, theirs, strict=True))
    apart = {key: max(abs(a[key] / b[key] - 1) for a, b in pairs) for key in ("loss", "penalty")}
    if max(apart.values()) > 1e-2:
        raise RuntimeError(f"{shape}: losses or penalties differ, {apart}: the sides do not train the same model")
    peaks = {name: steps[0]["peak_bytes"] for name, steps in taken(memory_of, TRAINING, shape, threads, 1, 0).items()}
    line = {
        "seconds": {name: spread(of(steps)) for name, steps in found.items()},
        "ratio": ratio(of(theirs), of(ours)),
        "overhead": overhead(ours, found[PLAIN]),
        "peak_bytes": peaks,
        "memory_ratio": round(peaks[REGULARIZED] / peaks[AUTHORS], 4),
        "apart": apart,
    }
    said = f"{line['ratio']['median']:.2f} x the authors' way, {line['memory_ratio']:.2f} x its memory, "
    return line, f"{said}{100 * line['overhead']['median']:.0f} % slower than without"


if __name__ == "__main__":
    settings = {"gamma": training_step.GAMMA, "lambda": LAMBDA}
    training_step.run("regularized_step", __doc__.splitlines()[0], SHAPES, compare, **settings)
