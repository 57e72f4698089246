"""Memory of a process that answers for a long time: what a question took is given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # glibc's malloc.h
_LARGE_BYTES = 1 << 17


def give_freed_memory_back() -> bool:
    """Let this process keep one heap for all threads, and large blocks out of it; whether it does.

    Every question has a thread of its own, and glibc gives threads heaps of their own, up to eight a core; a freed
    block of 32 MB raises the size from which blocks are given back. Each heap is then filled with holes in turn.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library than glibc
    return bool(set_option(_M_ARENA_MAX, 1)) and bool(set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES))


def keep_what_is_there() -> None:
    """Call before the first question: what is there stays, so that `collect` need not look through all of it."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Call after a question, which leaves cycles behind: a tunnel, its event loop, buffers of TLS. By itself Python
    looks for old ones when a quarter as many objects as there are have been made: hundreds of questions later.
    """
    gc.collect()
