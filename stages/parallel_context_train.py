"""Train the small rotary decoder of parallel context encoding: `python -m stages.parallel_context_train [--seed SEED]`.

Writes checkpoint.safetensors, log.csv and training.json to runs/parallel_context/seed_SEED/ at the end, and
log.unfinished.csv before.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.architecture import parse
from aero.checkpoint import save
from aero.config import load
from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import run_main, seed_number
from aero.model import GPT
from aero.parallel_context.settings import settings
from aero.parallel_context.tasks import Mixture, Vocabulary, make_episode_tasks
from aero.parallel_context.training import FIRST, GROWTH, KNOWABLE, OPENS, SOLVED, train
from aero.records import csv_text, temporary, unfinished, write_text, write_together
from aero.training.distributed import default_device


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context_train", description=__doc__)
    parser.add_argument("--seed", type=seed_number, help="default: the first of parallel_context.seeds")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: the corpus's)")
    parser.add_argument("--out", type=Path, help="folder to write to (default: runs/parallel_context/seed_SEED)")
    chosen = parser.parse_args(arguments)
    parameters = load()
    scale = chosen.scale or parameters.scale
    section = settings(parameters)
    here = section.at(scale)
    seed = section.seeds[0] if chosen.seed is None else chosen.seed
    folder = chosen.out or Path(f"runs/parallel_context/seed_{seed}")
    tokens = open_tokens(chosen.tokens or tokens_folder(None), verify=True)
    vocabulary = Vocabulary(tokens.vocabulary)
    config = section.model_config_for(scale, vocabulary.size)
    tasks = make_episode_tasks(vocabulary, here.units)
    description = {
        "seed": seed,
        "scale": scale,
        "architecture": section.architecture,
        "model": vars(config),
        "train": here.train.recipe(),
        "units": here.units,
        "curriculum": {"first": FIRST, "opens": OPENS, "solved": SOLVED, "growth": GROWTH, "knowable": KNOWABLE},
        "corpus": tokens.manifest["corpus"]["name"],
        "corpus_sha256": tokens.manifest["corpus_sha256"],
    }
    if here.train.threads:
        torch.set_num_threads(here.train.threads)
    origin = records.provenance(torch=torch.__version__, started=records.now())
    clock, device = time.monotonic(), default_device()
    torch.manual_seed(seed)
    model = GPT(parse(section.architecture), config).to(device)
    length, batch_size = config.context, here.train.batch_size
    rows: list[dict[str, Any]] = []

    def log(row: dict[str, Any]) -> None:
        rows.append(row)
        write_text(unfinished(folder / "log.csv"), csv_text(list(rows[0]), rows))

    cpu_seconds = train(
        model,
        Mixture(tasks, tokens.train, length, batch_size, seed),
        here.train,
        log,
        device,
        f"parallel_context seed {seed}",
    )
    result = description | {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens": here.train.steps * length * batch_size,
        "last": rows[-1],
        "provenance": origin
        | {
            "corpus_sha256": tokens.manifest["corpus_sha256"],
            "seconds": round(time.monotonic() - clock, 1),
            "cpu_seconds": round(cpu_seconds, 1),
        },
    }
    checkpoint = folder / "checkpoint.safetensors"
    save(temporary(checkpoint), model, run="parallel_context", seed=str(seed))
    texts = {
        folder / "log.csv": csv_text(list(rows[0]), rows),
        folder / "training.json": json.dumps(result, indent=1) + "\n",
    }
    write_together(texts, beside=[checkpoint])
    unfinished(folder / "log.csv").unlink(missing_ok=True)
    shares = ", ".join(f"{kind} {rows[-1][f'right_{kind}']:.0%}" for kind in ("synthetic", "rag", "icl"))
    print(f"parallel_context seed {seed}: right in training: {shares}; {result['provenance']['seconds']:.0f} s")


if __name__ == "__main__":
    run_main(main)
