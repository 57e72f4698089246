"""Attention entropy of one trained run on held-out tokens: `python -m stages.entropy RUN [--seed SEED]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from aero import provenance
from aero.checkpoint import load as load_checkpoint
from aero.data.batches import evaluation_batches
from aero.data.tokens import open_tokens, tokens_folder
from aero.entropy import measure
from aero.errors import run_main
from aero.parameters import load
from aero.training.log import write_text
from aero.training.processes import default_device
from aero.training.run import run_folder


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.entropy", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=int, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: that of the run's corpus)")
    parser.add_argument("--folder", type=Path, help="folder of the run (default: where stages.train writes it)")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    parameters.run(chosen.run)
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    folder = chosen.folder or run_folder(chosen.run, seed, chosen.scale)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    device = default_device()
    model = load_checkpoint(folder / "checkpoint.safetensors").to(device)
    torch.set_num_threads(max(1, parameters.active.train.threads or torch.get_num_threads()))
    tokens = open_tokens(chosen.tokens or tokens_folder(parameters.corpus_name(chosen.run)))
    batches = evaluation_batches(
        tokens.valid, model.config.context, 32, parameters.active.entropy.tokens, parameters.packing(chosen.run)
    )
    result = {
        "run": chosen.run,
        "seed": seed,
        "scale": metrics["scale"],
        "architecture": metrics["architecture"],
        "context": model.config.context,
        "layers": model.config.layers,
        "heads": model.config.heads,
        **measure(model, (ids.to(device) for ids in batches)).summary(),
        "learned": learned(model),
        "provenance": metrics["provenance"],
        "measured": provenance.provenance(torch=torch.__version__, device=device, at=provenance.now()),
    }
    write_text(folder / "entropy.json", json.dumps(result, allow_nan=False) + "\n")


def learned(model: torch.nn.Module) -> dict[str, object]:
    """The learned values a figure may draw: alpha and beta (L), thresholds (L, H), slopes (L or 1), and of the
    temperatures (L, H, T) the means over positions (L, H) and over heads (L, T); null for what a model does not have.
    """
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    temperatures = [value for name, value in values.items() if name.endswith("temperature")]

    def stacked(suffix: str) -> list[object] | None:
        found = [value.tolist() for name, value in values.items() if name.endswith(suffix)]
        return found or None

    def whole(name: str) -> list[object] | None:
        return values[name].tolist() if name in values else None

    return {
        "alpha": stacked(".alpha"),
        "beta": stacked(".beta"),
        "thresholds": whole("reg_threshold_weights"),
        "slopes": whole("leaky_slopes"),
        "temperature_mean": [value.mean(-1).tolist() for value in temperatures] or None,
        "temperature_by_position": [value.mean(0).tolist() for value in temperatures] or None,
    }


if __name__ == "__main__":
    run_main(main)
