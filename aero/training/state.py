"""The training state from which a killed run resumes: weights, optimizer moments, loss scale and the log so far."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from aero.checkpoint import check_fit, read_tensors, write_tensors
from aero.errors import one_line
from aero.model import GPT
from aero.records import Row
from aero.schema import TrainParameters
from aero.training.log import columns

FORMAT = "aero-training-state-3"


@dataclass
class Outcome:
    """Result of a training: the model, the log and how it ended.

    diverged_at_step: step whose loss or gradient was not finite, None if there was none.
    first_nonfinite: {"step", "layer", "where"} (`diagnostics.find_nonfinite`).
    cpu_seconds: processor time, which other work on the machine does not lengthen.
    float16_overflow: first logged {"step", "layer", "value"} with an activation beyond 65504, where the papers' fp16
        training would have become infinite; value None if it was not finite here either.
    """

    model: GPT
    rows: list[Row] = field(default_factory=list)
    steps_done: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    diverged_at_step: int | None = None
    first_nonfinite: dict[str, Any] | None = None
    float16_overflow: dict[str, Any] | None = None


def store(
    path: Path, state_hash: str, outcome: Outcome, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    """Save the state atomically under the configuration's hash."""
    tensors = {f"model.{name}": value.detach().cpu().contiguous() for name, value in outcome.model.state_dict().items()}
    for name, parameter in outcome.model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{moment}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    header = {
        "format": FORMAT,
        "hash": state_hash,
        "steps_done": str(outcome.steps_done),
        "seconds": repr(outcome.seconds),
        "cpu_seconds": repr(outcome.cpu_seconds),
        "rows": json.dumps(outcome.rows),
        "float16_overflow": json.dumps(outcome.float16_overflow),
        "scaler": json.dumps(scaler.state_dict()),
    }
    write_tensors(path, tensors, header)


def restore(
    path: Path,
    state_hash: str,
    outcome: Outcome,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    settings: TrainParameters,
) -> None:
    """Load a state written by `store`. A damaged one or one of another configuration is ignored: training starts anew.
    settings: those of the training that resumes."""
    try:
        tensors, header = read_tensors(path, FORMAT)
        if header.get("hash") != state_hash:
            raise ValueError(f"{path} belongs to another configuration")
        if "sha256" not in header:
            raise ValueError(f"{path} has no checksum")
        # Read everything before changing anything.
        steps_done = int(header["steps_done"])
        seconds, cpu_seconds = float(header["seconds"]), float(header["cpu_seconds"])
        rows, overflow, scale = (json.loads(header[name]) for name in ("rows", "float16_overflow", "scaler"))
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        check_fit(weights, outcome.model.state_dict())
        if not 0 <= steps_done < settings.steps or not (0 <= seconds < math.inf and 0 <= cpu_seconds < math.inf):
            raise ValueError(f"{path} has {steps_done} steps in {seconds} s, of {settings.steps}")
        layers, slopes = outcome.model.config.layers, outcome.model.leaky_slopes
        names = columns(layers, settings.log_attention, 0 if slopes is None else slopes.numel())
        if any(name not in names for row in rows for name in row):
            raise ValueError(f"{path} has a log with other columns")
        if scale.keys() != scaler.state_dict().keys():
            raise ValueError(f"{path} has the loss scale of another precision")
        moments = {
            name: _moments(path, tensors, name, parameter) for name, parameter in outcome.model.named_parameters()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        tqdm.write(f"starting anew: {one_line(error)[:900]}")
        return
    outcome.model.load_state_dict(weights)
    for name, parameter in outcome.model.named_parameters():
        if (found := moments[name]) is not None:
            # A fused optimiser counts steps on the device of its parameters, the others on the CPU.
            place = parameter.device if optimizer.defaults.get("fused") else "cpu"
            optimizer.state[parameter] = {
                "step": found["step"].to(place),
                "exp_avg": found["exp_avg"].to(parameter.device),
                "exp_avg_sq": found["exp_avg_sq"].to(parameter.device),
            }
    if scaler.is_enabled():
        scaler.load_state_dict(scale)
    outcome.steps_done, outcome.rows, outcome.float16_overflow = steps_done, rows, overflow
    outcome.seconds, outcome.cpu_seconds = seconds, cpu_seconds


def _moments(path: Path, tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor] | None:
    """The optimiser's state of one parameter, None if it has none; ValueError if a part of it does not fit."""
    found = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
    if all(value is None for value in found.values()):
        return None
    for key, value in found.items():
        shape, dtype = (torch.Size(), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
        if value is None or value.shape != shape or value.dtype != dtype:
            raise ValueError(f"{path}: the optimiser's {key} of {name} is missing or has another shape")
    return found
