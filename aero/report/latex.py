"""LaTeX of every table in reports/tables, to paste into a paper: ASCII, with the packages booktabs and amssymb.

Made from the CSV files' own text, so that the two cannot disagree. No table is wider than the text of the article
class with margins of an inch: heads are broken into lines, and what has many columns comes in parts.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from aero.published import load
from aero.report.figure_index import PAPERS
from aero.report.tables import NOT_COMPARABLE

_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "φ": r"$\varphi$",
    "ε": r"$\varepsilon$",
    "γ": r"$\gamma$",
    "σ": r"$\sigma$",
    "–": "--",
    "’": "'",
    "°": r"$^\circ$",
    "⁹": "$^9$",
    "₁": "$_1$",
}
_DIVERGED = re.compile(r"\d+ of \d+ seeds diverged")
_MATRIX = re.compile(r"(SM|LN|G|R):(\d+)×R\^\{(\d+)×(\d+)\}")
_POWER = re.compile(r"\^\{(.*?)\}")
_PREAMBLE = "% needs \\usepackage{booktabs,amssymb}; made from the CSV file of the same name by aero.report.latex\n"
_HEAD = 11  # characters of a line of a column's head, where its words allow
_SMALL, _SCRIPT = (4.9, 12.0, 225.0), (4.05, 4.8, 469.0)
"""Points of a character, of the space of a column, of all the width: \\small in one column of two, \\scriptsize with
narrow spaces over both."""
_COSTS = {
    "row": "configuration",
    "program": "program",
    "bytes": "GB",
    "bytes_over_published": "of published",
    "latency_wan_min": "WAN, min",
    "latency_lan_min": "LAN, min",
    "published_gb": "publ. GB",
    "published_min": "publ. min",
    "bound_overlapped_min": "bound, min",
    "needed_mbit": "Mbit/s needed",
}


def escape(text: str) -> str:
    """Plain text as LaTeX; ValueError for a character that is neither ASCII nor known here."""
    found = "".join(_CHARACTERS.get(character, character) for character in text)
    if not found.isascii():
        odd = next(character for character in found if not character.isascii())
        raise ValueError(f"no LaTeX known for {odd!r} in {text!r}")
    return found


def files(texts: Mapping[Path, str]) -> dict[Path, str]:
    """Path and text of a .tex file beside every CSV file of tables."""
    return {path.with_suffix(".tex"): table(path.stem, text) for path, text in texts.items() if path.suffix == ".csv"}


def table(stem: str, text: str) -> str:
    """The CSV text of a table as LaTeX; `stem` is its file's name without the ending."""
    lines = list(csv.DictReader(io.StringIO(text)))
    if stem.endswith("_costs"):
        return _costs(stem, lines)
    return _printed(stem, lines)


def _printed(stem: str, lines: Sequence[dict[str, str]]) -> str:
    """Three lines a row: published, measured, ratio."""
    columns = list(dict.fromkeys(line["column"] for line in lines))
    cells = {(line["row"], line["column"]): line for line in lines}
    digits = {c: max((_digits(line["published"]) for line in lines if line["column"] == c), default=0) for c in columns}
    body = []
    for row in dict.fromkeys(line["row"] for line in lines):
        there = [cells.get((row, column), {}) for column in columns]
        published = [_quantity(cell.get("published", "")) for cell in there]
        measured = [_measured(cell, digits[c]) for cell, c in zip(there, columns, strict=True)]
        ratios = [_ratio(cell) for cell in there]
        body += [
            [escape(row), "published", *published],
            ["", "measured", *measured],
            *([["", "ratio", *ratios]] if any(text != "--" for text in ratios) else []),
        ]
        body.append([])
    units = {line["column"]: line["unit"] for line in lines}
    heads = ["configuration", "", *(_with_unit(column, units[column]) for column in columns)]
    scales = ", ".join(
        sorted({line["scale"].replace("_", " ") for line in lines if line["measured"] and line["scale"]})
    )
    apart = [(line["column"], line["note"].partition(";")[0]) for line in lines]
    prefix = f"{NOT_COMPARABLE}: "
    apart = [f"{c} {note.removeprefix(prefix)}" for c, note in dict.fromkeys(apart) if note.startswith(prefix)]
    note = f" Measured: {escape(scales or 'nothing yet')}."
    note += f" Not comparable, so no ratio: {escape('; '.join(apart))}." if apart else ""
    lost = [
        f"{line['row']}, {line['column']}: {found.group()}"
        for line in lines
        if line["measured"] != "NaN" and (found := _DIVERGED.search(line["note"]))
    ]
    note += f" Means of the seeds that are left: {escape('; '.join(lost))}." if lost else ""
    return _environment(stem, heads, body[:-1], f"{_title(stem)}{note}")


def _costs(stem: str, lines: Sequence[dict[str, str]]) -> str:
    body = []
    for line in lines:
        gigabytes = f"{float(line['bytes']) / 1e9:.6g}" if line["bytes"] else ""
        values = line | {"bytes": gigabytes}
        texts = [_rounded(values[key], 0 if key == "needed_mbit" else 2) for key in list(_COSTS)[2:]]
        body.append([escape(line["row"]), escape((line["program"] or "--").replace("_", " ")), *texts])
    caption = f"{_title(stem.removesuffix('_costs'))} Costs of one private forward pass, both directions."
    return _environment(stem, list(_COSTS.values()), body, caption)


def _title(stem: str) -> str:
    """ "AERO, Table 4: …" of "aero_table4"."""
    short, _, rest = stem.rpartition("_table")
    number = rest.removeprefix("_")
    return escape(f"{PAPERS[short]}, Table {number}: {load(short).tables[number].title}.")


def _environment(stem: str, heads: Sequence[str], body: Sequence[Sequence[str]], caption: str) -> str:
    """A float with one or more booktabs tabulars; an empty line of the body is a little space between rows. The first
    two columns are names and stand in every part."""
    widths = [max(map(_characters, column)) for column in zip(map(_head, heads), *filter(None, body), strict=True)]
    wide = "" if _points(widths, _SMALL) <= _SMALL[2] else "*"
    tabulars = (_tabular(heads, body, [0, 1, *part]) for part in _parts(heads, widths))
    lines = [
        f"\\begin{{table{wide}}}[t]",
        "\\centering\\scriptsize\\setlength{\\tabcolsep}{2.4pt}" if wide else "\\centering\\small",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{stem.replace('_', '-')}}}",
        "\n\\par\\medskip\n".join(tabulars),
        f"\\end{{table{wide}}}",
    ]
    return _PREAMBLE + "\n".join(lines) + "\n"


def _parts(heads: Sequence[str], widths: Sequence[float]) -> list[list[int]]:
    """Places of the columns of each part; columns whose heads begin with the same word stay together."""
    places = range(2, len(heads))
    groups = [list(group) for _, group in groupby(places, lambda place: heads[place].split()[0])]
    parts: list[list[int]] = [[]]
    for group in groups:
        if parts[-1] and _points([widths[c] for c in (0, 1, *parts[-1], *group)], _SCRIPT) > _SCRIPT[2]:
            parts.append([])
        parts[-1] += group
    return parts


def _points(widths: Sequence[float], size: tuple[float, float, float]) -> float:
    character, space, _ = size
    return character * sum(widths) + space * (len(widths) - 1)


def _characters(cell: str) -> float:
    """About as many as the longest line of a cell shows."""
    lines = re.sub(r"\\shortstack\[.\]\{(.*)\}$", r"\1", cell).split(r"\\")
    return max(_plain(_POWER.sub("", line)) + 0.7 * sum(map(_plain, _POWER.findall(line))) for line in lines)


def _plain(text: str) -> int:
    return len(re.sub(r"\\mathbb|[{}$]|\\(?=[%&#_])", "", text.replace(r"\times", "x")))


def _tabular(heads: Sequence[str], body: Sequence[Sequence[str]], columns: Sequence[int]) -> str:
    lines = [
        f"\\begin{{tabular}}{{@{{}}ll{'r' * (len(columns) - 2)}@{{}}}}",
        "\\toprule",
        f"{' & '.join(_head(heads[c]) for c in columns)} \\\\",
        "\\midrule",
        *(f"{' & '.join(row[c] for c in columns)} \\\\" if row else "\\addlinespace[2pt]" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines)


def _head(text: str) -> str:
    lines = [escape(line) for line in textwrap.wrap(text, _HEAD, break_long_words=False, break_on_hyphens=False)]
    return _stack("r", lines) if len(lines) > 1 else "".join(lines)


def _stack(place: str, lines: Iterable[str]) -> str:
    return rf"\shortstack[{place}]{{" + r"\\".join(lines) + "}"


def _with_unit(column: str, unit: str) -> str:
    if not unit or unit in ("operations", "perplexity", "×") or unit in column:
        return column
    return f"{column}, {'10⁹' if unit == '1e9 FLOPs' else unit}"


def _quantity(text: str) -> str:
    """A printed cell: a number, NaN, nothing, or nonlinear operations as formulas."""
    if _MATRIX.search(text):
        operations = [
            rf"{kind}: ${count}\times\mathbb{{R}}^{{{rows}\times {width}}}$"
            for kind, count, rows, width in _MATRIX.findall(text)
        ]
        return _stack("l", operations) if len(operations) > 1 else operations[0]
    return escape(text) if text else "--"


def _measured(cell: Mapping[str, str], digits: int) -> str:
    """What was measured with as many decimals as are printed; operations that are the printed ones in a word."""
    text = cell.get("measured", "")
    return "same" if _MATRIX.search(text) and text == cell.get("published") else _rounded(text, digits)


def _rounded(text: str, digits: int) -> str:
    value = _number(text)
    return _quantity(text) if value is None else "NaN" if math.isnan(value) else f"{value:.{digits}f}"


def _ratio(cell: Mapping[str, str]) -> str:
    published, measured = (_number(cell.get(key, "")) for key in ("published", "measured"))
    if cell.get("note", "").startswith(NOT_COMPARABLE):
        return "--"
    if not published or measured is None or cell.get("unit") == "%" or not math.isfinite(measured / published):
        return "--"
    return f"{measured / published:.2f}"


def _digits(text: str) -> int:
    return len(text.partition(".")[2]) if _number(text) is not None else 0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
