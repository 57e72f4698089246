"""Arithmetic of the ring R = Z[X] / (X^n + 1) on NumPy's arrays, and what its ciphertexts are drawn from.

Integers are kept modulo 2^64, as SPU keeps shares; of a smaller power of two the lower bits count. Products are
float64 FFTs of limbs. Every call looks whether they lie near integers, and is an error if one does not: errors grow
far more slowly with the operands than to jump from near one integer to near another.
"""

from __future__ import annotations

import hashlib
import os
from decimal import Decimal, localcontext
from functools import cache

import numpy as np

DEVIATION = 3.2
"""Standard deviation of the errors, that of the standards for homomorphic encryption."""
LIMBS = (22, 21, 21)
"""Bits of the limbs of an element of 64 bits, lowest first."""
_SHIFTS = (0, 22, 43)


@cache
def _twist(degree: int) -> np.ndarray:
    return np.exp(1j * np.pi * np.arange(degree // 2) / degree)


def spectrum(polynomials: np.ndarray) -> np.ndarray:
    """Values (…, n/2) of real polynomials (…, n) at half of the roots of X^n + 1; the others are their conjugates."""
    half = polynomials.shape[-1] // 2
    folded = polynomials[..., :half] + 1j * polynomials[..., half:]
    return np.fft.fft(folded * _twist(2 * half))


def integers(values: np.ndarray) -> np.ndarray:
    """The polynomials (…, n) int64 of spectra (…, n/2); ArithmeticError if float64 does not tell them for certain."""
    folded = np.fft.ifft(values) * _twist(2 * values.shape[-1]).conj()
    real = np.concatenate([folded.real, folded.imag], -1)
    nearest = np.rint(real)
    # Beyond 2^50 a float has so few binary digits after the point that nothing would be seen of an error.
    if not (np.abs(real - nearest).max() < 0.25 and np.abs(nearest).max() < 2.0**50):
        raise ArithmeticError("a product of polynomials is not exact in float64; is the matrix's range checked?")
    return nearest.astype(np.int64)


def limbs(values: np.ndarray) -> list[np.ndarray]:
    """Integers modulo 2^64 as sums of three limbs, float64, from -2^21 to 2^21: sum_i 2^(0, 22, 43)_i limb_i."""
    rest, found = values.astype(np.uint64).view(np.int64), []
    for bits in LIMBS[:-1]:
        # The sum may pass 2^63, where it wraps as the ring does.
        low = ((rest + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
        found.append(low.astype(np.float64))
        rest = (rest - low) >> bits
    return [*found, rest.astype(np.float64)]


def joined(parts: np.ndarray) -> np.ndarray:
    """Integers modulo 2^64 from int64 limbs (3, …), which may be of any size."""
    whole = parts.view(np.uint64)
    return whole[0] + (whole[1] << np.uint64(_SHIFTS[1])) + (whole[2] << np.uint64(_SHIFTS[2]))


def limb_spectra(elements: np.ndarray) -> np.ndarray:
    """Spectra (3, …, n/2) of the limbs of elements (…, n) modulo 2^64."""
    return np.stack([spectrum(limb) for limb in limbs(elements)])


def times_small(elements: np.ndarray, small: np.ndarray) -> np.ndarray:
    """Products modulo 2^64 of elements, given by `limb_spectra`, and small polynomials, given by `spectrum`."""
    return joined(integers(elements * small))


def shifted(elements: np.ndarray, by: int) -> np.ndarray:
    """Elements (…, n) times X^by, 0 <= by < n."""
    out = np.empty_like(elements)
    n = elements.shape[-1]
    out[..., by:] = elements[..., : n - by]
    np.negative(elements[..., n - by :], out=out[..., :by])
    return out


@cache
def _places(degree: int, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each coefficient of p(X^power), where in p it is and whether its sign changes."""
    exponents = np.arange(degree) * power % (2 * degree)
    source, negative = np.empty(degree, np.intp), np.empty(degree, bool)
    source[exponents % degree] = np.arange(degree)
    negative[exponents % degree] = exponents >= degree
    return source, negative


def substituted(elements: np.ndarray, power: int) -> np.ndarray:
    """p(X^power) of elements p (…, n), for odd powers: an automorphism of the ring."""
    source, negative = _places(elements.shape[-1], power)
    out = elements[..., source]
    return np.where(negative, np.negative(out), out)


def uniform(seed: bytes, what: str, count: int, degree: int) -> np.ndarray:
    """Elements (count, n) uint64, uniform modulo 2^64: SHAKE-128 of the seed and of what they are for."""
    stream = hashlib.shake_128(seed + what.encode()).digest(8 * count * degree)
    return np.frombuffer(stream, "<u8").reshape(count, degree)


def ternary(count: int) -> np.ndarray:
    """int64 (count,), uniform on {-1, 0, 1}: bytes modulo 3, of which 255, the one too many, is drawn again."""
    drawn = np.empty(0, np.uint8)
    while len(drawn) < count:
        fresh = np.frombuffer(os.urandom(count - len(drawn) + 64), np.uint8)
        drawn = np.concatenate([drawn, fresh[fresh < 255]])
    return drawn[:count].astype(np.int64) % 3 - 1


@cache
def gaussian_thresholds(deviation: float = DEVIATION) -> tuple[int, np.ndarray]:
    """(m, thresholds (2 m,) uint64): a uniform u < 2^64 is -m plus the number of thresholds that are at most u.

    The discrete Gaussian, weights exp(-k^2 / 2 sigma^2), cut off at 10 sigma (2^-75), to 2^-64 in every probability.
    """
    most = int(10 * deviation)
    with localcontext() as context:
        context.prec = 50
        weights = [(-(Decimal(k) ** 2) / (2 * Decimal(deviation) ** 2)).exp() for k in range(-most, most + 1)]
        whole, below, thresholds = sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            below += weight
            thresholds.append(int(below / whole * 2**64))
    return most, np.array(thresholds, np.uint64)


def errors(count: int) -> np.ndarray:
    """int64 (count,) from the discrete Gaussian, by the operating system's generator."""
    most, thresholds = gaussian_thresholds()
    drawn = np.frombuffer(os.urandom(8 * count), np.uint64)
    return np.searchsorted(thresholds, drawn, side="right").astype(np.int64) - most
