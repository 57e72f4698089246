"""Learning-rate sensitivity, E_eta[min(l(A(eta)), l_0) - l*] (section 4.3, after Wortsman et al. 2024).

Shapes: R learning rates, K seeds. l_0 is the loss at initialisation, l* the lowest clipped loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

TRAINS = 0.5
"""A learning rate trains if its final loss is below this fraction of the loss of predicting 0."""


def final_losses(losses: Tensor, window: int) -> Tensor:
    """Mean of the last `window` training losses (steps, ...); infinite where one of them is not finite."""
    if not 1 <= window <= len(losses):
        raise ValueError(f"window must be 1 to {len(losses)} steps, got {window}")
    final = losses[-window:].double().mean(0)
    return torch.where(torch.isfinite(final), final, torch.inf)


def clipped(final: Tensor, initial: Tensor | float) -> Tensor:
    """min(l, l_0), and l_0 where training diverged (l infinite or NaN)."""
    initial = torch.as_tensor(initial, dtype=final.dtype)
    return torch.where(torch.isfinite(final), torch.minimum(final, initial), initial)


def sensitivity(final: Tensor, initial: Tensor | float) -> Tensor:
    """Sensitivity (K,) of each seed from final losses (R, K); initial: l_0, (K,) or one number.

    The mean is over the grid of rates; l* is the seed's own. A diverged rate counts as l_0.
    """
    losses = clipped(final, initial)
    return (losses - losses.min(0).values).mean(0)


def sensitivity_of_means(final: Tensor, initial: Tensor | float) -> float:
    """Sensitivity of final losses (R, K), each clipped at its seed's l_0 and then averaged over seeds.

    The paper averages final losses over five runs (Figure 2) and clips at l_0 (section 4.3) but does not print the
    order; `sensitivity_clipped_after` is the other one.
    """
    losses = clipped(final, initial).mean(1)
    return float((losses - losses.min()).mean())


def sensitivity_clipped_after(final: Tensor, initial: Tensor | float) -> float:
    """Sensitivity of final losses (R, K) averaged over seeds and then clipped at the mean l_0.

    One diverged seed makes the mean of its rate infinite, so that rate counts as l_0.
    """
    initial = torch.as_tensor(initial, dtype=final.dtype)
    losses = clipped(final.mean(1), initial.mean())
    return float((losses - losses.min()).mean())


def trained_decades(rates: Iterable[float], losses: Iterable[float], zero_loss: float) -> float | None:
    """log10 of the highest over the lowest rate that trains, None if none does. zero_loss: that of predicting 0."""
    trained = [rate for rate, loss in zip(rates, losses, strict=True) if loss < TRAINS * zero_loss]
    return math.log10(max(trained) / min(trained)) if trained else None
