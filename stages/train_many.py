"""Train many runs: `python -m stages.train_many [RUN...] --seeds 1337 1338 --jobs 4 [--scale SCALE]`.

Each is a process of its own, or with --cluster a job of its own. One that fails stops no other; the same command again
goes on where it was stopped. Results: runs/scales/SCALE/RUN/seed_SEED/, and with --keep also results/SCALE/.

With --out DIR they are trained one after the other in this process, within --minutes, and every result is written to
DIR, for download from a time-limited machine (docs/gpu.md); `python -m stages.merge_results DIR` adds them to results/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from aero import records
from aero.config import Parameters, load
from aero.data.tokens import Tokens, open_tokens, scale_root
from aero.errors import UserError, check_minutes, json_file, run_main
from aero.records import keep, require_committed, run_folder, write_text
from aero.training import catalogue
from aero.training.back_to_back import Ending, Limit, back_to_back
from aero.training.many import Training, here, on_cluster
from aero.training.processes import default_device
from aero.training.run import run_hash
from aero.training.run_tokens import run_tokens


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train_many", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="names under `runs` or `training_order` in params.yaml (default active_runs; with --out all of "
        "training_order, then further seeds)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: `seeds` in params.yaml")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time; on one GPU they share it (default 2)")
    parser.add_argument("--tokens", type=Path, help="folder of token files")
    parser.add_argument("--keep", action="store_true", help="copy every result to results/SCALE/RUN/ as it comes")
    parser.add_argument("--cluster", choices=("slurm", "local"), help="submit jobs through submitit")
    parser.add_argument("--minutes", type=float, help="time limit: of a cluster job (default a day); with --out of all")
    parser.add_argument("--out", type=Path, help="train in this process, one after the other, results into few files")
    parser.add_argument("--state", type=Path, help="with --out: folder of the runs (default runs/scales/SCALE)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a cluster job")
    parser.add_argument("--cpus", type=int, default=4, help="cores of a cluster job")
    parser.add_argument("--partition", help="SLURM partition")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes)
    parameters = load()
    corpora = scale_root(chosen.scale, parameters.scale)
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    chosen.runs = [
        run for name in chosen.runs for run in parameters.training_order.get(name, (name,)) if parameters.run(run)
    ]
    if chosen.jobs < 1:
        raise UserError(f"--jobs {chosen.jobs}: at least 1")
    if chosen.state and not chosen.out:
        raise UserError("--state is for trainings in one process; give --out too")
    if chosen.keep:
        require_committed()
    if chosen.out:
        return one_after_another(chosen, parameters, corpora)
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
        for run in dict.fromkeys(chosen.runs or parameters.active_runs)
        for seed in dict.fromkeys(chosen.seeds or parameters.seeds)
    ]
    if chosen.cluster:
        minutes = round(chosen.minutes or 24 * 60)
        resources = {"timeout_min": max(1, minutes), "gpus_per_node": chosen.gpus, "cpus_per_task": chosen.cpus}
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
                try:
                    keep([training.folder])
                except (UserError, OSError) as error:  # of this one; the others go on
                    failure = f"trained, and not kept: {error}"
            if failure is not None:
                failed.append(training.name)
            tqdm.write(f"{training.name}: {ending(training.folder) if failure is None else f'failed: {failure}'}")
            bar.update()
    if failed:
        raise UserError(
            f"{len(failed)} of {len(trainings)} trainings failed ({', '.join(failed)}); the others are done"
        )


def one_after_another(chosen: argparse.Namespace, parameters: Parameters, corpora: Path) -> None:
    """Train what is not done yet in this process, within the time, every result also into `--out`.

    corpora: the folder that holds the token files.
    """
    if chosen.cluster or chosen.keep:
        raise UserError("--out goes with neither --cluster nor --keep; python -m stages.merge_results keeps its files")
    limit = Limit(None if chosen.minutes is None else 60 * chosen.minutes)
    state = chosen.state or Path("runs/scales") / parameters.scale
    found = catalogue.results()
    seeds = dict.fromkeys(chosen.seeds or parameters.seeds)
    wanted = [(run, seed) for run in dict.fromkeys(chosen.runs) for seed in seeds]
    if not chosen.runs:
        wanted = [pair for pair in catalogue.in_order(parameters, found) if not chosen.seeds or pair[1] in seeds]

    opened: dict[str | None, Tokens] = {}  # by corpus: reading every byte of one takes seconds

    def tokens_of(run: str) -> Tokens:
        corpus = parameters.corpus_name(run)
        if corpus not in opened:
            opened[corpus] = run_tokens(parameters, run, corpora, chosen.tokens)
        return opened[corpus]

    def folder_of(run: str, seed: int) -> Path:
        return state / run / f"seed_{seed}"

    done = records.read_all_metrics(Path("results") / parameters.scale)
    done |= records.read_all_metrics(chosen.out, scale=parameters.scale)
    pending = [
        (run, seed)
        for run, seed in wanted
        if done.get((run, seed), {}).get("config_hash") != run_hash(parameters, run, seed, tokens_of(run))
    ]
    stopped = threading.Event()
    report = {
        "scale": parameters.scale,
        "minutes": chosen.minutes,
        "device": torch.cuda.get_device_name() if default_device() == "cuda" else "cpu",
        "provenance": records.provenance(torch=torch.__version__, started=records.now()),
        "corpora": {
            corpus or "": _about(tokens_of(run))
            for corpus, run in {parameters.corpus_name(run): run for run, _ in wanted}.items()
        },
        "trainings": [],
        "left": [f"{run} seed {seed}" for run, seed in pending],
    }
    fits = what_fits(parameters, pending, found, limit)
    print(f"{len(wanted) - len(pending)} of {len(wanted)} trainings are done; {fits}", flush=True)
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    limit.interrupted = stopped.is_set
    failed = []
    try:
        for ended in back_to_back(parameters, pending, tokens_of, folder_of, limit):
            name = f"{ended.run} seed {ended.seed}"
            if ended.metrics is not None:
                records.write_trainings(
                    chosen.out, [records.read_training(folder_of(ended.run, ended.seed))], parameters.scale
                )
            if ended.how == "failed":
                failed.append(name)
            if ended.how != "unfinished":
                report["left"].remove(name)
            report["trainings"].append({"run": ended.run, "seed": ended.seed, "how": ended.how, "said": told(ended)})
            write_text(chosen.out / "report.json", json.dumps(report | {"seconds": _elapsed(limit)}, indent=1) + "\n")
            print(f"{name}: {told(ended)}; {_elapsed(limit):.0f} s gone", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped.is_set():
        raise KeyboardInterrupt
    if failed:
        raise UserError(f"{len(failed)} of {len(pending)} trainings failed ({', '.join(failed)}); the others are kept")
    more = f"{len(report['left'])} left: the same command goes on; on a new machine merge the results first"
    print(more if report["left"] else "all are done")


def what_fits(parameters: Parameters, pending: list[tuple[str, int]], found: Any, limit: Limit) -> str:
    """In words: how long the pending trainings take, and how many of them the time limit will hold."""
    expected = [catalogue.expected_seconds(parameters, run, found) for run, _ in pending]
    if not expected:
        return "nothing to train"
    if any(seconds is None for seconds, _ in expected):
        return f"{len(pending)} to train, nothing tells how long"
    total, fitting, times = 0.0, 0, [seconds for seconds, _ in expected]
    for seconds in times:
        total += seconds
        fitting += limit.seconds is None or total <= limit.seconds
    basis = "as fast as the kept results" if expected[0][1] else f"on {parameters.active.device} as params.yaml assumes"
    time_ = "" if limit.seconds is None else f", {fitting} of them in {limit.seconds / 60:g} minutes"
    return f"{len(pending)} to train take {sum(times) / 60:.1f} minutes {basis}, compilation not counted{time_}"


def told(ended: Ending) -> str:
    """How a training ended, in words."""
    if ended.how == "failed":
        return f"failed: {ended.line}"
    if ended.how == "unfinished":
        return "not finished, its state is saved"
    outcome = in_words(ended.metrics)
    return outcome if ended.how == "finished" else f"was done on this machine: {outcome}"


def _about(tokens: Tokens) -> dict[str, Any]:
    """The manifest of token files, but for the list of all text files."""
    corpus = {key: value for key, value in tokens.manifest["corpus"].items() if key != "files"}
    return {key: value for key, value in tokens.manifest.items() if key != "corpus"} | {"corpus": corpus}


def _elapsed(limit: Limit) -> float:
    return round(time.monotonic() - limit.began, 1)


def ending(folder: Path) -> str:
    """How the finished training in `folder` ended, in words."""
    return in_words(json_file(folder / "metrics.json"))


def in_words(metrics: dict[str, Any]) -> str:
    """Perplexity and time of a training, or where it diverged."""
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
