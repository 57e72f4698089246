"""Every run's whole configuration at the active scale, one small file a run: what a training depends on.

Parameters, the hash of the training's code and that of its token files are resolved into one file here, so that a
change of either trains again exactly those runs whose own file it changes. What all runs are measured by, their
entropy and their cost, goes into a file each in a folder beside it, and so do the parameters of every later stage: DVC
reads params.yaml anew for every stage that names a part of it, a tenth of a second each, and a small file's hash at
once. The hundreds of stages of the catalogue find the hash of their code there too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from aero.config import Parameters, load
from aero.costed import costed_places
from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import run_main
from aero.pipeline import HASHED_CODE
from aero.records import write_text
from aero.training import run as training
from aero.training.configuration import code_hash, configuration

REPORT = (
    "scale",
    "scales",
    "families",
    "runs",
    "active_runs",
    "compared_runs",
    "training_order",
    "seeds",
    "more_seeds",
    "two_party",
    "regularizer",
    "devices",
    "core_usd_per_hour",
)
"""Sections of params.yaml that the report reads."""


def trained_by(parameters: Parameters, run: str, code: str) -> dict[str, Any]:
    """What the training of `run` depends on. code: the hash of its code."""
    folder = tokens_folder(parameters.corpus_name(run))
    values = configuration(parameters, run, open_tokens(folder).manifest)
    values["paper_rows"] = list(parameters.run(run).rows)
    values["tokens_sha256"] = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    values["code_sha256"] = code
    return values


def _parts(section: BaseModel, *names: str) -> dict[str, Any]:
    return section.model_dump(mode="json", include=set(names))


def _costed(given: Parameters, run: str) -> dict[str, Any]:
    """What the cost of `run` depends on: its decoder's sizes and where it is printed, nothing of its training."""
    chosen = given.run(run)
    values = {
        "architecture": chosen.architecture,
        "model": chosen.model,
        "context": given.context(run),
        "places": costed_places(chosen),
    }
    if given.active.two_party == "own":  # at the scale's sizes, not the papers'
        sizes = asdict(given.model_config_for(run, given.vocabulary(run)))
        values["config"] = {name: value for name, value in sizes.items() if name not in _FIRST_WEIGHTS}
    return values


_FIRST_WEIGHTS = ("init_std", "embedding_std", "temperature_init", "threshold_init")
"""What a decoder's configuration says of its weights before training."""


_PROTOCOL = ("programs", "field", "fraction_bits", "mul_lsb_error")
_SIZES = ("two_party", "model", "tokens")
SETTINGS: dict[str, Callable[[Parameters], dict[str, Any]]] = {
    "entropy": lambda given: given.active.entropy.model_dump(mode="json"),
    "catalogue": lambda given: {
        "entropy": given.active.entropy.model_dump(mode="json"),
        "code_sha256": {module: code_hash(module) for module in HASHED_CODE["runs/settings/catalogue.json"]},
    },
    "cost": lambda given: {
        "two_party": _parts(given.two_party, *_PROTOCOL, "networks"),
        **_parts(given, "families"),
    },
    "parallel_context": lambda given: {"scale": given.scale, **given.parallel_context},
    "end_to_end": lambda given: {
        "name": given.scale,
        "scale": _parts(given.active, "two_party", "end_to_end_runs", "end_to_end_programs"),
        "seed": given.seeds[0],
        "packing": given.corpus_called(None).packing,
        "protocol": _parts(given.two_party, *_PROTOCOL, "timeouts", "prompts"),
    },
    "two_party_rows": lambda given: {
        "architectures": [given.run(run).architecture for run in given.active_runs],
        "protocol": _parts(given.two_party, *_PROTOCOL, "networks", "end_to_end_runs"),
        "scale": _parts(given.active, *_SIZES),
    },
    "two_party_all": lambda given: {
        "protocol": _parts(given.two_party, *_PROTOCOL, "timeouts", "networks"),
        "scale": _parts(given.active, "two_party"),
        "rows": {name: _costed(given, name) for name, run in given.runs.items() if costed_places(run)},
    },
    "report": lambda given: _parts(given, *REPORT),
}
"""{file: what a stage takes from the parameters beside a run's own configuration}, for every stage after this one: that
of the file's name; `cost` is that of `summary`, `parallel_context` that of all three of its name, `catalogue` that of
the trainings there."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.configurations", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/configurations"))
    parser.add_argument("--settings", type=Path, default=Path("runs/settings"))
    chosen = parser.parse_args(arguments)
    parameters, code = load(), code_hash(training.__name__)
    texts = {}
    for run in parameters.runs:
        texts[chosen.out / f"{run}.json"] = json.dumps(trained_by(parameters, run, code), indent=1) + "\n"
    for name, of in SETTINGS.items():
        texts[chosen.settings / f"{name}.json"] = json.dumps(of(parameters), indent=1) + "\n"
    for path, text in texts.items():
        write_text(path, text)
    print(f"{len(parameters.runs)} runs at scale {parameters.scale}: {chosen.out}")


if __name__ == "__main__":
    run_main(main)
