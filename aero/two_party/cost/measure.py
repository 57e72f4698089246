"""Measure operations one by one in a real two-party run: bytes, messages, seconds, set-up and rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from aero import records
from aero.two_party.cost.ledger import Measurement, as_json
from aero.two_party.cost.packing import MATRICES
from aero.two_party.program.operations import SHARED, Operation
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import Profile, check_pair
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER, VARIANT, Settings

# One operation of each protocol of SPU: comparison, multiplication of shares, division, multiplication by the server's
# matrix, of two shared matrices and by the server's vector, truncation. Their first runs pay for keys and first
# oblivious transfers.
WARM_UP = (
    Operation("relu", ((8, 8),)),
    Operation("softmax_plain", ((1, 8, 8),)),
    Operation("linear", ((8, 8), (8, 8))),
    Operation("scores", ((1, 8, 8), (1, 8, 8))),
    Operation("scale", ((8, 8), ())),
    Operation("embedding_slice", ((8, 8), (8, 8))),
    Operation("normalise", ((8, 8),)),
)
OWN_KEYS = {
    "lattice_linear": Operation("lattice_linear", ((8, 8), (8, 8))),
    "lattice=1": Operation("scores", ((1, 8, 8), (1, 8, 8)), (("lattice", 1),)),
    "narrow=1": Operation("relu", ((8, 8),), (("narrow", 1),)),
    "gelu_squares": Operation("gelu_squares", ((8, 8),)),
}
"""One operation of each of `OWN_PROTOCOLS`. They are run only where such an operation is."""
DELAY_S = 0.020
REFILL_MESSAGES = 1000
REFILL_MATTERS = 60_000_000
SAME_PROTOCOL = 32_768


def arguments(operation: Operation) -> list[np.ndarray]:
    """Random values to measure `operation` on. Bytes do not depend on them; division and roots need moderate ones."""
    generator = np.random.default_rng(0)
    values = []
    for shape, owner in zip(operation.shapes, operation.owners, strict=True):
        if owner == "ids":
            values.append(generator.integers(0, operation.shapes[1][0], shape, dtype=np.int32))
            continue
        if owner == "client":
            value = np.zeros(shape)
            value[np.arange(shape[0]), generator.integers(0, shape[1], shape[0])] = 1.0
        else:
            size = shape[0] ** -0.5 if len(shape) == 2 and owner == "server" else 1.0
            value = size * generator.standard_normal(shape)
        values.append(value.astype(np.float32))
    return values


def place(party: Party, operation: Operation) -> list[str]:
    """Place random arguments at their owners; returns the variables' names."""
    ranks = {"server": SERVER, "client": CLIENT}
    for index, (value, owner) in enumerate(zip(arguments(operation), operation.owners, strict=True)):
        if owner == "public":
            party.put_public(f"a{index}", value)
            continue
        source = ranks.get(owner, CLIENT)
        given = value if party.rank == source else None
        party.put(f"a{index}", given, value.shape, value.dtype, owner=ranks.get(owner), from_rank=source)
    return [f"a{index}" for index in range(len(operation.owners))]


def measure_task(
    party: Party, request: dict[str, Any]
) -> tuple[list[Profile], dict[Operation, list[Profile]], dict[Operation, float]]:
    """In a party process: warm up, then run every operation. Returns this party's profiles of both.

    request: "operations", "runs" of each; optionally "relayed", if a relay stands between the parties: then also
    returns, for each operation, the seconds that one second of round-trip time adds to it.
    """
    warm = []
    for operation in warm_up(request["operations"]):
        names, function = place(party, operation), operation.function()
        warm += [party.run(function, names, ["y"]) for _ in range(2)]
    profiles: dict[Operation, list[Profile]] = {}
    rounds: dict[Operation, float] = {}
    for operation in request["operations"]:
        names, function = place(party, operation), operation.function()
        party.prepare(function, names, ["y"])
        profiles[operation] = repeated(party, function, names, request["runs"])
        if request.get("relayed"):
            delay_link(party, DELAY_S)
            delayed = repeated(party, function, names, request["runs"])
            delay_link(party, 0.0)
            # The least of several, because a refill of oblivious transfers adds rounds to some runs.
            slow, fast = (min(run.seconds for run in runs) for runs in (delayed, profiles[operation]))
            rounds[operation] = max(0.0, slow - fast) / (2 * DELAY_S)
        for name in names:
            party.drop(name)
    return warm, profiles, rounds


def repeated(party: Party, function: Callable[..., Any], names: Sequence[str], runs: int) -> list[Profile]:
    """Profiles of `runs` runs, and of up to two more if all seem to include a refill."""
    profiles = [party.run(function, names, ["y"]) for _ in range(runs)]
    while all(map(refilled, profiles)) and len(profiles) < runs + 2:
        profiles.append(party.run(function, names, ["y"]))
    return profiles


def delay_link(party: Party, seconds: float) -> None:
    """Set what the relay adds to every message, while neither party sends."""
    party.barrier()
    party.control(seconds)
    party.barrier()


def warm_up(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """What to run before `operations` so that none of them pays for keys."""
    names = [operation.name for operation in operations]
    return (*WARM_UP, *(one for part, one in OWN_KEYS.items() if any(part in name for name in names)))


def set_up(
    party: Party, operations: Iterable[Operation], before: Callable[[int, int], Any] = lambda number, many: None
) -> list[Profile]:
    """Run `warm_up` of a pass's `operations`; `before` gets the number of each run and of all."""
    first, profiles = warm_up(operations), []
    for number, operation in enumerate(first, 1):
        before(number, len(first))
        profiles.append(party.run(operation.function(), place(party, operation), ["y"]))
    return profiles


def refilled(profile: Profile) -> bool:
    """Whether this run seems to include a refill of oblivious transfers (1,281 messages, 266 kB).

    Judged by totals of both directions, so that both parties repeat the same runs. Beside the hundreds of MB of a large
    exponential or GELU, which have many messages of their own, a refill does not matter.
    """
    return profile.messages_sent + profile.messages_received > REFILL_MESSAGES and profile.bytes < REFILL_MATTERS


def shrink(operation: Operation) -> Operation:
    """`operation` on fewer rows and columns, where computing takes little time and the rounds are nearly the same.

    Rounds come from the depth of a protocol, but SPU chooses the protocol by the number of elements: below 16,384 it
    multiplies by Beaver triples, in 1 round instead of 5, and squares up to 8,192 at once. So SAME_PROTOCOL elements
    are kept. A maximum's depth depends on its length, so the last axis of a softmax is kept too.
    """
    kind, shapes = operation.kind, operation.shapes
    if kind == "id_lookup":
        return Operation(kind, (shapes[0], tuple(map(min, shapes[1], (1024, 64)))))
    if kind.startswith(("softmax", "exponentials")):
        heads, rows, columns = shapes[0]
        heads = max(1, min(heads, SAME_PROTOCOL // (rows * columns)))
        rows = min(rows, max(1, SAME_PROTOCOL // (heads * columns)))
        constants = tuple((key, min(value, rows) if key == "blocks" else value) for key, value in operation.constants)
        return Operation(kind, ((heads, rows, columns),), constants)
    if kind in ("scores", "mix"):
        return replace(operation, shapes=tuple((1, min(rows, 8), min(columns, 8)) for _, rows, columns in shapes))
    if kind.removesuffix(SHARED) in MATRICES:
        (rows, inner), (_, columns) = shapes
        inner = min(inner, 64)
        return replace(operation, shapes=((min(rows, 8), inner), (inner, min(columns, 64))))
    if kind.startswith("scale_row"):
        _, rows, columns = shapes[0]
        rows = min(rows, 8)
        return Operation(kind, ((1, rows, min(columns, 64)), (1, rows)))
    if kind == "causal_mean":
        rows = int(dict(operation.constants)["rows"])
        return Operation(kind, ((min(shapes[0][0], 8), min(shapes[0][1], 64)),), (("rows", min(rows, 8)),))
    # Cut the first axis of all arguments with the rank of the first; broadcast arguments keep theirs.
    axes = len(shapes[0])
    if math.prod(shapes[0]) <= SAME_PROTOCOL:
        return operation
    first = max(1, SAME_PROTOCOL // math.prod(shapes[0][1:]))
    return replace(
        operation,
        shapes=tuple((min(shape[0], first), *shape[1:]) if len(shape) == axes else shape for shape in shapes),
    )


def measure(
    operations: Iterable[Operation],
    model: str,
    context: int,
    settings: Settings,
    runs: int = 1,
    rounds: Mapping[Operation, float] | None = None,
) -> list[Measurement]:
    """Measure each of `operations`, in order, in the steady state of one session.

    runs: of each operation; bytes and messages are those of the run with the fewest bytes, seconds the median. rounds:
    as `measure_rounds` gives them; None leaves them out (NaN). Raises TwoPartyError if a party fails, ValueError if the
    two parties' profiles do not agree.
    """
    wanted = list(dict.fromkeys(operations))
    request = {"operations": wanted, "runs": runs}
    (warm, profiles, _), (their_warm, theirs, _) = run_parties(measure_task, request, request, settings)
    for ours, other in ((warm, their_warm), *((profiles[operation], theirs[operation]) for operation in wanted)):
        for pair in zip(ours, other, strict=True):
            check_pair(*pair)
    # Extra bytes of the first run of each over the second: keys and first oblivious transfers.
    extra = [first.bytes - second.bytes for first, second in zip(warm[0::2], warm[1::2], strict=True)]
    setup_bytes = dict(zip(warm_up(wanted), extra, strict=True))
    source, measured = as_json(**records.provenance(settings=VARIANT, measured=records.now())), []
    for operation in wanted:
        best = min(profiles[operation], key=lambda profile: profile.bytes)
        measured.append(
            Measurement(
                op=operation.name,
                shape=operation.shape,
                model=model,
                context=context,
                variant=VARIANT,
                bytes_sent_client=best.bytes_sent,
                bytes_sent_server=best.bytes_received,
                messages=best.messages_sent + best.messages_received,
                rounds=math.nan if rounds is None else round(rounds[operation], 1),
                setup_bytes=sum(setup_bytes[one] for one in warm_up([operation])),
                seconds=round(median(profile.seconds for profile in profiles[operation]), 4),
                runs=len(profiles[operation]),
                provenance=source,
            )
        )
    return measured


def measure_rounds(operations: Sequence[Operation], settings: Settings, runs: int = 3) -> dict[Operation, float]:
    """Round trips that cost time, for each operation: the slope of its seconds against the round-trip time, which a
    relay between the parties sets. Operations that shrink to the same one are measured once. runs: at each delay."""
    small, relay = {operation: shrink(operation) for operation in operations}, Relay()

    def set_delay(delay: float) -> None:
        relay.delay_s = delay

    request = {"operations": list(dict.fromkeys(small.values())), "runs": runs, "relayed": True}
    (*_, ours), (*_, theirs) = run_parties(measure_task, request, request, settings, relay=relay, on_control=set_delay)
    return {operation: max(ours[one], theirs[one]) for operation, one in small.items()}
