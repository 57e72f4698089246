"""The prediction of `benchmarks.product_faults` against a simulation, and the kept counts against the prediction."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from benchmarks.product_faults import failure_probability

KEPT = Path(__file__).parents[2] / "results/two_party/product_faults.csv"


def test_prediction_is_the_tail_of_the_simulated_noise():
    """Noise drawn as the protocol does, at 3/4 of the threshold so that a simulation sees its tail."""
    rng = np.random.default_rng(0)
    n = 2_000_000
    # u e + s e2 has 8,192 terms of +-1 or 0 times a normal one in each sum: normal itself.
    noise = rng.integers(0, 2048, n) + rng.uniform(-512, 512, n) + rng.normal(0, 334.1, n)
    simulated = (noise > 3072).mean()
    assert 1e-5 < simulated < 1e-3
    per_coefficient = -math.expm1(math.log1p(-failure_probability(True, threshold=3072)) / 8192)
    assert abs(per_coefficient / simulated - 1) < 0.1


def test_option_fails_and_its_absence_does_not():
    assert 3e-5 < failure_probability(True) < 4.5e-5
    assert failure_probability(False) < 1e-60


def test_kept_counts_fit_the_prediction():
    rows = {row["mul_lsb_error"]: row for row in csv.DictReader(KEPT.open())}
    assert rows["False"]["wrong_batches"] == "0" and int(rows["False"]["ciphertexts"]) > 40_000
    expected = int(rows["True"]["ciphertexts"]) * failure_probability(True)
    below = [sum(math.exp(-expected) * expected**i / math.factorial(i) for i in range(k + 1)) for k in range(50)]
    lower, upper = (next(k for k in range(50) if below[k] > tail) for tail in (0.005, 0.995))
    assert lower <= int(rows["True"]["wrong_batches"]) <= upper
