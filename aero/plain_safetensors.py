"""Reading and writing the safetensors format where the package is missing; the same names as the package's.

The format: 8 bytes little-endian length of the header, the header as JSON (name -> dtype, shape, data_offsets, and
"__metadata__" with strings), then the tensors' bytes, little-endian and row-major.
"""

from __future__ import annotations

import json
import struct
from types import TracebackType

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
            header = json.loads(data[8 : 8 + length].tobytes())
            self._metadata = header.pop("__metadata__", None)
            self._entries = {name: (*entry["data_offsets"], entry) for name, entry in header.items()}
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SafetensorError(f"header: {error}") from None
        self._data = data[8 + length :]
        if max((end for _, end, _ in self._entries.values()), default=0) != len(self._data):
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
        begin, end, entry = self._entries[name]
        try:
            values = torch.empty(entry["shape"], dtype=_TYPES[entry["dtype"]])
            if end > begin:
                values.view(-1).view(torch.uint8).copy_(torch.from_numpy(self._data[begin:end]))
            return values
        except (KeyError, TypeError, RuntimeError) as error:
            raise SafetensorError(f"tensor {name}: {error}") from None
