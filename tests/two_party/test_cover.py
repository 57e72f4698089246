"""The cover of causal attention that costs are told from is the one that the private softmax computes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from aero.two_party.program import nonlinear
from aero.two_party.program.cover import Cover, narrow_levels, tree_levels


def equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Those of inner functions too."""
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        yield from (one for jaxpr in inner for one in equations(jaxpr))
        if not inner:
            yield equation


def traced(heads: int, rows: int, columns: int, blocks: int) -> tuple[int, int]:
    """Comparisons of maxima, and exponentiated entries, in the traced program."""
    logits = jax.ShapeDtypeStruct((heads, rows, columns), jnp.float32)
    program = jax.make_jaxpr(lambda x: nonlinear.exponentials(x, blocks, split=False))(logits)
    comparisons = exponentials = 0
    for equation in equations(program.jaxpr):
        sizes = [math.prod(variable.aval.shape) for variable in (equation.invars[0], equation.outvars[0])]
        if equation.primitive.name == "reduce_max":
            comparisons += sizes[0] - sizes[1]
        exponentials += sizes[1] * (equation.primitive.name == "exp")
    return comparisons, exponentials


@pytest.mark.parametrize(
    ("heads", "rows", "columns", "blocks"),
    [
        (12, 128, 128, 16),
        (2, 200, 200, 16),
        (3, 17, 17, 16),
        (1, 37, 37, 5),
        (2, 9, 12, 4),
        (4, 1, 16, 1),
        (2, 8, 8, 1),
    ],
)
def test_the_program_computes_what_is_counted(heads: int, rows: int, columns: int, blocks: int) -> None:
    cover = Cover(rows, columns, blocks)
    assert traced(heads, rows, columns, blocks) == (heads * cover.comparisons, heads * cover.entries)


def test_by_hand() -> None:
    """Five rows in blocks of two: 2 x 2, 2 x 4 and 1 x 5 entries; six tiles of two rows, then three tiles a row."""
    cover = Cover(5, 5, 3)
    assert (cover.side, cover.spans) == (2, ((0, 2, 2), (2, 4, 4), (4, 5, 5)))
    assert (cover.entries, cover.comparisons) == (4 + 8 + 5, 6 * 2 * 1 + 3 * 2 * 2)
    assert (tree_levels(1), tree_levels(2), tree_levels(8), tree_levels(13), tree_levels(300)) == (0, 1, 3, 5, 11)
    assert (cover.levels, Cover(200, 200, 16).levels, Cover(1, 300, 1).levels) == (1 + 2, 5 + 4, 11)
    assert [narrow_levels(entries) for entries in (1, 2, 8, 13, 300)] == [0, 1, 3, 4, 9]
    assert (cover.narrow_levels, Cover(200, 200, 16).narrow_levels, Cover(1, 300, 1).narrow_levels) == (1 + 2, 4 + 4, 9)
    assert Cover(1, 16, 1).comparisons == 15 and Cover(1, 16, 1).entries == 16


@pytest.mark.parametrize("rows", range(1, 70))
def test_every_visible_entry_is_covered_and_tiles_never_compare_more(rows: int) -> None:
    cover = Cover(rows, rows, min(16, rows))
    covered = np.zeros((rows, rows), bool)
    for low, high, width in cover.spans:
        covered[low:high, :width] = True
    assert covered[np.tril_indices(rows)].all() and covered.sum() == cover.entries
    assert cover.comparisons <= rows * (rows - 1)
