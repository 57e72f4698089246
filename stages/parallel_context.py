"""Parallel context encoding, measured: `python -m stages.parallel_context [--seed SEED]` for the decoder trained here,
`--model PATH --data FOLDER` for a Llama, Mistral or Qwen2 (docs/parallel_context.md).

Writes one JSON file, by default runs/parallel_context/seed_SEED/measured.json, or runs/parallel_context/MODEL.json. A
measurement of some of it (--tasks, --segments) needs --out: it must not take the place of a whole one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.checkpoint import load as load_checkpoint
from aero.config import load
from aero.data.tokenizer import tokenizer_of
from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import UserError, json_file, run_main, seed_number
from aero.parallel_context import benchmarks
from aero.parallel_context.encoding import Model
from aero.parallel_context.experiment import Task, possible, rows_of, text_prefix
from aero.parallel_context.own_model import OwnModel
from aero.parallel_context.settings import TASKS, ParallelContextSettings, settings
from aero.parallel_context.tasks import Batch, EpisodeTask, TextTask, Vocabulary, make_episode_tasks
from aero.records import write_text
from aero.training.processes import default_device

METRICS = {"lm": "perplexity", "icl": "accuracy", "rag": "substring match", "synthetic": "substring match"}


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
    section = settings(parameters)
    usual = section.at(chosen.scale or parameters.scale).segments
    segments = sorted(set(chosen.segments or usual))
    part = set(chosen.tasks) != set(TASKS) or segments != sorted(set(usual))
    if chosen.out is None and part:
        raise UserError(
            f"--tasks {' '.join(chosen.tasks)} --segments {' '.join(map(str, segments))} measures a part of what the"
            " report needs: name a file for it with --out"
        )
    origin = records.provenance(torch=torch.__version__, started=records.now())  # the commit that measures
    clock = time.monotonic()
    if chosen.model:
        model, tasks, result, prefixes, default_out = _other_model(chosen, section)
    else:
        model, tasks, result, prefixes, default_out = _own_model(chosen, section, chosen.scale or parameters.scale)
    device = result.pop("device")
    tasks = [_on(task, device) for task in tasks if task.name in chosen.tasks]
    left_out = {task.name: possible(task, segments)[1] for task in tasks}  # refused before anything is measured
    rows = []
    for task in tasks:
        sinks = {name: prefix.to(device) for name, prefix in prefixes[task.name].items()}
        rows += rows_of(model, task, segments, section, sinks.pop("sink"), sinks, partial(print, flush=True))
    full = [r["score"] for r in rows if r["task"] == "synthetic" and r["segments"] == 1 and not r["sink"]]
    result |= {
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
    out = chosen.out or default_out
    write_text(out, json.dumps(result, indent=1, allow_nan=False) + "\n")
    print(f"{out}: {len(rows)} measurements, {result['provenance']['seconds']:.0f} s")
    if full and not result["solves_retrieval"]:
        print(f"note: full attention solves {full[0]:.1f} % of key-value retrieval, less than {section.required:.0%}")


def _on(task: Task, device: str) -> Task:
    """The task with its batches on `device`."""
    moved = [
        Batch([unit.to(device) for unit in b.units], b.question.to(device), b.answer.to(device), b.accepted)
        for b in task.batches
    ]
    return replace(task, batches=moved)


Prepared = tuple[Model, list[Task], dict[str, Any], dict[str, dict[str, torch.Tensor]], Path]


def _own_model(chosen: argparse.Namespace, section: ParallelContextSettings, scale: str) -> Prepared:
    """The trained decoder and its offline tasks; every task has the same prefixes."""
    seed = section.seeds[0] if chosen.seed is None else chosen.seed
    folder, here, device = Path(f"runs/parallel_context/seed_{seed}"), section.at(scale), default_device()
    if not (folder / "training.json").is_file():
        raise UserError(f"{folder}/training.json is missing; run python -m stages.parallel_context_train first")
    training = json_file(folder / "training.json")
    torch.set_num_threads(max(1, here.train.threads or torch.get_num_threads()))
    tokens = open_tokens(chosen.tokens or tokens_folder(None))
    model = OwnModel(load_checkpoint(folder / "checkpoint.safetensors").to(device))
    made: list[EpisodeTask | TextTask] = [TextTask(tokens.valid, here.units["lm"], here.predicted)]
    made += make_episode_tasks(Vocabulary(tokens.vocabulary), here.units)
    tasks = [
        Task(
            one.name,
            list(one.batches(here.episodes, here.batch_size, seed=7)),
            METRICS[one.name],
            f"{one.units} units of {one.width} tokens",
        )
        for one in made
    ]
    encode = tokenizer_of(tokens).encode
    prefixes = {
        name: text_prefix(encode, text) for name, text in {"sink": section.sink, **section.ablation.sinks}.items()
    }
    result = {
        "model": "own",
        "family": section.family,
        "scale": training["scale"],
        "seed": seed,
        "context": model.context,
        "training": training,
        "device": device,
    }
    return model, tasks, result, dict.fromkeys(TASKS, prefixes), folder / "measured.json"


def _other_model(chosen: argparse.Namespace, section: ParallelContextSettings) -> Prepared:
    """A Hugging Face model and the benchmarks of the data folder."""
    from transformers import AutoTokenizer

    from aero.hf.loading import load_model
    from aero.parallel_context.hugging_face import HuggingFaceModel, check_implementation

    if chosen.data is None:
        raise UserError("--model needs --data, a folder of benchmark files; docs/parallel_context.md names them")
    check_implementation(chosen.attention)
    device = default_device()
    try:
        tokenizer = AutoTokenizer.from_pretrained(chosen.model, trust_remote_code=False)
        dtype = getattr(torch, chosen.dtype)
        loaded = load_model(chosen.model, attn_implementation=chosen.attention, dtype=dtype)
    except Exception as error:  # transformers checks sizes with errors of its own, or divides by them
        raise UserError(f"cannot load {chosen.model}: {next(iter(str(error).splitlines()), repr(error))}") from None
    model = HuggingFaceModel(loaded.to(device))
    encode = partial(tokenizer.encode, add_special_tokens=False)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    tasks = list(_benchmark_tasks(chosen, encode, decode))
    if not tasks:
        raise UserError(f"{chosen.data} holds none of the files that docs/parallel_context.md names")
    prefixes = {
        name: {"sink": text_prefix(encode, benchmarks.LM_SINK if name == "lm" else benchmarks.SINK)}
        | {other: text_prefix(encode, text) for other, text in section.ablation.sinks.items()}
        for name in TASKS
    }
    result = {
        "model": str(chosen.model),
        "family": loaded.config.model_type,
        "scale": "paper",
        "seed": 0,
        "context": chosen.context,
        "dtype": chosen.dtype,
        "device": device,
    }
    name = Path(chosen.model).name.lower()
    return model, tasks, result, prefixes, Path(f"runs/parallel_context/{name}.json")


def _benchmark_tasks(chosen: argparse.Namespace, encode: benchmarks.Encode, decode: Any) -> Iterator[Task]:
    """One task for every kind whose files are in the data folder."""
    folder, tokens, count = chosen.data, chosen.context, chosen.examples
    lm = next((p for p in (folder / "lm", *sorted(folder.glob("lm.*"))) if p.exists()), None)
    if lm is not None and "lm" in chosen.tasks:
        batches = benchmarks.language_modelling(lm, encode, tokens, chosen.predicted, count, 0)
        yield Task("lm", list(batches), METRICS["lm"], f"{lm.name}: {tokens} tokens, {chosen.predicted} scored")
    for name in ("icl", "rag", "synthetic"):
        files = benchmarks.files_of(folder, name) if name in chosen.tasks else []
        if not files:
            continue
        loader = {"icl": benchmarks.icl, "rag": benchmarks.rag, "synthetic": benchmarks.synthetic}[name]
        loaded = {own[-1].name: list(loader(*own, encode, tokens, count, 0)) for own in files}
        yield Task(
            name,
            [batch for batches in loaded.values() for batch in batches],
            METRICS[name],
            f"{name}: up to {tokens} tokens, {', '.join(f'{len(own)} of {file}' for file, own in loaded.items())}",
            benchmarks.judge_of(name, decode),
            benchmarks.ANSWER_TOKENS[name],
            tuple((file, len(own)) for file, own in loaded.items()),
        )


if __name__ == "__main__":
    run_main(main)
