"""Do the sizes of what crosses the link tell two prompts of one length apart?

    python -m benchmarks.transcript_sizes --sessions 20

Two prompts as unlike as can be are asked in turn, each in whole sessions of two party processes, through a relay that
counts what passes. SEAL compresses ciphertexts, so that equal sessions differ by some bytes; whether the prompts'
sessions differ by more is asked of permutation tests: of all bytes of a direction, and of each message of SPU's.

Messages are read out of the streams between the parties, before TLS: its observer sees records of a stream that two
programs have cut anew, so sizes of whole messages are the most that he could find out. SPU says neither their sizes nor
their order (its profile has sums for each kind of operation).

Each case says what it would have shown. A difference of the means of n and m sessions is found at LEVEL with
probability POWER from c + z(POWER) sqrt(1 / n + 1 / m) deviations of a prompt's sessions on, z being the quantile of
the normal distribution and c what LEVEL of the permutations exceed. For all bytes c is near z(1 - LEVEL / 2)
sqrt(1 / n + 1 / m), the sum 3.4 standard errors of the difference (3.6 with 20 sessions of each); for the largest of
many messages it is more. Of counts: another one in the part p of one prompt's n sessions is seen with probability POWER
if p is 1 - (1 - POWER)^(1 / n). Eight questions are asked at LEVEL, so that by chance alone one run in 13 fails one.
Figures go to results/robustness/transcripts.json.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from aero import records
from aero.errors import run_main
from aero.model import GPT, ModelConfig
from aero.records import write_text
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import Settings
from aero.two_party.serving.answer import Sampling, weights_sha256
from aero.two_party.serving.handshake import Description
from aero.two_party.serving.session import ask_here
from benchmarks.long_server import made

FILE = Path("results/robustness/transcripts.json")
VOCABULARY, TOKENS = 257, 8
MODEL = ModelConfig(vocabulary=VOCABULARY, context=TOKENS, layers=1, heads=2, width=16, ffn_width=64)
PROGRAMS = (("SM+ScFuFFN", "tuned"), ("SM+LN+G", "as_written"))
PROMPTS = {
    "random tokens": np.random.default_rng(1).integers(1, VOCABULARY, TOKENS - 1).tolist(),
    "one token again and again": [VOCABULARY - 1] * (TOKENS - 1),
}
COLUMNS = ("program", "prompt", "messages", "to_server_bytes", "to_client_bytes")
DIRECTIONS = ("to the server", "to the client")
PERMUTATIONS, AT_ONCE = 100_000, 10_000
LEVEL, POWER = 0.01, 0.8
"""LEVEL: below it, the probability of as large a difference of two prompts that are alike counts as telling them apart.
POWER: the probability with which what a case would have shown is found."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Session:
    """One question: its row of COLUMNS, and the bytes of each message by its name, in each of DIRECTIONS."""

    row: list[Any]
    sizes: tuple[Sizes, Sizes]


def permuted(one: Any, other: Any, permutations: int = PERMUTATIONS) -> tuple[float, np.ndarray]:
    """The largest |difference of means| over all columns, each in its own deviations, as seen and in permutations."""
    one, other = (np.asarray(rows, dtype=np.float64).reshape(len(rows), -1) for rows in (one, other))
    values = np.concatenate([one, other])  # (N, J)
    deviation = values.std(axis=0, ddof=1)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    first = np.arange(len(values)) < len(one)
    # The values' sum is 0, so the second group's mean follows from the first group's sum.
    scale = 1 / len(one) + 1 / len(other)
    generator, found = np.random.default_rng(1), []
    for start in range(0, permutations, AT_ONCE):
        count = min(AT_ONCE, permutations - start)
        groups = generator.permuted(np.tile(first, (count, 1)), axis=1)
        found.append(np.abs(groups.astype(np.float64) @ values).max(axis=1) * scale)
    return float(np.abs(first @ values).max() * scale), np.concatenate(found)


def probability(one: Any, other: Any, permutations: int = PERMUTATIONS) -> tuple[float, np.ndarray]:
    """Of a difference of means at least as large, either way, if both are drawn alike; and those of permutations.

    one, other: (N,) or (N, J), a row for each session; of J columns the largest difference is taken.
    """
    seen, found = permuted(one, other, permutations)
    # What was seen is one of the orders, so it is never 0.
    return float((np.sum(found >= seen * (1 - 1e-9)) + 1) / (permutations + 1)), found


def least(found: np.ndarray, one: int, other: int) -> float:
    """The difference of means, in deviations of a group, that groups of such sizes show at LEVEL with probability
    POWER; infinite if no difference would. found: as `permuted` gives it."""
    if np.mean(found >= found.max() * (1 - 1e-9)) >= LEVEL:  # so few sessions that the rarest order is not rare
        return math.inf
    count, shown = one + other, float(np.quantile(found, 1 - LEVEL))
    # `shown` is in deviations of both groups together, which the difference itself makes larger.
    within = ((count - 1) - shown**2 * one * other / count) / (count - 2)
    return shown / math.sqrt(within) + NormalDist().inv_cdf(POWER) * math.sqrt(1 / one + 1 / other)


def judged(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """The cases as the report shows them: name, count, passed, seen."""
    cases = []
    for program in dict.fromkeys(one.row[0] for one in sessions):
        groups = [[one for one in sessions if one.row[:2] == [program, prompt]] for prompt in PROMPTS]
        cases.append({"name": f"{program}: one number of messages", **_counts(groups)})
        for place, direction in enumerate(DIRECTIONS):
            cases.append({"name": f"{program}: the same messages {direction}", **_names(groups, place)})
            if not all(len(group) > 1 for group in groups):
                continue
            apart = f"{program}: the prompts are not told apart by"
            cases.append({"name": f"{apart} the bytes {direction}", **_bytes(groups, place)})
            cases.append({"name": f"{apart} the bytes of any message {direction}", **_messages(groups, place)})
    return cases


def _common(found: Sequence[Any], groups: Sequence[Sequence[Session]]) -> tuple[dict[str, int], str]:
    """How many of `found` are the most common one; and what a few others would have meant, in words."""
    fewest = min(len(group) for group in groups)
    part = f"; others in {1 - (1 - POWER) ** (1 / fewest):.0%} of one prompt's" if fewest else ""
    return {"count": len(found), "passed": max(Counter(found).values())}, f"{part} would have shown" if part else ""


def _counts(groups: Sequence[Sequence[Session]]) -> dict[str, Any]:
    counts = [one.row[2] for group in groups for one in group]
    common, others = _common(counts, groups)
    return common | {"seen": ", ".join(f"{count:,}" for count in sorted(set(counts))) + others}


def _names(groups: Sequence[Sequence[Session]], place: int) -> dict[str, Any]:
    names = [frozenset(one.sizes[place]) for group in groups for one in group]
    common, others = _common(names, groups)
    return common | {"seen": f"{', '.join(f'{len(one):,}' for one in dict.fromkeys(names))} messages{others}"}


def _bytes(groups: Sequence[Sequence[Session]], place: int) -> dict[str, Any]:
    """Whether all bytes of one direction tell the prompts apart."""
    values = [[one.row[3 + place] for one in group] for group in groups]
    alike, found = probability(*values)
    means, spread = [np.mean(group) for group in values], [np.std(group, ddof=1) for group in values]
    smallest = least(found, *map(len, values)) * math.hypot(*spread) / math.sqrt(2)
    return {
        "count": 1,
        "passed": int(alike >= LEVEL),
        "seen": f"means {means[0]:,.0f} and {means[1]:,.0f} bytes of {len(values[0])} and {len(values[1])} sessions, "
        f"deviation of one prompt's {max(spread):,.0f}; a difference as large has probability {alike:.2f} where there "
        f"is none; {smallest:,.0f} bytes would have shown",
    }


def _messages(groups: Sequence[Sequence[Session]], place: int) -> dict[str, Any]:
    """Whether the size of any one message does, the number of messages being accounted for."""
    sizes = [[one.sizes[place] for one in group] for group in groups]
    names = [name for name in sizes[0][0] if all(name in one for group in sizes for one in group)]
    unequal = [name for name in names if len({one[name] for group in sizes for one in group}) > 1]
    said = f"{len(names):,} messages, {len(unequal):,} not of one size in all sessions"
    if not unequal:
        return {"count": 1, "passed": 1, "seen": said}
    values = [[[one[name] for name in unequal] for one in group] for group in sizes]
    alike, found = probability(*values)
    return {
        "count": 1,
        "passed": int(alike >= LEVEL),
        "seen": f"{said}; a difference of means as large as the largest has probability {alike:.2f} where there is "
        f"none; {least(found, *map(len, groups)):.2f} deviations of one message would have shown",
    }


def message_sizes(stream: bytes) -> Counter[str]:
    """{name: bytes} of the messages in what one connection carried one way. ValueError if it is not brpc's.

    A request has a header ("PRPC", length of all that follows, of which its own description), which service is asked,
    and SPU's message or a piece of it: field 2 its name, with a number by the order of sending behind a byte 1, field 3
    the content. Two messages that are under way together may be numbered either way round. Answers have no name.
    """
    sizes: Counter[str] = Counter()
    place = 0
    while place < len(stream):
        magic, whole, description = struct.unpack(">4sII", stream[place : place + 12].ljust(12))
        begin, end = place + 12 + description, place + 12 + whole
        if magic != b"PRPC" or end > len(stream):
            raise ValueError(f"byte {place} of {len(stream)} begins no whole message of brpc's")
        place = end
        parts = dict(_fields(stream, begin, end))
        if 2 in parts:
            first, last = parts[2]
            name = stream[first:last].partition(b"\x01")[0].decode()
            content = parts.get(3, (0, 0))
            sizes[name] += content[1] - content[0]
    return sizes


def _fields(stream: bytes, place: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """(number, (begin, end)) of the fields of a protocol buffer that have a length; others are passed over."""

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte, place = stream[place], place + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < end:
        tag = number()
        if tag & 7 == 2:
            length = number()
            yield tag >> 3, (place, place + length)
            place += length
        elif tag & 7 == 0:
            number()
        else:
            raise ValueError(f"a field of kind {tag & 7} at byte {place} is none of SPU's messages")


def session(architecture: str, program: str, prompt: str, model: GPT, path: Path) -> Session:
    """One question for one token."""
    settings, relay = Settings(receive_timeout_s=300), Relay(record=True)
    description = Description.of(model.architecture, model.config, program, settings, "0" * 64)
    question = (PROMPTS[prompt], 1, Sampling(VOCABULARY), settings, lambda *_: None, relay)
    answered = ask_here(path, weights_sha256(model), description, *question)
    sizes = tuple(sum(map(message_sizes, streams), Counter()) for streams in relay.recorded_streams)
    messages = sum(cost.messages for cost in (answered.setup, *answered.costs))
    return Session([f"{architecture}, {program}", prompt, messages, *relay.forwarded], sizes)


def varying(sessions: Sequence[Session]) -> dict[str, dict[str, dict[str, list[int | None]]]]:
    """{program: {direction: {message: its bytes in each of the program's sessions}}} where those are not all equal."""
    found: dict[str, dict[str, dict[str, list[int | None]]]] = {}
    for program in dict.fromkeys(one.row[0] for one in sessions):
        of_program = [one.sizes for one in sessions if one.row[0] == program]
        for place, direction in enumerate(DIRECTIONS):
            names = dict.fromkeys(name for sizes in of_program for name in sizes[place])
            columns = {name: [sizes[place].get(name) for sizes in of_program] for name in names}
            kept = {name: column for name, column in columns.items() if len(set(column)) > 1}
            found.setdefault(program, {})[direction] = kept
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transcript_sizes", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20, help="of each prompt with each program")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    origin, clock = records.provenance(started=records.now()), time.monotonic()
    sessions: list[Session] = []
    with tempfile.TemporaryDirectory(prefix="aero-transcripts-") as name:
        models = {what: made(what, MODEL, Path(name, what, "checkpoint.safetensors")) for what, _ in PROGRAMS}
        for index in range(chosen.sessions):
            for architecture, program in PROGRAMS:
                path = Path(name, architecture, "checkpoint.safetensors")
                for prompt in PROMPTS:
                    sessions.append(session(architecture, program, prompt, models[architecture], path))
            result = {
                "cases": judged(sessions),
                "asked": (index + 1) * len(PROGRAMS) * len(PROMPTS),
                "of": chosen.sessions * len(PROGRAMS) * len(PROMPTS),
                "failures": [],
                "columns": COLUMNS,
                "samples": [one.row for one in sessions],
                "varying_messages": varying(sessions),
                "provenance": origin | {"seconds": round(time.monotonic() - clock, 1)},
            }
            write_text(chosen.out, json.dumps(result) + "\n")
    cases = judged(sessions)
    for case in cases:
        print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(any(case["passed"] != case["count"] for case in cases))


if __name__ == "__main__":
    run_main(main)
