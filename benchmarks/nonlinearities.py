"""Private costs of nonlinear functions that rows of the papers lack, beside those that they have.

    python -m benchmarks.nonlinearities

One layer at GPT-2's size, T=128, by SPU's own functions and, where "tuned" has them, by the optimised ones: a norm of
(T, d), attention weights from (H, T, T) logits, an activation of (T, 4d). Bytes and seconds are of one session, rounds
of ops.csv where it has them. The error is the largest deviation from the function in the clear, on normal arguments.
Writes results/two_party/nonlinearities.csv; more than twenty minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aero import records
from aero.config import load
from aero.errors import run_main
from aero.two_party.cost import ledger
from aero.two_party.cost.measure import arguments, measure, measure_rounds, place
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.settings import CLIENT, Settings
from benchmarks.timing import write_lines

OUT = Path("results/two_party/nonlinearities.csv")
COLUMNS = ("place", "function", "program", "operations", "shape", "bytes", "rounds", "seconds", "error")
COLUMNS += ("load", "measured", "commit", "machine")
STOCK, OPTIMISED = "as_written", "tuned"
BLOCKS = 16
"""Of the cover of "tuned" at T=128."""


def errors_task(party: Party, wanted: Sequence[Operation]) -> list[float]:
    """In a party process: the largest error of every operation, at the client."""
    found = []
    for one in wanted:
        names = place(party, one)
        party.run(one.function(), names, ["y"])
        result = party.reveal("y", to=CLIENT)
        if party.rank == CLIENT:
            found.append(float(np.abs(result - np.asarray(one.function()(*arguments(one)))).max()))
        for name in names:
            party.drop(name)
    return found


def functions(heads: int, context: int, width: int, ffn: int) -> list[tuple[str, str, str, tuple[Operation, ...]]]:
    """(place, function, program, operations): SPU's own, and what "tuned" does instead."""
    norm, logits, hidden = ((context, width),), ((heads, context, context),), ((context, ffn),)
    vector, values = (width,), ((heads, context, width // heads), (heads, context))
    cover = (("blocks", BLOCKS), ("split", 1))
    softmax = (Operation("exponentials", logits, cover), Operation("inverse_sums", logits))
    return [
        ("norm", "LayerNorm", STOCK, (Operation("layer_norm", (*norm, vector, vector)),)),
        ("norm", "LayerNorm", OPTIMISED, (Operation("normalise_tiles", norm),)),
        ("norm", "RMSNorm", STOCK, (Operation("rms_norm", (*norm, vector)),)),
        ("norm", "RMSNorm", OPTIMISED, (Operation("rms_normalise_tiles", norm),)),
        ("norm", "DyT", STOCK, (Operation("tanh_norm", (*norm, (), vector, vector)),)),
        ("norm", "DyT with hard tanh", STOCK, (Operation("hard_tanh_norm", (*norm, (), vector, vector)),)),
        ("attention", "softmax", STOCK, (Operation("softmax_plain", logits),)),
        ("attention", "softmax", OPTIMISED, (*softmax, Operation("scale_row_tiles", values))),
        ("attention", "sigmoid", STOCK, (Operation("sigmoid_attention", logits),)),
        ("attention", "ConSmax", STOCK, (Operation("consmax", (*logits, (heads, 1, 1))),)),
        ("attention", "ReLU", STOCK, (Operation("relu_attention", logits),)),
        ("activation", "GELU", STOCK, (Operation("gelu_plain", hidden),)),
        ("activation", "GELU", OPTIMISED, (Operation("gelu_segments", hidden),)),
        ("activation", "SiLU", STOCK, (Operation("silu", hidden),)),
        ("activation", "SiLU", OPTIMISED, (Operation("silu_segments", hidden),)),
        ("activation", "squared ReLU", STOCK, (Operation("squared_relu", hidden),)),
        ("activation", "ReLU", STOCK, (Operation("relu", hidden),)),
    ]


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nonlinearities", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="laptop", help="laptop: GPT-2 small at T=128; smoke: a small model")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(given)
    parameters = load().at_scale(chosen.scale)
    config, context = parameters.two_party_model()
    groups = functions(config.heads, context, config.width, config.ffn_width)
    wanted = [one for *_, needed in groups for one in needed]
    settings, before = Settings(**parameters.two_party.settings()), os.getloadavg()[1]
    known = ledger.by_operation(ledger.read(OUT.with_name("ops.csv"), ledger.Measurement))
    rounds = {one: known[one.name, one.shape].rounds for one in wanted if (one.name, one.shape) in known}
    rounds |= measure_rounds([one for one in wanted if one not in rounds], settings)
    costs = measure(wanted, "gpt2", context, parameters.two_party.variant(), settings, 1, rounds)
    measured = dict(zip(wanted, costs, strict=True))
    errors = dict(zip(wanted, run_parties(errors_task, wanted, wanted, settings)[CLIENT], strict=True))
    lines = []
    for where, name, program, needed in groups:
        found = [measured[one] for one in needed]
        line = {"place": where, "function": name, "program": program}
        line |= {"operations": " + ".join(one.name for one in needed), "shape": needed[0].shape}
        line |= {"bytes": round(sum(one.bytes for one in found)), "rounds": round(sum(one.rounds for one in found), 1)}
        line |= {"seconds": round(sum(one.seconds for one in found), 2)}
        line |= {"error": float(f"{max(errors[one] for one in needed):.2g}"), "load": round(before, 2)}
        lines.append(line | {"measured": records.now()} | records.provenance())
        print(f"{where}, {name}, {program}: {line['bytes'] / 1e6:.1f} MB, {line['rounds']} rounds, {line['seconds']} s")
    write_lines(chosen.out, COLUMNS, lines)


if __name__ == "__main__":
    run_main(main)
