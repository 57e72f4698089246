"""The learning-rate sweep as rows of result files: final losses of every core, rate and seed, and training behaviour.

Shapes: R rates, K seeds, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aero.attention_kernels import Core
from aero.sensitivity.metric import clipped, final_losses
from aero.sensitivity.setting import LAYERS, learning_rates
from aero.sensitivity.stacked import Trained

PLOTTED_STEPS = 100
"""Steps of a training that the figures show, at equal distances."""
LAST_STEPS = 10
"""Steps shown in addition before a divergence, which can take as few."""
Row = dict[str, Any]


def loss_rows(
    core: str, trained: Trained, rates: Sequence[float], seeds: Sequence[int], window: int, initial: str = "measured"
) -> list[Row]:
    """One row a rate and seed; final_loss, entropy and frobenius are empty for a diverged training.

    initial_loss: l_0, of the untrained models ("measured") or of predicting 0 ("zero"), on the batches of final_loss.
    largest_gradient_norm: of the finite ones (see `Stack.step`). entropy, frobenius: at the last step, means over
    layers.
    """
    final, zero = final_losses(trained.losses, window), final_losses(trained.zero_losses, window)
    untrained = zero if initial == "zero" else final_losses(trained.untrained_losses, window)
    rows = []
    for (r, rate), (k, seed) in itertools.product(enumerate(rates), enumerate(seeds)):
        diverged = diverged_at(trained.losses[:, r, k])
        row = {
            "core": core,
            "rate": f"{rate:g}",
            "seed": seed,
            "initial_loss": _number(untrained[k]),
            "zero_loss": _number(zero[k]),
            "final_loss": _number(final[r, k]),
            "diverged_at_step": diverged,
            "largest_gradient_norm": _largest(trained.gradient_norms[:, r, k]),
        }
        for name in ("entropy", "frobenius"):
            row[name] = "" if diverged != "" else _number(trained.statistics[name][-1, r, k].mean())
        rows.append(row)
    return rows


def diverged_at(losses: Tensor) -> int | str:
    """First step (from 0) whose loss is not finite, "" if there is none."""
    broken = (~torch.isfinite(losses)).nonzero()
    return int(broken[0]) if len(broken) else ""


def figure_rate(trained: Mapping[str, Trained], rates: Sequence[float], window: int) -> float | None:
    """Learning rate of the trainings in Figures 1, 6, 8 and 9, which the paper does not print.

    The lowest at which most softmax trainings end no lower than they began while most with the ReLU kernel or with
    QK-LayerNorm end lower; None if there is no such rate.
    """

    def failed(core: str) -> Tensor:  # (R,)
        final = final_losses(trained[core].losses, window)
        initial = final_losses(trained[core].untrained_losses, window)
        return (clipped(final, initial) >= initial).double().mean(1) > 0.5

    chosen = failed("softmax") & ~(failed("relu") & failed("qk_layernorm"))
    return next(itertools.compress(rates, chosen), None)


def shown_rate(about: Mapping[str, Any]) -> float:
    """Learning rate of a sweep's traces, from its sweep.json: the middle one where `figure_rate` is None."""
    rates = learning_rates()
    return about["figure_rate"] or rates[len(rates) // 2]


def _plotted(trained: Trained, seed: int) -> list[int]:
    """The steps that the figures show: PLOTTED_STEPS at equal distances, the last, LAST_STEPS before a divergence."""
    diverged = diverged_at(trained.losses[:, 0, seed])
    observed = trained.statistics["entropy"][: None if diverged == "" else diverged + 1, 0, seed]  # (steps, L)
    usable = torch.isfinite(observed).all(-1).nonzero()[:, 0].tolist()
    last = usable[-1:] if diverged == "" else usable[-LAST_STEPS:]
    every = max(1, len(trained.losses) // PLOTTED_STEPS)
    return [step for step in usable if step % every == 0 or step in last]


def trace_rows(name: str, trained: Trained, seeds: Sequence[int]) -> list[Row]:
    """Training behaviour at one rate, observed before every step: one row a seed and plotted step.

    loss, gradient_norm: the largest since the row before, so that no spike is missed; empty where none is finite.
    entropy, frobenius, variance (of a row's logits): means over layers; entropy_std over layers.
    """
    rows = []
    for k, seed in enumerate(seeds):
        begin = 0
        for step in _plotted(trained, k):
            means = {column: _number(values[step, 0, k].mean()) for column, values in trained.statistics.items()}
            row = {"core": name, "seed": seed, "step": step}
            row["loss"] = _largest(trained.losses[begin : step + 1, 0, k])
            row["gradient_norm"] = _largest(trained.gradient_norms[begin : step + 1, 0, k])
            row["entropy"] = means["entropy"]
            row["entropy_std"] = _number(trained.statistics["entropy"][step, 0, k].std(correction=0))
            rows.append(row | {column: means[column] for column in ("frobenius", "variance")})
            begin = step + 1
    return rows


def gain_rows(name: str, core: Core, trained: Trained, seeds: Sequence[int]) -> list[Row]:
    """As `trace_rows`, of every layer: norms of gamma, variance of logits, entropy; none for a core without gains."""
    if core.gains is None:
        return []
    columns = {column: trained.statistics[column] for column in ("gain_q", "gain_k", "variance", "entropy")}
    return [
        {"core": name, "seed": seed, "step": step, "layer": layer}
        | {column: _number(values[step, 0, k, layer]) for column, values in columns.items()}
        for k, seed in enumerate(seeds)
        for step in _plotted(trained, k)
        for layer in range(LAYERS)
    ]


def _largest(values: Tensor) -> str:
    """The largest finite value, "" if there is none."""
    finite = values[torch.isfinite(values)]
    return _number(finite.max()) if len(finite) else ""


def _number(value: Tensor) -> str:
    """Six significant digits; "" for a value that is not finite."""
    value = value.item()
    return f"{value:.6g}" if math.isfinite(value) else ""
