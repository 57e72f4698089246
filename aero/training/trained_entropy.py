"""Attention entropy of a trained model on held-out tokens, with the learned values beside it: entropy.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.config import Parameters
from aero.data.batches import evaluation_batches
from aero.data.tokens import Tokens
from aero.entropy import measure
from aero.errors import UserError
from aero.model import GPT
from aero.records import write_text
from aero.training.compiled import as_it_stands

SEQUENCES = 32
"""Sequences in a batch."""


def write_entropy(
    path: Path, model: GPT, metrics: dict[str, Any], tokens: Tokens, parameters: Parameters, device: str
) -> None:
    """Measure the trained `model` of `metrics` at the active scale's number of tokens, and write the result.

    UserError if `tokens` are of another corpus or tokenizer than the training's: their entropies would be told as its.
    """
    run, made = metrics["run"], metrics["provenance"]
    for name in ("corpus_sha256", "tokenizer_sha256"):
        if made.get(name, tokens.manifest[name]) != tokens.manifest[name]:
            raise UserError(
                f"{tokens.folder} holds other tokens than {run} was trained on ({name}); give its own as --tokens, or "
                "train it again"
            )
    batches = evaluation_batches(
        tokens.valid, model.config.context, SEQUENCES, parameters.active.entropy.tokens, parameters.packing(run)
    )
    model.eval()  # a spectral norm would go on iterating otherwise
    with as_it_stands():
        measured = measure(model, (ids.to(device) for ids in batches)).summary()
    result = {
        "run": run,
        "seed": metrics["seed"],
        "scale": metrics["scale"],
        "architecture": metrics["architecture"],
        "context": model.config.context,
        "layers": model.config.layers,
        "heads": model.config.heads,
        **measured,
        "learned": learned(model),
        "provenance": metrics["provenance"],
        "measured": records.provenance(torch=torch.__version__, device=device, at=records.now()),
    }
    write_text(path, json.dumps(result, allow_nan=False) + "\n")


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
