"""Party processes: forked from a small server process that has the libraries imported and no data; and what each does.

A party so starts fast and without a copy of this process's memory, in which a prompt or weights may be.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from aero.two_party.runtime.party import Party
from aero.two_party.runtime.settings import TwoPartyError

PRELOADED = ("aero.two_party.runtime.one_thread", "numpy", "jax", "torch", "torch._dynamo")
"""The last is what PyTorch computes shapes of weights with, on the device "meta"."""
_PR_SET_PDEATHSIG = 1
_LOCK = threading.Lock()  # `sys.argv` is changed while a process starts


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
    with _LOCK:
        forkserver.set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()


def renew() -> None:
    """Replace the fork server, and end the parties that it has started.

    All parties of one fork server have their memory at the same addresses. `aero serve` calls this after a question
    that failed, so that a client that made a party crash learns nothing that helps with the next one.
    """
    with _LOCK:
        _end()
        forkserver._forkserver._stop()
    ready()


@atexit.register
def _end() -> None:
    """End the fork server at once: by itself it takes seconds, and keeps our output open meanwhile."""
    if (pid := forkserver._forkserver._forkserver_pid) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def party_process(connection: Connection, log_path: str) -> None:
    """Run one party; everything printed goes to the file at `log_path`, which loses its name.

    Sends ("phase", name), ("control", message) and at the end ("result", value) or ("failure", (kind, text)), kind
    being "link" (the other party is lost), "input" (a user error) or "defect" (text is a traceback).
    """
    end_with_parent()
    gc.freeze()  # what the fork server imported stays; looking through it would copy its memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends us
    try:
        log = os.open(log_path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:  # the parent has given up
        os._exit(1)
    os.unlink(log_path)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        rank, task, own_input, addresses, settings = connection.recv()
        import jax
        import spu  # noqa: F401 - imported now, so that the time limit for connecting is for connecting alone

        jax.config.update("jax_platforms", "cpu")
        connection.send(("phase", "connecting"))

        def ask(message: Any) -> Any:
            connection.send(("control", message))
            return connection.recv()

        party = Party(rank, addresses, settings, log, ask)
        connection.send(("phase", "running"))
        result = task(party, own_input)
        party.barrier()
        connection.send(("result", result))  # now, as SPU may end this process when the other party closes first
        party.close()
    except TwoPartyError as error:
        _fail(connection, "link", str(error))
    except (ValueError, OSError) as error:
        _fail(connection, "input", str(error))
    except MemoryError:
        _fail(connection, "input", "out of memory; free some, or ask for a smaller model")
    except BaseException:
        _fail(connection, "defect", traceback.format_exc())


def _fail(connection: Connection, kind: str, text: str) -> None:
    with suppress(OSError):
        connection.send(("failure", (kind, text)))
    os._exit(1)  # destructors of a link whose peer is gone may wait for it


def end_with_parent() -> None:
    """End this process when the one that started it ends, however that ends."""
    sentinel = multiprocessing.parent_process().sentinel
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # of the fork server
    # The parent has the other end of this pipe. When it closes, the kernel ends us by SIGIO, whatever we do.
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    # The fork server ends when nobody holds this end of its pipe any more; only the parent shall hold it.
    alive = forkserver._forkserver._forkserver_alive_fd
    if alive is not None:
        os.close(alive)
