"""Private passes of a small model: the optimised program against stock SPU, by number of layers.

    python -m benchmarks.two_party             # about ten minutes on a quiet machine of two cores

Two real parties, d=128, T=32, L = 2, 4 and 8, random weights, on which bytes do not depend. Beside each pass stands its
composition: the sum over its operations, each run alone in the session of the deepest model. Writes
results/bench/two_party_growth_layers.json after every row and program, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from aero.architecture import parse
from aero.config import load
from aero.errors import run_main
from aero.model import GPT
from aero.two_party.cost.counts import model_config
from aero.two_party.cost.measure import measure_task
from aero.two_party.program.end_to_end import PublicModel, forward_task
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import Profile, check_pair
from aero.two_party.runtime.settings import Settings
from benchmarks import timing

NAME = "two_party_growth_layers"
ROWS = ("SM+LN+G", "SM+ScFuFFN")
PROGRAMS = ("as_written", "tuned")
LAYERS = (2, 4, 8)
SIZES = {"width": 128, "heads": 2, "vocabulary": 512}
CONTEXT = 32
RUNS_ALONE = 2
SEED = 1337


def pass_task(party: Party, given: dict[str, Any]) -> tuple[Profile, dict[Operation, tuple[float, float]]]:
    """In a party process: a complete pass, then the program's operations alone: mean bytes and median seconds."""
    (profile,) = forward_task(party, given)["profiles"]
    if not (wanted := given["alone"]):
        return profile, {}
    _, found, _ = measure_task(party, {"operations": wanted, "runs": RUNS_ALONE})
    costs = ((fmean(run.bytes for run in found[one]), median(run.seconds for run in found[one])) for one in wanted)
    return profile, dict(zip(wanted, costs, strict=True))


def points_of(row: str, program: str, depths: Sequence[int], settings: Settings) -> list[dict[str, Any]]:
    """Passes of `row` at every depth, and their composition: bytes in both directions, seconds on loopback.

    The deepest is measured first, with its operations alone, of which all depths are composed.
    """
    architecture, points = parse(row), []
    alone: dict[Operation, tuple[float, float]] = {}
    for layers in sorted(depths, reverse=True):
        config = model_config(architecture, "gpt2", CONTEXT, layers=layers, **SIZES)
        torch.manual_seed(SEED)
        model = GPT(architecture, config).eval()
        computed_as = within_budget(model, program)
        prompts = np.random.default_rng(SEED).integers(0, config.vocabulary, (1, CONTEXT))
        public = PublicModel(row, dataclasses.asdict(config), computed_as)
        counts = operations(architecture, config, computed_as, CONTEXT)
        common = {"model": public, "tokens": CONTEXT, "prompts": 1, "alone": sorted(set(counts) - set(alone))}
        inputs = common | {"ids": prompts}, common | {"weights": weight_arrays(model, computed_as)}
        (profile, measured), (other, _) = run_parties(pass_task, *inputs, settings)
        check_pair(profile, other)
        alone |= measured
        point = {"size": layers, "computed_as": computed_as, "bytes": profile.bytes, "seconds": profile.seconds}
        for index, name in enumerate(("composed_bytes", "composed_seconds")):
            point[name] = sum(many * alone[one][index] for one, many in counts.items())
        points.append(point | {"load": timing.load()})
        print(f"{row} {program} L={layers}: {profile.bytes / 1e6:.2f} MB, {profile.seconds:.1f} s", flush=True)
    return points[::-1]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_party", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    chosen = parser.parse_args(arguments)
    settings = Settings(**load().two_party.settings())
    path = chosen.folder / f"{NAME}.json"
    lines = json.loads(path.read_text(encoding="utf-8"))["lines"] if path.is_file() else []
    done = {(line["architecture"], line["program"]) for line in lines}
    for row in ROWS:
        for program in PROGRAMS:
            if (row, program) in done:
                continue
            points = points_of(row, program, chosen.layers, settings)
            lines.append({"architecture": row, "program": program, "points": points})
            sizes = {**SIZES, "context": CONTEXT, "passes": 1, "runs_alone": RUNS_ALONE}
            timing.save(NAME, {"sizes": sizes, "lines": lines}, chosen.folder)


if __name__ == "__main__":
    run_main(main)
