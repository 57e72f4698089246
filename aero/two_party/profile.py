"""What one private run cost one party, read from the lines SPU logs: the only way it tells.

SPU counts each run of an executable for itself, from zero: a long-lived pair of parties gives exact figures for every
run. The counts are right only with SPU's inter- and intra-operation parallelism off, as `party` sets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]\d+)?)"
_LINE = re.compile(r"\[[^\]]+\] \[(\w+)\] \[([\w.]+):\d+\] (.*)")
_EXECUTION = re.compile(
    rf"\[Profiling\] SPU execution .+ completed, input processing took {_NUMBER}s, execution took {_NUMBER}s, "
    rf"output processing took {_NUMBER}s, total time {_NUMBER}s\."
)
_SECTION = re.compile(rf"(HLO|HAL|MPC) profiling: total time {_NUMBER}")
_COUNTS = r"send bytes (\d+) recv bytes (\d+), send actions (\d+), recv actions (\d+)"
_OPERATION = re.compile(rf"- (\S+(?:: \S+)?), executed (\d+) times, duration {_NUMBER}s, {_COUNTS}")
_TOTAL = re.compile(r"Link details: total send bytes (\d+), recv bytes (\d+), send actions (\d+), recv actions (\d+)")
_TELLTALE = re.compile(r"Link details|recv bytes|\[Profiling\]|profiling: total")
# These run others inside them, which count a second time at this level.
_NESTING = {"pphlo.while", "pphlo.if", "pphlo.case", "pphlo.sort", "pphlo.reduce_window", "pphlo.custom_call"}
_LEVELS = {"HLO": "pphlo", "HAL": "hal", "MPC": "mpc"}


@dataclass(frozen=True)
class Operation:
    """One line of the profile: every execution of one operation of one level ("pphlo", "hal" or "mpc") together."""

    level: str
    name: str
    executed: int
    seconds: float
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
    operations: tuple[Operation, ...]


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

    Raises ValueError on any line of the profile that does not read as expected, on a missing or doubled part, and when
    the operations do not add up to the totals of the link: a wrong number is worse than none.
    """
    seconds: float | None = None
    total: tuple[int, ...] | None = None
    level = ""
    seen: set[str] = set()
    operations: list[Operation] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = _LINE.fullmatch(line.rstrip())
        if parts is None or parts[2] != "api.cc":
            if _TELLTALE.search(line):
                raise _unreadable(number, line)
            continue
        message = parts[3]
        if total is not None:
            raise ValueError(f"SPU log line {number} comes after the link totals: is this more than one run? {line!r}")
        if match := _EXECUTION.fullmatch(message):
            if seconds is not None:
                raise ValueError(f"SPU log line {number} begins a second run; give the lines of one run")
            seconds = float(match[4])
        elif seconds is None:
            raise ValueError(f"SPU log line {number} comes before the line of the execution: {line!r}")
        elif match := _SECTION.fullmatch(message):
            level = _LEVELS[match[1]]
            if level in seen:
                raise ValueError(f"SPU log line {number} begins a second {match[1]} profile")
            seen.add(level)
        elif (match := _OPERATION.fullmatch(message)) and level:
            name, executed, duration, *counts = match.groups()
            operations.append(Operation(level, name, int(executed), float(duration), *map(int, counts)))
        elif match := _TOTAL.fullmatch(message):
            total = tuple(map(int, match.groups()))
        else:
            raise _unreadable(number, line)
    if seconds is None or total is None:
        raise ValueError("no complete SPU profile in these log lines; are pphlo and hal profiling switched on?")
    if seen != set(_LEVELS.values()):
        raise ValueError(f"the SPU profile lacks the levels {sorted(set(_LEVELS.values()) - seen)}")
    for level in ("pphlo", "mpc"):
        of_level = [o for o in operations if o.level == level]
        if level == "pphlo" and any(o.name in _NESTING for o in of_level):
            continue
        added = tuple(map(sum, zip(*map(_counts, of_level), strict=True))) or (0, 0, 0, 0)
        if added != total:
            raise ValueError(f"{level} operations add up to {added} bytes and messages, the link to {total}")
    return Profile(*total, seconds, tuple(operations))


def check_pair(client: Profile, server: Profile) -> None:
    """ValueError unless each party received, in bytes and in messages, exactly what the other sent in the same run."""
    for what in ("bytes", "messages"):
        for name, sender, receiver in (("client", client, server), ("server", server, client)):
            sent, received = getattr(sender, f"{what}_sent"), getattr(receiver, f"{what}_received")
            if sent != received:
                raise ValueError(f"the {name} sent {sent} {what} but the other party received {received}")


def _counts(operation: Operation) -> tuple[int, int, int, int]:
    return (operation.bytes_sent, operation.bytes_received, operation.messages_sent, operation.messages_received)


def _unreadable(number: int, line: str) -> ValueError:
    return ValueError(f"SPU log line {number} reads as no known profile line: {line[:200]!r}; another version of SPU?")
