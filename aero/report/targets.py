"""The tuned program against the targets that were set for it, row by row."""

from __future__ import annotations

from typing import Any

from aero.published import load
from aero.report.cost_tables import BASELINE_TARGETS, OWN_TARGET, target
from aero.report.costs import COSTED, FITTED, GB, PROGRAMS, least_seconds, published_cost, row_costs
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.put_backs import of_row
from aero.report.results import Results
from aero.two_party.program.optimizations import AS_PUBLISHED


def target_rows(results: Results) -> list[dict[str, Any]]:
    """A line a row of Tables 4 to 7 that is measured in both programs: what was aimed at, and what came out.

    published: tuned bytes over the published ones; bytes, seconds: over those as written, measured here. most: the
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
            plain, tuned = costs["as_written"], costs["tuned"]
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
        f"{counted['published']} rows with a target; over those as written, measured here: {counted['bytes']}; "
        f"seconds of computing over those as written: {counted['seconds']}. Seconds of both programs are from the "
        "same file of operations, which were measured together. The last column is the least that this program could "
        "take of the seconds as written: first if dividing rows (by their sums, temperatures, standard deviations) "
        "cost nothing, which is where bytes can be exchanged for seconds; then if everything but the products did. The "
        "columns are those of plain <code>tuned</code>: with the residual stream put back into its own basis before "
        f"every layer that can need it, one product each, the three targets are met by {bound}. {_dearer(results)}What "
        "products outside SPU alone make of the seconds is in the next table."
    )
    heads = ["Table", "configuration", "GB, over published", "GB, over as written", "seconds, over as written"]
    heads += ["least seconds: dividing rows for nothing; products alone"]
    return Html(grid(heads, rows, caption, "targets", (0.06, 0.25, 0.17, 0.17, 0.17, 0.18), "dense"))


def _dearer(results: Results) -> str:
    """A sentence on the other baseline, "as_published", of the rows that were measured in both at once."""
    dearer = []
    for which in COSTED:
        table = load("aero").tables[which]
        for row in table.rows:
            costs = [published_cost(results, table, row.name, program) for program in (AS_PUBLISHED, "as_written")]
            if None not in costs and None not in [cost.seconds for cost in costs]:
                dearer.append(costs[0].bytes >= costs[1].bytes and costs[0].seconds >= costs[1].seconds)
    if not dearer:
        return ""
    count = number(f"{sum(dearer)} of {len(dearer)}", "paper_dimensions", FITTED.as_posix())
    return (
        f"<code>as_published</code> takes more bytes and seconds than <code>as_written</code> in {count} rows that "
        "were measured in both together, where what is met over the one is met over the other. "
    )


def _met(lines: list[dict[str, Any]], key: str, times: int | None) -> str:
    """How many rows with a target meet it, the stream put back `times` times, or as often as can be needed (None)."""
    judged = []
    for line in lines:
        if line["most"][key] and line[key] is not None:
            count = line["put_backs"] if times is None else min(times, line["put_backs"])
            judged.append(line[key] + count * line["more"][key] <= line["most"][key])
    return f"{sum(judged)} of {len(judged)}"
