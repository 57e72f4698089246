"""Measure the operations of every row of AERO Tables 4-7 and Figure 15 at their own sizes, and compose the rows; or
those of the architectures that are given, at the sizes that are given, for `aero cost` (asked_ops.csv).

At GPT-2's published sizes all rows take hours, most of them for T=512. Every few operations the files are written;
killed, or stopped by --minutes, the same command goes on where it was. A measurement stands as long as what its
operation computes, the protocol's settings and SPU's version are the same, whatever else changed in the code.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from tqdm import tqdm

from aero.architecture import Architecture, parse
from aero.config import Parameters, load
from aero.costed import costed_places
from aero.errors import UserError, check_minutes, run_main
from aero.families import CHANGEABLE
from aero.model import ModelConfig
from aero.records import lock
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import compose_detailed
from aero.two_party.cost.counts import OWN, model_config
from aero.two_party.cost.measure import measure, measure_rounds, shrink
from aero.two_party.cost.network import Network
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import Settings, TwoPartyError

BATCH, BATCH_ELEMENTS = 24, 4_000_000
"""Operations, and array elements in them, of one two-party session: what a kill can lose."""


@dataclass(frozen=True)
class PrintedRow:
    """A row to be costed: its architecture, its model family and context in the paper, and where it is printed.

    family: "own gpt2" and so on where it is measured at a scale's own sizes. programs: those it is wanted in, of all
    that are measured; None for all.
    """

    architecture: Architecture
    family: str
    config: ModelConfig
    context: int
    places: tuple[str, ...]
    programs: tuple[str, ...] | None = None

    def wanted_in(self, programs: Sequence[str]) -> Sequence[str]:
        return [program for program in programs if self.programs is None or program in self.programs]


def printed_rows(parameters: Parameters) -> list[PrintedRow]:
    """The rows that AERO prints costs of, in the order of params.yaml; at the scale's own sizes if two_party is own."""
    found: dict[tuple[str, str, int], PrintedRow] = {}
    for name, run in parameters.runs.items():
        if not (places := costed_places(run)):
            continue
        architecture, family, context = parse(run.architecture), run.model, parameters.context(name)
        if parameters.active.two_party == "own":
            config = parameters.model_config_for(name, parameters.vocabulary(name))
            family, context = f"{OWN} {family}", config.context
        else:
            config = model_config(architecture, family, context)
        key = str(architecture), family, context
        before = found[key].places if key in found else ()
        found[key] = PrintedRow(architecture, family, config, context, (*before, *places))
    return list(found.values())


@dataclass(frozen=True)
class Wanted:
    """An operation to be measured, and the first row that needs it."""

    operation: Operation
    family: str
    context: int


def wanted(rows: Sequence[PrintedRow], programs: Sequence[str]) -> tuple[list[Wanted], dict[str, str]]:
    """Distinct operations of `rows`, small ones first, and the rows that no program can compute with the reason."""
    found: dict[Operation, Wanted] = {}
    refused: dict[str, str] = {}
    for row in rows:
        for program in row.wanted_in(programs):
            try:
                counts = operations(row.architecture, row.config, program, row.context)
            except ValueError as error:
                refused[f"{row.architecture} ({row.family}, T={row.context}), {program}"] = str(error)
                continue
            for operation in counts:
                found.setdefault(operation, Wanted(operation, row.family, row.context))
    return sorted(found.values(), key=lambda one: (_elements(one.operation), one.operation)), refused


def _elements(operation: Operation) -> int:
    return sum(math.prod(shape) for shape in operation.shapes)


def signature(operation: Operation, variant: str) -> str:
    """What a measurement of `operation` depends on, hashed: the traced computation, the settings, SPU's version."""
    computation = str(jax.make_jaxpr(operation.function())(*operation.arrays))
    parts = (computation, repr(operation.owners), variant, importlib.metadata.version("spu"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def batches(left: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    batch: list[Wanted] = []
    for one in left:
        full = sum(_elements(other.operation) for other in (*batch, one)) > BATCH_ELEMENTS
        if batch and (full or len(batch) == BATCH):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def usable(path: Path, signatures: dict[tuple[str, str], str]) -> list[ledger.Measurement]:
    """Rows of an earlier measurement that are still what would be measured now."""
    try:
        rows = ledger.read(path, ledger.Measurement, ledger.NO_SECONDS)
        return [row for row in rows if json.loads(row.provenance).get("computation") == signatures.get(row.key, 0)]
    except (OSError, ValueError):
        return []


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.two_party_all", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/two_party"))
    parser.add_argument("--minutes", type=float, help="stop after about so long, between two sessions")
    parser.add_argument("--no-rounds", action="store_true", help="leave rounds out (they need further sessions)")
    parser.add_argument("--no-seconds", action="store_true", help="leave seconds out, on a machine that is not quiet")
    parser.add_argument("architectures", nargs="*", help="in the papers' notation; default: every printed row")
    parser.add_argument("--model", help="model family of given architectures (default gpt2)")
    parser.add_argument("--context", type=int, help="their tokens, T (default 128)")
    parser.add_argument("--program", help="program of given architectures (default tuned)")
    for name in CHANGEABLE:
        parser.add_argument(f"--{name}", type=int, help="their other size than the family's published one")
    chosen = parser.parse_args(arguments)
    check_minutes(chosen.minutes or None)  # 0: what is there, and nothing new
    for name in ("no_seconds", "model", "context", "program", *CHANGEABLE):
        given = getattr(chosen, name)
        if not chosen.architectures and given is not None and given is not False:
            raise UserError(f"--{name.replace('_', '-')} belongs to given architectures; name one, such as SM+ScFuFFN")
    parameters = load()
    rows, programs = printed_rows(parameters), parameters.two_party.programs
    ops_file = chosen.folder / "all_ops.csv"
    rows_file: Path | None = chosen.folder / "all_rows.csv"
    if chosen.architectures:
        program = chosen.program or "tuned"
        rows, programs = asked_rows(chosen, program), [program]
        ops_file, rows_file = chosen.folder / "asked_ops.csv", None
    kept = {"rounds": not chosen.no_rounds, "seconds": not chosen.no_seconds}
    with lock(ops_file, f"adding to {ops_file}"):  # what the other one measures would be lost
        others = _asked_before(ops_file) if chosen.architectures else []
        measure_rows(parameters, rows, programs, ops_file, rows_file, chosen.minutes, **kept, others=others)


def _asked_before(ops_file: Path) -> list[ledger.Measurement]:
    try:
        return ledger.read(ops_file, ledger.Measurement, ledger.NO_SECONDS) if ops_file.exists() else []
    except ValueError as error:
        raise UserError(f"{error} into a new file, after this one is moved away") from None


def asked_rows(chosen: argparse.Namespace, program: str) -> list[PrintedRow]:
    """The architectures of the command line, printed nowhere. UserError if one is none, or its sizes cannot be."""
    changes = {name: getattr(chosen, name) for name in CHANGEABLE if getattr(chosen, name) is not None}
    found, family = [], chosen.model or "gpt2"
    context = 128 if chosen.context is None else chosen.context
    for text in chosen.architectures:
        try:
            architecture = parse(text)
        except ValueError as error:
            raise UserError(str(error)) from None
        config = model_config(architecture, family, context, **changes)
        try:
            operations(architecture, config, program, context)
        except ValueError as error:
            raise UserError(str(error)) from None
        found.append(PrintedRow(architecture, family, config, context, ()))
    return found


def measure_rows(
    parameters: Parameters,
    rows: Sequence[PrintedRow],
    programs: Sequence[str],
    ops_file: Path,
    rows_file: Path | None,
    minutes: float | None,
    *,
    rounds: bool,
    seconds: bool = True,
    repeats: Mapping[int, int] | None = None,
    others: Sequence[ledger.Measurement] = (),
    rounds_from: Sequence[Path] = (),
) -> None:
    """Measure the operations that `rows` need and `ops_file` lacks, and write it and the rows composed of them.

    minutes: stop after about so long, between two sessions. rounds: whether to measure them. seconds: whether to keep
    them. repeats: how often the operations of a context are run where that is more than once. others: measurements that
    `ops_file` keeps though `rows` do not need them. rounds_from: files of operations whose rounds are taken where they
    are of the same computation. An operation that lacks its rounds alone is not run again. UserError if something is
    left or failed.
    """
    started = time.monotonic()
    todo, refused = wanted(rows, programs)
    for row, reason in refused.items():
        print(f"left out: {row}: {reason}", file=sys.stderr)
    variant, settings = parameters.two_party.variant(), Settings(**parameters.two_party.settings())
    signatures = {(o.name, o.shape): signature(o, variant) for o in (one.operation for one in todo)}
    earlier = ledger.by_operation(usable(ops_file, signatures))
    done = {
        key: row
        for key, row in earlier.items()
        if not (seconds and math.isnan(row.seconds)) and not (rounds and math.isnan(row.rounds))
    }
    left = [one for one in todo if (one.operation.name, one.operation.shape) not in done]
    failed: list[str] = []
    by_context: dict[int, list[Wanted]] = {}
    for one in left:
        by_context.setdefault(one.context, []).append(one)

    def write() -> None:
        kept = {row.key: row for row in others if row.key not in signatures} | earlier | done
        ledger.write(ops_file, sorted(kept.values(), key=lambda row: row.key), ledger.Measurement)
        if rows_file:
            ledger.write(rows_file, composed(parameters, rows, programs, done), ledger.DetailedRow)

    def lacks_rounds_alone(operation: Operation) -> bool:
        before = earlier.get((operation.name, operation.shape))
        return rounds and before is not None and math.isnan(before.rounds) and not math.isnan(before.seconds)

    def out_of_time() -> bool:
        return minutes is not None and time.monotonic() - started > 60 * minutes

    kept_rounds = [row for path in rounds_from for row in usable(path, signatures)]
    rounds_of = {row.key: row.rounds for row in (*kept_rounds, *earlier.values()) if not math.isnan(row.rounds)}
    known = {
        shrink(o): rounds_of[o.name, o.shape] for o in (w.operation for w in todo) if (o.name, o.shape) in rounds_of
    }
    rounds_runs = 1 if parameters.active.two_party == "own" else 3
    with tqdm(total=len(todo), initial=len(todo) - len(left), desc="operations", unit="op", disable=None) as bar:

        def take(batch: Sequence[Wanted]) -> None:
            of_batch = [one.operation for one in batch]
            unknown = [operation for operation in of_batch if rounds and shrink(operation) not in known]
            if unknown:
                known.update({shrink(o): found for o, found in measure_rounds(unknown, settings, rounds_runs).items()})
            of_rounds = {operation: known.get(shrink(operation), math.nan) for operation in of_batch}
            whole = [one for one in batch if not lacks_rounds_alone(one.operation)]
            for one in batch:
                if one not in whole:
                    before = earlier[one.operation.name, one.operation.shape]
                    done[before.key] = replace(before, rounds=round(of_rounds[one.operation], 1))
                    bar.update()
            run(whole, of_rounds)
            write()

        def run(batch: Sequence[Wanted], of_rounds: Mapping[Operation, float]) -> None:
            if not batch:
                return
            of_batch = [one.operation for one in batch]
            family, context = batch[0].family, batch[0].context
            repeated = (repeats or {}).get(context, 1)
            measured = measure(of_batch, family, context, variant, settings, repeated, rounds=of_rounds)
            for one, row in zip(batch, measured, strict=True):
                source = json.loads(row.provenance) | {"computation": signatures[row.key]}
                new = replace(row, model=one.family, context=one.context, provenance=ledger.as_json(**source))
                new = new if seconds else replace(new, seconds=math.nan)
                done[row.key] = ledger.filled(new, earlier.get(row.key))
                bar.set_postfix_str(f"{row.op} {row.shape}: {row.bytes / 1e6:.1f} MB in {row.seconds:.1f} s")
                bar.update()

        for batch in (batch for context in sorted(by_context) for batch in batches(by_context[context])):
            if out_of_time():
                break
            try:
                take(batch)
                continue
            except TwoPartyError as error:
                if len(batch) == 1:
                    failed.append(f"{batch[0].operation.name} {batch[0].operation.shape}: {error}")
            # One operation may be too large for this machine; the others are not to wait for it.
            for one in batch if len(batch) > 1 else ():
                try:
                    take([one])
                except TwoPartyError as error:
                    failed.append(f"{one.operation.name} {one.operation.shape}: {error}")
            if len(failed) > 2 and not done:
                raise TwoPartyError(f"no operation could be measured: {failed[0]}")
    write()
    complete, every = composed(parameters, rows, programs, done), sum(len(row.wanted_in(programs)) for row in rows)
    print(
        f"{len(done)} of {len(todo)} operations, {len(complete)} of {every} rows: "
        f"{', '.join(str(path) for path in (ops_file, rows_file) if path)}"
    )
    if failed:
        raise UserError(f"{len(failed)} operations failed, the first {failed[0]}; the same command tries them again")
    if len(done) < len(todo):
        raise UserError(f"{len(todo) - len(done)} operations are left after --minutes; the same command goes on")


def composed(
    parameters: Parameters,
    rows: Sequence[PrintedRow],
    programs: Sequence[str],
    measured: dict[tuple[str, str], ledger.Measurement],
) -> list[ledger.DetailedRow]:
    """Costs of the rows whose operations are all measured."""
    networks = {
        name: Network(network.bandwidth_mbit, network.rtt_ms) for name, network in parameters.two_party.networks.items()
    }
    found = []
    for row in rows:
        for program in row.wanted_in(programs):
            try:
                found.append(
                    compose_detailed(
                        row.architecture,
                        row.config,
                        row.family,
                        program,
                        row.context,
                        measured,
                        networks,
                        places=row.places,
                    )
                )
            except ValueError:  # a program that cannot compute the row, or an operation that is not measured yet
                continue
    return found


if __name__ == "__main__":
    run_main(main)
