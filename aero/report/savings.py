"""The ablation of the private programs: what every saving is worth alone and left out, in bytes and in logit error."""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

from aero.report.marks import Html, gap, grid, number, row_label

ENDS = ("as_published", "tuned")
FILES = ("results/two_party/savings.csv", "results/two_party/savings_errors.csv")


def table_savings(root: Path, savings: dict[str, str]) -> Html:
    """GB of every row with one saving alone (of "as_published") and with one left out (of "tuned").

    savings: names and descriptions. A number is missing where the saving does nothing for the row.
    """
    sizes = {(line["architecture"], line["program"]): float(line["bytes"]) / 1e9 for line in _read(root / FILES[0])}
    if not sizes:
        return Html(f"<p>The savings one by one: {gap()}.</p>")
    shown = [row for row in dict.fromkeys(row for row, _ in sizes) if {(row, end) for end in ENDS} <= sizes.keys()]
    lines = [["all or none", *(_sizes(sizes, row, *ENDS) for row in shown)]]
    for name, what in savings.items():
        alone = f"as_published+{'folded_ffn+' if name == 'absorbed_ffn' else ''}{name}"
        cells = [_sizes(sizes, row, alone, f"tuned-{name}") for row in shown]
        lines.append([f"<code>{escape(name)}</code><br>{escape(what)}", *cells])
    caption = (
        "<b>The savings one by one</b>, GB of a forward pass at GPT-2's dimensions: with this saving alone | with all "
        "but this one; the first line with none | with all. A dash: it does nothing for the row. Composed from "
        f"operations measured in two processes; {_errors(root)}"
    )
    width = 0.66 / max(1, len(shown))
    heads = ["saving", *(row_label(row) for row in shown)]
    return Html(grid(heads, lines, caption, "savings", (0.34, *(width for _ in shown)), "dense"))


def _sizes(sizes: dict[tuple[str, str], float], row: str, *programs: str) -> str:
    found = [sizes.get((row, program)) for program in programs]
    return " | ".join("–" if v is None else number(f"{v:.2f}", "paper_dimensions", FILES[0]) for v in found)


def _errors(root: Path) -> str:
    """The errors of complete passes in a sentence: both ends, and the worst of all single changes."""
    lines = _read(root / FILES[1])
    if not lines:
        return f"their logit errors: {gap()}."
    texts = []
    for row in dict.fromkeys(line["architecture"] for line in lines):
        of_row = {line["program"]: line for line in lines if line["architecture"] == row}
        ends = [
            f"<code>{end}</code> {number(_error(of_row[end]), 'smaller_scale', FILES[1])}"
            for end in ENDS
            if end in of_row
        ]
        others = [line for program, line in of_row.items() if program not in ENDS]
        if others:
            worst = max(others, key=lambda line: float(line["max_logit_error"]))
            ends.append(
                f"at most {number(_error(worst), 'smaller_scale', FILES[1])} with one saving alone or left out "
                f"(<code>{escape(worst['program'])}</code>)"
            )
        same, asked = (sum(int(line[key]) for line in of_row.values()) for key in ("same_top_token", "prompts"))
        texts.append(f"{row_label(row)} {', '.join(ends)}, the same top token for {same} of {asked} prompts")
    return "largest logit errors of complete private passes of trained models: " + "; ".join(texts) + "."


def _error(line: dict[str, str]) -> str:
    return f"{float(line['max_logit_error']):.4f}"


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []
