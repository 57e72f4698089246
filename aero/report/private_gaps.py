"""What the measurements of private inference lack, for the report's list of what is missing."""

from __future__ import annotations

from aero.published import load
from aero.report.cost_tables import NUMBERS
from aero.report.costs import full_passes
from aero.report.full_links import ROWS
from aero.report.results import Results
from aero.report.savings import ENDS, FILES, HELD_OUT, read_lines


def private_gaps(results: Results) -> list[str]:
    """A line for what is missing of each kind: complete passes at the papers' size, held-out prompts."""
    return [*_full(results), *_held_out(results)]


def _full(results: Results) -> list[str]:
    made = {(entry.get("architecture"), entry.get("program")) for entry in full_passes(results)}
    lacking = [f"{row} {program}" for row in ROWS for program in ENDS if (row, program) not in made]
    return [f"no complete private pass at the papers' size: {', '.join(lacking)}"] if lacking else []


def _held_out(results: Results) -> list[str]:
    lines = read_lines(results.root / FILES[1])
    if not lines:
        return [f"no prompt of {FILES[1]} can be read"]
    asked = [(line["architecture"], line["program"], int(line["prompts"])) for line in lines]
    most = {row: 0 for row, _, _ in asked}
    for row, program, prompts in asked:
        if program == "tuned":
            most[row] = max(most[row], prompts)
    for which in ("4", *NUMBERS):
        for row in load("aero").tables[which].rows:
            if not row.name.startswith("SOTA"):
                most.setdefault(row.name, 0)
    few = [f"{row} {count}" for row, count in most.items() if count < HELD_OUT]
    return [f"fewer than {HELD_OUT} held-out prompts asked of tuned: {', '.join(few)}"] if few else []
