"""The heap of a server: one for all threads."""

from __future__ import annotations

import subprocess
import sys

from aero.pipeline import ROOT

# 24 threads at once, each with blocks of 2 KB.
BLOCKS = """
import ctypes, sys, threading
from aero.two_party.heap import give_freed_memory_back
if sys.argv[1] == "back":
    assert give_freed_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
barrier = threading.Barrier(24)
arenas = set()
def work():
    barrier.wait()
    blocks = [libc.malloc(2048) for _ in range(200)]
    arenas.update(block >> 26 for block in blocks)
    barrier.wait()
    for block in blocks:
        libc.free(block)
threads = [threading.Thread(target=work) for _ in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(arenas))
"""


def heaps(how: str) -> int:
    """In how many heaps (of 64 MB, as glibc aligns them) the blocks of 24 threads lie."""
    done = subprocess.run([sys.executable, "-c", BLOCKS, how], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_threads_share_one_heap() -> None:
    assert heaps("back") <= 2 < heaps("as it is")
