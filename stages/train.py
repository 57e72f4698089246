"""Train one run: `python -m stages.train RUN [--seed SEED] [--scale SCALE]`.

Writes runs/RUN/seed_SEED/, with --scale runs/scales/SCALE/RUN/seed_SEED/.

`torchrun --nproc-per-node N -m stages.train RUN` trains it on N processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import run_main
from aero.parameters import load
from aero.training.kept import copy, kept_files, require_committed
from aero.training.processes import join
from aero.training.run import run_folder, train_run
from aero.training.state import lock
from aero.training.tracker import open_tracker


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=int, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: that of the run's corpus)")
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--keep", action="store_true", help="copy metrics and log to results/SCALE/RUN/ afterwards")
    parser.add_argument("--unless-done", action="store_true", help="do nothing if the folder holds this very training")
    parser.add_argument("--tracker", choices=("tensorboard", "wandb"), help="show the log there too")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    parameters.run(chosen.run)
    if chosen.keep:
        require_committed()
    tokens = open_tokens(chosen.tokens or tokens_folder(parameters.corpus_name(chosen.run)), verify=True)
    folder = chosen.out or run_folder(chosen.run, seed, chosen.scale)
    observers = []
    if chosen.tracker:
        observers.append(open_tracker(chosen.tracker, folder, chosen.run, seed, parameters.scale))
    state = folder / "resume.safetensors"
    if folder == run_folder(chosen.run, seed):
        # The state to resume from lies outside the stage's outputs, which DVC deletes before it starts the stage.
        state = Path("runs/.resume") / f"{chosen.run}.seed_{seed}.safetensors"
    with join() as processes, lock(state if processes.first else None):
        metrics = train_run(
            parameters,
            chosen.run,
            seed,
            tokens,
            folder,
            state,
            processes=processes,
            observers=observers,
            unless_done=chosen.unless_done,
        )
        if not processes.first:
            return
    if chosen.keep:
        copy(kept_files(folder, Path("results")))
    perplexity = "diverged" if metrics["eval_perplexity"] is None else f"perplexity {metrics['eval_perplexity']:.3f}"
    print(f"{chosen.run} seed {seed}: {perplexity}, {metrics['provenance']['seconds']:.0f} s")


if __name__ == "__main__":
    run_main(main)
