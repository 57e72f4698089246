"""The CodeParrot recipe's learning rate and parameter groups (He & Hofmann settings as the authors ran them)."""

from __future__ import annotations

import torch
from torch import nn


def linear_warmup_decay(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate at `step` (0-based): linear warm-up over a fraction `warmup`, then linear decay to 0.

    Step 0 already moves (factor 1/warm-up steps), and the last step is one decrement above 0.
    """
    warmup_steps = max(1, round(warmup * steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return (steps - step) / (steps - warmup_steps + 1)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay on weight matrices, embeddings and slopes; none on biases, norms, gains, temperatures, thresholds.

    Slopes of a leaky ReLU decay, towards 0, because they did in the authors' training (relu-revival-normfree,
    train_utils.py: all that is neither LayerNorm nor named a bias or a gain). weight.original0 is the gain g (out, 1)
    of a weight norm, W = g v / |v|.
    """
    undecayed_tables = ("temperature", "reg_threshold_weights", "weight.original0")
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and not name.endswith(undecayed_tables)
        (decayed if matrix or name.endswith("leaky_slopes") else undecayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]


def make_optimizer(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], epsilon: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW as the recipe has it."""
    return torch.optim.AdamW(parameter_groups(model, weight_decay), lr=learning_rate, betas=betas, eps=epsilon)
