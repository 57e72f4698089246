"""`make bench`: this project's training step beside Hugging Face's GPT-2, interleaved, on the same weights' sizes.

Prints and writes results/bench/training_step.json: medians of interleaved repeats and their ratio. No absolute time
is a claim; the ratio is, on the machine named in the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from aero import provenance
from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training.log import write_text
from aero.training.loop import next_token_loss

SHAPES = ((128, 4, 128, 8), (128, 4, 512, 2))  # width, heads, context, batch
REPEATS = 7


def ours(width: int, heads: int, context: int) -> Callable[[torch.Tensor], torch.Tensor]:
    config = ModelConfig(1024, context, 12, heads, width, 4 * width, vo_bias=True, ffn_bias=True)
    model = GPT(parse("SM+LN+G"), config)
    return stepper(model, lambda ids: next_token_loss(model(ids), ids))


def theirs(width: int, heads: int, context: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1024,
        n_positions=context,
        n_embd=width,
        n_layer=12,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    return stepper(model, lambda ids: model(ids, labels=ids).loss)


def stepper(model: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: torch.Tensor) -> float:
        began = time.perf_counter()
        loss(ids).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began

    return step


def main() -> None:
    results = []
    for width, heads, context, batch in SHAPES:
        ids = torch.randint(0, 1024, (batch, context))
        steps = {"aero": ours(width, heads, context), "transformers": theirs(width, heads, context)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for repeat in range(REPEATS + 1):
            for name, step in steps.items():
                seconds = step(ids)
                if repeat:  # the first of each warms up
                    times[name].append(seconds)
        rate = {name: batch * context / median(values) for name, values in times.items()}
        ratios = sorted(b / a for a, b in zip(times["aero"], times["transformers"], strict=True))
        results.append(
            {
                "width": width,
                "context": context,
                "batch": batch,
                "layers": 12,
                "tokens_per_second": {name: round(value, 1) for name, value in rate.items()},
                "ratio_median": round(median(ratios), 3),
                "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
                "repeats": REPEATS,
            }
        )
        print(
            f"d={width} T={context}: {median(ratios):.2f} x transformers' tokens/s ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
    made = provenance.provenance(torch=torch.__version__, threads=torch.get_num_threads(), measured=provenance.now())
    write_text(
        Path("results/bench/training_step.json"), json.dumps({"steps": results, "provenance": made}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
