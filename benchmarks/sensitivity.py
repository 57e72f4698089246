"""Many small Transformers at once against one after the other.

    python -m benchmarks.sensitivity

The other side is what a user would write: one `torch.nn.Module`, `torch.optim.SGD`, a loop over learning rates and
seeds. The models, batches and, in float64, losses are the same. Seconds a step of all 95 models and their ratio, by
batch size. With one thread both sides are timed in processor time.
Writes results/bench/sensitivity.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from aero import records
from aero.attention_kernels import CORES, Core, attended, clip_gain, clip_gain_gradient, sigma_reparam
from aero.config import load
from aero.records import write_text
from aero.sensitivity.setting import LAYERS, Batches, Setting, learning_rates
from aero.sensitivity.stacked import FIRST_ITERATIONS, Stack, initial

RATES, SEEDS = learning_rates(), (0, 1, 2, 3, 4)
STEPS, REPEATS = 10, 5
LOWEST = RATES[0]
"""The rate of the single model: one that does not diverge. All 95 start together, so none has left the stack yet."""


class Layer(nn.Module):
    """One attention layer, as the paper describes it: X (B, N, D) -> P V."""

    def __init__(self, core: Core, parameters: dict[str, Tensor], layer: int) -> None:
        super().__init__()
        self.core = core
        self.weights = nn.ParameterList(nn.Parameter(matrix.clone()) for matrix in parameters["weights"][layer])
        if "gains" in parameters:
            self.gains = nn.ParameterList(nn.Parameter(gain.clone()) for gain in parameters["gains"][layer])
        if core.reparametrised:
            self.sigma_gains = nn.ParameterList(nn.Parameter(g.clone()) for g in parameters["sigma_gains"][layer])
            self.vectors = [torch.ones(len(w), dtype=w.dtype) for w in self.weights]
            for i, w in enumerate(self.weights):
                self.vectors[i] = sigma_reparam(w, self.sigma_gains[i], self.vectors[i], FIRST_ITERATIONS)[1]

    def forward(self, x: Tensor) -> Tensor:
        weights = list(self.weights)
        if self.core.reparametrised:
            for i, w in enumerate(weights):
                weights[i], self.vectors[i] = sigma_reparam(w, self.sigma_gains[i], self.vectors[i])
        query, key, value = (x @ w for w in weights)
        gains = tuple(self.gains) if hasattr(self, "gains") else None
        return attended(self.core, query, key, value, gains)


class Single(nn.Module):
    """One attention-only Transformer: the model that `aero.sensitivity.stacked.Stack` holds many of."""

    def __init__(self, core: Core, setting: Setting, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        drawn = {name: value.to(dtype) for name, value in initial(core, setting, seed).items()}
        self.setting = setting
        self.layers = nn.ModuleList(Layer(core, drawn, layer) for layer in range(LAYERS))
        self.embedding = nn.Parameter(drawn["embedding"]) if "embedding" in drawn else None
        self.readout = nn.Parameter(drawn["readout"]) if "readout" in drawn else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = x @ self.embedding
        for layer in self.layers:
            x = x + layer(x) if self.setting.residual else layer(x)
        return x[:, -1] @ self.readout if self.readout is not None else x[:, -1, -1]


class SingleTraining:
    """One model at one learning rate, trained a step at a time."""

    def __init__(
        self, core: Core, setting: Setting, rate: float, seed: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.core, self.setting = core, setting
        self.model, self.batches = Single(core, setting, seed, dtype), Batches(setting, [seed], dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def step(self) -> float:
        """One step of SGD; the loss before it."""
        (tokens,), (targets,) = self.batches.next()
        loss = (self.model(tokens) - targets).square().mean()
        self.optimizer.zero_grad()
        (loss * (self.setting.batch if self.setting.reduction == "sum" else 1)).backward()
        gains = [gain for layer in self.model.layers for gain in getattr(layer, "gains", ())]
        if self.core.gains == "gradient_clip":
            for gain in gains:
                gain.grad = clip_gain_gradient(gain.grad)
        self.optimizer.step()
        if self.core.gains == "weight_clip":
            for gain in gains:
                clip_gain(gain)
        return loss.item()


def train_single(
    core: Core, setting: Setting, rate: float, seed: int, dtype: torch.dtype = torch.float32
) -> list[float]:
    """Losses of `setting.steps` steps of one model at one learning rate."""
    training = SingleTraining(core, setting, rate, seed, dtype)
    return [training.step() for _ in range(setting.steps)]


def seconds_together(core: Core, setting: Setting, clock: Callable[[], float], rates: Sequence[float] = RATES) -> float:
    """Seconds of a step of all models of `rates` and SEEDS at once, the mean over `setting.steps`."""
    stack, batches = Stack(core, setting, rates, SEEDS, torch.float32), Batches(setting, SEEDS)
    stack.step(*batches.next())
    began = clock()
    for _ in range(setting.steps):
        stack.step(*batches.next())
    return (clock() - began) / setting.steps


def seconds_one_by_one(core: Core, setting: Setting, clock: Callable[[], float]) -> float:
    """Seconds of a step of one model."""
    training = SingleTraining(core, setting, LOWEST, SEEDS[0])
    training.step()
    began = clock()
    for _ in range(setting.steps):
        training.step()
    return (clock() - began) / setting.steps


def compare(core: Core, setting: Setting, threads: int) -> dict[str, float]:
    """Both sides in turn, medians of REPEATS; `ratio` is 95 single steps over one step of all."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    together, single = [], []
    for _ in range(REPEATS):
        together.append(seconds_together(core, setting, clock))
        single.append(seconds_one_by_one(core, setting, clock))
    return {
        "threads": threads,
        "batch": setting.batch,
        "together_s": median(together),
        "one_s": median(single),
        "ratio": len(RATES) * len(SEEDS) * median(single) / median(together),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--cores", nargs="+", default=["softmax", "qk_layernorm", "relu"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--to", type=Path, default=Path("results/bench/sensitivity.json"))
    chosen = parser.parse_args(arguments)
    setting = Setting(**load().sensitivity.experiment(), steps=STEPS)
    torch.set_flush_denormal(True)
    started, load_before = records.now(), os.getloadavg()[0]
    lines = []
    for name in chosen.cores:
        for batch in chosen.batches:
            of_batch = replace(setting, batch=batch)
            for threads in chosen.threads:
                lines.append({"core": name} | compare(CORES[name], of_batch, threads))
    result = {
        "models": len(RATES) * len(SEEDS),
        "setting": str(setting),
        "load_before": load_before,
        "lines": lines,
        "provenance": records.provenance(torch=torch.__version__, started=started),
    }
    write_text(chosen.to, json.dumps(result, indent=1) + "\n")
    for line in lines:
        print(
            f"{line['core']:14} batch {line['batch']:3} threads {line['threads']}: "
            f"all {1e3 * line['together_s']:.1f} ms, one {1e3 * line['one_s']:.2f} ms, ratio {line['ratio']:.1f}"
        )


if __name__ == "__main__":
    main()
