"""What `make bench` left in results/bench: read once, told by tables and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from aero.report.marks import gap, number

FOLDER = "results/bench"


def file_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def read(root: Path, name: str) -> dict[str, Any] | None:
    """The measurements of one benchmark, None if there are none."""
    try:
        return json.loads((root / file_of(name)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


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


def missing(what: str, command: str) -> str:
    return f"<p>{what}: {gap()} (<code>python -m {command}</code>).</p>"


def against(target: float, value: float, most: bool = False) -> str:
    """Whether a target is met, in words."""
    met = value <= target if most else value >= target
    return "met" if met else "missed"
