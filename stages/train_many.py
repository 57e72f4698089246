"""Train many runs at once: `python -m stages.train_many [RUN...] --seeds 1337 1338 --jobs 4 [--scale SCALE]`.

Each is a process of its own, or with --cluster a job of its own. One that fails stops no other; the same command again
goes on where it was stopped. Results: runs/scales/SCALE/RUN/seed_SEED/, and with --keep also results/SCALE/RUN/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
from pathlib import Path

import torch
from tqdm import tqdm

from aero.data.tokens import open_tokens
from aero.errors import UserError, run_main
from aero.parameters import load
from aero.training.kept import copy, kept_files, require_committed
from aero.training.many import Training, here, on_cluster
from aero.training.run import run_folder


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train_many", description=__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="names under `runs` in params.yaml (default active_runs)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: `seeds` in params.yaml")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time; on one GPU they share it (default 2)")
    parser.add_argument("--tokens", type=Path, help="folder of token files")
    parser.add_argument("--keep", action="store_true", help="copy every result to results/SCALE/RUN/ as it comes")
    parser.add_argument("--cluster", choices=("slurm", "local"), help="submit jobs through submitit")
    parser.add_argument("--minutes", type=int, default=24 * 60, help="time limit of a cluster job (default a day)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a cluster job")
    parser.add_argument("--cpus", type=int, default=4, help="cores of a cluster job")
    parser.add_argument("--partition", help="SLURM partition")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    for run in chosen.runs:
        parameters.run(run)
    if chosen.jobs < 1:
        raise UserError(f"--jobs {chosen.jobs}: at least 1")
    if chosen.keep:
        require_committed()
    if chosen.tokens:
        open_tokens(chosen.tokens)
    trainings = [
        Training(
            run,
            seed,
            parameters.scale,
            run_folder(run, seed, parameters.scale).absolute(),
            Path.cwd(),
            ("--tokens", str(chosen.tokens.absolute())) if chosen.tokens else (),
        )
        for run in dict.fromkeys(chosen.runs or parameters.active_runs)
        for seed in dict.fromkeys(chosen.seeds or parameters.seeds)
    ]
    if chosen.cluster:
        resources = {"timeout_min": chosen.minutes, "gpus_per_node": chosen.gpus, "cpus_per_task": chosen.cpus}
        if chosen.partition:
            resources["slurm_partition"] = chosen.partition
        done = on_cluster(trainings, Path("runs/.cluster"), chosen.cluster, chosen.jobs, **resources)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # take the children along
        done = here(trainings, chosen.jobs, gpus())
    failed = []
    with contextlib.closing(done), tqdm(total=len(trainings), desc="trainings", unit="run", disable=None) as bar:
        for training, failure in done:
            if failure is None and chosen.keep:
                copy(kept_files(training.folder, Path("results")))
            if failure is not None:
                failed.append(training.name)
            tqdm.write(f"{training.name}: {ending(training.folder) if failure is None else f'failed: {failure}'}")
            bar.update()
    if failed:
        raise UserError(
            f"{len(failed)} of {len(trainings)} trainings failed ({', '.join(failed)}); the others are done"
        )


def ending(folder: Path) -> str:
    """How a finished training ended, in words."""
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if metrics["eval_perplexity"] is None:
        return f"diverged at step {metrics['diverged_at_step']}"
    return f"perplexity {metrics['eval_perplexity']:.3f}, {metrics['provenance']['seconds']:.0f} s"


def gpus() -> list[str]:
    """This machine's GPUs as CUDA_VISIBLE_DEVICES names them; none on a machine without."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


if __name__ == "__main__":
    run_main(main)
