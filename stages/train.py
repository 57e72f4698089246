"""Train one run: `python -m stages.train RUN [--seed SEED] [--scale SCALE]`.

What `dvc repro` trains is written to runs/default/RUN/seed_SEED/; any other run or seed, or one with --scale, to
runs/scales/SCALE/RUN/seed_SEED/. The attention entropy is measured at the end.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from aero.config import load
from aero.data.tokens import scale_root
from aero.errors import UserError, run_main, seed_number
from aero.records import keep, lock, require_committed
from aero.training.run import STATE, outcome_line, run_tokens, train_run


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("run", help="a name under `runs` in params.yaml")
    parser.add_argument("--seed", type=seed_number, help="default: the first of `seeds`")
    parser.add_argument("--scale", help="scale (default: that of params.yaml)")
    parser.add_argument("--steps", type=int, help="number of steps instead of that in params.yaml; needs --out")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: of the run's corpus and scale)")
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--keep", action="store_true", help="add the result to results/SCALE/ afterwards")
    parser.add_argument("--unless-done", action="store_true", help="do nothing if the folder holds this training")
    chosen = parser.parse_args(arguments)
    active = load()
    parameters, root = active.at_scale(chosen.scale), scale_root(chosen.scale, active.scale)
    run = parameters.resolve(chosen.run, chosen.seed)
    if chosen.steps is not None:
        if chosen.out is None or chosen.steps < 1:
            raise UserError("--steps needs a number above 0, and --out: the run's own folder is for its own steps")
        run = replace(run, train=run.train.model_copy(update={"steps": chosen.steps}))
    if chosen.keep:
        require_committed()
    tokens = run_tokens(parameters, run, root, chosen.tokens)
    folder = chosen.out or parameters.folder(run.name, run.seed, chosen.scale)
    with lock(folder / STATE):
        metrics = train_run(run, tokens, folder, unless_done=chosen.unless_done)
    if chosen.keep:
        keep([folder])
    print(f"{run.label}: {outcome_line(metrics)}")


if __name__ == "__main__":
    run_main(main)
