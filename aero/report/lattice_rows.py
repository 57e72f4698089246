"""What products outside SPU (`lattice_products`) are worth to AERO's rows: four programs, measured together."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path

from aero.architecture import parse
from aero.families import FAMILIES
from aero.published import load
from aero.report.cost_tables import BASELINE_TARGETS, OWN_TARGET, target
from aero.report.costs import COSTED, GB, LinesByRow, lines_by_row, operation, row_family
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.put_backs import most_put_backs
from aero.report.results import Results

PATH = Path("results/two_party/lattice_rows.csv")
"""As `python -m benchmarks.lattice_products` keeps it."""
OPERATIONS = PATH.with_name("lattice_ops.csv")
OUTSIDE = "tuned"
WITHIN = "tuned-lattice_products"
ALONE = "as_written+lattice_products"
PROGRAMS = ("as_written", ALONE, WITHIN, OUTSIDE)
PRODUCTS = ("linear", "lattice_linear")
"""Kinds of operations that are products of several rows with the server's matrix, and in which program."""


@dataclass(frozen=True)
class LatticeRow:
    """A row of AERO Tables 4 to 7 in `PROGRAMS`, all measured together.

    bytes: in both directions; seconds: of computing; products: those of its products with the server's matrices, all by
    program. put_back: (bytes, seconds) of one product that puts the residual stream back into its own basis outside
    SPU, and put_backs: before how many layers it can have to be; zeros where nothing is absorbed.
    """

    table: str
    name: str
    published: float
    most: float | None
    bytes: dict[str, float]
    seconds: dict[str, float]
    products: dict[str, float]
    put_back: tuple[float, float]
    put_backs: int

    @property
    def own(self) -> bool:
        """Whether it is one of AERO's rows, which have targets of bytes and seconds as written."""
        return self.name not in BASELINE_TARGETS and not self.name.startswith("SOTA")

    def over(self, quantity: str, program: str = OUTSIDE, put_backs: int = 0) -> float:
        """What `program` takes of what is taken as written, of "bytes" or "seconds"."""
        amounts = getattr(self, quantity)
        more = dict(zip(("bytes", "seconds"), self.put_back, strict=True))[quantity]
        return (amounts[program] + put_backs * more) / amounts["as_written"]

    def printed(self, put_backs: int = 0) -> float:
        """Bytes of OUTSIDE over the printed ones."""
        return (self.bytes[OUTSIDE] + put_backs * self.put_back[0]) / GB / self.published


def lattice_rows(results: Results) -> list[LatticeRow]:
    """The rows that are measured in all of `PROGRAMS`; none if there is no readable file."""
    try:
        lines = lines_by_row(results.root / PATH)
        with (results.root / OPERATIONS).open(encoding="utf-8", newline="") as file:
            measured = list(csv.DictReader(file))
        found = [row for which in COSTED for row in _rows_of(results, which, lines, measured)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return []
    amounts = [value for row in found for by in (row.bytes, row.seconds) for value in by.values()]
    return found if all(math.isfinite(value) and value > 0 for value in amounts) else []


def _rows_of(results: Results, which: str, lines: LinesByRow, measured: list[dict[str, str]]) -> list[LatticeRow]:
    table, found = load("aero").tables[which], []
    for row in table.rows:
        family, context = row_family(results, table, row.name), table.dimensions["context"]
        ours = {program: lines.get((row.name, family, str(context), program)) for program in PROGRAMS}
        if None in ours.values():
            continue
        sizes = FAMILIES[family].sizes
        count = most_put_backs(parse(row.name), sizes["layers"])
        one = operation(measured, "lattice_linear", f"{context}x{sizes['width']},{sizes['width']}x{sizes['width']}")
        if count and one is None:
            continue
        kinds = {program: json.loads(line["seconds_by_kind"]) for program, line in ours.items()}
        found.append(
            LatticeRow(
                table=which,
                name=row.name,
                published=row.cells["communication"].value,
                most=target(table, row.name),
                bytes={program: float(line["bytes"]) for program, line in ours.items()},
                seconds={program: float(line["seconds"]) for program, line in ours.items()},
                products={p: sum(kind.get(name, 0.0) for name in PRODUCTS) for p, kind in kinds.items()},
                put_back=(one["bytes_sent_client"] + one["bytes_sent_server"], one["seconds"]) if count else (0.0, 0.0),
                put_backs=count,
            )
        )
    return found


def counted(rows: list[LatticeRow], put_backs: bool) -> dict[str, tuple[int, int]]:
    """How many rows meet their target, and of how many: of the printed bytes, and of bytes and seconds as written.

    put_backs: with the residual stream put back before every layer that can need it.
    """
    own = [row for row in rows if row.own]

    def times(row: LatticeRow) -> int:
        return row.put_backs if put_backs else 0

    judged = {
        "published": [row.printed(times(row)) <= row.most for row in rows if row.most is not None],
        "bytes": [row.over("bytes", OUTSIDE, times(row)) <= OWN_TARGET for row in own],
        "seconds": [row.over("seconds", OUTSIDE, times(row)) <= OWN_TARGET for row in own],
    }
    return {name: (sum(found), len(found)) for name, found in judged.items()}


def table(results: Results) -> Html:
    """Bytes and seconds with products outside SPU against the printed bytes and the programs as written and tuned."""
    rows = lattice_rows(results)
    if not rows:
        return Html(f"<p>Products outside SPU: {gap()} (<code>python -m benchmarks.lattice_products</code>).</p>")

    def shown(value: float, most: float | None = None, digits: int = 2) -> str:
        if most is not None and value > most >= round(value, digits):
            digits = 3  # two would look like the target that is just missed
        text = number(f"{value:.{digits}f}", "paper_dimensions", PATH.as_posix())
        if most is None:
            return text
        return f'{text} <span class="where">(≤ {most:.2f}, {"met" if value <= most else "missed"})</span>'

    lines = []
    for row in rows:
        half = OWN_TARGET if row.own else None
        line = [row.table, row_label(row.name), number(f"{row.published:.2f}", "published", f"AERO Table {row.table}")]
        line += [shown(row.bytes[OUTSIDE] / GB), shown(row.printed(), row.most), shown(row.over("bytes"), half)]
        line += [
            shown(row.over("seconds"), half),
            shown(row.over("seconds", WITHIN)),
            shown(row.over("seconds", ALONE)),
        ]
        line.append(
            shown(row.products[WITHIN] / row.products[OUTSIDE], digits=1) if row.products[OUTSIDE] else gap("–")
        )
        lines.append(line)
    met, often = counted(rows, False), counted(rows, True)

    def said(found: dict[str, tuple[int, int]]) -> str:
        texts = (number(f"{a} of {b}", "paper_dimensions", PATH.as_posix()) for a, b in found.values())
        return "{} for the printed bytes, {} for the bytes and {} for the seconds as written".format(*texts)

    caption = (
        "<b>Products with the server’s matrices outside SPU</b>, a saving of <code>tuned</code>: the same "
        "protocol as SPU’s, on ciphertexts modulo 2<sup>64</sup>, where sums of products are matrix products of floats "
        "(docs/decisions.md). GB are bytes in both directions, s seconds of computing; every operation of all "
        "programs was measured in two processes by one command, at T=128 three times (the median is taken), beyond "
        "once. Without them is <code>tuned-lattice_products</code>, which keeps SPU’s products. Targets are those of "
        f"the table above, met by rows with a target: {said(met)}. With the residual stream put back into its own "
        f"basis before every layer that can need it, one such product each: {said(often)}. Last column: "
        "seconds of these products within SPU over those outside."
    )
    heads = ["Table", "configuration", "GB published", "GB", "of the published", "GB over as written"]
    heads += ["s over as written", "without this saving: s over as written", "with it alone"]
    heads += ["products: SPU’s over these, s"]
    widths = (0.05, 0.2, 0.08, 0.07, 0.13, 0.13, 0.13, 0.08, 0.07, 0.06)
    return Html(grid(heads, lines, caption, "lattice-products", widths, "dense"))


def sentence(results: Results) -> str:
    """What AERO's rows take with it, for Markdown; empty if nothing is measured."""
    rows = [row for row in lattice_rows(results) if row.own]
    if not rows:
        return ""

    def between(quantity: str, program: str = OUTSIDE) -> str:
        ratios = [row.over(quantity, program) for row in rows]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    return (
        f"Over AERO's rows in Tables {rows[0].table} to {rows[-1].table} `{OUTSIDE}` takes {between('bytes')} of the "
        f"bytes and {between('seconds')} of the seconds of computing as written. It multiplies by the server's "
        "matrices outside SPU, by the same protocol but this project's own code (docs/two_party.md); with SPU's "
        f"products (`{WITHIN}`) it is {between('bytes', WITHIN)} and {between('seconds', WITHIN)}. All measured "
        f"together, without putting back (`{PATH.as_posix()}`)."
    )
