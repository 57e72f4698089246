"""Train many runs: `python -m stages.train_many [RUN...] --seeds 1337 1338 --jobs 4 [--scale SCALE]`.

Each is a process of its own, or with --cluster a job of its own. One that fails stops no other; the same command again
resumes. Results: runs/scales/SCALE/RUN/seed_SEED/, and with --keep also results/SCALE/.

`python -m stages.train_on_machine` trains them in one process, for a time-limited machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from pathlib import Path

import torch
from tqdm import tqdm

from aero.config import Parameters, load
from aero.data.tokens import open_tokens
from aero.errors import UserError, check_minutes, run_main
from aero.records import keep, read_metrics, require_committed, run_folder
from aero.training.launch import Training, run_here, run_on_cluster
from aero.training.log import outcome_line


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train_many", description=__doc__)
    add_runs(parser, "default: active_runs")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time; on one GPU they share it (default 2)")
    parser.add_argument("--keep", action="store_true", help="add every result to results/SCALE/ as it comes")
    parser.add_argument("--cluster", choices=("slurm", "local"), help="submit jobs through submitit")
    parser.add_argument("--minutes", type=float, help="time limit of a cluster job (default a day)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a cluster job")
    parser.add_argument("--cpus", type=int, default=4, help="cores of a cluster job")
    parser.add_argument("--partition", help="SLURM partition")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    parameters = load().at_scale(chosen.scale)
    runs = chosen_runs(parameters, chosen.runs)
    if chosen.jobs < 1:
        raise UserError(f"--jobs {chosen.jobs}: at least 1")
    if chosen.keep:
        require_committed()
    if chosen.tokens:
        open_tokens(chosen.tokens, verify=True)
    trainings = [
        Training(
            run,
            seed,
            parameters.scale,
            run_folder(run, seed, parameters.scale).absolute(),
            Path.cwd(),
            ("--tokens", str(chosen.tokens.absolute())) if chosen.tokens else (),
        )
        for run in dict.fromkeys(runs or parameters.active_runs)
        for seed in dict.fromkeys(chosen.seeds or parameters.seeds)
    ]
    if chosen.cluster:
        minutes = round(chosen.minutes or 24 * 60)
        resources = {"timeout_min": max(1, minutes), "gpus_per_node": chosen.gpus, "cpus_per_task": chosen.cpus}
        if chosen.partition:
            resources["slurm_partition"] = chosen.partition
        done = run_on_cluster(trainings, Path("runs/.cluster"), chosen.cluster, chosen.jobs, **resources)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the child processes too
        done = run_here(trainings, chosen.jobs, gpus())
    failed = []
    with contextlib.closing(done), tqdm(total=len(trainings), desc="trainings", unit="run", disable=None) as bar:
        for training, failure in done:
            if failure is None and chosen.keep:
                try:
                    keep([training.folder])
                except (UserError, OSError) as error:  # the others go on
                    failure = f"trained, but not kept: {error}"
            if failure is not None:
                failed.append(training.name)
            ended = f"failed: {failure}" if failure else outcome_line(read_metrics(training.folder))
            tqdm.write(f"{training.name}: {ended}")
            bar.update()
    if failed:
        raise UserError(
            f"{len(failed)} of {len(trainings)} trainings failed ({', '.join(failed)}); the others are done"
        )


def add_runs(parser: argparse.ArgumentParser, default: str) -> None:
    """Options that name trainings."""
    names = f"names under `runs` or `training_order` in params.yaml ({default})"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=names)
    parser.add_argument("--seeds", type=int, nargs="+", help="default: `seeds` in params.yaml")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files")


def chosen_runs(parameters: Parameters, names: list[str]) -> list[str]:
    """The runs that `names` and tables of `training_order` stand for. UserError for an unknown one."""
    return [run for name in names for run in parameters.training_order.get(name, (name,)) if parameters.run(run)]


def gpus() -> list[str]:
    """This machine's GPUs as CUDA_VISIBLE_DEVICES names them; empty without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


if __name__ == "__main__":
    run_main(main)
