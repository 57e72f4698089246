"""The learning-rate sweep as rows of result files: final losses of every core, rate and seed, and how training went.

Shapes: R rates, K seeds, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aero.attention_kernels import Core
from aero.sensitivity.metric import clipped, final_losses
from aero.sensitivity.stacked import Trained

LOOKS = 100
"""Times that a training is shown, at equal distances."""
LAST_LOOKS = 10
"""Steps that are shown besides before a divergence: a training can go from its loss to overflow in as many."""
Row = dict[str, Any]


def loss_rows(
    core: str, trained: Trained, rates: Sequence[float], seeds: Sequence[int], window: int, initial: str = "measured"
) -> list[Row]:
    """A row for every rate and seed; final_loss is empty for a diverged training.

    initial_loss: l_0, of the untrained models ("measured") or of predicting 0 ("zero"). It and zero_loss are means over
    the batches of final_loss, so that their difference is not that of two samples. largest_gradient_norm: of those
    whose square is finite, in float32 those below 1.8e19 (`Stack.step`). entropy, frobenius: at the last step, means
    over layers, empty for a diverged training.
    """
    window = min(window, len(trained.losses))
    final, zero = final_losses(trained.losses, window), final_losses(trained.zero_losses, window)
    untrained = zero if initial == "zero" else final_losses(trained.untrained_losses, window)
    rows = []
    for r, rate in enumerate(rates):
        for k, seed in enumerate(seeds):
            diverged = diverged_at(trained.losses[:, r, k])
            seen = {
                name: "" if diverged != "" else number(trained.seen[name][-1, r, k].mean())
                for name in ("entropy", "frobenius")
            }
            rows.append(
                {
                    "core": core,
                    "rate": f"{rate:g}",
                    "seed": seed,
                    "initial_loss": number(untrained[k]),
                    "zero_loss": number(zero[k]),
                    "final_loss": number(final[r, k]),
                    "diverged_at_step": diverged,
                    "largest_gradient_norm": largest(trained.gradient_norms[:, r, k]),
                    **seen,
                }
            )
    return rows


def diverged_at(losses: Tensor) -> int | str:
    """First step (from 0) whose loss is not finite, "" if there is none."""
    broken = (~torch.isfinite(losses)).nonzero()
    return int(broken[0]) if len(broken) else ""


def figure_rate(trained: Mapping[str, Trained], rates: Sequence[float], window: int) -> float | None:
    """The learning rate whose training Figures 1, 6, 8 and 9 show; the paper does not say which it was.

    The lowest at which most trainings with softmax end no lower than they began, and most with the ReLU kernel or
    with QK-LayerNorm end lower; None if there is no such rate.
    """
    failed = {}
    for core in ("softmax", "relu", "qk_layernorm"):
        final, initial = (
            final_losses(losses, min(window, len(losses)))
            for losses in (trained[core].losses, trained[core].untrained_losses)
        )
        failed[core] = (clipped(final, initial) >= initial).double().mean(1) > 0.5  # (R,)
    chosen = failed["softmax"] & ~(failed["relu"] & failed["qk_layernorm"])
    return next((rate for rate, yes in zip(rates, chosen.tolist(), strict=True) if yes), None)


def shown(trained: Trained, rate: int, seed: int) -> list[int]:
    """Places among `trained.looked` of the steps that are shown of one training: LOOKS of them at equal distances, the
    last one, and the LAST_LOOKS ones before a divergence. The last step of a diverged training is the one whose loss is
    not finite, if its attention is.
    """
    finite = torch.isfinite(trained.seen["entropy"][:, rate, seed]).all(-1)
    diverged = diverged_at(trained.losses[:, rate, seed])
    end = len(trained.losses) - 1 if diverged == "" else int(diverged)
    there = [place for place, step in enumerate(trained.looked) if step <= end and finite[place]]
    last = set(there[-1:] if diverged == "" else there[-LAST_LOOKS:])
    every = max(1, len(trained.losses) // LOOKS)
    return [place for place in there if trained.looked[place] % every == 0 or place in last]


def trace_rows(name: str, trained: Trained, rate: int, seeds: Sequence[int]) -> list[Row]:
    """Training behaviour at one rate (its place in the grid): a row a seed and step that is `shown`.

    loss: the largest since the row before, this step's included, so that no spike is missed, and gradient_norm
    likewise; empty where none of them is finite (`Stack.step`). entropy, frobenius, variance (of the logits of a row):
    means over layers; entropy_std over layers.
    """
    rows = []
    for k, seed in enumerate(seeds):
        begin = 0
        for look in shown(trained, rate, k):
            step = trained.looked[look]
            entropy = trained.seen["entropy"][look, rate, k]
            rows.append(
                {
                    "core": name,
                    "seed": seed,
                    "step": step,
                    "loss": largest(trained.losses[begin : step + 1, rate, k]),
                    "gradient_norm": largest(trained.gradient_norms[begin : step + 1, rate, k]),
                    "entropy": number(entropy.mean()),
                    "entropy_std": number(entropy.std(correction=0)),
                    "frobenius": number(trained.seen["frobenius"][look, rate, k].mean()),
                    "variance": number(trained.seen["variance"][look, rate, k].mean()),
                }
            )
            begin = step + 1
    return rows


def gain_rows(name: str, core: Core, trained: Trained, rate: int, seeds: Sequence[int]) -> list[Row]:
    """gamma, logits' variance and entropy of every layer and seed at one rate; none for a core without gains."""
    if core.gains is None:
        return []
    return [
        {
            "core": name,
            "seed": seed,
            "step": trained.looked[look],
            "layer": layer,
            **{key: number(trained.seen[key][look, rate, k, layer]) for key in GAIN_KEYS},
        }
        for k, seed in enumerate(seeds)
        for look in shown(trained, rate, k)
        for layer in range(trained.seen["entropy"].shape[-1])
    ]


GAIN_KEYS = ("gain_q", "gain_k", "variance", "entropy")


def largest(values: Tensor) -> str:
    """The largest finite one, "" if there is none."""
    finite = values[torch.isfinite(values)]
    return number(finite.max()) if len(finite) else ""


def number(value: Tensor) -> str:
    """Six significant digits; "" for what is not finite."""
    value = value.item()
    return f"{value:.6g}" if math.isfinite(value) else ""
