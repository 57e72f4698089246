"""Every run's whole configuration at the active scale, one small file a run: what a training depends on.

Parameters, the hash of the training's code and that of its token files are resolved into one file here, so that a
change of either trains again exactly those runs whose own file it changes. What all runs are measured by, their
entropy and their cost, goes into a file each in a folder beside it, and so do the parameters of the stages of parallel
context encoding, several a seed: DVC reads params.yaml anew for every stage that names a part of it, a tenth of a
second each, and a small file's hash at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import run_main
from aero.parameters import Parameters, load
from aero.pipeline import ROOT, import_closure
from aero.training import run as training
from aero.training.configuration import configuration
from aero.training.log import write_text


def code_hash() -> str:
    """SHA-256 of the library files a training imports, but for those that only read parameters: their result is
    in the configuration.
    """
    digest = hashlib.sha256()
    for path in sorted(import_closure(training.__name__) - {Path("aero/parameters.py")}):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def settings(parameters: Parameters) -> dict[str, Any]:
    """What the stages `entropy`, `summary` and `parallel_context…` take from the parameters, beside a run's own."""
    two_party = ("programs", "field", "fraction_bits", "mul_lsb_error", "networks")
    return {
        "entropy": parameters.active.entropy.model_dump(mode="json"),
        "cost": {
            "two_party": parameters.two_party.model_dump(mode="json", include=set(two_party)),
            "families": {name: family.model_dump(mode="json") for name, family in parameters.families.items()},
        },
        "parallel_context": {"scale": parameters.scale, **parameters.parallel_context},
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.configurations", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/configurations"))
    parser.add_argument("--settings", type=Path, default=Path("runs/settings"))
    chosen = parser.parse_args(arguments)
    parameters, code = load(), code_hash()
    texts = {}
    for run in parameters.runs:
        folder = tokens_folder(parameters.corpus_name(run))
        values = configuration(parameters, run, open_tokens(folder).manifest)
        values["paper_rows"] = list(parameters.run(run).rows)
        values["tokens_sha256"] = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        values["code_sha256"] = code
        texts[chosen.out / f"{run}.json"] = json.dumps(values, indent=1) + "\n"
    for name, values in settings(parameters).items():
        texts[chosen.settings / f"{name}.json"] = json.dumps(values, indent=1) + "\n"
    for path, text in texts.items():
        write_text(path, text)
    print(f"{len(parameters.runs)} runs at scale {parameters.scale}: {chosen.out}")


if __name__ == "__main__":
    run_main(main)
