"""Tables, figures and verdicts of parallel context encoding from made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path

import made_results
import pytest

from aero.report import claims, drawing, parallel_context_figures
from aero.report.parallel_context import (
    correlations,
    mean_correlation,
    own_models,
    table_ablation,
    table_cost,
    table_main,
    table_methods,
)
from aero.report.parallel_context_page import section
from aero.report.results import Results, load

SELECTION = {"top_k": 2, "aggregation": {"lm": "none", "icl": "HT", "rag": "HT", "synthetic": "HT"}}
SETTINGS = [(None, False), (None, True), ("sink", False), ("sink", True)]
FIGURES = [getattr(parallel_context_figures, name) for name in dir(parallel_context_figures) if name.startswith("fig")]


def row(task: str, p: int, sink: str | None, k: int | None, aggregation: str | None, entropy: float) -> dict:
    """What is lost is linear in the entropy: 10 points a nat, or 0.5 nats of log-perplexity."""
    score = 2.0 * 2.718281828459045 ** (0.5 * entropy) if task == "lm" else 100 - 10 * entropy
    norms = {"prefix_first": [3.0, 3.0] if sink else None, "segment_first": [1.0, 1.0], "later": [2.0, 2.0]}
    return {
        "task": task,
        "metric": "x",
        "segments": p,
        "sink": sink,
        "top_k": k,
        "aggregation": aggregation,
        "episodes": 9,
        "score": score,
        "low": score - 1,
        "high": score + 1,
        "entropy": entropy,
        "entropy_low": entropy - 0.1,
        "entropy_high": entropy + 0.1,
        "entropy_by_layer": [entropy, entropy],
        "key_norms": norms,
        "value_norms": norms,
    }


def measured(seed: int, effect: float = 1.0) -> dict:
    """Entropy 1 + effect * log2 P + something of the seed; the sink takes a quarter off, selection half."""
    rows = []
    for task, aggregation in SELECTION["aggregation"].items():
        for step, p in enumerate((1, 2, 4, 8, 16)):
            for sink, select in SETTINGS:
                part = (0.75 if sink else 1.0) * (0.5 if select else 1.0)
                entropy = 1 + effect * step * part + 0.01 * (seed - 1337) * (step + 1)
                rows.append(row(task, p, sink, 2 if select else None, aggregation if select else None, entropy))
        for k, entropy in ((1, 1.2), (5, 1.4 if task == "synthetic" else 0.9)):
            rows.append(row(task, 16, None, k, aggregation, entropy))
        rows.append(row(task, 16, "instruction", None, None, 1 + effect * 3))
    return {
        "model": "own",
        "scale": "laptop",
        "seed": seed,
        "selection": SELECTION,
        "training": {"model": {"layers": 2, "heads": 2, "width": 8, "context": 64}, "tokens": 5_000_000},
        "solves_retrieval": True,
        "rows": rows,
        "provenance": {"commit": "abc", "machine": "a machine"},
    }


def cost(time_at_16: float) -> dict:
    def one(way: str, p: int, time: float) -> dict:
        return {
            "way": way, "segments": p, "tokens": 64, "cpu_s": time, "wall_s": time, "question_cpu_s": 0.1,
            "peak_bytes": 2**20 * (9 - p // 2), "attention_pairs": 2080 // p, "repeats": 2,
        }  # fmt: skip

    rows = [one("full", 1, 10.0), one("segments", 16, time_at_16), one("mask", 16, 11.0)]
    model = {"layers": 2, "heads": 2, "width": 8}
    return {"scale": "laptop", "model": model, "rows": rows, "provenance": {"commit": "abc", "machine": "a machine"}}


def project(folder: Path, *files: dict, costs: dict | None = None) -> Results:
    root = made_results.project(folder, runs=(), costs=False)
    kept = root / "results/parallel_context/laptop"
    kept.mkdir(parents=True)
    for values in files:
        (kept / f"seed_{values['seed']}.json").write_text(json.dumps(values))
    if costs:
        (kept / "cost.json").write_text(json.dumps(costs))
    return load(root)


@pytest.fixture
def three(tmp_path: Path) -> Results:
    return project(tmp_path, *(measured(seed) for seed in (1337, 1338, 1339)), costs=cost(7.0))


def decide(results: Results, claim: str):
    return next(j.decision for j in claims.judge(results, "parallel_context") if j.claim.id == claim)


def test_nothing_measured_is_a_gap(tmp_path: Path) -> None:
    results = project(tmp_path)
    assert "not measured yet" in section(results).text and not own_models(results)
    judged = claims.judge(results, "parallel_context")
    open_ = {j.claim.id: j.decision for j in judged if j.decision.verdict == "not testable here"}
    assert len(open_) == len(judged) - 1 and all(d.evidence for d in open_.values())
    found = decide(results, "pc-default-k")
    assert found.verdict == "contradicted" and found.measured == "icl: 33.00 and 36.00; rag: 48.50 and 48.75"
    assert "icl: Aggr.=HT is what TopK=5 has" in found.evidence


def test_effects_beyond_seed_noise_are_reproduced_in_direction(three: Results) -> None:
    verdicts = {j.claim.id: j.decision.verdict for j in claims.judge(three, "parallel_context")}
    for claim in ("degrades-lm", "degrades-synthetic", "entropy-rises", "sink-entropy", "select-retrieval"):
        assert verdicts[f"pc-{claim}"] == "direction reproduced", claim
    assert verdicts["pc-first-keys"] == "direction reproduced"
    assert verdicts["pc-fewer-for-retrieval"] == "direction reproduced"  # K=1 loses least there, K=5 elsewhere
    assert decide(three, "pc-degrades-icl").measured.startswith("40.4 [")  # 4 nats, 10 points each, and the seed's 0.04


def test_an_absent_or_opposite_effect_is_not_seen(tmp_path: Path) -> None:
    results = project(tmp_path, *(measured(seed, effect=-0.2) for seed in (1337, 1338, 1339)))
    for claim in ("pc-degrades-rag", "pc-entropy-rises", "pc-select-entropy", "pc-both-balanced"):
        assert decide(results, claim).verdict == "not seen at this scale"


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    results = project(tmp_path, measured(1337))
    assert decide(results, "pc-entropy-rises").verdict == "not testable here"
    assert "95 % interval over episodes" in table_main(results).text


def test_correlation_over_degrees_of_parallelism(three: Results, tmp_path: Path) -> None:
    models = own_models(three)
    assert mean_correlation(models, "icl").r == pytest.approx(1) and correlations(models, "lm")[1338].points == 5
    assert mean_correlation(models, "lm", ("naive", "sink")).points == 10


def test_cost_is_held_against_the_share(tmp_path: Path) -> None:
    slow = decide(project(tmp_path / "a", costs=cost(7.0)), "pc-cost")
    assert slow.verdict == "contradicted" and slow.measured.startswith("time 0.70, query-key pairs 0.0625 at P=16")
    assert decide(project(tmp_path / "b", costs=cost(1.0)), "pc-cost").verdict == "reproduced"


def test_tables_have_published_beside_measured(three: Results) -> None:
    main = table_main(three).text
    assert "99.50" in main and "seeds 1337, 1338, 1339" in main
    assert "24.88" in table_ablation(three).text and "shared sink: instruction" in table_ablation(three).text
    assert "sink and selective" in table_methods(three).text
    assert "0.70" in table_cost(three).text and "MiB" in table_cost(three).text


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.__name__)
def test_figures_draw_with_and_without_results(figure, three: Results, tmp_path: Path) -> None:
    assert drawing.svg(figure(three), "x").startswith("<svg")
    assert drawing.svg(figure(project(tmp_path / "none")), "x").startswith("<svg")


def test_fresh_results_replace_kept_ones(three: Results) -> None:
    fresh = three.root / "runs/parallel_context/seed_1338"
    fresh.mkdir(parents=True)
    (fresh / "measured.json").write_text(json.dumps(measured(1338, effect=3.0)))
    (fresh / "training.json").write_text("{}")
    models = own_models(three)
    assert [m.seed for m in models] == [1337, 1338, 1339] and models[1].path.startswith("runs/")
