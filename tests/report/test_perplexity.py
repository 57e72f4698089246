"""Paired differences, the gate and one verdict of each kind, worked by hand from the rows of result files."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import synthetic
import yaml
from scipy.stats import t as student

from aero import records
from aero.published import load as load_paper
from aero.report import claims
from aero.report.papers import aero
from aero.report.results import Results, load
from aero.report.statistics import change, control, failed, gate, ngrams, pooled_deviation

SEEDS = (1337, 1338, 1339)
CONTROL = (20.0, 21.0, 19.0)
BIGRAMS, BEST = 70.0, 25.0
CLAIMS = {claim.id: claim for claim in load_paper("aero").claims}


def project(
    root: Path, ratios: Mapping[str, Sequence[float | None]], best: float = BEST, scale: str = "desk"
) -> Results:
    """A project with the registered predictions, n-gram perplexities and trainings of one scale.

    ratios: perplexity over that of SM+LN+G's seed, None for a seed that diverged.
    """
    synthetic.project(root, runs=(), costs=False)
    (root / "results/desk").mkdir(parents=True)
    predictions = synthetic.PROJECT / "results/desk/predictions.yaml"
    (root / "results/desk/predictions.yaml").write_bytes(predictions.read_bytes())
    made = []
    for run, of in {"sm-ln-g": (1.0, 1.0, 1.0), **ratios}.items():
        for seed, base, ratio in zip(SEEDS, CONTROL, of, strict=False):
            made.append(synthetic.training(run, seed, scale, None if ratio else 180, ratio and base * ratio))
    records.write_trainings(root / "results" / scale, made)
    tokens, corpus = made[0].metrics["tokens"], made[0].metrics["provenance"]["corpus_sha256"]
    lines = [f"{order},1,{tokens},1337,{value},{corpus},c" for order, value in ((2, BIGRAMS), (3, best), (4, 26.0))]
    text = "order,steps,tokens,seed,perplexity,corpus_sha256,commit\n" + "\n".join(lines) + "\n"
    (root / "results" / scale / "ngrams.csv").write_text(text, encoding="utf-8")
    return load(root)


def raw_logs(root: Path, scale: str = "desk") -> dict[str, dict[int, float]]:
    """Logarithm of the perplexity by run and seed, read from the result file."""
    rows = [json.loads(line) for line in (root / "results" / scale / "metrics.jsonl").read_text().splitlines()]
    logs: dict[str, dict[int, float]] = {}
    for row in rows:
        logs.setdefault(row["run"], {})[row["seed"]] = math.log(row["eval_perplexity"])
    return logs


def by_hand(root: Path, run: str, against: str) -> tuple[float, float, float]:
    """Mean log ratio and the ends of its interval, by the registered rule: pooled over all registered comparisons."""
    logs = raw_logs(root)
    registered = yaml.safe_load((root / "results/desk/predictions.yaml").read_text(encoding="utf-8"))["perplexity"]
    pairs = [(one["run"], one["against"]) for one in registered if {one["run"], one["against"]} <= set(logs)]
    ratios = {pair: [logs[pair[0]][seed] - logs[pair[1]][seed] for seed in SEEDS] for pair in pairs}
    squares = sum(sum((one - sum(of) / 3) ** 2 for one in of) for of in ratios.values())
    freedom = 2 * len(pairs)
    own = [logs[run][seed] - logs[against][seed] for seed in SEEDS]
    mean, half = sum(own) / 3, student.ppf(0.975, freedom) * math.sqrt(squares / freedom / 3)
    return mean, mean - half, mean + half


ROWS = {
    "sm-ln-r": (1.020, 1.026, 1.032),  # published +2.57 %
    "sm-ln": (1.150, 1.160, 1.140),  # published +26.56 %
    "sm-r": (0.930, 0.930, 0.940),  # published +9.2 %
    "sm-g": (1.001, 0.992, 1.003),  # published +18.92 %
}


def test_verdicts_on_perplexity_recomputed_from_raw_rows(tmp_path: Path) -> None:
    results = project(tmp_path, ROWS)
    for claim, run, published, verdict in (
        ("t2-gelu-over-relu-with-layernorm", "sm-ln-r", 2.57, "reproduced"),
        ("t2-linear-ffn", "sm-ln", 26.56, "direction reproduced"),
        ("t2-layernorm-removal-relu", "sm-r", 9.2, "opposite here"),
        ("t2-layernorm-removal-gelu", "sm-g", 18.92, "undecided"),
    ):
        mean, low, high = by_hand(tmp_path, run, "sm-ln-g")
        by_rule = (
            "undecided"
            if low < 0 < high
            else "opposite here"
            if high < 0
            else "reproduced"
            if low <= math.log1p(published / 100) <= high
            else "direction reproduced"
        )
        found = claims.decide(results, CLAIMS[claim])
        assert (found.verdict, found.scale) == (by_rule, "desk") == (verdict, "desk"), claim
        ends = (found.effect.mean, found.effect.low, found.effect.high)
        assert ends == pytest.approx([100 * math.expm1(end) for end in (mean, low, high)])


def test_not_testable_recomputed_from_raw_rows(tmp_path: Path) -> None:
    claim = CLAIMS["t2-layernorm-removal-gelu"]
    results = project(tmp_path / "gate", ROWS, best=21.0)
    assert sum(CONTROL) / 3 >= 0.95 * 21
    assert claims.decide(results, claim).verdict == "not testable here"
    assert "gate" in claims.decide(results, claim).evidence
    results = project(tmp_path / "failed", {"sm-g": (3.6, None, 3.7)})  # 72 and 70.3 are above the bigrams' 70
    found = claims.decide(results, claim)
    assert found.verdict == "not testable here"
    assert "bigrams" in found.evidence and "diverged at step 180" in found.evidence
    assert "not run" in claims.decide(project(tmp_path / "none", {}), claim).evidence


def test_at_ceiling_recomputed_from_raw_rows(tmp_path: Path) -> None:
    claim, path = CLAIMS["f3a-softmax-only-collapse"], tmp_path / "results/desk/entropy.jsonl"
    assert claim.quantity == ("difference_of_shares", {"runs": ["sm"], "base": "sm-ln-g", "quarters": [0]})
    project(tmp_path, {"sm": (1.3, 1.4, 1.5)})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # Shares of collapsed heads in SM, one a seed; none in SM+LN+G.
    for shares, verdict in (((0.017, 0.018, 0.019), "at ceiling"), ((0.029, 0.03, 0.031), "direction reproduced")):
        for row in rows:
            lowest = shares[SEEDS.index(row["seed"])] if row["run"] == "sm" else 0.0
            row["quarters"]["observed"] = [lowest, 0.2, 0.2, 0.6 - lowest]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        of_sm = [row["quarters"]["observed"][0] for row in rows if row["run"] == "sm"]
        assert (sum(of_sm) / 3 <= 0.02) == (verdict == "at ceiling")
        assert claims.decide(load(tmp_path), claim).verdict == verdict


def test_contradicted_recomputed_from_raw_rows(committed: Results) -> None:
    claim = CLAIMS["o-folding-saves-all"]
    with (committed.root / "results/two_party/rows.csv").open(encoding="utf-8") as file:
        tuned = [row for row in csv.DictReader(file) if row["program"] == "tuned" and row["context"] == "128"]
    size = {row["architecture"]: float(row["bytes"]) for row in tuned if row["model"] == "gpt2"}
    ratios = {"fused": size["SM+ScFFN"] / size["SM+ScFuFFN"], "pruned": size["SM+ScFuFFN"] / size["SM+ScFuFFNi_6"]}
    rule, limits = claim.rule
    assert rule == "ratio_direction" and limits["factor"] == {"fused": 1.08, "pruned": 1.02}
    assert all(ratios[name] / limits["factor"][name] - 1 < -limits["tolerance"] for name in ratios)
    assert max(ratios.values()) <= 1
    assert claims.decide(committed, claim).verdict == "contradicted"


def test_failed_attempts_count_though_another_training_is_kept(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm": (1.3, 1.4, 1.5), "sm-scffn": (1.1, 1.2, 1.3)})
    sm = CLAIMS["t2-softmax-only-fails"]
    assert claims.decide(results, sm).verdict == "opposite here"
    (tmp_path / "results/gpu").mkdir()
    lines = "desk,sm,1337,1", "desk,sm,1338,0", "desk,sm,1338,", "gpu,sm,1338,1", "desk,sm-g,1338,1"
    text = "\n".join(("scale,run,seed,failed", *lines)) + "\n"
    (tmp_path / "results/gpu/attempts.csv").write_text(text, encoding="utf-8")
    found = claims.decide(results, sm)
    assert found.verdict == "direction reproduced" and "1 of 5 trainings failed" in found.measured
    scaled = dataclasses.replace(
        CLAIMS["t4-scaling-rescues-training"], quantity=("failures", {"runs": ["sm-scffn"], "none": True})
    )
    assert claims.decide(results, scaled).verdict == "direction reproduced"
    (tmp_path / "results/gpu/attempts.csv").write_text(text.replace("desk,sm-g", "desk,sm-scffn"), encoding="utf-8")
    assert claims.decide(results, scaled).verdict == "opposite here"


def test_entropies_of_failed_trainings_decide_nothing(tmp_path: Path) -> None:
    claim = CLAIMS["f14-early-entropy"]
    assert claim.quantity[0] == "early_entropy"
    runs = {run: (1.1, 1.2, 1.3) for run in ("sm-wnorm-ffn", "sm-snorm-ffn", "sm-scffn", "ereg-smt-scfuffn")}
    assert claims.decide(project(tmp_path / "trained", runs), claim).verdict != "not testable here"
    failing = runs | {"sm-wnorm-ffn": (None, None, None)}
    assert claims.decide(project(tmp_path / "failed", failing), claim).verdict == "not testable here"


def test_a_ratio_to_a_failed_seed_is_left_out(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-r": (1.1, 1.2, None), "sm-g": (1.3, 3.6, 1.4)})
    assert [failed(results, one) for one in results.seeds("sm-g")] == [False, True, False]
    found = change(results, "sm-g", "sm-r")
    assert found.estimate.seeds == (1337,) and not found.estimate.has_interval and not found.failed
    assert "sm-g seed 1338" in found.note and "sm-r seed 1339 diverged at step 180" in found.note
    deviation, freedom = pooled_deviation(results)  # sm-r and sm-g over sm-ln-g, of two seeds each
    logs = [[math.log(1.1), math.log(1.2)], [math.log(1.3), math.log(1.4)]]
    squares = sum((one - sum(of) / 2) ** 2 for of in logs for one in of)
    assert (deviation, freedom) == (pytest.approx(math.sqrt(squares / 2)), 2)


def test_failed_seeds_do_not_enter_the_pruning_curve(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-scfuffn": (1.1, 1.2, 3.9), "sm-scfuffni-1": (None,), "sm-scfuffni-12": (3.6,)})
    found = aero.pruning(results).set_index("pruned").T  # 3.9 x 19 and 3.6 x 20 are above the bigrams' 70
    assert list(found[0]) == ["22.0", "23.6", "2 (1 of 3 failed)"]  # (1.1 x 20 + 1.2 x 21) / 2
    assert list(found[1]) == ["diverged at 180", "–", "0 (1 of 1 failed)"]
    assert list(found[12]) == ["72.0", "–", "0 (1 of 1 failed)"]
    assert list(found[2]) == ["–", "–", "0"]


def test_learning_rates_of_other_runs_follow_the_predicted_ones(tmp_path: Path) -> None:
    results = project(tmp_path, {})
    lines = "sm-ln,0.003,1,,70.3", "sm,0.001,1,31,", "sm-ln,0.001,1,,80.4", "sm-ln,0.001,4,,75.6"
    text = "\n".join(("run,learning_rate,accumulation,diverged_at_step,eval_perplexity", *lines)) + "\n"
    (tmp_path / "results/desk/learning_rates.csv").write_text(text, encoding="utf-8")
    found = aero.learning_rates(results).set_index("learning rate").T
    assert list(found) == ["0.001", "0.003", "0.001, 4 micro-batches a step"]
    assert list(found.loc["SM"]) == ["diverged at 31", "–", "–"]
    assert list(found.loc["SM+LN"]) == ["80.4", "70.3", "75.6"]
    assert list(found.index) == ["SM+LN+G", "SM+R", "SM+G", "SM+ScFuFFN", "SM", "SM+LN"]


def test_the_gate(tmp_path: Path) -> None:
    assert gate(project(tmp_path / "passes", {}), "sm-g") == ""
    assert "perplexity 20.00" in gate(project(tmp_path / "ngrams", {}, best=21.0), "sm-g")
    results = project(tmp_path / "heads", {})
    for one in results.seeds("sm-ln-g"):
        one.entropy.quarters["causal_bound"] = (0.0, 0.2, 0.2, 0.6)
    assert "40%" in gate(results, "sm-g")
    assert "n-gram" in gate(results.at("desk"), "sm-g") and min(ngrams(results, "desk", 1008000).values()) == BEST
    for tokens in (5, 9999999):  # the nearest text above, or all
        assert min(ngrams(results, "desk", tokens).values()) == BEST
    assert not ngrams(results, "gpu", 1008000)
    (tmp_path / "heads/results/desk/ngrams.csv").unlink()
    assert "no n-gram" in gate(load(tmp_path / "heads"), "sm-g")
    assert "pythia-sm-ln-g" in gate(results, "pythia-sm-g")  # not trained


def test_each_run_has_the_baseline_of_its_own_model_as_control(empty: Results) -> None:
    controls = {
        "sm-g": "sm-ln-g",
        "ereg-smt-scfuffn-gamma-30": "sm-ln-g",
        "sm-r": "sm-ln-g",
        "sm-scffn-t256": "sm-ln-g-t256",
        "sm-scffn-18l": "sm-ln-g-18l",
        "pythia-sm-r-t256": "pythia-sm-ln-g-t256",
        "languini-sm-scffn-4b8": "languini-sm-ln-g-4b8",
        "core-relu": "core-softmax",
        "core-relu-hot": "core-softmax-hot",
    }
    assert {run: control(empty, run) for run in controls} == controls
