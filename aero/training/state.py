"""The training state that a killed run resumes from: weights, optimizer moments, loss scale and the log so far."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from aero.checkpoint import check_fit, read_tensors, write_tensors
from aero.errors import one_line
from aero.training.log import columns

if TYPE_CHECKING:
    from aero.training.loop import Outcome, TrainSettings

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
    path: Path,
    state_hash: str,
    outcome: Outcome,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    settings: TrainSettings,
) -> None:
    """Load a state written by `store`. One of another configuration or other code, or a damaged one, is ignored:
    training starts anew, which costs time and never a wrong result. settings: of the training that is to go on."""
    try:
        tensors, header = read_tensors(path, FORMAT)
        if header.get("hash") != state_hash:
            raise ValueError(f"{path} belongs to another configuration or other code")
        if "sha256" not in header:
            raise ValueError(f"{path} is of an older version, whose damage would not be noticed")
        # Everything is read before anything is taken over.
        steps_done = int(header["steps_done"])
        seconds, cpu_seconds = float(header["seconds"]), float(header["cpu_seconds"])
        rows, overflow, scale = (json.loads(header[name]) for name in ("rows", "float16_overflow", "scaler"))
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        check_fit(weights, outcome.model.state_dict())
        # A state is of a training that was not over, so the last step was still to come.
        if not 0 <= steps_done < settings.steps or not (0 <= seconds < math.inf and 0 <= cpu_seconds < math.inf):
            raise ValueError(f"{path} counts {steps_done} steps in {seconds} s, of {settings.steps}")
        layers, slopes = outcome.model.config.layers, outcome.model.leaky_slopes
        names = columns(layers, settings.log_attention, 0 if slopes is None else slopes.numel())
        _check_rows(path, rows, names, steps_done)
        _check_overflow(path, overflow, steps_done, layers)
        _check_scale(path, scale, scaler.state_dict())
        moments = {
            name: _moments(path, tensors, name, parameter, steps_done)
            for name, parameter in outcome.model.named_parameters()
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


def _check_rows(path: Path, rows: Any, names: Sequence[str], steps_done: int) -> None:
    """ValueError unless these are rows of a log with the columns `names`, their steps rising up to `steps_done`."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no rows of a log")
    for name, value in (cell for row in rows for cell in row.items()):
        if name not in names:
            raise ValueError(f"{path}: its log has a column {name[:40]!r}, which this training does not have")
        whole = name in ("step", "tokens") or name.startswith("overflow_")  # as aero.training.log.read takes them
        if not (value is None or _is_number(value, whole)):
            raise ValueError(f"{path}: {name} of its log is {str(value)[:40]!r}")
    steps = [row.get("step") or 0 for row in rows]
    if any(later <= step for step, later in itertools.pairwise([0, *steps, steps_done + 1])):
        raise ValueError(f"{path}: the steps of its log do not rise from 1 to {steps_done}")


def _check_overflow(path: Path, overflow: Any, steps_done: int, layers: int) -> None:
    """ValueError unless this is what `Outcome.float16_overflow` may be after so many steps of so many layers."""
    if overflow is None:
        return
    if not isinstance(overflow, dict) or overflow.keys() != {"step", "layer", "value"}:
        raise ValueError(f"{path}: its overflow of float16 has no step, layer and value")
    step, layer, value = (overflow[name] for name in ("step", "layer", "value"))
    found = _is_number(step, whole=True) and 1 <= step <= steps_done
    found = found and _is_number(layer, whole=True) and 0 <= layer < layers
    if not found or not (value is None or _is_number(value)):
        raise ValueError(f"{path}: its overflow of float16 is of {str(overflow)[:100]}")


def _check_scale(path: Path, found: Any, own: Mapping[str, Any]) -> None:
    """ValueError unless this is a state of the gradient scaler whose state now is `own`, {} if it is not enabled.

    Only the scale and the steps since it last changed are the training's; the rest is how the scaler was made.
    """
    if not isinstance(found, dict) or found.keys() != own.keys():
        raise ValueError(f"{path}: its loss scale is of another scaler")
    for name, value in found.items():
        if name == "scale":
            fits = _is_number(value) and 0 < value <= torch.finfo(torch.float32).max
        elif name == "_growth_tracker":
            fits = _is_number(value, whole=True) and 0 <= value < own["growth_interval"]
        else:
            fits = type(value) is type(own[name]) and value == own[name]
        if not fits:
            raise ValueError(f"{path}: {name} of its loss scale is {str(value)[:40]!r}")


def _is_number(value: Any, whole: bool = False) -> bool:
    """Whether this is a number of JSON that a float can hold; `true`, NaN and infinity are none."""
    return type(value) in ((int,) if whole else (int, float)) and abs(value) <= sys.float_info.max


def _moments(
    path: Path, tensors: Mapping[str, Tensor], name: str, parameter: Tensor, steps_done: int
) -> dict[str, Tensor] | None:
    """What the optimiser had of one parameter, None if it had nothing; ValueError if a part of it does not fit."""
    found = {key: tensors.get(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
    if all(value is None for value in found.values()):
        return None
    for key, value in found.items():
        shape, dtype = (torch.Size(), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
        if value is None or value.shape != shape or value.dtype != dtype:
            raise ValueError(f"{path}: the optimiser's {key} of {name} is missing or of another form")
    # float16 leaves steps out, but nothing takes more of them.
    if not 0 <= found["step"].item() <= steps_done:
        raise ValueError(f"{path}: the optimiser counts {found['step'].item():g} steps of {name}, not {steps_done}")
    return found
