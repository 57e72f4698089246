"""The block-lower-triangular cover of causal attention, and tiles of rows. Without JAX, for the cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from aero.two_party.lattice.matmul import PACKED, ROWS

TILE = 128


def tile_side(rows: int) -> int:
    """Rows of the diagonal matrices that `aero.two_party.program.nonlinear.row_tiles` multiplies by."""
    return TILE if rows % TILE == 0 else rows


def tiles_together(width: int) -> int:
    """Tiles of PACKED rows of this width that one product outside SPU scales: narrow ones share its ciphertexts."""
    return max(1, min(ROWS // PACKED, PACKED * PACKED // (2 * width)))


def tree_levels(entries: int) -> int:
    """Sequential comparisons for the maximum of `entries` >= 1: SPU halves them, and compares the leftovers of odd
    numbers one after the other at the end (`TreeReduce` in its `reduce.cc`)."""
    return entries.bit_length() - 1 + entries.bit_count() - 1


def narrow_levels(entries: int) -> int:
    """The same for `nonlinear.narrow_maximum`, which compares a leftover one level later."""
    return (entries - 1).bit_length()


@dataclass(frozen=True)
class Cover:
    """At most `blocks` blocks of rows that cover one head's (rows, columns) logits, each as wide as its last row sees.
    The last row sees every column."""

    rows: int
    columns: int
    blocks: int

    @property
    def side(self) -> int:
        """Rows of a block; the last block may have fewer."""
        return -(-self.rows // self.blocks)

    @cached_property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """(first row, row after the last, columns) of each block."""
        rows = ((low, min(low + self.side, self.rows)) for low in range(0, self.rows, self.side))
        return tuple((low, high, self.columns - self.rows + high) for low, high in rows)

    @property
    def tiled(self) -> bool:
        """Whether maxima are taken within square tiles first and then over a row's tiles: half of the comparisons.
        Only square logits have such tiles."""
        return self.rows == self.columns and self.blocks > 1

    @property
    def entries(self) -> int:
        """Exponentiated entries."""
        return sum((high - low) * width for low, high, width in self.spans)

    @property
    def comparisons(self) -> int:
        """Pairwise comparisons for the maxima of all rows; incomplete tiles are padded."""
        if not self.tiled:
            return self.rows * (self.columns - 1)
        across = len(self.spans)
        return across * (across + 1) // 2 * self.side * (self.side - 1) + across * self.side * (across - 1)

    def levels(self, of: Callable[[int], int] = tree_levels) -> int:
        """Sequential comparisons for the maxima of all rows, which are computed in parallel. of: those of one maximum,
        `tree_levels` or `narrow_levels`."""
        return of(self.side) + of(len(self.spans)) if self.tiled else of(self.columns)
