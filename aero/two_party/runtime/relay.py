"""A relay in user space between the two parties, which gives their link a delay and a rate.

Needs no privileges and no kernel modules, where `tc netem` needs both. Each party dials the other through the relay.
Every direction (client to server, server to client) is one line: bytes leave one after the other at the given rate,
whichever connection they belong to, and arrive `delay_s` later. Acknowledgements of a connection's other end travel
the opposite line, as on a real link. The two directions do not slow each other.
"""

from __future__ import annotations

import asyncio
import ctypes
import selectors
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from aero.two_party.runtime.settings import CLIENT, SERVER, TwoPartyError, split_address

# What the line holds at most, as a network's buffers do: above the bandwidth-delay product of 1 Gbit/s and 200 ms.
QUEUE_BYTES = 1 << 25
# What waits for a receiver that does not read.
WRITE_BUFFER_BYTES = 1 << 22
# What one socket reads at once, as asyncio would.
READ_BYTES = 1 << 18
OPEN_TIMEOUT_S = 10.0
_PR_SET_TIMERSLACK = 29


class Relay:
    """Both directions of one link. One relay can serve several runs, one after the other.

    delay_s: one-way delay in seconds, half a round trip; may be changed while running. bandwidth_bytes: bytes a second
    in each direction, None for no limit. record: keep all bytes that passed, for tests of what an observer sees.
    """

    def __init__(self, delay_s: float = 0.0, bandwidth_bytes: float | None = None, *, record: bool = False) -> None:
        self._lines: list[_Line] = []
        self.delay_s, self.bandwidth_bytes, self._record = delay_s, bandwidth_bytes, record
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forwarded = (0, 0)
        # Of the latest finished run, by direction: to which end, and what.
        self._pieces: tuple[list[tuple[_End, bytes]], ...] = ([], [])

    @property
    def delay_s(self) -> float:
        """One-way delay, seconds. Setting it holds for all bytes from then on; ValueError if it cannot be."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, delay_s: float) -> None:
        if not 0 <= delay_s <= 60:
            raise ValueError(f"delay_s {delay_s} must be from 0 to 60 seconds")
        self._delay_s = float(delay_s)

    @property
    def bandwidth_bytes(self) -> float | None:
        """Bytes a second in each direction, None for no limit. Set as `delay_s`."""
        return self._bandwidth_bytes

    @bandwidth_bytes.setter
    def bandwidth_bytes(self, bandwidth_bytes: float | None) -> None:
        if bandwidth_bytes is not None and not bandwidth_bytes > 0:
            raise ValueError(f"bandwidth_bytes {bandwidth_bytes} must be above 0 bytes a second, or None for no limit")
        self._bandwidth_bytes = bandwidth_bytes

    @property
    def forwarded(self) -> tuple[int, int]:
        """Bytes carried in the current or latest run: (client to server, server to client), TCP payload."""
        return (self._lines[0].bytes, self._lines[1].bytes) if self._lines else self._forwarded

    @property
    def recorded(self) -> tuple[bytes, bytes]:
        """With `record`: the bytes of the latest finished run, (client to server, server to client), as they came."""
        return tuple(b"".join(data for _, data in pieces) for pieces in self._pieces)

    @property
    def recorded_streams(self) -> tuple[list[bytes], list[bytes]]:
        """`recorded` by connection, in each direction those that carried something."""
        found: tuple[dict[_End, list[bytes]], ...] = ({}, {})
        for streams, pieces in zip(found, self._pieces, strict=True):
            for connection, data in pieces:
                streams.setdefault(connection, []).append(data)
        return tuple([b"".join(parts) for parts in streams.values()] for streams in found)

    def open(self, targets: Sequence[str]) -> tuple[str, str]:
        """Start relaying to the addresses where the (client, server) listen; returns the addresses to dial instead."""
        if self._thread is not None:
            raise TwoPartyError("this relay is already in use by another run; give each run its own")
        started: list[Any] = []
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(list(targets), started, ready), name="aero-relay", daemon=True
        )
        self._thread.start()
        if not ready.wait(OPEN_TIMEOUT_S) or not started or isinstance(started[0], BaseException):
            reason = started[0] if started else f"not ready after {OPEN_TIMEOUT_S:g} s"
            self.close()
            raise TwoPartyError(f"the relay could not start: {reason}")
        client_door, server_door = started[0]
        return client_door, server_door

    def close(self) -> None:
        """Stop relaying and free the ports; bytes still under way are lost. Without effect if not open."""
        if self._thread is None:
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(OPEN_TIMEOUT_S)
        self._thread = self._loop = None
        self._forwarded = self.forwarded
        if self._lines:
            self._pieces = tuple(line.record for line in self._lines)
        self._lines = []

    def _serve(self, targets: list[str], started: list[Any], ready: threading.Event) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # this thread's waits, else 50 microseconds late
        try:
            # epoll, the default, waits whole milliseconds; short delays and high rates need select.
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
                runner.run(self._main(targets, started, ready))
        except Exception as error:
            started.append(error)
        finally:
            ready.set()

    async def _main(self, targets: list[str], started: list[Any], ready: threading.Event) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._lines = [_Line(self), _Line(self)]
        self._ends: set[_End] = set()
        self._dialling: set[asyncio.Task] = set()
        servers, doors = [], []
        for rank, target in enumerate(targets):
            # Whoever dials the server is the client: its bytes take the line to the server, the answers the other.
            lines = {SERVER: self._lines, CLIENT: self._lines[::-1]}[rank]

            def accepted(target: str = target, lines: list[_Line] = lines) -> _End:
                return _End(self, lines, target)

            server = await self._loop.create_server(accepted, "127.0.0.1", 0)
            servers.append(server)
            doors.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.append(tuple(doors))
        ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for end in list(self._ends):
            end.transport.abort()


class _End(asyncio.BufferedProtocol):
    """One socket of a connection: what it reads takes `line` to its peer, the socket on the other side."""

    def __init__(self, relay: Relay, lines: list[_Line], target: str = "", peer: _End | None = None) -> None:
        """Without a peer it dials one, at `target`, whose bytes take the second line."""
        self._relay, self._lines, self._target, self.peer = relay, lines, target, peer
        self.line = lines[0]
        self.transport: Any = None
        self.full, self._ended = False, False
        # Of before the peer is there: Python 3.11 up to .3 starts to read although connection_made paused it.
        self._early: list[bytes] = []
        # A buffer that stays: asyncio's own is new for every read and cut to what came. glibc maps one of this size by
        # itself, so that each piece that is kept, however small, has a page and a mapping: a process may have 65,530.
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._relay._ends.add(self)
        self.line.sources.add(self)
        if self.peer is None:
            transport.pause_reading()
            task = asyncio.get_running_loop().create_task(self._dial(self._target))
            self._relay._dialling.add(task)
            task.add_done_callback(self._relay._dialling.discard)

    async def _dial(self, target: str) -> None:
        peer = _End(self._relay, self._lines[::-1], peer=self)
        try:
            await asyncio.get_running_loop().create_connection(lambda: peer, *split_address(target))
        except OSError:
            self.transport.close()  # the target does not listen yet: the party dials again
            return
        self.peer = peer
        for data in self._early:
            self.line.take(data, peer)
        self._early.clear()
        if self.transport.is_closing():
            peer.transport.close()
        else:
            self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(self._buffer[:nbytes]))

    def _take(self, data: bytes) -> None:
        if self.peer is None:
            self._early.append(data)
        else:
            self.line.take(data, self.peer)

    def eof_received(self) -> bool:
        self._end()
        return True  # the other direction stays open

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self.line.sources.discard(self)
        self._relay._ends.discard(self)
        if self.full:
            self.resume_writing()

    def _end(self) -> None:
        if not self._ended:
            self._take(b"")
        self._ended = True

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self.peer is not None:
            self.peer.line.carry()

    def write(self, data: bytes) -> None:
        """Pass on what has crossed the line; an empty piece is the end of this direction."""
        if self.transport.is_closing():
            return
        if data:
            self.transport.write(data)
        elif self._ended:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()


class _Line:
    """One direction: a queue of (when due, to which end, bytes), in the order of arrival."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._clock = asyncio.get_running_loop().time
        self._queue: deque[tuple[float, _End, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_bytes, self._free_at, self._last_due = 0, 0.0, 0.0
        self._held_back = False
        self.sources: set[_End] = set()
        self.bytes = 0
        self.record: list[tuple[_End, bytes]] = []

    def take(self, data: bytes, to: _End) -> None:
        """Queue bytes for `to`: they leave when all before them have, at the rate, and arrive after the delay."""
        relay = self._relay
        self.bytes += len(data)
        if relay._record:
            self.record.append((to, data))
        # The line is busy until `_free_at`; times are computed, so late wake-ups do not add up.
        self._free_at = max(self._free_at, self._clock())
        if relay.bandwidth_bytes is not None:
            self._free_at += len(data) / relay.bandwidth_bytes
        self._last_due = max(self._last_due, self._free_at + relay.delay_s)
        self._queue.append((self._last_due, to, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes > QUEUE_BYTES and not self._held_back:
            self._held_back = True
            for source in self.sources:
                source.transport.pause_reading()
        self.carry()

    def carry(self) -> None:
        """Write what is due, and come back when the next piece is."""
        while self._queue:
            due, to, data = self._queue[0]
            if to.full:
                break  # `to` calls again when it can take more
            if due > self._clock():
                self._wake_at(due)
                break
            self._queue.popleft()
            self._waiting_bytes -= len(data)
            to.write(data)
        if self._held_back and self._waiting_bytes <= QUEUE_BYTES // 2:
            self._held_back = False
            for source in self.sources:
                if not source.transport.is_closing():
                    source.transport.resume_reading()

    def _wake_at(self, due: float) -> None:
        if self._timer is None or self._timer.cancelled() or self._timer.when() != due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.carry()
