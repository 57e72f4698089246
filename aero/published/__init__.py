"""The papers' printed numbers as data, one YAML file a paper, and which run of this artifact each table row is.

    paper = load("aero")
    paper.tables["4"].row("SM+ScFuFFN").cells["communication"].value   # 6.43, in the column's unit

Nothing here is measured or derived: a cell holds what is printed, its unit and place, or says why it is empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Operation:
    """`count` applications of one nonlinear function (`SM`, `LN`, `G`, `R`) to a (rows, columns) matrix."""

    name: str
    count: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.name}:{self.count}×R^{{{self.rows}×{self.columns}}}"


@dataclass(frozen=True)
class Column:
    """A column of a printed table: its key here, its printed label, its unit and the number of decimals printed."""

    key: str
    label: str
    unit: str
    digits: int


@dataclass(frozen=True)
class Cell:
    """One printed cell.

    value: the printed number in the column's unit; None where nothing usable is printed; `math.nan` for a printed NaN.
    operations: for the `#Nonlinear Ops` column instead of a value.
    note: why a cell is empty, or what is odd about the printed number.
    """

    column: Column
    value: float | None = None
    operations: tuple[Operation, ...] = ()
    note: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the table prints NaN: training diverged."""
        return self.value is not None and math.isnan(self.value)

    @property
    def text(self) -> str:
        """The cell as printed, "" for an empty one."""
        if self.operations:
            return "; ".join(str(operation) for operation in self.operations)
        if self.value is None:
            return ""
        return "NaN" if self.diverged else f"{self.value:.{self.column.digits}f}"

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit: how far the true number may be from the printed one."""
        return 0.5 * 10.0**-self.column.digits


@dataclass(frozen=True)
class Row:
    """A printed row: the architecture in the papers' notation, the group it stands in, its cells and its run (or
    None).
    """

    name: str
    group: str
    run: str | None
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """A printed table. `dimensions` holds what it was measured on: model, layers, heads, width, context, corpus,
    tokens.
    """

    number: str
    title: str
    place: str
    dimensions: dict[str, Any]
    columns: dict[str, Column]
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """The row called `name` ("SM+LN+G"); ValueError naming the known ones if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"Table {self.number} has no row {name!r}; rows: {', '.join(row.name for row in self.rows)}")

    def value(self, row: str, column: str) -> float | None:
        """The printed number at (row, column), None where the cell is empty."""
        return self.row(row).cells[column].value


@dataclass(frozen=True)
class Paper:
    """A paper's tables by their printed number, its facts outside tables, and its claims."""

    short: str
    title: str
    cite: str
    facts: dict[str, Any]
    tables: dict[str, Table]
    claims: tuple[Claim, ...] = ()

    def claim(self, identifier: str) -> Claim:
        for claim in self.claims:
            if claim.id == identifier:
                return claim
        raise ValueError(f"no claim {identifier!r} of {self.short}; known: {', '.join(c.id for c in self.claims)}")


@dataclass(frozen=True)
class Claim:
    """A sentence the paper states or implies, and the function of `aero.report` that decides it.

    kind: "claim" (the paper says so) or "contradiction" (two things the paper says do not fit together).
    short: its subject in a few words; published: the number or order claimed, as the paper gives it; parameters:
    thresholds of the deciding test.
    """

    id: str
    short: str
    claim: str
    where: str
    kind: str
    test: str
    published: str
    topic: str
    parameters: dict[str, Any] = field(default_factory=dict)


@cache
def load(short: str) -> Paper:
    """The printed numbers of the paper called `short` ("aero"); ValueError naming the known papers for another name."""
    path = _FOLDER / f"{short}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in _FOLDER.glob("*.yaml") if not p.stem.endswith("_claims"))
        raise ValueError(f"no published numbers for paper {short!r}; known papers: {', '.join(known)}")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    tables = {number: _table(number, table, path) for number, table in values["tables"].items()}
    paper = dict(values["paper"])
    head = {key: paper.pop(key) for key in ("short", "title", "cite")}
    claims_path = _FOLDER / f"{short}_claims.yaml"
    entries = yaml.safe_load(claims_path.read_text(encoding="utf-8"))["claims"] if claims_path.is_file() else []
    claims = tuple(Claim(**entry) for entry in entries)
    if len({claim.id for claim in claims}) != len(claims):
        raise ValueError(f"{claims_path.name}: a claim id occurs twice")
    return Paper(**head, facts=paper, tables=tables, claims=claims)


def rows_of_run(run: str, short: str = "aero") -> tuple[tuple[str, str], ...]:
    """(table number, row name) of every printed row that the run called `run` stands for."""
    return tuple((t.number, row.name) for t in load(short).tables.values() for row in t.rows if row.run == run)


def _table(number: str, values: dict[str, Any], path: Path) -> Table:
    columns = {key: Column(key, **column) for key, column in values["columns"].items()}
    rows = tuple(_row(row, columns, f"{path.name}, Table {number}") for row in values["rows"])
    if len({row.name for row in rows}) != len(rows):
        raise ValueError(f"{path.name}, Table {number}: a row occurs twice")
    return Table(number, values["title"], values["place"], values["dimensions"], columns, rows)


def _row(values: dict[str, Any], columns: dict[str, Column], place: str) -> Row:
    cells, notes = values["cells"], values.get("notes", {})
    if set(cells) != set(columns) or not set(notes) <= set(columns):
        odd = sorted(set(cells) ^ set(columns) | set(notes) - set(columns))
        raise ValueError(f"{place}, row {values['row']}: cells do not match the columns: {', '.join(odd)}")
    return Row(
        values["row"],
        values["group"],
        values["run"],
        {key: _cell(columns[key], cells[key], notes.get(key, "")) for key in columns},
    )


def _cell(column: Column, value: Any, note: str) -> Cell:
    if isinstance(value, list):
        operations = tuple(Operation(name, count, *shape) for name, count, shape in value)
        return Cell(column, operations=operations, note=note)
    if value is None and not note:
        raise ValueError(f"column {column.key}: an empty cell needs a note that says why")
    return Cell(column, None if value is None else float(value), note=note)
