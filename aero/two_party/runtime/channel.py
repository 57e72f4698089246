"""The link between the two parties: messages, secret shares, and SPU's errors as one line.

A share goes over the link as one message each: a JSON header (name, shape, dtype, number of chunks), SPU's metadata,
the chunks. Nothing received is unpickled, and a received share is checked before SPU uses it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from aero.two_party.lattice.ring import content_of
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import CLIENT, FIELD, NAMES, RING_BITS, SERVER, Settings, TwoPartyError

RETRY_INTERVAL_S = 0.2
MAX_CHUNKS = 4096


class Channel:
    """A connection to the other party."""

    def __init__(self, rank: int, addresses: Sequence[str], settings: Settings) -> None:
        """Connect. addresses: (client, server) as this party dials them; it listens at its own.

        TwoPartyError if the other party does not answer within `connect_timeout_s`.
        """
        from spu import libspu

        self.rank, self.other = rank, SERVER if rank == CLIENT else CLIENT
        self._settings = settings
        description = libspu.link.Desc()
        for name, address in zip(NAMES, addresses, strict=True):
            description.add_party(name, address)
        description.recv_timeout_ms = description.http_timeout_ms = int(settings.receive_timeout_s * 1000)
        description.retry_opts.max_retry = 0  # else a stalled link is noticed after several time-outs
        description.connect_retry_interval_ms = int(RETRY_INTERVAL_S * 1000)
        description.connect_retry_times = math.ceil(settings.connect_timeout_s / RETRY_INTERVAL_S) + 1
        try:
            self.link = libspu.link.create_brpc(description, rank)
        except Exception as error:
            raise TwoPartyError(
                f"no connection to the {NAMES[self.other]} at {addresses[self.other]}; start it with the same "
                f"settings, or raise connect_timeout_s (SPU: {_spu_words(error)})"
            ) from error

    def send_share(self, name: str, shape: tuple[int, ...], dtype: np.dtype, share: Any) -> None:
        chunks = list(share.share_chunks)
        header = {"name": name, "shape": shape, "dtype": dtype.str, "chunks": len(chunks)}
        with self.step(f"sending the share of {name}"):
            for part in (json.dumps(header).encode(), share.meta, *chunks):
                self.link.send(self.other, part)

    def receive_share(self, name: str, shape: tuple[int, ...], dtype: np.dtype, own: Any = None) -> Any:
        """The other party's share of an input, or of the value of which `own` is this party's share.

        TwoPartyError unless name, shape, type, kind and size are as expected: SPU does not check shares itself.
        """
        from spu import libspu

        share = libspu.Share()
        with self.step(f"waiting for the share of {name}"):
            chunks = _chunk_count(self.link.recv(self.other), name, shape, dtype)
            share.meta = self.link.recv(self.other)
            share.share_chunks = [self.link.recv(self.other) for _ in range(chunks)]
        try:
            size = len(content_of(share))
            meta = libspu.ValueMeta()
            complete = meta.ParseFromString(share.meta)
            storage, found = meta.storage_type, (tuple(meta.shape.dims), numpy_type(meta), size)
        except ValueError as error:
            raise _unexpected_share(name, f"a share that cannot be read ({error})") from None
        if own is not None:
            if share.meta != own.meta or size != len(content_of(own)):
                raise TwoPartyError(
                    f"revealing {name}: the parties hold different kinds of it; are both of one version?"
                )
            return share
        kind = f"cheetah.AShr<{FIELD}>"
        expected = shape, dtype, math.prod(shape) * RING_BITS // 8
        secret = meta.visibility == libspu.Visibility.VIS_SECRET and storage == kind
        if not (complete and secret and found == expected):
            got = f"a share {storage!r} of {found[1]} {found[0]} in {size} bytes"
            raise _unexpected_share(name, f"{got}, not {kind!r} of {dtype} {shape} in {expected[2]}")
        return share

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Turn SPU's errors about the link into a TwoPartyError that says what this party was doing."""
        try:
            yield
        except (TwoPartyError, KeyboardInterrupt):
            raise
        except Exception as error:
            words = _spu_words(error)
            if not re.search(r"(?i)time-?out|timed out|channel|rpc|connection|link", words):
                raise
            raise TwoPartyError(
                f"{doing}: the {NAMES[self.other]} is gone or sent nothing for {self._settings.receive_timeout_s:g} s; "
                f"see why it stopped, or raise receive_timeout_s if it only needs more time (SPU: {words})"
            ) from error


class StepMessages:
    """Messages of a step on shares, counted as SPU counts its own."""

    def __init__(self, channel: Channel, step: str) -> None:
        self._channel, self._step = channel, step
        self._sent: list[int] = []
        self._received: list[int] = []

    def send(self, message: bytes) -> None:
        self._sent.append(len(message))
        with self._channel.step(f"sending a message of {self._step}"):
            self._channel.link.send(self._channel.other, message)

    def receive(self, size: int) -> bytes:
        """The next message; TwoPartyError unless it has `size` bytes."""
        with self._channel.step(f"waiting for a message of {self._step}"):
            message = self._channel.link.recv(self._channel.other)
        if len(message) != size:
            raise TwoPartyError(
                f"{self._step}: the other party sent {len(message)} bytes, not {size}; do both run the same program?"
            )
        self._received.append(size)
        return message

    def profile(self) -> Profile:
        return Profile(sum(self._sent), sum(self._received), len(self._sent), len(self._received), 0.0)


def numpy_type(meta: Any) -> np.dtype:
    """The NumPy type of a value by SPU's metadata; ValueError if it has none."""
    name = meta.data_type.name  # such as DT_F32
    try:
        return np.dtype(bool if name == "DT_I1" else {"I": "int", "U": "uint", "F": "float"}[name[3]] + name[4:])
    except (KeyError, TypeError):
        raise ValueError(f"SPU made a value of type {name}, which has no NumPy type") from None


def _chunk_count(head: bytes, name: str, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The number of chunks by a share's header. TwoPartyError unless the header is the expected one."""
    try:
        header = json.loads(head)
        chunks = header.pop("chunks")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise _unexpected_share(name, f"{len(head)} bytes that are no share") from None
    expected = {"name": name, "shape": list(shape), "dtype": dtype.str}
    if header != expected or type(chunks) is not int or not 0 <= chunks <= MAX_CHUNKS:
        raise _unexpected_share(name, f"{str(header)[:120]}, not {expected}")
    return chunks


def _unexpected_share(name: str, got: str) -> TwoPartyError:
    return TwoPartyError(
        f"waiting for the share of {name}, the other party sent {got}; do both parties run the same program?"
    )


def _spu_words(error: Exception) -> str:
    """SPU's message without stack trace and source file, at most 200 characters."""
    words = " ".join(str(error).split()).split(" stacktrace:")[0]
    return re.sub(r"(what: )?\[[^\]]*\] *", "", words)[:200]
