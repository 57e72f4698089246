"""Claims about entropies: each rule on results made to meet, miss and reverse it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import made_results
import numpy as np
import pytest

from aero.published import known_papers
from aero.report import claims, entropy_page
from aero.report.results import Results, load

SEEDS = (1337, 1338, 1339)
BOUND = made_results.math.lgamma(65) / 64


def with_heads(root: Path, **heads: list[float | None]) -> Results:
    """Results of runs whose heads have the given entropies, in fractions of the causal bound; a little apart by seed.

    A list holds the layers; four heads each, equal but for a hundredth, or none of them finite (None).
    """
    made_results.project(root, runs=(), costs=False)
    for run, layers in heads.items():
        name = run.replace("_", "-")
        for place, seed in enumerate(SEEDS):
            folder = root / "results/laptop" / name / f"seed_{seed}"
            made_results.write_run(folder, name, seed)
            values = json.loads((folder / "entropy.json").read_text())
            mean = [
                [None if v is None else BOUND * (v + 0.01 * h + 1e-4 * place * (i + 1)) for h in range(4)]
                for i, v in enumerate(layers)
            ]
            values["entropy_mean"] = mean
            finite = [v for layer in mean for v in layer if v is not None]
            values["maximum"]["observed"] = max(finite, default=0.0)
            del values["entropy_by_position"]  # which is of other heads
            metrics = json.loads((folder / "metrics.json").read_text())
            metrics["model"]["layers"] = len(layers)
            (folder / "metrics.json").write_text(json.dumps(metrics))
            values["quarters"]["observed"] = [
                sum(min(int(v / max(finite) * 4), 3) == q for v in finite) / (4 * len(layers)) for q in range(4)
            ]
            if not finite:
                del values["quarters"]["observed"]
            (folder / "entropy.json").write_text(json.dumps(values))
    return load(root)


def decide(results: Results, claim: str) -> claims.Decision:
    return next(j.decision for j in claims.judge(results) if j.claim.id == claim)


@pytest.mark.parametrize(
    ("scaled", "verdict"),
    [([0.9, 0.8, 0.7], "direction reproduced"), ([0.9, 0.1, 0.1], "not seen at this scale")],
)
def test_collapse_prevented(tmp_path: Path, scaled: list[float], verdict: str) -> None:
    results = with_heads(tmp_path, sm=[0.9, 0.8, 0.05], sm_scffn=scaled)
    found = decide(results, "f7-scaling-prevents-collapse")
    assert found.verdict == verdict
    assert found.measured.startswith("0.00 - 0.33" if verdict != "not seen at this scale" else "0.67 - 0.33")


@pytest.mark.parametrize(("broken", "share"), [([0.9, None, None], "0.67"), ([None] * 3, "1.00")])
def test_heads_that_are_not_finite_have_collapsed(tmp_path: Path, broken: list[float | None], share: str) -> None:
    """They are in no quarter, and would otherwise pass for heads that collapse was prevented in."""
    results = with_heads(tmp_path, sm=[0.9, 0.8, 0.05], sm_scffn=broken)
    found = decide(results, "f7-scaling-prevents-collapse")
    assert found.verdict == "not seen at this scale" and found.measured.startswith(f"{share} - 0.33")
    assert "in the lowest quarter of the observed maximum or not finite" in found.rule
    assert set(results.share_of_heads("sm-scffn", (0,)).values()) == {results.first("sm-scffn").entropy.not_finite}
    assert sum(results.share_of_heads("sm-scffn", (1, 2, 3)).values()) == pytest.approx(
        3 * (1 - float(share)), abs=0.02
    )
    row = entropy_page.heads_by_rule(results, ("sm-scffn",)).text
    assert f"{100 * results.first('sm-scffn').entropy.not_finite:.0f} [" in row and "lowest or not finite" in row


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        ([0.9] + [0.3] * 11, "direction reproduced"),  # 4 of 48 heads
        ([0.9] * 2 + [0.3] * 8, "direction reproduced"),  # a fifth, below a quarter
        ([0.9] * 6 + [0.3] * 6, "not seen at this scale"),
    ],
)
def test_few_heads_in_the_highest_quarter(tmp_path: Path, layers: list[float], verdict: str) -> None:
    results = with_heads(tmp_path, ereg_smt_scfuffn_gamma_25=layers)
    assert decide(results, "f18-margin-25").verdict == verdict


@pytest.mark.parametrize(
    ("step", "verdict"),
    [(0.3, "direction reproduced"), (-0.3, "not seen at this scale"), (0.0, "not seen at this scale")],
)
def test_alpha_with_depth(tmp_path: Path, step: float, verdict: str) -> None:
    root = made_results.project(tmp_path, runs=("sm-scffn",), costs=False)
    for place, path in enumerate(sorted(root.glob("results/laptop/sm-scffn/**/entropy.json"))):
        values = json.loads(path.read_text())
        values["learned"]["alpha"] = [1 + step * layer + 0.01 * (place - 1) * layer for layer in range(12)]
        path.write_text(json.dumps(values))
    found = decide(load(root), "f11-alpha-grows")
    assert found.verdict == verdict and found.measured.startswith(f"{8 * step:.3f} [")
    assert decide(load(root), "f11-beta-falls").verdict == "direction reproduced"  # made to fall by 0.05 a layer


@pytest.mark.parametrize(
    ("last", "verdict"),
    [("0.02", "reproduced"), ("-0.12", "direction reproduced"), ("0.9", "not seen at this scale")],
)
def test_slopes_come_back_to_zero(tmp_path: Path, last: str, verdict: str) -> None:
    root = made_results.project(tmp_path, runs=(), costs=False)
    for seed in SEEDS[:2]:
        folder = root / "results/laptop/sm-leakyr-global" / f"seed_{seed}"
        made_results.write_run(folder, "sm-leakyr-global", seed)
        path = folder / "log.csv"
        lines = path.read_text().splitlines()
        column = lines[0].split(",").index("slope_0")
        cells = lines[-1].split(",")
        cells[column] = last
        path.write_text("\n".join([*lines[:-1], ",".join(cells)]) + "\n")
    found = decide(load(root), "f4-slopes-vanish-global")
    assert found.verdict == verdict and f"at the end {abs(float(last)):.3f}" in found.measured
    assert decide(load(root), "f4-slopes-vanish-layerwise").evidence == "not run yet: sm-leakyr"


def with_slopes(root: Path, run: str, at_first: list[list[float]]) -> Results:
    """Two seeds of a run whose slopes stay as given, one list a seed, from the second logged step to a tenth."""
    made_results.project(root, runs=(), costs=False)
    for seed, values in zip(SEEDS, at_first, strict=False):
        folder = root / "results/laptop" / run / f"seed_{seed}"
        made_results.write_run(folder, run, seed)
        with (folder / "log.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            for layer, value in enumerate(values):
                early = 10 < int(row["step"]) <= made_results.STEPS // 10
                row[f"slope_{layer}"] = str(value if early else 0.01 if row["step"] == "10" else 9.0)
        with (folder / "log.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return load(root)


@pytest.mark.parametrize(
    ("early", "deep", "verdict"),
    [
        (0.03, -0.02, "reproduced"),
        (0.03, None, "direction reproduced"),  # the deeper ones on either side of 0
        (0.03, 0.02, "not seen at this scale"),  # lower, but positive
        (-0.03, 0.02, "not seen at this scale"),
    ],
)
def test_slopes_at_first(tmp_path: Path, early: float, deep: float | None, verdict: str) -> None:
    by_seed = []
    for place in (0, 1):
        of_deep = (0.02 - 0.05 * place) if deep is None else deep * (1 + 0.01 * place)
        by_seed.append([early * (1 + 0.01 * place)] * 4 + [7.0] * 4 + [of_deep] * 4)
    results = with_slopes(tmp_path, "sm-leakyr", by_seed)
    found = decide(results, "f4-slopes-at-first-layerwise")
    assert found.verdict == verdict
    # The start, 0.01, and four logged steps
    mean = (0.01 + 4 * early * 1.005) / 5
    assert found.measured.startswith(f"first third {mean:.4f} [")


@pytest.mark.parametrize(("slope", "verdict"), [(0.03, "direction reproduced"), (0.005, "not seen at this scale")])
def test_the_common_slope_at_first(tmp_path: Path, slope: float, verdict: str) -> None:
    found = decide(with_slopes(tmp_path, "sm-leakyr-global", [[slope], [slope * 1.01]]), "f4-slope-at-first-global")
    assert found.verdict == verdict and found.measured.startswith(f"{0.8 * (slope * 1.005 - 0.01):.4f} [")
    assert decide(load(tmp_path), "f4-slopes-at-first-layerwise").evidence == "not run yet: sm-leakyr"


def test_landscape_statistics_by_hand(tmp_path: Path) -> None:
    base, run = [0.8] * 4, [0.6, 0.5, 0.5, 0.2]
    results = with_heads(tmp_path, sm_ln_g=base, ereg_smt_ln_g=run)
    tail = decide(results, "l1-tail-vanishes")
    assert tail.verdict == "direction reproduced"
    assert float(tail.measured.split()[0]) == pytest.approx(BOUND * -0.2, abs=2e-3)
    assert decide(results, "l1-mean-falls").verdict == "direction reproduced"
    # All heads in order: 0.2, 0.5, 0.5, 0.6 against 0.8, a mean distance of 0.35 bounds; published 0.878 of 3.878.
    shift = decide(results, "l1-shift-gelu")
    assert shift.measured.startswith("0.350 [") and shift.verdict == "direction reproduced" and "= 0.226" in shift.rule
    assert decide(results, "l2-regularised-steeper").verdict == "direction reproduced"
    assert "over random orders of the heads" in decide(results, "l2-regularised-steeper").measured
    # Equal spreads weigh more where the mean is lower.
    assert decide(results, "l3-heads-differ-more").verdict == "direction reproduced"
    assert decide(results, "l1-gain-gelu").verdict != "not testable here"


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        ([0.9, 0.5, 0.9, 0.5, 0.7, 0.7, 0.7, 0.7], "direction reproduced"),
        ([0.7, 0.7, 0.7, 0.7, 0.9, 0.5, 0.9, 0.5], "not seen at this scale"),
    ],
)
def test_flat_deep_layers(tmp_path: Path, layers: list[float], verdict: str) -> None:
    results = with_heads(tmp_path, sm_ln_g=layers)
    assert decide(results, "l2-deep-layers-flat").verdict == verdict


def test_claims_of_all_papers_are_in_the_file(empty: Results) -> None:
    judged = claims.judge(empty)
    assert {j.paper for j in judged} == set(known_papers())
    assert np.unique([j.claim.id for j in judged]).size == len(judged)
    assert {j.paper for j in claims.judge(empty, "entropy_landscape")} == {"entropy_landscape"}
