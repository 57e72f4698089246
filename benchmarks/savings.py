"""What every saving of `aero.two_party.program.optimizations` is worth, alone and together: bytes, seconds, logit
error.

    python -m benchmarks.savings bytes                   operations at GPT-2's dimensions, composed to rows
    python -m benchmarks.savings errors --run sm-ln-g    private passes of a trained model of params.yaml's scale

Each saving is added to "as_written" alone, and left out of "tuned" alone or, where "tuned" lacks it, added to it;
fewer_squarings in the place of split_exponential.
`bytes` measures the operations that results/two_party/ops.csv lacks into savings_ops.csv, going on where it stopped,
and writes savings.csv; `errors` writes savings_errors.csv every few prompts and goes on likewise.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero import checkpoint, records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import UserError, run_main
from aero.model import GPT
from aero.records import csv_text, run_folder, write_text
from aero.two_party.cost import ledger
from aero.two_party.cost.measure import measure
from aero.two_party.lattice.lookup import LEAST_VOCABULARY
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.optimizations import OPTIMIZATIONS, toggled
from aero.two_party.runtime.settings import Settings
from aero.two_party.serving import handshake as hello
from aero.two_party.serving.answer import weights_sha256

ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)", "SOTA(SM+ScFuFFN)")
FOLDER = Path("results/two_party")
ERRORS = FOLDER / "savings_errors.csv"
CHUNK = 20
"""Prompts of one session: what a kill can lose."""
ERROR_COLUMNS = (
    "architecture",
    "program",
    "scale",
    "prompts",
    "tokens",
    "max_logit_error",
    "same_top_token",
    "provenance",
)


def programs() -> list[str]:
    """Both ends, every saving alone, every one left out of, or added to, "tuned". absorbed_ffn is nothing without
    folded_ffn."""
    alone = [name if name != "absorbed_ffn" else "folded_ffn+absorbed_ffn" for name in OPTIMIZATIONS]
    return ["as_written", *(f"as_written+{n}" for n in alone), *map(toggled, OPTIMIZATIONS), "tuned"]


def of_rows(parameters: Parameters) -> dict[tuple[str, str], dict[Operation, int]]:
    """Operations and counts of every row and program, programs that come to the same for a row left out."""
    config, context = parameters.at_scale("laptop").two_party_model()
    found: dict[tuple[str, str], dict[Operation, int]] = {}
    for row in ROWS:
        counts = {program: dict(operations(parse(row), config, program, context)) for program in programs()}
        ends = {"as_written": counts["as_written"], "tuned": counts["tuned"]}
        found |= {(row, program): c for program, c in counts.items() if program in ends or c not in ends.values()}
    return found


def measure_bytes(parameters: Parameters) -> None:
    """Measure what is missing, cheap operations first, and compose the rows that are complete."""
    wanted = of_rows(parameters)
    variant, context = parameters.two_party.variant(), parameters.at_scale("laptop").two_party_model()[1]
    path = FOLDER / "savings_ops.csv"
    own = ledger.read(path, ledger.Measurement) if path.is_file() else []
    measured = ledger.by_operation([*own, *ledger.read(FOLDER / "ops.csv", ledger.Measurement)])
    if {row.variant for row in measured.values()} != {variant}:
        raise UserError(f"{FOLDER} holds operations of other settings than {variant}; measure ops.csv again")
    missing = {op for counts in wanted.values() for op in counts if (op.name, op.shape) not in measured}

    def keep(row: ledger.Measurement) -> None:
        own.append(row)
        ledger.write(path, sorted(own, key=lambda each: each.key), ledger.Measurement)
        print(f"{row.op} {row.shape}: {row.bytes / 1e6:.2f} MB", flush=True)

    if missing:
        cheap_first = sorted(missing, key=lambda op: (sum(math.prod(shape) for shape in op.shapes), op))
        settings = Settings(**parameters.two_party.settings())
        measure(cheap_first, "gpt2", context, variant, settings, runs=3, on_measured=keep, rounds_runs=0)
    measured = ledger.by_operation([*own, *ledger.read(FOLDER / "ops.csv", ledger.Measurement)])
    lines = ["architecture,program,bytes,seconds"]
    for (row, program), counts in wanted.items():
        try:
            parts = [(count, ledger.find(measured, operation)) for operation, count in counts.items()]
        except ValueError:
            continue
        sent = sum(count * part.bytes for count, part in parts) + ledger.session_setup(part for _, part in parts)
        lines.append(f"{row},{program},{sent:.0f},{sum(count * part.seconds for count, part in parts):.1f}")
    write_text(FOLDER / "savings.csv", "\n".join(lines) + "\n")
    print(f"{len(lines) - 1} of {len(wanted)} rows: {FOLDER / 'savings.csv'}")


def measure_errors(parameters: Parameters, run: str, chosen: list[str], prompts: int, tokens: int) -> None:
    """Private passes of a trained run by every program, against its PyTorch logits.

    A line a program, written anew after every `CHUNK` prompts: a killed run leaves what it had measured, and the same
    command goes on from there if the code, the run and the prompts are the same.
    """
    model = checkpoint.load(run_folder(run, parameters.seeds[0]) / "checkpoint.safetensors")
    held_out = evaluation_batches(
        open_tokens(Path("runs/tokens")).valid, model.config.context, prompts, prompts * model.config.context
    )
    ids = next(iter(held_out))[:, :tokens]
    with torch.no_grad():
        plain = model(ids)[:, -1].numpy()
    for program in chosen:
        key = (str(model.architecture), program, scale_of(model, parameters), str(ids.shape[1]))
        against_torch(model, ids, plain, key, parameters.two_party.settings())


def scale_of(model: GPT, parameters: Parameters) -> str:
    """The scale, and the vocabulary where it is one that `lattice_lookup` looks up, as that of no kept scale is."""
    vocabulary = model.config.vocabulary
    return parameters.scale if vocabulary < LEAST_VOCABULARY else f"{parameters.scale}, V={vocabulary}"


def against_torch(
    model: GPT, ids: torch.Tensor, plain: np.ndarray, key: tuple[str, ...], settings: Mapping[str, Any]
) -> None:
    """Private passes of the prompts (P, T) against the last logits (P, V) of PyTorch, `CHUNK` at a time.

    key: the architecture, the program, the scale and T, by which the file knows the line.
    """
    weights = weights_sha256(model)
    done, worst, same = resumed(key, weights)
    while done < len(ids):
        part = slice(done, min(done + CHUNK, len(ids)))
        answers, _ = ask(model, ids[part].numpy(), key[1], Settings(**settings))
        for answer, logits in zip(answers, plain[part], strict=True):
            worst = max(worst, float(np.abs(answer.logits - logits).max()))
            same += int(answer.next_token == logits.argmax())
        done += len(answers)
        keep_errors(key, weights, done, worst, same)
        print(f"{key[0]} {key[1]}: error {worst:.4f}, same top token {same}/{done}", flush=True)


def resumed(key: tuple[str, ...], weights: str) -> tuple[int, float, int]:
    """Prompts, largest error and same top tokens of the line of `key`, if the same private code wrote it of these
    weights (the same training on another kind of processor has others); else 0, 0, 0.
    """
    for line in error_lines():
        made = json.loads(line["provenance"])
        if error_key(line) == key and (made.get("code"), made.get("weights")) == (hello.versions()["code"], weights):
            return int(line["prompts"]), float(line["max_logit_error"]), int(line["same_top_token"])
    return 0, 0.0, 0


def keep_errors(key: tuple[str, ...], weights: str, prompts: int, worst: float, same: int) -> None:
    """Put the line of `key` into the file, in the place of an earlier one. weights: `weights_sha256` of the model."""
    known = {"weights": weights, "code": hello.versions()["code"], "measured": records.now()}
    made = json.dumps(records.provenance(**known), separators=(",", ":"))
    values = (*key[:3], prompts, key[3], f"{worst:.5f}", same, made)
    line = dict(zip(ERROR_COLUMNS, values, strict=True))
    rest = [one for one in error_lines() if error_key(one) != key]
    write_text(ERRORS, csv_text(ERROR_COLUMNS, [*rest, line]))


def error_lines() -> list[dict[str, str]]:
    if not ERRORS.is_file():
        return []
    with ERRORS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def error_key(line: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line[name] for name in ("architecture", "program", "scale", "tokens"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.savings", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("bytes", "errors"))
    parser.add_argument("--run", default="sm-scfuffn", help="a trained run of the pipeline (errors)")
    parser.add_argument("--programs", nargs="+", default=None, help="default: all (errors)")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each prompt (errors)")
    given = parser.parse_args(arguments)
    parameters = load()
    if given.what == "bytes":
        measure_bytes(parameters)
    else:
        parameters.run(given.run)
        measure_errors(parameters, given.run, given.programs or programs(), given.prompts, given.tokens)


if __name__ == "__main__":
    run_main(main)
