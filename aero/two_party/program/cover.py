"""How private programs cut what they work on: the block-lower-triangular cover of causal attention, tiles of rows.

Without JAX, because the cost of the programs that `aero.two_party.program.nonlinear` writes by it is told from it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

TILE = 128


def tile_side(rows: int) -> int:
    """Rows of the diagonal matrices that `aero.two_party.program.nonlinear.row_tiles` multiplies by."""
    return TILE if rows % TILE == 0 else rows


def tree_levels(entries: int) -> int:
    """Comparisons one after the other for the maximum of `entries` (at least 1): SPU halves them, and compares what is
    left over of an odd number at the end, one after the other (`TreeReduce` of its `reduce.cc`).
    """
    return entries.bit_length() - 1 + entries.bit_count() - 1


def narrow_levels(entries: int) -> int:
    """The same for `aero.two_party.program.nonlinear.narrow_maximum`, which compares what is left over one level
    later."""
    return (entries - 1).bit_length()


@dataclass(frozen=True)
class Cover:
    """A cover of (rows, columns) logits of one head by at most `blocks` blocks of rows, each as wide as its last row
    sees. The last row of all sees every column.
    """

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
        """Whether maxima are taken within square tiles first and then over a row's tiles: about half of the
        comparisons, and one after the other about as many as over the whole row. A square alone has such tiles.
        """
        return self.rows == self.columns and self.blocks > 1

    @property
    def entries(self) -> int:
        """Entries that are exponentiated."""
        return sum((high - low) * width for low, high, width in self.spans)

    @property
    def comparisons(self) -> int:
        """Comparisons of two entries for the maxima of all rows; a square that is not made of tiles is filled up."""
        if not self.tiled:
            return self.rows * (self.columns - 1)
        across = len(self.spans)
        return across * (across + 1) // 2 * self.side * (self.side - 1) + across * self.side * (across - 1)

    @property
    def levels(self) -> int:
        """Comparisons one after the other for the maxima of all rows, which are worked on at once."""
        return self._levels(tree_levels)

    @property
    def narrow_levels(self) -> int:
        """The same with `narrow_levels`."""
        return self._levels(narrow_levels)

    def _levels(self, of: Callable[[int], int]) -> int:
        return of(self.side) + of(len(self.spans)) if self.tiled else of(self.columns)
