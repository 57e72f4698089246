"""Perplexity, entropy and cost of one trained run in a few numbers, which `dvc metrics diff` compares.

`python -m stages.summary RUN [--seed SEED]` writes runs/summaries/RUN-SEED.json. The cost is that of a private forward
pass at the published sizes of the run's family, composed of the committed operations in results/.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from aero.config import Parameters, ResolvedRun, load
from aero.errors import UserError, json_file, run_main, seed_number
from aero.records import run_folder, write_text
from aero.two_party.cost.composition import estimate
from aero.two_party.cost.cost_model import COMMITTED_FILES, measured_operations
from aero.two_party.cost.counts import published_sizes
from aero.two_party.cost.network import Network


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.summary", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    chosen = parser.parse_args(arguments)
    parameters = load()
    run = parameters.resolve(chosen.run, chosen.seed)
    metrics, entropies = (_read(run, name) for name in ("metrics.json", "entropy.json"))
    found = trained(metrics) | {"entropy": entropy(entropies)} | cost(parameters, run)
    path = Path("runs/summaries") / f"{run.name}-{run.seed}.json"
    write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    print(f"{path}: {found['architecture']}")


def _read(run: ResolvedRun, name: str) -> dict[str, Any]:
    path = run_folder(run.name, run.seed) / name
    try:
        return json_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; make it: dvc repro summary@{run.name}-{run.seed}") from None


def trained(metrics: dict[str, Any]) -> dict[str, Any]:
    """Scale, architecture and evaluation perplexity, or the step of the divergence."""
    found = {name: metrics[name] for name in ("scale", "architecture", "config_hash")}
    if metrics["diverged_at_step"] is not None:
        return found | {"diverged_at_step": metrics["diverged_at_step"]}
    return found | {"perplexity": round(metrics["eval_perplexity"], 4)}


def entropy(values: dict[str, Any]) -> dict[str, float]:
    """Mean entropy over the heads with a finite one, in nats and as a share of the causal bound; overloaded and
    collapsed heads in per cent, by the papers' rule.
    """
    heads = [head for layer in values["entropy_mean"] for head in layer if head is not None and math.isfinite(head)]
    found = {
        "overloaded_percent": round(100 * values["overload"]["fraction"], 2),
        "collapsed_percent": round(100 * values["collapse"]["fraction"], 2),
    }
    if not heads:
        return found
    mean = math.fsum(heads) / len(heads)
    return {"mean_nats": round(mean, 4), "of_bound": round(mean / values["maximum"]["causal_bound"], 4)} | found


def cost(parameters: Parameters, run: ResolvedRun) -> dict[str, Any]:
    """GB, rounds and minutes (on the first network) of a private pass by program; a program whose operations are not
    all measured is left out.
    """
    two_party = parameters.two_party
    name, link = next(iter(two_party.networks.items()))
    sizes = published_sizes(run.parameters.model, run.context)
    found: dict[str, Any] = {}
    for program in two_party.programs:
        try:
            operations = measured_operations(two_party.variant(), files=COMMITTED_FILES)
            one = estimate(run.architecture, sizes, program, operations)
        except UserError as error:
            print(f"no cost of program {program}: {error}")
            continue
        found[program] = {
            "gigabytes": round(one.bytes / 1e9, 4),
            "rounds": round(one.rounds),
            f"{name}_minutes": round(one.latency(Network(link.bandwidth_mbit, link.rtt_ms)) / 60, 2),
        }
    return found


if __name__ == "__main__":
    run_main(main)
