"""One connection between two hosts that carries everything: the hello as messages, then SPU's own connections.

SPU's parties dial each other, each listening at a port of its own. Here each dials a door on its own machine instead,
and what goes through that door comes out at the other party's port, through one connection that the client opened: the
server needs one reachable port, the client none. TLS protects the whole of it; every frame has a checksum as well, so
that a garbled one is an error without TLS too. A peer that vanishes is noticed as soon as the connection ends.

A frame: kind (1 byte), channel (4), length (4), CRC-32 of these and of the content (4), content.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import Any

from aero.errors import one_line
from aero.two_party.runtime.host_names import looked_up
from aero.two_party.runtime.settings import TwoPartyError, split_address
from aero.two_party.serving import tls
from aero.two_party.serving.handshake import plain

MESSAGE, OPEN, DATA, END = range(4)
_HEAD, _CRC = struct.Struct(">BII"), struct.Struct(">I")
CHUNK_BYTES = 1 << 16
MESSAGE_BYTES = 1 << 25  # from the server, whose tokenizer of 65,536 entries has 2 MB
QUESTION_BYTES = 1 << 16  # from a client, which says a few numbers
CHANNELS = 64  # SPU's parties need 2 each way
HANDSHAKE_S = 10.0
GOODBYE_S = 10.0
HANDSHAKES = 16  # clients that may be on their way to their first word
WAITING = 32  # clients that may wait for their turn after it; and lines on those that never said one


class Tunnel:
    """An established connection to `peer`; made by `dial` or `Listener.accept`.

    `fileno` becomes readable and `failure` a line of text when the connection is lost or the peer gives up.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext | None,
        host: str | None,
        peer: str,
        wait_s: float = HANDSHAKE_S,
    ) -> None:
        """host: of the server, at the client; None at the server. wait_s: for the other side of TLS.

        Raises TwoPartyError if TLS is refused or does not come about in that time.
        """
        self.peer, self._client = peer, host is not None
        self._secure, self._heard = context is not None, False
        self.failure: str | None = None
        self._through = False  # the peer has said that all is well on its side
        self._bell, self._ringer = socket.socketpair()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        # Of channels that are still open in one direction at least, so no more than `_writers` has:
        self._ended: dict[int, int] = {}
        self._half_closed: set[int] = set()  # the peer has ended its direction
        self._next = 1 if self._client else 2
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # what matters is told by `failure`
        self._thread = threading.Thread(target=self._loop.run_forever, name="aero-tunnel", daemon=True)
        self._thread.start()
        try:
            self._call(self._establish(connection, context, host, wait_s), wait_s + 1)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._bell.fileno()

    @property
    def name(self) -> str | None:
        """The common name in the peer's certificate, None without TLS."""
        certificate = self._writer.get_extra_info("peercert") or {}
        names = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
        return plain(names[0]) if names else None

    def send(self, message: Any, timeout_s: float = HANDSHAKE_S) -> None:
        """Send a JSON message."""
        self._call(self._write(MESSAGE, 0, json.dumps(message).encode()), timeout_s)

    def receive(self, timeout_s: float = HANDSHAKE_S) -> dict[str, Any]:
        """The peer's next message, before `carry`. TwoPartyError if none comes in time or it is none."""
        kind, _, content = self._call(self._frame(), timeout_s)
        return self._message(kind, content)

    def carry(self, target: str) -> str:
        """Carry connections from now on: the peer's to `target`, where our SPU party will listen, and ours to the peer.

        Returns the door on this machine at which our party dials the other.
        """
        return self._call(self._carry(target), HANDSHAKE_S)

    def finish(self) -> None:
        """Tell the peer that all is well on our side, wait until it says the same, and close. TwoPartyError if not.

        A peer that has said so may be gone before we get here: both sides are through all the same. If ours is not, the
        loss is told by `failure`, as of any peer.
        """
        try:
            if self.failure is None:
                try:
                    self.send({"done": True})
                except TwoPartyError:
                    if not self._through:
                        raise
                self._call(self._done.wait(), GOODBYE_S)
            if self.failure is not None and not self._through:
                raise TwoPartyError(self.failure)
        finally:
            self.close()

    def give_up(self) -> None:
        """Tell the peer, as far as it still listens, that this side failed, and close. Without effect if closed.

        No reason is sent: it could tell what is ours alone.
        """
        if self._loop.is_closed():
            return
        with contextlib.suppress(TwoPartyError):
            self.send({"failed": True}, 1.0)
        self.close()

    def close(self) -> None:
        """Close the connection and everything it carried. Without effect if closed."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TwoPartyError):
            self._call(self._shut(), GOODBYE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GOODBYE_S)
        if not self._thread.is_alive():
            self._loop.close()
        self._bell.close()
        self._ringer.close()

    def _call(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Run in the tunnel's thread; every failure of the connection is a TwoPartyError."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (NotInTime, TimeoutError):
            future.cancel()
            raise TwoPartyError(self._silent(timeout_s)) from None
        except TwoPartyError:
            raise
        except (OSError, EOFError) as error:
            raise TwoPartyError(self._lost(error)) from None

    def _silent(self, seconds: float) -> str:
        busy = "; it may be busy with another question" if self._client else ""
        return f"{self.peer} did not answer within {seconds:g} s{busy}"

    def _lost(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return tls.why(error, self.peer)
        if self._secure and not self._heard:
            # Python's asyncio closes the connection without the alert that TLS has for it.
            return (
                f"{self.peer} ended it before a word was said; it may have refused our certificate and said why there"
            )
        return f"{self.peer} is gone: it closed the connection"

    async def _establish(
        self, connection: socket.socket, context: ssl.SSLContext | None, host: str | None, wait_s: float
    ) -> None:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        # asyncio does so for sockets that name their protocol, which an accepted one does not: its small frames then
        # wait for the acknowledgement of the last one, 40 ms at a time.
        if connection.family in (socket.AF_INET, socket.AF_INET6):  # others have no such option
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = asyncio.StreamReader(2 * CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        more: dict[str, Any] = {} if context is None else {"ssl": context, "ssl_handshake_timeout": wait_s}
        try:
            if host is None:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **more)
            else:
                if context is not None:
                    more["server_hostname"] = host
                transport, _ = await loop.create_connection(lambda: protocol, sock=connection, **more)
        except ConnectionAbortedError:
            if time.monotonic() - began < wait_s:
                raise
            raise TwoPartyError(self._silent(wait_s)) from None  # asyncio's own time-out of a handshake
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        self._lock, self._done = asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task] = set()
        self._doors: list[asyncio.Server] = []

    async def _shut(self) -> None:
        if not hasattr(self, "_writer"):
            return
        for door in self._doors:
            door.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers.values():
            writer.close()
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)
        with contextlib.suppress(AttributeError):  # of Python 3.11 up to .3, where TLS is gone already
            self._writer.transport.abort()

    async def _write(self, kind: int, channel: int, content: bytes) -> None:
        head = _HEAD.pack(kind, channel, len(content))
        async with self._lock:
            try:
                self._writer.write(head + _CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content)
            except AttributeError:  # as in `_shut`
                raise ConnectionResetError("the connection is closed") from None
            await self._writer.drain()

    async def _frame(self) -> tuple[int, int, bytes]:
        head = await self._reader.readexactly(_HEAD.size)
        kind, channel, length = _HEAD.unpack(head)
        longest = MESSAGE_BYTES if self._client else QUESTION_BYTES
        if kind > END or length > (longest if kind == MESSAGE else CHUNK_BYTES):
            raise TwoPartyError(
                f"{self.peer} sent what is no part of a private question; is it this program, of one version, with "
                "certificates on both sides or on none?"
            )
        (crc,) = _CRC.unpack(await self._reader.readexactly(_CRC.size))
        content = await self._reader.readexactly(length)
        if crc != zlib.crc32(content, zlib.crc32(head)):
            raise TwoPartyError(f"what came over the link to {self.peer} was changed on the way (checksum); run again")
        self._heard = True
        return kind, channel, content

    def _message(self, kind: int, content: bytes) -> dict[str, Any]:
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            message = None
        if kind != MESSAGE or not isinstance(message, dict):
            raise TwoPartyError(f"{self.peer} sent no message where one was due; are both of one version?")
        return message

    async def _carry(self, target: str) -> str:
        self._target = target
        door = await asyncio.start_server(self._enter, "127.0.0.1", 0, limit=CHUNK_BYTES)
        self._doors.append(door)
        self._start(self._deliver())
        return f"127.0.0.1:{door.sockets[0].getsockname()[1]}"

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Our party dialled the other."""
        channel, self._next = self._next, self._next + 2
        self._writers[channel] = writer
        with contextlib.suppress(OSError):  # a lost tunnel is told by `_deliver`
            await self._write(OPEN, channel, b"")
            self._start(self._pump(channel, reader))

    async def _pump(self, channel: int, reader: asyncio.StreamReader) -> None:
        """Send what a local connection gives, then its end."""
        try:
            data = b"-"
            while data:
                try:
                    data = await reader.read(CHUNK_BYTES)
                except OSError:
                    data = b""
                await self._write(DATA if data else END, channel, data)
            self._end(channel)
        except OSError:
            pass  # the tunnel is lost, which `_deliver` tells

    async def _deliver(self) -> None:
        """Hand out what comes from the peer, until the tunnel is lost."""
        try:
            while True:
                kind, channel, content = await self._frame()
                if kind == MESSAGE:
                    message = self._message(kind, content)
                    if "done" not in message:
                        raise TwoPartyError(f"{self.peer} gave up on this question; its own output says why")
                    # Its parties' last connections may end after it, and it stays until we have said the same.
                    self._through = True
                    self._done.set()
                elif kind == OPEN:
                    if len(self._writers) >= CHANNELS or channel in self._writers:
                        raise TwoPartyError(
                            f"{self.peer} opened more connections than a private question needs; is it this program?"
                        )
                    await self._open(channel)
                elif (writer := self._writers.get(channel)) is not None:
                    if channel in self._half_closed:
                        raise TwoPartyError(f"{self.peer} went on with a connection it had ended; is it this program?")
                    if kind == END:
                        self._half_closed.add(channel)
                    with contextlib.suppress(OSError):  # that connection has gone; the others go on
                        if kind == DATA:
                            writer.write(content)
                            await writer.drain()
                        elif writer.can_write_eof():
                            writer.write_eof()
                    if kind == END:
                        self._end(channel)
        except Exception as error:  # whatever it is: nobody else would tell that the tunnel is lost
            if isinstance(error, OSError | EOFError):
                self.failure = self._lost(error)
            else:
                named = "" if isinstance(error, TwoPartyError) else f"the link to {self.peer} broke here: "
                self.failure, self._through = f"{named}{error}", False
            self._done.set()
            self._ringer.send(b"!")

    async def _open(self, channel: int) -> None:
        """The other party dialled ours. If ours does not listen yet, the connection ends at once and it tries again."""
        try:
            reader, writer = await asyncio.open_connection(*split_address(self._target), limit=CHUNK_BYTES)
        except OSError:
            await self._write(END, channel, b"")
            return
        self._writers[channel] = writer
        self._start(self._pump(channel, reader))

    def _end(self, channel: int) -> None:
        """One direction of a channel is over; after the second its connection is closed."""
        self._ended[channel] = self._ended.get(channel, 0) + 1
        if self._ended[channel] == 2:
            del self._ended[channel]
            self._half_closed.discard(channel)
            if (writer := self._writers.pop(channel, None)) is not None:
                writer.close()


@dataclass(frozen=True)
class Arrival:
    """A client that has said its first word; or, without a tunnel, the line on one that has not."""

    who: str
    tunnel: Tunnel | None
    hello: dict[str, Any]
    failure: str = ""


class Listener:
    """Where a server waits for clients. TwoPartyError if it cannot listen there.

    `arrival` has every client do its part of TLS and say its first word in a thread of its own, so that one that stays
    silent holds up nobody; whoever has said it waits for its turn.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        host, port = split_address(address)
        self._context = context
        try:
            *_, (place, *_) = looked_up(host, port, socket.AF_INET)[0]
            self._socket = socket.create_server((place, port))
        except OSError as error:
            raise TwoPartyError(
                f"cannot listen at {address}: {error.strerror}; give an address of this machine and a free port"
            ) from None
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._changed = threading.Condition()
        self._arrived: deque[Arrival] = deque()
        self._greeted: dict[threading.Thread, socket.socket] = {}  # in the order in which they came
        self._door: threading.Thread | None = None
        self._closed = False

    def wait(self) -> tuple[socket.socket, str]:
        """The next connection and the address it comes from."""
        connection, (host, port, *_) = self._socket.accept()
        connection.setblocking(False)
        return connection, f"{host}:{port}"

    def establish(self, connection: socket.socket, source: str, wait_s: float = HANDSHAKE_S) -> Tunnel:
        """TwoPartyError if the client does not do its part of TLS in `wait_s`."""
        return Tunnel(connection, self._context, None, f"the client at {source}", wait_s)

    def greet(self, connection: socket.socket, source: str) -> Arrival:
        """Everything up to the client's first word, within `HANDSHAKE_S` for each of TLS and that word."""
        try:
            tunnel = self.establish(connection, source)
        except (ValueError, OSError, RuntimeError) as error:
            connection.close()
            return Arrival(source, None, {}, f"{source}: refused: {one_line(error)}")
        who = source
        try:
            who = source if tunnel.name is None else f"{source} ({tunnel.name})"
            return Arrival(who, tunnel, tunnel.receive(HANDSHAKE_S))
        except (ValueError, OSError, RuntimeError) as error:
            tunnel.give_up()
            return Arrival(who, None, {}, f"{who}: failed: {one_line(error)}")

    def arrival(self) -> Arrival:
        """The next client, in the order of their first words, or the line on one that never said it."""
        if self._door is None:
            self._door = threading.Thread(target=self._admit, name="aero-door", daemon=True)
            self._door.start()
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closed)
            if not self._arrived:
                raise OSError("the listener is closed")
            return self._arrived.popleft()

    def _admit(self) -> None:
        while True:
            try:
                connection, source = self.wait()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # no descriptor is free; others are closed meanwhile
                continue
            thread = threading.Thread(target=self._greet, args=(connection, source), name="aero-greeting", daemon=True)
            with self._changed:
                if len(self._greeted) >= HANDSHAKES:
                    # The one that has been silent for longest: its thread sees the end of the connection.
                    _hang_up(self._greeted.pop(next(iter(self._greeted))))
                self._greeted[thread] = connection
                try:
                    thread.start()
                except RuntimeError:  # no thread is free
                    del self._greeted[thread]
                    connection.close()

    def _greet(self, connection: socket.socket, source: str) -> None:
        arrival = self.greet(connection, source)
        with self._changed:
            self._greeted.pop(threading.current_thread(), None)
            waiting = sum((one.tunnel is None) == (arrival.tunnel is None) for one in self._arrived)
            if keep := not self._closed and waiting < WAITING:
                self._arrived.append(arrival)
                self._changed.notify_all()
        if not keep and arrival.tunnel is not None:
            with contextlib.suppress(TwoPartyError):
                arrival.tunnel.send({"refused": f"{WAITING} clients are waiting for their turn; ask again later"})
            arrival.tunnel.close()

    def close(self) -> None:
        """Listen no longer, and let go of all who have not had their turn."""
        with self._changed:
            self._closed = True
            threads, left = list(self._greeted), list(self._arrived)
            for connection in self._greeted.values():
                _hang_up(connection)
            self._arrived.clear()
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._socket.close()
        for arrival in left:
            if arrival.tunnel is not None:
                arrival.tunnel.give_up()
        for thread in [*threads, *([self._door] if self._door else [])]:
            thread.join(GOODBYE_S)


def _connected(places: Sequence[tuple[Any, ...]]) -> socket.socket:
    """A connection to the first of `places` (`socket.getaddrinfo`) that takes one. OSError of the last if none does."""
    failed = OSError("its name has no address")
    for family, kind, protocol, _, address in places:
        with contextlib.ExitStack() as unless_connected:
            try:
                connection = unless_connected.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(HANDSHAKE_S)
                connection.connect(address)
                unless_connected.pop_all()
                return connection
            except OSError as error:
                failed = error
    raise failed


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)


def dial(address: str, context: ssl.SSLContext | None, wait_s: float = HANDSHAKE_S) -> Tunnel:
    """Connect to the server at `address`, which may be busy with another question for `wait_s` before it does its part
    of TLS. TwoPartyError if its name is not found in time, nobody listens or TLS is refused.
    """
    host, port = split_address(address)
    try:
        connection = _connected(looked_up(host, port))
    except OSError as error:
        raise TwoPartyError(
            f"no server at {address} ({error.strerror or error}); start one there with `aero serve`, or check address "
            "and firewall"
        ) from None
    connection.setblocking(False)
    return Tunnel(connection, context, host, f"the server at {address}", wait_s)
