"""One connection between two hosts that carries everything: first messages in JSON, then SPU's own connections.

SPU's parties dial each other, each listening at a port of its own. With a tunnel each dials a door on its own machine,
and what goes in there comes out at the other party's port, through the one connection that the client opened: the
server needs one reachable port, the client none. TLS protects all of it; every frame has a checksum as well.

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
from collections.abc import Coroutine, Sequence
from functools import cache
from typing import Any

from aero.two_party.runtime.addresses import look_up, split_address
from aero.two_party.runtime.settings import TwoPartyError
from aero.two_party.serving import tls

MESSAGE, OPEN, DATA, END = range(4)
HEAD, CRC = struct.Struct(">BII"), struct.Struct(">I")
CHUNK_BYTES = 1 << 16
SERVER_MESSAGE_BYTES = 1 << 25
"""Longest message from a server; the tokenizer in it has 2 MB for 65,536 entries."""
CLIENT_MESSAGE_BYTES = 1 << 16
CHANNELS = 64
"""Connections that a peer may open at once; SPU's parties need two in each direction."""
HANDSHAKE_S = 10.0
GOODBYE_S = 10.0


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all tunnels and listeners of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # failures are reported by `Tunnel.failure`
    threading.Thread(target=loop.run_forever, name="aero-tunnel", daemon=True).start()
    return loop


def plain(text: object) -> str:
    """A peer's text on one line of printable characters, at most 300."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(text).split()))[:300]


class Tunnel:
    """An established connection to `peer`; made by `dial` or `Listener`.

    `fileno` becomes readable and `failure` a line of text when the connection is lost or the peer gives up.
    """

    def __init__(self, peer: str, *, is_client: bool, secure: bool) -> None:
        """peer: "the server at HOST:PORT" or the like. Not connected yet: see `establish`."""
        self.peer, self._is_client, self._secure = peer, is_client, secure
        self.failure: str | None = None
        self._heard = False  # anything from the peer
        self._peer_done = False
        self._closed = False
        self._signal, self._signalled = socket.socketpair()
        self._writers: dict[int, asyncio.StreamWriter] = {}  # by channel, while one direction is open
        self._ended: dict[int, set[str]] = {}  # directions that have ended, "in" or "out", by open channel
        self._next_channel = 1 if is_client else 2
        self._lock, self._done = asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task] = set()
        self._doors: list[asyncio.Server] = []
        self._writer: asyncio.StreamWriter | None = None

    # For callers in any thread.

    def fileno(self) -> int:
        return self._signal.fileno()

    @property
    def name(self) -> str | None:
        """The common name in the peer's certificate, None without TLS."""
        certificate = (self._writer.get_extra_info("peercert") if self._writer else None) or {}
        names = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
        return plain(names[0]) if names else None

    def send(self, message: Any, timeout_s: float = HANDSHAKE_S) -> None:
        """Send a JSON message."""
        self.call(self.write_message(message), timeout_s)

    def receive(self, timeout_s: float = HANDSHAKE_S) -> dict[str, Any]:
        """The peer's next message, before `carry`. TwoPartyError if none comes in time or it is malformed."""
        return self.call(self.read_message(), timeout_s)

    def carry(self, target: str) -> str:
        """Carry connections from now on: the peer's to `target`, where our SPU party will listen, and ours to the peer.

        Returns the address on this machine at which our party dials the other.
        """
        return self.call(self._carry(target), HANDSHAKE_S)

    def finish(self) -> None:
        """Tell the peer that this side is done, wait until it says the same, and close. TwoPartyError if it does not.

        A peer that was done may be gone before us; that is no failure.
        """
        try:
            if self.failure is None:
                try:
                    self.send({"done": True})
                except TwoPartyError:
                    if not self._peer_done:
                        raise
                self.call(self._done.wait(), GOODBYE_S)
            if self.failure is not None and not self._peer_done:
                raise TwoPartyError(self.failure)
        finally:
            self.close()

    def give_up(self) -> None:
        """Tell the peer, if it still listens, that this side failed, and close. Without effect if closed.

        The reason is not sent: it could expose what is private here.
        """
        if self._closed:
            return
        with contextlib.suppress(TwoPartyError):
            self.send({"failed": True}, 1.0)
        self.close()

    def close(self) -> None:
        """Close the connection and everything it carries. Without effect if closed."""
        if not self._closed:
            with contextlib.suppress(TwoPartyError):
                self.call(self.shut(), GOODBYE_S)

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Run in the event loop's thread; every failure of the connection is a TwoPartyError."""
        future = asyncio.run_coroutine_threadsafe(work, event_loop())
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise TwoPartyError(self.silent(timeout_s)) from None
        except (OSError, EOFError) as error:
            raise TwoPartyError(self.lost(error)) from None

    # For the event loop's thread.

    def silent(self, seconds: float) -> str:
        busy = "; it may be busy with another question" if self._is_client else ""
        return f"{self.peer} did not answer within {seconds:g} s{busy}"

    def lost(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return tls.describe(error, self.peer)
        if self._secure and not self._heard:
            # asyncio closes the connection without TLS's alert.
            return (
                f"{self.peer} closed the connection at once; it may have refused our certificate, and its log says why"
            )
        return f"{self.peer} is gone: it closed the connection"

    async def establish(
        self, connection: socket.socket, context: ssl.SSLContext | None, host: str | None, wait_s: float = HANDSHAKE_S
    ) -> None:
        """host: of the server, at the client; None at the server. wait_s: for the TLS handshake.

        OSError, or TwoPartyError if the peer does not answer in that time.
        """
        loop, start = asyncio.get_running_loop(), time.monotonic()
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = asyncio.StreamReader(2 * CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        options: dict[str, Any] = {} if context is None else {"ssl": context, "ssl_handshake_timeout": wait_s}
        try:
            if host is None:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **options)
            else:
                if context is not None:
                    options["server_hostname"] = host
                transport, _ = await loop.create_connection(lambda: protocol, sock=connection, **options)
        except ConnectionAbortedError:
            if time.monotonic() - start < wait_s:
                raise
            raise TwoPartyError(self.silent(wait_s)) from None
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)

    async def write_message(self, message: Any) -> None:
        await self._write(MESSAGE, 0, json.dumps(message).encode())

    async def read_message(self) -> dict[str, Any]:
        return self._message(*await self._frame())

    async def shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        for door in self._doors:
            door.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers.values():
            writer.close()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), 1.0)
            with contextlib.suppress(AttributeError):  # Python 3.11.0 to 3.11.3, where TLS is gone already
                self._writer.transport.abort()
        self._signal.close()
        self._signalled.close()

    async def _write(self, kind: int, channel: int, content: bytes) -> None:
        if self._writer is None or self._closed:
            raise ConnectionResetError("the connection is closed")
        head = HEAD.pack(kind, channel, len(content))
        async with self._lock:
            try:
                if self._writer.is_closing():  # asyncio would log the write and drop it
                    raise ConnectionResetError("the connection is closed")
                self._writer.write(head + CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content)
            except AttributeError:  # as in `shut`
                raise ConnectionResetError("the connection is closed") from None
            await self._writer.drain()

    async def _frame(self) -> tuple[int, int, bytes]:
        head = await self._reader.readexactly(HEAD.size)
        kind, channel, length = HEAD.unpack(head)
        longest = SERVER_MESSAGE_BYTES if self._is_client else CLIENT_MESSAGE_BYTES
        if kind > END or length > (longest if kind == MESSAGE else CHUNK_BYTES):
            raise TwoPartyError(
                f"{self.peer} sent data that is no part of a private question; both sides must run the same version, "
                "with certificates on both or on neither"
            )
        (crc,) = CRC.unpack(await self._reader.readexactly(CRC.size))
        content = await self._reader.readexactly(length)
        if crc != zlib.crc32(content, zlib.crc32(head)):
            raise TwoPartyError(f"data on the link to {self.peer} was changed on the way (checksum); run again")
        self._heard = True
        return kind, channel, content

    def _message(self, kind: int, _channel: int, content: bytes) -> dict[str, Any]:
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            message = None
        if kind != MESSAGE or not isinstance(message, dict):
            raise TwoPartyError(f"{self.peer} did not send the expected message; do both sides run the same version?")
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
        channel, self._next_channel = self._next_channel, self._next_channel + 2
        self._writers[channel] = writer
        with contextlib.suppress(OSError):  # a lost tunnel is reported by `_deliver`
            await self._write(OPEN, channel, b"")
            self._start(self._pump(channel, reader))

    async def _pump(self, channel: int, reader: asyncio.StreamReader) -> None:
        """Send what a local connection gives, then its end."""
        data = b"-"
        with contextlib.suppress(OSError):  # a lost tunnel is reported by `_deliver`
            while data:
                try:
                    data = await reader.read(CHUNK_BYTES)
                except OSError:
                    data = b""
                await self._write(DATA if data else END, channel, data)
            self._end(channel, "out")

    async def _deliver(self) -> None:
        """Hand out what comes from the peer, until the tunnel is lost."""
        try:
            while True:
                await self._handle(*await self._frame())
        except Exception as error:  # any: nobody else would report that the tunnel is lost
            if isinstance(error, OSError | EOFError):
                self.failure = self.lost(error)
            else:
                prefix = "" if isinstance(error, TwoPartyError) else f"the link to {self.peer} broke here: "
                self.failure, self._peer_done = f"{prefix}{error}", False
            self._done.set()
            self._signalled.send(b"!")

    async def _handle(self, kind: int, channel: int, content: bytes) -> None:
        if kind == MESSAGE:
            if "done" not in self._message(kind, channel, content):
                raise TwoPartyError(f"{self.peer} gave up on this question; its own output says why")
            self._peer_done = True  # it stays connected until we are done too
            self._done.set()
        elif kind == OPEN:
            if len(self._writers) >= CHANNELS or channel in self._writers:
                raise TwoPartyError(
                    f"{self.peer} opened more connections than a private question needs; check that it runs `aero`"
                )
            await self._open(channel)
        elif (writer := self._writers.get(channel)) is not None:
            if "in" in self._ended.get(channel, ()):
                raise TwoPartyError(f"{self.peer} used a connection that it had closed; check that it runs `aero`")
            with contextlib.suppress(OSError):  # this connection is gone; the others go on
                if kind == DATA and not writer.is_closing():
                    writer.write(content)
                    await writer.drain()
                elif writer.can_write_eof():
                    writer.write_eof()
            if kind == END:
                self._end(channel, "in")

    async def _open(self, channel: int) -> None:
        """The other party dialled ours. If ours does not listen yet, the connection ends at once and it tries again."""
        try:
            reader, writer = await asyncio.open_connection(*split_address(self._target), limit=CHUNK_BYTES)
        except OSError:
            await self._write(END, channel, b"")
            return
        self._writers[channel] = writer
        self._start(self._pump(channel, reader))

    def _end(self, channel: int, direction: str) -> None:
        """One direction of a channel is over; after the second its connection is closed."""
        self._ended.setdefault(channel, set()).add(direction)
        if len(self._ended[channel]) == 2:
            del self._ended[channel]
            if (writer := self._writers.pop(channel, None)) is not None:
                writer.close()


def dial(address: str, context: ssl.SSLContext | None, wait_s: float = HANDSHAKE_S) -> Tunnel:
    """Connect to the server at `address`, which may be busy for `wait_s` before its TLS handshake.

    TwoPartyError if its name is not resolved in time, nobody listens, or TLS fails.
    """
    host, port = split_address(address)
    try:
        connection = _connect(look_up(host, port))
    except OSError as error:
        raise TwoPartyError(
            f"no server at {address} ({error.strerror or error}); start one there with `aero serve`, or check address "
            "and firewall"
        ) from None
    connection.setblocking(False)
    tunnel = Tunnel(f"the server at {address}", is_client=True, secure=context is not None)
    try:
        tunnel.call(tunnel.establish(connection, context, host, wait_s), wait_s + 1)
    except BaseException:
        tunnel.close()
        connection.close()
        raise
    return tunnel


def _connect(places: Sequence[tuple[Any, ...]]) -> socket.socket:
    """A connection to the first of `places` (as of `socket.getaddrinfo`) that accepts one; else OSError of the last."""
    failed = OSError("its name has no address")
    for *_, (host, port, *_) in places:
        try:
            return socket.create_connection((host, port), HANDSHAKE_S)
        except OSError as error:
            failed = error
    raise failed
