"""Model checkpoints: safetensors with the architecture and sizes in the metadata. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import torch

from aero.architecture import Architecture, parse
from aero.model import GPT, ModelConfig

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ModuleNotFoundError:
    from aero.plain_safetensors import SafetensorError, safe_open, save_file

FORMAT = "aero-checkpoint-1"


def save(path: Path | str, model: GPT, **metadata: str) -> None:
    """Write `model` to `path`, beside first and then renamed, so that a reader never sees half a file."""
    path = Path(path)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    header = {
        "format": FORMAT,
        "architecture": str(model.architecture),
        "config": json.dumps(dataclasses.asdict(model.config)),
        **metadata,
    }
    write_tensors(path, tensors, header)


def load(path: Path | str) -> GPT:
    """The model stored at `path`, in evaluation mode. ValueError if the file is missing, damaged or of another kind."""
    tensors, header = read_tensors(path, FORMAT)
    try:
        model = GPT(parse(header["architecture"]), ModelConfig(**json.loads(header["config"])))
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"checkpoint {path} does not fit its own description ({error}); train the run again") from None
    return model.eval()


def describe(path: Path | str) -> tuple[Architecture, ModelConfig, dict[str, str]]:
    """Architecture, sizes and all metadata of the checkpoint at `path`, without its weights. ValueError as `load`."""
    _, header = read_tensors(path, FORMAT, header_only=True)
    try:
        return parse(header["architecture"]), ModelConfig(**json.loads(header["config"])), header
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {path} does not describe its model ({error}); train the run again") from None


def write_tensors(path: Path | str, tensors: dict[str, torch.Tensor], header: dict[str, str]) -> None:
    """Write a safetensors file atomically: to a temporary name, flushed to disk, renamed. OSError if it cannot be.

    The header is one JSON entry of the metadata: safetensors writes several entries in a random order, and equal
    contents should be equal files.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        save_file(tensors, str(temporary), metadata={"aero": json.dumps(header, sort_keys=True)})
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise OSError(f"{path} cannot be written ({error}); make room on its disk") from None
        raise


def read_tensors(
    path: Path | str, expected_format: str, *, header_only: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. ValueError if missing, damaged or not of `expected_format`."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"checkpoint {path} does not exist; train the run first (python -m stages.train RUN)")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("aero", "{}"))
            tensors = {} if header_only else {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"checkpoint {path} is damaged ({error}); delete it and train the run again") from None
    if header.get("format") != expected_format:
        raise ValueError(f"{path} is no {expected_format} file; it says {header.get('format')!r}")
    return tensors, header
