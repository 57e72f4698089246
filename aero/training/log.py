"""The training log: one CSV row per logged step; TensorBoard and Weights & Biases beside it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from aero.errors import UserError
from aero.records import Row, csv_text, write_text

Tracker = Literal["tensorboard", "wandb"]


class Observer(Protocol):
    """Follows a training: `begin` with the rows of the steps that are already done, `add` for every new one."""

    def begin(self, rows: Sequence[Row]) -> None: ...

    def add(self, row: Row) -> None: ...

    def end(self) -> None: ...


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


def open_tracker(name: Tracker, folder: Path, run: str, seed: int, scale: str, configuration: str) -> Observer:
    """The tracker called `name`; its files go below `folder`. configuration: the run's hash.
    UserError if its package is not installed."""
    if name == "tensorboard":
        return _TensorBoard(_package("torch.utils.tensorboard", name), folder / "tensorboard")
    return _WeightsAndBiases(_package("wandb", name), folder, run, seed, scale, configuration)


def _package(module: str, name: Tracker) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"{name} is not installed; pip install -e '.[{name}]' in your clone or leave --tracker out"
        ) from None


class _TensorBoard:
    def __init__(self, package: Any, folder: Path) -> None:
        self._package, self._folder = package, folder

    def begin(self, rows: Sequence[Row]) -> None:
        done = int(rows[-1]["step"]) if rows else 0
        # Steps that a killed process logged after its last saved state are logged again; the old ones are removed.
        self._writer = self._package.SummaryWriter(str(self._folder), purge_step=done + 1)

    def add(self, row: Row) -> None:
        for key, value in _measured(row).items():
            self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """One W&B run a training. Its id contains the configuration, so that only the same training resumes it."""

    def __init__(self, package: Any, folder: Path, run: str, seed: int, scale: str, configuration: str) -> None:
        self._package, self._folder, self._configuration = package, folder, configuration
        self._run, self._seed, self._scale = run, seed, scale

    def begin(self, rows: Sequence[Row]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._scale}-{self._run}-{self._seed}"
        self._writer = self._package.init(
            project="aero",
            name=name,
            id=f"{name}-{self._configuration[:8]}",
            resume="allow",
            dir=str(self._folder),
            config={"run": self._run, "seed": self._seed, "scale": self._scale},
        )

    def add(self, row: Row) -> None:
        # W&B drops the steps that a resumed training repeats.
        self._writer.log(_measured(row), step=row["step"])

    def end(self) -> None:
        self._writer.finish()


def _measured(row: Row) -> dict[str, float]:
    """The row's values, grouped by quantity: entropy/layer_3."""
    values = {key: value for key, value in row.items() if value is not None and key != "step"}
    return {key.replace("_layer_", "/layer_"): value for key, value in values.items()}


def outcome_line(metrics: dict[str, Any]) -> str:
    """Perplexity and time of a training, or the step at which it diverged."""
    if metrics["eval_perplexity"] is None:
        return f"diverged at step {metrics['diverged_at_step']}"
    return f"perplexity {metrics['eval_perplexity']:.3f}, {metrics['provenance']['seconds']:.0f} s"
