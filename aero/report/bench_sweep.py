"""What stands beside the speed of the learning-rate sweep: the floor of single kernels, and the split stack."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from aero.report.bench import file_of
from aero.report.marks import number


def beside_the_sweep(found: Mapping[str, Any], batch: int) -> str:
    """What the stack could be at most as single kernels, and what it is over several processes, at one batch size."""
    source, parts = file_of("sensitivity"), []
    for one in found.get("floors", ()):
        if (one["batch"], one["threads"]) == (batch, 1):
            most = number(f"{one['floor_ratio']:.1f}", "paper_dimensions", source)
            parts.append(f"PyTorch’s kernels of softmax attention alone would allow {most} there, on one thread.")
    splits = [one for one in found.get("split", ()) if one["batch"] == batch]
    if splits:
        told = (
            f"{escape(one['core'])} "
            + number(f"{one['ratio_one_core']:.1f}", "paper_dimensions", source)
            + " ("
            + number(f"{one['ratio_every_core']:.1f}", "paper_dimensions", source)
            + ")"
            for one in splits
        )
        parts.append(
            f"Split over {splits[0]['processes']} processes of one thread, by the clock, against one after the other "
            f"on one core (on as many cores): {', '.join(told)}."
        )
    return "".join(f"{part} " for part in parts)
