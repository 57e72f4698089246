"""Learning-rate sensitivity, E_eta[min(l(A(eta)), l_0) - l*] (section 4.3, after Wortsman et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor


def final_losses(losses: Tensor, window: int) -> Tensor:
    """Mean over the last `window` of the training losses (steps, ...), infinite where one of them is not finite."""
    if not 1 <= window <= len(losses):
        raise ValueError(f"window must be 1 to {len(losses)} steps, got {window}")
    final = losses[-window:].double().mean(0)
    return torch.where(torch.isfinite(final), final, torch.inf)


def clipped(final: Tensor, initial: Tensor | float) -> Tensor:
    """min(l, l_0), and l_0 where training diverged (l infinite or not a number)."""
    initial = torch.as_tensor(initial, dtype=final.dtype)
    return torch.where(torch.isfinite(final), torch.minimum(final, initial), initial)


def sensitivity(final: Tensor, initial: Tensor | float) -> Tensor:
    """Sensitivity (K,) of each seed from its final losses (R, K) at R learning rates; initial: l_0, (K,) or one number.

    The rates are averaged as they stand, a uniform distribution on the paper's grid; l* is the seed's own lowest
    clipped loss. As a diverged rate counts as l_0, the result lies within [0, l_0 - l*].
    """
    losses = clipped(final, initial)
    return (losses - losses.min(0).values).mean(0)  # never below 0, whatever the rounding


def sensitivity_of_means(final: Tensor, initial: Tensor | float) -> float:
    """The sensitivity of final losses (R, K), each clipped at its seed's own l_0 and then averaged over seeds.

    The paper averages the final losses over its five runs (Figure 2) and clips at l_0 (section 4.3), but does not say
    in which order: `sensitivity_clipped_after` takes the other. l* is the lowest mean, so the result is never above the
    mean of `sensitivity` over seeds. It has no interval.
    """
    return _above_lowest(clipped(final, initial).mean(1))


def sensitivity_clipped_after(final: Tensor, initial: Tensor | float) -> float:
    """The sensitivity of final losses (R, K) averaged over seeds as they are and then clipped at the mean l_0.

    One diverged seed makes the mean of its rate infinite, so that the rate counts as l_0 whatever the others did.
    """
    initial = torch.as_tensor(initial, dtype=final.dtype)
    return _above_lowest(clipped(final.mean(1), initial.mean()))


def _above_lowest(losses: Tensor) -> float:
    return float((losses - losses.min()).mean())
