"""Learning rates, optimisers and parameter groups of the two recipes: CodeParrot's and Languini's."""

from __future__ import annotations

import math

import torch
from torch import nn

from aero.schema import TrainParameters

LARGE = 2**20
"""Parameters from which a model trains with faster kernels on a CPU, whose last bits differ. The laptop scale's models
are smaller."""


def learning_rate_factor(settings: TrainParameters, step: int) -> float:
    """Factor on the learning rate at `step` (0-based), by the settings' schedule.

    linear (CodeParrot): warm-up, then decay to 0. Step 0 already moves (factor 1/warmup_steps), and the last step is
    one decrement above 0. cosine (Languini): a cosine from 1 to the final rate over all steps, times a linear ramp over
    the first `warmup_steps`; languini-kitchen's `CosineLR` counts steps from 1.
    """
    steps = settings.steps
    warmup_steps = settings.warmup_steps or max(1, round(settings.warmup * steps))
    if settings.schedule == "cosine":
        final = settings.final_learning_rate / settings.learning_rate
        cosine = final + (1 - final) * (1 + math.cos(math.pi * (step + 1) / steps)) / 2
        return cosine * min(step + 1, warmup_steps) / warmup_steps
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return (steps - step) / (steps - warmup_steps + 1)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay on weight matrices, embeddings and slopes; none on biases, norms, gains, temperatures, thresholds.

    Slopes of a leaky ReLU decay towards 0, as in the authors' training (relu-revival-normfree, train_utils.py: all but
    LayerNorm and parameters named bias or gain). weight.original0 is the gain g (out, 1)
    of a weight norm, W = g v / |v|.
    """
    undecayed_tables = ("temperature", "temperature.original", "reg_threshold_weights", "weight.original0")
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and not name.endswith(undecayed_tables)
        (decayed if matrix or name.endswith("leaky_slopes") else undecayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]


def make_optimizer(model: nn.Module, settings: TrainParameters, fused: bool = False) -> torch.optim.Optimizer:
    """AdamW (CodeParrot's recipe) or Adam (Languini's, with a weight decay of 0).

    fused: one kernel for the whole update of a weight; always used for a large model on a CPU.
    """
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[settings.optimizer]
    groups = parameter_groups(model, settings.weight_decay)
    fused = fused or takes_faster_kernels(model)
    return kind(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=fused or None)


def takes_faster_kernels(model: nn.Module) -> bool:
    """Whether `model` is on a CPU and has LARGE parameters or more."""
    parameters = list(model.parameters())
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    return on_cpu and sum(parameter.numel() for parameter in parameters) >= LARGE
