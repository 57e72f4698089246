"""Complete private forward passes of one trained run: `python -m stages.end_to_end RUN`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from aero import checkpoint, records
from aero.config import load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import UserError, run_main, seed_number
from aero.records import run_folder, write_text
from aero.two_party.program.end_to_end import ask, composed_bytes
from aero.two_party.program.forward import operations
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.settings import Settings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.end_to_end", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    parser.add_argument("--tokens", type=Path, default=Path("runs/tokens"), help="folder of token files")
    parser.add_argument("--out", type=Path, help="default: runs/two_party/passes/RUN.json")
    chosen = parser.parse_args(arguments)
    parameters = load()
    parameters.run(chosen.run)
    out = chosen.out or Path("runs/two_party/passes") / f"{chosen.run}.json"
    if chosen.run not in parameters.active.end_to_end_runs:
        write_text(out, "[]\n")
        print(f"{chosen.run}: no private pass at the {parameters.scale} scale (its end_to_end_runs)")
        return
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    model = checkpoint.load(run_folder(chosen.run, seed) / "checkpoint.safetensors")
    config, count = model.config, parameters.two_party.prompts
    tokens = open_tokens(chosen.tokens, verify=True)
    held_out = evaluation_batches(
        tokens.valid, config.context, count, count * config.context, parameters.corpus_called(None).packing
    )
    prompts = next(iter(held_out))
    with torch.no_grad():
        plain = model(prompts)[:, -1].numpy()
    if not np.isfinite(plain).all():
        raise UserError(
            f"{chosen.run} diverged, so it has no logits to compare; choose other two_party.end_to_end_runs"
        )
    entries = []
    for named in parameters.active.end_to_end_programs:
        program = within_budget(model, named)
        answers, alone = ask(
            model,
            prompts.numpy(),
            program,
            Settings(**parameters.two_party.settings()),
            operation_runs=1 if parameters.active.two_party == "own" else 3,
        )
        whole = sum(answer.bytes for answer in answers) / len(answers)
        composed = composed_bytes(operations(model.architecture, config, program, prompts.shape[1]), alone)
        entries.append(
            {
                "run": chosen.run,
                "architecture": str(model.architecture),
                "program": named,
                "computed_as": program,
                "scale": parameters.scale,
                "prompts": len(answers),
                "tokens": prompts.shape[1],
                "max_logit_error": float(max(abs(a.logits - p).max() for a, p in zip(answers, plain, strict=True))),
                "same_top_token": sum(a.next_token == int(p.argmax()) for a, p in zip(answers, plain, strict=True)),
                "megabytes": whole / 1e6,
                "composed_megabytes": composed / 1e6,
                "composed_over_measured": composed / whole,
                "messages": sum(answer.messages for answer in answers) / len(answers),
                "seconds": sum(answer.seconds for answer in answers) / len(answers),
                "provenance": records.provenance(measured=records.now(), settings=parameters.two_party.variant()),
            }
        )
    write_text(out, json.dumps(entries, indent=1, allow_nan=False) + "\n")
    for entry in entries:
        print(
            f"{entry['architecture']} {entry['program']}: error {entry['max_logit_error']:.4f}, "
            f"{entry['megabytes']:.1f} MB, {entry['seconds']:.1f} s"
        )


if __name__ == "__main__":
    run_main(main)
