"""Measured operations and composed rows as CSV files: results/two_party/*ops.csv and *rows.csv."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import cut, text_of
from aero.records import csv_text, write_text

if TYPE_CHECKING:  # reading results needs no JAX
    from aero.two_party.program.operations import Operation


@dataclass(frozen=True)
class Measurement:
    """One measured operation: bytes each way and messages in the steady state, seconds of one run on loopback.

    rounds: round trips that cost time, from the slope of time against RTT. setup_bytes: extra bytes of the first run of
    its protocols (keys, first oblivious transfers), which a session pays once (`session_setup`). runs: steady-state
    runs. provenance: JSON.
    """

    named_by = ("op", "shape", "model", "context", "variant")

    op: str
    shape: str
    model: str
    context: int
    variant: str
    bytes_sent_client: float
    bytes_sent_server: float
    messages: float
    rounds: float
    setup_bytes: float
    seconds: float
    runs: int
    provenance: str

    @property
    def bytes(self) -> float:
        """Bytes in both directions."""
        return self.bytes_sent_client + self.bytes_sent_server

    @property
    def key(self) -> tuple[str, str]:
        return self.op, self.shape


@dataclass(frozen=True)
class Row:
    """Cost of one private forward pass. bytes, messages, rounds: both directions; seconds: computing on loopback.

    embedding_bytes, head_bytes, ln_f_bytes, setup_bytes (once a session): parts of bytes. method: "composed".
    max_logit_error: None for a composed row. None: not measured.
    """

    named_by = ("architecture", "model", "context", "program")

    architecture: str
    model: str
    context: int
    program: str
    bytes: float
    messages: float
    rounds: float | None
    seconds: float
    latency_wan_s: float | None
    latency_lan_s: float | None
    method: str
    max_logit_error: float | None
    bytes_client: float
    bytes_server: float
    embedding_bytes: float | None
    head_bytes: float | None
    ln_f_bytes: float | None
    setup_bytes: float | None
    provenance: str


@dataclass(frozen=True)
class DetailedRow(Row):
    """A row with its parts.

    backbone_bytes, backbone_seconds: without embedding, vocabulary projection and set-up. bytes_by_kind,
    seconds_by_kind: JSON, by kind of operation. places: where the paper prints the row.
    """

    backbone_bytes: float
    backbone_seconds: float
    bytes_by_kind: str
    seconds_by_kind: str
    places: str


_MAY_BE_NAN = frozenset({"rounds", "seconds", "latency_wan_s", "latency_lan_s"})
"""Fields of what was not measured, such as seconds on a machine that was not quiet, and of what is composed of it."""
_AT_LEAST_ONE = frozenset({"context", "runs"})
_OBJECTS = frozenset({"provenance", "bytes_by_kind", "seconds_by_kind"})


def write(path: Path, rows: Iterable[Measurement | Row], kind: type[Measurement] | type[Row]) -> None:
    """Write the columns of `kind` of rows, atomically."""
    names = [field.name for field in fields(kind)]
    write_text(path, csv_text(names, ({name: getattr(row, name) for name in names} for row in rows)))


def read_any(path: Path) -> list[Any]:
    """Rows of a file of operations, rows or detailed rows, by its columns. ValueError as `read`."""
    first = text_of(path).partition("\n")[0]
    kinds = (kind for kind in (Measurement, Row, DetailedRow) if first == ",".join(one.name for one in fields(kind)))
    return read(path, next(kinds, Measurement))


def name_of(row: Measurement | Row) -> tuple[str, ...]:
    """What identifies a line."""
    return tuple(str(getattr(row, column)) for column in row.named_by)


def read(path: Path, kind: type[Any]) -> list[Any]:
    """Rows of a file written by `write`.

    ValueError naming the file, line and field for wrong columns, values that cannot be, or two lines of one name.
    """
    types = {field.name: str(field.type) for field in fields(kind)}
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""))
    try:
        columns, lines = reader.fieldnames, [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.reader.line_num}: {error}; measure again") from None
    if columns != list(types):
        raise ValueError(f"{path}: columns are {cut(str(columns), 200)}, expected {list(types)}; measure again")
    rows: dict[tuple[str, ...], Any] = {}
    for number, line in lines:
        try:
            if None in line or None in line.values():
                raise ValueError(f"not {len(types)} fields, as the first line has")
            row = kind(**{name: _value(name, types[name], text) for name, text in line.items()})
            if (name := name_of(row)) in rows:
                raise ValueError(f"{' '.join(name)[:200]} is in the file twice")
            if isinstance(row, Row) and not math.isclose(row.bytes, row.bytes_client + row.bytes_server, rel_tol=1e-6):
                raise ValueError(f"bytes is {row.bytes:.0f}, not the sum of bytes_client and bytes_server")
            rows[name] = row
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; measure again") from None
    return list(rows.values())


def _value(name: str, kind: str, text: str) -> Any:
    if "None" in kind and text == "":
        return None
    if kind == "str":
        if name in _OBJECTS:
            _check_object(name, text)
        return text
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{name} is {cut(repr(text))}, not a number") from None
    least = 1 if name in _AT_LEAST_ONE else 0
    if not least <= number < math.inf and not (name in _MAY_BE_NAN and math.isnan(number)):
        raise ValueError(f"{name} is {cut(text)}; it must be a number of at least {least}")
    return number


def _check_object(name: str, text: str) -> None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {cut(repr(text))}, not a JSON object")


def by_operation(measurements: Iterable[Measurement]) -> dict[tuple[str, str], Measurement]:
    """Measurements by (op, shape)."""
    return {measurement.key: measurement for measurement in measurements}


def filled(new: Measurement, earlier: Measurement | None) -> Measurement:
    """`new`, with the rounds and seconds of `earlier` where it has none."""
    if earlier is None:
        return new
    lacking = (name for name in ("rounds", "seconds") if math.isnan(getattr(new, name)))
    return replace(new, **{name: getattr(earlier, name) for name in lacking})


OWN_PROTOCOLS = ("lattice_linear", "lattice=1", "narrow=1", "gelu_squares")
"""What the names of all operations contain that use a protocol with keys or oblivious transfers of its own: lattice
multiplication by the server's matrix and of two shared matrices, comparison in 32 bits, squares."""


def session_setup(parts: Iterable[Measurement]) -> float:
    """Set-up bytes of one session of `parts`; 0 without parts.

    The largest set-up of SPU's usual protocols, plus the extra set-up of each of OWN_PROTOCOLS.
    """
    most: dict[frozenset[str], float] = {}
    for one in parts:
        own = frozenset(name for name in OWN_PROTOCOLS if name in one.op)
        most[own] = max(most.get(own, 0.0), one.setup_bytes)
    usual = most.pop(frozenset(), None)
    if usual is None:
        return max(most.values(), default=0.0)
    total, paid = usual, frozenset()
    # An operation with two such protocols includes the set-up of both.
    for own in sorted(most, key=len, reverse=True):
        if not own <= paid:
            total, paid = total + max(0.0, most[own] - usual), paid | own
    return total


def find(measured: Mapping[tuple[str, str], Measurement], operation: Operation) -> Measurement:
    """The measurement of `operation`; ValueError if it was not measured."""
    try:
        return measured[operation.name, operation.shape]
    except KeyError:
        what = f"operation {operation.name} {operation.shape}"
        raise ValueError(f"{what} was not measured; run `python -m stages.two_party_ops`") from None


def as_json(**values: Any) -> str:
    """Compact JSON for a provenance column."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
