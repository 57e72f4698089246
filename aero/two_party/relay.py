"""A relay in user space between the two parties, which gives their link a delay and a rate.

Needs no privileges and no kernel modules, where `tc netem` needs both. Each party dials the other through the relay.
Every direction (client to server, server to client) is one line: bytes leave one after the other at the given rate,
whichever connection they belong to, and arrive `delay_s` later. Acknowledgements of a connection's other end travel
the opposite line, as on a real link. The two directions do not slow each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from aero.two_party.settings import CLIENT, SERVER, TwoPartyError, split_address

CHUNK_BYTES = 1 << 16
# What the line holds at most, as a network's buffers do: above the bandwidth-delay product of 1 Gbit/s and 200 ms.
QUEUE_BYTES = 1 << 25
OPEN_TIMEOUT_S = 10.0


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
        self._forwarded, self._recorded = (0, 0), (b"", b"")

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
        """With `record`: the bytes of the latest finished run, (client to server, server to client)."""
        return self._recorded

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
            self._recorded = tuple(b"".join(line.record) for line in self._lines)
        self._lines = []

    def _serve(self, targets: list[str], started: list[Any], ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(targets, started, ready))
        except Exception as error:
            started.append(error)
        finally:
            ready.set()

    async def _main(self, targets: list[str], started: list[Any], ready: threading.Event) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._lines = [_Line(self), _Line(self)]
        tasks = {asyncio.create_task(line.carry()) for line in self._lines}
        connections: set[asyncio.Task] = set()
        servers, doors = [], []
        for rank, target in enumerate(targets):
            # Whoever dials the server is the client: its bytes take the line to the server, the answers the other.
            lines = {SERVER: self._lines, CLIENT: self._lines[::-1]}[rank]

            def accept(reader: Any, writer: Any, target: str = target, lines: list[_Line] = lines) -> None:
                task = asyncio.create_task(self._join(reader, writer, target, lines))
                connections.add(task)
                task.add_done_callback(connections.discard)

            server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=CHUNK_BYTES)
            servers.append(server)
            doors.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.append(tuple(doors))
        ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in tasks | connections:
            task.cancel()
        await asyncio.gather(*tasks, *connections, return_exceptions=True)

    async def _join(self, reader: Any, writer: Any, target: str, lines: list[_Line]) -> None:
        """Join one accepted connection to its target until both ends have closed."""
        onward_writer = None
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*split_address(target), limit=CHUNK_BYTES)
            await asyncio.gather(lines[0].feed(reader, onward_writer), lines[1].feed(onward_reader, writer))
        except OSError:
            pass  # the target does not listen yet: this connection is closed and the party dials again
        finally:
            for end in (writer, onward_writer):
                if end is not None:
                    end.close()


class _Line:
    """One direction: a queue of (when due, where to, bytes, what to tell when carried), in the order of arrival."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._queue: deque[tuple[float, Any, bytes, asyncio.Future]] = deque()
        self._filled, self._drained = asyncio.Event(), asyncio.Event()
        self._waiting_bytes, self._free_at, self._last_due = 0, 0.0, 0.0
        self.bytes = 0
        self.record: list[bytes] = []

    async def feed(self, reader: Any, writer: Any) -> None:
        """Queue all that `reader` gives for `writer`, then its end; returns when all of it has been carried."""
        clock = asyncio.get_running_loop().time
        carried = asyncio.get_running_loop().create_future()
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            relay = self._relay
            self.bytes += len(data)
            if relay._record:
                self.record.append(data)
            # The line is busy until `_free_at`; times are computed, so late wake-ups do not add up.
            self._free_at = max(self._free_at, clock())
            if relay.bandwidth_bytes is not None:
                self._free_at += len(data) / relay.bandwidth_bytes
            self._last_due = max(self._last_due, self._free_at + relay.delay_s)
            self._queue.append((self._last_due, writer, data, carried))
            self._waiting_bytes += len(data)
            self._filled.set()
            while self._waiting_bytes > QUEUE_BYTES:
                self._drained.clear()
                await self._drained.wait()
        await carried

    async def carry(self) -> None:
        """Write what is due, for ever. An empty piece is the end of its connection's direction."""
        clock = asyncio.get_running_loop().time
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            due, writer, data, carried = self._queue.popleft()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            self._waiting_bytes -= len(data)
            self._drained.set()
            try:
                if data:
                    writer.write(data)
                    await writer.drain()
                elif writer.can_write_eof():
                    writer.write_eof()
            except OSError:
                pass  # that connection has gone; the others of this line go on
            if not data and not carried.done():
                carried.set_result(None)
