"""Fuzz targets of the link: what a server, a client and SPU's shares make of a peer that sends anything."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.fuzz_target import Target
from benchmarks.mutations import Draw, as_json, damaged, damaged_tree

CLOSED_WITHIN_S = 2.0
_HEAD, _CRC = struct.Struct(">BII"), struct.Struct(">I")
MESSAGE, OPEN, DATA, END = range(4)


def frame(kind: int, channel: int, content: bytes) -> bytes:
    """A frame of the tunnel with its right checksum, written out anew from the module's description."""
    head = _HEAD.pack(kind, channel, len(content))
    return head + _CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content


def _conversation(messages: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """What a peer sends: the messages of one, some of them changed, left out or doubled, and frames of other kinds."""

    @st.composite
    def sent(draw: Draw) -> bytes:
        parts = [frame(MESSAGE, 0, as_json(message)) for message in messages]
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(parts) - 1))
            kind = draw(st.sampled_from(["change", "change", "drop", "double", "frame", "nested", "not an object"]))
            if kind == "change":
                leaves = ["aero-ask-1", 10**9, 1.5, {"x": 1}, "a" * 64]
                parts[at] = frame(MESSAGE, 0, as_json(damaged_tree(draw, messages[min(at, len(messages) - 1)], leaves)))
            elif kind == "drop" and len(parts) > 1:
                del parts[at]
            elif kind == "double":
                parts.insert(at, parts[at])
            elif kind == "nested":
                parts[at] = frame(MESSAGE, 0, b"[" * 20_000)
            elif kind == "not an object":
                parts[at] = frame(MESSAGE, 0, draw(st.sampled_from([b"", b"[]", b"3", b"{", b"\xff", b'"x"', b"NaN"])))
            else:
                content = draw(st.binary(max_size=40))
                parts.insert(at, frame(draw(st.integers(0, 4)), draw(st.integers(0, 9)), content))
        return b"".join(parts)

    return sent()


def _tiny_description() -> Any:
    from aero.architecture import parse
    from aero.data.tokenizer import build
    from aero.model import ModelConfig
    from aero.two_party.runtime.settings import Settings
    from aero.two_party.serving.handshake import Description

    tokenizer = build({bytes([byte]): byte for byte in range(256)}, 256)
    config = ModelConfig(vocabulary=257, context=8, layers=1, heads=1, width=4, ffn_width=8)
    return Description.of(parse("SM+ScFuFFN"), config, "tuned", Settings(), tokenizer.sha256), tokenizer


@contextlib.contextmanager
def _peer(case: bytes) -> Iterator[socket.socket]:
    """Our end of a connection whose other end sends `case`, reads what comes, and closes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)

    def talk() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(case)
            theirs.shutdown(socket.SHUT_WR)
            while theirs.recv(1 << 16):
                pass
        theirs.close()

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(20)
        assert not thread.is_alive(), "the connection was left open"


def _open() -> tuple[int, int]:
    """How many threads and open files this process has."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def _nothing_left(before: tuple[int, int]) -> None:
    until = time.monotonic() + CLOSED_WITHIN_S
    while True:  # a thread of the listener may be about to close what it was given
        left = [now - then for now, then in zip(_open(), before, strict=True)]
        if max(left) <= 0 or time.monotonic() > until:
            break
        time.sleep(0.01)
    assert max(left) <= 0, f"{left} threads and open files were left"


@cache
def _echo() -> str:
    """Where a party of this process listens, for all cases; it sends back what it gets."""
    door = socket.create_server(("127.0.0.1", 0), backlog=256)

    waiting = selectors.DefaultSelector()
    waiting.register(door, selectors.EVENT_READ)

    def serve() -> None:
        while True:
            for key, _ in waiting.select():
                connection: Any = key.fileobj
                if connection is door:
                    entered = door.accept()[0]
                    entered.settimeout(5)
                    waiting.register(entered, selectors.EVENT_READ)
                    continue
                try:
                    data = connection.recv(1 << 16)
                    connection.sendall(data)
                except OSError:
                    data = b""
                if not data:
                    waiting.unregister(connection)
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{door.getsockname()[1]}"


def _carried(tunnel: Any, *_: Any, **__: Any) -> Any:
    """In the place of a party: carries connections to one that sends back what it gets, until the peer is through or
    lost."""
    from aero.two_party.program.end_to_end import Cost

    tunnel.carry(_echo())
    until = time.monotonic() + 5
    while tunnel.failure is None and not tunnel._done.is_set():
        assert time.monotonic() < until, "the loss of the connection was not told"
        time.sleep(0.0005)
    tunnel.finish()
    return {"setup": Cost(0, 0, 0, 0.0), "costs": [], "ids": []}


def link_server(folder: Path) -> Target:
    """`aero serve` before a client that sends anything: one line on each, nothing left open."""
    from aero.two_party.runtime.settings import Settings, TwoPartyError
    from aero.two_party.serving import session as serving
    from aero.two_party.serving.handshake import PROTOCOL, versions
    from aero.two_party.serving.tunnel import Arrival, Listener

    description, tokenizer = _tiny_description()
    _echo()
    server = serving.Server(folder / "none", description, "{}", Settings(), 2, "0" * 64)
    question = {"tokens": 2, "new_tokens": 1, "description": description.sha256}
    messages = [{"hello": PROTOCOL, "versions": versions()}, question, {"done": True}]
    seeds = [b"".join(frame(MESSAGE, 0, as_json(message)) for message in messages)]
    seeds += [seeds[0] + frame(OPEN, 1, b"") + frame(DATA, 1, b"x") + frame(END, 1, b"")]
    # Sent before the last message, while connections are carried.
    begun, done = b"".join(frame(MESSAGE, 0, as_json(message)) for message in messages[:2]), as_json(messages[2])
    carried = [frame(OPEN, 1, b""), frame(DATA, 1, b"abc"), frame(DATA, 1, b"d"), frame(END, 1, b"")]
    seeds += [begun + b"".join(carried) + frame(MESSAGE, 0, done)]

    class Door(Listener):
        """A listener with one connection, which is there already."""

        def __init__(self) -> None:
            self._context = None

        def arrival(self) -> Arrival:
            return self.greet(self.connection, "here:1")

    def read(case: bytes) -> None:
        door, said = Door(), []
        before = _open()
        kept, serving.run_through = serving.run_through, _carried
        try:
            with _peer(case) as door.connection:
                answered = server.answer(door, said.append)
        finally:
            serving.run_through = kept
        _nothing_left(before)
        (line,) = said
        if not answered:
            raise TwoPartyError(line)

    return Target(st.one_of(_conversation(messages), damaged(seeds)), seeds, read, ("here:1",))


def link_client(folder: Path) -> Target:
    """`aero ask` before a server that sends anything."""
    from aero.cli import ask as asking
    from aero.two_party.runtime.parties import ready
    from aero.two_party.runtime.settings import Settings
    from aero.two_party.serving import session as serving
    from aero.two_party.serving.answer import Sampling
    from aero.two_party.serving.handshake import PROTOCOL, versions
    from aero.two_party.serving.tunnel import Tunnel

    ready()  # a client starts the fork server, whose descriptors stay: they are no leak of a case
    description, tokenizer = _tiny_description()
    _echo()
    text = asking._text_of(tokenizer)
    hello = {"hello": PROTOCOL, "versions": versions(), "description": asdict(description), "tokenizer": text}
    messages = [hello, {"begin": True}, {"done": True}]
    seeds = [b"".join(frame(MESSAGE, 0, as_json(message)) for message in messages)]

    def read(case: bytes) -> None:
        before = _open()
        kept, serving.run_through = serving.run_through, _carried
        try:
            with _peer(case) as connection:
                client = serving.Client(Tunnel(connection, None, "here", "the server at here:1"), 5.0)
                try:
                    found = asking._load_text(client.tokenizer)
                    asking._check_vocabulary(found, client.description)
                    str(client.description)
                    client.ask([1, 2], 1, Sampling(257), Settings(), lambda *_: None)
                finally:
                    client.close()
        finally:
            serving.run_through = kept
            _nothing_left(before)

    said = ("the server", "tokenizer", "the model's context", "over the link")
    return Target(st.one_of(_conversation(messages), damaged(seeds)), seeds, read, said)


def shares(folder: Path) -> Target:
    """A secret share from the other party: its header, and SPU's own messages up to where SPU takes them."""
    import numpy as np
    import spu
    from spu import libspu

    from aero.two_party.lattice.ring import ring_elements
    from aero.two_party.runtime.party import Party
    from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

    config = libspu.RuntimeConfig(
        protocol=libspu.ProtocolKind.CHEETAH, field=libspu.FieldType.FM64, fxp_fraction_bits=18
    )
    io = spu.Io(2, config)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    own, other = io.make_shares(values, libspu.Visibility.VIS_SECRET, -1)
    chunks = list(other.share_chunks)
    head = {"name": "x", "shape": [2, 3], "dtype": "<f4", "chunks": len(chunks)}
    parts = [as_json(head), other.meta, *chunks]

    def joined(messages: Sequence[bytes]) -> bytes:
        return b"".join(struct.pack("<I", len(message)) + message for message in messages)

    seeds = [joined(parts)]

    @st.composite
    def changed(draw: Draw) -> bytes:
        messages = list(parts)
        at = draw(st.integers(0, len(messages) - 1))
        if at == 0 and draw(st.booleans()):
            messages[0] = as_json(damaged_tree(draw, head, [4096, 4097, "x", [3, 2]]))
        else:
            messages[at] = draw(damaged([messages[at]]))
        return joined(messages)

    class Link:
        def __init__(self, messages: bytes) -> None:
            self._left = messages

        def recv(self, _: int) -> bytes:
            if len(self._left) < 4:
                raise RuntimeError("Get data timeout")  # what SPU raises if nothing comes
            (size,), rest = struct.unpack("<I", self._left[:4]), self._left[4:]
            self._left = rest[size:]
            return rest[:size]

    def read(case: bytes) -> None:
        party = Party.__new__(Party)
        party.rank, party.settings, party._other, party._link = CLIENT, Settings(), SERVER, Link(case)
        share = party._receive("x", (2, 3), np.dtype(np.float32))
        ring_elements(share, 64)
        assert share.meta == other.meta or list(share.share_chunks), "an empty share"
        if share.meta == own.meta:
            assert io.reconstruct([own, share]).shape == (2, 3)

    return Target(st.one_of(changed(), damaged(seeds)), seeds, read, ("the share of x",))
