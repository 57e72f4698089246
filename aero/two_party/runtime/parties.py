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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from aero.two_party.runtime.addresses import free_address
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.processes import party_process, start
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, NAMES, SERVER, Settings, TwoPartyError

START_TIMEOUT_S = 120.0
"""For importing SPU and JAX on a busy machine."""
END_TIMEOUT_S = 10.0
GRACE_S = 1.0
"""When a party loses its peer, the peer's own error is the cause to report, and may arrive a moment later."""
CAUSES = {"death": 0, "defect": 1, "input": 1, "link": 2, "lost": 3}
"""Kinds of failure; the lowest number is the cause. The last two are of a party that only lost the other."""

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


def run_party(
    rank: int,
    task: Task,
    own_input: Any,
    addresses: Sequence[str],
    settings: Settings,
    *,
    on_control: Callable[[Any], Any] | None = None,
    alarm: Any = None,
) -> Any:
    """Run one party of which the other is started elsewhere with the same task and settings; returns its result.

    addresses: (client's, server's) as this party dials them; it listens at its own. Raises as `run_parties`; a peer
    that dies is noticed after `receive_timeout_s` at the latest, or as soon as `alarm` reports it.
    alarm: watches the connection to the peer; its `fileno` is readable, and its `failure` set, when that is lost.
    """
    return _Supervisor(task, {rank: own_input}, [addresses] * 2, settings, on_control, alarm).run()[rank]


@dataclass
class _Child:
    """The parent's view of one party process."""

    rank: int
    process: Any
    connection: Connection
    log: int
    log_path: Path
    phase: str = "starting"
    connected_at: int = 0  # size of its log when it had connected
    result: Any = None
    failure: tuple[str, str] | None = None
    failed_at: float = 0.0

    @property
    def name(self) -> str:
        return NAMES[self.rank]

    @property
    def ended(self) -> bool:
        """Whether it has sent its result or its failure."""
        return self.phase == "finished" or self.failure is not None

    def error_lines(self, start: int = 0) -> list[str]:
        """Lines of its output that report an error, from byte `start` on, of the last 16 KiB."""
        size = os.fstat(self.log).st_size
        lines = os.pread(self.log, 16384, max(start, size - 16384)).decode(errors="replace").splitlines()
        words = r"(?i)error|critical|fatal|abort|terminate|what\(\)|fail"
        return [" ".join(line.split())[:200] for line in lines if re.search(words, line)]

    def death(self, receive_timeout_s: float) -> tuple[str, str]:
        """The failure of a process that ended without a result or a failure of its own."""
        code = self.process.exitcode or 0
        # SPU itself ends a process that cannot send to its peer: that is the peer's failure.
        lost = [line for line in self.error_lines(self.connected_at) if "_link.cc" in line]
        if lost and code != -signal.SIGKILL:
            return "lost", (
                f"the {NAMES[1 - self.rank]} is gone or sent nothing for {receive_timeout_s:g} s; see why it stopped "
                f"({lost[-1][:120]})"
            )
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit status {code}"
        lines = self.error_lines()
        said = f', its last words "{lines[-1]}"' if lines else ""
        remedy = "run again" + (", with less at once if memory ran out" if code == -signal.SIGKILL else "")
        return "death", f"the {self.name} process ended by {how} while {self.phase}{said}; {remedy}"

    def error(self) -> Exception:
        """Its failure, to be raised."""
        kind, text = self.failure
        if kind == "defect":
            return RuntimeError(f"the {self.name}'s task failed:\n{text}")
        return TwoPartyError(text if kind == "death" else f"{self.name}: {text}")


@dataclass
class _Supervisor:
    """Starts the party processes of one run and sees it through. dialled: addresses as each party dials them."""

    task: Task
    inputs: dict[int, Any]
    dialled: Sequence[Sequence[str]]
    settings: Settings
    on_control: Callable[[Any], Any] | None
    alarm: Any = None
    children: dict[int, _Child] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    connecting: float = field(default_factory=time.monotonic)

    def run(self) -> dict[int, Any]:
        try:
            for rank in self.inputs:
                self._start(rank)
            while any(child.phase != "finished" for child in self.children.values()):
                self._watch()
            deadline = time.monotonic() + END_TIMEOUT_S
            for child in self.children.values():
                child.process.join(max(0.0, deadline - time.monotonic()))
            return {rank: child.result for rank, child in self.children.items()}
        finally:
            self._clear()

    def _start(self, rank: int) -> None:
        context = multiprocessing.get_context("forkserver")
        payload = (rank, self.task, self.inputs[rank], tuple(self.dialled[rank]), self.settings)
        message = multiprocessing.reduction.ForkingPickler.dumps(payload)
        ours, theirs = context.Pipe()
        log, path = tempfile.mkstemp(prefix="aero-party-", suffix=".log")
        process = context.Process(target=party_process, args=(theirs, path), name=f"aero-{NAMES[rank]}")
        self.children[rank] = _Child(rank, process, ours, log, Path(path))
        try:
            start(process, NAMES[rank])
        finally:
            theirs.close()
        # In a thread, because a party that hangs would block us in a full pipe, past every time limit.
        threading.Thread(target=_give, args=(ours, message), daemon=True).start()

    def _watch(self) -> None:
        """Raise the cause of a failure; else wait for a party's next messages, its end, or the end of the time."""
        active = [child for child in self.children.values() if not child.ended]
        watched: list[Any] = [c.connection for c in active] + [c.process.sentinel for c in active]
        if self.alarm is not None:
            watched.append(self.alarm)
        limit, reason = self._limit()
        if failed := [child for child in self.children.values() if child.failure is not None]:
            cause = min(failed, key=lambda child: (CAUSES[child.failure[0]], child.failed_at))
            limit, reason = min(child.failed_at for child in failed) + GRACE_S, ""
            if CAUSES[cause.failure[0]] < CAUSES["link"] or not watched or time.monotonic() >= limit:
                raise cause.error()
        if self.alarm is not None and self.alarm.failure is not None:
            raise TwoPartyError(self.alarm.failure)
        found = wait(watched, limit - time.monotonic())
        for child in active:
            if child.connection in found:
                self._receive(child)
            self._notice_end(child)
        if not found and time.monotonic() >= limit and reason:
            raise TwoPartyError(reason)

    def _receive(self, child: _Child) -> bool:
        """Take the next message of a party; False if there is none any more."""
        try:
            kind, content = child.connection.recv()
        except (EOFError, OSError):
            child.process.join(END_TIMEOUT_S)
            return False
        if kind == "phase":
            child.phase, self.connecting = content, time.monotonic()
            child.connected_at = os.fstat(child.log).st_size
        elif kind == "result":
            child.phase, child.result = "finished", content
        elif kind == "failure":
            child.failure, child.failed_at = content, time.monotonic()
        else:
            answer = self.on_control(content)
            with suppress(ConnectionError):  # it has ended meanwhile, which is noticed elsewhere
                child.connection.send(answer)
        return True

    def _notice_end(self, child: _Child) -> None:
        """Record the failure of a process that ended without having sent its result or failure."""
        if child.ended or child.process.is_alive():
            return
        child.process.join(END_TIMEOUT_S)
        # It may have sent its last messages after we last checked for them.
        while not child.ended and child.connection.poll() and self._receive(child):
            pass
        if not child.ended:
            child.failure, child.failed_at = child.death(self.settings.receive_timeout_s), time.monotonic()

    def _limit(self) -> tuple[float, str]:
        """When the next time limit is over, and what to say then."""
        settings, children = self.settings, self.children.values()
        limits = [(time.monotonic() + 60, "")]
        if late := [child.name for child in children if child.phase == "starting"]:
            reason = (
                f"the {' and '.join(late)} process was not up after {START_TIMEOUT_S:g} s; is the machine overloaded?"
            )
            limits.append((self.started + START_TIMEOUT_S, reason))
        elif waiting := [child for child in children if child.phase == "connecting"]:
            peer = 1 - waiting[0].rank
            reason = (
                f"the {NAMES[peer]} at {self.dialled[1 - peer][peer]} did not appear within "
                f"{settings.connect_timeout_s:g} s; start it, check address and firewall, or raise connect_timeout_s"
            )
            limits.append((self.connecting + settings.connect_timeout_s, reason))
        if (total := settings.total_timeout_s) is not None:
            reason = f"the private run was not done after {total:g} s; raise total_timeout_s (--total of aero serve)"
            limits.append((self.started + total, f"{reason} or ask for less"))
        return min(limits)

    def _clear(self) -> None:
        """End what still runs, and leave neither process nor file."""
        for child in self.children.values():
            if child.process.pid is not None and child.process.is_alive():
                child.process.kill()
        for child in self.children.values():
            if child.process.pid is not None:
                child.process.join(END_TIMEOUT_S)
                if child.process.exitcode is not None:
                    child.process.close()
            child.connection.close()
            os.close(child.log)
            child.log_path.unlink(missing_ok=True)


def _give(connection: Connection, message: Any) -> None:
    with suppress(OSError, ValueError):  # the process is gone, which its exit status reports
        connection.send_bytes(message)
