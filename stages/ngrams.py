"""Held-out perplexity of n-gram models of the tokens that a training sees: results/SCALE/ngrams.csv.

python -m stages.ngrams --scale desk --steps 1000 5000
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from aero import records
from aero.config import load
from aero.data.batches import Batches, evaluation_batches
from aero.data.ngrams import NGrams
from aero.data.tokens import open_tokens
from aero.errors import run_main

ORDER = 5
"""The highest, or with a large vocabulary as many tokens as 64 bits hold."""
COLUMNS = ("order", "steps", "tokens", "seed", "perplexity", "corpus_sha256", "commit")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.ngrams", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="desk")
    parser.add_argument("--steps", type=int, nargs="+", help="take the batches of so many steps (default: the scale's)")
    parser.add_argument("--run", default="sm-ln-g", help="the run whose batches are counted")
    chosen = parser.parse_args(arguments)
    parameters = load().at_scale(chosen.scale)
    run = parameters.resolve(chosen.run)
    seed, train, sizes = run.seed, run.train, run.sizes
    tokens = open_tokens(Path("runs/scales") / chosen.scale / "tokens")
    batches = Batches(tokens.train, sizes.context, train.batch_size, seed)
    held_out = evaluation_batches(tokens.valid, sizes.context, train.batch_size, train.final_evaluation_tokens)
    evaluation = np.concatenate([batch.numpy() for batch in held_out])
    rows, highest = [], min(ORDER, int(64 / math.log2(tokens.vocabulary)))
    for steps in sorted(set(chosen.steps or [train.steps])):
        once = min(steps * train.accumulation, batches.steps_per_epoch)  # repeated text is counted once
        seen = np.concatenate([batches.batch(step).numpy() for step in range(once)])
        model = NGrams(seen, tokens.vocabulary, highest)
        for order in range(1, highest + 1):
            perplexity = model.perplexity(evaluation, order)
            origin = (tokens.manifest["corpus_sha256"], records.commit())
            values = (order, steps, seen.size, seed, round(perplexity, 4), *origin)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
            print(f"{order}-grams of {seen.size:,} tokens: perplexity {perplexity:.2f}", flush=True)
    records.write_text(Path("results") / chosen.scale / "ngrams.csv", records.csv_text(COLUMNS, rows))


if __name__ == "__main__":
    run_main(main)
