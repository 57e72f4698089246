"""Measured operations and composed rows as CSV: the contracts results/two_party/ops.csv and rows.csv."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import cut, text_of

if TYPE_CHECKING:  # reading results needs no JAX
    from aero.two_party.program.operations import Operation


@dataclass(frozen=True)
class Measurement:
    """One operation as measured: bytes each way and messages in the steady state, seconds of one run on loopback.

    rounds: round trips that cost time, from the slope of time against RTT. setup_bytes: what the first run of this kind
    paid beyond the steady state (keys, first oblivious transfers); a row pays that of `session_setup`, not the sum.
    runs: how many steady-state runs the means are over. provenance: JSON.
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

    embedding_bytes, head_bytes, ln_f_bytes: parts of bytes. setup_bytes: once a session, part of bytes too. method:
    "composed". max_logit_error: None, as a cost is no pass's. None: not measured.
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
    """A row with all its parts.

    backbone_bytes, backbone_seconds: everything but embedding, vocabulary projection and set-up. bytes_by_kind,
    seconds_by_kind: JSON, by kind of operation. places: where the row is printed.
    """

    backbone_bytes: float
    backbone_seconds: float
    bytes_by_kind: str
    seconds_by_kind: str
    places: str


def write(path: Path, rows: Iterable[Measurement | Row], kind: type[Measurement] | type[Row]) -> None:
    """Write rows atomically with the header of `kind`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if value is None else value for key, value in asdict(row).items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


UNMEASURED = frozenset({"rounds", "latency_wan_s", "latency_lan_s"})
"""Fields that may be NaN: what was measured without rounds (`measure(rounds_runs=0)`) and latencies composed of it."""
NO_SECONDS = UNMEASURED | {"seconds"}
"""Those of operations whose bytes were asked for on a machine that was not quiet (`asked_ops.csv`)."""


def read_any(path: Path) -> list[Any]:
    """Rows of a file of operations, of rows or of detailed ones, whichever its columns say. ValueError as `read`."""
    first = text_of(path).partition("\n")[0]
    kinds = (kind for kind in (Measurement, Row, DetailedRow) if first == ",".join(one.name for one in fields(kind)))
    return read(path, next(kinds, Measurement), NO_SECONDS)


def name_of(row: Measurement | Row) -> tuple[str, ...]:
    """What a line is called: of two lines of one name, one would be said in vain."""
    return tuple(str(getattr(row, column)) for column in row.named_by)


def read(path: Path, kind: type[Any], unmeasured: Collection[str] = UNMEASURED) -> list[Any]:
    """Rows of a file written by `write`. ValueError naming the file, line and field for what is not one: columns that
    are missing or too many, text for a number, an amount below 0 or without end, a provenance that is no JSON object,
    the name of an earlier line.
    NaN is read in the fields `unmeasured` alone.
    """
    types = {field.name: str(field.type) for field in fields(kind)}
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""))
    try:
        columns, lines = reader.fieldnames, [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.reader.line_num}: {error}; measure again") from None
    if columns != list(types):
        raise ValueError(f"{path}: columns are {cut(str(columns), 200)}, expected {list(types)}; measure again")
    rows: list[Any] = []
    seen: dict[tuple[str, ...], int] = {}
    for number, line in lines:
        try:
            if None in line or None in line.values():
                raise ValueError(f"not {len(types)} fields, as the first line has")
            row = kind(**{name: _value(name, types[name], text, unmeasured) for name, text in line.items()})
            rows.append(row)
            if (name := name_of(row)) in seen:
                raise ValueError(f"{' '.join(name)[:200]} stands in line {seen[name]} too")
            seen[name] = number
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; measure again") from None
    return rows


_AT_LEAST_ONE = frozenset({"context", "runs"})
_OBJECTS = frozenset({"provenance", "bytes_by_kind", "seconds_by_kind"})


def _value(name: str, kind: str, text: str, unmeasured: Collection[str]) -> Any:
    """The field called `name`; ValueError, without file and line, for what cannot be there."""
    if "None" in kind and text == "":
        return None
    if kind == "str":
        if name in _OBJECTS:
            _check_object(name, text)
        return text
    # Other scripts' digits and underscores, which int and float read, `write` does not write.
    if not text.isascii() or "_" in text:
        raise ValueError(f"{name} is {cut(repr(text))}, no number")
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise ValueError(f"{cut(str(error))} ({name})") from None
    least = 1 if name in _AT_LEAST_ONE else 0
    if not least <= number < math.inf and not (name in unmeasured and math.isnan(number)):
        raise ValueError(f"{name} is {cut(text)}, which it cannot be: a number of at least {least} is due")
    return number


def _check_object(name: str, text: str) -> None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {cut(repr(text))}, no JSON object")


def by_operation(measurements: Iterable[Measurement]) -> dict[tuple[str, str], Measurement]:
    """Measurements by (op, shape)."""
    return {measurement.key: measurement for measurement in measurements}


def filled(new: Measurement, earlier: Measurement | None) -> Measurement:
    """`new` with the rounds and seconds of `earlier` where it was measured without."""
    if earlier is None:
        return new
    lacking = (name for name in ("rounds", "seconds") if math.isnan(getattr(new, name)))
    return replace(new, **{name: getattr(earlier, name) for name in lacking})


def session_setup(parts: Iterable[Measurement]) -> float:
    """Set-up bytes of one session of `parts`: the largest of those of SPU's usual protocols, and what products outside
    SPU, comparisons in a ring of their own and exponentials in a session of SPU of their own, each with its own keys,
    take beyond that. 0 without parts."""
    most: dict[frozenset[str], float] = {}
    for one in parts:
        own = frozenset(name for name in ("lattice_linear", "narrow=1", "few=1") if name in one.op)
        most[own] = max(most.get(own, 0.0), one.setup_bytes)
    usual = most.pop(frozenset(), None)
    if usual is None:
        return max(most.values(), default=0.0)
    total, paid = usual, frozenset()
    # An operation of two such protocols tells of both.
    for own in sorted(most, key=len, reverse=True):
        if not own <= paid:
            total, paid = total + max(0.0, most[own] - usual), paid | own
    return total


def find(measured: Mapping[tuple[str, str], Measurement], operation: Operation) -> Measurement:
    """The measurement of `operation`; ValueError if it was not measured (nothing is guessed)."""
    try:
        return measured[operation.name, operation.shape]
    except KeyError:
        what = f"operation {operation.name} {operation.shape}"
        raise ValueError(f"{what} was not measured; run the two_party_ops stage") from None


def as_json(**values: Any) -> str:
    """Compact JSON for a provenance column."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
