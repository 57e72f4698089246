"""Nonlinear functions of a two-party program, in JAX. d: width, T: context, H: heads.

"plain" functions are `jax.nn`'s; the others compute the same with fewer or cheaper secure operations. SPU computes the
exponential as (1 + x / 2^8)^(2^8): eight secret squarings, relative error x^2 / 2^9.

narrow: compare in a ring of 32 bits (`share_steps.negative`); it comes as 0 or 1 from the names of operations. wide:
maxima by nodes of so many entries (`bounded.wide_maximum`), 0 for pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from aero.two_party.lattice.matmul import PACKED, PAIR_TRUNCATIONS, log2_from
from aero.two_party.lattice.share_steps import (
    CLIENT_SCALE,
    OCTAVES,
    SERVER_SCALE,
    apart,
    checked_powers,
    negative,
    row_squares,
    shared_product,
    split_powers,
    square,
)
from aero.two_party.program.bounded import reciprocal_root, wide_maximum
from aero.two_party.program.cover import Cover, tile_side, tiles_together

MASKED = -1000.0
CLIPPED = 14.0
LOG2_E = math.log2(math.e)
LOGIT_BOUND, BOUNDED_SCALE = 5.5, 4.0
"""Of `bounded_exponentials`: twice this spans the powers of two that `share_steps.checked_powers` takes; and a factor
against truncation errors, as large as sums over rows allow."""
UNIT = 2.0**-18
GELU_TAIL, GELU_DEGREE, GELU_ERROR = 3.5, 6, 7.3e-4
GELU_SQUARES_TAIL, GELU_SQUARES_ERROR = 3.8, 1.2e-4
GELU_SQUARES = (
    (-0.262418, 0.125),
    (0.228218, -0.077206, 0.576828),
    (-0.121381, 0.037786, -0.485539),
    (0.052735, 0.051771),
)
"""Of `gelu_squares`: what is squared second, of (z, w_1), third, of (z, w_1, w_2), and what is added to w_3, of the
same; then the constants of the last two."""
SILU_TAIL, SILU_DEGREE, SILU_ERROR = 8.0, 8, 1.68e-3


def causal_mask(rows: int, columns: int) -> np.ndarray:
    """(rows, columns) booleans: whether the row sees the column. The last row is the last position of `columns`."""
    return np.arange(columns)[None, :] <= np.arange(columns - rows, columns)[:, None]


def _visible(logits: Array, empty: Array | None) -> Any:
    """The causal mask (rows, columns) of logits, without the first `empty` columns, a public (), of a cache."""
    rows, columns = logits.shape[-2:]
    mask = causal_mask(rows, columns)
    return mask if empty is None else jnp.logical_and(mask, np.arange(columns, dtype=np.float32) >= empty)


def softmax_plain(logits: Array, empty: Array | None = None, narrow: bool = False, wide: int = 0) -> Array:
    """Causal softmax over the last axis of (H, rows, columns), exponentials of every entry.

    Selection by a public mask costs nothing; entries above the diagonal are still exponentiated. empty: how many of the
    first columns hold no token, a public (); None: all hold one.
    """
    mask = _visible(logits, empty)
    shifted = jnp.where(mask, logits, MASKED)
    shifted = shifted - _maximum(shifted, narrow, wide)[..., None]
    # The secure exponential of a hugely negative number is not 0: select after it, not before.
    exponentials = jnp.where(mask, jnp.exp(shifted), 0.0)
    return exponentials / jnp.sum(exponentials, -1, keepdims=True)


def softmax_clipped(logits: Array) -> Array:
    """`softmax_plain` as in SPU's examples: entries CLIPPED below the maximum, masked ones too, count as 0, by a
    comparison and a multiplication of every entry."""
    shifted = jnp.where(causal_mask(*logits.shape[-2:]), logits, MASKED)
    shifted = shifted - jnp.max(shifted, -1, keepdims=True)
    exponentials = jnp.exp(shifted) * (shifted > -CLIPPED)
    return exponentials / jnp.sum(exponentials, -1, keepdims=True)


def softmax_cover(logits: Array, blocks: int, narrow: bool = False, wide: int = 0) -> Array:
    """Causal softmax of (H, rows, columns) on a block-lower-triangular cover of the visible entries.

    With `blocks` blocks of rows, a fraction (blocks + 1) / (2 blocks) of the entries is compared, exponentiated and
    scaled, with one reciprocal a row.
    """
    parts = _on_cover(logits, None, blocks, False, narrow, wide)
    shapes = [part.shape for part in parts]
    inverse = 1.0 / jnp.concatenate([jnp.sum(part, -1) for part in parts], -1)  # (H, rows)
    spans = Cover(*logits.shape[1:], blocks).spans
    factors = [
        jnp.broadcast_to(inverse[:, low:high, None], shape) for (low, high, _), shape in zip(spans, shapes, strict=True)
    ]
    return _side_by_side(_unflatten(_flatten(parts) * _flatten(factors), shapes), logits.shape[2])


def exponentials(
    logits: Array, empty: Array | None = None, blocks: int = 1, split: bool = False, narrow: bool = False, wide: int = 0
) -> Array:
    """exp(logits - maximum of the row's visible entries) of (H, rows, columns), 0 above the diagonal.

    On the cover of `softmax_cover`. split: as 2^-X by `share_steps.split_powers` instead of SPU's exponential, for X
    below 16 (down to e^-11); smaller values count as 2^-16. empty: as in `softmax_plain`.
    """
    return _side_by_side(_on_cover(logits, empty, blocks, split, narrow, wide), logits.shape[2])


def _on_cover(logits: Array, empty: Array | None, blocks: int, split: bool, narrow: bool, wide: int) -> list[Array]:
    """Exponentials by blocks of rows, each as wide as its last row sees."""
    heads, rows, columns = logits.shape
    mask = _visible(logits, empty)
    shifted = jnp.where(mask, logits, MASKED)
    cover = Cover(rows, columns, blocks)
    below = _cover_maximum(shifted, cover, narrow, wide) - shifted
    # All blocks together in each step, so that they take the rounds of one.
    flat = _flatten([below[:, low:high, :width] for low, high, width in cover.spans])
    flat = split_exponential(flat, narrow) if split else jnp.exp(-flat)
    parts = _unflatten(flat, [(heads, high - low, width) for low, high, width in cover.spans])
    return [
        jnp.where(mask[low:high, :width], part, 0.0)
        for part, (low, high, width) in zip(parts, cover.spans, strict=True)
    ]


def _side_by_side(parts: Sequence[Array], columns: int) -> Array:
    """Blocks of rows as one (H, rows, columns), 0 where a block does not reach."""
    padded = [jnp.pad(part, ((0, 0), (0, 0), (0, columns - part.shape[2]))) for part in parts]
    return jnp.concatenate(padded, 1)


def split_exponential(below: Array, narrow: bool = False) -> Array:
    """exp(-below) for below >= 0, by `share_steps.split_powers`."""
    # Truncation may leave one unit below 0, which would wrap: add a few units, the same for a whole row.
    x, most = below * LOG2_E + 4 * UNIT, OCTAVES - 4 * UNIT
    x = jnp.where(negative(x - most), x, most) if narrow else jnp.minimum(x, most)
    return _product(*split_powers(x))


def _product(client: Array, server: Array, bit: Array, scale: float = 1.0) -> Array:
    """scale times the power of two that `share_steps.split_powers` splits."""
    # Powers of two, so that each multiplication is one truncation.
    power = (client * server) * (scale * 2.0**16 / (CLIENT_SCALE * SERVER_SCALE))
    return jnp.where(bit, power, power * 2.0**-16)


def bounded_exponentials(logits: Array) -> Array:
    """BOUNDED_SCALE exp(z - LOGIT_BOUND) of the visible logits z of (H, rows, columns), flat, with |z| at most
    LOGIT_BOUND. The last entry is their check (`share_steps.checked_powers`)."""
    visible = logits[:, *visible_entries(logits)].reshape(-1)
    *powers, check = checked_powers((LOGIT_BOUND - visible) * LOG2_E)
    return jnp.concatenate([_product(*powers, BOUNDED_SCALE), check])


def rows_of_visible(flat: Array, shape: tuple[int, ...]) -> Array:
    """(H, rows, columns) with `flat` as its visible entries, in order, and 0 elsewhere."""
    heads, rows, columns = shape
    mask = causal_mask(rows, columns)
    places = np.where(mask, np.cumsum(mask).reshape(mask.shape) - 1, 0)
    return jnp.where(mask, flat.reshape(heads, -1)[:, places], 0.0)


def visible_entries(x: Array) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the visible entries of (H, rows, columns)."""
    return np.nonzero(causal_mask(*x.shape[-2:]))


def truncated(x: Array, bits: Sequence[int]) -> Array:
    """x 2^-(b_1 + b_2 ...), one truncation after the other."""
    for index, many in enumerate(bits):
        x = (apart(x) if index else x) * np.float32(2.0**-many)
    return x


def pair_result(x: Array) -> Array:
    """The result of a step that multiplies two secrets outside SPU, `apart` because SPU would multiply it by a later
    factor before it truncates, and overflow."""
    return apart(truncated(x, PAIR_TRUNCATIONS))


def row_tiles(x: Array, factors: Array, lattice: int = 0) -> Array:
    """Row i of x (..., T, d) times factors[..., i], as products of diagonal tiles with tiles of x.

    One product of secret matrices sends half of what T d single products do. lattice: outside SPU.
    """
    if lattice:
        return _row_tiles_outside(x, factors)
    *lead, rows, width = x.shape
    side = tile_side(rows)
    tiles = x.reshape(-1, side, width)
    diagonal = jnp.where(np.eye(side, dtype=bool), factors.reshape(-1, side, 1), 0.0)
    return jnp.einsum("nij,njd->nid", diagonal, tiles).reshape(x.shape)


def _row_tiles_outside(x: Array, factors: Array) -> Array:
    """`row_tiles` with tiles of PACKED rows. Several narrow tiles are multiplied at once, each also by the factors of
    the others, which fills the ciphertexts; these further results are dropped."""
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    together = tiles_together(width)
    missing = -rows % (PACKED * together)
    tiles = jnp.pad(x.reshape(rows, width), ((0, missing), (0, 0))).reshape(-1, together, PACKED, width)
    factors = jnp.pad(factors.reshape(rows), (0, missing)).reshape(-1, together * PACKED, 1)
    diagonal = jnp.where(np.tile(np.eye(PACKED, dtype=bool), (together, 1)), factors, 0.0)
    products = shared_product(diagonal, jnp.swapaxes(tiles, 1, 2).reshape(-1, PACKED, together * width))
    products = products.reshape(-1, together, PACKED, together, width)
    own = jnp.stack([products[:, tile, :, tile] for tile in range(together)], 1)
    return pair_result(own.reshape(-1, width)[:rows].reshape(x.shape))


def rotate(x: Array, dims: int, first: int, base: float = 10_000.0) -> Array:
    """Rotary position embedding (GPT-NeoX's layout) of the first `dims` dimensions of x (H, T, d_k), the first row at
    position `first`, as in `aero.attention.rotate`. Public factors: only truncations cost."""
    return rotate_by(x, rotary_table(first, x.shape[1], dims, base))


def rotary_table(first: int, positions: int, dims: int, base: float = 10_000.0) -> np.ndarray:
    """Cosines and sines (2, positions, dims / 2) of the rotary angles from position `first` on."""
    angles = np.arange(first, first + positions)[:, None] * base ** (-np.arange(0, dims, 2) / dims)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def rotate_by(x: Array, table: Any) -> Array:
    """`rotate` at the positions of a public table (2, T, dims / 2), as `rotary_table` gives it."""
    cos, sin = table
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def _maximum(x: Array, narrow: bool, wide: int, axis: int = -1) -> Array:
    if wide:
        return wide_maximum(jnp.moveaxis(x, axis, -1), wide, narrow)
    return narrow_maximum(jnp.moveaxis(x, axis, -1)) if narrow else jnp.max(x, axis)


def narrow_maximum(x: Array) -> Array:
    """Maxima over the last axis of x as a tree of pairs; values must differ by less than 2^(31 - fraction bits)."""
    while (entries := x.shape[-1]) > 1:
        half = entries // 2
        low, high = x[..., :half], x[..., half : 2 * half]
        larger = jnp.where(negative(low - high), high, low)
        x = jnp.concatenate([larger, x[..., 2 * half :]], -1) if entries % 2 else larger
    return x[..., 0]


def _cover_maximum(shifted: Array, cover: Cover, narrow: bool, wide: int) -> Array:
    """Maxima (H, rows, 1) of the rows of (H, rows, columns), MASKED above the diagonal."""
    if not cover.tiled:
        return _maximum(shifted, narrow, wide)[..., None]
    side, blocks = cover.side, len(cover.spans)
    missing = side * blocks - cover.rows
    if missing:
        shifted = jnp.pad(shifted, ((0, 0), (0, missing), (0, missing)), constant_values=MASKED)
    spans = [slice(low, low + side) for low in range(0, side * blocks, side)]
    tiles = [shifted[:, rows, columns] for row, rows in enumerate(spans) for columns in spans[: row + 1]]
    within = _maximum(jnp.stack(tiles), narrow, wide)  # (tiles, H, side)
    by_row, first = [], 0
    for count in range(1, blocks + 1):
        absent = ((0, blocks - count), (0, 0), (0, 0))
        by_row.append(jnp.pad(within[first : first + count], absent, constant_values=MASKED))
        first += count
    maxima = _maximum(jnp.stack(by_row), narrow, wide, 1)  # (blocks, H, side)
    of_rows = jnp.swapaxes(maxima, 0, 1).reshape(len(shifted), side * blocks, 1)
    return of_rows[:, : cover.rows] if missing else of_rows


def _flatten(parts: Sequence[Array]) -> Array:
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _unflatten(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [flat[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends.tolist(), shapes, strict=True)]


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """LayerNorm over the last axis with the server's gain and bias."""
    return normalise(x, eps) * weight + bias


def normalise(x: Array, eps: float = 1e-5, narrow: bool = False, tiles: bool = False, lattice: int = 0) -> Array:
    """LayerNorm without gain and bias: (x - mean) / sqrt(variance + eps); the rest as in `rms_normalise`."""
    return rms_normalise(x - jnp.mean(x, -1, keepdims=True), eps, narrow, tiles, lattice)


def rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    """RMSNorm over the last axis with the server's gain."""
    return rms_normalise(x, eps) * weight


def rms_normalise(x: Array, eps: float = 1e-5, narrow: bool = False, tiles: bool = False, lattice: int = 0) -> Array:
    """RMSNorm without gain: x / sqrt(mean(x^2) + eps).

    narrow: the root by `bounded.reciprocal_root`. tiles: the division of the rows by `row_tiles`. lattice:
    with `tiles`, squares and division outside SPU.
    """
    if lattice:
        # `share` of the mean, because the sum of the squares is divided by a power of two.
        share, square_mean = x.shape[-1] / 2 ** log2_from(x.shape[-1]), pair_result(row_squares(x))
    else:
        share, square_mean = 1.0, jnp.mean(x * x, -1, keepdims=not tiles)
    if narrow:
        inverse = reciprocal_root(square_mean + share * eps, share * eps, share**0.5)
    else:
        inverse = jax.lax.rsqrt((square_mean / share if lattice else square_mean) + eps)
    return row_tiles(x, inverse, lattice) if tiles else x * inverse


def relu(x: Array, narrow: bool = False) -> Array:
    """max(x, 0)."""
    return jnp.where(negative(x), 0.0, x) if narrow else jnp.maximum(x, 0.0)


def leaky_relu(x: Array, slope: Array, narrow: bool = False) -> Array:
    """x where it is positive, slope x elsewhere, as `jax.nn.leaky_relu` computes it."""
    return jnp.where(negative(x), slope * x, x) if narrow else jnp.where(x >= 0.0, x, slope * x)


def gelu_segments(x: Array, narrow: bool = False) -> Array:
    """GELU as relu(x) - r(|x|), r(u) = u (1 - Phi(u)), by a degree-6 polynomial on [0, 3.5] and 0 beyond, within
    GELU_ERROR of the tanh form.

    Two comparisons and three multiplications. |x| = 2 relu(x) - x needs no comparison of its own. The polynomial is in
    z = |x| - 1.75: in powers of |x| itself, rounding coefficients to 18 bits alone makes errors of 0.1.
    """
    positive = relu(x, narrow)
    size = 2.0 * positive - x
    z = size - GELU_TAIL / 2
    c = _tail_polynomial(_gelu_tail, GELU_TAIL, 1.0, GELU_DEGREE)
    square = z * z
    cube = square * z
    # Both weighted sums by one public matrix: two truncations instead of five.
    powers = jnp.stack([z, square, cube], -1)
    sums = powers @ np.array([[c[1], c[4]], [c[2], c[5]], [0.0, c[6]]])
    tail = c[0] + sums[..., 0] + cube * (c[3] + sums[..., 1])
    inside = negative(z - GELU_TAIL / 2) if narrow else z < GELU_TAIL / 2
    return positive - jnp.where(inside, tail, 0.0)


def gelu_squares(x: Array, narrow: bool = False) -> Array:
    """GELU as in `gelu_segments`, the polynomial by three squarings, which send two thirds of what products send.

    Of degree 8 in z = |x| - 1.9, where |x| is clipped at 3.8: w_1 = z^2, w_2 = (a w_1 + b z)^2, and w_3, the square of
    another sum of z, w_1, w_2 and 1, are added. The coefficients are a numerical fit, within GELU_SQUARES_ERROR.
    """
    positive, most = relu(x, narrow), GELU_SQUARES_TAIL / 2
    z = 2.0 * positive - x - most
    z = jnp.where(negative(z - most) if narrow else z < most, z, most)
    second, third, last, (inside, outside) = GELU_SQUARES
    terms = [z, square(z)]
    for coefficients, constant in ((second, 0.0), (third, inside)):
        terms.append(square(jnp.stack(terms, -1) @ np.float32(coefficients) + np.float32(constant)))
    return positive - (jnp.stack(terms[:3], -1) @ np.float32(last) + terms[3] + np.float32(outside))


def silu_segments(x: Array, narrow: bool = False) -> Array:
    """SiLU as relu(x) - r(|x|), r(u) = u / (1 + e^u), by a polynomial of degree 8 on [0, SILU_TAIL].

    Two comparisons and four multiplications. Beyond SILU_TAIL |x| is clipped, so that its powers stay small. The
    polynomial is in t = 2 |x| / SILU_TAIL - 1 (as in `gelu_segments`). The largest error is SILU_ERROR.
    """
    positive = relu(x, narrow)
    t = (positive + positive - x) * np.float32(2.0 / SILU_TAIL) - 1.0
    inside = negative(t - 1.0) if narrow else t < 1.0
    t = jnp.where(inside, t, 1.0)
    c = _tail_polynomial(_silu_tail, SILU_TAIL, SILU_TAIL / 2, SILU_DEGREE)
    square = t * t
    lower = jnp.stack([t, square], -1)
    powers = jnp.concatenate([lower, square[..., None] * lower], -1)  # t, ..., t^4
    sums = powers @ np.stack([c[1:5], c[5:9]], 1)
    return positive - (c[0] + sums[..., 0] + powers[..., 3] * sums[..., 1])


def _tail_polynomial(function: Callable[[Any], Any], tail: float, unit: float, degree: int) -> np.ndarray:
    """Coefficients, ascending in z, of the near-minimax polynomial for function(tail / 2 + unit z) on [0, tail]."""
    interpolant = np.polynomial.Chebyshev.interpolate(function, degree, domain=[0.0, tail])
    in_u = interpolant.convert(kind=np.polynomial.Polynomial)
    return in_u(np.polynomial.Polynomial([tail / 2, unit])).coef.astype(np.float32)


def _gelu_tail(u: Any) -> Any:
    """u - gelu(u) for u >= 0, GELU in the tanh form."""
    return 0.5 * u * (1.0 - np.tanh(math.sqrt(2.0 / math.pi) * (u + 0.044715 * u**3)))


def _silu_tail(u: Any) -> Any:
    """u - silu(u) for u >= 0, less what makes it end at half of its value at SILU_TAIL: it stands for all beyond."""
    end = SILU_TAIL / (1.0 + np.exp(SILU_TAIL)) / 2
    return u / (1.0 + np.exp(u)) - end * (u / SILU_TAIL) ** 4
