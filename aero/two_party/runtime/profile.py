"""What one private run cost one party, read from SPU's log: SPU reports it nowhere else.

SPU counts each run of an executable for itself, from zero: a long-lived pair of parties gives exact figures for every
run. The counts are right only with SPU's inter- and intra-operation parallelism off, as `engine` sets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = re.compile(r"\[Profiling\] SPU execution .+ completed, .+ total time ([\d.e+-]+)s\.", re.ASCII)
_COUNTS = r"send bytes (\d+),? recv bytes (\d+), send actions (\d+), recv actions (\d+)$"
_OPERATION = re.compile(
    r"- (\S+(?:: \S+)?), executed (\d+) times, duration [\d.e+-]+s, " + _COUNTS, re.ASCII | re.MULTILINE
)
_TOTAL = re.compile(r"Link details: total " + _COUNTS, re.ASCII | re.MULTILINE)


@dataclass(frozen=True)
class Operation:
    """Every execution of one operation of SPU's protocol level together."""

    name: str
    executed: int
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int


@dataclass(frozen=True)
class Profile:
    """One run as one party saw it: bytes and messages over the link, wall-clock seconds, and the operations."""

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    seconds: float
    operations: tuple[Operation, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes in both directions, which the two parties see alike."""
        return self.bytes_sent + self.bytes_received


def together(profiles: Sequence[Profile]) -> Profile:
    """The cost of several runs one after the other."""
    return Profile(
        sum(profile.bytes_sent for profile in profiles),
        sum(profile.bytes_received for profile in profiles),
        sum(profile.messages_sent for profile in profiles),
        sum(profile.messages_received for profile in profiles),
        sum(profile.seconds for profile in profiles),
        tuple(operation for profile in profiles for operation in profile.operations),
    )


def parse(text: str) -> Profile:
    """The profile of the one run whose log lines `text` holds; lines of other parts of SPU are passed over.

    ValueError for no run or two, and when the operations do not add up to the link's total. A wrong number is worse
    than none.
    """
    # The levels before it (HLO, HAL) count the same messages.
    protocol = text.partition("MPC profiling")[2]
    seconds, totals = _SECONDS.findall(text), _TOTAL.findall(protocol)
    if len(seconds) != 1 or len(totals) != 1:
        raise ValueError("the log does not hold one complete SPU profile; is the disk full, or another run in it?")
    operations = [Operation(name, *map(int, counts)) for name, *counts in _OPERATION.findall(protocol)]
    counts = [(o.bytes_sent, o.bytes_received, o.messages_sent, o.messages_received) for o in operations]
    total = tuple(map(int, totals[0]))
    if (added := tuple(map(sum, zip((0, 0, 0, 0), *counts, strict=True)))) != total:
        raise ValueError(f"the operations add up to {added} bytes and messages, the link to {total}")
    return Profile(*total, float(seconds[0]), tuple(operations))


def check_pair(client: Profile, server: Profile) -> None:
    """ValueError unless each party received, in bytes and in messages, exactly what the other sent in the same run."""
    for what in ("bytes", "messages"):
        for name, sender, receiver in (("client", client, server), ("server", server, client)):
            sent, received = getattr(sender, f"{what}_sent"), getattr(receiver, f"{what}_received")
            if sent != received:
                raise ValueError(f"the {name} sent {sent} {what} but the other party received {received}")
