"""Synthetic result files in the form the stages write."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path

import numpy as np
import yaml

from aero import config, records

PROJECT = Path(__file__).resolve().parents[2]
PARAMETERS = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
SETTINGS = config.load(PROJECT / "params.yaml")
RUNS = {
    "sm-ln-g": 30.0,
    "sm-ln-r": 31.0,
    "sm-ln": 36.0,
    "sm-g": 37.0,
    "sm-r": 33.5,
    "sm": 48.0,
    "sota-sm-scffn": 46.0,
    "sota-sm-scfuffn": 45.0,
    "sota-sm-scfuffni-1": 46.5,
    "sm-scffn": 42.0,
    "sm-scfuffn": 41.8,
    "sm-scfuffni-6": 43.0,
    "ereg-smt-scfuffn": 38.2,
    "ereg-smt-scfuffni-6": 39.0,
}
"""Perplexity of the runs of AERO's Tables 2 and 4; `sm` diverges."""
MORE_RUNS = (
    *("sm-leakyr", "sm-leakyr-global", "sm-wnorm-ffn", "sm-snorm-ffn", "smt-scfuffn", "sm-ln-g-18l", "sm-ln-r-18l"),
    *(f"sm-scfuffni-{pruned}" for pruned in range(1, 13) if pruned != 6),
    *(f"ereg-smt-scfuffn-gamma-{gamma}" for gamma in ("00", "05", "10", "15", "25", "30")),
    *(f"ereg-smt-ln-{a}{d}{g}" for a in "gr" for d in ("", "-18l") for g in ("", "-gamma-00", "-gamma-10")),
)
"""Further runs that a figure shows."""
GB = {
    "SM+LN+G": 15.3,
    "SM+LN+R": 5.5,
    "SOTA(SM+ScFFN)": 4.2,
    "SOTA(SM+ScFuFFN)": 3.8,
    "SOTA(SM+ScFuFFNi_1)": 3.8,
    "SM+ScFFN": 4.0,
    "SM+ScFuFFN": 3.7,
    "SM+ScFuFFNi_6": 3.6,
    "EReg(SM(t)+ScFuFFN)": 3.7,
    "EReg(SM(t)+ScFuFFNi_6)": 3.6,
}
HEADS, CONTEXT, STEPS = 4, 64, 500
BOUND = math.lgamma(CONTEXT + 1) / CONTEXT


def training(
    run: str,
    seed: int,
    scale: str = "laptop",
    diverged_at: int | None = None,
    perplexity: float | None = None,
    corpus_sha256: str = "ab" * 32,
) -> records.Training:
    """Metrics, log and entropies of one training: early layers high, deep ones lower, `sm` lowest."""
    architecture, layers = PARAMETERS["runs"][run]["architecture"], 18 if "-18l" in run else 12
    draw = random.Random(f"{run} {seed}")
    value = RUNS.get(run, 35.0) * (1 + draw.gauss(0, 0.004)) if perplexity is None else perplexity
    resolved = SETTINGS.at_scale(scale).resolve(run)
    nonfinite = {"step": diverged_at, "layer": layers - 1, "where": "block output"}
    provenance = {
        "commit": "c0ffee" * 6 + "abcd",
        "machine": "a processor",
        "corpus_sha256": corpus_sha256,
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 110.5,
    }
    metrics = {
        "run": run,
        "architecture": architecture,
        "scale": scale,
        "model": {"vocabulary": 1024, **resolved.sizes.model_dump()},
        "corpus": resolved.corpus.name,
        "context": resolved.sizes.context,
        "seed": seed,
        "tokens": 1008000,
        "eval_loss": None if diverged_at else math.log(value),
        "eval_perplexity": None if diverged_at else value,
        "diverged_at_step": diverged_at,
        "first_nonfinite": nonfinite if diverged_at else None,
        "tokens_per_second": 9000.0,
        "train": resolved.train.model_dump(mode="json"),
        "regularizer": None,
        "config_hash": "0" * 16,
        "provenance": provenance,
    }
    first = {"sm-g": 0.97, "sm": 0.97}.get(run, 0.55 if run.startswith("ereg") else 0.75)
    last = {"sm": 0.12, "sm-g": 0.5}.get(run, 0.6)
    levels = BOUND * np.linspace(first, last, layers)[:, None]
    mean = levels * np.array([[draw.uniform(0.93, 1.0) for _ in range(HEADS)] for _ in range(layers)])  # (L, H)
    rows = [_logged(run, step, value, mean, architecture) for step in range(20, (diverged_at or STEPS) + 1, 20)]
    return records.Training(
        metrics, _entropy(metrics, mean, draw), {name: [row.get(name) for row in rows] for name in rows[0]}
    )


def _logged(run: str, step: int, value: float, mean: np.ndarray, architecture: str) -> dict[str, float | None]:
    layers = len(mean)
    loss = math.log(value) + (math.log(1024) - math.log(value)) * math.exp(-step / 90)
    entropy = BOUND + (mean.mean(1) - BOUND) * (1 - math.exp(-step / 120))
    slopes = {"SM+LeakyR": layers, "SM+LeakyR(global)": 1}.get(architecture, 0)
    return (
        {"step": step, "tokens": step * 2016, "train_loss": loss, "eval_loss": loss if step % 100 == 0 else None}
        | {f"entropy_layer_{layer}": float(entropy[layer]) for layer in range(layers)}
        | {f"overflow_layer_{layer}": step if run == "sm" and layer > 8 else 0 for layer in range(layers)}
        | {f"slope_{layer}": 0.3 * math.sin(step / 80 + layer) for layer in range(slopes)}
    )


def _entropy(metrics: dict, mean: np.ndarray, draw: random.Random) -> dict:
    layers, architecture = len(mean), metrics["architecture"]
    maxima = {"observed": float(mean.max()), "log_T": math.log(CONTEXT), "causal_bound": BOUND}
    places = {name: np.minimum((mean / top * 4).astype(int), 3) for name, top in maxima.items()}
    quarters = {name: [float((place == q).mean()) for q in range(4)] for name, place in places.items()}
    learned: dict = {}
    if "Sc" in architecture:
        learned |= {"alpha": [1 + 0.1 * i for i in range(layers)], "beta": [2 - 0.05 * i for i in range(layers)]}
    if "EReg" in architecture:
        learned["thresholds"] = [[0.5 + 0.01 * draw.gauss(0, 1) for _ in range(HEADS)] for _ in range(layers)]
    if "SM(t)" in architecture:
        learned["temperature_mean"] = [[0.01 * (1 + i + h) for h in range(HEADS)] for i in range(layers)]
        learned["temperature_by_position"] = [[0.01 * (1 + i / (1 + t)) for t in range(CONTEXT)] for i in range(layers)]
    return {
        "run": metrics["run"],
        "seed": metrics["seed"],
        "tokens": 65536,
        "provenance": metrics["provenance"],
        "entropy_mean": mean.tolist(),
        "entropy_median": (1.1 * mean).tolist(),
        "maximum": maxima,
        "quarters": quarters,
        "overload": {"fraction": quarters["observed"][3], "layers": [0, 1]},
        "collapse": {"fraction": quarters["observed"][0], "layers": []},
        "learned": learned,
    }


def write_run(folder: Path, run: str, seed: int, **changes: object) -> None:
    """The three files of a fresh training in `folder`, runs/RUN/seed_SEED. changes: as of `training`."""
    made = training(run, seed, **changes)
    names = list(made.curves)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*made.curves.values(), strict=True)]
    records.write_text(folder / "metrics.json", json.dumps(made.metrics))
    records.write_text(folder / "entropy.json", json.dumps(made.entropy))
    records.write_text(folder / "log.csv", records.csv_text(names, rows))


def write_costs(folder: Path) -> None:
    """rows.csv and ops.csv of the two-party measurements; the tuned program needs 0.4 times the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = ("architecture", "model", "context", "program", "bytes", "messages", "rounds", "seconds")
        writer.writerow((*names, "latency_wan_s", "latency_lan_s", "method", "max_logit_error", "setup_bytes"))
        for architecture, amount in GB.items():
            for program, factor in (("as_written", 1.0), ("tuned", 0.4)):
                size, seconds = round(amount * factor * 1e9), amount * factor * 50
                line = (architecture, "gpt2", 128, program, size, 150000, 3000, seconds)
                writer.writerow(
                    (*line, seconds + size / 2.5e7 + 240, seconds + size / 2.5e8 + 3, "composed", "", 22000000)
                )
    (folder / "ops.csv").write_text(
        "op,shape,model,context,variant,bytes_sent_client,bytes_sent_server,messages,rounds,setup_bytes,seconds\n"
        "softmax,12x128x128,gpt2,128,as_written,115000000,115000000,900,70,22000000,11.0\n",
        encoding="utf-8",
    )


def project(
    root: Path,
    seeds: tuple[int, ...] = (1337, 1338, 1339),
    runs: tuple[str, ...] = tuple(RUNS),
    costs: bool = True,
    scale: str = "laptop",
) -> Path:
    """A project folder in `root` with params.yaml and, below `results`, results for `runs`."""
    root.mkdir(parents=True, exist_ok=True)
    values = yaml.dump(PARAMETERS | {"scale": scale}, Dumper=yaml.CSafeDumper)
    (root / "params.yaml").write_text(values, encoding="utf-8")
    made = [training(run, seed, scale, diverged_at=180 if run == "sm" else None) for run in runs for seed in seeds]
    if made:
        records.write_trainings(root / "results" / scale, made)
    if costs:
        write_costs(root / "results" / "two_party")
    return root
