"""Complete private passes of trained runs, against their PyTorch logits: `python -m stages.end_to_end [RUN...]`.

Writes runs/two_party/end_to_end.json. The scale's committed passes of other runs and programs are added.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from aero import checkpoint, records
from aero.config import Parameters, load
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens
from aero.errors import UserError, run_main, seed_number, text_of
from aero.records import write_text
from aero.two_party.cost.counts import OWN
from aero.two_party.cost.measure import measure_task
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.forward import operations
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import VARIANT, Settings

COMMITTED = Path("results/two_party/end_to_end.json")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.end_to_end", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="trained runs (default: two_party.end_to_end_runs)")
    parser.add_argument("--programs", nargs="+", help="default: two_party.end_to_end_programs")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    parser.add_argument("--tokens", type=Path, default=Path("runs/tokens"), help="folder of token files")
    parser.add_argument("--out", type=Path, default=Path("runs/two_party/end_to_end.json"))
    chosen = parser.parse_args(arguments)
    parameters = load()
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    entries = {}
    for path in (COMMITTED, chosen.out):
        if path.is_file():
            found = json.loads(text_of(path))
            entries |= {(e["run"], e["program"]): e for e in found if e["scale"] == parameters.scale}
    for run in chosen.runs or parameters.two_party.end_to_end_runs:
        parameters.run(run)
        model = checkpoint.load(parameters.folder(run, seed) / "checkpoint.safetensors")
        for program in chosen.programs or parameters.two_party.end_to_end_programs:
            entry = entries[run, program] = passes(parameters, run, model, program, chosen.tokens)
            print(
                f"{entry['architecture']} {program}: error {entry['max_logit_error']:.4f}, "
                f"{entry['megabytes']:.1f} MB, {entry['seconds']:.1f} s",
                flush=True,
            )
    write_text(chosen.out, json.dumps(list(entries.values()), indent=1, allow_nan=False) + "\n")


def passes(parameters: Parameters, run: str, model: Any, named: str, folder: Path) -> dict[str, Any]:
    """Bytes, seconds and errors of the passes of a run's model with one program. UserError if the run diverged."""
    config, count = model.config, parameters.two_party.prompts
    tokens = open_tokens(folder)
    held_out = evaluation_batches(
        tokens.valid, config.context, count, count * config.context, parameters.corpus_called(None).packing
    )
    prompts = next(iter(held_out))
    with torch.no_grad():
        plain = model(prompts)[:, -1].numpy()
    if not np.isfinite(plain).all():
        raise UserError(f"{run} diverged, so it has no logits to compare; choose other two_party.end_to_end_runs")
    program = within_budget(model, named)
    settings = Settings(**parameters.two_party.settings())
    answers = ask(model, prompts.numpy(), program, settings)
    whole = sum(answer.bytes for answer in answers) / len(answers)
    counts = operations(model.architecture, config, program, prompts.shape[1])
    # Refills of oblivious transfers and of Beaver triples fall into some runs only: a mean shows their share.
    request = {"operations": sorted(counts), "runs": 1 if parameters.active.two_party == OWN else 9}
    (_, alone, _), _ = run_parties(measure_task, request, request, settings)
    composed = sum(count * fmean(run.bytes for run in alone[operation]) for operation, count in counts.items())
    return {
        "run": run,
        "architecture": str(model.architecture),
        "program": named,
        "computed_as": program,
        "scale": parameters.scale,
        "prompts": len(answers),
        "tokens": prompts.shape[1],
        "max_logit_error": float(max(abs(a.logits - p).max() for a, p in zip(answers, plain, strict=True))),
        "same_top_token": sum(int(a.logits.argmax()) == int(p.argmax()) for a, p in zip(answers, plain, strict=True)),
        "megabytes": whole / 1e6,
        "composed_megabytes": composed / 1e6,
        "composed_over_measured": composed / whole,
        "messages": sum(answer.messages for answer in answers) / len(answers),
        "seconds": sum(answer.seconds for answer in answers) / len(answers),
        "provenance": records.provenance(measured=records.now(), settings=VARIANT),
    }


if __name__ == "__main__":
    run_main(main)
