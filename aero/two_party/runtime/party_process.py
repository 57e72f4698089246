"""What a party process does: take its task, connect, run it, report the result or the failure, and end."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from aero.two_party.runtime.fork_server import THREAD_VARIABLES
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.settings import TwoPartyError

_PR_SET_PDEATHSIG = 1


def party_process(connection: Connection, log_path: str) -> None:
    """Run one party; everything printed goes to the file at `log_path`, which loses its name.

    Sends ("phase", name), ("control", message) and at the end ("result", value) or ("failure", (kind, text)), kind
    being "link" (the other party is lost), "input" (a user error) or "defect" (text is a traceback).
    """
    end_with_parent()
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
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(settings.threads)))
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
    try:
        connection.send(("failure", (kind, text)))
    except OSError:
        pass
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
