"""Paired differences, the gate and one verdict of each kind, worked by hand from the rows of result files."""

from __future__ import annotations

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
    assert list(found[0]) == ["22.0", "23.6", "3 (1 failed)"]  # (1.1 x 20 + 1.2 x 21) / 2
    assert list(found[1]) == ["diverged at 180", "–", "1 (1 failed)"]
    assert list(found[12]) == ["72.0", "–", "1 (1 failed)"]
    assert list(found[2]) == ["–", "–", "0"]


def test_learning_rates_of_other_runs_follow_the_predicted_ones(tmp_path: Path) -> None:
    results = project(tmp_path, {})
    lines = "sm-ln,0.003,,70.3", "sm,0.001,31,", "sm-ln,0.001,,80.4"
    text = "\n".join(("run,learning_rate,diverged_at_step,eval_perplexity", *lines)) + "\n"
    (tmp_path / "results/desk/learning_rates.csv").write_text(text, encoding="utf-8")
    found = aero.learning_rates(results).set_index("configuration")
    assert list(found.loc["SM"]) == ["diverged at 31", "–"] and list(found.loc["SM+LN"]) == ["80.4", "70.3"]
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
