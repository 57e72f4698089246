"""What the paper concludes from Table 1, as conditions on the sensitivities of its seven cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Sensitivities = Mapping[str, float]
"""Sensitivity by core."""
SOFTMAX_BASED = ("softmax", "window_softmax", "sigma_reparam")
KERNELS = ("elu", "sigmoid")
ENTROPY_STABLE = ("qk_layernorm", "relu")
ORDER = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", "relu")
"""Table 1 from the highest to the lowest."""
COMPARABLE = 0.10
"""Sensitivities are comparable within this fraction of the larger: in Table 1 sigmaReparam is 5 % below softmax."""


@dataclass(frozen=True)
class Conclusion:
    """A statement of the paper, and whether given sensitivities agree with it."""

    text: str
    where: str
    holds: Callable[[Sensitivities], bool]


def _below(lower: tuple[str, ...], upper: tuple[str, ...]) -> Callable[[Sensitivities], bool]:
    return lambda s: max(s[core] for core in lower) < min(s[core] for core in upper)


def _comparable(s: Sensitivities) -> bool:
    one, other = s["sigma_reparam"], s["softmax"]
    return abs(one - other) <= COMPARABLE * max(one, other)


CONCLUSIONS = {
    "stable_below_softmax": Conclusion(
        "QK-LayerNorm and the ReLU kernel are less sensitive than every softmax-based core",
        "Section 4.3",
        _below(ENTROPY_STABLE, SOFTMAX_BASED),
    ),
    "relu_below_softmax": Conclusion(
        "The ReLU kernel is less sensitive than softmax", "Section 4.3", _below(("relu",), ("softmax",))
    ),
    "qk_below_softmax": Conclusion(
        "QK-LayerNorm is less sensitive than softmax", "Section 4.3", _below(("qk_layernorm",), ("softmax",))
    ),
    "relu_lowest": Conclusion("The ReLU kernel is the least sensitive", "Section 4.3", _below(("relu",), ORDER[:-1])),
    "softmax_highest": Conclusion("Softmax is the most sensitive", "Table 1", _below(ORDER[1:], ("softmax",))),
    "window_below_softmax": Conclusion(
        "A window makes softmax less sensitive", "Section 5.1", _below(("window_softmax",), ("softmax",))
    ),
    "sigma_like_softmax": Conclusion(
        f"σReparam is comparable to softmax (within {COMPARABLE:.0%})", "Appendix A", _comparable
    ),
    "kernels_below_softmax": Conclusion(
        "ELU+1 and sigmoid kernels are less sensitive than softmax and σReparam",
        "Section 4.3",
        _below(KERNELS, ("softmax", "sigma_reparam")),
    ),
    "stable_below_kernels": Conclusion(
        "QK-LayerNorm and the ReLU kernel are less sensitive than ELU+1 and sigmoid kernels",
        "Table 1",
        _below(ENTROPY_STABLE, KERNELS),
    ),
    "whole_order": Conclusion(
        "The whole order of Table 1",
        "Table 1",
        lambda s: all(s[higher] > s[lower] for higher, lower in itertools.pairwise(ORDER)),
    ),
}
