"""The tuned program against the targets that were set for it, row by row."""

from __future__ import annotations

from typing import Any

from aero.published import load
from aero.report.best_fit import PATH as FITTED
from aero.report.best_fit import fitted_rows
from aero.report.cost_tables import BASELINE_TARGETS, OWN_TARGET, target
from aero.report.costs import COSTED, GB, PROGRAMS, least_seconds, row_costs
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results


def target_rows(results: Results) -> list[dict[str, Any]]:
    """A line a row of Tables 4 to 7 that is measured in both programs: what was aimed at, and what came out.

    published: tuned bytes over the published ones; bytes, seconds: over those as published, measured here. most: the
    targets of the three, None where there is none. least: `least_seconds`, None where there are none.
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
            lines.append(
                {
                    "table": which,
                    "row": row.name,
                    "published": tuned.bytes / GB / row.cells["communication"].value,
                    "bytes": tuned.bytes / plain.bytes,
                    "seconds": tuned.seconds / plain.seconds if timed else None,
                    "most": {"published": most, "bytes": own, "seconds": own},
                    "least": least_seconds(results, table, row.name),
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
    met = {
        key: [line[key] <= line["most"][key] for line in found if line["most"][key] and line[key] is not None]
        for key in ("published", "bytes", "seconds")
    }
    counted = {key: f"{sum(values)} of {len(values)}" for key, values in met.items()}
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
        f"multiply.{_without_tiles(results)}"
    )
    heads = ["Table", "configuration", "GB, over published", "GB, over as published", "seconds, over as published"]
    heads += ["least seconds: dividing rows for nothing; products alone"]
    return Html(grid(heads, rows, caption, "targets", (0.06, 0.25, 0.17, 0.17, 0.17, 0.18), "dense"))


def _without_tiles(results: Results) -> str:
    """How many of AERO's rows the program without row tiles brings to half of bytes and seconds."""
    own = [row for row in fitted_rows(results) if row.own]
    if not own:
        return ""

    def counted(program: str) -> str:
        over = [[row.over(program, "as_published", what) for what in ("bytes", "seconds")] for row in own]
        met = sum(max(both) <= OWN_TARGET for both in over)
        return number(f"{met} of {len(own)}", "paper_dimensions", FITTED.as_posix())

    return (
        " Half of both bytes and seconds, each operation measured again with those of the best fit (its own table has "
        f"the ratios): <code>tuned</code> in {counted('tuned')} rows, without the tiles of rows "
        f"(<code>tuned-row_tiles</code>) in {counted('tuned-row_tiles')}."
    )
