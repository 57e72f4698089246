"""Checks of the theory of `variance_sensitivity`: printed formulas, derived ones, and draws, as rows of tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from aero.attention_kernels import attend, core_named, row_entropy
from aero.config import SensitivityTheoryParameters
from aero.sensitivity import sampling, theory

Row = dict[str, Any]
SMALL_POSITIONS, SMALL_WIDTH = 20, 3
"""N and D of the paper's small model."""
HISTOGRAM_CORES, HISTOGRAM_SIGMAS = ("softmax", "relu"), (1.0, 2.0, 4.0, 8.0)
"""What Figure 3 shows."""


def _with_error(sample: sampling.Sample, *names: str) -> Row:
    """Every mean by name, and its standard error beside it."""
    return {key: value for name in names for key, value in zip((name, f"{name}_error"), sample[name], strict=True)}


def results(settings: SensitivityTheoryParameters) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Every table of theory.jsonl by name, and the small results of theory.json."""
    controlled, weights = controlled_rows(settings)
    rows, means = dirichlet_rows(settings)
    tables = {
        "softmax": softmax_rows(settings),
        "relu": relu_rows(settings),
        "controlled": controlled,
        "weights": weights,
        "dirichlet": rows,
    }
    return tables, {
        "dirichlet": means,
        "layernorm": layernorm_rows(settings),
        "ranges": range_rows(settings),
        "relu_scale_difference": relu_scale_difference(settings),
    }


def softmax_rows(settings: SensitivityTheoryParameters) -> list[Row]:
    """Theorem 5.1 for the softmax: entropy and its derivative in sigma^2, over sigma and N."""
    rows = []
    for positions in settings.softmax.positions:
        for index, sigma in enumerate(settings.softmax.sigmas):
            generator = np.random.default_rng([settings.seed, 1, positions, index])
            draws = max(2000, min(200_000, settings.normals // positions))
            sample = sampling.sample_softmax(sigma, positions, draws, generator)
            exact = theory.softmax_entropy(sigma, positions)
            rows.append(
                {"positions": positions, "sigma": sigma, "draws": draws}
                | _with_error(sample, "entropy", "slope")
                | {
                    "entropy_spread": sample["entropy"].error * math.sqrt(draws),
                    "entropy_quadrature": exact.entropy,
                    "expansion_2": theory.entropy_expansion(sigma, positions),
                    "slope_quadrature": exact.derivative,
                    "theorem_slope_quadrature": exact.theorem_derivative,
                    "appendix_slope_quadrature": exact.appendix_derivative,
                }
            )
    return rows


def relu_rows(settings: SensitivityTheoryParameters) -> list[Row]:
    """Theorem 5.1 for the ReLU kernel: entropy, delta^2 and undefined rows, over D and N."""
    table = []
    for positions in settings.relu.positions:
        for dims in settings.relu.dimensions:
            generator = np.random.default_rng([settings.seed, 2, positions, dims])
            rows = max(500, min(100_000, settings.normals // (positions * dims)))
            sample = sampling.sample_relu(dims, positions, rows, generator)
            table.append(
                {"dimensions": dims, "positions": positions, "rows": rows}
                | _with_error(sample, "entropy", "square", "undefined")
                | {
                    "square_derived": (positions - 1) / positions * theory.RELU_VARIANCE / dims,
                    "square_printed": theory.RELU_VARIANCE_PRINTED / dims,
                    "undefined_exact": theory.relu_undefined(dims, positions),
                }
            )
    return table


def controlled_rows(settings: SensitivityTheoryParameters) -> tuple[list[Row], list[Row]]:
    """Figure 3: variance and entropy of every core by sigma, and the attention weights of one query."""
    chosen = settings.controlled
    sizes = {"positions": chosen.positions, "dimensions": chosen.dimensions}
    rows, weights = [], []
    for core in chosen.cores:
        for sigma in chosen.sigmas:
            sample, drawn = sampling.sample_controlled(core, sigma, *sizes.values(), chosen.matrices, settings.seed)
            place = {"core": core, "sigma": sigma, **sizes}
            rows.append(place | {"matrices": chosen.matrices} | _with_error(sample, "variance", "entropy"))
            if core in HISTOGRAM_CORES and sigma in HISTOGRAM_SIGMAS:
                weights += [place | {"key": key, "weight": weight} for key, weight in enumerate(drawn.tolist())]
    return rows, weights


def dirichlet_rows(settings: SensitivityTheoryParameters) -> tuple[list[Row], list[Row]]:
    """Figure 10: entropy and norm of Dirichlet rows; and their mean entropy and correlation."""
    chosen, rows, means = settings.dirichlet, [], []
    for index, alpha in enumerate(chosen.alphas):
        generator = np.random.default_rng([settings.seed, 3, index])
        entropies, norms = sampling.sample_dirichlet(alpha, chosen.positions, chosen.rows, generator)
        rows += [{"alpha": alpha, "entropy": h, "norm": n} for h, n in zip(entropies, norms, strict=True)]
        outside = sum(
            not theory.least_row_norm(h) - 1e-9 <= n <= theory.greatest_row_norm(h, chosen.positions) + 1e-9
            for h, n in zip(entropies, norms, strict=True)
        )
        means.append(
            {"alpha": alpha, "positions": chosen.positions, "rows": chosen.rows}
            | _with_error({"entropy": sampling.estimate(entropies)}, "entropy")
            | {
                "correlation": float(np.corrcoef(entropies, norms)[0, 1]),
                "outside_bounds": outside,
            }
        )
    return rows, means


def layernorm_rows(settings: SensitivityTheoryParameters) -> list[Row]:
    """Entropy of QK-LayerNorm, gamma = 1, when queries are scaled: exact invariance needs an epsilon of 0."""
    generator = torch.Generator().manual_seed(settings.seed)
    query, key = (
        torch.randn(500, SMALL_POSITIONS, SMALL_WIDTH, dtype=torch.float64, generator=generator) for _ in "qk"
    )
    rows = []
    for factor in (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3):
        _, probabilities = attend(core_named("qk_layernorm_fixed"), factor * query, key, key)
        rows.append({"factor": factor, "entropy": row_entropy(probabilities).mean().item()})
    return rows


def range_rows(settings: SensitivityTheoryParameters) -> list[Row]:
    """Proposition 5.3 on random attention matrices of the small model's size, for every core over all sigmas.

    outside: matrices beyond [1, sqrt(N)] or [0, log N] whose rows all sum to 1, as the proposition assumes. empty:
    matrices with a row that has no weight, the ReLU kernel's 0/0, which is taken as 0.
    """
    positions, dims, matrices = SMALL_POSITIONS, SMALL_WIDTH, 200
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = torch.randn(2, matrices, positions, dims, dtype=torch.float64, generator=generator)
    query, key = torch.cat([sigma * drawn for sigma in settings.controlled.sigmas], 1)
    rows, slack = [], 1e-5  # kernels divide by their sum plus a small number
    for core in settings.controlled.cores:
        _, probabilities = attend(core_named(core), query, key, key)  # (sigmas x matrices, N, N)
        norm, entropy = torch.linalg.matrix_norm(probabilities), row_entropy(probabilities).mean(-1)
        sums = probabilities.sum(-1).amin(-1) > 0.5
        inside = (norm >= 1 - slack) & (norm <= math.sqrt(positions) + slack)
        inside &= (entropy >= -slack) & (entropy <= math.log(positions) + slack)
        rows.append(
            {
                "core": core,
                "matrices": len(norm),
                "outside": int((sums & ~inside).sum()),
                "empty": int((~sums).sum()),
                "norm_least_empty": norm[~sums].min().item() if (~sums).any() else None,
            }
        )
    return rows


def relu_scale_difference(settings: SensitivityTheoryParameters) -> float:
    """Largest change of the ReLU kernel's mean entropy when queries and keys of the same draws are scaled by sigma."""
    found = [
        sampling.sample_relu(16, 20, 2000, np.random.default_rng([settings.seed, 4]), sigma)["entropy"].mean
        for sigma in (1.0, 0.01, 0.3, 7.0, 1000.0)
    ]
    return max(found) - min(found)
