"""Model checkpoints: safetensors with architecture and sizes in the metadata. Nothing is unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from aero.architecture import parse
from aero.errors import check_file, one_line
from aero.model import GPT, ModelConfig
from aero.records import write_together

FORMAT = "aero-checkpoint-1"
LARGEST_SIZE, MOST_LAYERS = 2**20, 256
"""A description with larger sizes is refused as damaged or hostile."""


def save(path: Path | str, model: GPT, **metadata: str) -> None:
    """Write `model` to `path`, atomically."""
    write_together({Path(path): packed(model, **metadata)})


def packed(model: GPT, **metadata: str) -> bytes:
    """The content of a checkpoint of `model`."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    header = {
        "format": FORMAT,
        "architecture": str(model.architecture),
        "config": json.dumps(dataclasses.asdict(model.config)),
        **metadata,
    }
    return _packed(tensors, header)


def load(path: Path | str) -> GPT:
    """The model stored at `path`, in evaluation mode. ValueError if the file is missing, damaged or of another kind."""
    tensors, header = read_tensors(path, FORMAT)
    try:
        architecture, config = parse(header["architecture"]), model_config(json.loads(header["config"]))
        if config.layers > len(tensors):
            raise ValueError(f"{config.layers} layers of {len(tensors)} tensors")
        with torch.device("meta"):  # check the sizes that the file claims before allocating memory for them
            _check_fit(tensors, GPT(architecture, config).state_dict())
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # also RecursionError
        reason = one_line(error)[:300]
        raise ValueError(
            f"checkpoint {path} does not fit its own description ({reason}); train the run again"
        ) from None
    model = GPT(architecture, config)
    model.load_state_dict(tensors)
    return model.eval()


def metadata(path: Path | str) -> dict[str, str]:
    """All metadata of the checkpoint at `path`, without its weights. ValueError as `load`."""
    return read_tensors(path, FORMAT, header_only=True)[1]


def model_config(values: Any) -> ModelConfig:
    """Sizes and switches from untrusted JSON. ValueError unless each is known, of its type, finite and possible."""
    types = typing.get_type_hints(ModelConfig)
    if not isinstance(values, Mapping):
        raise ValueError("its sizes are not a mapping")
    if odd := sorted(map(str, set(values) - set(types))):
        raise ValueError(f"unknown size {odd[0][:40]!r}")
    for name, value in values.items():
        wanted = types[name] if isinstance(types[name], type) else str
        if type(value) not in ((int, float) if wanted is float else (wanted,)):
            raise ValueError(f"{name} is {str(value)[:40]!r}, not of type {wanted.__name__}")
        if wanted is float and not abs(value) < 1e30:  # also true of NaN, and of an integer beyond floats
            raise ValueError(f"{name} is {str(value)[:40]}")
        if wanted is int and value > (MOST_LAYERS if name == "layers" else LARGEST_SIZE):
            raise ValueError(f"{name} {str(value)[:40]} is larger than any model of this project")
    return ModelConfig(**values)


def _check_fit(tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """ValueError unless `tensors` have the names, shapes and types of `wanted`."""
    expected, found = ({name: f"{x.dtype} {tuple(x.shape)}" for name, x in some.items()} for some in (wanted, tensors))
    if odd := [name for name in expected | found if expected.get(name) != found.get(name)]:
        raise ValueError(f"tensor {odd[0]!r} is {found.get(odd[0])}, not {expected.get(odd[0])}; {len(odd)} differ")


def write_tensors(path: Path | str, tensors: dict[str, torch.Tensor], header: dict[str, str]) -> None:
    """Write a safetensors file, as a whole or not at all. OSError if that fails."""
    write_together({Path(path): _packed(tensors, header)})


def _packed(tensors: dict[str, torch.Tensor], header: dict[str, str]) -> bytes:
    """A safetensors file. The header is one JSON entry of its metadata: safetensors writes several in random order, and
    equal contents give equal files. It contains the SHA-256 of header and tensors, which `read_tensors` checks."""
    header = header | {"sha256": digest(tensors, header)}
    return safetensors.torch.save(tensors, {"aero": json.dumps(header, sort_keys=True)})


def read_tensors(
    path: Path | str, expected_format: str, *, header_only: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. ValueError if missing, damaged or not of `expected_format`.

    The SHA-256 is checked unless `header_only`.
    """
    try:
        check_file(Path(path))
    except FileNotFoundError:
        raise ValueError(
            f"checkpoint {path} does not exist; train the run first (python -m stages.train RUN)"
        ) from None
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("aero", "{}"))
            if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
                raise ValueError("its metadata are not a mapping of texts")
            tensors = {} if header_only else {name: file.get_tensor(name) for name in file.keys()}
        found = header.get("format")
        checked = found == expected_format and not header_only and "sha256" in header  # older files have none
        if checked and header["sha256"] != digest(tensors, header):
            raise ValueError("its SHA-256 is not the one that was written with it")
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        reason = one_line(error)[:300]
        raise ValueError(f"checkpoint {path} is damaged or no checkpoint ({reason}); train the run again") from None
    if found != expected_format:
        raise ValueError(f"{path} is no {expected_format} file: its format is {str(found)[:40]!r}")
    return tensors, header


def digest(tensors: Mapping[str, torch.Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of the header without its own `sha256` entry, and of every tensor's name, type, shape and bytes."""
    whole = hashlib.sha256(json.dumps({k: v for k, v in header.items() if k != "sha256"}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        whole.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()
