"""Tables, figures and verdicts of parallel context encoding from made-up measurements."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import made_results
import pytest

from aero.report import claims, drawing, parallel_context_figures, parallel_context_tables
from aero.report.parallel_context import (
    correlations,
    lost,
    mean_correlation,
    own_models,
    summary,
    table_ablation,
    table_cost,
    table_main,
    table_methods,
    table_others,
)
from aero.report.parallel_context_page import section
from aero.report.parallel_context_tables import files
from aero.report.results import Results, load

SELECTION = {"top_k": 2, "aggregation": {"lm": "none", "icl": "HT", "rag": "HT", "synthetic": "HT"}}
SETTINGS = [(None, False), (None, True), ("sink", False), ("sink", True)]
FIGURES = [getattr(parallel_context_figures, name) for name in dir(parallel_context_figures) if name.startswith("fig")]


UNITS = {"lm": 96, "icl": 32, "rag": 16, "synthetic": 48}


def row(task: str, p: int, sink: str | None, k: int | None, aggregation: str | None, entropy: float) -> dict:
    """What is lost is linear in the entropy: 10 points a nat, or 0.5 nats of log-perplexity."""
    score = 2.0 * 2.718281828459045 ** (0.5 * entropy) if task == "lm" else 100 - 10 * entropy
    norms = {"prefix_first": [3.0, 3.0] if sink else None, "segment_first": [1.0, 1.0], "later": [2.0, 2.0]}
    # The first layer tells nothing: its ratio is on the other side of 1.
    same = {"first": [9.0, 0.8], "first_full": [1.0, 1.0], "later": [9.0, 0.9], "later_full": [1.0, 1.0]}
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
        "same_tokens": {"keys": same if p > 1 else None, "values": same if p > 1 else None},
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
        "tasks": {task: {"units": units} for task, units in UNITS.items()},
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
    return claims.judge(results, "parallel_context").set_index("id").loc[claim]


def test_nothing_measured_is_a_gap(tmp_path: Path) -> None:
    results = project(tmp_path)
    assert "not measured yet" in section(results).text and not own_models(results)
    judged = claims.judge(results, "parallel_context").set_index("id")
    open_ = dict(judged[judged.verdict == "not testable here"].iterrows())
    assert len(open_) == len(judged) - 1 and all(d.evidence for d in open_.values())
    found = decide(results, "pc-default-k")
    assert found.verdict == "contradicted" and found.measured == "icl: 33.00 and 36.00; rag: 48.50 and 48.75"
    assert "icl: Aggr.=HT is what TopK=5 has" in found.evidence


def test_effects_beyond_seed_noise_are_reproduced_in_direction(three: Results) -> None:
    verdicts = dict(claims.judge(three, "parallel_context").set_index("id").verdict)
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


def test_cost_is_a_count_of_pairs_with_time_and_memory_beside_it(tmp_path: Path) -> None:
    found = decide(project(tmp_path / "a", costs=cost(7.0)), "pc-cost")
    assert found.verdict == "reproduced"
    assert found.measured == "query-key pairs 0.0625 at P=16 (1/P = 0.0625); measured: time 0.70, memory 0.11 of full" \
        " attention's"  # fmt: skip
    # 12 d^2 n = 49152 and 2 d pairs = 33280 or 2080, with d = 8, n = 64
    assert "cannot fall below 0.62" in found.evidence
    counted = cost(0.6)
    counted["rows"][1]["attention_pairs"] = 150
    assert decide(project(tmp_path / "b", costs=counted), "pc-cost").verdict == "contradicted"
    empty = counted | {"rows": counted["rows"][:1]}
    assert decide(project(tmp_path / "c", costs=empty), "pc-cost").verdict == "not testable here"


def without(values: dict, **wanted) -> dict:
    """The result without the rows that have all of these values."""
    kept = [r for r in values["rows"] if not all(r[key] == value for key, value in wanted.items())]
    return values | {"rows": kept}


@pytest.mark.parametrize("missing", [{"task": "icl"}, {"segments": 1}, {"segments": 16}, {"sink": "sink"}, {}])
def test_partial_files_are_told_and_break_nothing(missing: dict, tmp_path: Path) -> None:
    results = project(tmp_path, *(without(measured(seed), **missing) for seed in (1337, 1338, 1339)))
    judged = dict(claims.judge(results, "parallel_context").set_index("id").iterrows())
    assert section(results).text and parallel_context_tables.files(results)
    for figure in FIGURES:
        drawing.svg(figure(results), "x")
    if missing.get("task"):
        assert judged["pc-degrades-icl"].verdict == "not testable here"
        assert "seed 1337 lacks some of icl (results/" in judged["pc-degrades-icl"].evidence
        assert judged["pc-degrades-lm"].verdict == "direction reproduced"
    if missing.get("sink"):
        assert "not measured: seed 1337" in judged["pc-sink-entropy"].evidence


def test_a_partial_file_does_not_take_the_place_of_a_whole_one(three: Results) -> None:
    fresh = three.root / "runs/parallel_context"
    fresh.mkdir(parents=True)
    (fresh / "part.json").write_text(json.dumps(without(measured(1338), task="icl") | {"part": True}))
    assert [m.path.partition("/")[0] for m in own_models(three)] == ["results"] * 3
    one_partial = without(measured(1338), task="icl")
    (three.root / "results/parallel_context/laptop/seed_1338.json").write_text(json.dumps(one_partial))
    found = decide(three, "pc-degrades-icl")
    assert found.verdict == "direction reproduced" and "seeds 1337, 1339" in found.evidence


def test_the_same_tokens_decide_about_keys(three: Results, tmp_path: Path) -> None:
    axes = parallel_context_figures.figure_parallel_norms(three).axes[1]  # keys at the largest P
    drawn = [[round(float(y), 6) for y in line.get_ydata()] for line in axes.lines]
    assert [9.0, 0.8] in drawn and [1.0, 1.0] in drawn and [9.0, 0.9] in drawn
    found = decide(three, "pc-first-keys")
    assert found.measured.startswith("lm -0.200 [-0.200, -0.200]") and "lm 0.900" in found.evidence
    larger = [measured(seed) for seed in (1337, 1338)]
    for values in larger:
        for one in values["rows"]:
            if one["same_tokens"]["keys"]:
                one["same_tokens"] = {"keys": one["same_tokens"]["keys"] | {"first": [0.1, 1.1]}, "values": None}
    assert decide(project(tmp_path / "larger", *larger), "pc-first-keys").verdict == "not seen at this scale"
    older = [measured(seed) for seed in (1337, 1338)]
    for values in older:
        for one in values["rows"]:
            del one["same_tokens"]
    results = project(tmp_path / "older", *older)
    found = decide(results, "pc-first-keys")
    assert found.verdict == "not testable here" and "not measured yet" in found.evidence
    assert drawing.svg(parallel_context_figures.figure_parallel_norms(results), "x").startswith("<svg")


def with_sinks(seed: int, icl: dict[str, float]) -> dict:
    """Classification at P=16 scores 90 without a sink and as given with one; elsewhere sinks change nothing."""
    values = measured(seed)
    for one in values["rows"]:
        if one["segments"] == 16 and one["top_k"] is None:
            score = icl.get(one["sink"], 90.0) if one["task"] == "icl" else 90.0
            one |= {"score": score, "low": score - 5, "high": score + 5}
    return values


def test_a_sinks_content_is_judged_where_a_sink_matters(tmp_path: Path) -> None:
    def verdict(name, *files):
        return decide(project(tmp_path / name, *files), "pc-sink-content")

    alike, apart = {"sink": 40.0, "instruction": 42.0}, {"sink": 40.0, "instruction": 60.0}
    found = verdict("none", *(with_sinks(seed, {}) for seed in (1337, 1338)))
    assert found.verdict == "not testable here" and "icl in 0 of 2 seeds" in found.evidence
    found = verdict("one", with_sinks(1337, alike), with_sinks(1338, {}))
    assert found.verdict == "not testable here" and "icl, seed 1337: without 90.0, sink 40.0" in found.evidence
    # 6 points are less than the error of two rows of ±5: hypot(5, 5) = 7.1
    assert verdict("noise", *(with_sinks(s, {"sink": 84.0, "instruction": 90.0}) for s in (1337, 1338))).measured == ""
    found = verdict("alike", *(with_sinks(seed, alike) for seed in (1337, 1338)))
    assert found.verdict == "reproduced" and found.measured == "icl 2.0 points"
    found = verdict("apart", with_sinks(1337, apart), with_sinks(1338, alike))
    assert found.verdict == "not seen at this scale" and found.measured == "icl 20.0 points"


def test_an_opposite_effect_is_named(tmp_path: Path) -> None:
    results = project(tmp_path, *(measured(seed, effect=-0.2) for seed in (1337, 1338, 1339)))
    assert "the opposite holds here for lm, icl" in decide(results, "pc-sink-entropy").evidence


def scored(task: str, score: float, low: float, high: float, entropy: float = 1.0) -> dict:
    return row(task, 2, None, None, None, entropy) | {"score": score, "low": low, "high": high}


def test_intervals_where_seeds_agree_and_at_the_ends_of_the_scale() -> None:
    agree = {seed: scored("icl", 99.2, 95.7, 99.9) for seed in (1, 2, 3)}
    assert summary(agree).text(1) == "99.2 [95.7, 99.9] ep."
    assert summary({1: agree[1]}).text(1) == "99.2 [95.7, 99.9] ep."
    wide = {seed: scored("rag", score, 0, 0) for seed, score in ((1, 100.0), (2, 92.0), (3, 79.0))}
    found = summary(wide)
    assert found.estimate.high == 100 and 63 < found.estimate.low < 65 and found.episodes is None
    assert summary({1: scored("lm", 3.0, 2, 4), 2: scored("lm", 5.0, 2, 4)}).estimate.low < 0  # no per cents
    assert summary(agree, "entropy").episodes is None and summary({}) is None
    # Newcombe, 100 % [97, 100] and 90 % [83, 94]: 10 points are lost, - hypot(94 - 90, 100 - 97), + hypot(90 - 83, 0)
    pairs = {seed: (scored("icl", 90, 83, 94), scored("icl", 100, 97, 100)) for seed in (1, 2)}
    assert lost(pairs).text(1, "points") == "10.0 [5.0, 17.0] points ep."
    pairs[2] = (scored("icl", 10, 0, 0), scored("icl", 100, 97, 100))
    assert (lost(pairs).estimate.low, lost(pairs).estimate.high) == (-100, 100)


def test_seeds_of_several_commits_or_recipes_say_so(tmp_path: Path) -> None:
    alike = project(tmp_path / "alike", *(measured(seed) for seed in (1337, 1338)))
    assert "mixed" not in table_main(alike).text and "commit abc; machine a machine." in table_main(alike).text
    other = measured(1338)
    other["provenance"] = {"commit": "decade" * 7, "machine": "another"}
    text = table_main(project(tmp_path / "commits", measured(1337), other)).text
    assert "mixed: 2 commits (abc, decadedeca); mixed: 2 machines (a machine, another)." in text
    other = measured(1338)
    other["training"] = {"model": other["training"]["model"] | {"layers": 3}, "tokens": 6_000_000}
    text = table_main(project(tmp_path / "recipes", measured(1337), other)).text
    assert (
        "scale laptop: mixed: 2 recipes, which differ in layers, tokens (L=2, H=2, d=8, T=64, 5.0 M tokens; L=3" in text
    )
    other = measured(1338)
    other["training"] = other["training"] | {"train": {"learning_rate": 0.5}, "provenance": {"commit": "f00d"}}
    text = table_main(project(tmp_path / "rates", measured(1337), other)).text
    assert "mixed: 2 recipes, which differ in learning_rate (L=2" in text and "mixed: 2 commits (abc, f00d)" in text
    # What older files do not state was the default, and threads are none of the recipe.
    other["training"] |= {"train": {"precision": "float32", "threads": 7}}
    assert "recipes" not in table_main(project(tmp_path / "older", measured(1337), other)).text


def test_impossible_cells_and_other_degrees_of_parallelism_say_so(three: Results) -> None:
    texts = {path.stem: list(csv.DictReader(io.StringIO(text))) for path, text in files(three).items()}
    main = {(line["row"], line["column"]): line for line in texts["parallel_context_table_main"]}
    assert main["P=32", "RAG"]["note"] == "only 16 pieces" and main["P=64", "ICL"]["note"] == "only 32 pieces"
    assert main["P=32", "ICL"]["note"] == main["P=64", "LM"]["note"] == "not measured yet"
    assert "only 16 pieces" in table_main(three).text
    ablation = texts["parallel_context_table_ablation"]
    assert {line["note"].partition(";")[0] for line in ablation if line["measured"]} == {
        "not comparable: measured at P=16, published at P=64"
    }
    caption = table_ablation(three).text
    assert "none for language modelling, HT for in-context classification" in caption and "no ratio is taken" in caption


def test_another_model_has_the_tables_of_the_one_trained_here(tmp_path: Path) -> None:
    results = project(tmp_path)
    kept = results.root / "results/parallel_context"
    values = measured(0) | {"model": "some/Llama-3.1-8B", "scale": "paper"}
    del values["training"]
    (kept / "llama.json").write_text(json.dumps(without(values, task="synthetic")))
    text = table_others(results).text
    for table in ("methods", "correlation", "ablation"):
        assert f'id="parallel-{table}-some-llama-3-1-8b"' in text
    assert "nats" in text and "some/Llama-3.1-8B on the user" in text and "not own" not in text
    assert not own_models(results) and "P=?" in text, "the missing task is a gap"


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
