"""Train many runs: `python -m stages.train_many [RUN...] [--seeds 1337 1338] [--scale SCALE] [--jobs N]`.

Each training is a separate process. A failed one does not stop the others; running the same command again resumes.
Without RUN the default set is trained, as by `dvc repro`, in runs/default/; others are in runs/scales/SCALE/.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from aero.config import Parameters, ResolvedRun, load
from aero.data.tokens import Tokens, scale_root
from aero.errors import UserError, run_main
from aero.records import keep, read_all_metrics, read_metrics, require_committed
from aero.training.launch import Training, run_here
from aero.training.run import finished_metrics, has_entropy, outcome_line, run_tokens


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train_many", description=__doc__)
    add_runs(parser, "default: active_runs")
    parser.add_argument("--catalogue", action="store_true", help="every run and seed outside the default set")
    parser.add_argument("--jobs", type=int, help="trainings at a time (default: one per GPU, else one per core)")
    parser.add_argument("--keep", action="store_true", help="add every result to results/SCALE/ as it comes")
    chosen = parser.parse_args(arguments)
    active = load()
    parameters = active.at_scale(chosen.scale)
    jobs = chosen.jobs if chosen.jobs is not None else len(gpus()) or len(os.sched_getaffinity(0))
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: at least 1")
    if chosen.keep:
        require_committed()
    wanted = [(run, seed) for run, seed in parameters.trainings() if not parameters.is_default(run, seed)]
    if not chosen.catalogue:
        runs = dict.fromkeys(chosen_runs(parameters, chosen.runs) or parameters.active_runs)
        wanted = [(run, seed) for run in runs for seed in dict.fromkeys(chosen.seeds or parameters.seeds)]
    pending = missing(parameters, wanted, chosen, scale_root(chosen.scale, active.scale))
    print(f"{len(wanted) - len(pending)} of {len(wanted)} trainings are done, {jobs} at a time", flush=True)
    done = run_here(pending, jobs, gpus())
    failed, ended_count, began = [], len(wanted) - len(pending), time.monotonic()
    with contextlib.closing(done):
        for training, failure in done:
            if failure is None and chosen.keep:
                try:
                    keep([training.folder])
                except (UserError, OSError) as error:  # the others go on
                    failure = f"trained, but not kept: {error}"
            failed += [training.name] if failure else []
            ended = f"failed: {failure}" if failure else outcome_line(read_metrics(training.folder))
            ended_count += 1
            left = len(wanted) - ended_count
            minutes = (time.monotonic() - began) / 60 / (len(pending) - left) * left
            remaining = f"; about {max(1, round(minutes))} min left" if left else ""
            print(f"training {ended_count} of {len(wanted)}, {training.name}: {ended}{remaining}", flush=True)
    if failed:
        raise UserError(f"{len(failed)} of {len(wanted)} trainings failed ({', '.join(failed)}); the others are done")


def missing(
    parameters: Parameters, wanted: list[tuple[str, int]], chosen: argparse.Namespace, root: Path
) -> list[Training]:
    """Those of the `wanted` trainings (run, seed) that are not done, or with --keep not kept."""
    further, found = ("--tokens", str(chosen.tokens.absolute())) if chosen.tokens else (), []
    tokens_of = opener(parameters, root, chosen.tokens)
    kept = read_all_metrics(Path("results") / parameters.scale) if chosen.keep else None
    for name, seed in wanted:
        run, folder = parameters.resolve(name, seed), parameters.folder(name, seed, chosen.scale)
        tokens = tokens_of(run)
        metrics = finished_metrics(folder, run.hash(tokens.manifest), True)
        if kept is not None and metrics and kept.get((name, seed), {}).get("provenance") != metrics["provenance"]:
            metrics = None
        if not metrics or not has_entropy(folder, run, tokens):
            found.append(Training(name, seed, parameters.scale, folder.absolute(), Path.cwd(), further))
    return found


def opener(parameters: Parameters, root: Path, given: Path | None) -> Callable[[ResolvedRun], Tokens]:
    """Opens the token files of a run, those of a corpus once: verifying them takes seconds."""
    opened: dict[str | None, Tokens] = {}

    def tokens_of(run: ResolvedRun) -> Tokens:
        if run.corpus_name not in opened:
            opened[run.corpus_name] = run_tokens(parameters, run, root, given)
        return opened[run.corpus_name]

    return tokens_of


def add_runs(parser: argparse.ArgumentParser, default: str) -> None:
    """Options that name trainings."""
    names = f"names under `runs` or `training_order` in params.yaml ({default})"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=names)
    parser.add_argument("--seeds", type=int, nargs="+", help="default: `seeds` in params.yaml")
    parser.add_argument("--scale", help="scale (default: that of params.yaml)")
    parser.add_argument("--tokens", type=Path, help="folder of token files")


def chosen_runs(parameters: Parameters, names: list[str]) -> list[str]:
    """The runs that `names` and tables of `training_order` stand for. UserError for an unknown one."""
    return [run for name in names for run in parameters.training_order.get(name, (name,)) if parameters.run(run)]


def gpus() -> list[str]:
    """This machine's GPUs as CUDA_VISIBLE_DEVICES names them; empty without any."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


if __name__ == "__main__":
    run_main(main)
