"""Measured operations and composed rows as CSV files: results/two_party/*ops.csv and *rows.csv."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from aero.errors import cut, first_error, text_of
from aero.records import csv_text, write_text

if TYPE_CHECKING:  # reading results needs no JAX
    from aero.two_party.program.operations import Operation


def _or_nan(value: float) -> float:
    if not (0 <= value < math.inf or math.isnan(value)):
        raise ValueError("must be a number of at least 0, or nan")
    return value


def _object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("is not a JSON object")
    return text


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Measured = Annotated[float, AfterValidator(_or_nan)]
"""NaN where it was not measured, such as seconds on a machine that was not quiet, or is composed of such."""
Number = Annotated[int, Field(ge=1)]
Object = Annotated[str, AfterValidator(_object)]


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
    context: Number
    variant: str
    bytes_sent_client: Amount
    bytes_sent_server: Amount
    messages: Amount
    rounds: Measured
    setup_bytes: Amount
    seconds: Measured
    runs: Number
    provenance: Object

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
    max_logit_error: None for a composed row.
    """

    named_by = ("architecture", "model", "context", "program")

    architecture: str
    model: str
    context: Number
    program: str
    bytes: Amount
    messages: Amount
    rounds: Measured
    seconds: Measured
    latency_wan_s: Measured
    latency_lan_s: Measured
    method: str
    max_logit_error: Annotated[Amount | None, BeforeValidator(lambda value: value or None)]
    bytes_client: Amount
    bytes_server: Amount
    embedding_bytes: Amount
    head_bytes: Amount
    ln_f_bytes: Amount
    setup_bytes: Amount
    provenance: Object


@dataclass(frozen=True)
class DetailedRow(Row):
    """A row with its parts.

    backbone_bytes, backbone_seconds: without embedding, vocabulary projection and set-up. bytes_by_kind,
    seconds_by_kind: JSON, by kind of operation. places: where the paper prints the row.
    """

    backbone_bytes: Amount
    backbone_seconds: Amount
    bytes_by_kind: Object
    seconds_by_kind: Object
    places: str


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
    names, row_of = [field.name for field in fields(kind)], TypeAdapter(kind).validate_python
    lines = csv.DictReader(io.StringIO(text_of(path), newline=""))
    if lines.fieldnames != names:
        raise ValueError(f"{path}: columns are {cut(str(lines.fieldnames), 200)}, expected {names}; measure again")
    rows: dict[tuple[str, ...], Any] = {}
    for line in lines:
        try:
            if None in line or None in line.values():
                raise ValueError(f"not {len(names)} fields, as the first line has")
            row = row_of(line)
            if (name := name_of(row)) in rows:
                raise ValueError(f"{' '.join(name)[:200]} is in the file twice")
            if isinstance(row, Row) and not math.isclose(row.bytes, row.bytes_client + row.bytes_server, rel_tol=1e-6):
                raise ValueError(f"bytes is {row.bytes:.0f}, not the sum of bytes_client and bytes_server")
            rows[name] = row
        except ValueError as error:
            reason = first_error(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"{path}, line {lines.line_num}: {reason}; measure again") from None
    return list(rows.values())


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
