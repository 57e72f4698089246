"""How SPU's Cheetah packs an operation: from its shapes to the features that its cost is linear in.

Matrices are multiplied on ciphertexts of 8,192 coefficients, entries in batches of 8,192; comparisons and truncations
go entry by entry (SPU 0.9.5: `matmat_prot.cc`, `cheetah_dot.cc`, `cheetah_mul.cc`). So bytes are linear in ciphertexts
and entries at any size, and computing time in ciphertext multiplications (0.7 ms each, with the encoding of the weight
matrix) and automorphisms, which pack answers (1.2 ms each).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from aero.two_party.lattice import lookup
from aero.two_party.lattice.matmul import PACKED, WIDE, HintLayout, Layout, PairLayout, SquaresLayout
from aero.two_party.program.cover import Cover, narrow_levels, tile_side, tiles_together, tree_levels

SLOTS = 8192
EMBEDDINGS = ("embedding_slice", "embedding_lookup", "id_lookup")
VOCABULARY_PROJECTIONS = ("vocabulary_slice", "vocabulary_slice_shared")
"""Kinds of operations outside the blocks."""

_MAXIMUM = ("softmax", "exponentials")
MATRICES = frozenset(
    {"linear", "lattice_linear", "embedding_slice", "embedding_lookup", "vocabulary_slice", "scores", "mix"}
)
"""Matrix multiplications: few bytes and a round or two beside seconds of computing."""
_ONE_MATMUL = ("linear", "embedding_slice", "vocabulary_slice")
_OF_TWO_SECRETS = (
    "gelu",
    "silu",
    "gate",
    "softmax",
    "layer_norm",
    "rms",
    "exponentials",
    "bounded_exponentials",
    "divide_by_sums",
    "scale_rows",
)
_ROW_TILES = ("scale_row_tiles", "scale_row_tiles_by_server", "normalise_tiles", "rms_normalise_tiles")
_BY_SERVER = (*_ONE_MATMUL, "scale_row_tiles_by_server")
# Constants that are sizes, and constants that change no cost; any other constant makes another group.
_SIZE, _COSTLESS = ("rows",), ("factor", "first", "eps", "base")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sized:
    """A parsed operation of ops.csv: operations of one `group` follow one model and differ in `sizes`.

    Embedding, vocabulary projection and other multiplications by the server's matrix are one group: the client's
    one-hot rows cost the same as its shares of a secret.
    """

    group: str
    kind: str
    shapes: tuple[Shape, ...]
    rows: int | None
    blocks: int | None = None
    narrow: bool = False
    outside: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        more = () if self.rows is None else (self.rows,)
        return (*(size for shape in self.shapes for size in shape), *more)

    @property
    def one_row(self) -> bool:
        """Whether it is on the last query row only: few entries, for which SPU partly uses other protocols."""
        return len(self.shapes[0]) > 1 and self.shapes[0][-2] == 1


def sized(op: str, shape: str, without: Sequence[str] = ()) -> Sized:
    """ "softmax_cover(blocks=8)", "12x128x128" as a `Sized`; ValueError for another form. without: further constants
    that make no other group."""
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", op)
    if not match:
        raise ValueError(f"operation {op!r} is not kind(constant=value,…)")
    shapes = tuple(tuple(map(int, text.split("x"))) for text in shape.split(","))
    shapes = tuple(() if one == (1,) else one for one in shapes)
    constants = dict(pair.split("=") for pair in match[2].split(",")) if match[2] else {}
    left_out = (*_SIZE, *_COSTLESS, *without)
    kept = ",".join(f"{key}={value}" for key, value in constants.items() if key not in left_out)
    ranks = "/".join(str(len(one)) for one in shapes)
    rows, blocks = (int(constants[name]) if name in constants else None for name in ("rows", "blocks"))
    group = f"{match[1]}({kept})" if kept else match[1]
    if match[1] in _ONE_MATMUL and not kept:
        group = "multiplication by the server's matrix"
    narrow, *lattice = (constants.get(name) == "1" for name in ("narrow", "lattice", "lattice_linear"))
    return Sized(f"{group} {ranks}", match[1], shapes, rows, blocks, narrow, any(lattice))


@cache
def features(operation: Sized) -> dict[str, tuple[float, ...]]:
    """The features of each quantity of `cost_model.QUANTITIES`; its factors are not negative.

    The rounds of a maximum grow with its sequential comparisons; all others have a fixed number.
    """
    if operation.kind == "embedding_lookup":
        return _lookup_features(operation)
    if operation.kind == "lattice_linear" or (operation.kind == "vocabulary_slice" and operation.outside):
        (rows, inner), (_, columns) = operation.shapes
        return _layout_features(Layout(rows, inner, columns), rows * columns)
    if operation.outside:
        return _row_features(operation) if operation.kind in _ROW_TILES else _pair_features(operation)
    matmul_ = _matmul(operation)
    if matmul_ is not None:
        many, rows, inner, columns = matmul_
        one = ciphertexts(rows, inner, columns)
        results = many * rows * columns
        client, server, both = one.directions(many)
        if operation.kind not in _BY_SERVER:  # two secrets: each party sends and answers
            client = server = both
        seconds = many * one.multiplied, many * one.automorphisms, results
        return _by_quantity((*client, results), (*server, results), (*both, results), seconds)
    # Of the largest argument, or of the rows asked for.
    entries = max(map(math.prod, operation.shapes))
    if operation.rows is not None:
        entries = operation.rows * operation.shapes[0][-1]
    rows = entries / (operation.shapes[0][-1] if operation.shapes[0] else 1)
    levels, of = 0, narrow_levels if operation.narrow else tree_levels
    if operation.kind.startswith(_MAXIMUM):
        levels = of(operation.shapes[0][-1])
    if operation.blocks is not None:
        *lead, height, width = operation.shapes[0]
        cover, heads = Cover(height, width, operation.blocks), math.prod(lead)
        entries, rows = heads * cover.entries, heads * cover.comparisons
        levels = cover.levels(of)
    if operation.kind == "bounded_exponentials":  # of visible entries only
        heads, height, width = operation.shapes[0]
        entries = heads * height * (2 * width - height + 1) // 2
    batches = _batches(entries) if operation.kind.startswith(_OF_TWO_SECRETS) else math.ceil(entries / SLOTS)
    bytes_ = batches, entries, rows
    return _by_quantity(bytes_, bytes_, bytes_, (entries, rows), (float(levels),))


def _by_quantity(
    client: tuple[float, ...],
    server: tuple[float, ...],
    messages: tuple[float, ...],
    seconds: tuple[float, ...],
    rounds: tuple[float, ...] = (),
) -> dict[str, tuple[float, ...]]:
    """Features by the names of quantities, each after a constant."""
    found = {"bytes_sent_client": client, "bytes_sent_server": server, "messages": messages}
    return {name: (1.0, *values) for name, values in (found | {"seconds": seconds, "rounds": rounds}).items()}


def _batches(entries: int) -> int:
    """Batches of entrywise multiplication of two secrets: from two batches on in two halves, one per party
    (`arith/cheetah_mul.cc`)."""
    return 2 * math.ceil(math.ceil(entries / 2) / SLOTS) if entries >= 2 * SLOTS else math.ceil(entries / SLOTS)


def _lookup_features(operation: Sized) -> dict[str, tuple[float, ...]]:
    """The client's secrets times slices of the server's hint, the queries, and truncations of the result."""
    (tokens, vocabulary), (_, width) = operation.shapes
    results, queries = tokens * width, tokens * vocabulary
    if operation.outside:
        found = _layout_features(HintLayout.of(tokens, lookup.DEGREE, width), results)
    else:
        one, many = ciphertexts(tokens, lookup.HINT_SLICE, width), lookup.DEGREE // lookup.HINT_SLICE
        client, server, both = ((*each, results) for each in one.directions(many))
        found = _by_quantity(client, server, both, (many * one.multiplied, many * one.automorphisms))
    found["bytes_sent_client"] += (queries,)
    found["messages"] += (math.ceil(tokens / lookup.TOKENS_AT_ONCE),)
    found["seconds"] += (queries, queries * width)
    return found


def _layout_features(layout: Layout, results: int) -> dict[str, tuple[float, ...]]:
    """Ciphertexts of `aero.two_party.lattice.matmul`, and truncations of the result. Seconds go into spectra of the
    matrix, which groups of rows share, their multiplication, and packing."""
    sent, answered = layout.groups * layout.blocks, layout.groups * layout.packs
    spectra = layout.packs * layout.blocks * min(layout.wide, WIDE)  # of one row by FFTs
    seconds = spectra, answered * layout.blocks, answered
    return _by_quantity((sent, results), (answered, results), (layout.groups, results), seconds)


def _pair_features(operation: Sized) -> dict[str, tuple[float, ...]]:
    """The same of two shared matrices: each party sends queries and answers."""
    (heads, rows, _), (_, *of_keys) = operation.shapes
    inner, columns = reversed(of_keys) if operation.kind == "scores" else of_keys
    layout, results = PairLayout.of(rows, inner, columns), heads * rows * columns
    sent, answered = (heads * layout.groups * many for many in (layout.blocks, layout.packs))
    spectra = heads * layout.packs * layout.blocks * layout.wide
    bytes_ = sent, answered, results
    return _by_quantity(bytes_, bytes_, (results,), (sent, spectra, answered * layout.blocks, answered))


def _row_features(operation: Sized) -> dict[str, tuple[float, ...]]:
    """The same of rows scaled as tiles, and of the squares that a norm sums, for which only the client queries."""
    *lead, many, width = operation.shapes[0]
    rows, together = math.prod(lead) * many, tiles_together(width)
    products, layout = -(-rows // (PACKED * together)), PairLayout.of(PACKED * together, PACKED, together * width)
    sent, answered, squares = products * layout.blocks, products * layout.packs, (0, 0)
    if operation.kind != "scale_row_tiles":
        of_squares = SquaresLayout.of(many, width)
        squares = of_squares.groups * of_squares.blocks, of_squares.groups * of_squares.packs
    queries, answers, results = sent + squares[0], answered + squares[1], (rows * width, rows)
    seconds = queries, sent * layout.packs + squares[0] * squares[1], answers
    return _by_quantity((queries, answered, *results), (sent, answers, *results), results, seconds)


def _matmul(operation: Sized) -> tuple[int, int, int, int] | None:
    """(how many, rows, inner, columns) of matrix multiplications, None for other operations."""
    shapes = operation.shapes
    if operation.kind in _ONE_MATMUL:
        return 1, *shapes[0], shapes[1][1]
    if operation.kind == "scores":
        return *shapes[0], shapes[1][1]
    if operation.kind == "mix":
        return *shapes[0], shapes[1][2]
    if operation.kind in _ROW_TILES:
        *lead, rows, width = shapes[0]
        side = tile_side(rows)
        return math.prod(lead) * rows // side, side, side, width
    return None


@dataclass(frozen=True)
class Ciphertexts:
    """Ciphertexts of one matrix multiplication: sent, packed answers, bare answers (half as long); ciphertext
    multiplications and automorphisms. left: the holder of the left matrix sends and the other answers."""

    left: bool
    sent: int
    packed: int
    bare: int
    multiplied: int
    automorphisms: int

    def directions(self, many: int) -> tuple[tuple[int, int, int], ...]:
        """(sent, packed, bare) of so many multiplications: by the client, by the server, by both."""
        sending, answering = (many * self.sent, 0, 0), (0, many * self.packed, many * self.bare)
        both = many * self.sent, many * self.packed, many * self.bare
        return (sending, answering, both) if self.left else (answering, sending, both)


@cache
def ciphertexts(rows: int, inner: int, columns: int) -> Ciphertexts:
    """Ciphertexts of (rows, inner) times (inner, columns), as `CheetahDot::Impl::doDotOLE` decides."""
    (down, along, across), deep = _blocks(rows, inner, columns, packing=True)
    packing = down * across > 1
    if not packing:  # one answer is not worth packing
        (down, along, across), deep = _blocks(rows, inner, columns, packing=False)
    answers = down * across
    if packing:
        packed = -(-answers // deep) if deep < rows * columns else -(-(1 << (rows * columns - 1).bit_length()) // SLOTS)
    return Ciphertexts(
        left=down <= across,
        sent=min(down, across) * along,
        packed=packed if packing else 0,
        bare=0 if packing else answers,
        multiplied=down * along * across,
        automorphisms=-(-rows * columns // SLOTS) * deep if packing else 0,
    )


def _blocks(rows: int, inner: int, columns: int, packing: bool) -> tuple[tuple[int, int, int], int]:
    """Blocks along rows, inner and columns with the least cost by SPU's own estimate, and the inner size of a block.

    `MatMatProtocol::GetSubMatShape`: 1000 a ciphertext on the wire, 1 an automorphism, 0.1 a multiplication.
    """
    best, found = math.inf, ((1, 1, 1), 1)
    for high in range(1, min(SLOTS, rows) + 1):
        down = -(-rows // high)
        deep = 1
        while deep <= inner and high * deep <= SLOTS:
            wide = min(columns, SLOTS // high // deep)
            across, along = -(-columns // wide), -(-inner // deep)
            sent = min(down, across) * along
            automorphisms = -(-rows * columns // SLOTS) * deep if packing else 0
            multiplied = down * along * across
            cost = (sent + -(-down * across // deep)) * 1000.0 + automorphisms + multiplied / 10.0
            if cost <= best:
                best, found = cost, ((down, along, across), deep)
            deep = deep * 2 if packing else deep + 1
    return found


def within(sizes: Sequence[int], others: Sequence[Sequence[int]]) -> bool:
    """Whether every size lies between the smallest and the largest at the same place in `others`."""
    return bool(others) and all(min(p) <= s <= max(p) for s, p in zip(sizes, zip(*others, strict=True), strict=True))
