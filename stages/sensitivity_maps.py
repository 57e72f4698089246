"""Attention of the small model while it trains (`variance_sensitivity`, Figure 11): softmax and QK-LayerNorm.

`python -m stages.sensitivity_maps` trains both again at the learning rate of the figures, with the sweep's first seed.
maps.csv has the first layer's attention weights of one sequence, a row a core, step and query: at the start of the
training, at a half and at three quarters of it, and at the last steps (before softmax diverges, if it does).
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.errors import json_file, run_main
from aero.records import csv_text, write_together
from aero.sensitivity.setting import Setting, draw_batches
from aero.sensitivity.stacked import Stack
from aero.sensitivity.sweep import shown_rate

CORES_SHOWN = ("softmax", "qk_layernorm")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_maps", description=__doc__)
    parser.add_argument(
        "--to", type=Path, default=Path("results/sensitivity"), help="folder with sweep.json; maps.csv is written there"
    )
    folder = parser.parse_args(arguments).to
    about = json_file(folder / "sweep.json")
    setting = Setting(**{field.name: about["setting"][field.name] for field in fields(Setting)})
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = {core: maps(core, setting, shown_rate(about), about["seeds"][0]) for core in CORES_SHOWN}
    last = len(found["softmax"]) - 1
    rows = [
        {"core": core, "step": step, "query": query} | {f"key_{key}": f"{w:.4g}" for key, w in enumerate(weights, 1)}
        for core, by_step in found.items()
        for step in (0, last // 2, 3 * last // 4, last - 2, last - 1, last)
        for query, weights in enumerate(by_step[step].tolist(), 1)
    ]
    write_together({folder / "maps.csv": csv_text(list(rows[0]), rows)})


def maps(core: str, setting: Setting, rate: float, seed: int) -> list[Tensor]:
    """The first layer's attention (N, N) to one sequence before every step, as long as it is finite."""
    stack, batches = Stack(CORES[core], setting, (rate,), (seed,), torch.float32), draw_batches(setting, (seed,))
    found: list[Tensor] = []
    watched = next(draw_batches(setting, (seed,)))[0][:, :1]  # (1, 1, N, d + 1)
    for _ in range(setting.steps):
        seen: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            stack.forward(watched, seen)
        weights = seen[0][0][0, 0]
        if not torch.isfinite(weights).all():
            break
        found.append(weights)
        stack.step(*next(batches))
    return found


if __name__ == "__main__":
    run_main(main)
