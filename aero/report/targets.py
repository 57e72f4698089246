"""The tuned program against the targets that were set for it, row by row."""

from __future__ import annotations

import csv
from typing import Any

from aero.architecture import parse
from aero.families import FAMILIES
from aero.published import load
from aero.report.best_fit import PATH as FITTED
from aero.report.best_fit import FittedRow, fitted_rows
from aero.report.cost_tables import BASELINE_TARGETS, OWN_TARGET, target
from aero.report.costs import COSTED, GB, PROGRAMS, least_seconds, row_costs, row_family
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.put_backs import PutBack, most_put_backs, of_passes, of_row, put_back
from aero.report.results import Results

FITTED_OPERATIONS = FITTED.with_name("fitted_ops.csv")
"""What the rows of the best fit, and those measured together with it, are composed of."""


def target_rows(results: Results) -> list[dict[str, Any]]:
    """A line a row of Tables 4 to 7 that is measured in both programs: what was aimed at, and what came out.

    published: tuned bytes over the published ones; bytes, seconds: over those as published, measured here. most: the
    targets of the three, None where there is none. least: `least_seconds`, None where there are none. put_backs: before
    how many layers the residual stream can have to be put back into its own basis; more: what each adds to the three.
    """
    lines = []
    for which in COSTED:
        table = load("aero").tables[which]
        for row in table.rows:
            costs = row_costs(results, table, row.name)
            if not set(PROGRAMS) <= set(costs):
                continue
            plain, tuned = costs["as_published"], costs["tuned"]
            most, own = target(table, row.name), None
            if row.name not in BASELINE_TARGETS and not row.name.startswith("SOTA"):
                own = OWN_TARGET
            timed = tuned.seconds is not None and plain.seconds
            printed = GB * row.cells["communication"].value
            count, one = of_row(results, table, row.name)
            lines.append(
                {
                    "table": which,
                    "row": row.name,
                    "published": tuned.bytes / printed,
                    "bytes": tuned.bytes / plain.bytes,
                    "seconds": tuned.seconds / plain.seconds if timed else None,
                    "most": {"published": most, "bytes": own, "seconds": own},
                    "least": least_seconds(results, table, row.name),
                    "put_backs": count,
                    "more": {
                        "published": one.bytes / printed if one else 0.0,
                        "bytes": one.bytes / plain.bytes if one else 0.0,
                        "seconds": one.seconds / plain.seconds if one and timed else 0.0,
                    },
                    "source": ", ".join(sorted({plain.path, tuned.path})),
                }
            )
    return lines


def targets(results: Results) -> Html:
    """What the tuned program was to reach, row by row, and whether it does."""
    found = target_rows(results)
    if not found:
        return Html(f"<p>Targets of the tuned program: {gap()}.</p>")
    rows = []
    for line in found:
        cells = [line["table"], row_label(line["row"])]
        for key, most in line["most"].items():
            value = line[key]
            if value is None:
                cells.append(gap("–"))
                continue
            shown = number(f"{value:.2f}", "paper_dimensions", line["source"])
            if most is not None:
                shown += f' <span class="where">(≤ {most:.2f}, {"met" if value <= most else "missed"})</span>'
            cells.append(shown)
        least = line["least"]
        cells.append(
            number(f"{least.factors:.2f}; {least.products:.2f}", "paper_dimensions", least.path) if least else gap("–")
        )
        rows.append(cells)
    keys = ("published", "bytes", "seconds")
    counted = {key: _met(found, key, 0) for key in keys}
    bound = "; ".join(f"{_met(found, key, None)}" for key in keys)
    caption = (
        "<b>The tuned program against its targets</b>, which this project set itself. Bytes over the printed ones, "
        "which an older SPU with dearer products seems to have sent (docs/forensics.md): met by "
        f"{counted['published']} rows with a target; over those as published, measured here: {counted['bytes']}; "
        f"seconds of computing over those as published: {counted['seconds']}. Each operation of Tables 5 to 7 was "
        "timed once, beside other work at the lowest priority. What is left of the seconds is arithmetic on "
        "ciphertexts: products with the server's matrices, which encode them anew in every pass, and products of two "
        "shared tensors. The last column is the least that this program could take of the seconds as published: first "
        "if dividing rows (by their sums, temperatures, standard deviations) cost nothing, which is where bytes can be "
        "exchanged for seconds; then if all but the products did. It is from one session, of single timings, which for "
        "Table 4 is not that of the column before: a few per cent tell nothing, but where the first is far above the "
        "target no switch there is reaches it. It is no bound for other ways to look up, to exponentiate or to "
        f"multiply.{_without_tiles(results)} The columns are those of plain <code>tuned</code>: with the residual "
        "stream put back into its own basis before every layer that can need it, one product each, the three targets "
        f"are met by {bound}. What products outside SPU make of the seconds is in the next table."
    )
    heads = ["Table", "configuration", "GB, over published", "GB, over as published", "seconds, over as published"]
    heads += ["least seconds: dividing rows for nothing; products alone"]
    return Html(grid(heads, rows, caption, "targets", (0.06, 0.25, 0.17, 0.17, 0.17, 0.18), "dense"))


def _met(lines: list[dict[str, Any]], key: str, times: int | None) -> str:
    """How many rows with a target meet it, the stream put back `times` times, or as often as can be needed (None)."""
    judged = []
    for line in lines:
        if line["most"][key] and line[key] is not None:
            count = line["put_backs"] if times is None else min(times, line["put_backs"])
            judged.append(line[key] + count * line["more"][key] <= line["most"][key])
    return f"{sum(judged)} of {len(judged)}"


def half_of_both(results: Results, program: str, times: int | None = 0) -> tuple[int, int]:
    """How many of AERO's rows take at most half of both bytes and seconds as published in `program`, and of how many.

    From the rows measured together with the best fit. times: how often the residual stream is put back into its own
    basis, at the most as often as a row can need it; that often if None. No row counts whose put-back is not measured.
    """
    own, met = [row for row in fitted_rows(results) if row.own], 0
    operations = _fitted_operations(results)
    for row in own:
        count, one = _put_back(results, row, operations)
        count = count if times is None else min(times, count)
        if count and one is None:
            continue
        plain, amounts = row.amounts["as_published"], row.amounts[program]
        more = {"bytes": count * one.bytes, "seconds": count * one.seconds} if one else {"bytes": 0.0, "seconds": 0.0}
        met += all((amounts[what] + more[what]) / plain[what] <= OWN_TARGET for what in more)
    return met, len(own)


def _fitted_operations(results: Results) -> list[dict[str, str]]:
    try:
        with (results.root / FITTED_OPERATIONS).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        return []


def _put_back(results: Results, row: FittedRow, operations: list[dict[str, str]]) -> tuple[int, PutBack | None]:
    table = load("aero").tables[row.table]
    sizes = FAMILIES[row_family(results, table, row.name)].sizes
    one = put_back(operations, table.dimensions["context"], sizes["width"], FITTED_OPERATIONS.as_posix())
    return most_put_backs(parse(row.name), sizes["layers"]), one


def _without_tiles(results: Results) -> str:
    """How many of AERO's rows the program without row tiles brings to half of bytes and seconds."""
    if not half_of_both(results, "tuned")[1]:
        return ""

    def counted(program: str, times: int | None = 0) -> str:
        met, count = half_of_both(results, program, times)
        files = FITTED.as_posix() if times == 0 else f"{FITTED.as_posix()}, {FITTED_OPERATIONS.as_posix()}"
        return number(f"{met} of {count}", "paper_dimensions", files)

    often = sorted({times for times in of_passes(results).values() if times})
    cases = "".join(f"before {times} of its layers in {counted('tuned-row_tiles', times)}, " for times in often)
    return (
        " Half of both bytes and seconds, each operation measured again with those of the best fit (its own table has "
        f"the ratios): <code>tuned</code> in {counted('tuned')} rows, without the tiles of rows "
        f"(<code>tuned-row_tiles</code>) in {counted('tuned-row_tiles')}; where the residual stream is put back into "
        f"its own basis, as in the kept complete passes, {cases}before every layer that can need it in "
        f"{counted('tuned-row_tiles', None)}."
    )
