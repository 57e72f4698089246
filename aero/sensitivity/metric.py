"""Learning-rate sensitivity, E_eta[min(l(A(eta)), l_0) - l*] (section 4.3, after Wortsman et al. 2024), and what the
paper concludes from Table 1 (Sections 4.3 and 5.1, Appendix A), as conditions on seven sensitivities.

Shapes: R learning rates, K seeds. l_0 is the loss at initialisation, l* the lowest clipped loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

SOFTMAX_BASED = ("softmax", "window_softmax", "sigma_reparam")
ORDER = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", "relu")
"""Table 1 from the highest to the lowest."""
TRAINS = 0.5
"""A learning rate trains if its final loss is below this fraction of the loss of predicting 0."""


def final_losses(losses: Tensor, window: int) -> Tensor:
    """Mean of the last `window` training losses (steps, ...), or of all of a shorter training; infinite where one of
    them is not finite."""
    final = losses[-window:].double().mean(0)
    return torch.where(torch.isfinite(final), final, torch.inf)


def clipped(final: Tensor, initial: Tensor | float) -> Tensor:
    """min(l, l_0), and l_0 where training diverged (l infinite or NaN)."""
    return torch.fmin(final, torch.as_tensor(initial, dtype=final.dtype))  # ignores NaN


def _above_lowest(losses: Tensor) -> Tensor:
    """Mean over learning rates (R, ...) of the losses minus their lowest."""
    return (losses - losses.min(0).values).mean(0)


def sensitivity(final: Tensor, initial: Tensor | float) -> Tensor:
    """Sensitivity (K,) of each seed from final losses (R, K); initial: l_0, (K,) or one number.

    The mean is over the grid of rates; l* is the seed's own. A diverged rate counts as l_0.
    """
    return _above_lowest(clipped(final, initial))


def sensitivity_of_means(final: Tensor, initial: Tensor | float) -> float:
    """Sensitivity of final losses (R, K), each clipped at its seed's l_0 and then averaged over seeds.

    The paper averages final losses over five runs (Figure 2) and clips at l_0 (section 4.3) but does not print the
    order; `sensitivity_clipped_after` is the other one.
    """
    return float(_above_lowest(clipped(final, initial).mean(1)))


def sensitivity_clipped_after(final: Tensor, initial: Tensor | float) -> float:
    """Sensitivity of final losses (R, K) averaged over seeds and then clipped at the mean l_0.

    One diverged seed makes the mean of its rate infinite, so that rate counts as l_0.
    """
    initial = torch.as_tensor(initial, dtype=final.dtype)
    return float(_above_lowest(clipped(final.mean(1), initial.mean())))


def trained_decades(rates: Iterable[float], losses: Iterable[float], zero_loss: float) -> float | None:
    """log10 of the highest over the lowest rate that trains, None if none does. zero_loss: that of predicting 0."""
    trained = [rate for rate, loss in zip(rates, losses, strict=True) if loss < TRAINS * zero_loss]
    return math.log10(max(trained) / min(trained)) if trained else None


def _below(lower: tuple[str, ...], upper: tuple[str, ...]) -> Callable[[Mapping[str, float]], bool]:
    return lambda s: max(s[core] for core in lower) < min(s[core] for core in upper)


CONCLUSIONS: dict[str, Callable[[Mapping[str, float]], bool]] = {
    "stable_below_softmax": _below(("qk_layernorm", "relu"), SOFTMAX_BASED),
    "window_below_softmax": _below(("window_softmax",), ("softmax",)),
    # Within a tenth of the larger: in Table 1 sigmaReparam is 5 % below softmax.
    "sigma_like_softmax": lambda s: math.isclose(s["sigma_reparam"], s["softmax"], rel_tol=0.10),
    "kernels_below_softmax": _below(("elu", "sigmoid"), ("softmax", "sigma_reparam")),
}
"""Whether a conclusion holds of given sensitivities by core, by the conclusion's name."""
