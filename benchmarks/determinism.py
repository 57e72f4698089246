"""How equal trainings of the same commit, seed and corpus are: results/robustness/determinism.json, and for CUDA
determinism_cuda.json beside it.

python -m benchmarks.determinism [--device cpu|cuda] [--scale SCALE[:RUN,RUN...]]...

Each training runs in a process of its own, on the CPU whatever the machine has, or on CUDA. Compared with the first on
the CPU: the same again, two threads, older vector instructions of PyTorch, MKL and oneDNN, which stand for another
machine, and the result of this very training that results/ keeps, which may be of another machine indeed. Compared with
the first on CUDA: the same again, the same on the CPU, and, where the training is in float32, products in TF32 and
bfloat16 autocast. The corpus is made once for all of a scale.

The file is written after every comparison. A later call goes on with it: what the same code made of the same
parameters, with the same PyTorch on the same machine, stays, and what lacks is measured. Without --scale that is all
the file was to have (scale smoke where there is no file).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from aero import records
from aero.config import load
from aero.errors import UserError, run_main
from aero.pipeline import ROOT, import_closure
from aero.records import read_rows, write_text

FOLDER = Path("results/robustness")
FILES = {"cpu": FOLDER / "determinism.json", "cuda": FOLDER / "determinism_cuda.json"}
"""Apart, so that no visit to a GPU overwrites what a CPU made."""
RUNS = ("sm-ln-g", "sm-r", "ereg-smt-scfuffni-6")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Stages train on CUDA wherever PyTorch sees a device."""
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
TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
"""What PyTorch begins a process with; evaluations use TF32 in any case (`aero.training.compiled.tensor_cores`)."""
KEPT = "the kept result"
Found = tuple[list[float], float | None, list[float], bytes]
Line = dict[str, Any]
Plan = dict[str, list[str]]


@dataclass(frozen=True)
class Way:
    """How a training is done. precision: None for the run's own."""

    device: str = "cpu"
    threads: int = 1
    precision: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def ways(device: str, precision: str) -> dict[str, Way]:
    """What the first training on `device` is compared with, by name. precision: the run's own."""
    if device == "cpu":
        older = {what: Way(environment=environment) for what, environment in OLDER.items()}
        return {"the same again": Way(), "2 threads": Way(threads=2)} | older
    found = {"the same again": Way(device), "the CPU": Way()}
    if precision == "float32":  # what is in reduced precision already has no products in float32 to reduce
        found["TF32 products"] = Way(device, environment=TF32)
        found["bfloat16 autocast"] = Way(device, precision="bfloat16")
    return found


def trained(folder: Path, scale: str, run: str, name: str, way: Way) -> Found:
    """(logged losses, evaluation perplexity, entropies of the heads, checkpoint's bytes) of one training."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["scale"] = scale
    values["scales"][scale]["train"]["threads"] = way.threads
    if way.precision:
        values["scales"][scale]["train"]["precision"] = way.precision
    write_text(folder / "params.yaml", yaml.safe_dump(values, sort_keys=False))
    out = folder / name
    commands = [["stages.train", run, "--out", str(out)], ["stages.entropy", run, "--folder", str(out)]]
    if not (folder / "runs/tokens").is_dir():
        commands.insert(0, ["stages.tokenize_corpus"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(way.threads)} | dict(way.environment)
    if way.device == "cpu":
        env |= NO_GPU
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{run} at scale {scale} with {name} failed: {done.stderr.strip()[-300:]}")
    made = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    if (made["provenance"]["device"] == "cpu") != (way.device == "cpu"):
        raise UserError(f"{name} was to train on {way.device} and did on {made['provenance']['device']}")
    if way.precision not in (None, made["train"]["precision"]):
        raise UserError(f"{name} was to train in {way.precision} and did in {made['train']['precision']}")
    return results_in(out)


def results_in(folder: Path) -> Found:
    """What a training and its entropies left in `folder`; no bytes where no checkpoint is kept."""
    losses = [row["train_loss"] for row in read_rows(folder / "log.csv") if row["train_loss"] is not None]
    metrics, entropy = (json.loads((folder / f"{part}.json").read_text()) for part in ("metrics", "entropy"))
    heads = [value for layer in entropy["entropy_mean"] for value in layer if value is not None]
    weights = folder / "checkpoint.safetensors"
    return losses, metrics["eval_perplexity"], heads, weights.read_bytes() if weights.is_file() else b""


def others(
    folder: Path, scale: str, run: str, compared_with: Mapping[str, Way], done: Sequence[str] = ()
) -> Iterator[tuple[str, Found]]:
    """What the first training in `folder` is compared with and its name, but for what is `done`."""
    first, keep = folder / f"{run} first", ROOT / "results" / scale / run
    if (keep / "entropy.json").is_file():
        ours, theirs = (json.loads((one / "metrics.json").read_text()) for one in (first, keep))
        name = f"{KEPT} of {theirs['provenance']['started'][:10]}"
        if ours["config_hash"] == theirs["config_hash"] and name not in done:  # not one by another recipe
            yield name, results_in(keep)
    for what, way in compared_with.items():
        if what not in done:
            yield what, trained(folder, scale, run, f"{run} {what}", way)


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


def made_with(scale: str, run: str, device: str) -> str:
    """A hash of what a line comes from: code and parameters of the training, PyTorch, machine and device."""
    there = load(ROOT / "params.yaml").at_scale(scale)
    settings = [there.run(run), there.model(run), there.train(run), there.run_regularizer(run), there.active]
    corpus = there.corpus_called(there.corpus_name(run))
    code = set().union(*(import_closure(f"stages.{stage}") for stage in ("tokenize_corpus", "train", "entropy")))
    code -= {Path("aero/config.py")}  # what it reads is in the settings
    digest = hashlib.sha256()
    for path in sorted(code):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    # By json, not by pydantic, which a borrowed machine may lack.
    told = [json.dumps(part.model_dump(), sort_keys=True, default=str) for part in (*settings, corpus, there.tokenizer)]
    told += [str(there.seeds[0]), records.machine(), version("torch"), device]
    digest.update("\n".join(told).encode())
    return digest.hexdigest()[:16]


def kept(path: Path, device: str) -> tuple[list[Line], Plan]:
    """The lines of an earlier call that hold for this machine and code, and all that the file was to have."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lines = list(content["comparisons"])
        plan: Plan = {scale: list(runs) for scale, runs in content.get("plan", {}).items()}
        for line in lines:
            runs = plan.setdefault(line["scale"], [])
            runs += [line["run"]] if line["run"] not in runs else []
        now = {training: made_with(*training, device) for training in _trainings(plan)}
        return [line for line in lines if line.get("made_with") == now[line["scale"], line["run"]]], plan
    except FileNotFoundError:
        return [], {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no file of comparisons to go on with ({error!r}); move it away") from None


def _trainings(plan: Plan) -> list[tuple[str, str]]:
    return [(scale, run) for scale, runs in plan.items() for run in runs]


def cuda_device() -> str:
    """Its name. UserError where PyTorch sees none."""
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch sees no CUDA device here; --device cpu needs none (docs/gpu.md)")
    return torch.cuda.get_device_name()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(FILES), default="cpu", help="where the trainings run (default: cpu)")
    parser.add_argument("--scale", action="append", help="SCALE or SCALE:RUN,RUN; may be repeated (default: see above)")
    parser.add_argument("--out", type=Path, help="file to write and to go on with (default: by device)")
    chosen = parser.parse_args(arguments)
    out = chosen.out or FILES[chosen.device]
    device = cuda_device() if chosen.device == "cuda" else "cpu"
    parameters = load(ROOT / "params.yaml")
    lines, plan = kept(out, device)
    wanted: Plan = {} if chosen.scale else plan or {"smoke": list(RUNS)}
    for scale, _, names in (text.partition(":") for text in chosen.scale or ()):
        wanted.setdefault(scale, []).extend(names.split(",") if names else RUNS)
    by_run: dict[tuple[str, str], dict[str, Way]] = {}
    for scale, run in [*_trainings(plan), *_trainings(wanted)]:
        there = parameters.at_scale(scale)
        there.run(run)
        by_run[scale, run] = ways(chosen.device, there.train(run).precision)
        plan.setdefault(scale, [])
        plan[scale] += [run] if run not in plan[scale] else []
    order = {place: index for index, place in enumerate(by_run)}
    for scale, runs in wanted.items():
        with tempfile.TemporaryDirectory(prefix="aero-determinism-") as name:
            folder = Path(name)
            for run in dict.fromkeys(runs):
                done = [line["compared"] for line in lines if (line["scale"], line["run"]) == (scale, run)]
                if by_run[scale, run].keys() <= set(done):
                    continue
                first = trained(folder, scale, run, f"{run} first", Way(chosen.device))
                hashed = made_with(scale, run, device)
                for what, second in others(folder, scale, run, by_run[scale, run], done):
                    line = {"scale": scale, "run": run, "compared": what} | compared(first, second)
                    print(line, flush=True)
                    lines.append(line | {"commit": records.commit(), "made_with": hashed})
                    lines.sort(key=lambda line: order[line["scale"], line["run"]])
                    made = records.provenance(torch=version("torch"), device=device, measured=records.now())
                    asked = sum(not line["compared"].startswith(KEPT) for line in lines)
                    counts = {"asked": asked, "of": sum(map(len, by_run.values())), "plan": plan}
                    write_text(out, json.dumps(counts | {"comparisons": lines, "provenance": made}, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
