"""Where a server waits for clients: each does its TLS handshake and says hello beside the others, within a time limit.

A client that stays silent so delays nobody. Whoever has said hello waits for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any

from aero.errors import one_line
from aero.two_party.runtime.addresses import join_address, look_up, split_address
from aero.two_party.runtime.settings import TwoPartyError
from aero.two_party.serving.tunnel import GOODBYE_S, HANDSHAKE_S, Tunnel, event_loop

HANDSHAKES = 16
"""Clients that may be in their handshake at once; one more ends the oldest."""
WAITING = 32
"""Clients that may wait for their turn at once, and log lines on clients that failed."""


@dataclass(frozen=True)
class Arrival:
    """A client that has said hello; or, without a tunnel, the log line on one that did not."""

    who: str
    tunnel: Tunnel | None
    hello: dict[str, Any]
    failure: str = ""


class Listener:
    """A listening server. TwoPartyError if it cannot listen at the address."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        host, port = split_address(address)
        self._context = context
        try:
            family, *_, place = look_up(host, port)[0]
            self._socket = socket.create_server(place, family=family)
        except OSError as error:
            raise TwoPartyError(
                f"cannot listen at {address}: {error.strerror}; give an address of this machine and a free port"
            ) from None
        self._socket.setblocking(False)
        self.address = join_address(host, self._socket.getsockname()[1])
        self._arrivals: deque[Arrival] = deque()
        self._closed = False
        self._changed, self._change = socket.socketpair()  # readable on an arrival, a signal, and when closed
        self._changed.setblocking(False)
        self._change.setblocking(False)
        self._greetings: dict[asyncio.Task, None] = {}  # oldest first
        self._accepting = asyncio.run_coroutine_threadsafe(self._accept(), event_loop())

    def end_on_signals(self) -> None:
        """Let SIGINT and SIGTERM end the wait for a client. For the main thread.

        Python's own KeyboardInterrupt is lost if raised in a destructor, and it can break a `threading.Condition`.
        """
        signal.set_wakeup_fd(self._change.fileno(), warn_on_full_buffer=False)

    def arrival(self) -> Arrival:
        """The next client, in the order of their hellos, or the line on one that failed. OSError once closed,
        KeyboardInterrupt after a signal that has come since `end_on_signals`."""
        while not self._closed:
            with contextlib.suppress(OSError):  # nothing to read
                if {signal.SIGINT, signal.SIGTERM} & set(self._changed.recv(4096)):
                    raise KeyboardInterrupt
            with contextlib.suppress(IndexError):
                return self._arrivals.popleft()
            with contextlib.suppress(ValueError):  # closed since
                select.select([self._changed], [], [])
        raise OSError("the listener is closed")

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # closed, or full: then `arrival` has enough to read
            self._change.send(b"\0")

    def close(self) -> None:
        """Stop listening, and drop everybody who has not had a turn."""
        with contextlib.suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)
        self._accepting.cancel()
        asyncio.run_coroutine_threadsafe(self._stop(), event_loop()).result(GOODBYE_S)

    async def _stop(self) -> None:
        self._socket.close()
        greetings = list(self._greetings)
        for task in greetings:
            task.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)
        self._closed = True
        self._change.close()  # which ends a wait in `arrival`
        self._changed.close()
        for arrival in self._arrivals:
            if arrival.tunnel is not None:
                await arrival.tunnel.shut()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (host, port, *_) = await loop.sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(0.1)  # no descriptor is free; others are closed meanwhile
                continue
            if len(self._greetings) >= HANDSHAKES:
                oldest = next(iter(self._greetings))
                del self._greetings[oldest]
                oldest.cancel()
            task = loop.create_task(self._greet(connection, join_address(host, port)))
            self._greetings[task] = None
            task.add_done_callback(lambda task: self._greetings.pop(task, None))
            await asyncio.sleep(0)  # a task that is cancelled before it starts would report nothing

    async def _greet(self, connection: socket.socket, source: str) -> None:
        """TLS handshake and hello, within HANDSHAKE_S each."""
        tunnel = Tunnel(f"the client at {source}", is_client=False, secure=self._context is not None)
        arrival = Arrival(source, None, {}, f"{source}: refused: too many clients at once; it was silent for longest")
        try:
            arrival = await self._arrival(tunnel, connection, source)
        finally:
            alike = [other for other in self._arrivals.copy() if (other.tunnel is None) == (arrival.tunnel is None)]
            if waits := len(alike) < WAITING:
                self._arrivals.append(arrival)
                self._tell()
            if not waits and arrival.tunnel is not None:
                with contextlib.suppress(OSError):
                    await tunnel.write_message({"refused": f"{WAITING} clients are waiting; ask again later"})
                arrival = Arrival(source, None, {})
            if arrival.tunnel is None:
                await tunnel.shut()
                connection.close()

    async def _arrival(self, tunnel: Tunnel, connection: socket.socket, source: str) -> Arrival:
        who = source
        try:
            await tunnel.establish(connection, self._context, None)
            who = source if tunnel.name is None else f"{source} ({tunnel.name})"
            return Arrival(who, tunnel, await asyncio.wait_for(tunnel.read_message(), HANDSHAKE_S))
        except TimeoutError:
            reason = tunnel.silent(HANDSHAKE_S)
        except (OSError, EOFError) as error:
            reason = tunnel.lost(error)
        except (ValueError, RuntimeError) as error:
            reason = one_line(error)
        return Arrival(who, None, {}, f"{who}: failed: {reason}")
