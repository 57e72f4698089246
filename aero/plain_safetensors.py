"""Reading and writing the safetensors format where the package is missing; the same names as the package's.

The format: 8 bytes little-endian length of the header, the header as JSON (name -> dtype, shape, data_offsets, and
"__metadata__" with strings), then the tensors' bytes, little-endian and row-major.
"""

from __future__ import annotations

import json
import math
import struct
from types import TracebackType
from typing import Any

import numpy as np
import torch

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class SafetensorError(Exception):
    """The file does not keep to the format."""


def save_file(tensors: dict[str, torch.Tensor], path: str, metadata: dict[str, str]) -> None:
    """Write `tensors`, the widest types first, as the package does, so that every tensor is aligned."""
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    header: dict[str, object] = {"__metadata__": metadata}
    position, order = 0, sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())


class safe_open:
    """An opened file: `metadata()`, `keys()`, `get_tensor(name)`. SafetensorError if it is damaged."""

    def __init__(self, path: str, framework: str) -> None:
        data = np.fromfile(path, dtype=np.uint8)
        try:
            (length,) = struct.unpack("<Q", data[:8].tobytes())
            if length > len(data) - 8:
                raise ValueError(f"{length} bytes of a file of {len(data)}")
            header = json.loads(data[8 : 8 + length].tobytes())
            self._metadata = header.pop("__metadata__", None)
            self._entries = {name: _entry(name, entry) for name, entry in header.items()}
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SafetensorError(f"header: {error}") from None
        told = {} if self._metadata is None else self._metadata
        if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
            raise SafetensorError("header: its metadata are no texts by name")
        self._data = data[8 + length :]
        filled = 0
        for begin, end, *_ in sorted(self._entries.values(), key=lambda entry: entry[:2]):
            if begin != filled:
                raise SafetensorError("the tensors overlap or leave gaps")
            filled = end
        if filled != len(self._data):
            raise SafetensorError("the tensors do not fill the file")

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def keys(self) -> list[str]:
        return list(self._entries)

    def get_tensor(self, name: str) -> torch.Tensor:
        begin, end, dtype, shape = self._entries[name]
        values = torch.empty(shape, dtype=dtype)
        if end > begin:
            values.view(-1).view(torch.uint8).copy_(torch.from_numpy(self._data[begin:end]))
        return values


def _entry(name: str, entry: dict[str, Any]) -> tuple[int, int, torch.dtype, list[int]]:
    """Begin and end of a tensor's bytes, its type and shape. ValueError unless they fit each other."""
    (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], _TYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"tensor {name[:100]!r} is of a type that is not known here")
    if not isinstance(shape, list) or any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError(f"tensor {name[:100]!r}: a shape or place is not in whole numbers")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"tensor {name[:100]!r} has {end - begin} bytes, which is not its shape"[:300])
    return begin, end, dtype, shape
