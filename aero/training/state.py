"""The training state that a killed run resumes from: weights, optimizer moments, loss scale and the log so far."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from aero.checkpoint import check_fit, read_tensors, write_tensors
from aero.errors import UserError, one_line

if TYPE_CHECKING:
    from aero.training.loop import Outcome

FORMAT = "aero-training-state-3"


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
    path: Path, state_hash: str, outcome: Outcome, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    """Load a state written by `store`. One of another configuration, or a damaged one, is ignored: training starts
    anew, which costs time and never a wrong result."""
    try:
        tensors, header = read_tensors(path, FORMAT)
        if header.get("hash") != state_hash:
            raise ValueError(f"{path} belongs to another configuration")
        if "sha256" not in header:
            raise ValueError(f"{path} is of an older version, whose damage would not be noticed")
        # Everything is read before anything is taken over.
        steps_done = int(header["steps_done"])
        seconds, cpu_seconds = float(header["seconds"]), float(header["cpu_seconds"])
        rows, overflow, scale = (json.loads(header[name]) for name in ("rows", "float16_overflow", "scaler"))
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        check_fit(weights, outcome.model.state_dict())
        if not 0 <= steps_done or not (math.isfinite(seconds) and math.isfinite(cpu_seconds)):
            raise ValueError(f"{path} counts {steps_done} steps in {seconds} s")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{path} holds no rows of a log")
        moments = {
            name: _moments(path, tensors, name, parameter) for name, parameter in outcome.model.named_parameters()
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        tqdm.write(f"starting anew: {one_line(error)[:900]}")  # it may quote what the file says
        return
    outcome.model.load_state_dict(weights)
    for name, parameter in outcome.model.named_parameters():
        if (kept := moments[name]) is not None:
            # A fused optimiser counts steps where its parameters are, the others on the host.
            place = parameter.device if optimizer.defaults.get("fused") else "cpu"
            optimizer.state[parameter] = {
                "step": kept["step"].to(place),
                "exp_avg": kept["exp_avg"].to(parameter.device),
                "exp_avg_sq": kept["exp_avg_sq"].to(parameter.device),
            }
    if scaler.is_enabled():
        scaler.load_state_dict(scale)
    outcome.steps_done, outcome.rows, outcome.float16_overflow = steps_done, rows, overflow
    outcome.seconds, outcome.cpu_seconds = seconds, cpu_seconds


def _moments(path: Path, tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor] | None:
    """What the optimiser had of one parameter, None if it had nothing; ValueError if a part of it does not fit."""
    found = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
    if all(value is None for value in found.values()):
        return None
    for key, value in found.items():
        shape, dtype = (torch.Size(), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
        if value is None or value.shape != shape or value.dtype != dtype:
            raise ValueError(f"{path}: the optimiser's {key} of {name} is missing or of another form")
    return found


@contextlib.contextmanager
def lock(path: Path | None) -> Iterator[None]:
    """Hold the state at `path` for this process alone; the system lets go of it however the process ends.

    UserError if another process holds it: two trainings of one run would overwrite each other's state.
    """
    if path is None:
        yield
        return
    place = path.with_suffix(".lock")
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is training this run (it holds {place}); wait for it or stop it"
            ) from None
        yield
