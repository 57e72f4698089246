"""What values look like in the clear, and looking for it in what crossed a link or lies in a process's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aero.two_party.program import bounded

STEP = 2.0**-18  # of fixed point at 18 fraction bits
AT_ONCE = 1 << 16  # small, so that much that is all zeros, which is slow to search, can be left out


def unprotected(*arrays):
    """What would give values away: two neighbours as float32 (8 bytes), or in 64-bit fixed point, however rounded."""
    patterns = set()
    for array in arrays:
        pairs = array.astype("<f4").ravel()[: array.size // 2 * 2].reshape(-1, 2)
        pairs = pairs[(pairs != 0).all(1)]
        scaled = pairs.astype(np.float64) / STEP
        for encoded in (pairs, *(round_(scaled).astype("<i8") for round_ in (np.floor, np.ceil, np.trunc, np.rint))):
            patterns.update(row.tobytes() for row in encoded)
    return patterns


def occurrences(patterns, stream):
    """At how many places of the stream one of the patterns stands, at whatever offset."""
    heads = np.unique(np.frombuffer(b"".join(pattern[:8] for pattern in patterns), "<u8"))
    found, some = 0, np.zeros(1 << 22, bool)
    some[_mixed(heads)] = True
    for offset in range(8):
        seen = np.frombuffer(stream, "<u8", count=(len(stream) - offset) // 8, offset=offset)
        possible = np.flatnonzero(some[_mixed(seen)])
        for start in possible[np.isin(seen[possible], heads)] * 8 + offset:
            # One small fixed-point number, mostly zero bytes, stands in any large ciphertext; two in a row do not.
            found += stream[start : start + 8] in patterns or stream[start : start + 16] in patterns
    return found


def _mixed(words):
    """22 bits that depend on all bits of a word: most words are ruled out by them."""
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(42)


def large_runs(values, smallest=0.1, length=4):
    """(n, length) neighbours in a vector of which none is small: half of all random bits are a small float32."""
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(values, np.float64), length)
    return runs[(np.abs(runs) > smallest).all(1)]


def near(runs, stream, tolerance=0.01):
    """Whether one of `runs`, (n, length), stands in the stream, each number within the tolerance, as private logits are
    of the model's; as float32 or in fixed point of 32 or 64 bits, at whatever offset."""
    least, most, length = np.abs(runs).min() - tolerance, np.abs(runs).max() + tolerance, runs.shape[1]
    for dtype, unit in (("<f4", 1.0), ("<i4", STEP), ("<i8", STEP)):
        size = np.dtype(dtype).itemsize
        for offset in range(size):
            seen = np.frombuffer(stream, dtype, count=(len(stream) - offset) // size, offset=offset)
            with np.errstate(invalid="ignore"):
                fitting = (np.abs(seen) > least / unit) & (np.abs(seen) < most / unit)
            together = fitting[length - 1 :].copy()  # of the last of `length` neighbours: whether all of them fit
            for back in range(1, length):
                together &= fitting[length - 1 - back : -back]
            for place in np.flatnonzero(together):
                found = seen[place : place + length].astype(np.float64) * unit
                if (np.abs(runs - found) < tolerance).all(1).any():
                    return True
    return False


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
                if data != bytes(len(data)):
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


def reciprocal_error(most):
    """Largest relative error of `bounded.reciprocal`, but for fixed point."""
    return 1 / bounded._chebyshev(1 / bounded._buckets(most)[2])
