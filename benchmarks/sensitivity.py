"""Many small Transformers at once against one after the other: `python -m benchmarks.sensitivity`.

The other side is what a user would write: one `torch.nn.Module`, `torch.optim.SGD`, a loop over learning rates and
seeds. Same models, same batches, same losses: within 1e-6 in float64 over 20 steps at rates up to 1e-3, which
tests/sensitivity holds. In float32, in which both sides are timed and the sweep is trained, the order of additions is
another, and what rounding does grows with the gradients: at the table's setting, rates 1e-5 to 1e-3 and 20 steps,
losses differ by up to 4e-4 of themselves with QK-LayerNorm, 3e-2 with the ReLU kernel, and not at all alike with
sigmaReparam, which is chaotic at its lowest rates with gradients of some 6,000 (8.75 against 5.84 at rate 1e-5, seed
0, step 16); with the others by 2e-7.

Writes results/bench/sensitivity.json: seconds a step of all 95 models, and their ratio, for several batch sizes. Models
are made, and take a first step, before the clock starts. With one thread both sides are timed in processor time, which
other work on the machine disturbs least; with more, by the clock.

`floors`: what softmax attention of such a step costs as single kernels of PyTorch on contiguous inputs, without
autograd and everything else, in turn with the two sides. `floor_ratio`, 95 single steps over it, is how much faster a
stack made of these kernels could be at most. It is no bound of mathematics: kernels made for such shapes could be
faster.

`split`: the stack divided over processes of one thread each, by the clock, against one after the other in one process
(`ratio_one_core`, what a user has) and in as many processes (`ratio_every_core`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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
from aero.sensitivity.regression import Batches
from aero.sensitivity.setting import LAYERS, TOKENS, Setting, learning_rates
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


def kernels(matrices: int, queries: int, width: int) -> dict[str, Callable[[], Tensor]]:
    """Softmax attention of one layer, forward and backward, as single kernels on `matrices` of `queries` x TOKENS.

    Not in it: the products with W_Q, W_K and W_V, residual connections, the loss, the update.
    """
    rows, key, value = (torch.randn(matrices, n, width) for n in (queries, TOKENS, TOKENS))
    logits = rows @ key.mT
    p, d_update = logits.softmax(-1), torch.randn_like(rows)
    d_p = d_update @ value.mT
    d_logits = torch._softmax_backward_data(d_p, p, -1, p.dtype)
    return {
        "QK^T": lambda: torch.bmm(rows, key.mT),
        "softmax": lambda: logits.softmax(-1),
        "PV": lambda: torch.bmm(p, value),
        "dP": lambda: torch.bmm(d_update, value.mT),
        "dV": lambda: torch.bmm(p.mT, d_update),
        "softmax backward": lambda: torch._softmax_backward_data(d_p, p, -1, p.dtype),
        "dQ": lambda: torch.bmm(d_logits, key),
        "dK": lambda: torch.bmm(d_logits.mT, rows),
    }


def seconds_of_kernels(setting: Setting, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each of `kernels` in a step of all 95 models: LAYERS - 1 layers of every query, the last of one."""
    matrices, found = len(RATES) * len(SEEDS) * setting.batch, {}
    for queries, layers in ((TOKENS, LAYERS - 1), (1, 1)):
        for name, kernel in kernels(matrices, queries, setting.width).items():
            kernel()
            began = clock()
            for _ in range(setting.steps):
                kernel()
            found[name] = found.get(name, 0.0) + layers * (clock() - began) / setting.steps
    return found


def compare(core: Core, setting: Setting, threads: int) -> tuple[dict[str, float], dict[str, object]]:
    """All sides interleaved, medians of REPEATS; `ratio` is 95 single steps over one step of all. And the same of the
    floor."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    together, single, floors = [], [], []
    for _ in range(REPEATS):
        together.append(seconds_together(core, setting, clock))
        single.append(seconds_one_by_one(core, setting, clock))
        floors.append(seconds_of_kernels(setting, clock))
    models, sizes = len(RATES) * len(SEEDS), {"threads": threads, "batch": setting.batch}
    floor = median(sum(parts.values()) for parts in floors)
    line = {
        **sizes,
        "together_s": median(together),
        "one_s": median(single),
        "ratio": models * median(single) / median(together),
    }
    return line, {
        **sizes,
        "kernels_s": {name: median(parts[name] for parts in floors) for name in floors[0]},
        "floor_s": floor,
        "floor_ratio": models * median(single) / floor,
    }


def split(name: str, setting: Setting, processes: int) -> dict[str, object]:
    """The stack divided by learning rates over processes of one thread, by the clock, medians of REPEATS.

    A step of all takes as long as that of the slowest process. one_s: a step of a single model while the others wait;
    each_s: while all processes do the same.
    """
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(processes), context.Queue()
    parts = [RATES[place::processes] for place in range(processes)]
    workers = [
        context.Process(target=_work, args=(place, part, name, setting, barrier, found), daemon=True)
        for place, part in enumerate(parts)
    ]
    for worker in workers:
        worker.start()
    rows = [found.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    alone = next(one for _, one, _ in rows if one)
    slowest = [max(times) for times in zip(*(together for together, _, _ in rows), strict=True)]
    each = [sum(times) / processes for times in zip(*(many for _, _, many in rows), strict=True)]
    models = len(RATES) * len(SEEDS)
    return {
        "core": name,
        "batch": setting.batch,
        "processes": processes,
        "together_s": median(slowest),
        "one_s": median(alone),
        "each_s": median(each),
        "ratio_one_core": models * median(alone) / median(slowest),
        "ratio_every_core": models * median(each) / processes / median(slowest),
    }


def _work(place: int, rates: tuple[float, ...], name: str, setting: Setting, barrier, found) -> None:
    """One of `split`'s processes: its part of the stack, a single model in the first alone, and one in each."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    core, together, alone, each = CORES[name], [], [], []
    for _ in range(REPEATS):
        barrier.wait()
        together.append(seconds_together(core, setting, time.perf_counter, rates))
        barrier.wait()
        if place == 0:
            alone.append(seconds_one_by_one(core, setting, time.perf_counter))
        barrier.wait()
        each.append(seconds_one_by_one(core, setting, time.perf_counter))
    found.put((together, alone, each))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--cores", nargs="+", default=["softmax", "qk_layernorm", "relu"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--processes", type=int, default=2, help="of one thread, to split the stack over; 1: none")
    parser.add_argument("--to", type=Path, default=Path("results/bench/sensitivity.json"))
    chosen = parser.parse_args(arguments)
    setting = Setting(**load().sensitivity.experiment(), steps=STEPS)
    torch.set_flush_denormal(True)
    started, load_before = records.now(), os.getloadavg()[0]
    lines, floors, splits = [], [], []
    for name in chosen.cores:
        for batch in chosen.batches:
            of_batch = replace(setting, batch=batch)
            for threads in chosen.threads:
                line, floor = compare(CORES[name], of_batch, threads)
                lines.append({"core": name} | line)
                floors += [floor] if name == "softmax" else []
            if chosen.processes > 1:
                splits.append(split(name, of_batch, chosen.processes))
    result = {
        "models": len(RATES) * len(SEEDS),
        "setting": str(setting),
        "load_before": load_before,
        "lines": lines,
        "floors": floors,
        "split": splits,
        "provenance": records.provenance(torch=torch.__version__, started=started),
    }
    write_text(chosen.to, json.dumps(result, indent=1) + "\n")
    for line in lines:
        print(
            f"{line['core']:14} batch {line['batch']:3} threads {line['threads']}: "
            f"all {1e3 * line['together_s']:.1f} ms, one {1e3 * line['one_s']:.2f} ms, ratio {line['ratio']:.1f}"
        )
    for floor in floors:
        print(
            f"softmax, kernels  batch {floor['batch']:3} threads {floor['threads']}: {1e3 * floor['floor_s']:.1f} ms, "
            f"ratio at most {floor['floor_ratio']:.1f}"
        )
    for line in splits:
        print(
            f"{line['core']:14} batch {line['batch']:3} in {line['processes']} processes: all "
            f"{1e3 * line['together_s']:.1f} ms, ratio {line['ratio_one_core']:.1f} against one core, "
            f"{line['ratio_every_core']:.1f} against as many"
        )


if __name__ == "__main__":
    main()
