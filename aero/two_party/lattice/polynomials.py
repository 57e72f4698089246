"""Arithmetic of the ring R = Z[X] / (X^n + 1) on NumPy arrays, and sampling of RLWE secrets and noise.

Coefficients are kept modulo 2^64, as SPU keeps shares. Polynomials are multiplied by float64 FFTs of limbs, whose exact
results are integers; a result too far from an integer is an ArithmeticError.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import cache

import numpy as np

DEVIATION = 3.2
"""Standard deviation of the noise, as in the homomorphic encryption standard."""
LIMBS = (22, 21, 21)
"""Bits of the limbs of an element of 64 bits, lowest first."""
FINE_LIMBS = (16, 16, 16, 16)
"""The same for multiplication by entries of 24 bits, for which larger limbs are not exact."""


@cache
def _twist(degree: int) -> np.ndarray:
    return np.exp(1j * np.pi * np.arange(degree // 2) / degree)


def spectrum(polynomials: np.ndarray) -> np.ndarray:
    """Values (…, n/2) of real polynomials (…, n) at half of the roots of X^n + 1; the rest are their conjugates."""
    half = polynomials.shape[-1] // 2
    folded = polynomials[..., :half] + 1j * polynomials[..., half:]
    return np.fft.fft(folded * _twist(2 * half))


def inverse_spectrum(values: np.ndarray) -> np.ndarray:
    """The polynomials (…, n) int64 of spectra (…, n/2). ArithmeticError if float64 is not exact enough."""
    folded = np.fft.ifft(values) * _twist(2 * values.shape[-1]).conj()
    real = np.concatenate([folded.real, folded.imag], -1)
    nearest = np.rint(real)
    # Beyond 2^50 a float has too few fractional bits to show an error.
    if not (np.abs(real - nearest).max() < 0.25 and np.abs(nearest).max() < 2.0**50):
        raise ArithmeticError("a multiplication of polynomials is not exact in float64; is the matrix's range checked?")
    return nearest.astype(np.int64)


def limbs(values: np.ndarray, cut: Sequence[int] = LIMBS) -> list[np.ndarray]:
    """Integers modulo 2^64 as signed limbs, float64: with LIMBS limb_0 + 2^22 limb_1 + 2^43 limb_2, up to 2^21."""
    rest, found = values.astype(np.uint64).view(np.int64), []
    for bits in cut[:-1]:
        # The sum may wrap at 2^63, as the ring does.
        low = ((rest + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
        found.append(low.astype(np.float64))
        rest = (rest - low) >> bits
    return [*found, rest.astype(np.float64)]


def from_limbs(parts: np.ndarray, cut: Sequence[int] = LIMBS) -> np.ndarray:
    """Integers modulo 2^64 from int64 limbs (limbs, …) of any size."""
    whole = parts.view(np.uint64)
    return sum(limb << np.uint64(sum(cut[:index])) for index, limb in enumerate(whole[1:], 1)) + whole[0]


def limb_spectra(elements: np.ndarray, cut: Sequence[int] = LIMBS) -> np.ndarray:
    """Spectra (limbs, …, n/2) of the limbs of elements (…, n) modulo 2^64."""
    return np.stack([spectrum(limb) for limb in limbs(elements, cut)])


def times_small(elements: np.ndarray, small: np.ndarray) -> np.ndarray:
    """Elements, as `limb_spectra`, times small polynomials, as `spectrum`, modulo 2^64."""
    return from_limbs(inverse_spectrum(elements * small))


def times_monomial(elements: np.ndarray, by: int) -> np.ndarray:
    """Elements (…, n) times X^by, 0 <= by < n."""
    out = np.empty_like(elements)
    n = elements.shape[-1]
    out[..., by:] = elements[..., : n - by]
    np.negative(elements[..., n - by :], out=out[..., :by])
    return out


def automorphism(elements: np.ndarray, power: int) -> np.ndarray:
    """The automorphism X -> X^power, power odd, of elements (…, n)."""
    n = elements.shape[-1]
    exponents = np.arange(n) * power % (2 * n)
    out = np.empty_like(elements)
    out[..., exponents % n] = np.where(exponents < n, elements, np.negative(elements))
    return out


def uniform(seed: bytes, what: str, count: int, degree: int) -> np.ndarray:
    """Elements (count, n) uint64, uniform modulo 2^64: SHAKE-128 of the seed and of their purpose `what`."""
    stream = hashlib.shake_128(seed + what.encode()).digest(8 * count * degree)
    return np.frombuffer(stream, "<u8").reshape(count, degree)


def ternary(count: int) -> np.ndarray:
    """int64 (count,), uniform on {-1, 0, 1}: random bytes below 255 modulo 3."""
    drawn = np.empty(0, np.uint8)
    while len(drawn) < count:
        fresh = np.frombuffer(os.urandom(count - len(drawn) + 64), np.uint8)
        drawn = np.concatenate([drawn, fresh[fresh < 255]])
    return drawn[:count].astype(np.int64) % 3 - 1


@cache
def gaussian_thresholds() -> tuple[int, np.ndarray]:
    """(m, thresholds (2 m,) uint64): a uniform u < 2^64 maps to -m plus the number of thresholds <= u.

    The discrete Gaussian exp(-k^2 / 2 sigma^2), cut at 10 sigma (2^-75), to 2^-64 in every probability.
    """
    most = int(10 * DEVIATION)
    with localcontext() as context:
        context.prec = 50
        weights = [(-(Decimal(k) ** 2) / (2 * Decimal(DEVIATION) ** 2)).exp() for k in range(-most, most + 1)]
        whole = sum(weights)
        thresholds = [int(below / whole * 2**64) for below in itertools.accumulate(weights[:-1])]
    return most, np.array(thresholds, np.uint64)


def gaussian(count: int) -> np.ndarray:
    """int64 (count,) from the discrete Gaussian, by the operating system's generator."""
    most, thresholds = gaussian_thresholds()
    drawn = np.frombuffer(os.urandom(8 * count), np.uint64)
    return np.searchsorted(thresholds, drawn, side="right").astype(np.int64) - most
