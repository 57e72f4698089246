"""The client reads rows of the server's embedding table by encrypted queries: the arithmetic of `lattice_lookup`.

T: tokens, V: vocabulary, d: width, n: degree of the ring R = Z[X] / (X^n + 1), q = 2^53, f: fraction bits.

SimplePIR (Henzinger et al., USENIX Security 2023) over the ring. For every token t the client samples a ternary secret
s and noise e and sends b = A s + e + 2^28 u_t mod q, u_t being the one-hot vector of t. A (V, n) is public: the stacked
matrices of multiplication by public elements a_1, a_2, … of R, which both parties expand from a seed that the client
draws for each session, so that no attack can be prepared once for all clients. The server, which holds the table
D (V, d), computes D^T b = (D^T A) s + D^T e + 2^28 x_t. Unlike in SimplePIR the hint D^T A (d, n), which would reveal
the table, stays with the server. SPU, or `matmul` with `lattice_rest`, multiplies it by the client's s, in shares.
Subtracting that leaves shares of 2^28 x_t plus small noise, modulo 2^53. All values are kept scaled by 2^11, modulo
2^64, as SPU keeps shares.

Secrets and noise must be sampled anew for every token of every pass: two queries with the same s would differ by two
one-hot vectors and small noise, which reveals both tokens.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from aero.two_party.lattice.polynomials import DEVIATION, gaussian, inverse_spectrum, limbs, spectrum, ternary, uniform
from aero.two_party.runtime.settings import FRACTION_BITS

DEGREE, MODULUS_BITS = 2048, 53
"""n and log2 q: 128 bits of security with uniform ternary secrets and noise of deviation 3.2 ("Security Guidelines
for Implementing Homomorphic Encryption", IACR ePrint 2024/463; the HomomorphicEncryption.org standard of 2018 allows
54)."""
SENT_BITS = 48
"""The highest bits of b are sent: 6 bytes an entry. The dropped bits add to the noise."""
SCALE_BITS = 39
TRUNCATIONS = (16, 16, 7)
"""Modulo 2^64, x_t is scaled by 2^39 over fixed point; SPU removes that by public factors 2^-16, 2^-16, 2^-7. A smaller
factor would make SPU multiply by 2^18 first, for which the ring has no room."""
HINT_SLICE, TOKENS_AT_ONCE = 1024, 16
"""Rows of the hint in one multiplication by SPU, to bound its memory; tokens in one message of queries, 4.8 MB for
50,257 entries."""
LEAST_VOCABULARY = 2 * DEGREE
"""From here on multiplying by the hint, n entries deep, costs at most half of multiplying by the table, V deep."""
NOISE_BUDGET = 4.0
"""Largest allowed standard deviation of an entry's noise, in units of the fixed point's last bit."""
SEED = 32
_RING_BITS, _LIMB = 64, 24
_AT_ONCE = 64


def public_elements(seed: bytes, blocks: int, degree: int = DEGREE) -> np.ndarray:
    """a_1 … (blocks, n) uint64, uniform below q, from a session's seed."""
    return uniform(seed, "lookup", blocks, degree) & np.uint64((1 << MODULUS_BITS) - 1)


@lru_cache(maxsize=4)
def _limb_spectra(seed: bytes, blocks: int, degree: int, bits: int) -> tuple[np.ndarray, ...]:
    """Spectra (blocks, n/2) of the public elements' limbs of `bits` bits, lowest first."""
    elements, mask = public_elements(seed, blocks, degree), np.uint64((1 << bits) - 1)
    shifts = range(0, MODULUS_BITS, bits)
    return tuple(spectrum(((elements >> np.uint64(shift)) & mask).astype(np.float64)) for shift in shifts)


def encrypt(ids: np.ndarray, vocabulary: int, seed: bytes, degree: int = DEGREE) -> tuple[np.ndarray, bytes]:
    """Secrets (T, n) int64 and the queries, 6 bytes for each of T x V entries, for tokens `ids` (T,)."""
    tokens, blocks = len(ids), -(-vocabulary // degree)
    secrets = ternary(tokens * degree).reshape(tokens, degree)
    transforms = spectrum(secrets.astype(np.float64))
    query = np.empty((tokens, blocks * degree), np.uint64)
    # 27 bits times 2,048 ternary entries: far below what 53 bits of a float hold.
    for block, parts in enumerate(zip(*_limb_spectra(seed, blocks, degree, 27), strict=True)):
        low, high = (inverse_spectrum(limb * transforms).astype(np.uint64) for limb in parts)
        query[:, block * degree : (block + 1) * degree] = low + (high << np.uint64(27))
    query = query[:, :vocabulary] + gaussian(tokens * vocabulary).reshape(tokens, vocabulary).astype(np.uint64)
    query[np.arange(tokens), ids] += np.uint64(1 << (SCALE_BITS - _RING_BITS + MODULUS_BITS))
    cut = MODULUS_BITS - SENT_BITS
    query += np.uint64(1 << (cut - 1))  # to the nearest
    query >>= np.uint64(cut)
    return secrets, query.astype("<u8").view(np.uint8).reshape(tokens, vocabulary, 8)[..., :6].tobytes()


def noise_of(table: np.ndarray) -> float:
    """The largest standard deviation of the noise of an entry of D^T b, in units of the fixed point's last bit."""
    cut = 2.0 ** (MODULUS_BITS - SENT_BITS)
    deviation = (DEVIATION**2 + cut**2 / 12) ** 0.5  # and that of the dropped bits, which is uniform
    columns = np.sqrt(np.square(table, dtype=np.float64).sum(0)).max() * 2.0**FRACTION_BITS
    return float(columns * deviation * 2.0 ** (_RING_BITS - MODULUS_BITS - SCALE_BITS))


def fits(table: np.ndarray) -> bool:
    """Whether the noise is within NOISE_BUDGET and entries are within what SPU can truncate: 2^62."""
    first_factor = FRACTION_BITS - TRUNCATIONS[0]  # 2^-16 is this power of two in fixed point
    most = 2.0 ** (_RING_BITS - 2 - SCALE_BITS - FRACTION_BITS - first_factor)
    largest = float(np.abs(table).max(initial=0.0))
    return largest <= 0.99 * most and noise_of(table) <= NOISE_BUDGET


class Table:
    """The server's table D (V, d), and its hint (n, d): 2^11 (D^T A)^T modulo 2^64, as secret as the table."""

    def __init__(self, values: np.ndarray, seed: bytes, degree: int = DEGREE) -> None:
        """Computes the hint, which takes seconds. ValueError unless the table `fits`."""
        if not fits(values):
            raise ValueError("the embedding is too large for a lookup; compute without it (tuned-lattice_lookup)")
        vocabulary, width = values.shape
        blocks = -(-vocabulary // degree)
        self.values, self.hint = values, np.empty((degree, width), np.uint64)
        for low in range(0, width, _AT_ONCE):
            columns = _fixed(values[:, low : low + _AT_ONCE])
            padded = np.zeros((columns.shape[1], blocks * degree), np.int64)
            padded[:, :vocabulary] = columns.T
            self.hint[:, low : low + _AT_ONCE] = _times_public(padded.reshape(-1, blocks, degree), seed).T
        self.hint <<= np.uint64(_RING_BITS - MODULUS_BITS)

    def select(self, queries: np.ndarray) -> np.ndarray:
        """D^T b (T, d) modulo 2^64 for queries (T, V, 6) uint8, by exact float64 multiplication of limbs."""
        tokens, vocabulary = queries.shape[:2]
        largest = max(1.0, float(np.abs(self.values).max()) * 2.0**FRACTION_BITS)
        rows = max(1, int(2.0 ** (53 - _LIMB) / (largest + 1)))
        found = np.zeros((2 * tokens, self.values.shape[1]), np.int64)
        for low in range(0, vocabulary, rows):
            digits = np.moveaxis(queries[:, low : low + rows].astype(np.float64), 2, 0)  # six (T, rows)
            halves = np.concatenate([a + 2.0**8 * b + 2.0**16 * c for a, b, c in (digits[:3], digits[3:])])
            exact = halves @ _fixed(self.values[low : low + rows]).astype(np.float64)
            found += exact.astype(np.int64)
        low_half, high_half = found.view(np.uint64).reshape(2, tokens, -1)
        return (low_half + (high_half << np.uint64(_LIMB))) << np.uint64(_RING_BITS - SENT_BITS)


def _fixed(values: np.ndarray) -> np.ndarray:
    """Fixed point, int64."""
    return np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)


def _times_public(columns: np.ndarray, seed: bytes) -> np.ndarray:
    """Columns of D (c, blocks, n) times A: (c, n) uint64 modulo 2^53.

    A row of D^T A is sum_k D_k(X) a_k(1/X), whose spectrum is that of D_k times the conjugate of a_k's.
    """
    blocks, degree = columns.shape[1:]
    found = np.zeros((len(columns), degree), np.uint64)
    for shift, limb in zip((0, 11), limbs(columns, (11, 53)), strict=True):
        transforms = spectrum(limb)
        for place, public in enumerate(_limb_spectra(seed, blocks, degree, 18)):
            product = inverse_spectrum(np.einsum("ckh,kh->ch", transforms, public.conj()))
            found += product.astype(np.uint64) << np.uint64(shift + 18 * place)
    return found
