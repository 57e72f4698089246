"""What `make bench` left in results/bench: read once, told by tables and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from aero.report.marks import gap, number
from aero.report.unreadable import measurement
from aero.two_party.cost import ledger
from aero.two_party.cost.ledger import Measurement

FOLDER = "results/bench"
OPERATIONS = "results/two_party/ops.csv"
GROWTH = f"{FOLDER}/two_party_growth.csv"
"""Measured operations of two parties: those that passes are composed of, and those at growing sizes."""

STEP = 1.3
"""What a training step should reach of transformers' tokens a second."""


def file_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def read(root: Path, name: str) -> dict[str, Any] | None:
    """The measurements of one benchmark, None if there are none; raises as `measurement`."""
    return measurement(root, file_of(name))


def where(found: Mapping[str, Any], name: str) -> str:
    """Machine, software, commit and file of a benchmark, in a sentence."""
    made = found["provenance"]
    torch = f", PyTorch {escape(str(made['torch']))}" if made.get("torch") else ""
    return (
        f"{escape(str(made['machine']))}{torch}, commit {escape(str(made['commit'])[:10])}; "
        f"<code>{file_of(name)}</code>."
    )


def times(value: Mapping[str, float], source: str, origin: str = "smaller_scale", digits: int = 2) -> str:
    """A ratio with its range over the repeats: 1.31 (1.28–1.34)."""
    text = f"{value['median']:.{digits}f} ({value['low']:.{digits}f}–{value['high']:.{digits}f})"
    return number(text, origin, source)


def origin_of(width: int) -> str:
    """The class of a number measured at a width: the papers' own is 768."""
    return "paper_dimensions" if width == 768 else "smaller_scale"


def _kept(root: Path, path: str) -> list[Measurement]:
    return ledger.read(root / path, Measurement) if (root / path).is_file() else []


def kept_kinds(root: Path) -> set[str]:
    """Kinds of the operations that passes are composed of: softmax_plain, linear, …"""
    return {one.op.partition("(")[0] for one in _kept(root, OPERATIONS)}


def kept_seconds(root: Path, path: str) -> str:
    """Where seconds of two parties come from, of how many runs and when, in a sentence."""
    kept = _kept(root, path)
    if not kept:
        return f"Seconds are those of <code>{path}</code>, which is not here."
    runs = Counter(one.runs for one in kept)
    told = ", ".join(f"{many} of {count} run{'s' if count > 1 else ''}" for count, many in sorted(runs.items()))
    days = sorted({str(json.loads(one.provenance).get("measured", ""))[:10] for one in kept} - {""})
    when = f", measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    return (
        f"Seconds are medians of <code>{path}</code>, without a range: {told}{when}, one operation after the other, "
        "not interleaved with what they stand beside."
    )


def missing(what: str, command: str) -> str:
    return f"<p>{what}: {gap()} (<code>python -m {command}</code>).</p>"


def against(target: float, value: float, most: bool = False) -> str:
    """Whether a target is met, in words."""
    met = value <= target if most else value >= target
    return "met" if met else "missed"


def aim(words: str, target: object) -> str:
    """Whether a target is met, and the target: no result, but a number that was asked for."""
    return f'<span class="where">{words} ({target})</span>'
