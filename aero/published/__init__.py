"""The papers' printed numbers as data, one YAML file a paper, and which run of this artifact each table row is.

    paper = load("aero")
    paper.tables["4"].row("SM+ScFuFFN").cells["communication"].value   # 6.43, in the column's unit

Nothing here is measured or derived: a cell holds what is printed, its unit and place, or says why it is empty.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aero.errors import text_of, yaml_of

_FOLDER = Path(__file__).parent

STATED = ("before the data", "before the data, corrected after", "after the data", "no data")
"""When a claim, its parameters and its rule entered git, against the first commit of a result of every run it compares,
or of the first other result file it is decided on. What could not be decided by the data there were is *before* them.
*Corrected*: the rule was made stricter afterwards (docs/decisions.md). *No data*: counts, arithmetic, print.
"""


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
    """A column of a printed table: its key here, its printed label, its unit and the number of decimals printed.

    training: which of a row's trainings it is about, "" where a row has one or the column is about none.
    """

    key: str
    label: str
    unit: str
    digits: int
    training: str = ""


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
    """A printed row: the architecture in the papers' notation, the group it stands in, its cells and its run.

    run: None if the row is not trained here, or has several trainings: then `runs` has the run of each.
    setting: what differs from the table's dimensions; the architecture, or a part of it, where the name is not one.
    """

    name: str
    group: str
    run: str | None
    cells: dict[str, Cell]
    runs: dict[str, str] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> dict[str, str]:
        """Run by training; the key is "" where the row has one."""
        return {"": self.run} if self.run else self.runs


@dataclass(frozen=True)
class Table:
    """A printed table. `dimensions` holds what it was measured on: model, layers, heads, width, context, corpus,
    tokens; `trainings` what differs for each training of a row with several.

    note: what is lost of the table in the sources used here; such a table may have no rows.
    same_models: the table whose rows are of the same models, where this one's are lost: "aero/table4".
    """

    number: str
    title: str
    place: str
    dimensions: dict[str, Any]
    columns: dict[str, Column]
    rows: tuple[Row, ...]
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)
    note: str = ""
    same_models: str = ""

    def setting(self, row: Row, training: str = "") -> dict[str, Any]:
        """What was trained for `row`: the dimensions, the architecture in notation, and gamma where one is printed."""
        found = {"architecture": "{row}"} | self.dimensions | row.setting | self.trainings.get(training, {})
        return found | {"architecture": _filled(found["architecture"], row.setting | {"row": row.name})}

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

    kind: "claim" (the paper says so), "contradiction" (two things the paper says do not fit together) or "own" (no
    sentence of the paper, but a variation of one that this project adds).
    stated: whether the claim and its rule stood in this repository before the data it is decided on, see `STATED`.
    short: its subject in a few words; published: the number or order claimed, as the paper gives it; parameters:
    thresholds of the deciding test.
    """

    id: str
    short: str
    claim: str
    where: str
    kind: str
    stated: str
    test: str
    published: str
    topic: str
    parameters: dict[str, Any] = field(default_factory=dict)
    file: str = ""  # of aero/published, in which it stands


@cache
def load(short: str) -> Paper:
    """The printed numbers of the paper called `short` ("aero"); ValueError naming the known papers for another name."""
    path = _FOLDER / f"{short}.yaml"
    if not path.is_file():
        raise ValueError(f"no published numbers for paper {short!r}; known papers: {', '.join(known_papers())}")
    claims: tuple[Claim, ...] = ()
    with _told(path):
        values = yaml_of(text_of(path))
        tables = {str(number): _table(str(number), table, path) for number, table in values["tables"].items()}
        paper = dict(values["paper"])
        head = {key: str(paper.pop(key)) for key in ("short", "title", "cite")}
    for claims_path in sorted(_FOLDER.glob(f"{short}_*claims.yaml")):  # aero_claims.yaml, aero_further_claims.yaml
        with _told(claims_path):
            entries = yaml_of(text_of(claims_path))["claims"]
            claims += tuple(_claim(entry, claims_path.name) for entry in entries)
            if len({claim.id for claim in claims}) != len(claims):
                raise ValueError("a claim id occurs twice")
    return Paper(**head, facts=paper, tables=tables, claims=claims)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Anything that is wrong with the file becomes one ValueError that names it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # YAML's readers raise anything, and so does what is built of another structure
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path.name} is no file of published numbers: {' '.join(reason.split())[:500]}") from None


def _claim(entry: dict[str, Any], file: str) -> Claim:
    claim = Claim(**entry, file=file)
    texts = [value for name, value in vars(claim).items() if name != "parameters"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(claim.parameters, dict):
        raise ValueError(f"claim {claim.id}: all but its parameters are texts")
    if claim.stated not in STATED:
        raise ValueError(f"claim {claim.id}: stated is {claim.stated[:40]!r}; known: {'; '.join(STATED)}")
    return claim


def known_papers() -> tuple[str, ...]:
    """Short names of the papers whose numbers are here."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml") if not path.stem.endswith("_claims")))


def rows_of_run(run: str, short: str = "aero") -> tuple[tuple[str, str], ...]:
    """(table number, row name) of every printed row that the run called `run` stands for."""
    return tuple(
        (table.number, row.name)
        for table in load(short).tables.values()
        for row in table.rows
        if run in row.trained.values()
    )


def row_identifiers(short: str) -> dict[str, str]:
    """Run by printed row, for every trained row: "aero/table4/SM+ScFFN", or "aero/table8/SM+R/256" for one training."""
    return {
        f"{short}/table{table.number}/{row.name}" + (f"/{training}" if training else ""): run
        for table in load(short).tables.values()
        for row in table.rows
        for training, run in row.trained.items()
    }


def _filled(text: str, values: dict[str, Any]) -> str:
    """`text` with the values in the place of their names; nothing but names may stand in braces."""
    parts = []
    for literal, name, form, conversion in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            if name not in values or form or conversion:
                raise ValueError(f"{text[:100]!r} has {name!r} in braces; known: {', '.join(values)}")
            parts.append(str(values[name]))
    return "".join(parts)


def _table(number: str, values: dict[str, Any], path: Path) -> Table:
    columns = {str(key): _column(str(key), column) for key, column in values["columns"].items()}
    rows = tuple(_row(row, columns, f"{path.name}, Table {number}") for row in values["rows"])
    if len({row.name for row in rows}) != len(rows):
        raise ValueError(f"{path.name}, Table {number}: a row occurs twice")
    trainings = {str(name): dict(changes) for name, changes in values.get("trainings", {}).items()}
    for row in rows:
        if row.runs and set(row.runs) != set(trainings):
            raise ValueError(f"{path.name}, Table {number}, row {row.name}: runs are not those of trainings")
    table = Table(
        number,
        str(values["title"]),
        str(values["place"]),
        dict(values["dimensions"]),
        columns,
        rows,
        trainings,
        str(values.get("note", "")),
        str(values.get("same_models", "")),
    )
    for row in rows:
        for training in row.trained:
            table.setting(row, training)
    return table


def _column(key: str, values: dict[str, Any]) -> Column:
    column = Column(key, **values)
    if not all(isinstance(text, str) for text in (column.label, column.unit, column.training)):
        raise ValueError(f"column {key}: label, unit and training are texts")
    if type(column.digits) is not int or not 0 <= column.digits <= 9:
        raise ValueError(f"column {key}: digits is {str(column.digits)[:40]!r}, not a number of decimals from 0 to 9")
    return column


def _row(values: dict[str, Any], columns: dict[str, Column], place: str) -> Row:
    cells, notes = values["cells"], values.get("notes", {})
    if set(cells) != set(columns) or not set(notes) <= set(columns):
        odd = sorted(set(cells) ^ set(columns) | set(notes) - set(columns))
        raise ValueError(f"{place}, row {values['row']}: cells do not match the columns: {', '.join(odd)}")
    run, runs = values.get("run"), dict(values.get("runs", {}))
    if not all(isinstance(name, str) for name in (values["row"], values["group"], run or "", *runs.values())):
        raise ValueError(f"{place}, row {str(values['row'])[:40]}: its name, group and runs are texts")
    return Row(
        values["row"],
        values["group"],
        run,
        {key: _cell(columns[key], cells[key], str(notes.get(key, ""))) for key in columns},
        {str(training): name for training, name in runs.items()},
        dict(values.get("setting", {})),
    )


def _cell(column: Column, value: Any, note: str) -> Cell:
    if isinstance(value, list):
        operations = tuple(Operation(name, count, *shape) for name, count, shape in value)
        for operation in operations:
            numbers = (operation.count, operation.rows, operation.columns)
            if not isinstance(operation.name, str) or any(type(n) is not int or n < 1 for n in numbers):
                raise ValueError(f"column {column.key}: an operation is [name, how many, [rows, columns]]")
        if not operations and not note:
            raise ValueError(f"column {column.key}: an empty cell needs a note that says why")
        return Cell(column, operations=operations, note=note)
    if value is None and not note:
        raise ValueError(f"column {column.key}: an empty cell needs a note that says why")
    return Cell(column, None if value is None else _printed(column, value), note=note)


def _printed(column: Column, value: Any) -> float:
    """A number as YAML has it, or "NaN". ValueError for true, dates, texts, infinity, and more digits than printed."""
    if value == "NaN":
        return math.nan
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"column {column.key}: {str(value)[:40]!r} is no printed number")
    if abs(value) >= 1e12 or float(f"{value:.{column.digits}f}") != value:
        raise ValueError(f"column {column.key}: {value!r} has not the {column.digits} decimals that are printed")
    return float(value)
