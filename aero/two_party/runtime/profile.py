"""What one private run cost one party, read from the lines SPU logs: the only way it tells.

SPU counts each run of an executable for itself, from zero: a long-lived pair of parties gives exact figures for every
run. The counts are right only with SPU's inter- and intra-operation parallelism off, as `party` sets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# At most 18 digits: what SPU counts fits 64 bits, and longer ones are no counts.
_COUNT = r"(\d{1,18})"
_NUMBER = r"(\d{1,18}(?:\.\d{1,25})?(?:e[+-]\d{1,2})?)"
_LINE = re.compile(r"\[([^\]]+)\] \[(\w+)\] \[([\w.]+):\d+\] (.*)", re.ASCII)
_TIME = "%Y-%m-%d %H:%M:%S.%f"
# SPU prints a run's profile in one go at its end: milliseconds, but for a machine that is very busy.
_PRINTED_WITHIN = timedelta(seconds=10)
_EXECUTION = re.compile(
    rf"\[Profiling\] SPU execution .+ completed, input processing took {_NUMBER}s, execution took {_NUMBER}s, "
    rf"output processing took {_NUMBER}s, total time {_NUMBER}s\.",
    re.ASCII,
)
_SECTION = re.compile(rf"(HLO|HAL|MPC) profiling: total time {_NUMBER}", re.ASCII)
_COUNTS = rf"send bytes {_COUNT} recv bytes {_COUNT}, send actions {_COUNT}, recv actions {_COUNT}"
_OPERATION = re.compile(rf"- (\S+(?:: \S+)?), executed {_COUNT} times, duration {_NUMBER}s, {_COUNTS}", re.ASCII)
_TOTAL = re.compile(
    rf"Link details: total send bytes {_COUNT}, recv bytes {_COUNT}, send actions {_COUNT}, recv actions {_COUNT}",
    re.ASCII,
)
_TELLTALE = re.compile(
    r"(?i)link\s+detail|(send|recv)\s+(bytes|actions)|\[profiling|profiling:|executed\s.{0,100}times|duration\s+\d"
)
# SPU counts whole nanoseconds, so a sum is right to less than half of one, but for the rounding of doubles.
_CLOSE, _ROUNDING = 4e-10, 1e-12
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

    Raises ValueError on any line of the profile that does not read as expected, on a missing, doubled or misplaced
    part, on lines that were not printed together, and when the numbers disagree: every level's seconds with its total,
    the parts of the execution with its own, every level's bytes and messages with the link's. A wrong number is worse
    than none. HAL operations are left out when they do not account for all bytes, which SPU does not promise of them.
    """
    seconds: float | None = None
    first = last = datetime.min
    total: tuple[int, ...] | None = None
    level = ""
    level_seconds: dict[str, float] = {}
    operations: list[Operation] = []
    # Not splitlines: it also breaks at characters that are no line ends to SPU, and would hide half a line.
    for number, line in enumerate(text.split("\n"), 1):
        parts = _LINE.fullmatch(line.rstrip())
        if parts is None or parts[3] != "api.cc":
            if _TELLTALE.search(line):
                raise _unreadable(number, line)
            continue
        message, printed = parts[4], _printed(number, line, parts[1])
        if total is not None:
            raise ValueError(
                f"SPU log line {number} comes after the link totals: is this more than one run? {line[:200]!r}"
            )
        if match := _EXECUTION.fullmatch(message):
            if seconds is not None:
                raise ValueError(f"SPU log line {number} begins a second run; give the lines of one run")
            *steps, seconds = map(float, match.groups())
            first = last = printed
            _check_sum(f"steps of the execution (line {number})", sum(steps), seconds)
        elif seconds is None:
            raise ValueError(f"SPU log line {number} comes before the line of the execution: {line[:200]!r}")
        elif match := _SECTION.fullmatch(message):
            level = _LEVELS[match[1]]
            if level in level_seconds:
                raise ValueError(f"SPU log line {number} begins a second {match[1]} profile")
            level_seconds[level] = float(match[2])
        elif (match := _OPERATION.fullmatch(message)) and level:
            name, executed, duration, *counts = match.groups()
            operations.append(Operation(level, name, int(executed), float(duration), *map(int, counts)))
        elif match := _TOTAL.fullmatch(message):
            total = tuple(map(int, match.groups()))
        else:
            raise _unreadable(number, line)
        if not last <= printed <= first + _PRINTED_WITHIN:
            raise ValueError(
                f"SPU log line {number} was printed at {parts[1]}, the run's first at {first}: of another run?"
            )
        last = printed
    if seconds is None or total is None:
        raise ValueError("no complete SPU profile in these log lines; are pphlo and hal profiling switched on?")
    if list(level_seconds) != list(_LEVELS.values()):
        missing = sorted(set(_LEVELS.values()) - set(level_seconds))
        raise ValueError(f"the SPU profile lacks the levels {missing}, or has them in another order than {_LEVELS}")
    for level, spent in level_seconds.items():
        of_level = [o for o in operations if o.level == level]
        if any(o.executed == 0 for o in of_level):
            raise ValueError(f"the SPU profile has a {level} operation that was never executed")
        _check_sum(f"seconds of {level} operations", sum(o.seconds for o in of_level), spent)
        added = tuple(map(sum, zip(*map(_counts, of_level), strict=True))) or (0, 0, 0, 0)
        if added == total or (level == "pphlo" and any(o.name in _NESTING for o in of_level)):
            continue
        if level != "hal" or any(part > whole for part, whole in zip(added, total, strict=True)):
            raise ValueError(f"{level} operations add up to {added} bytes and messages, the link to {total}")
        operations = [o for o in operations if o.level != "hal"]
    # MPC operations run one after the other, inside the execution.
    if level_seconds["mpc"] > seconds * (1 + _ROUNDING) + _CLOSE:
        raise ValueError(f"MPC operations took {level_seconds['mpc']} s, more than the {seconds} s of the whole run")
    return Profile(*total, seconds, tuple(operations))


def _printed(number: int, line: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME)
    except ValueError:
        raise _unreadable(number, line) from None


def _check_sum(what: str, added: float, printed: float) -> None:
    if not abs(added - printed) <= _CLOSE + _ROUNDING * printed:
        raise ValueError(f"{what} add up to {added:.9g}, SPU's log says {printed:.9g}; another version of SPU?")


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
