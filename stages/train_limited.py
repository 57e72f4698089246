"""Train runs in this process within a time limit: `python -m stages.train_limited [RUN...] --out DIR [--minutes M]`.

For a time-limited machine (docs/gpu.md): every result is written to DIR, which holds only a few files to download;
`python -m stages.merge_results DIR` adds them to results/SCALE/. The same command again resumes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.config import Parameters, ResolvedRun, load
from aero.data.tokens import scale_root
from aero.errors import UserError, check_minutes, interruption_noted, run_main
from aero.training.kernels import default_device
from aero.training.run import outcome_line
from aero.training.time_limited import Ending, Limit, train_in_turn
from stages.train_many import add_runs, chosen_runs, opener


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train_limited", description=__doc__)
    add_runs(parser, "default: all of training_order, then further seeds")
    parser.add_argument("--minutes", type=float, help="time limit")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--state", type=Path, help="folder of the runs (default runs/scales/SCALE)")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    active = load()
    parameters, root = active.at_scale(chosen.scale), scale_root(chosen.scale, active.scale)
    tokens_of = opener(parameters, root, chosen.tokens)

    def folder_of(run: ResolvedRun) -> Path:
        return (chosen.state or Path("runs/scales") / run.scale) / run.name / f"seed_{run.seed}"

    runs = wanted(parameters, chosen.runs, chosen.seeds)
    done = records.read_all_metrics(Path("results") / parameters.scale)
    here = records.read_all_metrics(chosen.out)
    if other := {metrics["scale"] for metrics in here.values()} - {parameters.scale}:
        raise UserError(f"{chosen.out} has trainings of scale {min(other)}; give another --out")
    done |= here
    pending = [
        run
        for run in runs
        if done.get((run.name, run.seed), {}).get("config_hash") != run.hash(tokens_of(run).manifest)
    ]
    limit = Limit(None if chosen.minutes is None else 60 * chosen.minutes)
    print(f"{len(runs) - len(pending)} of {len(runs)} trainings are done", flush=True)
    report = {
        "scale": parameters.scale,
        "minutes": chosen.minutes,
        "device": torch.cuda.get_device_name() if default_device() == "cuda" else "cpu",
        "provenance": records.provenance(torch=torch.__version__, started=records.now()),
        "trainings": [],
        "left": [run.label for run in pending],
    }
    with interruption_noted() as limit.interrupted:
        for ended in train_in_turn(pending, tokens_of, folder_of, limit):
            if ended.metrics is not None:
                training = records.read_training(folder_of(ended.run))
                records.write_trainings(chosen.out, [training])
            note(report, ended, chosen.out, limit)
    if limit.interrupted():
        raise KeyboardInterrupt
    failed = [line["training"] for line in report["trainings"] if line["how"] == "failed"]
    if failed:
        raise UserError(f"{len(failed)} of {len(pending)} trainings failed ({', '.join(failed)}); the others are saved")
    left = len(report["left"])
    print(f"{left} left; the same command resumes, on a new machine merge first" if left else "all are done")


def wanted(parameters: Parameters, names: list[str], seeds: list[int] | None) -> list[ResolvedRun]:
    """The named runs with their seeds, or all of `training_order` and further seeds."""
    runs = chosen_runs(parameters, names)
    if runs:
        pairs = [(run, seed) for run in dict.fromkeys(runs) for seed in dict.fromkeys(seeds or parameters.seeds)]
    else:
        ordered = sum(parameters.training_order.values(), ())
        pairs = [pair for pair in parameters.trainings(ordered) if not seeds or pair[1] in seeds]
    return [parameters.resolve(run, seed) for run, seed in pairs]


def note(report: dict[str, Any], ended: Ending, out: Path, limit: Limit) -> None:
    """Print how a training ended and add it to report.json."""
    lines = {"failed": f"failed: {ended.line}", "unfinished": "not finished, its state is saved"}
    line = lines.get(ended.how) or outcome_line(ended.metrics)
    if ended.how == "found":
        line = f"was done on this machine: {line}"
    if ended.how != "unfinished":
        report["left"].remove(ended.run.label)
    report["trainings"].append({"training": ended.run.label, "how": ended.how, "outcome": line})
    records.write_text(out / "report.json", json.dumps(report | {"seconds": limit.elapsed()}, indent=1) + "\n")
    print(f"{ended.run.label}: {line}; {limit.elapsed():.0f} s elapsed", flush=True)


if __name__ == "__main__":
    run_main(main)
