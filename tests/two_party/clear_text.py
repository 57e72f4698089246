"""What values look like in the clear, and looking for it in what crossed a link or lies in a process's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STEP = 2.0**-18  # of fixed point at 18 fraction bits
AT_ONCE = 1 << 24


def unprotected(*arrays):
    """What would give values away: two neighbours as float32 (8 bytes), or in 64-bit fixed point rounded either way."""
    patterns = set()
    for array in arrays:
        pairs = array.astype("<f4").reshape(-1, 2)
        pairs = pairs[(pairs != 0).all(1)]
        scaled = pairs.astype(np.float64) / STEP
        for encoded in (pairs, np.floor(scaled).astype("<i8"), np.ceil(scaled).astype("<i8")):
            patterns.update(row.tobytes() for row in encoded)
    return patterns


def occurrences(patterns, stream):
    """At how many places of the stream one of the patterns stands, at whatever offset."""
    heads = np.unique(np.frombuffer(b"".join(pattern[:8] for pattern in patterns), "<u8"))
    found = 0
    for offset in range(8):
        seen = np.frombuffer(stream, "<u8", count=(len(stream) - offset) // 8, offset=offset)
        candidates = np.flatnonzero(heads[np.searchsorted(heads, seen).clip(max=len(heads) - 1)] == seen)
        for start in candidates * 8 + offset:
            # One small fixed-point number, mostly zero bytes, stands in any large ciphertext; two in a row do not.
            found += stream[start : start + 8] in patterns or stream[start : start + 16] in patterns
    return found


def found_in_memory(pid, secrets):
    """Which of `secrets`, {name: bytes}, stand in the writable memory of process `pid`, and how many bytes that has."""
    found, size, longest = set(), 0, max(map(len, secrets.values()))
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for low, high in _resident(pid):
            for start in range(low, high, AT_ONCE - longest):
                try:
                    memory.seek(start)
                    data = memory.read(min(AT_ONCE, high - start))
                except (OSError, ValueError, OverflowError):
                    break  # pages that only the kernel can read
                size += len(data)
                found.update(name for name, secret in secrets.items() if secret in data)
    return found, size


def _resident(pid):
    """(start, end) of the writable mappings that are in memory."""
    span = None
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and rest and len(rest[0]) == 4:
            span = [int(edge, 16) for edge in first.split("-")] if rest[0].startswith("rw") else None
        elif first == "Rss:" and rest[0] != "0" and span is not None:
            yield span
