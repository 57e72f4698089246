"""Which configuration of SPU gives the bytes of AERO's Tables 4-7: measures operations, searches, writes both.

    python -m benchmarks.forensics measure                     # the SPU of this environment, every setting
    python -m benchmarks.forensics measure --python PYTHON default lsb_error    # another environment's SPU
    python -m benchmarks.forensics search

`measure` runs two processes of PYTHON, adds to results/two_party/forensics_ops.csv and leaves out what is there
already. `search` composes every row for every combination, ranks them by the largest relative residual over all rows,
and writes the best to results/two_party/forensics_fits.csv. docs/forensics.md tells what came out.

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
from benchmarks.forensics_ops import OPS, SETTINGS, SMALL, Measured, measure, read, write

FITS = Path("results/two_party/forensics_fits.csv")

WIDTH, HEADS, HIDDEN = 768, 12, 3072
VOCABULARY = {"CodeParrot": 50257, "Languini": 16384}
# Cells that no configuration explains together with their neighbours (docs/forensics.md); ranked with and without.
ODD = {("4", "SM+ScFuFFNi_6"), ("4", "EReg(SM(t)+ScFuFFNi_6)"), ("7", "SOTA(SM+ScFFN)")}
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

# A product modulo 2^64 with BFV of degree 8,192: bytes of a fresh ciphertext (seeded), of a response (two moduli), and
# of the truncation of one entry. As measured: the same in every version, tests hold them against the measurements.
DEGREE = 8192
QUERY_BYTES = 184_600
RESPONSE_BYTES = 254_800
TRUNCATION_BYTES = 3.125
SPLIT_ENTRIES = 2**25
# A secret bit becomes an arithmetic share: 64 bits one way, one the other (SPU's profile of a lookup: 408,344 bytes for
# 50,257 entries).
BIT_TO_SHARE_BYTES = 65 / 8


@dataclass(frozen=True)
class Configuration:
    """What the papers do not say about their measurement.

    engine: version and setting of SPU, as in the measured operations. weights: "shared" between the parties like any
    secret, or the server's own ("owned": SPU's colocated optimisation). softmax: with or without setting exponentials
    of what is below -14 to 0. projections: Q, K and V as one matrix ("joint", as GPT-2 has it; Q and K in He &
    Hofmann's block) or three. embedding: "lookup" of a secret token id in the table, or a one-hot that the client made.
    head: logits of all positions or of the last. gains: alpha, beta and He & Hofmann's shaping factors, folded or
    public, or secret products. final_norm: whether the LayerNorm before the head is there. counted: which bytes.
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


# What this project's own program of that name is; its gains are the server's, which cost half of what is assumed here.
AS_WRITTEN = Configuration(
    ("0.9.5", "default"), "owned", "gelu_tanh", "softmax_jax", "separate", "one_hot", "last", "secret", "ln_f", "GB"
)


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


@dataclass(frozen=True)
class Fit:
    """One configuration against the published rows; percentages are |fitted - published| / published.

    largest: over all rows; largest_but_odd: without the rows in ODD. one_off: GB that, added to every row alike, fit
    best (at least 0); largest_with_one_off: over all rows but those in ODD, with it. plain: GB of each row without it.
    """

    configuration: Configuration
    largest: float
    largest_but_odd: float
    one_off: float
    largest_with_one_off: float
    plain: tuple[float, ...]


@dataclass(frozen=True)
class FitLine:
    """One line of the file of fits: one row of one configuration."""

    rank: int
    configuration: str
    largest_percent: float
    largest_but_odd_percent: float
    one_off_gb: float
    largest_with_one_off_percent: float
    table: str
    row: str
    published_gb: float
    fitted_gb: float
    residual_percent: float
    residual_with_one_off_percent: float


def published_rows() -> list[PublishedRow]:
    """Every row of Tables 4-7. (Figure 15 has no printed bytes.)"""
    rows = []
    for number in ("4", "5", "6", "7"):
        table = published.load("aero").tables[number]
        size = table.dimensions
        for row in table.rows:
            value = row.cells["communication"].value
            rows.append(
                PublishedRow(number, row.name, size["layers"], size["context"], VOCABULARY[size["corpus"]], value)
            )
    return rows


@cache
def ciphertexts(rows: int, inner: int, columns: int) -> tuple[int, int]:
    """(sent, returned) ciphertexts of one party's share of a product, packed.

    The blocks that SPU chooses (`MatMatProtocol::GetSubMatShape`, `CheetahDot::doDotOLE` in 0.9.2b0 and 0.9.5).
    """
    best, least = (1, 1, 1), math.inf
    for d0 in range(1, min(DEGREE, rows) + 1):
        d1 = 1
        while d1 <= inner and d0 * d1 <= DEGREE:
            d2 = min(columns, DEGREE // d0 // d1)
            b0, b1, b2 = -(-rows // d0), -(-inner // d1), -(-columns // d2)
            cost = 1000 * (min(b0, b2) * b1 - (-b0 * b2 // d1)) - (-rows * columns // DEGREE) * d1 + b0 * b1 * b2 / 10
            if cost <= least:
                best, least = (d0, d1, d2), cost
            d1 *= 2
    b0, b1, b2 = (-(-size // part) for size, part in zip((rows, inner, columns), best, strict=True))
    packed = b0 * b2 if best[1] < rows * columns else rows * columns
    return min(b0, b2) * b1, -(-packed // (best[1] if best[1] < rows * columns else DEGREE))


@cache
def product_bytes(rows: int, inner: int, columns: int, shared: bool) -> float:
    """Bytes of (rows, inner) times (inner, columns) and its truncation; twice the ciphertexts if both are secret.

    Above 256 MB SPU splits a product first (`calcMmulTilingSize`), and small pieces waste ciphertexts.
    """
    total = 0.0
    for piece in _pieces(rows, inner, columns):
        sent, returned = ciphertexts(*piece)
        total += sent * QUERY_BYTES + returned * RESPONSE_BYTES
    return total * (2 if shared else 1) + rows * columns * TRUNCATION_BYTES


def _pieces(rows: int, inner: int, columns: int) -> list[tuple[int, int, int]]:
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
        """Bytes for each entry of the first argument, from the largest shape measured; of a softmax, from the rows
        whose length is nearest to `columns`."""
        found = self._by_op[op]
        if columns is not None:
            length = {one: int(one.shape.rpartition("x")[2]) for one in found}
            nearest = min(abs(size - columns) for size in length.values())
            found = [one for one in found if abs(length[one] - columns) == nearest]
        largest = max(found, key=lambda one: one.entries)
        return largest.bytes / largest.entries

    def setup(self) -> float:
        """Keys and first oblivious transfers, bytes."""
        return self._by_op["setup"][0].bytes

    def equality(self) -> float | None:
        """Bytes for comparing a secret token id with one entry of the vocabulary and sharing the answer, None if not
        measured.

        From many ids at once: a single lookup pays for a new stock of oblivious transfers or does not.
        """
        found = self._by_op.get("one_hot")
        if not found:
            return None
        return found[0].bytes / found[0].entries / VOCABULARY["CodeParrot"] + BIT_TO_SHARE_BYTES


class Composer:
    """Rows composed from measured operations; `engines` by (version, setting)."""

    def __init__(self, engines: Mapping[tuple[str, str], Engine]) -> None:
        self.engines = engines
        self._equality = next((e for engine in engines.values() if (e := engine.equality()) is not None), None)
        self._kept: dict[tuple[Any, ...], float] = {}

    def gigabytes(self, configuration: Configuration, row: PublishedRow) -> float:
        """What the configuration makes of the row, in the unit that it counts in."""
        c = configuration
        key = (c.engine, c.weights, c.gelu, c.softmax, c.projections, c.gains, c.final_norm)
        kept = (key, row.name, row.layers, row.context)
        if kept not in self._kept:
            self._kept[kept] = self._blocks(c, row)
        ends = self._ends(c.engine, c.weights, c.embedding, c.head, row.context, row.vocabulary)
        return (self._kept[kept] + ends) / UNITS[c.counted]

    def _ends(self, engine: tuple[str, str], weights: str, embedding: str, head: str, tokens: int, words: int) -> float:
        shared = weights == "shared"
        total = self.engines[engine].setup()
        total += product_bytes(tokens if head == "all" else 1, WIDTH, words, shared)
        if embedding == "one_hot":
            return total + product_bytes(tokens, words, WIDTH, shared)
        # Counted alike in every version and setting where only one was measured.
        equality = self.engines[engine].equality() or self._equality
        if equality is None:
            raise ValueError("no 'one_hot' was measured, which a lookup needs; measure 'default' of some version")
        return total + tokens * (words * equality + product_bytes(1, words, WIDTH, shared))

    def _blocks(self, c: Configuration, row: PublishedRow) -> float:
        engine, architecture = self.engines[c.engine], row.architecture
        tokens, shared = row.context, c.weights == "shared"
        hofmann = architecture.block == "he_hofmann"
        state = tokens * WIDTH
        attention = HEADS * tokens * tokens

        def product(inner: int, columns: int) -> float:
            return product_bytes(tokens, inner, columns, shared)

        norm = state * engine.per_entry(f"layer_norm_{c.weights}")
        multiply = engine.per_entry("multiply")
        layer = attention * engine.per_entry(c.softmax, tokens)
        # Q K^T and P V, head by head, with a truncation each, and that of the division by sqrt(d_k).
        width = WIDTH // HEADS
        layer += HEADS * (product_bytes(tokens, width, tokens, True) + product_bytes(tokens, tokens, width, True))
        layer += state * TRUNCATION_BYTES

        def inputs(matrices: int) -> float:
            return product(WIDTH, matrices * WIDTH) if c.projections == "joint" else matrices * product(WIDTH, WIDTH)

        layer += inputs(2 if hofmann else 3)
        if hofmann:
            if c.gains == "secret":
                layer += (attention + state) * multiply
        else:
            layer += product(WIDTH, WIDTH)
        # The first of He & Hofmann's blocks alone has W_V.
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
        norms = 2 * row.layers if architecture.layer_norm else int(hofmann)
        return total + (norms + (c.final_norm == "ln_f")) * norm


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


def describe(configuration: Configuration) -> str:
    """A configuration in one line."""
    (version, setting), *others = astuple(configuration)
    return "; ".join(
        [f"SPU {version} {setting}", *(f"{name} {value}" for name, value in zip(CHOICES, others, strict=True))]
    )


def lines(fits: Sequence[tuple[int, Fit]], rows: Sequence[PublishedRow]) -> list[FitLine]:
    """One line a row and ranked fit."""
    return [
        FitLine(
            rank,
            describe(one.configuration),
            round(one.largest, 3),
            round(one.largest_but_odd, 3),
            round(one.one_off, 4),
            round(one.largest_with_one_off, 3),
            row.table,
            row.name,
            row.gigabytes,
            round(plain, 3),
            round(100 * (plain / row.gigabytes - 1), 3),
            round(100 * ((plain + one.one_off) / row.gigabytes - 1), 3),
        )
        for rank, one in fits
        for row, plain in zip(rows, one.plain, strict=True)
    ]


def engines_of(measured: Iterable[Measured]) -> dict[tuple[str, str], Engine]:
    """The versions and settings of which everything is measured, but for FM128, whose products are others."""
    by_engine: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        by_engine.setdefault((one.spu, one.settings), []).append(one)
    engines = {key: Engine(found) for key, found in by_engine.items() if key[1] != "fm128"}
    return {key: engine for key, engine in engines.items() if engine.complete()}


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
    write(FITS, lines(shown, rows), FitLine)
    print(
        f"{len(ranked)} configurations of {len(engines)} engines; largest residual, %: all rows, all but the odd ones"
    )
    for rank, one in shown:
        print(
            f"{rank:5d} {one.largest:6.2f} {one.largest_but_odd:6.2f}  with {one.one_off:.3f} GB added "
            f"{one.largest_with_one_off:6.2f}  {describe(one.configuration)}"
        )


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
