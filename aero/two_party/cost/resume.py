"""Measure many operations in a few two-party sessions, resumable after every session.

A measurement stands as long as its operation computes the same, with the same settings and version of SPU, whatever
else changed in the code (`signature`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from tqdm import tqdm

from aero.architecture import Architecture
from aero.errors import UserError
from aero.model import ModelConfig
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import compose
from aero.two_party.cost.ledger import Measurement
from aero.two_party.cost.measure import measure, measure_rounds, shrink
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import VARIANT, Settings, TwoPartyError

if TYPE_CHECKING:
    from aero.config import TwoPartyParameters

BATCH, BATCH_ELEMENTS = 48, 4_000_000
"""Operations, and array elements in them, of one session: what an interruption can lose."""
Done = dict[tuple[str, str], Measurement]


@dataclass(frozen=True)
class Wanted:
    """An operation to measure, with the model and context it is recorded under."""

    operation: Operation
    model: str
    context: int

    @property
    def key(self) -> tuple[str, str]:
        return self.operation.name, self.operation.shape

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for shape in self.operation.shapes)


def signature(operation: Operation) -> str:
    """Hash of what a measurement depends on: the traced computation, the settings, SPU's version."""
    computation = str(jax.make_jaxpr(operation.function())(*operation.arrays))
    parts = (computation, repr(operation.owners), VARIANT, importlib.metadata.version("spu"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def batches(left: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Operations of one context each, small contexts first."""
    batch: list[Wanted] = []
    for one in sorted(left, key=lambda one: one.context):
        full = len(batch) == BATCH or sum(other.elements for other in (*batch, one)) > BATCH_ELEMENTS
        if batch and (full or one.context != batch[0].context):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def usable(path: Path, signatures: Mapping[tuple[str, str], str]) -> list[Measurement]:
    """Rows of an earlier measurement that still stand."""
    try:
        rows = ledger.read(path, Measurement)
    except (OSError, ValueError):
        return []
    return [row for row in rows if json.loads(row.provenance).get("computation") == signatures.get(row.key, 0)]


def measure_missing(
    wanted: Sequence[Wanted],
    path: Path,
    settings: Settings,
    *,
    rounds_runs: int,
    seconds: bool = True,
    repeats: Mapping[int, int] | None = None,
    minutes: float | None = None,
    others: Sequence[Measurement] = (),
    rounds_from: Sequence[Path] = (),
    on_session: Callable[[Done], None] = lambda done: None,
) -> Done:
    """Measure the operations of `wanted` that `path` lacks, and write it after every session. Returns all of `wanted`.

    rounds_runs: as `measure_rounds` takes it, 0 to leave rounds out. seconds: whether to keep them. repeats: runs of
    the operations of a context, 1 by default. minutes: stop after about so long, between two sessions. others: further
    rows to keep in `path`. rounds_from: files whose rounds are taken for the same computation. UserError if operations
    are left or failed.
    """
    started = time.monotonic()
    signatures = {one.key: signature(one.operation) for one in wanted}
    earlier = ledger.by_operation(usable(path, signatures))
    done = {
        key: row
        for key, row in earlier.items()
        if not (seconds and math.isnan(row.seconds)) and not (rounds_runs and math.isnan(row.rounds))
    }
    left = [one for one in wanted if one.key not in done]
    rows = [row for file in rounds_from for row in usable(file, signatures)] + list(earlier.values())
    rounds_of = {row.key: row.rounds for row in rows if not math.isnan(row.rounds)}
    known = {shrink(one.operation): rounds_of[one.key] for one in wanted if one.key in rounds_of}
    failed: list[str] = []

    def write() -> None:
        kept = {row.key: row for row in others if row.key not in signatures} | earlier | done
        ledger.write(path, sorted(kept.values(), key=lambda row: row.key), Measurement)
        on_session(done)

    def take(batch: Sequence[Wanted]) -> None:
        operations, (model, context) = [one.operation for one in batch], (batch[0].model, batch[0].context)
        if unknown := [o for o in operations if rounds_runs and shrink(o) not in known]:
            known.update({shrink(o): found for o, found in measure_rounds(unknown, settings, rounds_runs).items()})
        rounds = {operation: known.get(shrink(operation), math.nan) for operation in operations}
        runs = (repeats or {}).get(context, 1)
        found = measure(operations, model, context, settings, runs, rounds=rounds)
        for one, row in zip(batch, found, strict=True):
            source = json.loads(row.provenance) | {"computation": signatures[row.key]}
            new = replace(row, model=one.model, context=one.context, provenance=ledger.as_json(**source))
            new = new if seconds else replace(new, seconds=math.nan)
            done[row.key] = ledger.filled(new, earlier.get(row.key))
            bar.set_postfix_str(f"{row.op} {row.shape}: {row.bytes / 1e6:.1f} MB in {row.seconds:.1f} s")
            bar.update()
        write()

    def attempt(batch: Sequence[Wanted]) -> None:
        """Measure the batch; if it fails, one by one, as one operation may be too large for this machine."""
        try:
            take(batch)
        except TwoPartyError as error:
            if len(batch) == 1:
                failed.append(f"{batch[0].operation.name} {batch[0].operation.shape}: {error}")
            for one in batch if len(batch) > 1 else ():
                attempt([one])
        if len(failed) > 2 and not done:
            raise TwoPartyError(f"no operation could be measured: {failed[0]}")

    with tqdm(total=len(wanted), initial=len(wanted) - len(left), desc="operations", unit="op", disable=None) as bar:
        for batch in batches(left):
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                break
            attempt(batch)
    write()
    if failed:
        raise UserError(f"{len(failed)} operations failed, the first {failed[0]}; the same command tries them again")
    if len(done) < len(wanted):
        raise UserError(f"{len(wanted) - len(done)} operations are left after --minutes; the same command continues")
    return done


@dataclass(frozen=True)
class PrintedRow:
    """A row to cost: its model family and context in the paper, where it is printed, and its programs (None: all).

    family: "own gpt2" and so on where it is measured at a small scale's own sizes.
    """

    architecture: Architecture
    family: str
    config: ModelConfig
    context: int
    places: tuple[str, ...] = ()
    programs: tuple[str, ...] | None = None


def measure_rows(
    two_party: TwoPartyParameters,
    rows: Sequence[PrintedRow],
    programs: Sequence[str],
    ops_file: Path,
    rows_file: Path | None,
    **options: Any,
) -> None:
    """Measure what `rows` need and `ops_file` lacks, and compose the rows. options: of `measure_missing`."""
    pairs = [(row, program) for row in rows for program in programs if row.programs is None or program in row.programs]
    found: dict[Operation, Wanted] = {}
    for row, program in list(pairs):
        try:
            for operation in operations(row.architecture, row.config, program, row.context):
                found.setdefault(operation, Wanted(operation, row.family, row.context))
        except ValueError as error:
            print(f"left out: {row.architecture} ({row.family}), {program}: {error}", file=sys.stderr)
            pairs.remove((row, program))

    def write_rows(done: Done) -> None:
        composed = []
        for row, program in pairs:
            try:
                sizes = row.config, row.family, program, row.context
                composed.append(compose(row.architecture, *sizes, done, two_party.networks, row.places))
            except ValueError:  # an operation that is not measured yet
                continue
        if rows_file:
            ledger.write(rows_file, composed, ledger.DetailedRow)

    todo = sorted(found.values(), key=lambda one: (one.elements, one.operation))
    settings = Settings(**two_party.settings())
    done = measure_missing(todo, ops_file, settings, on_session=write_rows, **options)
    print(
        f"{len(done)} operations, {len(pairs)} rows: {', '.join(str(path) for path in (ops_file, rows_file) if path)}"
    )
