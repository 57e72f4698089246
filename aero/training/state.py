"""The training state from which a killed run resumes: weights, optimizer moments, loss scale and the log so far."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from aero.checkpoint import read_tensors, write_tensors
from aero.errors import one_line
from aero.model import GPT
from aero.records import Row

FORMAT = "aero-training-state-3"
PROGRESS = ("steps_done", "seconds", "cpu_seconds", "rows", "float16_overflow")
"""Fields of `Outcome` that a state holds."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW holds of each parameter."""


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
    header = {name: json.dumps(getattr(outcome, name)) for name in PROGRESS}
    header |= {"format": FORMAT, "hash": state_hash, "scaler": json.dumps(scaler.state_dict())}
    write_tensors(path, tensors, header)


def restore(
    path: Path,
    state_hash: str,
    outcome: Outcome,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Load a state written by `store`. One that is damaged or of another configuration is ignored: training starts
    anew."""
    try:
        tensors, header = read_tensors(path, FORMAT)
        if header["hash"] != state_hash:
            raise ValueError(f"{path} belongs to another configuration")
        # Read everything before changing anything.
        progress, scale = {name: json.loads(header[name]) for name in PROGRESS}, json.loads(header["scaler"])
        weights = {name: tensors[f"model.{name}"] for name in outcome.model.state_dict()}
        moments = {
            name: {moment: tensors[f"optimizer.{moment}.{name}"] for moment in MOMENTS}
            for name, _ in outcome.model.named_parameters()
            if f"optimizer.step.{name}" in tensors
        }
    except (ValueError, KeyError) as error:
        tqdm.write(f"starting anew: {one_line(error)[:900]}")
        return
    outcome.model.load_state_dict(weights)
    for name, parameter in outcome.model.named_parameters():
        if name in moments:
            found = {moment: value.to(parameter.device) for moment, value in moments[name].items()}
            if not optimizer.defaults.get("fused"):  # only a fused optimiser counts steps on its parameters' device
                found["step"] = found["step"].cpu()
            optimizer.state[parameter] = found
    if scaler.is_enabled():
        scaler.load_state_dict(scale)
    for name, value in progress.items():
        setattr(outcome, name, value)
