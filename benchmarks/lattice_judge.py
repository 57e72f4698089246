"""Microsoft SEAL judges the project's own lattice code: the same multiplication, its noise, its parameters.

    pip install --no-deps --target /tmp/judge tenseal==0.3.18
    PYTHONPATH=/tmp/judge:. python -m benchmarks.lattice_judge

SEAL (through TenSEAL, not a dependency) encrypts the same matrix in the same coefficients by BFV, multiplies by the
same polynomials and packs by the same automorphisms. It computes exactly modulo 2^32, so the difference of the two
results is our noise. Ciphertexts cannot be exchanged: SEAL's modulus is a product of primes, ours is 2^64.
Writes results/two_party/lattice_judge.csv; two minutes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ks_2samp, kstest

from aero import records
from aero.errors import UserError, run_main
from aero.two_party.lattice import lookup, matmul
from aero.two_party.lattice.matmul import DEGREE, LEVELS, PACKED, RESULT_BITS
from aero.two_party.lattice.polynomials import DEVIATION
from aero.two_party.runtime.settings import FRACTION_BITS
from benchmarks.timing import write_lines

PATH = Path("results/two_party/lattice_judge.csv")
LAYOUT = matmul.Layout(128, 768, 32)
PLAIN_BITS, ANSWERS = 32, 240
SHIFT = RESULT_BITS - FRACTION_BITS - LEVELS
"""Our result is scaled by this many bits over SEAL's."""


def seal() -> Any:
    try:
        import tenseal.sealapi
    except ImportError:
        remedy = "pip install --no-deps --target /tmp/judge tenseal==0.3.18, then PYTHONPATH=/tmp/judge:."
        raise UserError(f"tenseal is missing; {remedy}") from None
    return tenseal.sealapi


def by_seal(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, int]:
    """16 X W (rows, columns) modulo 2^PLAIN_BITS, and by how many bits its noise exceeds that of a query."""
    api, wide = seal(), LAYOUT.wide
    parameters, level = api.EncryptionParameters(api.SCHEME_TYPE.BFV), api.SEC_LEVEL_TYPE.TC128
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(api.CoeffModulus.BFVDefault(DEGREE, level))
    parameters.set_plain_modulus(1 << PLAIN_BITS)
    context = api.SEALContext(parameters, True, level)
    keys, switching, evaluator = api.KeyGenerator(context), api.GaloisKeys(), api.Evaluator(context)
    keys.create_galois_keys([DEGREE // (1 << level) + 1 for level in range(LEVELS)], switching)
    encryptor, decryptor = api.Encryptor(context, keys.secret_key()), api.Decryptor(context, keys.secret_key())

    def polynomial(coefficients: dict[int, int]) -> Any:
        """From coefficients by power; negative powers wrap with a minus."""
        reduced = {k % DEGREE: (v if k >= 0 else -v) % (1 << PLAIN_BITS) for k, v in coefficients.items()}
        return api.Plaintext(" + ".join(f"{reduced[k]:X}x^{k}" for k in sorted(reduced, reverse=True) if reduced[k]))

    def made(operation: Any, *arguments: Any) -> Any:
        operation(*arguments, result := api.Ciphertext())
        return result

    queries = []
    for rows in np.split(x, LAYOUT.blocks, 1):
        places = {PACKED * wide * i + c: int(value) for (i, c), value in np.ndenumerate(rows)}
        queries.append(made(encryptor.encrypt_symmetric, polynomial(places)))
    sums = []
    for columns in np.split(weights, PACKED, 1):
        taps = [
            polynomial({PACKED * v - c: int(value) for (c, v), value in np.ndenumerate(part)})
            for part in np.split(columns, LAYOUT.blocks)
        ]
        products = [made(evaluator.multiply_plain, *pair) for pair in zip(queries, taps, strict=True)]
        sums.append(made(evaluator.add_many, products))
    for level in reversed(range(LEVELS)):
        half, monomial, packed = len(sums) // 2, polynomial({1 << level: 1}), []
        for one, other in zip(sums[:half], sums[half:], strict=True):
            moved = made(evaluator.multiply_plain, other, monomial)
            difference = made(evaluator.sub, one, moved)
            turned = made(evaluator.apply_galois, difference, DEGREE // (1 << level) + 1, switching)
            packed.append(made(evaluator.add_many, [one, moved, turned]))
        sums = packed
    decryptor.decrypt(sums[0], plain := api.Plaintext())
    found = np.array([[plain.data(k) if k < plain.coeff_count() else 0 for k in range(DEGREE)]], np.uint64)
    growth = decryptor.invariant_noise_budget(queries[0]) - decryptor.invariant_noise_budget(sums[0])
    return LAYOUT.wanted(found, LAYOUT.rows), growth


def security(degree: int, modulus_bits: float) -> float:
    """Bits of RLWE with uniform ternary secrets against the primal uSVP attack, by the cost model of the
    HomomorphicEncryption.org standard: 0.292 beta + 16.4 + log2(8 d)."""
    ratio = math.log2(DEVIATION / (2 / 3) ** 0.5)  # of noise to secret
    for beta in range(60, 2000):
        root = math.log2((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)) / (2 * (beta - 1))
        for samples in range(degree // 4, 2 * degree, 16):
            d = samples + degree + 1
            found = (2 * beta - d - 1) * root + (modulus_bits * samples + ratio * degree) / d
            if math.log2(beta * DEVIATION**2) / 2 <= found:
                return round(0.292 * beta + 16.4 + math.log2(8 * d), 1)
    return math.inf


def views(public: matmul.PublicMaterial, query: bytes, key: matmul.SecretKey, values: np.ndarray) -> np.ndarray:
    """What a client sees of ANSWERS answers to one query, as fractions of 1: `a` halves, decryptions."""
    matrix, seen = matmul.Matrix(values), []
    for _ in range(ANSWERS):
        (answer,), _ = matrix.answer(public, [query], LAYOUT)
        high = np.frombuffer(answer[: 6 * DEGREE], np.uint8).reshape(-1, 6)[:, 2:].copy().view("<u4").reshape(-1)
        seen.append([high / 2.0**32, key.decrypt(answer, LAYOUT, LAYOUT.rows).reshape(-1) / 2.0**64])
    return np.concatenate(seen, 1)


def main(_: list[str]) -> None:
    random, lines = np.random.default_rng(0), []
    for name, degree, bits in (("matmul", DEGREE, 64), ("lookup", lookup.DEGREE, lookup.MODULUS_BITS)):
        most = seal().CoeffModulus.MaxBitCount(degree, seal().SEC_LEVEL_TYPE.TC128)
        lines.append((f"{name}: log2 q at n={degree}", bits, most, "the most for 128 bits, by SEAL"))
        both = security(degree, bits), security(degree, most)
        lines.append((f"{name}: security in bits, primal uSVP", *both, "at SEAL's largest q"))
    values = (random.standard_normal((LAYOUT.inner, LAYOUT.columns)) * LAYOUT.inner**-0.5).astype(np.float32)
    share = random.integers(0, 2**64, (LAYOUT.rows, LAYOUT.inner), np.uint64)
    key = matmul.SecretKey()
    public, query = (
        matmul.PublicMaterial(key.public_material),
        key.encrypt(share, LAYOUT, matmul.RESULT_BITS - FRACTION_BITS),
    )
    (answer,), own = matmul.Matrix(values).answer(public, [query], LAYOUT)
    integers = np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)
    judged, growth = by_seal(share, integers)
    unused = 64 - PLAIN_BITS - SHIFT  # bits of ours that SEAL's modulus does not reach
    difference = own + key.decrypt(answer, LAYOUT, LAYOUT.rows) - (judged << np.uint64(SHIFT))
    noise = ((difference << np.uint64(unused)).view(np.int64) >> unused) * 2.0**-RESULT_BITS
    wrong, largest = 2.0 ** (PLAIN_BITS + SHIFT - RESULT_BITS - 1), round(np.abs(noise).max(), 3)
    lines.append(("matmul: largest difference", largest, 0, f"units of the last bit; a bug makes up to {wrong:g}"))
    both = round(noise.std(), 3), round(matmul.noise_of(values, LAYOUT.wide), 3)
    lines.append(("matmul: deviation of the noise", *both, "units of the last bit; our formula"))
    formula = round(math.log2(PACKED * (LAYOUT.wide * np.square(integers).sum(0).max()) ** 0.5), 1)
    lines.append(("matmul: growth of the noise", formula, growth, "bits by our formula; by SEAL"))
    seen, zeros = (views(public, query, key, one) for one in (values, np.zeros_like(values)))
    for index, name in enumerate(("`a` halves", "decryptions")):
        uniform, same = kstest(seen[index], "uniform").pvalue, ks_2samp(seen[index], zeros[index]).pvalue
        lines.append((f"matmul: {name} uniform", round(uniform, 3), "", "p, Kolmogorov-Smirnov"))
        lines.append((f"matmul: {name} alike for weights and for zeros", round(same, 3), "", "p, two samples"))
    columns = ("check", "value", "reference", "what", "commit")
    write_lines(PATH, columns, [dict(zip(columns, (*line, records.commit()), strict=True)) for line in lines])
    print(PATH.read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_main(main)
