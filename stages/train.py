"""Train one run: `python -m stages.train RUN [--seed SEED] [--scale SCALE]` writes runs/RUN/seed_SEED/."""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import run_main
from aero.parameters import load
from aero.training.run import run_folder, train_run


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=int, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: that of the run's corpus)")
    parser.add_argument("--out", type=Path, help="folder to write to (default runs/RUN/seed_SEED)")
    chosen = parser.parse_args(arguments)
    parameters = load()
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    seed = parameters.seeds[0] if chosen.seed is None else chosen.seed
    parameters.run(chosen.run)
    tokens = open_tokens(chosen.tokens or tokens_folder(parameters.corpus_name(chosen.run)))
    folder = chosen.out or run_folder(chosen.run, seed)
    # The state to resume from lies outside the stage's outputs, which DVC deletes before it starts the stage.
    state = Path("runs/.resume") / f"{chosen.run}.seed_{seed}.safetensors"
    metrics = train_run(parameters, chosen.run, seed, tokens, folder, state)
    perplexity = "diverged" if metrics["eval_perplexity"] is None else f"perplexity {metrics['eval_perplexity']:.3f}"
    print(f"{chosen.run} seed {seed}: {perplexity}, {metrics['provenance']['seconds']:.0f} s")


if __name__ == "__main__":
    run_main(main)
