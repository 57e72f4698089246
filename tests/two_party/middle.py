"""Ends and middles of connections: an echo, and a man in the middle who changes a byte or holds everything back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

from aero.two_party.runtime.relay import Relay, _Line


def wait_until(condition: Callable[[], object], within_s: float = 5.0) -> bool:
    """Whether the condition holds within that time."""
    deadline = time.monotonic() + within_s
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(holds)


class Echo:
    """A listener at `address` that sends back what it gets until the other end stops sending."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)


class RecordingRelay(Relay):
    """A relay that keeps all bytes that pass."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = (_RecordingLine(self), _RecordingLine(self))

    @property
    def recorded(self) -> tuple[bytes, bytes]:
        """(client to server, server to client)"""
        return bytes(self._lines[0].record), bytes(self._lines[1].record)


class _RecordingLine(_Line):
    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self.record = bytearray()

    async def read(self, reader, to) -> None:
        async def read(size):
            data = await reader.read(size)
            self.record += data
            return data

        await super().read(SimpleNamespace(read=read), to)


class Middle:
    """Passes TCP connections on to `target`; what the dialling side sends can be garbled, everything held."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.passed = 0
        self._garble, self._go = False, threading.Event()
        self._go.set()
        threading.Thread(target=self._serve, daemon=True).start()

    def garble(self) -> None:
        """Flip a bit in the middle of the next piece that the dialling side sends."""
        self._garble = True

    def hold(self) -> None:
        """From now on nothing passes in either direction; both connections stay open."""
        self._go.clear()

    def close(self) -> None:
        self._go.set()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            host, port = self._target.split(":")
            other = socket.create_connection((host, int(port)))
            for source, sink in ((one, other), (other, one)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, sink, source is one), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, dialled: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._go.wait()
                if dialled and self._garble:
                    self._garble = False
                    middle = len(data) // 2
                    data = data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
                sink.sendall(data)
                self.passed += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
