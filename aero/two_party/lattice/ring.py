"""A party's own share as ring elements, from and to SPU's serialised form.

SPU 0.9.5 gives a share as protobuf messages in bytes: one `ValueMetaProto` (data_type 1, visibility 3, shape 4 with
dims 1, storage_type 5) and chunks, `ValueChunkProto` (total_bytes 1, chunk_offset 2, content 3). Zeros are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_VARINT, _BYTES = 0, 2
_TOTAL, _OFFSET, _CONTENT = 1, 2, 3
_DATA_TYPE, _VISIBILITY, _SHAPE, _STORAGE, _DIMS = 1, 3, 4, 5, 1
_DATA_TYPES = {np.dtype(np.bool_): 1, np.dtype(np.int32): 6, np.dtype(np.float32): 11}
_SECRET, _PRIVATE = 1, 3


def ring_elements(share: Any, bits: int) -> np.ndarray:
    """The elements (n,) uint64 of an additive share in a ring of `bits` bits, 32 or 64, row by row.

    ValueError if the share is of another kind or its chunks do not fit together.
    """
    from spu import libspu

    meta = libspu.ValueMeta()
    meta.ParseFromString(share.meta)
    if not meta.storage_type.startswith("cheetah.AShr"):
        raise ValueError(f"{meta.storage_type} is no additive share")
    content = content_of(share)
    count = int(np.prod(tuple(meta.shape.dims), dtype=np.int64))
    if len(content) != count * bits // 8:
        raise ValueError(f"a share of {count} elements has {len(content)} bytes, not {count * bits // 8}")
    return np.frombuffer(content, np.dtype(f"<u{bits // 8}")).astype(np.uint64)


def bits_of(share: Any, count: int) -> np.ndarray:
    """The xor shares (n,) uint64, each 0 or 1, of `count` booleans. ValueError if the share is of another kind."""
    from spu import libspu

    meta = libspu.ValueMeta()
    meta.ParseFromString(share.meta)
    kind = re.fullmatch(r"cheetah\.BShr<FM(\d+),1>", meta.storage_type)
    if kind is None:
        raise ValueError(f"{meta.storage_type} is no xor share of booleans")
    content, each = content_of(share), int(kind[1]) // 8
    if len(content) != count * each:
        raise ValueError(f"a share of {count} booleans has {len(content)} bytes, not {count * each}")
    return np.frombuffer(content, f"<u{each}").astype(np.uint64) & np.uint64(1)


def content_of(share: Any) -> bytes:
    """The joined content of a share's chunks. ValueError if they do not fit together."""
    return _joined([dict(_fields(chunk)) for chunk in share.share_chunks])


def share_of(values: np.ndarray, shape: Sequence[int], dtype: Any, owner: int | None, field: str) -> Any:
    """This party's share of a bool, int32 or float32 value, as SPU takes it.

    values: ring elements; for bool the xor share of each bit. owner: the party that holds the value in the clear (the
    other's elements are zeros); None for a secret.
    """
    from spu import libspu

    boolean = np.dtype(dtype) == np.bool_
    if owner is not None:
        visibility, storage = _PRIVATE, f"Priv2k<{field},{owner}>"
    else:
        visibility, storage = _SECRET, f"cheetah.BShr<{field},1>" if boolean else f"cheetah.AShr<{field}>"
    dims = b"".join(_varint(int(n)) for n in shape)
    share = libspu.Share()
    share.meta = (
        _number(_DATA_TYPE, _DATA_TYPES[np.dtype(dtype)])
        + _number(_VISIBILITY, visibility)
        + _content(_SHAPE, _content(_DIMS, dims) if dims else b"")
        + _content(_STORAGE, storage.encode())
    )
    content = np.ascontiguousarray(values, np.dtype(f"<u{int(field[2:]) // 8}")).tobytes()
    share.share_chunks = [_number(_TOTAL, len(content)) + _content(_CONTENT, content)]
    return share


def _number(field: int, value: int) -> bytes:
    return bytes([field << 3 | _VARINT]) + _varint(value)


def _content(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | _BYTES]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _joined(chunks: Sequence[dict[int, Any]]) -> bytes:
    parts = [(chunk.get(_OFFSET, 0), chunk.get(_CONTENT, b"")) for chunk in chunks]
    if not all(isinstance(offset, int) and isinstance(part, bytes) for offset, part in parts):
        raise ValueError("a chunk of a share has its fields in other types; is this SPU 0.9.5?")
    parts.sort()
    content = b"".join(part for _, part in parts)
    starts = np.cumsum([0, *(len(part) for _, part in parts)])
    totals = {chunk.get(_TOTAL, 0) for chunk in chunks}
    if totals != {len(content)} or any(offset != start for (offset, _), start in zip(parts, starts, strict=False)):
        raise ValueError("the chunks of a share do not fit together; is this SPU 0.9.5?")
    return content


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a chunk, a protobuf message of numbers and byte strings."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if key >> 3 not in (_TOTAL, _OFFSET, _CONTENT):
            raise ValueError(f"a chunk of a share has a field {key >> 3}; is this SPU 0.9.5?")
        if key & 7 == _BYTES:
            if at + value > len(message):
                raise ValueError("a chunk of a share is cut off")
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 == _VARINT:
            yield key >> 3, value
        else:
            raise ValueError(f"a chunk of a share has a field of kind {key & 7}; is this SPU 0.9.5?")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a chunk of a share is cut off, or a number in it is too long")
