"""Memory of a training on a CPU: what is freed is kept for the next step."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors instead of giving it back to the system; whether it does.

    A training frees and asks for the same tensors at every step. glibc gives large ones back, and the system then
    clears every page of the next ones. Numbers do not change by it; the process keeps what it once needed at its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library than glibc
    return bool(set_option(_M_TRIM_THRESHOLD, -1)) and bool(set_option(_M_MMAP_MAX, 0))
