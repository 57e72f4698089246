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
"""Two sensitivities are called comparable within this fraction of the larger: in Table 1 sigmaReparam is 5 % below
softmax, sigmoid 14 %."""


@dataclass(frozen=True)
class Conclusion:
    """A sentence of the paper and whether given sensitivities agree with it."""

    text: str
    where: str
    holds: Callable[[Sensitivities], bool]


def _highest(s: Sensitivities, cores: tuple[str, ...]) -> float:
    return max(s[core] for core in cores)


def _lowest(s: Sensitivities, cores: tuple[str, ...]) -> float:
    return min(s[core] for core in cores)


CONCLUSIONS: dict[str, Conclusion] = {
    "stable_below_softmax": Conclusion(
        "QK-LayerNorm and the ReLU kernel are less sensitive than every softmax-based core",
        "Section 4.3",
        lambda s: _highest(s, ENTROPY_STABLE) < _lowest(s, SOFTMAX_BASED),
    ),
    "relu_below_softmax": Conclusion(
        "The ReLU kernel is less sensitive than softmax", "Section 4.3", lambda s: s["relu"] < s["softmax"]
    ),
    "qk_below_softmax": Conclusion(
        "QK-LayerNorm is less sensitive than softmax", "Section 4.3", lambda s: s["qk_layernorm"] < s["softmax"]
    ),
    "relu_lowest": Conclusion(
        "The ReLU kernel is the least sensitive of all", "Section 4.3", lambda s: s["relu"] < _lowest(s, ORDER[:-1])
    ),
    "softmax_highest": Conclusion(
        "Softmax is the most sensitive of all", "Table 1", lambda s: s["softmax"] > _highest(s, ORDER[1:])
    ),
    "window_below_softmax": Conclusion(
        "A window makes softmax less sensitive (the paper: “only slightly”, which is not judged)",
        "Section 5.1",
        lambda s: s["window_softmax"] < s["softmax"],
    ),
    "sigma_like_softmax": Conclusion(
        f"σReparam is comparable to softmax (within {COMPARABLE:.0%})",
        "Appendix A",
        lambda s: abs(s["sigma_reparam"] - s["softmax"]) <= COMPARABLE * max(s["sigma_reparam"], s["softmax"]),
    ),
    "kernels_below_softmax": Conclusion(
        "ELU+1 and sigmoid kernels are less sensitive than softmax and σReparam",
        "Section 4.3",
        lambda s: _highest(s, KERNELS) < _lowest(s, ("softmax", "sigma_reparam")),
    ),
    "stable_below_kernels": Conclusion(
        "QK-LayerNorm and the ReLU kernel are less sensitive than ELU+1 and sigmoid kernels",
        "Table 1",
        lambda s: _highest(s, ENTROPY_STABLE) < _lowest(s, KERNELS),
    ),
    "whole_order": Conclusion(
        "The whole order of Table 1",
        "Table 1",
        lambda s: all(s[higher] > s[lower] for higher, lower in itertools.pairwise(ORDER)),
    ),
}
