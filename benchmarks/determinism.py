"""How equal trainings of the same commit, seed and corpus are: results/robustness/determinism.json.

python -m benchmarks.determinism [--scale SCALE[:RUN,RUN...]]...

Each training runs in a process of its own. Compared with the first: the same again, two threads, older vector
instructions of PyTorch, MKL and oneDNN, which stand for another machine, and the result of this very training that
results/ keeps, which may be of another machine indeed. The corpus is made once for all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from aero import provenance
from aero.errors import UserError, run_main
from aero.pipeline import ROOT
from aero.training.log import read, write_text

OUT = Path("results/robustness/determinism.json")
RUNS = ("sm-ln-g", "sm-r", "ereg-smt-scfuffni-6")
OLDER = {
    "AVX2 instructions": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "SSE instructions": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}
KEPT = "the kept result"
Found = tuple[list[float], float | None, list[float], bytes]


def trained(folder: Path, scale: str, run: str, name: str, threads: int, environment: dict[str, str]) -> Found:
    """(logged losses, evaluation perplexity, entropies of the heads, checkpoint's bytes) of one training."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["scale"] = scale
    values["scales"][scale]["train"]["threads"] = threads
    write_text(folder / "params.yaml", yaml.safe_dump(values, sort_keys=False))
    out = folder / name
    commands = [["stages.train", run, "--out", str(out)], ["stages.entropy", run, "--folder", str(out)]]
    if not (folder / "runs/tokens").is_dir():
        commands.insert(0, ["stages.tokenize"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)} | environment
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{run} at scale {scale} with {name} failed: {done.stderr.strip()[-300:]}")
    return results_in(out)


def results_in(folder: Path) -> Found:
    """What a training and its entropies left in `folder`; no bytes where no checkpoint is kept."""
    losses = [row["train_loss"] for row in read(folder / "log.csv") if row["train_loss"] is not None]
    metrics, entropy = (json.loads((folder / f"{part}.json").read_text()) for part in ("metrics", "entropy"))
    heads = [value for layer in entropy["entropy_mean"] for value in layer if value is not None]
    weights = folder / "checkpoint.safetensors"
    return losses, metrics["eval_perplexity"], heads, weights.read_bytes() if weights.is_file() else b""


def others(folder: Path, scale: str, run: str) -> Iterator[tuple[str, Found]]:
    """What the first training in `folder` is compared with, and its name."""
    first, keep = folder / f"{run} first", ROOT / "results" / scale / run
    if (keep / "entropy.json").is_file():
        ours, theirs = (json.loads((one / "metrics.json").read_text()) for one in (first, keep))
        if ours["config_hash"] == theirs["config_hash"]:  # the very training, not one by another recipe
            yield f"{KEPT} of {theirs['provenance']['started'][:10]}", results_in(keep)
    variants = {"the same again": (1, {}), "2 threads": (2, {})}
    variants |= {what: (1, environment) for what, environment in OLDER.items()}
    for what, (threads, environment) in variants.items():
        yield what, trained(folder, scale, run, f"{run} {what}", threads, environment)


def difference(one: list[float], other: list[float], relative: bool) -> float | None:
    """The largest difference of two lists of equal length, relative to the first; None if they have not the same."""
    if len(one) != len(other) or not one or not all(map(math.isfinite, [*one, *other])):
        return None
    return max(abs(b - a) / (abs(a) if relative else 1) for a, b in zip(one, other, strict=True))


def compared(first: Found, second: Found) -> dict[str, Any]:
    perplexities = [[found[1]] if found[1] is not None else [] for found in (first, second)]
    return {
        "identical": first[:3] == second[:3] and (first[3] == second[3] or not second[3]),
        "loss": difference(first[0], second[0], True),
        "perplexity": difference(*perplexities, True),
        "entropy": difference(first[2], second[2], False),
        "steps": len(first[0]),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", action="append", help="SCALE or SCALE:RUN,RUN; may be repeated (default: smoke)")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    comparisons: list[dict[str, Any]] = []
    wanted = [text.partition(":") for text in chosen.scale or ["smoke"]]
    scales = {scale: names.split(",") if names else RUNS for scale, _, names in wanted}
    planned = sum(map(len, scales.values())) * (2 + len(OLDER))
    for scale, runs in scales.items():
        with tempfile.TemporaryDirectory(prefix="aero-determinism-") as name:
            folder = Path(name)
            for run in runs:
                first = trained(folder, scale, run, f"{run} first", 1, {})
                for what, second in others(folder, scale, run):
                    comparisons.append({"scale": scale, "run": run, "compared": what} | compared(first, second))
                    print(comparisons[-1], flush=True)
                    made = provenance.provenance(measured=provenance.now())
                    asked = sum(not line["compared"].startswith(KEPT) for line in comparisons)
                    content = {"asked": asked, "of": planned, "comparisons": comparisons, "provenance": made}
                    write_text(chosen.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
