"""How often SPU's Cheetah gets a batch of 8,192 products wrong, with `mul_lsb_error` on and off.

    python -m benchmarks.product_faults --seconds 600

Squares a million ones per run in two processes and counts the batches whose result is not one. Appends a line per
setting to results/two_party/product_faults.csv. `failure_probability` is what the protocol's parameters predict; its
docstring has the derivation.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from aero import records
from aero.records import csv_text, write_text
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

# SPU 0.9.5, mpc/cheetah/arith/cheetah_mul.cc and simd_mul_prot.cc, for FM64.
DEGREE = 8192
FIRST_PRIME_BITS = 60
PLAIN_BITS = {True: 47, False: 45}
PLAIN_MODULI = {True: 3, False: 4}
DROPPED_BITS = {True: 32 + 56, False: 32 + 52}
FLOOD_BITS = 40
ERROR_STD = 3.19
PRODUCTS = 128 * DEGREE
FILE = Path("results/two_party/product_faults.csv")


def failure_probability(mul_lsb_error: bool, threshold: float | None = None) -> float:
    """Probability that one response ciphertext decrypts wrongly, and with it all its 8,192 products.

    The response has one modulus q0 of 60 bits, the plaintext one t of 47 bits (45 with mul_lsb_error off), so a
    coefficient is right if its noise stays below q0 / (2 t). The noise is the sum of: the low log2(q0/t) - 2 bits of
    c0, which are cut off to save bytes (uniform); the flooding noise, what is left of it after the modulus is switched
    (uniform); a fresh public-key encryption of zero, u e + e1 + s e2 with u, s uniform in {-1, 0, 1}, and the rounding
    of the switch (normal). One wrong coefficient spoils every slot, because slots are the coefficients' transform.
    threshold: another one than q0 / (2 t), for tests.
    """
    plain = PLAIN_BITS[mul_lsb_error]
    delta_bits = FIRST_PRIME_BITS - plain
    cut = 2.0 ** (delta_bits - 2) - 1
    flood_bits = FLOOD_BITS + (plain - 1) + math.ceil(math.log2(2 * math.sqrt(DEGREE) * 6 * ERROR_STD))
    flood = 2.0 ** (flood_bits - 1 - DROPPED_BITS[mul_lsb_error])
    ternary = DEGREE * 2 / 3
    std = math.sqrt(2 * ternary * ERROR_STD**2 + ERROR_STD**2 + (ternary + 1) / 12)
    threshold = 2.0 ** (delta_bits - 1) if threshold is None else threshold
    total = 0.0
    grid = 400
    for i in range(grid):
        for j in range(grid):
            low = cut * (i + 0.5) / grid
            shift = flood * (2 * (j + 0.5) / grid - 1)
            total += 0.5 * math.erfc((threshold - low - shift) / std / math.sqrt(2))
    return -math.expm1(DEGREE * math.log1p(-total / grid**2))


def square(x: Any) -> Any:
    return x * x


def task(party: Party, given: dict[str, Any]) -> dict[str, Any]:
    """Square ones until the time is up; the client counts wrong batches, and tells the server when to stop."""
    party.put("x", np.ones(PRODUCTS, np.float32) if party.rank == CLIENT else None, (PRODUCTS,), from_rank=CLIENT)
    began, runs, wrong, sent = time.monotonic(), 0, 0, 0
    while True:
        profile = party.run(square, ["x"], ["y"])
        runs, sent = runs + 1, profile.bytes_sent + profile.bytes_received
        y = party.reveal("y", to=CLIENT)
        if y is not None:
            wrong += int((np.abs(y - 1) > 0.01).reshape(-1, DEGREE).any(1).sum())
        over = np.array([time.monotonic() - began > given["seconds"]], np.float32) if party.rank == CLIENT else None
        party.put("over", over, (1,), from_rank=CLIENT)
        answer = party.reveal("over", to=SERVER)
        if party.rank == CLIENT:
            if over[0]:
                break
        elif answer[0] > 0.5:
            break
    return {"runs": runs, "wrong": wrong, "bytes": sent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="for each of the two settings")
    seconds = parser.parse_args().seconds
    for option in (True, False):
        client, _ = run_parties(task, {"seconds": seconds}, {"seconds": seconds}, Settings(mul_lsb_error=option))
        batches = client["runs"] * PRODUCTS // DEGREE
        ciphertexts = batches * PLAIN_MODULI[option]
        row = {
            "mul_lsb_error": option,
            "products": client["runs"] * PRODUCTS,
            "ciphertexts": ciphertexts,
            "wrong_batches": client["wrong"],
            "predicted_wrong": f"{ciphertexts * failure_probability(option):.3g}",
            "bytes_per_product": f"{client['bytes'] / PRODUCTS:.1f}",
            "commit": records.commit(),
        }
        before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
        write_text(FILE, before + csv_text(list(row), [row], header=not before))
        print(row)


if __name__ == "__main__":
    main()
