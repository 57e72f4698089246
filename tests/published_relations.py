"""What must hold between the numbers that a paper prints: a mistyped one breaks it. One line a violation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from aero.architecture import parse
from aero.published import Paper, Row, Table

UNITS = {
    "aero": {"perplexity", "%", "operations", "1e9 FLOPs", "GB", "min", "×"},
    "entropy_guided": {"perplexity", "operations", "1e9 FLOPs", "GB", "min"},
    "entropy_landscape": {"perplexity", "nats"},
    "parallel_context": {"perplexity", "% right", "% SubEM"},
    "variance_sensitivity": {"loss"},
}
# Perplexities of one column differ by less than this factor: more is a slipped point.
PERPLEXITY_SPREAD = 2.0


def violations(paper: Paper) -> list[str]:
    """Every relation that the numbers of `paper` break."""
    found = []
    for table in paper.tables.values():
        for check in (
            _units,
            _notes,
            _savings,
            _flops,
            _operations,
            _deltas,
            _same_cost,
            _orders,
            _perplexities,
            _entropies,
        ):
            found += [f"{paper.short} Table {table.number}, {line}" for line in check(paper, table)]
        found += [f"{paper.short} Table {table.number}, {line}" for line in _shares(table)]
    return found + [f"{paper.short} {line}" for line in _contexts(paper)]


def with_cell(paper: Paper, number: str, name: str, key: str, value: float) -> Paper:
    """The paper with another number in one cell."""
    table = paper.tables[number]
    rows = tuple(
        replace(row, cells=row.cells | {key: replace(row.cells[key], value=value)}) if row.name == name else row
        for row in table.rows
    )
    return replace(paper, tables=paper.tables | {number: replace(table, rows=rows)})


def _value(row: Row, key: str) -> float | None:
    """The printed number, None for an empty cell, a column that is not there and a printed NaN."""
    cell = row.cells.get(key)
    return None if cell is None or cell.diverged else cell.value


def _units(paper: Paper, table: Table) -> Iterator[str]:
    for column in table.columns.values():
        if column.unit not in UNITS[paper.short]:
            yield f"{column.key}: unit {column.unit!r}"


def _notes(_: Paper, table: Table) -> Iterator[str]:
    """A note that repeats the printed number repeats it right."""
    for row in table.rows:
        for key, cell in row.cells.items():
            if (printed := re.match(r"printed ([0-9.]+[0-9])", cell.note)) and printed[1] != cell.text:
                yield f"{row.name}: {key} {cell.text}, its note has {printed[1]}"


def _savings(_: Paper, table: Table) -> Iterator[str]:
    """A saving is the baseline's cost over the row's, within the rounding of all three."""
    for quantity in ("communication", "latency"):
        saving = f"savings_{quantity}"
        if saving not in table.columns:
            continue
        base = table.rows[0].cells[quantity]
        for row in table.rows:
            cell, printed = row.cells[quantity], row.cells[saving]
            low = (base.value - base.half_unit) / (cell.value + cell.half_unit) - printed.half_unit
            high = (base.value + base.half_unit) / (cell.value - cell.half_unit) + printed.half_unit
            odd = "the bytes give" in printed.note
            if odd and f"{base.value / cell.value:.2f}" not in printed.note:
                yield f"{row.name}: {saving}: its note does not tell {base.value / cell.value:.2f}"
            # Where the paper itself is off it is so by a few hundredths.
            if not low - 0.04 * odd <= printed.value <= high + 0.04 * odd:
                yield f"{row.name}: {saving} {printed.text} is not {base.text} / {cell.text}"


def _flops(_: Paper, table: Table) -> Iterator[str]:
    """AERO Appendix E: 16 d^2 or fused 2 d^2 a token and layer, 8 d^2 + 3 T d + d; the SOTA rows 4 d^2 + 2 T d."""
    if "flops_ffn" not in table.columns:
        return
    layers, width, context = (table.dimensions[key] for key in ("layers", "width", "context"))
    for row in table.rows:
        kept = layers - parse(row.name).pruned
        ffn = kept * context * (2 if "Fu" in row.name else 16) * width**2 / 1e9
        per_layer = 4 * width**2 + 2 * context * width
        if "SOTA" not in row.name:
            per_layer = 8 * width**2 + 3 * context * width + width
        attention = layers * context * per_layer / 1e9
        for key, expected in (("flops_ffn", ffn), ("flops_attention", attention)):
            cell = row.cells[key]
            if "own formula" not in cell.note and abs(expected - cell.value) > 0.1:
                yield f"{row.name}: {key} {cell.text} is not {expected:.1f}"


def _operations(_: Paper, table: Table) -> Iterator[str]:
    """Counts and shapes of the nonlinear operations follow from layers, heads, width, context and the row's name."""
    if "nonlinear" not in table.columns:
        return
    layers, heads, width, context = (table.dimensions[key] for key in ("layers", "heads", "width", "context"))
    for row in table.rows:
        expected = [("SM", layers * heads, context, context)]
        if "+LN" in row.name or "SOTA" in row.name:
            expected.append(("LN", 1 if "SOTA" in row.name else 2 * layers, context, width))
        if row.name.endswith(("+G", "+R")):
            expected.append((row.name[-1], layers, context, 4 * width))
        found = [(o.name, o.count, o.rows, o.columns) for o in row.cells["nonlinear"].operations]
        if found != expected:
            yield f"{row.name}: nonlinear operations {found}, not {expected}"


def _deltas(_: Paper, table: Table) -> Iterator[str]:
    """An increase is that of the perplexity over the first row's, in per cent."""
    for key in table.columns:
        if not key.startswith("delta"):
            continue
        ppl = key.replace("delta", "ppl")
        base = table.rows[0].cells[ppl].value
        for row in table.rows:
            printed, own = _value(row, key), _value(row, ppl)
            if printed is not None and abs(100 * (own / base - 1) - printed) > 0.06:
                yield f"{row.name}: {key} {printed} is not that of {own} over {base}"


def _same_cost(_: Paper, table: Table) -> Iterator[str]:
    """The regulariser and temperatures cost nothing at inference: the same bytes, minutes and operations."""
    names = {row.name for row in table.rows}
    for row in table.rows:
        plain = row.name.removeprefix("EReg(").removesuffix(")").replace("SM(t)", "SM") if "EReg(" in row.name else ""
        if plain not in names:
            continue
        other = table.row(plain)
        for key in row.cells:
            if not key.startswith("ppl") and row.cells[key].text != other.cells[key].text:
                yield f"{row.name}: {key} {row.cells[key].text}, {plain} has {other.cells[key].text}"


def _contexts(paper: Paper) -> Iterator[str]:
    """From T to 2 T a row's bytes grow by something between T and T^2, its minutes by no more than T^2."""
    tables = [table for table in paper.tables.values() if {"communication", "latency"} <= set(table.columns)]
    for short in tables:
        for long in tables:
            same = short.dimensions["layers"] == long.dimensions["layers"]
            if not same or long.dimensions["context"] != 2 * short.dimensions["context"]:
                continue
            for row in short.rows:
                other = next((r for r in long.rows if r.name == row.name), None)
                for key, least in (("communication", 2.0), ("latency", 1.0)):
                    if other and not least <= (growth := other.cells[key].value / row.cells[key].value) <= 4:
                        yield f"Tables {short.number} and {long.number}, {row.name}: {key} grows by {growth:.2f}"


def _orders(_: Paper, table: Table) -> Iterator[str]:
    """In every group of rows each next one has fewer operations, and no more bytes and minutes."""
    for first, second in zip(table.rows, table.rows[1:], strict=False):
        if first.group != second.group or "EReg(" in second.name:
            continue
        for key in ("communication", "latency"):
            one, other = _value(first, key), _value(second, key)
            if one is not None and other is not None and other > one:
                yield f"{second.name}: {key} {other} exceeds that of {first.name}, {one}"


def _perplexities(_: Paper, table: Table) -> Iterator[str]:
    """Above 1, of one size down a column; fewer with more tokens along a row."""
    for column in table.columns.values():
        if column.unit != "perplexity":
            continue
        values = [(row.name, value) for row in table.rows if (value := _value(row, column.key)) is not None]
        for name, value in values:
            if not (value > 1 and max(v for _, v in values) < PERPLEXITY_SPREAD * value):
                yield f"{name}: {column.key} {value} is far from the others"
    for row in table.rows:
        along = [value for key in ("ppl_1_2b", "ppl_2_4b", "ppl_4_8b") if (value := _value(row, key)) is not None]
        if along != sorted(along, reverse=True):
            yield f"{row.name}: perplexities {along} do not fall with the tokens"


def _entropies(paper: Paper, table: Table) -> Iterator[str]:
    """Nats: a head's mean entropy under a causal mask is at most ln(T!) / T. In bits the largest would exceed it."""
    for row in table.rows:
        context = row.setting.get("context", table.dimensions.get("context"))
        for key, cell in row.cells.items():
            if cell.column.unit != "nats" or cell.value is None:
                continue
            bound = math.lgamma(context + 1) / context
            if not 0 <= cell.value <= bound + cell.half_unit:
                yield f"{row.name}: {key} {cell.text} exceeds the bound {bound:.3f}"
            if key.startswith("low") and cell.value > row.cells[key.replace("low", "high")].value:
                yield f"{row.name}: {key} {cell.text} exceeds the range's other end"
            if key == "high" and cell.value < 0.9 * bound:
                yield f"{row.name}: {key} {cell.text} is far below the bound, {bound:.3f}"
            margins = {f"w1_{m}" for m in ("0", "10", "20")}
            known = paper.facts.get("w1_range")
            if key in margins and known and not known["low"] <= cell.value <= known["high"]:
                yield f"{row.name}: {key} {cell.text} is outside of the range told in the text"


def _shares(table: Table) -> Iterator[str]:
    """Per cent are from 0 to 100; with more segments a context is worth less (`parallel_context`)."""
    for key, column in table.columns.items():
        if column.unit.startswith("% "):
            for row in table.rows:
                if not 0 <= row.cells[key].value <= 100:
                    yield f"{row.name}: {key} {row.cells[key].text} is no share"
        if table.number == "main":
            values = [row.cells[key].value for row in table.rows]
            if values != sorted(values, reverse=key != "lm"):
                yield f"{key}: {values} are not in order"
