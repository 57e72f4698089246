"""What the paper concludes from Table 1 (Sections 4.3 and 5.1, Appendix A), as conditions on seven sensitivities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

Sensitivities = Mapping[str, float]
"""Sensitivity by core."""
SOFTMAX_BASED = ("softmax", "window_softmax", "sigma_reparam")
ENTROPY_STABLE = ("qk_layernorm", "relu")
ORDER = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", "relu")
"""Table 1 from the highest to the lowest."""
COMPARABLE = 0.10
"""Sensitivities are comparable within this fraction of the larger: in Table 1 sigmaReparam is 5 % below softmax."""


def _below(lower: tuple[str, ...], upper: tuple[str, ...]) -> Callable[[Sensitivities], bool]:
    return lambda s: max(s[core] for core in lower) < min(s[core] for core in upper)


def _comparable(s: Sensitivities) -> bool:
    one, other = s["sigma_reparam"], s["softmax"]
    return abs(one - other) <= COMPARABLE * max(one, other)


def _in_order(s: Sensitivities) -> bool:
    return all(s[higher] > s[lower] for higher, lower in itertools.pairwise(ORDER))


CONCLUSIONS: dict[str, Callable[[Sensitivities], bool]] = {
    "stable_below_softmax": _below(ENTROPY_STABLE, SOFTMAX_BASED),
    "relu_lowest": _below(("relu",), ORDER[:-1]),
    "softmax_highest": _below(ORDER[1:], ("softmax",)),
    "window_below_softmax": _below(("window_softmax",), ("softmax",)),
    "sigma_like_softmax": _comparable,
    "kernels_below_softmax": _below(("elu", "sigmoid"), ("softmax", "sigma_reparam")),
    "whole_order": _in_order,
}
"""Whether a conclusion holds of given sensitivities, by name."""
