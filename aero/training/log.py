"""The training log: one CSV row per logged step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from aero.records import Row, csv_text, write_text


def columns(layers: int, attention: bool = False, slopes: int = 0) -> list[str]:
    """Columns of log.csv; of layer i, on held-out sequences (in the row of a divergence on the batch that broke it):
    entropy_layer_i is the mean over heads in nats, activation_layer_i the largest magnitude of the block's output,
    overflow_layer_i how many of its values float16 cannot hold (beyond 65504, infinite or not a number).

    attention: also norm_layer_i, the mean ||P||_F of its heads, and variance_layer_i, the mean variance of the logits
    in a row (`variance_sensitivity`, Definition 5.2). slopes: how many negative slopes of a leaky ReLU are learned, one
    a layer or one for all; slope_i are their values.
    """
    head = ["step", "tokens", "train_loss", "regularization", "eval_loss", "learning_rate", "gradient_norm", "seconds"]
    measured = ("entropy", "activation", "overflow", *(("norm", "variance") if attention else ()))
    layered = [f"{name}_layer_{i}" for name in measured for i in range(layers)]
    return head + layered + [f"slope_{i}" for i in range(slopes)]


class LiveLog:
    """The log of a running training: every row is in the file at once. A kill can leave half a row at the end; resuming
    rewrites the rows of the saved state first, so each step appears once.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._columns = path, names
        self._file: TextIO | None = None

    def begin(self, rows: Sequence[Row]) -> None:
        write_text(self._path, csv_text(self._columns, rows, header=True))
        self._file = open(self._path, "a", encoding="utf-8", newline="")

    def add(self, row: Row) -> None:
        assert self._file is not None, "begin comes first"
        self._file.write(csv_text(self._columns, [row], header=False))
        self._file.flush()

    def end(self) -> None:
        if self._file is not None:
            self._file.close()


def outcome_line(metrics: dict[str, Any]) -> str:
    """Perplexity and time of a training, or the step at which it diverged."""
    if metrics["eval_perplexity"] is None:
        return f"diverged at step {metrics['diverged_at_step']}"
    return f"perplexity {metrics['eval_perplexity']:.3f}, {metrics['provenance']['seconds']:.0f} s"
