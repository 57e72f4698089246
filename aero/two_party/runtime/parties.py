"""Two parties as two processes that share nothing but a TCP link, and the parent that watches over them.

`run_parties` starts both on this machine; `run_party` starts one, whose peer runs elsewhere. The parent gives each its
own input and no other, ends both as soon as one fails or dies, and leaves no process behind: a party also ends itself
when its parent is gone. What SPU prints goes to a file of the party, of which an error quotes the last line.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from aero.two_party.runtime.addresses import check_free, listening_addresses
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, NAMES, SERVER, Settings, TwoPartyError, split_address

__all__ = ["CLIENT", "SERVER", "Party", "Profile", "Relay", "Settings", "TwoPartyError", "run_parties", "run_party"]

# Importing SPU and JAX, on a machine that is busy; nothing of the peer is waited for in this time.
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
# When a party reports a lost peer, the peer's own death or error is the cause to tell, and may be a moment later.
GRACE_S = 1.0
# More than starting a party takes, in this process.
DESCRIPTORS = 32
DYING_TRIES, DYING_S = 20, 0.1
# How often the way to the other party is looked at while a process starts.
LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1
# The last is what PyTorch computes shapes of weights with, on the device "meta"; every party does.
PRELOADED = ("numpy", "jax", "torch", "torch._dynamo")
_IMPORTED_IN = os.getpid()
# `sys.argv` and the environment are set for the moment in which a process starts. Taken by `_starting` alone.
_STARTING = threading.Lock()
# SPU ends a process that cannot send by exit(255), while its other threads still compute: now and then one of those
# crashes first, in whatever way, and may have the last word in the log.
_SPU_CANNOT_SEND = {255, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}

Task = Callable[[Party, Any], Any]


def run_parties(
    task: Task,
    client_input: Any,
    server_input: Any,
    settings: Settings,
    *,
    relay: Relay | None = None,
    on_control: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Run `task(party, input)` as client and as server, in two processes over TCP; returns what the two returned.

    task: a function that can be imported by its name. Each process gets its own input only. relay: the parties dial
    each other through it. on_control: called in this process with what the client gives to `Party.control`, returns
    the answer. Raises TwoPartyError: a port in use (before anything starts), parties that do not connect in time, one
    that dies (noticed within 2 s) or loses the other, a time-out, wrong input to the task; RuntimeError with the
    party's traceback for any other exception of the task.
    """
    addresses = listening_addresses(settings)
    dialled = [addresses, addresses]
    doors = relay.open(addresses) if relay is not None else None
    if doors is not None:
        dialled = [(addresses[0], doors[1]), (doors[0], addresses[1])]
    try:
        results = _Parent(task, {CLIENT: client_input, SERVER: server_input}, dialled, settings, on_control).run()
    finally:
        if relay is not None:
            relay.close()
    return results[CLIENT], results[SERVER]


class Alarm(Protocol):
    """What watches the way to the other party: readable, with `failure` set, when that is lost."""

    failure: str | None

    def fileno(self) -> int: ...


def run_party(
    rank: int,
    task: Task,
    own_input: Any,
    settings: Settings,
    *,
    on_control: Callable[[Any], Any] | None = None,
    alarm: Alarm | None = None,
) -> Any:
    """Run one party of which the other is started elsewhere with the same task and settings; returns its result.

    `settings.addresses` must name both ports. Raises as `run_parties`; a peer that dies is noticed when it is missed,
    after `receive_timeout_s` at the latest, or as soon as `alarm` tells of it.
    """
    if rank not in (CLIENT, SERVER):
        raise ValueError(f"rank {rank} is neither {CLIENT} (client) nor {SERVER} (server)")
    for name, address in zip(NAMES, settings.addresses, strict=True):
        if split_address(address)[1] == 0:
            raise ValueError(f"the {name}'s address {address} names no port; a party alone needs both")
    check_free(settings.addresses[rank], NAMES[rank])
    return _Parent(task, {rank: own_input}, [settings.addresses] * 2, settings, on_control, alarm).run()[rank]


class _Child:
    """The parent's view of one party process."""

    def __init__(self, rank: int, process: Any, connection: Connection, log: int) -> None:
        self.rank, self.name = rank, NAMES[rank]
        self.process, self.connection, self.log = process, connection, log
        self.phase = "starting"
        self.connected_at = 0  # bytes that its log had when it was connected
        self.result: Any = None
        self.failure: tuple[str, str] | None = None

    def died(self) -> bool:
        return self.phase not in ("finished", "failed") and not self.process.is_alive()

    def last_words(self) -> str:
        """The last line of its output that tells something, at most 200 characters; empty if there is none."""
        return " ".join((self._telling(0) or [""])[-1].split())[:200]

    def lost_link(self) -> str:
        """The last thing that SPU said of its link since that stood, at most 120 characters; empty if nothing."""
        lines = [line for line in self._telling(self.connected_at) if "_link.cc" in line]
        return " ".join((lines or [""])[-1].split())[:120]

    def _telling(self, start: int) -> list[str]:
        """Lines of its output that tell of an error, from byte `start` on, of the last 16 KiB."""
        size = os.fstat(self.log).st_size
        lines = os.pread(self.log, 16384, max(start, size - 16384)).decode(errors="replace").splitlines()
        return [line for line in lines if re.search(r"(?i)error|critical|fatal|abort|terminate|what\(\)|fail", line)]


class _Parent:
    """Starts the party processes of one run and sees it through."""

    def __init__(
        self,
        task: Task,
        inputs: dict[int, Any],
        dialled: Sequence[Sequence[str]],
        settings: Settings,
        on_control: Callable[[Any], Any] | None,
        alarm: Alarm | None = None,
    ) -> None:
        self._task, self._inputs, self._dialled = task, inputs, dialled
        self._settings, self._on_control, self._alarm = settings, on_control, alarm
        self._children: dict[int, _Child] = {}
        self._files: list[str] = []

    def run(self) -> dict[int, Any]:
        self._started = time.monotonic()
        self._limit = ("start", START_TIMEOUT_S, self._started + START_TIMEOUT_S)
        try:
            for rank in self._inputs:
                self._start(rank)
            while any(child.phase != "finished" for child in self._children.values()):
                self._watch()
            self._end_in_order()
            return {rank: child.result for rank, child in self._children.items()}
        finally:
            self._clear()

    def _start(self, rank: int) -> None:
        context = multiprocessing.get_context(_start_method())
        try:
            _check_descriptors()
            ours, theirs = context.Pipe()  # before the log's descriptor: these close themselves
            log, path = tempfile.mkstemp(prefix="aero-party-", suffix=".log")
        except OSError as error:
            raise TwoPartyError(
                f"the {NAMES[rank]} process could not be started ({error}); make room for it and run again"
            ) from error
        self._files.append(path)
        child = context.Process(target=_party_process, args=(theirs, path), name=f"aero-{NAMES[rank]}")
        self._children[rank] = _Child(rank, child, ours, log)
        try:
            _begin(child, NAMES[rank], self._alarm)
        finally:
            theirs.close()
        payload = (rank, self._task, self._inputs[rank], tuple(self._dialled[rank]), self._settings)
        try:
            message = multiprocessing.reduction.ForkingPickler.dumps(payload)
        except (AttributeError, TypeError, ImportError, ValueError) as error:
            raise ValueError(f"the task or its input cannot be given to another process: {error}") from None
        # A thread, because a party that hangs would otherwise hold us up in a full pipe, past every time-out.
        threading.Thread(target=_give, args=(ours, message), daemon=True).start()

    def _watch(self) -> None:
        """Take the next messages of the parties, or the end of one, or the end of the time."""
        running = [c for c in self._children.values() if c.phase != "finished"]
        until = self._deadline()
        watched = [c.connection for c in running] + [c.process.sentinel for c in running]
        if self._alarm is not None:
            watched.append(self._alarm)
        ready = wait(watched, until - time.monotonic())
        for child in running:
            if child.connection in ready:
                self._receive(child)
        failed = [c for c in running if c.failure is not None or self._has_died(c)]
        if failed:
            self._fail(failed)
        if self._alarm is not None and self._alarm.failure is not None:
            raise TwoPartyError(self._alarm.failure)
        self._advance()
        if not ready and time.monotonic() >= self._deadline():
            self._time_out()

    def _receive(self, child: _Child) -> bool:
        """Take the next message of a party, waiting for it; False if there is none any more."""
        try:
            kind, content = child.connection.recv()
        except (EOFError, OSError):
            child.process.join(END_TIMEOUT_S)  # it is ending; that it died is seen from its exit
            return False
        if kind == "phase":
            child.phase = content
            child.connected_at = os.fstat(child.log).st_size
        elif kind == "result":
            child.phase, child.result = "finished", content
        elif kind == "failure":
            child.phase, child.failure = "failed", content
        elif kind == "control":
            if self._on_control is None:
                raise TwoPartyError("the client sent a control message, but run_parties was given no on_control")
            answer = self._on_control(content)
            with suppress(ConnectionError):  # it has ended meanwhile, which is told as such
                child.connection.send(answer)
        return True

    def _has_died(self, child: _Child) -> bool:
        """Whether it ended without a result. SPU itself ends a process that cannot send: that is its peer's failure."""
        if not child.died():
            return False
        child.process.join(END_TIMEOUT_S)
        # It may have sent its last messages, and ended, after we last looked whether there are any.
        while child.phase not in ("finished", "failed") and child.connection.poll() and self._receive(child):
            pass
        if child.phase in ("finished", "failed"):
            return child.failure is not None
        if child.process.exitcode in _SPU_CANNOT_SEND and (words := child.lost_link()):
            peer = NAMES[1 - child.rank]
            child.phase = "failed"
            child.failure = (
                "link",
                f"the {peer} is gone or sent nothing for {self._settings.receive_timeout_s:g} s, not even a receipt; "
                f"see why it stopped ({words})",
            )
        return True

    def _advance(self) -> None:
        phases = {child.phase for child in self._children.values()}
        name = self._limit[0]
        if name == "start" and "starting" not in phases:
            limit = self._settings.connect_timeout_s
            self._limit = ("connect", limit, time.monotonic() + limit)
        elif name == "connect" and not phases & {"starting", "connecting"}:
            self._limit = ("run", 0.0, float("inf"))

    def _deadline(self) -> float:
        total = self._settings.total_timeout_s
        return min(self._limit[2], self._started + total if total is not None else float("inf"), time.monotonic() + 60)

    def _time_out(self) -> None:
        name, limit, until = self._limit
        total = self._settings.total_timeout_s
        now = time.monotonic()
        if total is not None and now >= self._started + total:
            raise TwoPartyError(
                f"the private run was not done after {total:g} s; raise total_timeout_s (--total of aero serve) or ask "
                "for less"
            )
        if now < until:
            return
        if name == "start":
            late = " and ".join(c.name for c in self._children.values() if c.phase == "starting")
            raise TwoPartyError(f"the {late} process was not up after {limit:g} s; is this machine overloaded?")
        if len(self._children) == 1:
            (child,) = self._children.values()
            peer = 1 - child.rank
            raise TwoPartyError(
                f"the {NAMES[peer]} at {self._dialled[child.rank][peer]} did not appear within {limit:g} s; start it, "
                "check address and firewall, or raise connect_timeout_s"
            )
        raise TwoPartyError(f"client and server did not connect within {limit:g} s; raise connect_timeout_s")

    def _fail(self, failed: list[_Child]) -> None:
        """Tell the cause: a party that died or had an error of its own, before one that only lost the other."""
        deadline = time.monotonic() + GRACE_S
        others = [c for c in self._children.values() if c not in failed and c.phase not in ("finished", "failed")]
        while others and all(c.failure and c.failure[0] == "link" for c in failed) and time.monotonic() < deadline:
            for child in list(others):
                if child.connection.poll(0.05):
                    self._receive(child)
                if child.failure is not None or self._has_died(child):
                    failed.append(child)
                    others.remove(child)
        if self._alarm is not None and all(c.failure and c.failure[0] == "link" for c in failed):
            wait([self._alarm], max(0.0, deadline - time.monotonic()))
            if self._alarm.failure is not None:
                raise TwoPartyError(self._alarm.failure)
        order = {"defect": 1, "input": 1, "link": 2}
        child = min(failed, key=lambda c: order[c.failure[0]] if c.failure else 0)
        if child.failure is None:
            raise TwoPartyError(_death(child, alone=len(self._children) == 1))
        kind, text = child.failure
        if kind == "defect":
            raise RuntimeError(f"the {child.name}'s task failed:\n{text}")
        raise TwoPartyError(f"{child.name}: {text}")

    def _end_in_order(self) -> None:
        deadline = time.monotonic() + END_TIMEOUT_S
        for child in self._children.values():
            child.process.join(max(0.0, deadline - time.monotonic()))

    def _clear(self) -> None:
        """End what still runs, by force, and leave neither process nor file."""
        for child in self._children.values():
            if child.process.pid is not None and child.process.is_alive():
                child.process.kill()
        for child in self._children.values():
            if child.process.pid is not None:
                child.process.join(END_TIMEOUT_S)
                if child.process.exitcode is not None:
                    child.process.close()
            child.connection.close()
            os.close(child.log)
        for path in self._files:
            if os.path.exists(path):
                os.unlink(path)


def _death(child: _Child, alone: bool) -> str:
    code = child.process.exitcode
    how = f"exit status {code}"
    if code is not None and code < 0:
        how = f"signal {-code} ({signal.Signals(-code).name})"
    words = child.last_words()
    said = f', its last words "{words}"' if words else ""
    remedy = "run again" if alone else "the other one was ended too; run again"
    if code == -signal.SIGKILL:
        remedy += ", with less at once if memory ran out"
    return f"the {child.name} process ended by {how} while {child.phase}{said}; {remedy}"


def _check_descriptors() -> None:
    """OSError if this process cannot open as many as a start takes: one that fails half-way loses some for good, in
    Python's own `multiprocessing.forkserver`, and a server starts many."""
    held: list[int] = []
    try:
        while len(held) < DESCRIPTORS:
            held.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)


def _start_method() -> str:
    """ "forkserver", or "spawn": for a thread that has left the network of its process
    (`aero.two_party.runtime.shaped_link`), in
    which a fork server stays, and for a process that was itself forked and does not own the fork server.
    """
    if os.getpid() != _IMPORTED_IN or "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    try:
        moved = os.readlink("/proc/thread-self/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:  # no Linux, so no such thread
        moved = False
    return "spawn" if moved else "forkserver"


def _begin(process: multiprocessing.process.BaseProcess, name: str, alarm: Alarm | None = None) -> None:
    """Start a party's process. TwoPartyError if it cannot be, not within START_TIMEOUT_S, or if `alarm` rings before.

    One that comes up after that finds that nobody is there and ends itself (`_party_process`).
    """
    if not isinstance(process, multiprocessing.context.ForkServerProcess):
        with _arguments_withheld():
            process.start()
        return
    failures: list[BaseException] = []
    given_up = threading.Event()

    def begin() -> None:
        for left in reversed(range(DYING_TRIES)):
            if given_up.is_set():
                return
            try:
                ready()
                with _arguments_withheld():
                    process.start()
                return
            except (ConnectionError, EOFError) as error:
                # The fork server is ending, which is seen from its exit a moment later; then there is another.
                if not left:
                    failures.append(error)
                time.sleep(DYING_S)
            except BaseException as error:
                failures.append(error)
                return

    # The first start waits for the fork server's imports.
    starting = threading.Thread(target=begin, daemon=True)
    starting.start()
    until = time.monotonic() + START_TIMEOUT_S
    while starting.is_alive() and time.monotonic() < until and (alarm is None or alarm.failure is None):
        starting.join(min(LOOK_S, max(0.0, until - time.monotonic())))
    if starting.is_alive():
        given_up.set()
        if alarm is not None and alarm.failure is not None:
            raise TwoPartyError(alarm.failure)
        raise TwoPartyError(f"the {name} process was not up after {START_TIMEOUT_S:g} s; is this machine overloaded?")
    for error in failures:
        if isinstance(error, (OSError, EOFError)):
            reason = str(error) or "the fork server ended"
            raise TwoPartyError(f"the {name} process could not be started ({reason}); run again") from error
        raise error


def ready() -> None:
    """Start the fork server if it is not there, without waiting for it: the next party is then up sooner.

    Its libraries compute on one thread, since a process with several must not be forked; SPU's have their own setting.
    TwoPartyError if another start is under way for START_TIMEOUT_S, or if the folder for temporary files has too long a
    name for a socket in it.
    """
    if _start_method() != "forkserver":
        return
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with _starting():
        before = {name: os.environ.get(name) for name in single}
        os.environ.update(single)
        try:
            forkserver.set_forkserver_preload(list(PRELOADED))
            forkserver.ensure_running()
        except OSError as error:
            if "too long" not in str(error):
                raise
            raise TwoPartyError(
                f"the path of a socket in {tempfile.gettempdir()} would be longer than the system takes (some 100 "
                "bytes); set TMPDIR to a folder with a shorter one"
            ) from error
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@atexit.register
def _leave() -> None:
    """End the fork server with this process; by itself it clears PyTorch away first and holds our output meanwhile."""
    running = forkserver._forkserver._forkserver_pid
    if running is not None and os.getpid() == _IMPORTED_IN:
        with suppress(ProcessLookupError):
            os.kill(running, signal.SIGKILL)


def renew() -> None:
    """End the fork server, and with it all parties it has started, and start another one.

    All parties of one fork server have their memory at the same addresses. A server calls this after a question that
    failed, so that whoever can make a party crash learns nothing by it for the next.
    """
    running = forkserver._forkserver._forkserver_pid
    if running is not None:
        # Before the lock: a fork server that hangs keeps whoever waits for it, and that one holds the lock.
        with suppress(ProcessLookupError):
            os.kill(running, signal.SIGKILL)
    with _starting():
        if forkserver._forkserver._forkserver_pid is not None and running is not None:
            forkserver._forkserver._stop()
    ready()


@contextmanager
def _starting() -> Iterator[None]:
    """Alone in starting processes. TwoPartyError if another start does not end: it may wait for one that hangs."""
    if not _STARTING.acquire(timeout=START_TIMEOUT_S):
        raise TwoPartyError(
            f"no process could be started in {START_TIMEOUT_S:g} s, because an earlier start has not ended; end this "
            "program and start it again"
        )
    try:
        yield
    finally:
        _STARTING.release()


@contextmanager
def _arguments_withheld() -> Iterator[None]:
    """A new process is sent `sys.argv`, in which a prompt may stand that is not the server's to see."""
    with _starting():
        arguments = sys.argv
        sys.argv = arguments[:1]
        try:
            yield
        finally:
            sys.argv = arguments


def _give(connection: Connection, message: Any) -> None:
    try:
        connection.send_bytes(message)
    except (OSError, ValueError):
        pass  # the process is gone; its exit tells more


def _party_process(connection: Connection, log_path: str) -> None:
    """What a party process does: redirect its output, take its task, connect, work, close, report."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends us
    try:
        log = os.open(log_path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:  # whoever asked for us gave up before we were there, and took it away
        os._exit(1)
    os.unlink(log_path)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        rank, task, own_input, addresses, settings = connection.recv()
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(settings.threads)
        import jax
        import spu  # noqa: F401 - imported now, so that the time-out for connecting is for connecting alone

        jax.config.update("jax_platforms", "cpu")

        connection.send(("phase", "connecting"))

        def ask(message: Any) -> Any:
            connection.send(("control", message))
            return connection.recv()

        party = Party(rank, addresses, settings, log, ask)
        connection.send(("phase", "running"))
        result = task(party, own_input)
        party.close()
        connection.send(("result", result))
    except TwoPartyError as error:
        _report(connection, "link", str(error))
    except (ValueError, OSError) as error:
        _report(connection, "input", f"{error}")
    except MemoryError:
        _report(connection, "input", "out of memory; free some, or ask for a smaller model")
    except BaseException:
        _report(connection, "defect", traceback.format_exc())


def _report(connection: Connection, kind: str, text: str) -> None:
    try:
        connection.send(("failure", (kind, text)))
    except OSError:
        pass
    # Destructors of a link whose peer is gone may wait for it.
    os._exit(1)


def _die_with_parent() -> None:
    """End this process when the one that asked for it ends, however that ends."""
    sentinel = multiprocessing.parent_process().sentinel
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the fork server
        # The one who asked has the other end of this pipe. When it closes, the system ends us by SIGIO, whatever we do.
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    # The fork server ends when nobody holds this end of its pipe; that shall be the one who asked and not we ourselves.
    alive = forkserver._forkserver._forkserver_alive_fd
    if alive is not None:
        os.close(alive)

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
