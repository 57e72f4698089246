"""The heap of a server: one for all threads."""

from __future__ import annotations

import argparse
import gc
import signal
import subprocess
import sys
import weakref
from types import SimpleNamespace

from aero.cli import ask as asking
from aero.pipeline import ROOT
from aero.two_party.serving import session as serving
from aero.two_party.serving import tunnel

# 24 threads at once, each with blocks of 2 KB.
BLOCKS = """
import ctypes, sys, threading
from aero.two_party.runtime.heap import give_freed_memory_back
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


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_question_leaves_in_cycles_is_gone_before_the_next(monkeypatch) -> None:
    left: list[weakref.ref] = []
    alive: list[int] = []

    def answer(listener, say):
        alive.append(sum(one() is not None for one in left))
        if len(left) == 3:
            raise KeyboardInterrupt
        left.append(weakref.ref(Cycle()))
        return True

    monkeypatch.setattr(asking, "_published", lambda *_: (SimpleNamespace(sha256="0"), None, "0"))
    monkeypatch.setattr(asking, "_text_of", lambda tokenizer: "")
    monkeypatch.setattr(asking, "_settings", lambda chosen: None)
    monkeypatch.setattr(tunnel, "Listener", lambda *_: SimpleNamespace(address="here", close=lambda: None))
    monkeypatch.setattr(serving, "Server", lambda *_: SimpleNamespace(answer=answer))
    parser = argparse.ArgumentParser()
    asking.add_commands(parser.add_subparsers())
    chosen = parser.parse_args(["serve", "--listen=127.0.0.1:0", "--checkpoint=x", "--insecure"])
    handler = signal.getsignal(signal.SIGINT)
    gc.disable()
    try:
        assert asking._serve(chosen) == 0
    finally:
        gc.enable()
        gc.unfreeze()
        signal.signal(signal.SIGINT, handler)
    assert alive == [0, 0, 0, 0]
