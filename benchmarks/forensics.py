"""Which configuration of SPU gives the bytes of AERO's Tables 4-7: measures operations, searches, writes both.

    python -m benchmarks.forensics measure                     # the SPU of this environment, every setting
    python -m benchmarks.forensics measure --python PYTHON default lsb_error    # another environment's SPU
    python -m benchmarks.forensics search

`measure` runs two processes of PYTHON and adds to results/two_party/forensics_ops.csv what is not there yet. `search`
composes every row for every combination, ranks them by the largest relative residual over all rows, and writes the
best to results/two_party/forensics_fits.csv. docs/communication_fit.md discusses the result.

Other versions: `python3.11 -m venv old && old/bin/pip install spu==0.9.2b0 "numpy<2" "scipy<1.13"`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from aero import published
from aero.architecture import Architecture, parse
from aero.errors import UserError, known, run_main
from aero.two_party.cost.packing import ciphertexts
from benchmarks.forensics_ops import OPS, SETTINGS, SMALL, Measured, measure, read
from benchmarks.timing import write_lines

FITS = Path("results/two_party/forensics_fits.csv")
WIDTH, HEADS, HIDDEN = 768, 12, 3072
VOCABULARY = {"CodeParrot": 50257, "Languini": 16384}
UNITS = {"GB": 1e9, "GiB": 2.0**30, "GB one way": 2e9, "GB at both ends": 0.5e9}
CHOICES: dict[str, tuple[str, ...]] = {
    "weights": ("shared", "owned"),
    "gelu": ("gelu_tanh", "gelu_erf"),
    "softmax": ("softmax_clip", "softmax_jax"),
    "projections": ("joint", "separate"),
    "embedding": ("lookup", "one_hot"),
    "head": ("all", "last"),
    "gains": ("public", "secret"),
    "final_norm": ("none", "ln_f"),
    "counted": tuple(UNITS),
}
# A multiplication modulo 2^64 with BFV of degree 8,192, as measured in every version: bytes of a fresh ciphertext
# (seeded), of a response (two moduli), and of the truncation of one entry.
QUERY_BYTES = 184_600
RESPONSE_BYTES = 254_800
TRUNCATION_BYTES = 3.125
SPLIT_ENTRIES = 2**25
BIT_TO_SHARE_BYTES = 65 / 8
"""A secret bit becomes an arithmetic share: 64 bits one way, one the other."""


@dataclass(frozen=True)
class Configuration:
    """What the papers do not say about their measurement.

    engine: version and setting of SPU. weights: "shared" between the parties, or the server's own ("owned": SPU's
    colocated optimisation). softmax: with or without setting exponentials below e^-14 to 0. projections: Q, K and V as
    one matrix ("joint") or three. embedding: "lookup" of a secret token id, or a one-hot that the client made. head:
    logits of all positions or of the last. gains: alpha, beta and He & Hofmann's gains, folded or public, or secret
    multiplications. final_norm: whether the LayerNorm before the head is there. counted: which bytes.
    """

    engine: tuple[str, str]
    weights: str
    gelu: str
    softmax: str
    projections: str
    embedding: str
    head: str
    gains: str
    final_norm: str
    counted: str


AS_WRITTEN = Configuration(
    ("0.9.5", "default"), "owned", "gelu_tanh", "softmax_jax", "separate", "one_hot", "last", "secret", "ln_f", "GB"
)
"""This project's stock program, but for gains, which are the server's there and cost half as much."""


@dataclass(frozen=True)
class PublishedRow:
    """A row of AERO Tables 4-7 with its printed communication in GB."""

    table: str
    name: str
    layers: int
    context: int
    vocabulary: int
    gigabytes: float

    @cached_property
    def architecture(self) -> Architecture:
        return parse(self.name)


def published_rows() -> list[PublishedRow]:
    rows = []
    for number in "4567":
        table = published.table(f"aero/table{number}")
        sizes = table.dimensions["layers"], table.dimensions["context"], VOCABULARY[table.dimensions["corpus"]]
        rows += [PublishedRow(number, row.name, *sizes, row.cells["communication"].value) for row in table.rows]
    return rows


@cache
def product_bytes(rows: int, inner: int, columns: int, shared: bool) -> float:
    """Bytes of (rows, inner) times (inner, columns) and its truncation; twice the ciphertexts if both are secret."""
    total = 0.0
    for piece in _pieces(rows, inner, columns):
        one = ciphertexts(*piece)
        total += one.sent * QUERY_BYTES + (one.packed + one.bare / 2) * RESPONSE_BYTES
    return total * (2 if shared else 1) + rows * columns * TRUNCATION_BYTES


def _pieces(rows: int, inner: int, columns: int) -> list[tuple[int, int, int]]:
    """Above 256 MB SPU splits a multiplication first (`calcMmulTilingSize`): here only if `inner` is 8 times as large
    as the two other sizes together, or they as `inner`; SPU's third case does not occur at the papers' sizes."""
    if rows * inner + inner * columns < SPLIT_ENTRIES:
        return [(rows, inner, columns)]
    outer = rows + columns
    if inner > outer * 8:
        step, outer_step = math.ceil(SPLIT_ENTRIES / outer), outer
    else:
        step, outer_step = inner, math.ceil(SPLIT_ENTRIES / inner)
    row_step, column_step = (max(outer_step * size // outer, 1) for size in (rows, columns))
    return [
        (min(row_step, rows - r), min(step, inner - i), min(column_step, columns - c))
        for r in range(0, rows, row_step)
        for c in range(0, columns, column_step)
        for i in range(0, inner, step)
    ]


class Engine:
    """Costs of one version and setting of SPU: rows composed from its measured operations."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.measured = measured

    def per_entry(self, op: str, columns: int | None = None) -> float:
        """Bytes for each entry of the first argument, from the largest measured shape; of a softmax, from the rows
        whose length is nearest to `columns`."""

        def order(one: Measured) -> tuple[int, int]:
            off = 0 if columns is None else abs(int(one.shape.rpartition("x")[2]) - columns)
            return -off, one.entries

        largest = max((one for one in self.measured if one.op == op), key=order)
        return largest.bytes / largest.entries

    def equality(self) -> float:
        """Bytes for comparing a secret token id with one entry of the vocabulary."""
        return self.per_entry("one_hot") / VOCABULARY["CodeParrot"] + BIT_TO_SHARE_BYTES

    def gigabytes(self, c: Configuration, row: PublishedRow) -> float:
        """The row's communication, in the unit that the configuration counts in."""
        return (self._blocks(c, row) + self._ends(c, row.context, row.vocabulary)) / UNITS[c.counted]

    def _ends(self, c: Configuration, tokens: int, words: int) -> float:
        """Bytes of set-up (keys and first oblivious transfers), embedding and head."""
        shared = c.weights == "shared"
        total = self.per_entry("setup") + product_bytes(tokens if c.head == "all" else 1, WIDTH, words, shared)
        if c.embedding == "one_hot":
            return total + product_bytes(tokens, words, WIDTH, shared)
        return total + tokens * (words * self.equality() + product_bytes(1, words, WIDTH, shared))

    def _blocks(self, c: Configuration, row: PublishedRow) -> float:
        tokens, shared, architecture = row.context, c.weights == "shared", row.architecture
        state, attention, hofmann = tokens * WIDTH, HEADS * tokens * tokens, architecture.block == "he_hofmann"
        multiply = self.per_entry("multiply")

        def product(inner: int, columns: int) -> float:
            return product_bytes(tokens, inner, columns, shared)

        def inputs(matrices: int) -> float:
            return product(WIDTH, matrices * WIDTH) if c.projections == "joint" else matrices * product(WIDTH, WIDTH)

        # Softmax, Q K^T and P V head by head, and the truncation of the division by sqrt(d_k).
        width = WIDTH // HEADS
        layer = attention * self.per_entry(c.softmax, tokens) + state * TRUNCATION_BYTES
        layer += HEADS * (product_bytes(tokens, width, tokens, True) + product_bytes(tokens, tokens, width, True))
        layer += inputs(2 if hofmann else 3)
        if not hofmann:
            layer += product(WIDTH, WIDTH)
        elif c.gains == "secret":
            layer += (attention + state) * multiply
        # Only the first of He & Hofmann's blocks has W_V.
        total = row.layers * layer + (inputs(3) - inputs(2) if hofmann else 0.0)
        blocks = row.layers - architecture.pruned
        if architecture.ffn == "fused":
            total += blocks * product(WIDTH, WIDTH)
        else:
            total += blocks * (product(WIDTH, HIDDEN) + product(HIDDEN, WIDTH))
        if architecture.scaled and c.gains == "secret":
            total += blocks * state * multiply
        if architecture.ffn in ("gelu", "relu"):
            total += blocks * tokens * HIDDEN * self.per_entry(c.gelu if architecture.ffn == "gelu" else "relu")
        norms = (2 * row.layers if architecture.layer_norm else int(hofmann)) + (c.final_norm == "ln_f")
        return total + norms * state * self.per_entry(f"layer_norm_{c.weights}")


@dataclass(frozen=True)
class Fit:
    """One configuration against the published rows: GB of each, and the largest |fitted - published| / published, %."""

    configuration: Configuration
    largest: float
    gigabytes: tuple[float, ...]


def fit(engine: Engine, configuration: Configuration, rows: Sequence[PublishedRow]) -> Fit:
    found = tuple(engine.gigabytes(configuration, row) for row in rows)
    off = (abs(own - row.gigabytes) / row.gigabytes for own, row in zip(found, rows, strict=True))
    return Fit(configuration, 100 * max(off), found)


def search(
    engines: Mapping[tuple[str, str], Engine], rows: Sequence[PublishedRow], choices: Mapping[str, Any] = CHOICES
) -> list[Fit]:
    """Every combination, the one with the smallest largest residual over all rows first."""
    combinations = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    fits = [fit(engine, Configuration(key, **one), rows) for key, engine in engines.items() for one in combinations]
    return sorted(fits, key=lambda one: one.largest)


def engines_of(measured: Iterable[Measured]) -> dict[tuple[str, str], Engine]:
    """The completely measured versions and settings, except FM128, whose multiplications differ."""
    by_engine: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        by_engine.setdefault((one.spu, one.settings), []).append(one)
    needed = {"setup", *(entry[0] for entry in SMALL)}
    # Looking up a token costs the same in every version and setting where only one was measured.
    lookups = [one for found in by_engine.values() for one in found if one.op == "one_hot"]
    return {
        key: Engine(found + lookups)
        for key, found in by_engine.items()
        if lookups and key[1] != "fm128" and needed <= {one.op for one in found}
    }


def describe(configuration: Configuration) -> str:
    (version, setting), *others = astuple(configuration)
    return "; ".join([f"SPU {version} {setting}", *(f"{n} {value}" for n, value in zip(CHOICES, others, strict=True))])


def fit_lines(fits: Sequence[tuple[int, Fit]], rows: Sequence[PublishedRow]) -> list[dict[str, Any]]:
    """One line a row and ranked fit."""
    lines = []
    for rank, one in fits:
        of_fit = {"rank": rank, "configuration": describe(one.configuration), "largest_percent": round(one.largest, 3)}
        for row, fitted in zip(rows, one.gigabytes, strict=True):
            line = of_fit | {"table": row.table, "row": row.name, "published_gb": row.gigabytes}
            off = 100 * (fitted / row.gigabytes - 1)
            lines.append(line | {"fitted_gb": round(fitted, 3), "residual_percent": round(off, 3)})
    return lines


def report(measured: Path = OPS) -> None:
    """Search, write and print the ten best fits, the best with any one choice changed, and this project's own."""
    engines = engines_of(read(measured))
    if not engines:
        raise UserError(f"{measured} has no complete version and setting; run: python -m benchmarks.forensics measure")
    rows = published_rows()
    fits = search(engines, rows)
    best, shown = astuple(fits[0].configuration), []
    for rank, one in enumerate(fits, 1):
        changed = sum(a != b for a, b in zip(astuple(one.configuration), best, strict=True))
        if rank <= 10 or changed == 1 or one.configuration == AS_WRITTEN:
            shown.append((rank, one))
    lines = fit_lines(shown, rows)
    write_lines(FITS, list(lines[0]), lines)
    print(f"{len(fits)} configurations of {len(engines)} engines; largest residual in %")
    for rank, one in shown:
        print(f"{rank:5d} {one.largest:6.2f}  {describe(one.configuration)}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forensics", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("measure", "search"))
    parser.add_argument("settings", nargs="*", help=f"to measure: {', '.join(SETTINGS)} (if none: all)")
    parser.add_argument("--python", default=sys.executable, help="interpreter whose SPU is measured")
    given = parser.parse_intermixed_args(arguments)
    if given.command == "search":
        report()
        return
    for name in given.settings or SETTINGS:
        measure(given.python, known("setting", name, SETTINGS), read())


if __name__ == "__main__":
    run_main(main)
