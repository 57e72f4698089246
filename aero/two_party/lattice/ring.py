"""A party's own share as ring elements, from and to the protobuf messages in bytes that SPU gives and takes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np


def ring_elements(share: Any, kind: str) -> np.ndarray:
    """The elements (n,) uint64 of an additive share ("AShr"), row by row, or of a xor share of booleans ("BShr").

    ValueError if the share is of another kind or its chunks do not fit together.
    """
    from spu import libspu

    meta = libspu.ValueMeta()
    meta.ParseFromString(share.meta)
    found = re.fullmatch(rf"cheetah\.{kind}<FM(\d+)(,1)?>", meta.storage_type)
    if found is None:
        raise ValueError(f"{meta.storage_type} is no {kind}")
    content, width, count = content_of(share), int(found[1]) // 8, math.prod(meta.shape.dims)
    if len(content) != count * width:
        raise ValueError(f"a share of {count} elements has {len(content)} bytes, not {count * width}")
    return np.frombuffer(content, f"<u{width}").astype(np.uint64)


def content_of(share: Any) -> bytes:
    """The joined content of a share's chunks. ValueError if they are damaged or do not fit together."""
    from spu import libspu

    parts, totals = [], set()
    for message in share.share_chunks:
        chunk = libspu.ValueChunk()
        if not chunk.ParseFromString(message):
            raise ValueError("a chunk of a share is cut off or damaged")
        parts.append((chunk.chunk_offset, chunk.content))
        totals.add(chunk.total_bytes)
    parts.sort()
    content = b"".join(part for _, part in parts)
    starts = np.cumsum([0, *(len(part) for _, part in parts)])
    if totals != {len(content)} or any(offset != start for (offset, _), start in zip(parts, starts, strict=False)):
        raise ValueError("the chunks of a share do not fit together; is this SPU 0.9.5?")
    return content


def share_of(values: np.ndarray, shape: Sequence[int], dtype: Any, owner: int | None, field: str) -> Any:
    """This party's share of a bool, int32 or float32 value, as SPU takes it.

    values: ring elements; for bool the xor share of each bit. owner: the party that holds the value in the clear (the
    other's elements are zeros); None for a secret.
    """
    from spu import libspu

    types, dtype = libspu.DataType, np.dtype(dtype)
    meta, chunk, share = libspu.ValueMeta(), libspu.ValueChunk(), libspu.Share()
    meta.data_type = {"bool": types.DT_I1, "int32": types.DT_I32, "float32": types.DT_F32}[dtype.name]
    meta.shape = [int(n) for n in shape]
    if owner is not None:
        meta.visibility, meta.storage_type = libspu.Visibility.VIS_PRIVATE, f"Priv2k<{field},{owner}>"
    else:
        meta.visibility = libspu.Visibility.VIS_SECRET
        meta.storage_type = f"cheetah.BShr<{field},1>" if dtype == np.bool_ else f"cheetah.AShr<{field}>"
    chunk.content = np.ascontiguousarray(values, np.dtype(f"<u{int(field[2:]) // 8}")).tobytes()
    chunk.total_bytes = len(chunk.content)
    share.meta, share.share_chunks = meta.SerializeToString(), [chunk.SerializeToString()]
    return share
