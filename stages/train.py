"""Train one run: `python -m stages.train RUN [--seed SEED] [--scale SCALE]`.

Writes runs/RUN/seed_SEED/, with --scale runs/scales/SCALE/RUN/seed_SEED/.

`torchrun --nproc-per-node N -m stages.train RUN` trains it on N processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.config import load
from aero.data.tokens import scale_root
from aero.errors import run_main, seed_number
from aero.records import keep, lock, require_committed, run_folder, write_text
from aero.training.processes import join
from aero.training.run import run_hash, train_run
from aero.training.run_tokens import run_tokens
from aero.training.tracker import open_tracker


class TrainedWith:
    """The file of runs/configurations, hashes of code and tokens included, that a finished training was made with.

    Noted only where DVC runs the stage, which keeps that file up to date; a training by hand forgets it.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.configuration = path, Path("runs/configurations") / f"{run}.json"

    def still(self) -> bool:
        return all(path.is_file() for path in (self.path, self.configuration)) and (
            self.path.read_bytes() == self.configuration.read_bytes()
        )

    def note(self) -> None:
        if self.configuration.is_file():
            write_text(self.path, self.configuration.read_text(encoding="utf-8"))

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument(
        "--tokens", type=Path, help="folder of token files (default: that of the run's corpus and scale)"
    )
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--keep", action="store_true", help="add the result to results/SCALE/ afterwards")
    parser.add_argument("--unless-done", action="store_true", help="do nothing if the folder holds this very training")
    parser.add_argument(
        "--unless-trained",
        action="store_true",
        help="do nothing if the pipeline's folder holds this very training by the code that runs/configurations names",
    )
    parser.add_argument("--tracker", choices=("tensorboard", "wandb"), help="show the log there too")
    chosen = parser.parse_args(arguments)
    parameters = load()
    root = scale_root(chosen.scale, parameters.scale)
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    parameters.run(chosen.run)
    if chosen.keep:
        require_committed()
    tokens = run_tokens(parameters, chosen.run, root, chosen.tokens)
    folder = chosen.out or run_folder(chosen.run, seed, chosen.scale)
    observers = []
    if chosen.tracker:
        configured = run_hash(parameters, chosen.run, seed, tokens)
        observers.append(open_tracker(chosen.tracker, folder, chosen.run, seed, parameters.scale, configured))
    state, trained = folder / "resume.safetensors", None
    if folder == run_folder(chosen.run, seed):
        # The state to resume from lies outside the stage's outputs, which DVC deletes before it starts the stage.
        state = Path("runs/.resume") / f"{chosen.run}.seed_{seed}.safetensors"
        trained = TrainedWith(state.with_suffix(".configuration.json"), chosen.run)
    same = chosen.unless_trained and trained is not None and trained.still()
    with join() as processes, lock(state if processes.first else None):
        if processes.first and trained is not None and not same:
            trained.forget()
        metrics = train_run(
            parameters,
            chosen.run,
            seed,
            tokens,
            folder,
            state,
            processes=processes,
            observers=observers,
            unless_done=chosen.unless_done or same,
        )
        if not processes.first:
            return
        if chosen.unless_trained and trained is not None:
            trained.note()
    if chosen.keep:
        keep([folder])
    perplexity = "diverged" if metrics["eval_perplexity"] is None else f"perplexity {metrics['eval_perplexity']:.3f}"
    print(f"{chosen.run} seed {seed}: {perplexity}, {metrics['provenance']['seconds']:.0f} s")


if __name__ == "__main__":
    run_main(main)
