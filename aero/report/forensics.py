"""Fragment of the report's page: which configuration of SPU makes the papers' bytes (docs/forensics.md)."""

from __future__ import annotations

import csv
from html import escape

from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results

FILE = "results/two_party/forensics_fits.csv"
SOURCE = FILE


def best_fit(results: Results, table: str, row: str) -> tuple[float, str] | None:
    """GB of a printed row in the configuration that fits all rows best, and that configuration; None without one."""
    for line in _lines(results):
        if (line["rank"], line["table"], line["row"]) == ("1", table, row):
            return float(line["fitted_gb"]), line["configuration"]
    return None


def table_fits(results: Results) -> Html:
    """Every row of Tables 4-7 beside the best fit, and the best fits ranked; a gap if no search was made."""
    found = _lines(results)
    if not found:
        return Html(f"<p>Where the published bytes come from: {gap()}.</p>")
    by_rank: dict[str, list[dict[str, str]]] = {}
    for line in found:
        by_rank.setdefault(line["rank"], []).append(line)
    best = next(iter(by_rank.values()))
    # The one that needs one common amount more and then is nearest.
    second = min(by_rank.values(), key=lambda lines: float(lines[0]["largest_with_one_off_percent"]))
    rows = [
        [
            f"Table {line['table']}",
            row_label(line["row"]),
            number(f"{float(line['published_gb']):.2f}", "published", f"AERO Table {line['table']}"),
            _measured(line["fitted_gb"], 2),
            _measured(line["residual_percent"], 2, "+"),
            _measured(other["residual_with_one_off_percent"], 2, "+"),
        ]
        for line, other in zip(best, second, strict=True)
    ]
    heads = ["table", "configuration", "GB published", "GB, best fit", "off, %", "off, %, with one amount added"]
    caption = (
        "<b>Where the published bytes come from.</b> Every row composed from measured operations in the configuration "
        f"that fits best, with nothing adjusted: {escape(best[0]['configuration'])}. Last column: rank "
        f"{escape(second[0]['rank'])} of the next table with {_measured(second[0]['one_off_gb'], 2)} GB added to every "
        "row alike."
    )
    table = grid(heads, rows, caption, "forensics", (0.1, 0.34, 0.14, 0.14, 0.12, 0.16), "dense")
    ranked = []
    for rank, (line, *_) in by_rank.items():
        shares = ("largest_percent", "largest_but_odd_percent", "largest_with_one_off_percent")
        ranked.append([rank, escape(line["configuration"]), *(_measured(line[share], 2) for share in shares)])
    heads = ["rank", "configuration", "largest, %", "without odd cells, %", "and one set-up, %"]
    caption = (
        "<b>The best fits</b> by the largest relative residual over all rows, then the best with any one choice "
        "changed, and this artifact's own <code>as_written</code>. Odd cells: those that no configuration makes "
        "together with their neighbours."
    )
    return Html(table + grid(heads, ranked, caption, "forensics-fits", (0.07, 0.57, 0.12, 0.12, 0.12), "dense"))


def _lines(results: Results) -> list[dict[str, str]]:
    path = results.root / FILE
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _measured(text: str, digits: int, sign: str = "") -> str:
    return number(f"{float(text):{sign}.{digits}f}", "paper_dimensions", SOURCE)
