"""What the measurements of private inference lack, for the report's list of what is missing."""

from __future__ import annotations

import csv
import io

from aero.report.costs import full_passes
from aero.report.results import Results
from aero.report.savings import ENDS, FILES, HELD_OUT

FULL = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")
"""Rows of which complete passes at GPT-2's own size are wanted, by both of `ENDS`."""


def private_gaps(results: Results) -> list[str]:
    """A line for what is missing of each kind: complete passes at the papers' size, held-out prompts."""
    return [*_full(results), *_held_out(results)]


def _full(results: Results) -> list[str]:
    made = {(entry.get("architecture"), entry.get("program")) for entry in full_passes(results)}
    lacking = [f"{row} {program}" for row in FULL for program in ENDS if (row, program) not in made]
    return [f"no complete private pass at the papers' size: {', '.join(lacking)}"] if lacking else []


def _held_out(results: Results) -> list[str]:
    try:
        text = (results.root / FILES[1]).read_text(encoding="utf-8")
        asked = [
            (line["architecture"], line["program"], int(line["prompts"])) for line in csv.DictReader(io.StringIO(text))
        ]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return [f"no prompt of {FILES[1]} can be read"]
    most = {row: 0 for row, _, _ in asked}
    for row, program, prompts in asked:
        if program == "tuned":
            most[row] = max(most[row], prompts)
    few = [f"{row} {count}" for row, count in most.items() if count < HELD_OUT]
    return [f"fewer than {HELD_OUT} held-out prompts asked of tuned: {', '.join(few)}"] if few else []
