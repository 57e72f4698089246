"""Multiplication of a shared matrix by the server's matrix or by a shared one: the arithmetic of `lattice_products`,
`lattice_attention` and `lattice_rest`.

X (T, k) is shared, X = X_0 + X_1 modulo 2^64, and W (k, m) is the server's, both integers of the fixed point. n is the
degree of the ring R = Z[Y] / (Y^n + 1); ciphertexts are RLWE pairs (a, b), b + a s = message + noise, modulo q = 2^64.
The server computes X_1 W in the clear, and X_0 W on ciphertexts of the client, as Cheetah does (Huang et al., USENIX
Security 2022), with answers packed as in BumbleBee (Lu et al., NDSS 2025). Messages are encoded in coefficients:

    x(Y) = sum_{i, c} X[i, c] Y^(16 w i + c)        16 columns c of X and up to 128 of its rows i
    w(Y) = sum_{v, c} W[c, v] Y^(16 v - c)          the same 16 rows c of W and w of its columns v

so that (X W)[i, v] is coefficient 16 (w i + v) of x w. Of the sum over blocks of 16 inner places one coefficient in 16
is wanted. Packing combines 16 such ciphertexts into one by 4 automorphisms Y -> Y^(n / 2^l + 1), each of which doubles
the wanted coefficients and cancels half of the others; that takes 15 key switchings.

q is a power of two like the ring of the shares, so nothing is rescaled; sums of polynomial products are matrix
multiplications of floats at the n / 2 complex roots (limbs of 21 and 22 bits, exact). The noise reaches the lowest bits
of a result, which fixed point truncates; that allows n = 4,096, where SPU has 8,192.

If W is secret too, W = Y_0 + Y_1, each party multiplies its own shares, X_0 Y_0 or X_1 Y_1, and answers the other's
query by its share Y_j. Shares are too large for q = 2^64, so they are cut into digits (`PairLayout`).

docs/lattice.md argues what each party learns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from aero.two_party.lattice.polynomials import (
    DEVIATION,
    FINE_LIMBS,
    LIMBS,
    automorphism,
    from_limbs,
    gaussian,
    inverse_spectrum,
    limb_spectra,
    limbs,
    spectrum,
    ternary,
    times_monomial,
    times_small,
    uniform,
)
from aero.two_party.runtime.settings import FRACTION_BITS

DEGREE = 4096
"""n. With uniform ternary secrets and noise of deviation 3.2, 128 bits of security allow q up to 2^109 at this degree
(HomomorphicEncryption.org standard of 2018; 2^106 in "Security Guidelines for Implementing Homomorphic Encryption",
IACR ePrint 2024/463)."""
LEVELS = 4
PACKED = 1 << LEVELS
"""Inner places in a query ciphertext, and ciphertexts packed into one answer."""
ROWS = 128
"""Most rows of X in a ciphertext."""
WIDE, WIDE_OF_A_ROW = 16, 64
"""Most columns of W in a ciphertext, for several rows of X and for one row. More columns add noise to all of them."""
FEW_TAPS = 256
"""Polynomials of W of at most so many coefficients are evaluated at the roots by a matrix, others by an FFT."""
RESULT_BITS, TRUNCATIONS = 28, (16, 12)
"""A result is scaled by 2^28 over fixed point, modulo 2^64. SPU removes that by public factors 2^-16 and 2^-12."""
DIGITS, DIGIT_BITS = 3, 16
"""Gadget decomposition for key switching: the highest digits of an element; the rest is noise."""
CUT_BITS = (16, 24)
"""Lowest bits of (a, b) of an answer that are not sent, which leaves 6 and 5 bytes a coefficient."""
NOISE_BUDGET = 4.0
"""Largest allowed standard deviation of an entry's noise, in units of the fixed point's last bit."""
SEED = 32

# Of a product of two shared matrices.
SHARE_BITS = 50
"""What is used of a share: the lowest bits."""
PAIR_TRUNCATIONS = (16, 16)
"""As TRUNCATIONS: a result is scaled by 2^32 over fixed point, modulo 2^64. So |X Y| may reach 2^10."""
PAIR_CUT_BITS = (24, 32)
"""As CUT_BITS, which leaves 5 and 4 bytes a coefficient."""
MOST_SQUARES = 2048
"""Most columns of `SquaresLayout`: its scale must not be less than PACKED."""


@dataclass(frozen=True)
class Layout:
    """How (rows, inner) times (inner, columns) is cut: into groups of up to `height` rows, each with `blocks` query
    ciphertexts and `packs` answers of PACKED x `wide` columns."""

    rows: int
    inner: int
    columns: int
    cut: tuple[int, int] = CUT_BITS

    @cached_property
    def groups(self) -> int:
        return -(-self.rows // ROWS)

    @cached_property
    def height(self) -> int:
        return -(-self.rows // self.groups)

    @cached_property
    def wide(self) -> int:
        most = WIDE if self.height > 1 else WIDE_OF_A_ROW
        return min(DEGREE // (PACKED * self.height), -(-self.columns // PACKED), most)

    @cached_property
    def blocks(self) -> int:
        return -(-self.inner // PACKED)

    @cached_property
    def packs(self) -> int:
        return -(-self.columns // (PACKED * self.wide))

    @property
    def query_bytes(self) -> int:
        """A seed for the `a` halves, and the `b` halves."""
        return SEED + 8 * self.blocks * DEGREE

    @property
    def answer_bytes(self) -> int:
        return self.packs * DEGREE * sum((64 - cut) // 8 for cut in self.cut)

    def spans(self) -> list[slice]:
        """The rows of each group."""
        return [slice(low, min(low + self.height, self.rows)) for low in range(0, self.rows, self.height)]

    def wanted(self, packed: np.ndarray, rows: int) -> np.ndarray:
        """Entries (rows, columns) from the coefficients of answers (packs, n)."""
        used = packed.reshape(self.packs, -1, PACKED)[:, : self.height * self.wide]
        whole = used.reshape(self.packs, self.height, self.wide, PACKED).transpose(1, 0, 3, 2)
        return whole.reshape(self.height, -1)[:rows, : self.columns]


def _power(level: int, degree: int) -> int:
    return degree // (1 << level) + 1


class SecretKey:
    """A party's secret key for one session, and the `PublicMaterial` for the other party: a public key, and
    key-switching keys for the automorphisms of the secret."""

    def __init__(self, degree: int = DEGREE) -> None:
        self._degree = degree
        secret = ternary(degree)
        self._spectrum = spectrum(secret.astype(np.float64))
        seed = os.urandom(SEED)
        keys = self._masks(uniform(seed, "keys", 1 + LEVELS * DIGITS, degree))
        for level in range(LEVELS):
            turned = automorphism(secret.view(np.uint64), _power(level, degree))
            for digit in range(DIGITS):
                keys[1 + level * DIGITS + digit] += turned << np.uint64(64 - (DIGITS - digit) * DIGIT_BITS)
        self.public_material = seed + keys.astype("<u8").tobytes()

    def _masks(self, elements: np.ndarray) -> np.ndarray:
        """The `b` halves e - a s (count, n) of fresh encryptions of zero with public elements a (count, n)."""
        noise = gaussian(elements.size).reshape(elements.shape).view(np.uint64)
        return noise - times_small(limb_spectra(elements), self._spectrum)

    def encrypt(self, share: np.ndarray, layout: Layout, scale_bits: int) -> bytes:
        """The query message for a group of rows (up to `height`, inner) uint64 of the own share of X.

        scale_bits: the result is 2^scale_bits times the product with the other party's integers.
        """
        seed = os.urandom(SEED)
        query = self._masks(uniform(seed, "query", layout.blocks, self._degree))
        padded = np.zeros((layout.height, layout.blocks * PACKED), np.uint64)
        padded[: share.shape[0], : share.shape[1]] = share
        padded <<= np.uint64(scale_bits - LEVELS)  # packing scales by PACKED
        places = layout.height * layout.wide * PACKED
        rows = query[:, :places].reshape(layout.blocks, layout.height, -1)
        rows[:, :, :PACKED] += padded.reshape(layout.height, -1, PACKED).transpose(1, 0, 2)
        query[:, :places] = rows.reshape(layout.blocks, -1)
        return seed + query.astype("<u8").tobytes()

    def decrypt(self, answer: bytes, layout: Layout, rows: int) -> np.ndarray:
        """The own share (rows, columns) uint64 of a group's result."""
        first, second = _unpacked(answer, layout)
        return layout.wanted(second + times_small(limb_spectra(first), self._spectrum), rows)


class PublicMaterial:
    """A party's public key and key-switching keys, at the other party."""

    def __init__(self, message: bytes, degree: int = DEGREE) -> None:
        keys = 1 + LEVELS * DIGITS
        seconds = np.frombuffer(message[SEED:], "<u8").reshape(keys, degree)
        firsts = uniform(message[:SEED], "keys", keys, degree)
        spectra = np.moveaxis(limb_spectra(np.stack([firsts, seconds], 1)), 0, 2)  # (keys, 2, 3, n/2)
        self._zero = spectra[0].swapaxes(0, 1)[:, :, None]  # (3, 2, 1, n/2)
        self._change = spectra[1:].reshape(LEVELS, DIGITS, 6, degree // 2)

    @staticmethod
    def size(degree: int = DEGREE) -> int:
        return SEED + 8 * degree * (1 + LEVELS * DIGITS)

    def encryptions_of_zero(self, count: int, degree: int) -> np.ndarray:
        """Fresh encryptions of zero under the public key (2, count, n), which hide the `a` halves of answers."""
        small = spectrum(ternary(count * degree).reshape(count, degree).astype(np.float64))
        noise = gaussian(2 * count * degree).reshape(2, count, degree).view(np.uint64)
        return times_small(self._zero, small) + noise

    def apply_automorphism(self, level: int, pairs: np.ndarray) -> np.ndarray:
        """The automorphism of `level` applied to ciphertexts (2, …, n), switched back to the secret key."""
        turned = automorphism(pairs, _power(level, pairs.shape[-1]))
        # Rounded to the highest digits; the sum wraps as the ring does.
        rest = (turned[0].view(np.int64) + (1 << (63 - DIGITS * DIGIT_BITS))) >> (64 - DIGITS * DIGIT_BITS)
        values, key = spectrum(np.stack(limbs(rest, (DIGIT_BITS,) * DIGITS), -2)), self._change[level]
        summed = sum(values[..., place, None, :] * key[place] for place in range(DIGITS))
        parts = inverse_spectrum(summed).reshape(*rest.shape[:-1], 2, 3, -1)
        changed = from_limbs(np.moveaxis(parts, (-2, -3), (0, 1)))
        changed[1] += turned[1]
        return changed

    def pack(self, pairs: np.ndarray) -> np.ndarray:
        """PACKED ciphertexts (2, PACKED, …, n) as one (2, …, n): its coefficient PACKED p + c is PACKED times
        coefficient PACKED p of the c-th. Only these coefficients of b matter."""
        for level in reversed(range(LEVELS)):
            low, high = np.split(pairs, 2, 1)
            moved = times_monomial(high, 1 << level)
            pairs = low + moved + self.apply_automorphism(level, low - moved)
        return pairs[:, 0]


def times(left: np.ndarray, matrix: np.ndarray, cut: Sequence[int] = LIMBS) -> np.ndarray:
    """left (rows, k) uint64 times an integer matrix (k, m) modulo 2^64, by exact float64 multiplication of limbs of
    `cut` bits. ValueError if a column of `matrix` is too large for exact sums."""
    if np.abs(matrix).sum(0, dtype=np.float64).max(initial=0.0) * 2.0 ** (max(cut) - 1) >= 2.0**53:
        raise ValueError("entries of the matrix are too large for exact multiplication in float64")
    right = matrix.astype(np.float64)
    return from_limbs(np.stack([(limb @ right).astype(np.int64) for limb in limbs(left, cut)]), cut)


def noise_of(matrix: np.ndarray, wide: int = WIDE) -> float:
    """The largest standard deviation of the noise of an entry of X W, in units of the fixed point's last bit.

    wide: that of the `Layout`, 2 at 128 rows, never more than WIDE, or WIDE_OF_A_ROW for one row. A query's noise meets
    all columns in the same ciphertext, any `wide` neighbours; the noise of a level's key switching is doubled by every
    later level.
    """
    squares = np.square(matrix, dtype=np.float64).sum(0)
    neighbours = np.convolve(squares, np.ones(min(wide, len(squares)))).max()
    return _noise(2.0**FRACTION_BITS * neighbours**0.5, CUT_BITS) * 2.0**-RESULT_BITS


def _noise(met: float, cut_bits: tuple[int, int]) -> float:
    """Its standard deviation modulo 2^64. met: root of the squared sum of the entries that a query's noise meets."""
    queries = DEVIATION * met * PACKED
    digits = DEVIATION * (DEGREE * DIGITS / 12) ** 0.5 * 2.0**DIGIT_BITS
    below = (DEGREE * 2 / 3 / 12) ** 0.5 * 2.0 ** (64 - DIGITS * DIGIT_BITS)
    levels = sum(4.0**level for level in range(LEVELS)) ** 0.5
    cut = ((DEGREE * 2 / 3 / 12) ** 0.5 * 2.0 ** cut_bits[0], 12**-0.5 * 2.0 ** cut_bits[1])
    return float(np.sqrt(np.square((queries, levels * digits, levels * below, *cut)).sum()))


def fits(matrix: np.ndarray, wide: int = WIDE) -> bool:
    """Whether the noise is within NOISE_BUDGET."""
    return noise_of(matrix, wide) <= NOISE_BUDGET


class Matrix:
    """The server's matrix W (k, m) in fixed point."""

    _cut: tuple[int, ...] = LIMBS

    def __init__(self, values: np.ndarray) -> None:
        """ValueError unless the matrix `fits`."""
        if not fits(values):
            raise ValueError("a weight matrix is too large; compute without lattice products (tuned-lattice_products)")
        self._integers = np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int32)

    def times_own(self, share: np.ndarray) -> np.ndarray:
        """The server's share (rows, k) uint64 of X times W, scaled as results are."""
        return times(share, self._integers) << np.uint64(RESULT_BITS - FRACTION_BITS)

    def answer(self, public: PublicMaterial, queries: list[bytes], layout: Layout) -> tuple[list[bytes], np.ndarray]:
        """The answer messages to the queries of all groups, and the server's share (rows, columns) of X_0 W."""
        groups = layout.groups
        firsts = np.concatenate([uniform(query[:SEED], "query", layout.blocks, DEGREE) for query in queries])
        seconds = np.stack([np.frombuffer(query[SEED:], "<u8") for query in queries])
        # Multiplied by Y^(1 - PACKED) here, so that w(Y) has no negative powers: Y^(n - 15) = -Y^-15.
        turned = np.negative(times_monomial(firsts, DEGREE - PACKED + 1))
        spectra = limb_spectra(turned, self._cut).reshape(len(self._cut), groups, layout.blocks, -1)
        spectra = spectra.transpose(3, 2, 1, 0)
        right = np.concatenate([spectra.real, spectra.imag], 2).reshape(DEGREE // 2, layout.blocks, -1)
        scalars = self._scalars(seconds, layout)
        masks = np.frombuffer(os.urandom(8 * groups * layout.packs * DEGREE), np.uint64).reshape(groups, -1, DEGREE)
        answered = np.empty((2, groups, layout.packs, DEGREE), np.uint64)
        for pack, weights in enumerate(self._padded(layout)[:, ::-1].transpose(2, 4, 1, 3, 0)):
            taps = weights.reshape(PACKED * layout.wide, -1).astype(np.float64)  # coefficients of Y^15 w(Y)
            values = _values(taps).reshape(DEGREE // 2, 2 * PACKED, layout.blocks) @ right
            values = values.reshape(DEGREE // 2, 2, PACKED, 2, groups, -1)
            real, imaginary = values[:, 0, :, 0] - values[:, 1, :, 1], values[:, 0, :, 1] + values[:, 1, :, 0]
            parts = inverse_spectrum((real + 1j * imaginary).transpose(3, 1, 2, 0))
            packed = public.pack(np.stack([from_limbs(parts, self._cut), scalars[pack]]))
            answered[:, :, pack] = packed + public.encryptions_of_zero(groups, DEGREE)
        answered[1] -= masks
        shares = [layout.wanted(mask, span.stop - span.start) for mask, span in zip(masks, layout.spans(), strict=True)]
        return [_sent(answered[:, group], layout.cut) for group in range(groups)], np.concatenate(shares)

    def _padded(self, layout: Layout) -> np.ndarray:
        """W as (blocks, PACKED, packs, PACKED, wide), zero-padded."""
        inner, columns = layout.blocks * PACKED, layout.packs * PACKED * layout.wide
        padded = np.zeros((inner, columns), np.int32)
        padded[: layout.inner, : layout.columns] = self._integers
        return padded.reshape(layout.blocks, PACKED, layout.packs, PACKED, layout.wide)

    def _scalars(self, seconds: np.ndarray, layout: Layout) -> np.ndarray:
        """The `b` halves of the sums, (packs, PACKED, groups, n): the coefficients 16 p that hold entries, or 0."""
        padded, places, used = self._padded(layout), DEGREE // PACKED, layout.height * layout.wide
        left = seconds.reshape(layout.groups, layout.blocks, places, PACKED).transpose(0, 1, 3, 2)
        left = left.reshape(layout.groups, layout.blocks * PACKED, places)
        summed = np.zeros((layout.groups * used, layout.packs * PACKED), np.uint64)
        for column in range(layout.wide):
            # Multiplied by Y^(16 column).
            moved = times_monomial(left, column)[..., :used].transpose(0, 2, 1).reshape(len(summed), -1)
            summed += times(moved, padded[..., column].reshape(layout.blocks * PACKED, -1), self._cut)
        whole = np.zeros((layout.packs, PACKED, layout.groups, places, PACKED), np.uint64)
        whole[..., :used, 0] = summed.reshape(layout.groups, used, layout.packs, PACKED).transpose(2, 3, 0, 1)
        return whole.reshape(layout.packs, PACKED, layout.groups, DEGREE)


@dataclass(frozen=True)
class PairLayout(Layout):
    """The `Layout` of X_i Y_j, of shares (rows, k) and (k, columns): `inner` is k times the digits of Y_j.

    A share has 64 bits, and a ciphertext's noise grows with the entries it is multiplied by. So Y_j is cut into signed
    digits, and X_i encrypted once for each, scaled accordingly. Because the result is scaled by 2^14 modulo 2^64, the
    lowest SHARE_BITS of Y_j suffice.
    """

    cut: tuple[int, int] = PAIR_CUT_BITS
    digits: int = 2

    @classmethod
    def of(cls, rows: int, inner: int, columns: int) -> PairLayout:
        """With as few digits as the noise allows."""
        layout = cls(rows, 2 * inner, columns)
        return layout if layout.noise <= NOISE_BUDGET else cls(rows, 3 * inner, columns, digits=3)

    @property
    def digit_bits(self) -> int:
        return -(-SHARE_BITS // self.digits)

    @property
    def noise(self) -> float:
        """As `noise_of`, for uniform entries."""
        met = 2.0**self.digit_bits * (self.inner * self.wide / 12) ** 0.5
        return _noise(met, self.cut) * 2.0 ** -sum(PAIR_TRUNCATIONS)

    @property
    def scale_bits(self) -> int:
        """Of X_i Y_j, whose entries have twice the fraction bits."""
        return sum(PAIR_TRUNCATIONS) - FRACTION_BITS

    def encrypt(self, secret: SecretKey, share: np.ndarray) -> bytes:
        """The query for the other party's `ShareMatrix`, of own rows (rows, k) of X."""
        scaled = [share << np.uint64(digit * self.digit_bits) for digit in range(self.digits)]
        return secret.encrypt(np.concatenate(scaled, 1), self, self.scale_bits)


@dataclass(frozen=True)
class HintLayout(PairLayout):
    """The `PairLayout` of S H, of the client's secrets S (rows, k) and the server's hint H (k, columns) of `lookup`.

    Only the highest 32 bits of an entry of H are used. The others change a result by about 0.1 of the fixed point's
    last bit, because a looked-up row is scaled by 2^39.
    """

    digit_bits, scale_bits = 16, 32

    @classmethod
    def of(cls, rows: int, inner: int, columns: int) -> HintLayout:
        return cls(rows, 2 * inner, columns)

    def matrix(self, hint: np.ndarray) -> ShareMatrix:
        """The hint (k, columns) uint64 rounded to its highest bits."""
        return ShareMatrix((hint + np.uint64(1 << (self.scale_bits - 1))) >> np.uint64(self.scale_bits), self)


def log2_from(k: int) -> int:
    """Exponent of the least power of two that is not below k."""
    return (k - 1).bit_length()


@dataclass(frozen=True)
class SquaresLayout(PairLayout):
    """The `PairLayout` of 2 X_0 X_1^T, of which only the diagonal is used: what X X^T has beyond the parties' own
    squares. `inner` is 3 k.

    A result is scaled like those of `PairLayout`, after division by the least power of two that is not below k.
    """

    digits: int = 3
    digit_bits = 20

    @classmethod
    def of(cls, rows: int, inner: int) -> SquaresLayout:
        """For X (rows, inner); ValueError for more than MOST_SQUARES columns."""
        if inner > MOST_SQUARES:
            raise ValueError(f"sums of {inner} squares: at most {MOST_SQUARES}")
        return cls(rows, 3 * inner, rows)

    @property
    def scale_bits(self) -> int:
        """Of 2 X_0 X_1^T."""
        return super().scale_bits + 1 - log2_from(self.inner // self.digits)


class ShareMatrix(Matrix):
    """A party's share (k, m) of a secret matrix Y, as digits."""

    def __init__(self, share: np.ndarray, layout: PairLayout) -> None:
        self._cut = LIMBS if layout.digit_bits <= 17 else FINE_LIMBS
        *digits, _ = limbs(share, (layout.digit_bits,) * (layout.digits + 1))
        self._integers = np.concatenate(digits).astype(np.int32)


def _values(taps: np.ndarray) -> np.ndarray:
    """Values (n/2, 2, count), real and imaginary, at the roots of Y^n + 1 of polynomials (coefficients, count)."""
    if len(taps) <= FEW_TAPS:
        return (_roots(len(taps)) @ taps).reshape(DEGREE // 2, 2, -1)
    values = spectrum(np.pad(taps.T, ((0, 0), (0, DEGREE - len(taps))))).T
    return np.stack([values.real, values.imag], 1)


@cache
def _roots(powers: int) -> np.ndarray:
    """Real and imaginary parts (n, powers), alternating, of the first powers of the roots of Y^n + 1."""
    values = spectrum(np.eye(powers, DEGREE)).T
    return np.ascontiguousarray(np.stack([values.real, values.imag], 1).reshape(DEGREE, powers))


def _sent(halves: np.ndarray, cuts: Sequence[int]) -> bytes:
    """The message of answers (2, packs, n) without their lowest bits."""
    found = []
    for half, cut in zip(halves, cuts, strict=True):
        rounded = (half + np.uint64(1 << (cut - 1))) >> np.uint64(cut)
        found.append(rounded.astype("<u8").view(np.uint8).reshape(*half.shape, 8)[..., : 8 - cut // 8].tobytes())
    return b"".join(found)


def _unpacked(answer: bytes, layout: Layout) -> Iterator[np.ndarray]:
    """(a, b), each (packs, n), of a group's answers."""
    at = 0
    for cut in layout.cut:
        width = 8 - cut // 8
        size = layout.packs * DEGREE * width
        half = np.zeros((layout.packs, DEGREE, 8), np.uint8)
        half[..., cut // 8 :] = np.frombuffer(answer[at : at + size], np.uint8).reshape(*half.shape[:2], width)
        yield half.view("<u8")[..., 0]
        at += size
