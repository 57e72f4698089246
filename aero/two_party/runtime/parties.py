"""Two parties as two processes that share nothing but a TCP link, and the parent process that supervises them.

`run_parties` starts both on this machine; `run_party` starts one, whose peer runs elsewhere. The parent gives each its
own input only, ends both as soon as one fails, and leaves no process behind: a party also ends when its parent does.
What SPU prints goes to a file of the party, of which an error quotes the last line.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from aero.two_party.runtime import fork_server
from aero.two_party.runtime.addresses import free_address
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.party_process import party_process
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, NAMES, SERVER, Settings, TwoPartyError

__all__ = ["CLIENT", "SERVER", "Party", "Profile", "Relay", "Settings", "TwoPartyError", "run_parties", "run_party"]

START_TIMEOUT_S = 120.0
"""For importing SPU and JAX on a busy machine."""
END_TIMEOUT_S = 10.0
GRACE_S = 1.0
"""When a party loses its peer, the peer's own error is the cause to report, and may arrive a moment later."""

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
    """Run `task(party, input)` as client and as server, in two processes over TCP; returns the two results.

    task: a function that can be imported by its name. Each process gets its own input only. relay: the parties dial
    each other through it. on_control: called in this process with what the client gives to `Party.control`, returns
    the answer. Raises TwoPartyError: parties that do not connect in time, one that dies (noticed within 2 s) or loses
    the other, a time-out, wrong input to the task; RuntimeError with the party's traceback for any other exception of
    the task.
    """
    addresses = ((client := free_address()), free_address(client))
    dialled = [addresses, addresses]
    if relay is not None:
        doors = relay.open(addresses)
        dialled = [(addresses[0], doors[1]), (doors[0], addresses[1])]
    try:
        inputs = {CLIENT: client_input, SERVER: server_input}
        results = _Supervisor(task, inputs, dialled, settings, on_control).run()
    finally:
        if relay is not None:
            relay.close()
    return results[CLIENT], results[SERVER]


class Alarm(Protocol):
    """Watches the connection to the other party: readable, with `failure` set, when that is lost."""

    failure: str | None

    def fileno(self) -> int: ...


def run_party(
    rank: int,
    task: Task,
    own_input: Any,
    addresses: Sequence[str],
    settings: Settings,
    *,
    on_control: Callable[[Any], Any] | None = None,
    alarm: Alarm | None = None,
) -> Any:
    """Run one party of which the other is started elsewhere with the same task and settings; returns its result.

    addresses: (client's, server's) as this party dials them; it listens at its own. Raises as `run_parties`; a peer
    that dies is noticed after `receive_timeout_s` at the latest, or as soon as `alarm` reports it.
    """
    return _Supervisor(task, {rank: own_input}, [addresses] * 2, settings, on_control, alarm).run()[rank]


class _Child:
    """The parent's view of one party process."""

    def __init__(self, rank: int, process: Any, connection: Connection, log: int) -> None:
        self.rank, self.name = rank, NAMES[rank]
        self.process, self.connection, self.log = process, connection, log
        self.phase = "starting"
        self.connected_at = 0  # size of its log when it had connected
        self.result: Any = None
        self.failure: tuple[str, str] | None = None

    @property
    def ended(self) -> bool:
        """Whether it has sent its result or its failure."""
        return self.phase in ("finished", "failed")

    def error_lines(self, start: int = 0) -> list[str]:
        """Lines of its output that report an error, from byte `start` on, of the last 16 KiB."""
        size = os.fstat(self.log).st_size
        lines = os.pread(self.log, 16384, max(start, size - 16384)).decode(errors="replace").splitlines()
        words = r"(?i)error|critical|fatal|abort|terminate|what\(\)|fail"
        return [" ".join(line.split())[:200] for line in lines if re.search(words, line)]

    def death(self, alone: bool) -> str:
        """One line on a process that ended without a result."""
        code = self.process.exitcode
        how = f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        lines = self.error_lines()
        said = f', its last words "{lines[-1]}"' if lines else ""
        remedy = "run again" if alone else "the other one was ended too; run again"
        if code == -signal.SIGKILL:
            remedy += ", with less at once if memory ran out"
        return f"the {self.name} process ended by {how} while {self.phase}{said}; {remedy}"


class _Supervisor:
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
        self._log_paths: list[str] = []

    def run(self) -> dict[int, Any]:
        self._started = time.monotonic()
        self._stage, self._stage_ends = "start", self._started + START_TIMEOUT_S
        try:
            for rank in self._inputs:
                self._start(rank)
            while any(child.phase != "finished" for child in self._children.values()):
                self._watch()
            deadline = time.monotonic() + END_TIMEOUT_S
            for child in self._children.values():
                child.process.join(max(0.0, deadline - time.monotonic()))
            return {rank: child.result for rank, child in self._children.items()}
        finally:
            self._clear()

    def _start(self, rank: int) -> None:
        context = multiprocessing.get_context(fork_server.start_method())
        try:
            ours, theirs = context.Pipe()
            log, path = tempfile.mkstemp(prefix="aero-party-", suffix=".log")
        except OSError as error:
            raise TwoPartyError(f"the {NAMES[rank]} process could not be started ({error}); run again") from error
        self._log_paths.append(path)
        process = context.Process(target=party_process, args=(theirs, path), name=f"aero-{NAMES[rank]}")
        self._children[rank] = _Child(rank, process, ours, log)
        try:
            fork_server.start(process, NAMES[rank])
        finally:
            theirs.close()
        payload = (rank, self._task, self._inputs[rank], tuple(self._dialled[rank]), self._settings)
        try:
            message = multiprocessing.reduction.ForkingPickler.dumps(payload)
        except (AttributeError, TypeError, ImportError, ValueError) as error:
            raise ValueError(f"the task or its input cannot be given to another process: {error}") from None
        # In a thread, because a party that hangs would block us in a full pipe, past every time limit.
        threading.Thread(target=_give, args=(ours, message), daemon=True).start()

    def _watch(self) -> None:
        """Handle the next messages of the parties, the end of one, or the end of the time."""
        running = [child for child in self._children.values() if child.phase != "finished"]
        watched: list[Any] = [c.connection for c in running] + [c.process.sentinel for c in running]
        if self._alarm is not None:
            watched.append(self._alarm)
        found = wait(watched, self._deadline() - time.monotonic())
        for child in running:
            if child.connection in found:
                self._receive(child)
        failed = [child for child in running if child.failure is not None or self._has_died(child)]
        if failed:
            self._fail(failed)
        if self._alarm is not None and self._alarm.failure is not None:
            raise TwoPartyError(self._alarm.failure)
        self._advance()
        if not found and time.monotonic() >= self._deadline():
            self._time_out()

    def _receive(self, child: _Child) -> bool:
        """Take the next message of a party; False if there is none any more."""
        try:
            kind, content = child.connection.recv()
        except (EOFError, OSError):
            child.process.join(END_TIMEOUT_S)
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
            with suppress(ConnectionError):  # it has ended meanwhile, which is noticed elsewhere
                child.connection.send(answer)
        return True

    def _has_died(self, child: _Child) -> bool:
        """Whether it ended without a result."""
        if child.ended or child.process.is_alive():
            return False
        child.process.join(END_TIMEOUT_S)
        # It may have sent its last messages after we last checked for them.
        while not child.ended and child.connection.poll() and self._receive(child):
            pass
        if child.ended:
            return child.failure is not None
        # SPU itself ends a process that cannot send to its peer: that is the peer's failure.
        lost = [line for line in child.error_lines(child.connected_at) if "_link.cc" in line]
        if lost and child.process.exitcode != -signal.SIGKILL:
            child.phase = "failed"
            child.failure = (
                "link",
                f"the {NAMES[1 - child.rank]} is gone or sent nothing for {self._settings.receive_timeout_s:g} s; "
                f"see why it stopped ({lost[-1][:120]})",
            )
        return True

    def _advance(self) -> None:
        """Move on from the time limit for starting to that for connecting, and then to none."""
        phases = {child.phase for child in self._children.values()}
        if self._stage == "start" and "starting" not in phases:
            self._stage, self._stage_ends = "connect", time.monotonic() + self._settings.connect_timeout_s
        elif self._stage == "connect" and "connecting" not in phases:
            self._stage, self._stage_ends = "run", float("inf")

    def _deadline(self) -> float:
        total = self._settings.total_timeout_s
        ends = self._started + total if total is not None else float("inf")
        return min(self._stage_ends, ends, time.monotonic() + 60)

    def _time_out(self) -> None:
        total, now = self._settings.total_timeout_s, time.monotonic()
        if total is not None and now >= self._started + total:
            raise TwoPartyError(
                f"the private run was not done after {total:g} s; raise total_timeout_s (--total of aero serve) or ask "
                "for less"
            )
        if now < self._stage_ends:
            return
        if self._stage == "start":
            late = " and ".join(child.name for child in self._children.values() if child.phase == "starting")
            raise TwoPartyError(
                f"the {late} process was not up after {START_TIMEOUT_S:g} s; is the machine overloaded?"
            )
        limit = f"{self._settings.connect_timeout_s:g} s"
        if len(self._children) == 1:
            (child,) = self._children.values()
            peer = 1 - child.rank
            raise TwoPartyError(
                f"the {NAMES[peer]} at {self._dialled[child.rank][peer]} did not appear within {limit}; start it, "
                "check address and firewall, or raise connect_timeout_s"
            )
        raise TwoPartyError(f"client and server did not connect within {limit}; raise connect_timeout_s")

    def _fail(self, failed: list[_Child]) -> None:
        """Raise the cause: a party that died or had an error of its own, before one that only lost the other."""
        deadline = time.monotonic() + GRACE_S
        others = [child for child in self._children.values() if child not in failed and not child.ended]

        def only_lost_links() -> bool:
            return all(child.failure is not None and child.failure[0] == "link" for child in failed)

        while others and only_lost_links() and time.monotonic() < deadline:
            for child in list(others):
                if child.connection.poll(0.05):
                    self._receive(child)
                if child.failure is not None or self._has_died(child):
                    failed.append(child)
                    others.remove(child)
        if self._alarm is not None and only_lost_links():
            wait([self._alarm], max(0.0, deadline - time.monotonic()))
            if self._alarm.failure is not None:
                raise TwoPartyError(self._alarm.failure)
        order = {"defect": 1, "input": 1, "link": 2}
        child = min(failed, key=lambda child: order[child.failure[0]] if child.failure else 0)
        if child.failure is None:
            raise TwoPartyError(child.death(alone=len(self._children) == 1))
        kind, text = child.failure
        if kind == "defect":
            raise RuntimeError(f"the {child.name}'s task failed:\n{text}")
        raise TwoPartyError(f"{child.name}: {text}")

    def _clear(self) -> None:
        """End what still runs, and leave neither process nor file."""
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
        for path in self._log_paths:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _give(connection: Connection, message: Any) -> None:
    with suppress(OSError, ValueError):  # the process is gone, which its exit status reports
        connection.send_bytes(message)
