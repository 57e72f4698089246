"""What each optimization of the private program is worth, alone and together: bytes, seconds, logit error.

    python -m benchmarks.optimizations bytes                   operations at GPT-2's dimensions, composed to rows
    python -m benchmarks.optimizations errors --run sm-ln-g    private passes of a trained run against PyTorch
    python -m benchmarks.optimizations together                "tuned" and what it leaves out, on one quiet machine
    python -m benchmarks.optimizations maxima --run sm-ln-g    how far apart the maxima of a head's rows lie

Each optimization is added to "as_written" alone, and left out of "tuned" alone (or added, where "tuned" lacks it).
`bytes` measures what results/two_party/ops.csv lacks into savings_ops.csv and writes savings.csv; `errors` writes
savings_errors.csv after every program. `together` measures all its operations into outside_tuned_ops.csv (half an
hour) and writes outside_tuned.csv. These go on where they were stopped. `maxima` writes row_maxima.csv.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero import checkpoint, records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import run_main
from aero.model import GPT
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import estimate
from aero.two_party.cost.cost_model import Operations
from aero.two_party.cost.counts import published_sizes
from aero.two_party.cost.measure import measure, measure_rounds
from aero.two_party.lattice.lookup import LEAST_VOCABULARY
from aero.two_party.program.cover import Cover
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.optimizations import OPTIMIZATIONS, TUNED, on_its_own, toggled
from aero.two_party.runtime.settings import Settings
from aero.two_party.serving import handshake
from aero.two_party.serving.answer import weights_sha256
from benchmarks.timing import replace_lines, write_lines

ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)", "SOTA(SM+ScFuFFN)")
FOLDER = Path("results/two_party")
ERRORS = FOLDER / "savings_errors.csv"
_OUTSIDE = tuple(f"+{name}" for name in OPTIMIZATIONS if name not in TUNED)
_BOUNDED = "tuned" + "".join(_OUTSIDE).replace("+wide_maxima", "")  # takes no maxima
_FEWER = tuple(_BOUNDED.replace(f"+bounded_{name}", "") for name in ("reciprocals", "logits"))
OUTSIDE_TUNED = ("tuned", *(f"tuned{name}" for name in _OUTSIDE), _BOUNDED, *_FEWER, "tuned" + "".join(_OUTSIDE[:-1]))
ERROR_KEY = ("architecture", "program", "scale", "tokens")
ERROR_COLUMNS = (*ERROR_KEY[:3], "prompts", "tokens", "max_logit_error", "same_top_token", "provenance")


def programs() -> list[str]:
    """Stock, every optimization alone, every one toggled in "tuned", and "tuned"."""
    return ["as_written", *map(on_its_own, OPTIMIZATIONS), *map(toggled, OPTIMIZATIONS), "tuned"]


def needed(parameters: Parameters) -> dict[tuple[str, str], dict[Operation, int]]:
    """Operations and counts of every row and program, without programs that change nothing for a row."""
    config, context = parameters.at_scale("laptop").two_party_model()
    found: dict[tuple[str, str], dict[Operation, int]] = {}
    for row in ROWS:
        counts = {program: dict(operations(parse(row), config, program, context)) for program in programs()}
        ends = {"as_written": counts["as_written"], "tuned": counts["tuned"]}
        found |= {(row, program): c for program, c in counts.items() if program in ends or c not in ends.values()}
    return found


def measure_bytes(parameters: Parameters, context: int) -> None:
    """Measure what is missing and compose the rows."""
    wanted = needed(parameters)
    files = [path for name in ("savings_ops.csv", "ops.csv") if (path := FOLDER / name).is_file()]
    measured = ledger.by_operation(row for path in files for row in ledger.read(path, ledger.Measurement))
    missing = {op for counts in wanted.values() for op in counts if (op.name, op.shape) not in measured}
    measured = measure_missing(missing, FOLDER / "savings_ops.csv", parameters, context) | measured
    lines = []
    for (row, program), counts in wanted.items():
        parts = [(count, ledger.find(measured, operation)) for operation, count in counts.items()]
        sent = sum(count * part.bytes for count, part in parts) + ledger.session_setup(part for _, part in parts)
        lines.append({"architecture": row, "program": program, "bytes": f"{sent:.0f}"})
    write_lines(FOLDER / "savings.csv", ("architecture", "program", "bytes"), lines)
    print(f"{len(lines)} rows: {FOLDER / 'savings.csv'}")


def measure_missing(
    wanted: set[Operation], path: Path, parameters: Parameters, context: int, with_rounds: bool = False
) -> dict[tuple[str, str], ledger.Measurement]:
    """Measurements of `wanted`, and of what else the file has: those that it lacks are made, small operations first,
    without seconds where others are of another machine."""
    own, settings = (ledger.read(path, ledger.Measurement) if path.is_file() else []), parameters.two_party.settings()
    known, machines = ledger.by_operation(own), {json.loads(row.provenance)["machine"] for row in own}
    missing = [op for op in wanted if (op.name, op.shape) not in known]
    missing.sort(key=lambda op: (sum(math.prod(shape) for shape in op.shapes), op))
    for first in range(0, len(missing), 4):
        some = missing[first : first + 4]  # in one session, after which they are written
        rounds = measure_rounds(some, Settings(**settings)) if with_rounds else None
        made = measure(some, "gpt2", context, Settings(**settings), 3, rounds)
        own += made if machines <= {records.machine()} else [replace(row, seconds=math.nan) for row in made]
        ledger.write(path, sorted(own, key=lambda row: row.key), ledger.Measurement)
        print(*(f"{one.name} {one.shape}" for one in some), sep="\n", flush=True)
    return ledger.by_operation(own)


def measure_together(parameters: Parameters, context: int) -> None:
    """Measure every operation of `OUTSIDE_TUNED`, and compose bytes, rounds, and seconds on loopback and on the WAN."""
    config, _ = parameters.at_scale("laptop").two_party_model()
    pairs = list(itertools.product(("SM+ScFuFFN", "SM+LN+R", "SM+LN+G"), OUTSIDE_TUNED))
    wanted = {one for row, program in pairs for one in operations(parse(row), config, program, context)}
    wanted |= {without_maxima(one) for one in wanted if one.kind == "exponentials"}
    measured = measure_missing(wanted, FOLDER / "outside_tuned_ops.csv", parameters, context, with_rounds=True)
    wan, lines = parameters.two_party.networks["wan"], []
    for row, program in pairs:
        cost = estimate(parse(row), published_sizes("gpt2", context), program, Operations(measured))
        left = {"bytes": cost.bytes, "rounds": cost.rounds}
        for one, count in operations(parse(row), config, program, context).items():
            if one.kind == "exponentials":
                pair = ledger.find(measured, one), ledger.find(measured, without_maxima(one))
                left["bytes"] -= count * (pair[0].bytes - pair[1].bytes)
                left["rounds"] -= count * (pair[0].rounds - pair[1].rounds)
        line = {"architecture": row, "program": program, "bytes": f"{cost.bytes:.0f}", "rounds": f"{cost.rounds:.1f}"}
        line |= {"seconds": f"{cost.seconds:.1f}", "wan_seconds": f"{cost.latency(wan):.1f}"}
        line |= {"rounds_without_maxima": f"{left['rounds']:.1f}", "bytes_without_maxima": f"{left['bytes']:.0f}"}
        lines.append(line)
    write_lines(FOLDER / "outside_tuned.csv", list(lines[0]), lines)


def measure_maxima(run: str, model: GPT, ids: torch.Tensor) -> None:
    """By layer, the largest difference in nats of the maxima of one head's rows: of all positions, and of one."""
    seen: list[torch.Tensor] = []
    for block in model.blocks:
        block.attention.register_forward_pre_hook(lambda attention, given: seen.append(attention.matrices(given[0])[1]))
    model(ids)
    made, lines = ledger.as_json(**records.provenance(weights=weights_sha256(model), measured=records.now())), []
    for layer, logits in enumerate(seen, 1):
        top = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -torch.inf).amax(-1)  # (B, H, T)
        spreads = (f"{float((top.amax(over) - top.amin(over)).max()):.2f}" for over in ((0, 2), 0))
        line = {"run": run, "prompts": len(ids), "tokens": ids.shape[1], "layer": layer}
        lines.append(line | dict(zip(("all_positions", "one_position"), spreads, strict=True)) | {"provenance": made})
    replace_lines(FOLDER / "row_maxima.csv", list(lines[0]), lines, "run")


def without_maxima(exponentials: Operation) -> Operation:
    """The operation without the maxima of the rows. Its cost bounds that of any way to find or to avoid maxima."""
    (heads, rows, columns), constants = exponentials.shapes[0], dict(exponentials.constants)
    entries = heads * Cover(rows, columns, int(constants["blocks"])).entries
    kept = tuple((name, value) for name, value in exponentials.constants if name == "narrow")
    return Operation("split_exponential", ((entries,),), kept)


def measure_errors(parameters: Parameters, model: GPT, ids: torch.Tensor, chosen: list[str]) -> None:
    """Private passes of a trained run by every program, against its PyTorch logits."""
    plain = model(ids)[:, -1].numpy()
    vocabulary = model.config.vocabulary
    scale = parameters.scale if vocabulary < LEAST_VOCABULARY else f"{parameters.scale}, V={vocabulary}"
    made = {"weights": weights_sha256(model), "code": handshake.versions()["code"]}
    for program in chosen:
        key = dict(zip(ERROR_KEY, (str(model.architecture), program, scale, str(ids.shape[1])), strict=True))
        same = [line for line in records.read_csv(ERRORS) if key.items() <= line.items()]
        if same and made.items() <= json.loads(same[0]["provenance"]).items() and int(same[0]["prompts"]) >= len(ids):
            continue
        settings, answers = Settings(**parameters.two_party.settings()), []
        for part in ids.split(20):  # prompts of a session
            answers += ask(model, part.numpy(), program, settings)
        pairs = list(zip(answers, plain, strict=True))
        worst = max(float(np.abs(answer.logits - logits).max()) for answer, logits in pairs)
        top = sum(int(answer.logits.argmax() == logits.argmax()) for answer, logits in pairs)
        found: dict[str, Any] = {"prompts": len(ids), "max_logit_error": f"{worst:.5f}", "same_top_token": top}
        found["provenance"] = ledger.as_json(**records.provenance(**made, measured=records.now()))
        replace_lines(ERRORS, ERROR_COLUMNS, [key | found], *ERROR_KEY)
        print(f"{key['architecture']} {program}: error {worst:.4f}, same top token {top}/{len(ids)}", flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizations", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("bytes", "errors", "together", "maxima"))
    parser.add_argument("--run", default="sm-scfuffn", help="a trained run of the pipeline (errors, maxima)")
    parser.add_argument("--programs", nargs="+", help="default: all (errors)")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each prompt (errors, maxima)")
    given = parser.parse_args(arguments)
    parameters = load()
    _, context = parameters.at_scale("laptop").two_party_model()
    if given.what == "bytes":
        measure_bytes(parameters, context)
    elif given.what == "together":
        measure_together(parameters, context)
    else:
        parameters.run(given.run)
        model = checkpoint.load(parameters.folder(given.run, parameters.seeds[0]) / "checkpoint.safetensors")
        valid, context = open_tokens(Path("runs/tokens")).valid, model.config.context
        ids = next(iter(evaluation_batches(valid, context, given.prompts, given.prompts * context)))[:, : given.tokens]
        with torch.no_grad():
            if given.what == "maxima":
                measure_maxima(given.run, model, ids)
            else:
                measure_errors(parameters, model, ids, given.programs or programs())


if __name__ == "__main__":
    run_main(main)
