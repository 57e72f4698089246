"""Attention entropy of one trained run on held-out tokens: `python -m stages.entropy RUN [--seed SEED]`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aero.checkpoint import load as load_checkpoint
from aero.config import load
from aero.data.tokens import scale_root
from aero.errors import json_file, run_main, seed_number
from aero.records import run_folder
from aero.training.distributed import default_device
from aero.training.run import run_tokens, write_entropy


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.entropy", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: of the run's corpus and scale)")
    parser.add_argument("--folder", type=Path, help="folder of the run (default: the one stages.train writes)")
    chosen = parser.parse_args(arguments)
    active = load()
    parameters, root = active.at_scale(chosen.scale), scale_root(chosen.scale, active.scale)
    run = parameters.resolve(chosen.run, chosen.seed)
    folder = chosen.folder or run_folder(run.name, run.seed, chosen.scale)
    metrics = json_file(folder / "metrics.json")
    device = default_device()
    model = load_checkpoint(folder / "checkpoint.safetensors").to(device)
    torch.set_num_threads(max(1, run.train.threads or torch.get_num_threads()))
    tokens = run_tokens(parameters, run, root, chosen.tokens)
    write_entropy(folder / "entropy.json", model, metrics, tokens, run, device)


if __name__ == "__main__":
    run_main(main)
