"""Result files in the form the stages write, with made numbers, for tests of what is done with them. Never kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import random
from pathlib import Path
from statistics import fmean

import yaml

from aero import records

PROJECT = Path(__file__).resolve().parents[2]
RUNS = {
    "sm-ln-g": ("SM+LN+G", 30.0),
    "sm-ln-r": ("SM+LN+R", 31.0),
    "sm-ln": ("SM+LN", 36.0),
    "sm-g": ("SM+G", 37.0),
    "sm-r": ("SM+R", 33.5),
    "sm": ("SM", 48.0),
    "sota-sm-scffn": ("SOTA(SM+ScFFN)", 46.0),
    "sota-sm-scfuffn": ("SOTA(SM+ScFuFFN)", 45.0),
    "sota-sm-scfuffni-1": ("SOTA(SM+ScFuFFNi_1)", 46.5),
    "sm-scffn": ("SM+ScFFN", 42.0),
    "sm-scfuffn": ("SM+ScFuFFN", 41.8),
    "sm-scfuffni-6": ("SM+ScFuFFNi_6", 43.0),
    "ereg-smt-scfuffn": ("EReg(SM(t)+ScFuFFN)", 38.2),
    "ereg-smt-scfuffni-6": ("EReg(SM(t)+ScFuFFNi_6)", 39.0),
}
# What the figures of attention entropy need besides; in no project unless it is asked for.
MORE_RUNS = (
    {"sm-leakyr": ("SM+LeakyR", 33.0), "sm-leakyr-global": ("SM+LeakyR(global)", 33.0)}
    | {"sm-wnorm-ffn": ("SM+WNorm(FFN)", 44.0), "sm-snorm-ffn": ("SM+SNorm(FFN)", 43.0)}
    | {f"sm-scfuffni-{pruned}": (f"SM+ScFuFFNi_{pruned}", 42.0) for pruned in (1, 2, 3, 4, 5, 7)}
    | {f"ereg-smt-scfuffn-gamma-{g}": ("EReg(SM(t)+ScFuFFN)", 38.0) for g in ("00", "05", "10", "15", "25", "30")}
    | {"smt-scfuffn": ("SM(t)+ScFuFFN", 41.0)}
    | {f"sm-ln-{a.lower()}-18l": (f"SM+LN+{a}", 29.0) for a in "GR"}
    | {
        f"ereg-smt-ln-{a.lower()}{depth}{gamma}": (f"EReg(SM(t)+LN+{a})", 25.0)
        for a in "GR"
        for depth in ("", "-18l")
        for gamma in ("", "-gamma-00", "-gamma-10")
    }
)
BYTES = {
    "SM+LN+G": 15.3e9,
    "SM+LN+R": 5.5e9,
    "SOTA(SM+ScFFN)": 4.2e9,
    "SOTA(SM+ScFuFFN)": 3.8e9,
    "SOTA(SM+ScFuFFNi_1)": 3.8e9,
    "SM+ScFFN": 4.0e9,
    "SM+ScFuFFN": 3.7e9,
    "SM+ScFuFFNi_6": 3.6e9,
    "EReg(SM(t)+ScFuFFN)": 3.7e9,
    "EReg(SM(t)+ScFuFFNi_6)": 3.6e9,
}
LAYERS, HEADS, CONTEXT, STEPS, BLOCKS = 12, 4, 64, 500, 8


def write_run(
    folder: Path,
    run: str,
    seed: int,
    scale: str = "laptop",
    diverged_at: int | None = None,
    perplexity: float | None = None,
    corpus_sha256: str = "ab" * 32,
    corpus: str = "",
) -> None:
    """Add a training to results/SCALE, or write its three files to a folder of runs/. folder: results/SCALE, or a path
    below it, or the folder of a run.
    """
    architecture, centre = (RUNS | MORE_RUNS)[run]
    layers = 18 if "-18l" in run else LAYERS
    draw = random.Random(f"{run} {seed}")
    value = centre * (1 + draw.gauss(0, 0.004)) if perplexity is None else perplexity
    metrics = {
        "run": run,
        "paper_rows": [],
        "architecture": architecture,
        "scale": scale,
        "model": {
            "vocabulary": 1024,
            "context": CONTEXT,
            "layers": layers,
            "heads": HEADS,
            "width": 128,
            "ffn_width": 512,
            "parameters": 1234567,
        },
        "corpus": corpus or ("codeparrot" if scale == "paper" else "python_stdlib"),
        "context": CONTEXT,
        "seed": seed,
        "tokens": 1008000,
        "eval_loss": None if diverged_at else math.log(value),
        "eval_perplexity": None if diverged_at else value,
        "diverged_at_step": diverged_at,
        "first_nonfinite": {"step": diverged_at, "layer": 11, "where": "block output"} if diverged_at else None,
        "tokens_per_second": 9000.0,
        "train": {"steps": STEPS, "batch_size": 32, "learning_rate": 0.001, "threads": 1},
        "regularizer": None,
        "config_hash": "0" * 16,
        "provenance": {
            "commit": "c0ffee" * 6 + "abcd",
            "machine": "a processor, 2 cores, 24 GiB, Linux",
            "torch": "2.13.0",
            "corpus_sha256": corpus_sha256,
            "started": "2026-01-01T00:00:00+00:00",
            "seconds": 110.5,
        },
    }
    bound = math.lgamma(CONTEXT + 1) / CONTEXT
    overloaded = {"sm-g": 0.97, "sm": 0.97}.get(run, 0.55 if run.startswith("ereg") else 0.75)
    deep = {"sm": 0.12, "sm-g": 0.5}.get(run, 0.6)
    mean = [
        [
            bound * (overloaded + (deep - overloaded) * layer / (layers - 1)) * draw.uniform(0.93, 1.0)
            for _ in range(HEADS)
        ]
        for layer in range(layers)
    ]
    slopes = {"SM+LeakyR": layers, "SM+LeakyR(global)": 1}.get(architecture, 0)
    rows = []
    for step in range(10, (diverged_at or STEPS) + 1, 10):
        loss = math.log(value) + (math.log(1024) - math.log(value)) * math.exp(-step / 90)
        rows.append(
            {
                "step": step,
                "tokens": step * 2016,
                "train_loss": loss + draw.gauss(0, 0.02),
                "eval_loss": loss if step % 50 == 0 else None,
                "learning_rate": 0.001,
                "gradient_norm": 0.5,
                "seconds": step * 0.22,
            }
            | {
                f"entropy_layer_{i}": bound + (sum(mean[i]) / HEADS - bound) * (1 - math.exp(-step / 120))
                for i in range(layers)
            }
            | {f"overflow_layer_{i}": (step if run == "sm" and i > 8 else 0) for i in range(layers)}
            | {f"slope_{i}": 0.3 * math.sin(step / 80 + i) * math.exp(-step / 150) for i in range(slopes)}
        )
    heads = [value for layer in mean for value in layer]
    maxima = {"observed": max(heads), "log_T": math.log(CONTEXT), "causal_bound": bound}
    quarters = {
        name: [sum(min(int(h / top * 4), 3) == q for h in heads) / len(heads) for q in range(4)]
        for name, top in maxima.items()
    }
    learned = {
        "alpha": [1 + 0.1 * i for i in range(layers)] if "Sc" in architecture else None,
        "beta": [2 - 0.05 * i for i in range(layers)] if "Sc" in architecture else None,
        "thresholds": [[0.5 + 0.01 * draw.gauss(0, 1) for _ in range(HEADS)] for _ in range(layers)]
        if "EReg" in architecture
        else None,
    }
    if "SM(t)" in architecture:
        learned["temperature_mean"] = [[0.01 * (1 + i + h) for h in range(HEADS)] for i in range(layers)]
        learned["temperature_by_position"] = [[0.01 * (1 + i / (1 + t)) for t in range(CONTEXT)] for i in range(layers)]
    entropy = {
        "run": run,
        "scale": scale,
        "architecture": architecture,
        "context": CONTEXT,
        "layers": layers,
        "heads": HEADS,
        "tokens": 65536,
        "provenance": metrics["provenance"],
        "entropy_mean": mean,
        "entropy_sem": [[0.01] * HEADS] * layers,
        "entropy_median": [[1.1 * value for value in layer] for layer in mean],
        # Of every layer with the mean of its heads, as log i, the most that there can be.
        "entropy_by_position": [
            [math.log(t + 1) * fmean(layer) / (math.lgamma(CONTEXT + 1) / CONTEXT) for t in range(CONTEXT)]
            for layer in mean
        ],
        "entropy_by_position_sem": [[0.02] * CONTEXT] * layers,
        "entropy_blocks": [
            [[value + 0.01 * draw.gauss(0, 1) for value in layer] for layer in mean] for _ in range(BLOCKS)
        ],
        "maximum": maxima,
        "quarters": quarters,
        "overload": {"fraction": quarters["observed"][3], "layers": [0, 1]},
        "collapse": {"fraction": quarters["observed"][0], "layers": []},
        "rule": "stated",
        "learned": learned,
    }
    if "results" in folder.parts:
        while folder.parent.name != "results":
            folder = folder.parent
        records.write_trainings(folder, [records.Training(metrics, entropy, records.columns_of(rows))])
    else:
        records.write_text(folder / "metrics.json", json.dumps(metrics))
        records.write_text(folder / "entropy.json", json.dumps(entropy))
        records.write_text(folder / "log.csv", records.csv_text(list(rows[0]), rows))


def change(root: Path, run: str, seed: int, scale: str = "laptop", **parts: dict) -> None:
    """Replace values of a committed training: parts are `metrics`, `entropy` (None removes it) and `curves`."""
    folder = root / "results" / scale
    training = records.read_trainings(folder)[run, seed]
    changed = {name: None if part is None else (getattr(training, name) or {}) | part for name, part in parts.items()}
    records.write_trainings(folder, [dataclasses.replace(training, **changed)])


def write_costs(folder: Path) -> None:
    """rows.csv, ops.csv and end_to_end.json of the two-party measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        "architecture",
        "model",
        "context",
        "program",
        "bytes",
        "messages",
        "rounds",
        "seconds",
        "latency_wan_s",
        "latency_lan_s",
        "method",
        "max_logit_error",
        "embedding_bytes",
        "head_bytes",
        "ln_f_bytes",
        "setup_bytes",
    ]
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for architecture, amount in BYTES.items():
            for program, factor in (("as_written", 1.0), ("tuned", 0.4)):
                size, seconds = int(amount * factor), amount * factor / 2e7
                writer.writerow(
                    [
                        architecture,
                        "gpt2",
                        128,
                        program,
                        size,
                        150000,
                        3000,
                        f"{seconds:.1f}",
                        f"{seconds + size * 4 / 1e8 + 240:.1f}",
                        f"{seconds + size * 4 / 1e9 + 3:.1f}",
                        "composed",
                        "",
                        int(2.2e8),
                        int(2.5e7),
                        int(4.4e7),
                        int(2.2e7),
                    ]
                )
    (folder / "ops.csv").write_text(
        "op,shape,model,context,variant,bytes_sent_client,bytes_sent_server,messages,rounds,setup_bytes,seconds,provenance\n"
        "softmax,12x128x128,gpt2,128,as_written,115000000,115000000,900,70,22000000,11.0,"
        '"{""commit"": ""c0ffee""}"\n',
        encoding="utf-8",
    )
    entry = {
        "run": "sm-ln-g",
        "architecture": "SM+LN+G",
        "program": "as_written",
        "scale": "laptop",
        "prompts": 2,
        "tokens": CONTEXT,
        "max_logit_error": 0.004,
        "same_top_token": 2,
        "megabytes": 812.3,
        "composed_megabytes": 806.1,
        "composed_over_measured": 0.992,
        "messages": 51234.0,
        "seconds": 44.1,
        "provenance": {"commit": "c0ffee"},
    }
    (folder / "end_to_end.json").write_text(json.dumps([entry]), encoding="utf-8")


NUMBER = r'<span class="num [^>]*>(?:<a [^>]*>)?(?:<span class="mark">.</span>)?[^<]*(?:</a>)?</span>'
"""A marked number on the page, as `aero.report.marks.number` writes it."""


def project(
    root: Path,
    seeds: tuple[int, ...] = (1337, 1338, 1339),
    runs: tuple[str, ...] = tuple(RUNS),
    costs: bool = True,
    scale: str = "laptop",
) -> Path:
    """A project folder in `root` with params.yaml, the report's source and, below `results`, results for `runs`."""
    root.mkdir(parents=True, exist_ok=True)
    parameters = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8")) | {"scale": scale}
    (root / "params.yaml").write_text(yaml.safe_dump(parameters), encoding="utf-8")
    for run in runs:
        for seed in seeds:
            folder = root / "results" / scale / run
            write_run(
                folder if seed == 1337 else folder / f"seed_{seed}",
                run,
                seed,
                scale,
                diverged_at=180 if run == "sm" else None,
            )
    if costs:
        write_costs(root / "results" / "two_party")
    return root
