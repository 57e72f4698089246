"""The best fit of the published bytes as a program ("as_fitted"), beside both programs of the same measurement."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aero.published import load
from aero.report.cost_tables import BASELINE_TARGETS, NUMBERS, OWN_TARGET
from aero.report.costs import GB, row_family
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results

PATH = Path("results/two_party/fitted_rows.csv")
"""As `python -m benchmarks.as_fitted` keeps it."""
PROGRAMS = ("as_fitted", "as_published", "tuned")
BASES = PROGRAMS[:2]
QUANTITIES = ("bytes", "seconds", "backbone_seconds")


@dataclass(frozen=True)
class FittedRow:
    """A row of AERO Tables 4 to 7 in the three programs.

    published: GB as printed. amounts: by program and quantity of `QUANTITIES`, bytes in both directions and seconds;
    the backbone is what is neither embedding nor vocabulary projection.
    """

    table: str
    name: str
    published: float
    amounts: dict[str, dict[str, float]]

    def over(self, base: str, quantity: str) -> float:
        """What tuned takes of what `base` takes."""
        return self.amounts["tuned"][quantity] / self.amounts[base][quantity]

    @property
    def own(self) -> bool:
        """Whether it is one of AERO's rows, which have a target."""
        return self.name not in BASELINE_TARGETS


def fitted_rows(results: Results) -> list[FittedRow]:
    """The rows that are measured in all three programs; none if there is no readable file."""
    try:
        with (results.root / PATH).open(encoding="utf-8", newline="") as file:
            lines = {
                (line["architecture"], line["model"], line["context"], line["program"]): {
                    quantity: float(line[quantity]) for quantity in QUANTITIES
                }
                for line in csv.DictReader(file)
            }
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return []
    if not all(amount > 0 and math.isfinite(amount) for line in lines.values() for amount in line.values()):
        return []
    found = []
    for which in ("4", *NUMBERS):
        table = load("aero").tables[which]
        for row in table.rows:
            key = row.name, row_family(results, table, row.name), str(table.dimensions["context"])
            if all((*key, program) in lines for program in PROGRAMS):
                amounts = {program: lines[*key, program] for program in PROGRAMS}
                found.append(FittedRow(which, row.name, row.cells["communication"].value, amounts))
    return found


def best_fit(results: Results) -> Html:
    """Bytes and seconds of tuned over the best fit's and over those as published, row by row."""
    rows = fitted_rows(results)
    if not rows:
        return Html(f"<p>The best fit as a program: {gap()} (<code>python -m benchmarks.as_fitted</code>).</p>")

    def shown(text: str) -> str:
        return number(text, "paper_dimensions", PATH.as_posix())

    lines = []
    for row in rows:
        gigabytes = row.amounts["as_fitted"]["bytes"] / GB
        line = [row.table, row_label(row.name), number(f"{row.published:.2f}", "published", f"AERO Table {row.table}")]
        line += [shown(f"{gigabytes:.2f}"), shown(f"{gigabytes / row.published:.2f}")]
        for base in BASES:
            for quantity in QUANTITIES:
                value = row.over(base, quantity)
                mark = ("met" if value <= OWN_TARGET else "missed") if row.own and quantity != QUANTITIES[2] else ""
                line.append(shown(f"{value:.2f}") + (f' <span class="where">{mark}</span>' if mark else ""))
        lines.append(line)
    own = [row for row in rows if row.own]
    met = {
        (base, quantity): sum(row.over(base, quantity) <= OWN_TARGET for row in own)
        for base in BASES
        for quantity in QUANTITIES
    }

    def told(base: str) -> str:
        return ", ".join(
            f"{met[base, quantity]} of {len(own)} {what}"
            for quantity, what in zip(QUANTITIES, ("by bytes", "by seconds", "by those of the blocks"), strict=True)
        )

    caption = (
        "<b>The best fit of the published bytes as a program</b>, <code>as_fitted</code>, beside <code>as_published"
        "</code> and <code>tuned</code>, every operation of the three measured in two processes by one command. It is "
        "what docs/forensics.md finds to explain the printed bytes: weights secret-shared, exponentials clipped by a "
        "comparison, token ids looked up in secret, logits of all positions, beta folded. Two things of that fit are "
        "not in it: SPU is today’s, whose product of two secrets takes fewer bytes, and Q, K and V are three products. "
        "The He &amp; Hofmann rows have no such program, because it would make their gains public. What tuned takes of "
        "each: bytes in both directions, seconds of computing, and seconds of the blocks alone, without embedding and "
        f"vocabulary projection, on which the fit spends most of its time. At most {OWN_TARGET:g} was aimed at for "
        f"AERO’s rows: met over the fit by {told(BASES[0])}; over <code>as_published</code> by {told(BASES[1])}. "
        "Operations of T=128 are medians of three runs, others were timed once."
    )
    heads = ["Table", "configuration", "GB published", "as fitted, GB", "of the published"]
    for base in BASES:
        heads += [f"tuned over {escape(base.replace('_', ' '))}: {what}" for what in ("GB", "s", "s of blocks")]
    widths = (0.05, 0.21, 0.08, 0.08, 0.08, *(0.5 / 6,) * 6)
    return Html(grid(heads, lines, caption, "best-fit", widths, "dense"))
