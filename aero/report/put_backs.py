"""What tuned rows with linear FFNs are priced without: the residual stream put back into its own basis.

`tuned` absorbs such FFNs into the attention weights, which takes the residual stream to another basis layer by layer.
Before which layers it has to be put back only a model's weights tell
(`aero.two_party.program.weights.within_budget`), so rows
are composed of the plain program, which never does. Each time is one product more, of all tokens with a d x d matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from aero.architecture import Architecture, parse
from aero.families import FAMILIES
from aero.published import Table
from aero.report.costs import GB, full_passes, operation, row_costs, row_family
from aero.report.marks import number
from aero.report.results import Results
from aero.two_party.program.optimizations import TUNED, absorbs, chosen


@dataclass(frozen=True)
class PutBack:
    """What one costs: bytes in both directions and seconds, of the file at `path`."""

    bytes: float
    seconds: float
    path: str


def put_back(measured: Iterable[Mapping[str, str]], context: int, width: int, path: str) -> PutBack | None:
    """Of `context` tokens, from the lines of a file of operations; None if it was not measured."""
    found = operation(measured, "lattice_linear", f"{context}x{width},{width}x{width}")
    if found is None:
        return None
    return PutBack(found["bytes_sent_client"] + found["bytes_sent_server"], found["seconds"], path)


def most_put_backs(architecture: Architecture, layers: int) -> int:
    """Before how many of its layers the residual stream can have to be put back; 0 where nothing is absorbed."""
    if not absorbs(architecture, TUNED):
        return 0
    return max(0, architecture.ffn_layers(layers) - 1)


def of_row(results: Results, table: Table, row: str) -> tuple[int, PutBack | None]:
    """`most_put_backs` of a printed row, and what each costs beside the row's tuned cost."""
    sizes, cost = FAMILIES[row_family(results, table, row)].sizes, row_costs(results, table, row).get("tuned")
    count = most_put_backs(parse(row), sizes["layers"])
    if cost is None or not count:
        return count, None
    measured = results.operations_of(cost)
    return count, put_back(measured, table.dimensions["context"], sizes["width"], cost.operations_path)


def of_passes(results: Results) -> dict[str, int]:
    """What the kept complete passes of such rows computed as `tuned`, and how often it puts the stream back."""
    own = results.end_to_end if isinstance(results.end_to_end, list) else []
    found: dict[str, int] = {}
    for entry in (*full_passes(results), *own):
        try:
            if _absorbs(entry):
                found[str(entry["computed_as"])] = len(chosen(str(entry["computed_as"]))[1])
        except (KeyError, TypeError, ValueError):
            continue
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _absorbs(entry: Mapping[str, Any]) -> bool:
    return entry["program"] == "tuned" and absorbs(parse(str(entry["architecture"])), TUNED)


def note(results: Results, table: Table, marked: bool = True) -> str:
    """A sentence for below a table of costs: what its tuned rows are priced without, and the most that it can be.

    marked: in HTML, each number marked with its file; else for Markdown. Empty where no such row is measured.
    """
    # A fused FFN is AERO's own: its row is in every table, the README's too.
    for row in sorted(table.rows, key=lambda row: parse(row.name).ffn != "fused"):
        count, one = of_row(results, table, row.name)
        cost = row_costs(results, table, row.name).get("tuned")
        if one is not None and cost is not None and cost.seconds is not None:
            break
    else:
        return ""

    def shown(value: float, form: str, *paths: str) -> str:
        text = form.format(value)
        return number(text, "paper_dimensions", ", ".join(paths)) if marked else text

    def code(text: str) -> str:
        return f"<code>{escape(text)}</code>" if marked else f"`{text}`"

    kept = of_passes(results)
    programs = ", ".join(map(code, kept))
    passes = f" (the kept complete passes of such rows: {programs})" if any(kept.values()) else ""
    gigabytes, seconds = ((getattr(cost, key), getattr(one, key)) for key in ("bytes", "seconds"))
    both = cost.path, one.path
    return (
        f"Tuned costs of rows whose FFN is linear are those of plain {code('tuned')}: where a model’s weights need it, "
        "the residual stream is put back into its own basis before some layers, which the program then names behind "
        f"an @{passes}. Each is one product more, {shown(one.bytes / 1e6, '{:.2f}', one.path)} MB and "
        f"{shown(one.seconds, '{:.1f}', one.path)} s. Before all {count} layers that can need it {code(row.name)} "
        f"takes {shown((gigabytes[0] + count * gigabytes[1]) / GB, '{:.2f}', *both)} GB and "
        f"{shown(seconds[0] + count * seconds[1], '{:,.0f}', *both)} s of computing instead of "
        f"{shown(gigabytes[0] / GB, '{:.2f}', cost.path)} and {shown(seconds[0], '{:,.0f}', cost.path)}."
    )
