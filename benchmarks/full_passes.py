"""Complete private passes at the papers' own size (GPT-2 small, 12 layers, T = 128), beside their composition.

    python -m benchmarks.full_passes SM+ScFuFFN SM+LN+R SM+LN+G --programs tuned as_written
    python -m benchmarks.full_passes                        # compose all entries again

A pass takes 1 to 45 minutes; its seconds count only on an idle machine. Weights are random, and change no bytes.
Appends to full_passes.json and skips what is there. Compositions use ops.csv and savings_ops.csv, or --operations.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero import records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import run_main
from aero.model import GPT
from aero.two_party.cost import ledger
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.forward import operations
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.settings import VARIANT, Settings

PATH = Path("results/two_party/full_passes.json")
OPERATIONS = ("savings_ops.csv", "ops.csv")  # a later file takes precedence
SEED = 1337
SPREAD = 2.0  # times the recipe's standard deviation
RECEIVE_TIMEOUT_S = 1800  # a party may encode a layer's weights for minutes before it sends again


def random_model(row: str, parameters: Parameters) -> GPT:
    """`row` at GPT-2 small's dimensions, with random weights."""
    config, _ = parameters.two_party_model()
    torch.manual_seed(SEED)
    model = GPT(parse(row), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and any(part in name for part in ("embedding", "query", "key")):
                parameter.mul_(SPREAD)
    return model


def full_pass(row: str, named: str, parameters: Parameters) -> dict[str, Any]:
    """One pass of `row` by the program `named`, against PyTorch."""
    config, context = parameters.two_party_model()
    model = random_model(row, parameters)
    prompt = np.random.default_rng(SEED).integers(0, config.vocabulary, (1, context))
    with torch.no_grad():
        plain = model(torch.from_numpy(prompt))[0, -1].numpy()
    program, load_before = within_budget(model, named), os.getloadavg()[1]
    settings = Settings(**parameters.two_party.settings() | {"receive_timeout_s": RECEIVE_TIMEOUT_S})
    (answer,) = ask(model, prompt, program, settings)
    found = {"architecture": row, "program": named, "computed_as": program, "layers": config.layers}
    found |= {"width": config.width, "tokens": context, "vocabulary": config.vocabulary}
    found |= {"max_logit_error": float(np.abs(answer.logits - plain).max())}
    found |= {"logits_standard_deviation": float(plain.std())}
    found |= {"same_top_token": int(answer.logits.argmax() == int(plain.argmax()))}
    found |= {name: getattr(answer, name) for name in ("bytes_client", "bytes_server", "messages", "seconds")}
    found |= {"load_before": round(load_before, 2), "load_after": round(os.getloadavg()[2], 2)}
    made = records.provenance(measured=records.now(), settings=VARIANT)
    return found | {"provenance": made}


def composed(entry: dict[str, Any], parameters: Parameters) -> dict[str, Any]:
    """`entry` with the sum of its operations measured alone; None where one of them was not measured."""
    config, context = parameters.two_party_model()
    counts = operations(parse(entry["architecture"]), config, entry["computed_as"], context)
    own = entry.get("operations_file")
    paths = [path for name in ([own] if own else OPERATIONS) if (path := PATH.with_name(name)).is_file()]
    measured = ledger.by_operation(row for path in paths for row in ledger.read(path, ledger.Measurement))
    missing = [f"{one.name} {one.shape}" for one in counts if (one.name, one.shape) not in measured]
    parts = [] if missing else [(count, ledger.find(measured, one)) for one, count in counts.items()]
    whole = entry | {"bytes": entry["bytes_client"] + entry["bytes_server"]}
    found: dict[str, Any] = {"not_measured_alone": missing}
    for what in ("bytes", "messages", "seconds"):
        total = round(sum(count * getattr(one, what) for count, one in parts), 3)
        value = total if parts and math.isfinite(total) else None  # seconds may be NaN
        found |= {f"composed_{what}": value, f"composed_over_measured_{what}": value and value / whole[what]}
    times = sorted(json.loads(one.provenance).get("measured", "") for _, one in parts)
    return entry | found | {"operations_measured": [*times[:1], *times[-1:]]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_passes", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=lambda text: str(parse(text)), help='such as "SM+ScFuFFN"')
    parser.add_argument("--programs", nargs="+", default=["tuned", "as_written"])
    parser.add_argument("--operations", help="file of operations in results/two_party to compose the new passes of")
    given = parser.parse_args(arguments)
    parameters = load().at_scale("laptop")
    entries: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else []

    def write() -> None:
        content = [composed(entry, parameters) for entry in entries]
        records.write_text(PATH, json.dumps(content, indent=1, allow_nan=False) + "\n")

    for row, program in itertools.product(given.rows, given.programs):
        if any((one["architecture"], one["program"]) == (row, program) for one in entries):
            print(f"{row} {program}: already measured")
            continue
        entries.append(entry := full_pass(row, program, parameters))
        entry |= {"operations_file": given.operations} if given.operations else {}
        write()
        gigabytes = (entry["bytes_client"] + entry["bytes_server"]) / 1e9
        print(f"{row} {program}: error {entry['max_logit_error']:.4f}, {gigabytes:.3f} GB, {entry['seconds']:.0f} s")
    if entries:
        write()


if __name__ == "__main__":
    run_main(main)
