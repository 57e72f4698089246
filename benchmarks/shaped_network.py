"""Complete private passes over shaped links, beside what the latency model predicts from operations measured alone.

    python -m benchmarks.shaped_network                      # everything: half an hour, on a quiet machine
    python -m benchmarks.shaped_network --only operations    # their costs alone
    python -m benchmarks.shaped_network --only passes --networks wan --runs sm-scfuffn --programs tuned

Writes what operations cost to results/two_party/shaped_ops.csv and to results/two_party/shaped.csv one line a pass, as
soon as it is measured, in place of the line of the same architecture, program, context and network; predictions are
made anew for all lines, or for none where one that is there could not be. "loopback" is the relay without rate and
delay. The refills of oblivious transfers that a prediction counts are those of the loopback pass.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aero import checkpoint, records
from aero.architecture import parse
from aero.config import load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import UserError, run_main
from aero.model import ModelConfig
from aero.records import run_folder, write_text
from aero.two_party.cost.ledger import as_json
from aero.two_party.cost.measure import place, warm_up_of
from aero.two_party.cost.network import Network
from aero.two_party.program.end_to_end import Question, put_prompt, put_weights
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings
from benchmarks.latency import REFILL, Cost, error_share, measure_costs, predict, refills_of

LOOPBACK = "loopback"
PASSES = Path("results/two_party/shaped.csv")
OPERATIONS = Path("results/two_party/shaped_ops.csv")
OTHER_PROGRAM = 0.1
"""Share by which the bytes of a pass are off its operations' if another program made it; refills are a few per cent."""
MOST_NAMED = 3
"""Operations that an error names; a pass has up to twenty."""
COMMAND = "python -m benchmarks.shaped_network"
COLUMNS = (
    "architecture program model context network bandwidth_mbit rtt_ms seconds predicted compute transfer rounds error "
    "bytes messages refills provenance"
).split()


def pass_task(party: Party, given: dict[str, Any]) -> None:
    """In a party process: one pass on each network, from the placed question to the logits that the client holds."""
    question: Question = given["question"]
    for operation in warm_up_of(question.program):
        party.run(operation.function(), place(party, operation), ["y"])
    names = put_weights(party, question, given["weights"] if party.rank == SERVER else None)
    put_prompt(party, question, given["ids"] if party.rank == CLIENT else None)
    function = question.function(names)
    inputs = [*(f"w.{name}" for name in names), "prompt"]
    # Compiles the program and gets the memory; measured passes begin after it.
    party.run(function, inputs, ["logits"])
    for network in given["networks"]:
        party.barrier()
        party.control(network)
        party.barrier()
        began = time.perf_counter()
        profile = party.run(function, inputs, ["logits"])
        party.reveal("logits", to=CLIENT)
        measured = {
            "network": network,
            "seconds": time.perf_counter() - began,
            "bytes": profile.bytes_sent + profile.bytes_received,
            "messages": profile.messages_sent + profile.messages_received,
        }
        party.barrier()
        party.control(LOOPBACK)
        party.control(measured)


def read(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV file, none if it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, columns: list[str], lines: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, text.getvalue())


def main(arguments: list[str]) -> None:
    parameters = load()
    networks = {name: Network(n.bandwidth_mbit, n.rtt_ms) for name, n in parameters.two_party.networks.items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=list(parameters.two_party.end_to_end_runs))
    parser.add_argument("--programs", nargs="+", default=list(parameters.two_party.programs))
    parser.add_argument("--networks", nargs="+", default=[LOOPBACK, *networks], choices=[LOOPBACK, *networks])
    parser.add_argument("--only", choices=["operations", "passes", "predictions"])
    parser.add_argument("--missing", action="store_true", help="measure only operations that have no line yet")
    parser.add_argument("--repeats", type=int, default=3, help="runs of an operation on each link")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs"), help="folder of the trained runs")
    parser.add_argument("--tokens", type=Path, default=Path("runs/tokens"), help="folder of token files")
    chosen = parser.parse_args(arguments)
    settings = Settings(**parameters.two_party.settings())
    made = as_json(**records.provenance(measured=records.now(), settings=parameters.two_party.variant()))
    models = {}
    if chosen.only != "predictions":
        for run in chosen.runs:
            folder = chosen.checkpoints / run_folder(run, parameters.seeds[0]).relative_to("runs")
            models[run] = checkpoint.load(folder / "checkpoint.safetensors")
    # As `aero ask` computes it: with layers put back into their own basis where the weights ask for it.
    asked = [(model, within_budget(model, program)) for model in models.values() for program in chosen.programs]
    if chosen.only in (None, "operations"):
        wanted: dict[Any, None] = {}
        for model, program in asked:
            wanted |= dict.fromkeys(operations(model.architecture, model.config, program, model.config.context))
        known = {(line["op"], line["shape"]) for line in read(OPERATIONS)} if chosen.missing else set()
        missing = [one for one in wanted if (one.name, one.shape) not in known]
        keep_costs(missing, settings, chosen.repeats, made, with_refill=(REFILL, "") not in known)
    if chosen.only in (None, "passes"):
        for model, program in asked:
            check_predictable(model, program, chosen.networks)
        for model, program in asked:
            keep_passes(model, program, chosen, {name: networks.get(name) for name in chosen.networks}, settings, made)
    keep_predictions()


def keep_costs(wanted: list[Any], settings: Settings, repeats: int, made: str, with_refill: bool) -> None:
    columns = [*(field.name for field in dataclasses.fields(Cost)), "provenance"]
    if not (wanted or with_refill):
        return
    kept = {(line["op"], line["shape"]): line for line in read(OPERATIONS)}

    def keep(cost: Cost) -> None:
        kept[cost.op, cost.shape] = dataclasses.asdict(cost) | {"provenance": made}
        write(OPERATIONS, columns, list(kept.values()))
        print(
            f"{cost.op} {cost.shape}: {cost.seconds:.3f} s, {cost.wire_bytes:.0f} wire bytes, {cost.rounds:.1f} rounds"
        )

    measure_costs(wanted, settings, repeats, keep, with_refill=with_refill)


def keep_passes(
    model: Any, program: str, chosen: Any, networks: dict[str, Network | None], settings: Settings, made: str
) -> None:
    config, context = model.config, model.config.context
    question = Question(str(model.architecture), dataclasses.asdict(config), program, context)
    ids = next(iter(evaluation_batches(open_tokens(chosen.tokens).valid, context, 1, context)))[0].numpy()
    common = {"question": question, "networks": list(networks)}
    relay = Relay()

    def take(message: Any) -> None:
        if isinstance(message, str):
            network = networks.get(message)
            relay.delay_s = network.rtt_ms / 2e3 if network is not None else 0.0
            relay.bandwidth_bytes = network.bytes_per_second if network is not None else None
            return
        name = message.pop("network")
        place_of = {
            "architecture": question.architecture,
            "program": program,
            "model": as_json(**question.config),
            "context": str(context),
            "network": name,
        }
        network = networks[name]
        shape = {} if network is None else dataclasses.asdict(network)
        line = place_of | shape | message | {"seconds": round(message["seconds"], 3), "provenance": made}
        others = [old for old in read(PASSES) if any(old[key] != value for key, value in place_of.items())]
        write(PASSES, COLUMNS, [*others, line])
        print(f"{question.architecture} {program} {name}: {message['seconds']:.1f} s", flush=True)

    run_parties(
        pass_task,
        common | {"ids": ids},
        common | {"weights": weight_arrays(model, program)},
        settings,
        relay=relay,
        on_control=take,
    )


def known_costs() -> dict[tuple[str, str], Cost]:
    """The link costs that are there, by (op, shape)."""
    numbers = [field.name for field in dataclasses.fields(Cost)[2:]]
    return {
        (line["op"], line["shape"]): Cost(line["op"], line["shape"], *(float(line[name]) for name in numbers))
        for line in read(OPERATIONS)
    }


def without_cost(counts: Mapping[Operation, int], costs: Mapping[tuple[str, str], Cost]) -> list[str]:
    """What a prediction needs that was not measured: operations, or a refill."""
    missing = [f"{one.name} {one.shape}" for one in counts if (one.name, one.shape) not in costs]
    return missing if (REFILL, "") in costs else [*missing, REFILL]


def check_predictable(model: Any, program: str, networks: Sequence[str]) -> None:
    """UserError if passes over `networks` would take the place of predicted ones and could not be predicted."""
    named = {
        "architecture": str(model.architecture),
        "program": program,
        "model": as_json(**dataclasses.asdict(model.config)),
        "context": str(model.config.context),
    }
    same = [line for line in read(PASSES) if all(line[key] == value for key, value in named.items())]
    if any(line["predicted"] and line["network"] in networks for line in same):
        counts = operations(model.architecture, model.config, program, model.config.context)
        if missing := without_cost(counts, known_costs()):
            raise UserError(_kept_as_they_are({_lacks_costs(missing): {f"{model.architecture} {program}": None}}))


Lack = tuple[str, str]
"""What a prediction lacks, and the command that measures it."""


def _lacks_costs(missing: Sequence[str]) -> Lack:
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return f"operations ({'; '.join(missing[:MOST_NAMED])}{more})", f"{COMMAND} --only operations --missing"


def _kept_as_they_are(lacking: Mapping[Lack, Iterable[str]]) -> str:
    """lacking: names of models and programs by what they lack."""
    said = "; ".join(
        f"{', '.join(names)}: without {what}, `{command}` measures it" for (what, command), names in lacking.items()
    )
    return f"the predictions in {PASSES} stay as they are, since not all can be made anew: {said}"


def keep_predictions() -> None:
    """Add to every pass measured what the model says of it.

    UserError, and nothing is written, if a pass that has a prediction would lose it.
    """
    costs = known_costs()
    lines = read(PASSES)
    if not costs or not lines:
        print("nothing to predict yet: operations and passes are both needed")
        return
    lost: dict[Lack, dict[str, None]] = {}
    said = []
    for line in lines:
        config = ModelConfig(**json.loads(line["model"]))
        counts = operations(parse(line["architecture"]), config, line["program"], int(line["context"]))
        missing = without_cost(counts, costs)
        same = [other for other in lines if all(other[key] == line[key] for key in COLUMNS[:4])]
        open_link = [other for other in same if other["network"] == LOOPBACK]
        composed = sum(count * costs[one.name, one.shape].bytes for one, count in counts.items()) if not missing else 0
        other = bool(open_link) and composed and abs(composed / float(open_link[0]["bytes"]) - 1) > OTHER_PROGRAM
        name = f"{line['architecture']} {line['program']}"
        if missing or not open_link or other:
            lacks, command = f"its {LOOPBACK} pass", f"{COMMAND} --only passes"
            if missing:
                lacks, command = _lacks_costs(missing)
            elif other:
                lacks = "a pass of today's program, whose bytes are others"
            if line["predicted"]:
                lost.setdefault((lacks, command), {})[name] = None
            said.append(f"{name} {line['network']}: no prediction, it lacks {lacks}")
            continue
        refills = refills_of(counts, costs, float(open_link[0]["messages"]))
        network = Network(float(line["bandwidth_mbit"]), float(line["rtt_ms"])) if line["bandwidth_mbit"] else None
        parts = predict(counts, costs, refills, network)
        line |= {
            "predicted": round(parts.seconds, 3),
            "compute": round(parts.compute, 3),
            "transfer": round(parts.transfer, 3),
            "rounds": round(parts.rounds, 3),
            "error": round(error_share(parts.seconds, float(line["seconds"])), 4),
            "refills": refills,
        }
        said.append(
            f"{name} {line['network']}: {float(line['seconds']):.1f} s measured, "
            f"{parts.seconds:.1f} predicted ({parts.compute:.1f} + {parts.transfer:.1f} + {parts.rounds:.1f}), "
            f"{float(line['error']):+.1%}"
        )
    if lost:
        raise UserError(_kept_as_they_are(lost))
    print("\n".join(said))
    write(PASSES, COLUMNS, lines)


if __name__ == "__main__":
    run_main(main)
