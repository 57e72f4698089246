"""The theory of `variance_sensitivity` by hand, by finite differences and by draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from aero.config import SensitivityTheoryParameters
from aero.sensitivity import sampling, theory, theory_checks

GRID = [(2, 0.1), (2, 2.0), (5, 1.0), (20, 0.5), (20, 3.0), (200, 2.0), (768, 8.0)]


def two_logits(sigma: float, value) -> float:
    """E[value(d)] for N = 2, where z_1 - z_2 = d is normal with variance 2 sigma^2: a plain sum over d."""
    step, total = 0.005, 0.0
    for index in range(-2000, 2001):
        g = index * step
        total += value(math.sqrt(2) * sigma * g) * math.exp(-g * g / 2) * step / math.sqrt(2 * math.pi)
    return total


def binary_entropy(d: float) -> float:
    p = 1 / (1 + math.exp(-d))
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


@pytest.mark.parametrize("sigma", [0.1, 3.0])
def test_two_positions_by_one_integral(sigma: float) -> None:
    found = theory.softmax_entropy(sigma, 2)
    assert found.entropy == pytest.approx(two_logits(sigma, binary_entropy), abs=1e-9)
    # Var_p(z) of two points d apart is p (1 - p) d^2.
    variance = two_logits(sigma, lambda d: d * d / (2 + math.exp(d) + math.exp(-d)))
    assert found.derivative == pytest.approx(-variance / (2 * sigma**2), abs=1e-9)
    assert found.appendix_derivative == pytest.approx(-variance / sigma, abs=1e-9)


@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_one_position_contradicts_the_printed_derivative(sigma: float) -> None:
    """The theorem's derivative fails the simplest case: H is 0 for every sigma, its printed derivative -sigma^2."""
    found = theory.softmax_entropy(sigma, 1)
    assert found.entropy == pytest.approx(0, abs=1e-9)
    assert found.derivative == pytest.approx(0, abs=1e-9)
    assert found.theorem_derivative == pytest.approx(-(sigma**2), rel=1e-9)
    assert theory.entropy_expansion(sigma, 1) == 0


@pytest.mark.parametrize(("positions", "sigma"), GRID)
def test_the_derivative_is_the_slope_of_the_entropy(positions: int, sigma: float) -> None:
    step = 1e-4 * sigma**2
    above, below = (theory.softmax_entropy(math.sqrt(sigma**2 + s), positions).entropy for s in (step, -step))
    slope = (above - below) / (2 * step)
    found = theory.softmax_entropy(sigma, positions)
    assert found.derivative == pytest.approx(slope, rel=1e-4, abs=1e-7)
    assert abs(found.theorem_derivative - slope) > 0.1 * abs(slope)
    if abs(2 * sigma - 1) > 0.1:  # where the misprinted factor 2 sigma is 1
        assert abs(found.appendix_derivative - slope) > 0.1 * abs(slope)


@pytest.mark.parametrize("positions", [2, 3, 20, 768])
def test_the_expansion_to_second_order(positions: int) -> None:
    """The remainder shrinks as sigma^4, with the coefficient of docs/variance_sensitivity.md."""
    remainders = {
        sigma: theory.softmax_entropy(sigma, positions).entropy - theory.entropy_expansion(sigma, positions)
        for sigma in (0.1, 0.2)
    }
    assert remainders[0.2] / remainders[0.1] == pytest.approx(2**4, rel=0.1)
    coefficient = 3 * (positions - 1) / (4 * positions**2)
    assert remainders[0.1] / 0.1**4 == pytest.approx(coefficient, rel=0.1)


@pytest.mark.parametrize(("positions", "sigma"), [(3, 0.7), (50, 6.0)])
def test_draws_agree_with_quadrature(positions: int, sigma: float) -> None:
    sample = sampling.sample_softmax(sigma, positions, 20_000, np.random.default_rng(5))
    exact = theory.softmax_entropy(sigma, positions)
    for drawn, expected in (
        (sample["entropy"], exact.entropy),
        (sample["slope"], exact.derivative),
    ):
        assert abs(drawn.mean - expected) < 4.5 * drawn.error
        assert 0 < drawn.error < 0.05 * max(abs(expected), 0.1)


# ReLU kernel ------------------------------------------------------------------------------------------------------


def test_relu_entropy_for_many_dimensions() -> None:
    """E[H] = log N - (N-1)/N pi (pi - 1) / (2 D) + O(D^-2)."""
    sample = sampling.sample_relu(256, 20, 4000, np.random.default_rng(1))
    derived = math.log(20) - 19 / 20 * theory.RELU_VARIANCE / (2 * 256)
    printed = math.log(20) - theory.RELU_VARIANCE_PRINTED / (2 * 256)
    assert pytest.approx(math.pi * (math.pi - 1)) == theory.RELU_VARIANCE
    assert abs(sample["entropy"].mean - derived) < 3 * sample["entropy"].error + 4 / 256**2
    assert abs(sample["entropy"].mean - printed) > 10 * sample["entropy"].error
    assert sample["square"].mean * 256 == pytest.approx(0.95 * theory.RELU_VARIANCE, rel=0.02)


@pytest.mark.parametrize(("dims", "positions"), [(1, 2), (3, 20)])
def test_undefined_relu_rows(dims: int, positions: int) -> None:
    """By hand for D = 1, N = 2: 1 - (1/2)(3/4) = 5/8."""
    known = {(1, 2): 5 / 8, (3, 20): ((1 + 2**-20) / 2) ** 3}
    assert theory.relu_undefined(dims, positions) == pytest.approx(known[dims, positions])
    sample = sampling.sample_relu(dims, positions, 20_000, np.random.default_rng(4))["undefined"]
    assert abs(sample.mean - known[dims, positions]) < 4.5 * sample.error


# Norms, entropies, bounds -----------------------------------------------------------------------------------------


def test_ranges_by_hand() -> None:
    assert theory.visible_keys("full", 3).tolist() == [3, 3, 3]
    assert theory.visible_keys("causal", 3).tolist() == [1, 2, 3]
    assert theory.norm_range(theory.visible_keys("full", 20)) == pytest.approx((1, math.sqrt(20)))
    assert theory.norm_range(theory.visible_keys("causal", 3)) == pytest.approx((math.sqrt(11 / 6), math.sqrt(3)))
    assert theory.entropy_maximum(theory.visible_keys("full", 20)) == pytest.approx(math.log(20))
    assert theory.entropy_maximum(theory.visible_keys("causal", 4)) == pytest.approx(math.log(24) / 4)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_no_attention_matrix_leaves_its_range(mask: str) -> None:
    """Random rows of every sharpness; uniform and one-hot rows reach both ends."""
    positions, generator = 12, torch.Generator().manual_seed(1)
    seen = torch.ones(positions, positions, dtype=torch.bool)
    if mask == "causal":
        seen = seen.tril()
    keys = theory.visible_keys(mask, positions)
    assert seen.sum(-1).tolist() == keys.tolist()
    least, greatest = theory.norm_range(keys)
    for sharpness in (0.0, 0.1, 1.0, 10.0, 1000.0):
        logits = sharpness * torch.randn(50, positions, positions, dtype=torch.float64, generator=generator)
        p = logits.masked_fill(~seen, -math.inf).softmax(-1)
        norms = torch.linalg.matrix_norm(p)
        entropies = -torch.special.xlogy(p, p).sum(-1).mean(-1)
        assert ((norms >= least - 1e-12) & (norms <= greatest + 1e-12)).all()
        assert ((entropies >= -1e-12) & (entropies <= theory.entropy_maximum(keys) + 1e-12)).all()
        assert (norms >= math.sqrt(positions) * (-entropies / 2).exp() - 1e-12).all()
        if not sharpness:
            assert norms[0].item() == pytest.approx(least)
    assert norms[0].item() == pytest.approx(greatest, rel=1e-3)


@pytest.mark.parametrize("positions", [2, 30])
def test_no_row_leaves_the_bounds_of_its_entropy(positions: int) -> None:
    generator = np.random.default_rng(8)
    p = np.concatenate([generator.dirichlet(np.full(positions, a), 300) for a in (0.05, 0.3, 1.0, 20.0)])
    entropies = -np.sum(p * np.log(np.where(p > 0, p, 1)), -1)
    norms = np.linalg.norm(p, axis=-1)
    for entropy, norm in zip(entropies, norms, strict=True):
        assert theory.least_row_norm(entropy) - 1e-9 <= norm <= theory.greatest_row_norm(entropy, positions) + 1e-9
    peaked = np.array([0.6] + [0.4 / (positions - 1)] * (positions - 1))  # lies on the upper boundary
    entropy = -np.sum(peaked * np.log(peaked))
    assert theory.greatest_row_norm(entropy, positions) == pytest.approx(np.linalg.norm(peaked))
    assert theory.least_row_norm(math.log(positions)) == pytest.approx(1 / math.sqrt(positions))
    assert theory.greatest_row_norm(0.0, positions) == pytest.approx(1)


def test_controlled_logits_have_the_given_variance() -> None:
    for sigma in (0.5, 3.0):
        sample, weights = sampling.sample_controlled("softmax", sigma, 100, 16, 6, seed=1)
        # Definition 5.2 divides by N, and N keys have N - 1 degrees of freedom.
        assert abs(sample["variance"].mean - 0.99 * sigma**2) < 5 * sample["variance"].error
        expected = theory.softmax_entropy(sigma, 100).entropy
        assert abs(sample["entropy"].mean - expected) < 5 * sample["entropy"].error + 0.02
        assert weights.sum() == pytest.approx(1)
    flat = [sampling.sample_controlled("relu", s, 100, 16, 3, seed=1)[0]["entropy"].mean for s in (0.5, 8.0)]
    assert flat[0] == pytest.approx(flat[1], rel=1e-4)  # up to the kernel's epsilon


def test_tables_and_summary_are_complete() -> None:
    """The smallest grids: what the draws give agrees with the formulas beside it."""
    settings = SensitivityTheoryParameters(
        seed=1,
        normals=100_000,
        softmax={"positions": (2, 20), "sigmas": (0.5, 2.0)},
        relu={"positions": (20,), "dimensions": (3, 64)},
        controlled={
            "positions": 20,
            "dimensions": 8,
            "matrices": 2,
            "sigmas": (1.0, 8.0),
            "cores": ("softmax", "relu"),
        },
        dirichlet={"positions": 20, "alphas": (0.1, 0.001), "rows": 50},
    )
    tables, summary = theory_checks.results(settings)
    for line in tables["softmax"]:
        assert abs(line["entropy"] - line["entropy_quadrature"]) < 4.5 * line["entropy_error"]
        assert abs(line["slope"] - line["slope_quadrature"]) < 4.5 * line["slope_error"] + 1e-3
    assert {(line["dimensions"], line["positions"]) for line in tables["relu"]} == {(3, 20), (64, 20)}
    assert len(tables["weights"]) == 2 * 2 * 20 and len(tables["dirichlet"]) == 2 * 50
    assert all(line["outside_bounds"] == 0 for line in summary["dirichlet"])
    assert all(line["outside"] == 0 for line in summary["ranges"])
    assert summary["relu_scale_difference"] < 1e-9
