"""What decides how a training goes, as one value: recorded in its metrics, hashed for resuming it, watched by DVC."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

from aero.config import Parameters
from aero.pipeline import ROOT, import_closure
from aero.training.loop import Regularizer


@functools.cache
def code_hash(module: str) -> str:
    """SHA-256 of the library files that `module`, which trains, imports, but for those that only read parameters: their
    result is in the configuration.
    """
    digest = hashlib.sha256()
    for path in sorted(import_closure(module) - {Path("aero/config.py")}):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def regularizer_of(parameters: Parameters, run: str) -> Regularizer:
    """The entropy regulariser of `run` at the active scale, its lambda scaled to the micro-batch."""
    chosen, positions = parameters.run_regularizer(run), parameters.model(run).context
    return Regularizer(chosen.reduction, chosen.gamma, chosen.weight(parameters.train(run).batch_size, positions))


def configuration(parameters: Parameters, run: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Everything but the seed: architecture, sizes, recipe, regulariser, corpus. manifest: that of the token files."""
    architecture = parameters.architecture(run)
    regularizer = regularizer_of(parameters, run) if architecture.entropy_regularized else None
    return {
        "run": run,
        "scale": parameters.scale,
        "architecture": str(architecture),
        "model": dataclasses.asdict(parameters.model_config_for(run, manifest["vocabulary"])),
        "train": parameters.train(run).recipe(),
        "regularizer": None if regularizer is None else dataclasses.asdict(regularizer),
        "corpus": manifest["corpus"]["name"],
        "corpus_sha256": manifest["corpus_sha256"],
        "tokenizer_sha256": manifest["tokenizer_sha256"],
        "packing": parameters.packing(run),
    }
