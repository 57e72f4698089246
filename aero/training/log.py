"""The training log: one CSV row per logged step, rewritten whole so that a kill leaves no duplicate or half row."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

Row = dict[str, float | int | None]


def columns(layers: int) -> list[str]:
    """Columns of log.csv; entropy_layer_i is the mean over heads in nats, activation_layer_i the largest magnitude."""
    head = ["step", "tokens", "train_loss", "regularization", "eval_loss", "learning_rate", "gradient_norm", "seconds"]
    return head + [f"entropy_layer_{i}" for i in range(layers)] + [f"activation_layer_{i}" for i in range(layers)]


def write(path: Path, rows: Sequence[Row], layers: int) -> None:
    """Write all rows atomically; numbers in the shortest form that reads back to the same float, gaps empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(layers), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    write_text(path, text.getvalue())


def read(path: Path) -> list[Row]:
    """Rows of a log.csv, empty cells as None."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {
                key: None if value == "" else (int(value) if key in ("step", "tokens") else float(value))
                for key, value in row.items()
            }
            for row in csv.DictReader(file)
        ]


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
