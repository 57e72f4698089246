"""The papers' printed numbers and claims, two YAML files a paper, and which run of this artifact each table row is.

    load("aero").tables["4"].row("SM+ScFuFFN").cells["communication"].value   # 6.43, in the column's unit

Nothing here is measured or derived: a cell holds what is printed, its unit and place, or says why it is empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from aero.errors import text_of, yaml_of
from aero.flops import NonlinearOperation

_FOLDER = Path(__file__).parent
PEERS = _FOLDER / "peers.csv"
"""What other systems for private inference report. Each line says where it was read; not checked by running them."""


@dataclass(frozen=True)
class Column:
    """A printed column. digits: decimals printed. training: which of a row's trainings it is about, if of one."""

    key: str
    label: str
    unit: str
    digits: int
    training: str = ""


@dataclass(frozen=True)
class Cell:
    """A printed number in the column's unit: None if nothing usable is printed, NaN (training diverged) if printed.
    operations: instead of a number in `#Nonlinear Ops`. note: why the cell is empty, or what is odd about it."""

    column: Column
    value: float | None = None
    operations: tuple[NonlinearOperation, ...] = ()
    note: str = ""

    @property
    def diverged(self) -> bool:
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
    """A printed row, named by its architecture in the papers' notation or by a label. run: what stands for it here;
    `runs` if it has several trainings. setting: what differs from the table's dimensions, and the architecture where
    the name is not one."""

    name: str
    group: str
    cells: dict[str, Cell]
    run: str | None = None
    runs: dict[str, str] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> dict[str, str]:
        """Run by training; the key is "" where the row has one."""
        return {"": self.run} if self.run else self.runs


@dataclass(frozen=True)
class Table:
    """A printed table. paper: its short name. dimensions: what it was measured on. trainings: what differs for each
    training of a row with several. note: what is lost of the table."""

    paper: str
    number: str
    title: str
    place: str
    dimensions: dict[str, Any]
    columns: dict[str, Column]
    rows: tuple[Row, ...]
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)
    note: str = ""

    def setting(self, row: Row, training: str = "") -> dict[str, Any]:
        """What was trained for `row`: the dimensions, the architecture in notation, and gamma where one is printed."""
        found = {"architecture": "{row}"} | self.dimensions | row.setting | self.trainings.get(training, {})
        return found | {"architecture": found["architecture"].format(**row.setting | {"row": row.name})}

    def row(self, name: str) -> Row:
        """The row called `name` ("SM+LN+G")."""
        return {row.name: row for row in self.rows}[name]

    def value(self, row: str, column: str) -> float | None:
        """The printed number at (row, column), None where the cell is empty."""
        return self.row(row).cells[column].value


@dataclass(frozen=True)
class Claim:
    """A sentence that a paper states or implies, and how it is decided.

    stated: whether claim and rule entered this repository before the data that decide them. quantity: a function of
    `aero.report` and its parameters. rule: one of `aero.report.verdicts` and its parameters. published: the
    number or order claimed. kind: "contradiction" if two statements of the paper do not fit together, "own" for a
    variation added here. version: of the paper, if it has several. merges: earlier claims of the same fact.
    """

    id: str
    claim: str
    where: str
    stated: str
    quantity: tuple[str, dict[str, Any]]
    rule: tuple[str, dict[str, Any]]
    published: str
    kind: str = "claim"
    version: str = ""
    merges: Sequence[str] = ()


@dataclass(frozen=True)
class Paper:
    """A paper's tables by their printed number, its facts outside tables, and its claims."""

    short: str
    facts: dict[str, Any]
    tables: dict[str, Table]
    claims: tuple[Claim, ...] = ()


@cache
def load(short: str) -> Paper:
    """The printed numbers of the paper called `short` ("aero")."""
    values, claims = (yaml_of(text_of(_FOLDER / f"{short}{end}.yaml")) for end in ("", "_claims"))
    facts = values["paper"]
    tables = {str(number): _table(short, str(number), table) for number, table in values["tables"].items()}
    version = facts.get("version", "")
    return Paper(short, facts, tables, tuple(_claim({"version": version} | entry) for entry in claims))


def known_papers() -> tuple[str, ...]:
    """Short names of the papers whose numbers are here."""
    return tuple(sorted(path.stem.removesuffix("_claims") for path in _FOLDER.glob("*_claims.yaml")))


def table(address: str) -> Table:
    """The printed table at an address such as "aero/table4"."""
    short, number = address.split("/table")
    return load(short).tables[number]


def fact(short: str, place: str) -> dict[str, Any]:
    """What a paper says outside its tables, by its place in the paper's file: "regularizer.gamma_text"."""
    return reduce(getitem, place.split("."), load(short).facts)


def _table(short: str, number: str, values: dict[str, Any]) -> Table:
    columns = {str(key): Column(str(key), **column) for key, column in values["columns"].items()}
    rows = tuple(_row(columns, **{"notes": {}} | row) for row in values["rows"])
    return Table(**{"paper": short, "number": number} | values | {"columns": columns, "rows": rows})


def _row(columns: dict[str, Column], row: str, cells: dict[str, Any], notes: dict[str, str], **more: Any) -> Row:
    found = {key: _cell(column, cells[key], notes.get(key, "")) for key, column in columns.items()}
    return Row(row, cells=found, **more)


def _cell(column: Column, value: Any, note: str) -> Cell:
    if isinstance(value, list):
        operations = tuple(NonlinearOperation(name, count, *shape) for name, count, shape in value)
        return Cell(column, operations=operations, note=note)
    return Cell(column, None if value is None else float(value), note=note)


def _claim(entry: dict[str, Any]) -> Claim:
    """Quantity and rule are a name, or a name with its parameters."""
    both = {key: entry[key] for key in ("quantity", "rule")}
    named = {key: next(iter(one.items())) if isinstance(one, dict) else (one, {}) for key, one in both.items()}
    return Claim(**entry | named)
