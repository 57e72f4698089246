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
from functools import cache
from pathlib import Path
from typing import Any

from aero import published
from aero.architecture import Architecture, parse
from aero.errors import UserError, run_main
from aero.two_party.cost.packing import ciphertexts
from benchmarks.forensics_ops import OPS, SETTINGS, SMALL, Measured, measure, read
from benchmarks.timing import write_lines

FITS = Path("results/two_party/forensics_fits.csv")

WIDTH, HEADS, HIDDEN = 768, 12, 3072
VOCABULARY = {"CodeParrot": 50257, "Languini": 16384}
ODD = {("4", "SM+ScFuFFNi_6"), ("4", "EReg(SM(t)+ScFuFFNi_6)"), ("7", "SOTA(SM+ScFFN)")}
"""Rows that no configuration explains together with their neighbours; ranked with and without."""
CHOICES: dict[str, tuple[str, ...]] = {
    "weights": ("shared", "owned"),
    "gelu": ("gelu_tanh", "gelu_erf"),
    "softmax": ("softmax_clip", "softmax_jax"),
    "projections": ("joint", "separate"),
    "embedding": ("lookup", "one_hot"),
    "head": ("all", "last"),
    "gains": ("public", "secret"),
    "final_norm": ("none", "ln_f"),
    "counted": ("GB", "GiB", "GB one way", "GB at both ends"),
}
UNITS = {"GB": 1e9, "GiB": 2.0**30, "GB one way": 2e9, "GB at both ends": 0.5e9}

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

    @property
    def architecture(self) -> Architecture:
        return parse(self.name)


def published_rows() -> list[PublishedRow]:
    rows = []
    for number in ("4", "5", "6", "7"):
        table = published.load("aero").tables[number]
        size = table.dimensions
        for row in table.rows:
            place = number, row.name, size["layers"], size["context"], VOCABULARY[size["corpus"]]
            rows.append(PublishedRow(*place, row.cells["communication"].value))
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
    """Above 256 MB SPU splits a multiplication first (`calcMmulTilingSize`)."""
    if rows * inner + inner * columns < SPLIT_ENTRIES:
        return [(rows, inner, columns)]
    outer = rows + columns
    if inner > outer * 8:
        step, outer_step = math.ceil(SPLIT_ENTRIES / outer), outer
    elif outer > inner * 8:
        step, outer_step = inner, math.ceil(SPLIT_ENTRIES / inner)
    else:
        exact = math.sqrt(SPLIT_ENTRIES * outer / inner)
        step, outer_step = math.ceil(SPLIT_ENTRIES / exact), math.ceil(exact)
    row_step, column_step = (max(outer_step * size // outer, 1) for size in (rows, columns))
    return [
        (min(row_step, rows - r), min(step, inner - i), min(column_step, columns - c))
        for r in range(0, rows, row_step)
        for c in range(0, columns, column_step)
        for i in range(0, inner, step)
    ]


class Engine:
    """Costs of one version and setting of SPU, from its measured operations."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self._by_op: dict[str, list[Measured]] = {}
        for one in measured:
            self._by_op.setdefault(one.op, []).append(one)

    def complete(self) -> bool:
        """Whether everything that a search needs is measured."""
        return {"setup", *(entry[0] for entry in SMALL)} <= self._by_op.keys()

    def per_entry(self, op: str, columns: int | None = None) -> float:
        """Bytes for each entry of the first argument, from the largest measured shape; of a softmax, from the rows
        whose length is nearest to `columns`."""
        found = self._by_op[op]
        if columns is not None:
            length = {one: int(one.shape.rpartition("x")[2]) for one in found}
            nearest = min(abs(size - columns) for size in length.values())
            found = [one for one in found if abs(length[one] - columns) == nearest]
        largest = max(found, key=lambda one: one.entries)
        return largest.bytes / largest.entries

    def setup(self) -> float:
        """Bytes of keys and first oblivious transfers."""
        return self._by_op["setup"][0].bytes

    def equality(self) -> float | None:
        """Bytes for comparing a secret token id with one entry of the vocabulary; None if not measured."""
        found = self._by_op.get("one_hot")
        return found and found[0].bytes / found[0].entries / VOCABULARY["CodeParrot"] + BIT_TO_SHARE_BYTES


class Composer:
    """Rows composed from measured operations; `engines` by (version, setting)."""

    def __init__(self, engines: Mapping[tuple[str, str], Engine]) -> None:
        self.engines = engines
        # Counted alike in every version and setting where only one was measured.
        self._equality = next((e for engine in engines.values() if (e := engine.equality()) is not None), None)
        self._blocks_cache: dict[tuple[Any, ...], float] = {}

    def gigabytes(self, configuration: Configuration, row: PublishedRow) -> float:
        """The row's communication, in the unit that the configuration counts in."""
        c = configuration
        key = (c.engine, c.weights, c.gelu, c.softmax, c.projections, c.gains, c.final_norm)
        key += (row.name, row.layers, row.context)
        if key not in self._blocks_cache:
            self._blocks_cache[key] = self._blocks(c, row)
        return (self._blocks_cache[key] + self._ends(c, row.context, row.vocabulary)) / UNITS[c.counted]

    def _ends(self, c: Configuration, tokens: int, words: int) -> float:
        """Bytes of set-up, embedding and head."""
        shared, engine = c.weights == "shared", self.engines[c.engine]
        total = engine.setup() + product_bytes(tokens if c.head == "all" else 1, WIDTH, words, shared)
        if c.embedding == "one_hot":
            return total + product_bytes(tokens, words, WIDTH, shared)
        equality = engine.equality() or self._equality
        if equality is None:
            raise ValueError("no 'one_hot' was measured, which a lookup needs; measure 'default' of some version")
        return total + tokens * (words * equality + product_bytes(1, words, WIDTH, shared))

    def _blocks(self, c: Configuration, row: PublishedRow) -> float:
        engine, architecture = self.engines[c.engine], row.architecture
        tokens, shared = row.context, c.weights == "shared"
        hofmann = architecture.block == "he_hofmann"
        state, attention = tokens * WIDTH, HEADS * tokens * tokens
        multiply = engine.per_entry("multiply")

        def product(inner: int, columns: int) -> float:
            return product_bytes(tokens, inner, columns, shared)

        def inputs(matrices: int) -> float:
            return product(WIDTH, matrices * WIDTH) if c.projections == "joint" else matrices * product(WIDTH, WIDTH)

        # Softmax, Q K^T and P V head by head, and the truncation of the division by sqrt(d_k).
        width = WIDTH // HEADS
        layer = attention * engine.per_entry(c.softmax, tokens) + state * TRUNCATION_BYTES
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
            total += blocks * tokens * HIDDEN * engine.per_entry(c.gelu if architecture.ffn == "gelu" else "relu")
        norms = (2 * row.layers if architecture.layer_norm else int(hofmann)) + (c.final_norm == "ln_f")
        return total + norms * state * engine.per_entry(f"layer_norm_{c.weights}")


@dataclass(frozen=True)
class Fit:
    """One configuration against the published rows; percentages are |fitted - published| / published.

    largest: over all rows; largest_but_odd: without the rows in ODD. one_off: GB that, added to every row alike, fit
    best (at least 0); largest_with_one_off: with it, without the rows in ODD. plain: GB of each row without it.
    """

    configuration: Configuration
    largest: float
    largest_but_odd: float
    one_off: float
    largest_with_one_off: float
    plain: tuple[float, ...]


def fit(composer: Composer, configuration: Configuration, rows: Sequence[PublishedRow]) -> Fit:
    plain = tuple(composer.gigabytes(configuration, row) for row in rows)
    regular = [index for index, row in enumerate(rows) if (row.table, row.name) not in ODD]
    given = [row.gigabytes for row in rows]
    one_off = sum((given[i] - plain[i]) / given[i] ** 2 for i in regular) / sum(given[i] ** -2 for i in regular)
    one_off = max(one_off, 0.0)

    def largest(indices: Iterable[int], added: float = 0.0) -> float:
        return 100 * max(abs(plain[i] + added - given[i]) / given[i] for i in indices)

    return Fit(configuration, largest(range(len(rows))), largest(regular), one_off, largest(regular, one_off), plain)


def search(
    engines: Mapping[tuple[str, str], Engine],
    rows: Sequence[PublishedRow],
    choices: Mapping[str, Sequence[str]] = CHOICES,
) -> list[Fit]:
    """Every combination, the one with the smallest largest residual over all rows first."""
    composer = Composer(engines)
    fits = [
        fit(composer, Configuration(engine, **dict(zip(choices, values, strict=True))), rows)
        for engine in engines
        for values in itertools.product(*choices.values())
    ]
    return sorted(fits, key=lambda one: one.largest)


def engines_of(measured: Iterable[Measured]) -> dict[tuple[str, str], Engine]:
    """The completely measured versions and settings, except FM128, whose multiplications differ."""
    by_engine: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        by_engine.setdefault((one.spu, one.settings), []).append(one)
    engines = {key: Engine(found) for key, found in by_engine.items() if key[1] != "fm128"}
    return {key: engine for key, engine in engines.items() if engine.complete()}


def describe(configuration: Configuration) -> str:
    (version, setting), *others = astuple(configuration)
    return "; ".join([f"SPU {version} {setting}", *(f"{n} {value}" for n, value in zip(CHOICES, others, strict=True))])


def fit_lines(fits: Sequence[tuple[int, Fit]], rows: Sequence[PublishedRow]) -> list[dict[str, Any]]:
    """One line a row and ranked fit."""
    return [
        {
            "rank": rank,
            "configuration": describe(one.configuration),
            "largest_percent": round(one.largest, 3),
            "largest_but_odd_percent": round(one.largest_but_odd, 3),
            "one_off_gb": round(one.one_off, 4),
            "largest_with_one_off_percent": round(one.largest_with_one_off, 3),
            "table": row.table,
            "row": row.name,
            "published_gb": row.gigabytes,
            "fitted_gb": round(plain, 3),
            "residual_percent": round(100 * (plain / row.gigabytes - 1), 3),
            "residual_with_one_off_percent": round(100 * ((plain + one.one_off) / row.gigabytes - 1), 3),
        }
        for rank, one in fits
        for row, plain in zip(rows, one.plain, strict=True)
    ]


def report(measured: Path = OPS) -> None:
    """Search, write and print the ten best fits, the best with any one choice changed, and this project's own."""
    engines = engines_of(read(measured))
    if not engines:
        raise UserError(f"{measured} has no complete version and setting; run: python -m benchmarks.forensics measure")
    rows = published_rows()
    ranked = list(enumerate(search(engines, rows), 1))
    best = astuple(ranked[0][1].configuration)
    shown = [
        (rank, one)
        for rank, one in ranked
        if rank <= 10
        or one.configuration == AS_WRITTEN
        or sum(a != b for a, b in zip(astuple(one.configuration), best, strict=True)) == 1
    ]
    lines = fit_lines(shown, rows)
    write_lines(FITS, list(lines[0]), lines)
    print(f"{len(ranked)} configurations of {len(engines)} engines; largest residual in %, and without the odd rows")
    for rank, one in shown:
        print(f"{rank:5d} {one.largest:6.2f} {one.largest_but_odd:6.2f}  {describe(one.configuration)}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure operations in two processes")
    measuring.add_argument("--python", default=sys.executable, help="interpreter whose SPU is measured")
    measuring.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)}; all by default")
    commands.add_parser("search", help="rank the configurations")
    given = parser.parse_args(arguments)
    if given.command == "search":
        report()
        return
    for name in given.settings or SETTINGS:
        if name not in SETTINGS:
            raise UserError(f"setting {name!r} is unknown; choose of {', '.join(SETTINGS)}")
        measure(given.python, name, read())


if __name__ == "__main__":
    run_main(main)
