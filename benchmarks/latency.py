"""Cost of single operations on a link, and the latency of a private pass predicted from them.

Every operation is run alone, at its own shapes, on three links: open, delayed, and limited in rate. The extra time of
the second, over the round-trip time, gives its rounds; that of the third, times the rate, its wire bytes: those that
cost time, fewer than its bytes where both directions are used at once. Matrix multiplications compute for seconds and
have one or two rounds, which noise would hide: their rounds are those of a small one, their wire bytes by
`network.wire_bytes`.

A pass then takes, on a network, the sum of computing + wire bytes / bandwidth + rounds x round-trip time over its
operations, plus as many refills of oblivious transfers as it made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from aero.two_party.cost.measure import place, shrink, warm_up
from aero.two_party.cost.network import Network, wire_bytes
from aero.two_party.cost.packing import MATRICES
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import Settings

DELAYED = 0.020
"""One-way delay, in seconds, of the link that shows rounds."""

LIMITED = 12.5e6
"""Bytes a second, each way, of the link that shows wire bytes."""

LINKS: dict[str, tuple[float, float | None]] = {
    "open": (0.0, None),
    "delayed": (DELAYED, None),
    "limited": (0.0, LIMITED),
}

REFILL = "refill"
REFILL_MESSAGES = 1281
"""Messages of one new stock of oblivious transfers: SPU's Ferret sends one for each of 1,280 trees, and one more."""

# Comparisons that use up a stock in three or four runs.
_USES_TRANSFERS = Operation("relu", ((64, 256),))
_REFILL_RUNS = 10


@dataclass(frozen=True)
class Cost:
    """What one operation costs in its steady state, or one refill: seconds on an open link, wire bytes, rounds.

    bytes: in both directions. Noise may make wire bytes and rounds of cheap operations negative.
    """

    op: str
    shape: str
    seconds: float
    wire_bytes: float
    rounds: float
    bytes: float
    messages: float


def predict(
    counts: Mapping[Operation, int], costs: Mapping[tuple[str, str], Cost], refills: float, network: Network | None
) -> dict[str, float]:
    """Seconds of a pass with `counts` of operations and `refills` on `network`, None for an open link, in parts:
    `compute` (with that of refills), `transfer`, `rounds`.

    costs: by (op, shape), with ("refill", "") and every one of `counts`.
    """
    parts = [(count, costs[one.name, one.shape]) for one, count in counts.items()] + [(refills, costs[REFILL, ""])]
    found = dict.fromkeys(("compute", "transfer", "rounds"), 0.0)
    for count, cost in parts:
        found["compute"] += count * cost.seconds
        if network is not None:
            found["transfer"] += count * cost.wire_bytes / network.bytes_per_second
            found["rounds"] += count * cost.rounds * network.rtt_ms / 1e3
    return found


def refills_of(counts: Mapping[Operation, int], costs: Mapping[tuple[str, str], Cost], messages: float) -> int:
    """How many refills a pass of so many messages made: what its operations do not account for."""
    known = sum(count * costs[operation.name, operation.shape].messages for operation, count in counts.items())
    return max(0, round((messages - known) / REFILL_MESSAGES))


def cost_task(party: Party, request: dict[str, Any]) -> None:
    """In a party process: run every operation on its links and report the client's costs to its parent."""
    for operation in warm_up(request["operations"]):
        party.run(operation.function(), place(party, operation), ["y"])
    for operation in request["operations"]:
        wanted = request["runs"]
        profiles: dict[str, list[Profile]] = {}
        if operation.kind in MATRICES:
            _run_on(party, operation, ("open",), wanted, profiles)
            small: dict[str, list[Profile]] = {}
            _run_on(party, shrink(operation), ("open", "delayed"), wanted, small)
            profiles |= {f"small, {link}": runs for link, runs in small.items()}
        else:
            _run_on(party, operation, tuple(LINKS), wanted, profiles)
        party.control(("measured", cost_of(operation, profiles)))
    if request["refill"]:
        profiles = {}
        _run_on(party, _USES_TRANSFERS, tuple(LINKS), _REFILL_RUNS, profiles)
        party.control(("measured", refill_cost(profiles)))


def _run_on(
    party: Party, operation: Operation, links: Sequence[str], wanted: int, profiles: dict[str, list[Profile]]
) -> None:
    """Add the profiles of `wanted` runs on each of `links`, more where all of them made a refill."""
    names, function = place(party, operation), operation.function()
    party.run(function, names, ["y"])
    for link in links:
        party.barrier()
        party.control(("link", link))
        party.barrier()
        profiles[link] = [party.run(function, names, ["y"]) for _ in range(wanted)]
        while len(profiles[link]) < 2 * wanted and all(map(_refilled(profiles), profiles[link])):
            profiles[link].append(party.run(function, names, ["y"]))
    party.barrier()
    party.control(("link", "open"))
    for name in names:
        party.drop(name)


def _messages(profile: Profile) -> int:
    return profile.messages_sent + profile.messages_received


def _refilled(profiles: Mapping[str, Sequence[Profile]]) -> Callable[[Profile], bool]:
    """Whether a run made a refill, by the fewest messages of all runs on any link."""
    fewest = min(_messages(profile) for runs in profiles.values() for profile in runs)
    return lambda profile: _messages(profile) >= fewest + REFILL_MESSAGES // 2


def cost_of(operation: Operation, profiles: Mapping[str, Sequence[Profile]]) -> Cost:
    """The cost by runs without a refill: computing by the median, differences between the least times."""
    plain = _without_refills({link: runs for link, runs in profiles.items() if link in LINKS})
    one = min(plain["open"], key=_messages)
    if operation.kind in MATRICES:
        small = _without_refills({link.removeprefix("small, "): runs for link, runs in profiles.items() if "," in link})
        rounds = (_least(small["delayed"]) - _least(small["open"])) / (2 * DELAYED)
        wire = wire_bytes(operation.kind, one.bytes_sent, one.bytes_received)
    else:
        rounds = (_least(plain["delayed"]) - _least(plain["open"])) / (2 * DELAYED)
        wire = (_least(plain["limited"]) - _least(plain["open"])) * LIMITED
    return Cost(
        operation.name,
        operation.shape,
        median(profile.seconds for profile in plain["open"]),
        wire,
        rounds,
        float(one.bytes_sent + one.bytes_received),
        float(_messages(one)),
    )


def _without_refills(profiles: Mapping[str, Sequence[Profile]]) -> dict[str, list[Profile]]:
    refilled = _refilled(profiles)
    return {link: [one for one in runs if not refilled(one)] or list(runs) for link, runs in profiles.items()}


def _least(runs: Sequence[Profile]) -> float:
    return min(profile.seconds for profile in runs)


def refill_cost(profiles: Mapping[str, Sequence[Profile]]) -> Cost:
    """What a refill adds to a run, by least times. ValueError if none was seen on some link."""
    refilled = _refilled(profiles)
    added: dict[str, float] = {}
    sizes = []
    for link, runs in profiles.items():
        plain = [one for one in runs if not refilled(one)]
        with_refill = [one for one in runs if refilled(one)]
        if not plain or not with_refill:
            raise ValueError(f"no refill of oblivious transfers was seen on the {link} link; measure again")
        added[link] = _least(with_refill) - _least(plain)
        sizes += [with_refill[0].bytes_sent + with_refill[0].bytes_received]
        sizes[-1] -= plain[0].bytes_sent + plain[0].bytes_received
    return Cost(
        REFILL,
        "",
        added["open"],
        (added["limited"] - added["open"]) * LIMITED,
        (added["delayed"] - added["open"]) / (2 * DELAYED),
        float(median(sizes)),
        float(REFILL_MESSAGES),
    )


def measure_costs(
    operations: Sequence[Operation],
    settings: Settings,
    runs: int = 3,
    on_measured: Callable[[Cost], None] | None = None,
    with_refill: bool = True,
) -> dict[tuple[str, str], Cost]:
    """Cost of every one of `operations`, by (op, shape), and of a refill, in one session through a relay.

    runs: on each link. on_measured: called with each as soon as it is there. Raises TwoPartyError if a party fails.
    """
    relay = Relay()
    found: dict[tuple[str, str], Cost] = {}

    def take(message: tuple[Any, ...]) -> None:
        if message[0] == "link":
            relay.delay_s, relay.bandwidth_bytes = LINKS[message[1]]
            return
        cost = message[1]
        found[cost.op, cost.shape] = cost
        if on_measured is not None:
            on_measured(cost)

    request = {"operations": list(dict.fromkeys(operations)), "runs": runs, "refill": with_refill}
    run_parties(cost_task, request, request, settings, relay=relay, on_control=take)
    return found
