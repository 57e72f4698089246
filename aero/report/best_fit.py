"""The best fit of the published bytes as a program ("as_published"), beside the programs measured together with it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from aero.published import load
from aero.report.cost_tables import BASELINE_TARGETS, NUMBERS, OWN_TARGET
from aero.report.costs import FITTED, GB, lines_by_row, row_family
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results
from aero.two_party.cost.packing import EMBEDDINGS

PLAIN, NO_TILES = "tuned-lattice_products", "tuned-lattice_products-row_tiles"
"""Tuned with SPU's own products, as the fit has them."""
PROGRAMS = ("as_published", "as_written", PLAIN, NO_TILES)
QUANTITIES = ("bytes", "seconds", "backbone_seconds")
EMBEDDING = "embedding_seconds"
COLUMNS = (
    (PLAIN, "as_published", "bytes"),
    (PLAIN, "as_published", "seconds"),
    (PLAIN, "as_published", "backbone_seconds"),
    (PLAIN, "as_written", "bytes"),
    (PLAIN, "as_written", "seconds"),
    (NO_TILES, "as_written", "bytes"),
    (NO_TILES, "as_written", "seconds"),
)
"""Program, over which one, quantity."""
UNITS = {"bytes": "GB", "seconds": "s", "backbone_seconds": "s of blocks"}


@dataclass(frozen=True)
class FittedRow:
    """A row of AERO Tables 4 to 7 in `PROGRAMS`, a He & Hofmann row in "as_published" alone.

    published: GB as printed. amounts: by program and quantity of `QUANTITIES`, bytes in both directions and seconds,
    and the seconds of the embedding; the backbone is what is neither embedding nor vocabulary projection.
    """

    table: str
    name: str
    published: float
    amounts: dict[str, dict[str, float]]

    @property
    def compared(self) -> bool:
        """Whether all programs were measured."""
        return len(self.amounts) == len(PROGRAMS)

    def over(self, program: str, base: str, quantity: str) -> float:
        """What `program` takes of what `base` takes, of a compared row."""
        return self.amounts[program][quantity] / self.amounts[base][quantity]

    def over_plain_embedding(self) -> float:
        """Seconds of tuned over those of the fit, with the one-hot product of "as_written" in place of lookups."""
        fitted, plain = self.amounts["as_published"], self.amounts["as_written"]
        return self.amounts[PLAIN]["seconds"] / (fitted["seconds"] - fitted[EMBEDDING] + plain[EMBEDDING])

    @property
    def own(self) -> bool:
        """Whether it is one of AERO's rows, which have a target."""
        return self.compared and self.name not in BASELINE_TARGETS


def fitted_rows(results: Results) -> list[FittedRow]:
    """The rows measured in all of `PROGRAMS`, those of He & Hofmann as fitted; none if there is no readable file."""
    try:
        lines = {
            key: {
                **{quantity: float(line[quantity]) for quantity in QUANTITIES},
                EMBEDDING: sum(json.loads(line["seconds_by_kind"]).get(kind, 0.0) for kind in EMBEDDINGS),
            }
            for key, line in lines_by_row(results.root / FITTED).items()
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return []
    every = [(key, amount) for line in lines.values() for key, amount in line.items()]
    if not all(math.isfinite(amount) and (amount > 0 or (key, amount) == (EMBEDDING, 0)) for key, amount in every):
        return []
    found = []
    for which in ("4", *NUMBERS):
        table = load("aero").tables[which]
        for row in table.rows:
            key = row.name, row_family(results, table, row.name), str(table.dimensions["context"])
            programs = PROGRAMS[:1] if row.name.startswith("SOTA") else PROGRAMS
            if all((*key, program) in lines for program in programs):
                amounts = {program: lines[*key, program] for program in programs}
                found.append(FittedRow(which, row.name, row.cells["communication"].value, amounts))
    return found


def _savings(rows: list[FittedRow]) -> Iterator[tuple[str, list[float], list[float]]]:
    """By table: the bytes of SM+LN+G over those of each of AERO's rows, printed and by the fit."""
    for which in dict.fromkeys(row.table for row in rows):
        ours = [row for row in rows if row.table == which]
        own, bases = [row for row in ours if row.own], [row for row in ours if row.name == "SM+LN+G"]
        if own and bases:
            base = bases[0]
            fitted = base.amounts["as_published"]["bytes"]
            yield (
                which,
                [base.published / row.published for row in own],
                [fitted / row.amounts["as_published"]["bytes"] for row in own],
            )


def _tuned_bytes(results: Results, own: list[FittedRow]) -> str:
    """A sentence on the bytes of `tuned`, which need no common session; empty where it is not measured."""
    found = []
    for row in own:
        table = load("aero").tables[row.table]
        cost = results.cost(row.name, "tuned", table.dimensions["context"], row_family(results, table, row.name))
        if cost is not None:
            found.append((cost.bytes / row.amounts["as_published"]["bytes"], cost.path))
    if not found:
        return ""
    least, most = (f"{pick(found)[0]:.2f}" for pick in (min, max))
    paths = sorted({path for _, path in found})
    return (
        "<code>tuned</code> with products outside SPU, measured at another time, takes "
        f"{number(f'{least} to {most}', 'paper_dimensions', *paths)} of the fit’s bytes in AERO’s rows. "
    )


def best_fit(results: Results) -> Html:
    """Bytes and seconds of tuned over the best fit's and over those as written, row by row."""
    rows = fitted_rows(results)
    if not rows:
        return Html(f"<p>The best fit as a program: {gap()} (<code>python -m benchmarks.as_published</code>).</p>")

    def shown(text: str) -> str:
        return number(text, "paper_dimensions", FITTED.as_posix())

    lines = []
    for row in rows:
        gigabytes = row.amounts["as_published"]["bytes"] / GB
        line = [row.table, row_label(row.name), number(f"{row.published:.2f}", "published", f"AERO Table {row.table}")]
        line += [shown(f"{gigabytes:.2f}"), shown(f"{gigabytes / row.published:.2f}")]
        line += [] if row.compared else [gap("–")] * len(COLUMNS)
        for column in COLUMNS if row.compared else ():
            value = row.over(*column)
            mark = f' <span class="where">{"met" if value <= OWN_TARGET else "missed"}</span>' if row.own else ""
            # Two digits, unless they would look like the target that is just missed.
            digits = 3 if value > OWN_TARGET >= round(value, 2) else 2
            line.append(shown(f"{value:.{digits}f}") + mark)
        lines.append(line)
    fitted = [row.amounts["as_published"] for row in rows]
    shares = [100 * (1 - one["backbone_seconds"] / one["seconds"]) for one in fitted]
    own = [row for row in rows if row.own]
    plainer = f"{sum(row.over_plain_embedding() <= OWN_TARGET for row in own)} of {len(own)}"
    elsewhere = f"{min(shares):.0f} to {max(shares):.0f} %"
    counted = {column: f"{sum(row.over(*column) <= OWN_TARGET for row in own)} of {len(own)}" for column in COLUMNS}
    met = "; ".join(
        f"<code>{program}</code> over <code>{base}</code> by {UNITS[quantity]} {counted[program, base, quantity]}"
        for program, base, quantity in COLUMNS
    )
    savings = "; ".join(
        f"Table {which} {number(f'{min(printed):.2f} to {max(printed):.2f}', 'published', f'AERO Table {which}')} "
        f"printed, {shown(f'{min(found):.2f} to {max(found):.2f}')} by the fit"
        for which, printed, found in _savings(rows)
    )
    caption = (
        "<b>The best fit of the published bytes as a program</b>, <code>as_published</code>, beside this artifact’s "
        "programs, every operation of all of them measured in two processes by one command. It is what "
        "docs/forensics.md finds to explain the printed bytes: weights secret-shared, exponentials clipped by a "
        "comparison, token ids looked up in secret, logits of all positions, beta folded. Two things of that fit are "
        "not in it: SPU is today’s, whose product of two secrets takes fewer bytes, and large products are in slices. "
        "The gains of the He &amp; Hofmann rows, which have no target, are folded into the matrices around them, and "
        "were not measured in other programs with it. GB are bytes in "
        "both directions, s seconds of computing; the blocks are all but embedding and vocabulary projection, on which "
        f"the fit spends {shown(elsewhere)} of its seconds. At most {OWN_TARGET:g} was aimed at for AERO’s rows, "
        f"met: {met}. "
        f"How many times the bytes of AERO’s rows SM+LN+G takes: {savings}. "
        "The lookup of ids is the least certain part of the fit: with the embedding of <code>as_written</code> in "
        f"its place <code>tuned-lattice_products</code> takes at most half of its seconds in {shown(plainer)} rows. "
        "Compare seconds in this table "
        "alone: the machine was slower than when the others were measured (docs/decisions.md). Operations of T=128 are "
        "medians of three runs, others were timed once. Both tuned programs multiply by the server’s matrices within "
        f"SPU, as the fit does, and never put the residual stream back into its own basis. {_tuned_bytes(results, own)}"
    )
    heads = ["Table", "configuration", "GB published", "as published, GB", "of the published"]
    heads += [f"{program} over {base}: {UNITS[quantity]}".replace("_", " ") for program, base, quantity in COLUMNS]
    widths = (0.05, 0.19, 0.075, 0.075, 0.075, *(0.535 / len(COLUMNS),) * len(COLUMNS))
    return Html(grid(heads, lines, caption, "best-fit", widths, "dense"))
