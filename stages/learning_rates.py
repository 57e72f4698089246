"""Train rows at several learning rates and write the final loss of each to results/SCALE/learning_rates.csv.

    python -m stages.learning_rates sm-ln-g sm-r --rates 1e-3 2e-3 --steps 1000 --scale desk

Finished trainings are skipped and unfinished ones resume, so the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import itertools
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from aero import records
from aero.config import Parameters, load
from aero.errors import UserError, run_main

COLUMNS = (
    "run architecture seed learning_rate warmup accumulation steps tokens eval_loss eval_perplexity diverged_at_step"
    " float16_overflow_step heads_mid_range entropy_first_layer entropy_last_layer commit"
).split()
"""heads_mid_range: fraction of heads whose mean entropy lies between 1/4 and 3/4 of the causal bound ln(T!)/T."""


def variant(parameters: Parameters, run: str, **overrides: Any) -> Parameters:
    """The parameters with `overrides` of the training settings of one run."""
    chosen = parameters.run(run)
    changed = chosen.model_copy(update={"overrides": chosen.overrides | overrides})
    return parameters.model_copy(update={"runs": parameters.runs | {run: changed}})


def train_one(scale: str, run: str, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """One row of the table; trains in runs/scales/SCALE/learning_rates/."""
    from aero.data.tokens import open_tokens
    from aero.entropy import causal_bound
    from aero.training.run import train_run

    parameters = variant(load().at_scale(scale), run, **overrides)
    tokens = open_tokens(Path("runs/scales") / scale / "tokens")
    name = "-".join([run, str(seed), *(f"{key}={value:g}" for key, value in sorted(overrides.items()))])
    folder = Path("runs/scales") / scale / "learning_rates" / name
    resolved = replace(parameters.resolve(run, seed), entropy_tokens=16384)
    metrics = train_run(resolved, tokens, folder, device="cpu", unless_done=True, checkpoint=False)
    measured = records.json_file(folder / "entropy.json")["entropy_mean"]
    heads = [[math.nan if value is None else value for value in row] for row in measured]
    shares = [value / causal_bound(metrics["context"]) for row in heads for value in row]
    copied = ("architecture", "tokens", "eval_loss", "eval_perplexity", "diverged_at_step")
    return {
        "run": run,
        "seed": seed,
        **{name: metrics["train"][name] for name in ("learning_rate", "warmup", "accumulation", "steps")},
        **{name: metrics[name] for name in copied},
        "float16_overflow_step": (metrics["float16_overflow"] or {}).get("step"),
        "heads_mid_range": sum(0.25 <= share < 0.75 for share in shares) / len(shares),
        "entropy_first_layer": sum(heads[0]) / len(heads[0]),
        "entropy_last_layer": sum(heads[-1]) / len(heads[-1]),
        "commit": metrics["provenance"]["commit"],
    }


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    numbers = (float(row[name]) for name in ("learning_rate", "warmup", "accumulation", "steps"))
    return (row["run"], int(row["seed"]), *numbers)


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Add the row, in place of an earlier one of the same training; the table stays sorted."""
    rows = {key_of(old): old for old in records.read_csv(path)} | {key_of(row): row}
    records.write_text(path, records.csv_text(COLUMNS, [rows[key] for key in sorted(rows)]))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.learning_rates", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names under `runs` in params.yaml")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="learning rates")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each training (default 1000)")
    parser.add_argument("--warmup", type=float, help="fraction of the steps (default: the scale's)")
    parser.add_argument("--accumulation", type=int, help="micro-batches a step (default: the scale's)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337], help="default: 1337")
    parser.add_argument("--scale", default="desk", help="scale (default desk)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    chosen = parser.parse_args(arguments)
    if records.commit().endswith(records.CHANGES):
        raise UserError("the source tree has uncommitted changes: commit first, so that the results name their code")
    parameters = load().at_scale(chosen.scale)
    for run in chosen.runs:
        parameters.run(run)
    fixed = {name: value for name in ("warmup", "accumulation") if (value := getattr(chosen, name)) is not None}
    path = Path("results") / chosen.scale / "learning_rates.csv"
    grid = itertools.product(chosen.rates, chosen.runs, chosen.seeds)
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(
                train_one, chosen.scale, run, seed, {"learning_rate": rate, "steps": chosen.steps} | fixed
            ): f"{run} seed {seed} at {rate:g}"
            for rate, run, seed in grid
        }
        for done in as_completed(waiting):
            row = done.result()
            write_row(path, row)
            loss = row["eval_loss"] if row["eval_loss"] is not None else math.nan
            print(f"{waiting[done]}: loss {loss:.4f}, mid-range heads {row['heads_mid_range']:.2f}", flush=True)


if __name__ == "__main__":
    run_main(main)
