"""Starting party processes: forked from a small server process that has the libraries imported and no data.

A party so starts fast and without a copy of this process's memory, in which a prompt or weights may be.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver

from aero.two_party.runtime.settings import TwoPartyError

PRELOADED = ("numpy", "jax", "torch", "torch._dynamo")
"""The last is what PyTorch computes shapes of weights with, on the device "meta"."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_IMPORTED_IN = os.getpid()
_LOCK = threading.Lock()  # `sys.argv` and the environment are changed while a process starts


def start_method() -> str:
    """ "forkserver", or "spawn" where there is none or in a forked process, which does not own the fork server."""
    owned = os.getpid() == _IMPORTED_IN and "forkserver" in multiprocessing.get_all_start_methods()
    return "forkserver" if owned else "spawn"


def start(process: multiprocessing.process.BaseProcess, name: str) -> None:
    """Start a party's process without this process's arguments, among which a prompt may be."""
    ready()
    try:
        with _LOCK:
            arguments, sys.argv = sys.argv, sys.argv[:1]
            try:
                process.start()
            finally:
                sys.argv = arguments
    except (OSError, EOFError) as error:
        reason = str(error) or "the fork server ended"
        raise TwoPartyError(f"the {name} process could not be started ({reason}); run again") from error


def ready() -> None:
    """Start the fork server if it does not run, without waiting for its imports."""
    if start_method() != "forkserver":
        return
    try:
        with _LOCK, _single_thread():
            forkserver.set_forkserver_preload(list(PRELOADED))
            forkserver.ensure_running()
    except OSError as error:
        if "too long" not in str(error):
            raise
        raise TwoPartyError(
            f"the path of a socket in {tempfile.gettempdir()} would be longer than the system allows (about 100 "
            "bytes); set TMPDIR to a folder with a shorter path"
        ) from error


def renew() -> None:
    """Replace the fork server, and end the parties that it has started.

    All parties of one fork server have their memory at the same addresses. `aero serve` calls this after a question
    that failed, so that a client that made a party crash learns nothing that helps with the next one.
    """
    with _LOCK:
        pid = forkserver._forkserver._forkserver_pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            forkserver._forkserver._stop()
    ready()


@contextmanager
def _single_thread() -> Iterator[None]:
    """Libraries that are imported within compute on one thread: a process with several must not fork."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@atexit.register
def _end() -> None:
    """End the fork server at once: by itself it takes seconds, and keeps our output open meanwhile."""
    pid = forkserver._forkserver._forkserver_pid
    if pid is not None and os.getpid() == _IMPORTED_IN:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
