"""Which small scale shows AERO's Table 2? Trains its six rows at candidate scales and appends one line a training.

    python -m benchmarks.scale_search --candidates d64-b32-lr1 --seeds 1337 1338 --out results/scale_search/search.csv

Every candidate keeps 12 layers (so that ScFuFFNi_6 prunes half, as in the papers) and differs in width, context, batch,
learning rate and steps. docs/decisions.md tells what came out. The runs themselves are those of the `train` stage.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from aero.config import Parameters, load
from aero.data.tokens import open_tokens
from aero.records import read_rows
from aero.training.run import train_run

TABLE_2 = ("sm-ln-g", "sm-ln-r", "sm-r", "sm-g", "sm", "sm-ln")
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "d128-b32-lr1": {"model": {"init_std": 0.02}, "train": {"steps": 320}},
    "d128-b16-lr1": {"model": {"init_std": 0.02}, "train": {"steps": 620, "batch_size": 16}},
    "d64-b32-lr1": {"model": {"width": 64, "ffn_width": 256, "init_std": 0.02}, "train": {"steps": 800}},
    "d64-b32-lr3": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 800, "learning_rate": 3e-3},
    },
    "d64-b16-lr3": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 1500, "batch_size": 16, "learning_rate": 3e-3},
    },
    "d64-b8-lr1": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 2500, "batch_size": 8},
    },
    "d64-b8-lr2": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 2500, "batch_size": 8, "learning_rate": 2e-3},
    },
    # Block matrices N(0, 0.02 sqrt(768 / d)): the pre-activations of the papers' width.
    "d64-b8-lr1-init": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.0693},
        "train": {"steps": 1500, "batch_size": 8},
    },
    "d64-b8-lr3-init": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.0693},
        "train": {"steps": 1500, "batch_size": 8, "learning_rate": 3e-3},
    },
    # Bytes instead of BPE tokens (vocabulary 257): context matters sooner than token frequencies.
    "byte-d64-b16-lr1": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 1200, "batch_size": 16},
    },
    "byte-d64-b16-lr3": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.02},
        "train": {"steps": 1200, "batch_size": 16, "learning_rate": 3e-3},
    },
    "byte-d64-b16-lr3-init": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.0693},
        "train": {"steps": 1200, "batch_size": 16, "learning_rate": 3e-3},
    },
    "byte-d64-b16-lr1-init": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.0693},
        "train": {"steps": 1200, "batch_size": 16},
    },
    "byte-d64-b16-lr2-init05": {
        "model": {"width": 64, "ffn_width": 256, "init_std": 0.045},
        "train": {"steps": 1200, "batch_size": 16, "learning_rate": 2e-3},
    },
    "byte-d96-b16-lr2": {
        "model": {"width": 96, "ffn_width": 384, "init_std": 0.02},
        "train": {"steps": 850, "batch_size": 16, "learning_rate": 2e-3},
    },
    "d96-b16-lr2": {
        "model": {"width": 96, "ffn_width": 384, "init_std": 0.02},
        "train": {"steps": 950, "batch_size": 16, "learning_rate": 2e-3},
    },
}
FIELDS = (
    "candidate",
    "run",
    "seed",
    "eval_loss",
    "eval_perplexity",
    "diverged_at_step",
    "float16_overflow_step",
    "entropy_first",
    "entropy_middle",
    "entropy_last",
    "tokens",
    "seconds",
)


def one(candidate: str, run: str, seed: int, tokens: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train one row at one candidate scale in a temporary folder and return its line."""
    values = load().at_scale("laptop").model_dump()
    for block, changes in CANDIDATES[candidate].items():
        values["scales"]["laptop"][block] |= changes
    values["scales"]["laptop"]["train"] |= overrides | {"evaluate_every": 250, "checkpoint_every": 10**6}
    parameters = Parameters.model_validate(values)
    with tempfile.TemporaryDirectory() as folder:
        metrics = train_run(parameters, run, seed, open_tokens(tokens), Path(folder), progress=False)
        last = [row for row in read_rows(Path(folder) / "log.csv") if row["eval_loss"] is not None][-1]
    layers = metrics["model"]["layers"]
    return {
        "candidate": candidate,
        "run": run,
        "seed": seed,
        **{key: metrics[key] for key in ("eval_loss", "eval_perplexity", "diverged_at_step", "tokens")},
        "float16_overflow_step": (metrics["float16_overflow"] or {}).get("step"),
        "entropy_first": last["entropy_layer_0"],
        "entropy_middle": last[f"entropy_layer_{layers // 2}"],
        "entropy_last": last[f"entropy_layer_{layers - 1}"],
        "seconds": metrics["provenance"]["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    parser.add_argument("--runs", nargs="+", default=list(TABLE_2))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tokens", default="runs/tokens")
    parser.add_argument("--steps", type=int, help="steps instead of the candidate's own")
    parser.add_argument("--out", type=Path, default=Path("results/scale_search/search.csv"))
    chosen = parser.parse_args()
    overrides = {"steps": chosen.steps} if chosen.steps else {}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    fresh = not chosen.out.exists()
    with open(chosen.out, "a", newline="", encoding="utf-8") as file, ProcessPoolExecutor(chosen.jobs) as pool:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        waiting = [
            pool.submit(one, candidate, run, seed, chosen.tokens, overrides)
            for candidate in chosen.candidates
            for seed in chosen.seeds
            for run in chosen.runs
        ]
        for future in as_completed(waiting):
            writer.writerow(future.result())
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
