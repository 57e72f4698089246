"""Measure parallel context encoding: `python -m stages.parallel_context [--seed SEED]` for the decoder trained here,
`--model PATH --data FOLDER` for a Llama, Mistral or Qwen2 (docs/parallel_context.md).

Writes one JSON file, by default runs/parallel_context/seed_SEED/measured.json or runs/parallel_context/MODEL.json. A
partial measurement (--tasks, --segments) needs --out, so that it does not replace a complete one.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch

from aero import records
from aero.config import load
from aero.errors import UserError, run_main, seed_number
from aero.parallel_context import prepare
from aero.parallel_context.experiment import possible, rows_of
from aero.parallel_context.settings import TASKS, settings
from aero.records import write_text
from aero.training.distributed import default_device


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context", description=__doc__)
    parser.add_argument("--seed", type=seed_number, help="default: the first of parallel_context.seeds")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: the corpus's)")
    parser.add_argument("--out", type=Path, help="file to write")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--segments", nargs="+", type=int, help="P; default: those of the scale")
    other = parser.add_argument_group("another model than the one trained here")
    other.add_argument("--model", help="folder or name of a Llama, Mistral or Qwen2 of Hugging Face")
    other.add_argument("--data", type=Path, help="folder of benchmark files (docs/parallel_context.md)")
    other.add_argument("--attention", default="sdpa", help="attention implementation to load it with")
    other.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    other.add_argument("--context", type=int, default=8192, help="tokens of context of every task")
    other.add_argument("--predicted", type=int, default=1024, help="scored tokens of language modelling")
    other.add_argument("--examples", type=int, default=100, help="examples of every file")
    chosen = parser.parse_args(arguments)
    parameters = load()
    section, scale = settings(parameters), chosen.scale or parameters.scale
    usual = sorted(set(section.at(scale).segments))
    segments = sorted(set(chosen.segments or usual))
    part = set(chosen.tasks) != set(TASKS) or segments != usual
    if chosen.out is None and part:
        raise UserError("--tasks and --segments measure a part of what the report needs: name a file for it with --out")
    seed, device = section.seeds[0] if chosen.seed is None else chosen.seed, default_device()
    folder = Path("runs/parallel_context")
    origin, clock = records.provenance(torch=torch.__version__, started=records.now()), time.monotonic()
    if chosen.model:
        if chosen.data is None:
            raise UserError("--model needs --data, a folder of benchmark files (docs/parallel_context.md)")
        out = folder / f"{Path(chosen.model).name.lower()}.json"
        ready = prepare.hugging_face_model(
            chosen.model, chosen.data, device, chosen.tasks, attention=chosen.attention, dtype=chosen.dtype,
            context=chosen.context, predicted=chosen.predicted, examples=chosen.examples,
        )  # fmt: skip
    else:
        out = folder / f"seed_{seed}/measured.json"
        ready = prepare.own_model(out.parent, section, section.at(scale), device, chosen.tokens)
    out = chosen.out or out
    tasks = [task.to(device) for task in ready.tasks if task.name in chosen.tasks]
    left_out = {task.name: possible(task, segments)[1] for task in tasks}  # UserError before anything is measured
    rows = []
    others = {name: ready.prefix(text).to(device) for name, text in section.ablation.sinks.items()}
    for task in tasks:
        sink = ready.prefix(ready.sinks[task.name]).to(device)
        rows += rows_of(ready.model, task, segments, section, sink, others, partial(print, flush=True))
    full = [r["score"] for r in rows if r["task"] == "synthetic" and r["segments"] == 1 and not r["sink"]]
    result = ready.description | {
        "segments": segments,
        "part": part,
        "selection": section.selection.model_dump(),
        "tasks": {
            task.name: {"units": task.units, "left_out": left_out[task.name], "description": task.description}
            for task in tasks
        },
        "solves_retrieval": bool(full and full[0] >= 100 * section.required),
        "rows": rows,
        "provenance": origin | {"seconds": round(time.monotonic() - clock, 1), "device": str(device)},
    }
    write_text(out, json.dumps(result, indent=1, allow_nan=False) + "\n")
    print(f"{out}: {len(rows)} measurements, {result['provenance']['seconds']:.0f} s")
    if full and not result["solves_retrieval"]:
        print(f"note: full attention answers {full[0]:.1f} % of key-value retrieval, less than {section.required:.0%}")


if __name__ == "__main__":
    run_main(main)
