"""What one private run cost one party, read from SPU's log: SPU reports it nowhere else.

SPU counts each run of an executable for itself, from zero: a long-lived pair of parties gives exact figures for every
run. The counts are right only with SPU's inter- and intra-operation parallelism off, as `engine` sets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# At most 18 digits: what SPU counts fits 64 bits, and longer ones are no counts.
_COUNT = r"(\d{1,18})"
_NUMBER = r"(\d{1,18}(?:\.\d{1,25})?(?:e[+-]\d{1,2})?)"
_LINE = re.compile(r"\[[^\]]+\] \[\w+\] \[api\.cc:\d+\] (.*)", re.ASCII)
_EXECUTION = re.compile(
    rf"\[Profiling\] SPU execution .+ completed, input processing took {_NUMBER}s, execution took {_NUMBER}s, "
    rf"output processing took {_NUMBER}s, total time {_NUMBER}s\.",
    re.ASCII,
)
_LEVEL = re.compile(rf"(HLO|HAL|MPC) profiling: total time {_NUMBER}", re.ASCII)
_OPERATION = re.compile(
    rf"- (\S+(?:: \S+)?), executed {_COUNT} times, duration {_NUMBER}s, "
    rf"send bytes {_COUNT} recv bytes {_COUNT}, send actions {_COUNT}, recv actions {_COUNT}",
    re.ASCII,
)
_TOTAL = re.compile(
    rf"Link details: total send bytes {_COUNT}, recv bytes {_COUNT}, send actions {_COUNT}, recv actions {_COUNT}",
    re.ASCII,
)
_ROUNDING = 1e-9
"""Seconds; SPU counts whole nanoseconds."""


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

    ValueError on a line of the profile that does not read as expected, on a missing, doubled or misplaced part, and
    when the operations do not add up to the link's total. A wrong number is worse than none.
    """
    seconds: float | None = None
    total: tuple[int, ...] | None = None
    levels: list[str] = []
    operations: list[Operation] = []
    # Not splitlines: it also breaks at characters that are no line ends to SPU, and would hide half a line.
    for number, line in enumerate(text.split("\n"), 1):
        if not (parts := _LINE.fullmatch(line.rstrip())):
            continue
        message = parts[1]
        if (match := _EXECUTION.fullmatch(message)) and seconds is None:
            *steps, seconds = map(float, match.groups())
            if abs(sum(steps) - seconds) > _ROUNDING:
                raise ValueError(f"SPU log line {number}: the steps of the execution do not add up to {seconds} s")
        elif seconds is None or total is not None:
            raise ValueError(f"SPU log line {number} is outside the lines of one run: {line[:200]!r}")
        elif (match := _LEVEL.fullmatch(message)) and match[1] not in levels:
            levels.append(match[1])
        elif (match := _OPERATION.fullmatch(message)) and levels:
            name, executed, _, *counts = match.groups()
            if levels[-1] == "MPC":
                operations.append(Operation(name, int(executed), *map(int, counts)))
        elif match := _TOTAL.fullmatch(message):
            total = tuple(map(int, match.groups()))
        else:
            raise ValueError(
                f"SPU log line {number} reads as no known profile line: {line[:200]!r}; another version of SPU?"
            )
    if seconds is None or total is None or levels != ["HLO", "HAL", "MPC"]:
        raise ValueError("no complete SPU profile in these log lines; are pphlo and hal profiling switched on?")
    counts = [(o.bytes_sent, o.bytes_received, o.messages_sent, o.messages_received) for o in operations]
    if (added := tuple(map(sum, zip((0, 0, 0, 0), *counts, strict=True)))) != total:
        raise ValueError(f"the operations add up to {added} bytes and messages, the link to {total}")
    return Profile(*total, seconds, tuple(operations))


def check_pair(client: Profile, server: Profile) -> None:
    """ValueError unless each party received, in bytes and in messages, exactly what the other sent in the same run."""
    for what in ("bytes", "messages"):
        for name, sender, receiver in (("client", client, server), ("server", server, client)):
            sent, received = getattr(sender, f"{what}_sent"), getattr(receiver, f"{what}_received")
            if sent != received:
                raise ValueError(f"the {name} sent {sent} {what} but the other party received {received}")
