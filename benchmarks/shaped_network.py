"""Complete private passes over shaped links, and what operations cost on a link, each at its own shape.

    python -m benchmarks.shaped_network operations     # what a prediction needs: results/two_party/shaped_ops.csv
    python -m benchmarks.shaped_network passes         # results/two_party/shaped.csv, beside the prediction
    python -m benchmarks.shaped_network full_links     # at the papers' own size: results/two_party/full_links.csv

Half an hour each on a quiet machine (full_links: two hours). The link is a relay with the rate and delay of each
network of params.yaml; "loopback" has neither. Every line is written as soon as it is measured; full_links goes on
where it was stopped. A pass is predicted from operations of its own machine, if all were measured by today's program.

Every operation is run alone, at its own shapes, on three links: open, delayed, and limited in rate. The extra time of
the second, over the round-trip time, gives its rounds; that of the third, times the rate, its wire bytes: those that
cost time, fewer than its bytes where both directions are used at once. Matrix multiplications compute for seconds and
have one or two rounds, which noise would hide: their rounds are those of a small one, their wire bytes by
`network.wire_bytes`. A pass then takes, on a network, the sum of computing + wire bytes / bandwidth + rounds x
round-trip time over its operations, plus as many refills of oblivious transfers as it made.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from aero import checkpoint, records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import run_main
from aero.model import GPT, ModelConfig
from aero.schema import Network
from aero.two_party.cost.ledger import as_json
from aero.two_party.cost.measure import place, set_up, shrink, warm_up
from aero.two_party.cost.network import wire_bytes
from aero.two_party.cost.packing import MATRICES
from aero.two_party.program.end_to_end import PublicModel, put_prompt, put_weights
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import Party, Task, run_parties
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER, VARIANT, Settings
from benchmarks.timing import replace_lines, write_lines

LOOPBACK, OPEN = "loopback", (0.0, None)
PASSES, OPERATIONS = Path("results/two_party/shaped.csv"), Path("results/two_party/shaped_ops.csv")
FULL_LINKS = Path("results/two_party/full_links.csv")
FULL_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")
OTHER_PROGRAM = 0.1
"""A pass whose bytes differ from its operations' by more than this share was made by another program."""
KEY = ("architecture", "program", "model", "context", "network")
COLUMNS = (
    *(*KEY, "bandwidth_mbit", "rtt_ms", "seconds", "predicted"),
    *("compute", "transfer", "rounds", "error", "bytes", "messages", "refills", "provenance"),
)
Links = Mapping[str, tuple[float, float | None]]
"""One-way delay in seconds, and bytes a second each way or None for no limit."""
DELAYED, LIMITED = 0.020, 12.5e6
"""Delay of the link that shows rounds; rate of the link that shows wire bytes."""
LINKS: Links = {"open": OPEN, "delayed": (DELAYED, None), "limited": (0.0, LIMITED)}
Runs = Mapping[str, Sequence[Profile]]
"""Of one operation, by link."""
REPEATS = 3  # runs of an operation on each link
REFILL = "refill"
REFILL_MESSAGES = 1281
"""Messages of one new stock of oblivious transfers: SPU's Ferret sends one for each of 1,280 trees, and one more."""

_USES_TRANSFERS, _REFILL_RUNS = Operation("relu", ((64, 256),)), 10
"""Comparisons that use up a stock in three or four runs."""


@dataclasses.dataclass(frozen=True)
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


COST_COLUMNS = (*(field.name for field in dataclasses.fields(Cost)), "provenance")


def predict(
    counts: Mapping[Operation, int], costs: Mapping[tuple[str, str], Cost], refills: float, network: Network | None
) -> dict[str, float]:
    """Seconds of a pass with `counts` of operations and `refills` on `network`, None for an open link, in parts:
    `compute` (with that of refills), `transfer`, `rounds`.

    costs: by (op, shape), with ("refill", "") and every one of `counts`.
    """
    parts = [(count, costs[one.name, one.shape]) for one, count in counts.items()] + [(refills, costs[REFILL, ""])]
    found = {"compute": sum(count * cost.seconds for count, cost in parts), "transfer": 0.0, "rounds": 0.0}
    if network is not None:
        found["transfer"] = sum(count * cost.wire_bytes for count, cost in parts) / network.bytes_per_second
        found["rounds"] = sum(count * cost.rounds for count, cost in parts) * network.rtt_ms / 1e3
    return found


def refills_of(counts: Mapping[Operation, int], costs: Mapping[tuple[str, str], Cost], messages: float) -> int:
    """How many refills a pass of so many messages made: what its operations do not account for."""
    known = sum(count * costs[operation.name, operation.shape].messages for operation, count in counts.items())
    return max(0, round((messages - known) / REFILL_MESSAGES))


def through_relay(
    task: Task, client: Any, server: Any, links: Links, settings: Settings, keep: Callable[[Any], None]
) -> None:
    """Run `task` between two parties whose link it changes by `_change`. keep: called with each of its measurements."""
    relay = Relay()

    def control(message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "link":
            relay.delay_s, relay.bandwidth_bytes = links[value]
        else:
            keep(value)

    run_parties(task, client, server, settings, relay=relay, on_control=control)


def _change(party: Party, link: str) -> None:
    """Change the link while no message is on it."""
    party.barrier()
    party.control(("link", link))
    party.barrier()


def cost_task(party: Party, request: dict[str, Any]) -> None:
    """In a party process: run every operation on its links and report the client's costs to its parent."""
    for operation in warm_up(request["operations"]):
        party.run(operation.function(), place(party, operation), ["y"])
    for operation in request["operations"]:
        if operation.kind in MATRICES:
            runs = _run_on(party, operation, ("open",), request["runs"])
            delayed = _run_on(party, shrink(operation), ("open", "delayed"), request["runs"])
        else:
            runs = delayed = _run_on(party, operation, tuple(LINKS), request["runs"])
        party.control(("measured", cost_of(operation, runs, delayed)))
    if request["refill"]:
        party.control(("measured", refill_cost(_run_on(party, _USES_TRANSFERS, tuple(LINKS), _REFILL_RUNS))))


def _run_on(party: Party, operation: Operation, links: Sequence[str], wanted: int) -> dict[str, list[Profile]]:
    """Profiles of `wanted` runs on each of `links`, of more where all of them made a refill."""
    names, function = place(party, operation), operation.function()
    party.run(function, names, ["y"])
    profiles: dict[str, list[Profile]] = {}
    for link in links:
        _change(party, link)
        profiles[link] = [party.run(function, names, ["y"]) for _ in range(wanted)]
        while len(profiles[link]) < 2 * wanted and not _split(profiles)[link][0]:
            profiles[link].append(party.run(function, names, ["y"]))
    _change(party, "open")
    for name in names:
        party.drop(name)
    return profiles


def _messages(profile: Profile) -> int:
    return profile.messages_sent + profile.messages_received


def _split(profiles: Runs) -> dict[str, tuple[list[Profile], list[Profile]]]:
    """Runs on every link without a refill and with one, by the fewest messages of all runs on any link."""
    limit = min(_messages(one) for runs in profiles.values() for one in runs) + REFILL_MESSAGES // 2
    return {
        link: ([one for one in runs if _messages(one) < limit], [one for one in runs if _messages(one) >= limit])
        for link, runs in profiles.items()
    }


def cost_of(operation: Operation, runs: Runs, delayed: Runs) -> Cost:
    """The cost by runs without a refill: computing by the median, differences between the least times.

    delayed: runs on the open and the delayed link, for the rounds; of a smaller operation where computing takes long.
    """
    plain, delayed = ({link: a or b for link, (a, b) in _split(each).items()} for each in (runs, delayed))
    one = min(plain["open"], key=_messages)
    if operation.kind in MATRICES:
        wire = wire_bytes(operation.kind, one.bytes_sent, one.bytes_received)
    else:
        wire = (_least(plain["limited"]) - _least(plain["open"])) * LIMITED
    seconds = median(profile.seconds for profile in plain["open"])
    rounds = (_least(delayed["delayed"]) - _least(delayed["open"])) / (2 * DELAYED)
    return Cost(operation.name, operation.shape, seconds, wire, rounds, float(one.bytes), float(_messages(one)))


def _least(runs: Sequence[Profile]) -> float:
    return min(profile.seconds for profile in runs)


def refill_cost(profiles: Runs) -> Cost:
    """What a refill adds to a run, by least times. ValueError if none was seen on some link."""
    added, sizes = {}, []
    for link, (plain, with_refill) in _split(profiles).items():
        if not plain or not with_refill:
            raise ValueError(f"no refill of oblivious transfers was seen on the {link} link; measure again")
        added[link] = _least(with_refill) - _least(plain)
        sizes.append(with_refill[0].bytes - plain[0].bytes)
    wire, rounds = (added["limited"] - added["open"]) * LIMITED, (added["delayed"] - added["open"]) / (2 * DELAYED)
    return Cost(REFILL, "", added["open"], wire, rounds, float(median(sizes)), float(REFILL_MESSAGES))


def measure_operations(path: Path, wanted: Iterable[Operation], settings: Settings, made: str) -> None:
    """Measure the cost of every one of `wanted` in one session, for OPERATIONS of a refill as well; write each."""
    lines = {(one["op"], one["shape"], json.loads(one["provenance"])["machine"]): one for one in records.read_csv(path)}

    def keep(cost: Cost) -> None:
        lines[cost.op, cost.shape, records.machine()] = dataclasses.asdict(cost) | {"provenance": made}
        write_lines(path, COST_COLUMNS, [lines[key] for key in sorted(lines)])
        print(f"{cost.op} {cost.shape}: {cost.seconds:.3f} s, {cost.rounds:.1f} rounds", flush=True)

    request = {"operations": list(dict.fromkeys(wanted)), "runs": REPEATS, "refill": path == OPERATIONS}
    through_relay(cost_task, request, request, LINKS, settings, keep)


def pass_task(party: Party, given: dict[str, Any]) -> None:
    """In a party process: one pass on each network, from the prompt in place to the logits at the client."""
    model: PublicModel = given["model"]
    set_up(party, model.operations(given["tokens"]))
    names = put_weights(party, model, given["weights"] if party.rank == SERVER else None)
    put_prompt(party, model, given["tokens"], given["ids"] if party.rank == CLIENT else None)
    function, inputs = model.function(names), [*(f"w.{name}" for name in names), "prompt"]
    party.run(function, inputs, ["logits"])  # compiles the program
    for network in given["networks"]:
        _change(party, network)
        start = time.perf_counter()
        profile = party.run(function, inputs, ["logits"])
        party.reveal("logits", to=CLIENT)
        measured = {"network": network, "seconds": round(time.perf_counter() - start, 3)}
        _change(party, LOOPBACK)
        party.control(("measured", measured | {"bytes": profile.bytes, "messages": _messages(profile)}))


def measure_passes(model: GPT, program: str, networks: Mapping[str, Any], settings: Settings, made: str) -> None:
    """Passes over every network (None: an open link), replacing lines of the same model, program and network."""
    config, context = model.config, model.config.context
    public = PublicModel(str(model.architecture), dataclasses.asdict(config), program)
    ids = next(iter(evaluation_batches(open_tokens(Path("runs/tokens")).valid, context, 1, context)))[0].numpy()
    common = {"architecture": public.architecture, "program": program, "model": as_json(**public.config)}
    common |= {"context": context, "provenance": made}

    def keep(measured: dict[str, Any]) -> None:
        network = networks[measured["network"]]
        line = common | (dataclasses.asdict(network) if network is not None else {}) | measured
        replace_lines(PASSES, COLUMNS, [line], *KEY)
        print(f"{public.architecture} {program} {line['network']}: {line['seconds']:.1f} s", flush=True)

    links = {name: (one.rtt_ms / 2e3, one.bytes_per_second) if one else OPEN for name, one in networks.items()}
    request = {"model": public, "tokens": context, "networks": list(networks)}
    inputs = request | {"ids": ids}, request | {"weights": weight_arrays(model, program)}
    through_relay(pass_task, *inputs, links | {LOOPBACK: OPEN}, settings, keep)


def full_size(parameters: Parameters) -> list[Operation]:
    """The operations of `FULL_ROWS` at the papers' size except matrix multiplications, smallest first."""
    config, context = parameters.at_scale("laptop").two_party_model()
    # Of Pythia's baseline, with fewer entries: the full size would take a quarter of an hour on the limited link.
    found: dict[Operation, None] = {Operation("gelu_exact", ((16, 1024),)): None}
    for row in FULL_ROWS:
        for program in parameters.two_party.programs:
            found |= dict.fromkeys(operations(parse(row), config, program, context))
    others = [one for one in found if one.kind not in MATRICES]
    return sorted(others, key=lambda one: (sum(map(math.prod, one.shapes)), one))


def predict_passes() -> None:
    """Add to every measured pass the prediction of the latency model."""
    rows, lines = records.read_csv(OPERATIONS), records.read_csv(PASSES)
    for line in lines:
        machine = json.loads(line["provenance"])["machine"]
        own = [[*row.values()] for row in rows if json.loads(row["provenance"])["machine"] == machine]
        costs = {(op, shape): Cost(op, shape, *map(float, numbers)) for op, shape, *numbers, _ in own}
        config, name = ModelConfig(**json.loads(line["model"])), f"{line['architecture']} {line['program']}"
        counts = operations(parse(line["architecture"]), config, line["program"], int(line["context"]))
        same = [other for other in lines if all(other[key] == line[key] for key in KEY[:-1])]
        loopback = [other for other in same if other["network"] == LOOPBACK]
        missing = [one.name for one in counts if (one.name, one.shape) not in costs]
        if missing or (REFILL, "") not in costs or not loopback:
            print(f"{name} {line['network']}: not predicted; measure operations and the {LOOPBACK} pass first")
            continue
        composed = sum(count * costs[one.name, one.shape].bytes for one, count in counts.items())
        if abs(composed / float(loopback[0]["bytes"]) - 1) > OTHER_PROGRAM:
            print(f"{name} {line['network']}: not predicted; another program made the pass, measure passes again")
            continue
        refills = refills_of(counts, costs, float(loopback[0]["messages"]))
        link = {key: float(line[key] or 0) for key in ("bandwidth_mbit", "rtt_ms")}
        network = Network(**link) if line["bandwidth_mbit"] else None
        parts = predict(counts, costs, refills, network)
        seconds, measured = sum(parts.values()), float(line["seconds"])
        line |= {what: round(value, 3) for what, value in parts.items()} | {"predicted": round(seconds, 3)}
        line |= {"error": round(seconds / measured - 1, 4), "refills": refills}
        print(f"{name} {line['network']}: {measured:.1f} s measured, {seconds:.1f} predicted")
    write_lines(PASSES, COLUMNS, lines)


def main(arguments: list[str]) -> None:
    parameters = load()
    networks = parameters.two_party.networks
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shaped_network", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["operations", "passes", "full_links"])
    parser.add_argument("--runs", nargs="+", default=list(parameters.two_party.end_to_end_runs))
    parser.add_argument("--programs", nargs="+", default=list(parameters.two_party.programs))
    parser.add_argument("--networks", nargs="+", default=[LOOPBACK, *networks], choices=[LOOPBACK, *networks])
    chosen = parser.parse_args(arguments)
    settings = Settings(**parameters.two_party.settings())
    made = as_json(**records.provenance(measured=records.now(), settings=VARIANT))
    if chosen.what == "full_links":
        known = {(line["op"], line["shape"]) for line in records.read_csv(FULL_LINKS)}
        for one in full_size(parameters):
            if (one.name, one.shape) not in known:
                measure_operations(FULL_LINKS, [one], settings, made)
        return
    models = [
        checkpoint.load(parameters.folder(one, parameters.seeds[0]) / "checkpoint.safetensors") for one in chosen.runs
    ]
    pairs = [(model, within_budget(model, program)) for model in models for program in chosen.programs]
    if chosen.what == "operations":
        each = (operations(model.architecture, model.config, program, model.config.context) for model, program in pairs)
        measure_operations(OPERATIONS, itertools.chain(*each), settings, made)
    else:
        links = {name: networks.get(name) for name in chosen.networks}
        for model, program in pairs:
            measure_passes(model, program, links, settings, made)
    predict_passes()


if __name__ == "__main__":
    run_main(main)
