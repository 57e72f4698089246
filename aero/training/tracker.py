"""Following a training in TensorBoard or Weights & Biases, beside log.csv."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from aero.errors import UserError
from aero.records import Row
from aero.training.log import Observer

Tracker = Literal["tensorboard", "wandb"]


def open_tracker(name: Tracker, folder: Path, run: str, seed: int, scale: str, configuration: str) -> Observer:
    """The tracker called `name`; its files go below `folder`. configuration: its hash (`aero.training.run.run_hash`).
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
        # Steps that a killed process had shown beyond its last saved state are shown again; the first ones go.
        self._writer = self._package.SummaryWriter(str(self._folder), purge_step=done + 1)

    def add(self, row: Row) -> None:
        for key, value in _measured(row).items():
            self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """One W&B run a training; resuming goes on with it, under an id made of scale, run, seed and configuration: with
    another one it starts anew, and W&B would drop the steps that it has of the one before."""

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
        # W&B drops a step that it has seen already, which is what a resumed training repeats.
        self._writer.log(_measured(row), step=row["step"])

    def end(self) -> None:
        self._writer.finish()


def _measured(row: Row) -> dict[str, float]:
    """The row's values under names that group by layer quantity: entropy/layer_3."""
    values = {key: value for key, value in row.items() if value is not None and key != "step"}
    return {key.replace("_layer_", "/layer_"): value for key, value in values.items()}
