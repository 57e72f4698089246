"""A relay in user space between the two parties, which gives their link a delay and a rate.

It needs no privileges, where `tc netem` does. Each party dials the other through the relay. Each direction (client to
server, server to client) is one line: bytes leave one after the other at the given rate, whichever connection they
belong to, and arrive `delay_s` later. The two directions do not slow each other.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aero.two_party.runtime.addresses import split_address
from aero.two_party.runtime.settings import CLIENT, SERVER

PIECE_BYTES = 1 << 18
QUEUE_PIECES = 128
"""Up to 32 MiB under way, above the bandwidth-delay product of 1 Gbit/s and 200 ms."""
WRITE_BUFFER_BYTES = 1 << 22
OPEN_TIMEOUT_S = 10.0


class Relay:
    """Both directions of one link, for one run.

    delay_s: one-way delay, half a round trip. bandwidth_bytes: bytes a second in each direction, None for no limit.
    Both may be changed while running.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bandwidth_bytes: float | None = None
        self._lines = (_Line(self), _Line(self))
        # epoll, asyncio's default, waits whole milliseconds; short delays and high rates need select.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="aero-relay", daemon=True)

    def open(self, targets: Sequence[str]) -> tuple[str, str]:
        """Start relaying to the addresses where the (client, server) listen; returns the addresses to dial instead."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(targets), self._loop).result(OPEN_TIMEOUT_S)

    def close(self) -> None:
        """Stop relaying and free the ports; bytes still under way are lost."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(OPEN_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(OPEN_TIMEOUT_S)
        self._loop.close()

    async def _start(self, targets: Sequence[str]) -> tuple[str, str]:
        self._tasks: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers = [await self._door(rank, target) for rank, target in enumerate(targets)]
        for line in self._lines:
            self._run(line.carry())
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        return f"127.0.0.1:{ports[CLIENT]}", f"127.0.0.1:{ports[SERVER]}"

    async def _door(self, rank: int, target: str) -> asyncio.Server:
        """Listen for the party that dials the party of `rank`."""
        # Whoever dials the server is the client: its bytes take the line to the server, the answers the other.
        there, back = self._lines if rank == SERVER else self._lines[::-1]

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await asyncio.open_connection(*split_address(target), limit=PIECE_BYTES)
            except OSError:
                writer.close()  # the target does not listen yet: the party dials again
                return
            for end in (writer, far_writer):
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
                self._writers.add(end)
            self._run(there.read(reader, far_writer))
            self._run(back.read(far_reader, writer))

        return await asyncio.start_server(accept, "127.0.0.1", 0, limit=PIECE_BYTES)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)


class _Line:
    """One direction: a queue of (when due, where to, bytes), in the order of arrival."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._queue: asyncio.Queue[tuple[float, asyncio.StreamWriter, bytes]] = asyncio.Queue(QUEUE_PIECES)
        self._free_at = self._last_due = 0.0

    async def read(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Queue what comes from one connection; an empty piece is its end."""
        clock, data = asyncio.get_running_loop().time, b"-"
        while data:
            try:
                data = await reader.read(PIECE_BYTES)
            except OSError:
                data = b""
            # Due times are computed, so late wake-ups do not add up.
            self._free_at = max(self._free_at, clock())
            if self._relay.bandwidth_bytes is not None:
                self._free_at += len(data) / self._relay.bandwidth_bytes
            self._last_due = max(self._last_due, self._free_at + self._relay.delay_s)
            await self._queue.put((self._last_due, to, data))

    async def carry(self) -> None:
        """Write each piece when it is due."""
        clock = asyncio.get_running_loop().time
        while True:
            due, to, data = await self._queue.get()
            if (wait_s := due - clock()) > 0:
                await asyncio.sleep(wait_s)
            with suppress(OSError):
                if data:
                    to.write(data)
                    await to.drain()
                elif to.can_write_eof():
                    to.write_eof()
