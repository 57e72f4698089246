"""Which result files count: fresh over kept, one recipe a mean, and nothing crashes on what is missing or broken."""

from __future__ import annotations

import json
from pathlib import Path

import made_results
import pytest

from aero.errors import UserError
from aero.report.results import find_root, load


def test_reads_every_run_seed_and_cost(full_root: Path) -> None:
    results = load(full_root)
    assert results.scale == "laptop" and results.problems == ()
    assert [run.seed for run in results.seeds("sm-r")] == [1337, 1338, 1339]
    assert results.first("sm-r").seed == 1337
    assert len(results.first("sm-r").entropy.mean) == 12 and len(results.first("sm-r").log.entropy[0]) == 12
    assert results.cost("SM+LN+G", "tuned").bytes == 6_120_000_000
    assert results.cost("SM+LN+G", "tuned", context=256) is None


def test_a_fresh_result_replaces_the_kept_one(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-r",))
    made_results.write_run(root / "runs" / "sm-r" / "seed_1338", "sm-r", 1338, perplexity=20.0)
    results = load(root)
    assert results.perplexity("sm-r")[1338] == 20.0
    assert [run.fresh for run in results.seeds("sm-r")] == [False, True, False]


def test_seeds_of_another_corpus_are_named_and_left_out(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-r",))
    made_results.write_run(root / "runs" / "sm-r" / "seed_1337", "sm-r", 1337, corpus_sha256="cd" * 32)
    results = load(root)
    assert [run.seed for run in results.seeds("sm-r")] == [1337]
    assert len(results.problems) == 2 and "another model, corpus or budget" in results.problems[0]


def test_thread_count_is_no_part_of_the_recipe(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-r",))
    path = root / "results/laptop/sm-r/seed_1338/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["train"]["threads"] = 8
    path.write_text(json.dumps(metrics))
    assert len(load(root).seeds("sm-r")) == 3
    metrics["train"]["steps"] = 9
    path.write_text(json.dumps(metrics))
    assert len(load(root).seeds("sm-r")) == 2


def test_a_diverged_run_has_no_perplexity(full_root: Path) -> None:
    results = load(full_root)
    assert results.perplexity("sm") == {} and [run.diverged_at for run in results.seeds("sm")] == [180] * 3


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("results/laptop/sm-r/metrics.json", "{", "cannot be read"),
        ("results/laptop/sm-r/metrics.json", '{"run": "sm-r"}', "not the metrics of a run"),
        ("results/laptop/sm-r/entropy.json", '{"entropy_mean": [[1], [1, 2]]}', "not the entropies of a run"),
        ("results/laptop/sm-r/log.csv", "step,eval_loss\nx,1\n", "not a training log"),
        ("results/two_party/rows.csv", "architecture,bytes\nSM,many\n", "line 2: not a cost"),
        *(
            (
                "results/two_party/rows.csv",
                f"architecture,model,context,program,bytes,seconds\nSM,gpt2,128,tuned,{values}\n",
                f"line 2: not a cost (ValueError: {said}",
            )
            for values, said in {
                "inf,1": "bytes is inf",
                "-1,1": "bytes is -1",
                "nan,1": "bytes is nan",
                ",1": "bytes is missing",
                "7,inf": "seconds is inf",
                "7,-1e9": "seconds is -1e9",
            }.items()
        ),
    ],
)
def test_a_broken_file_is_named_and_left_out(tmp_path: Path, name: str, text: str, problem: str) -> None:
    root = made_results.project(tmp_path, runs=("sm-r", "sm-g"))
    (root / name).write_text(text, encoding="utf-8")
    results = load(root)
    assert any(problem in found and name in found for found in results.problems)
    assert len(results.seeds("sm-g")) == 3


def test_the_scale_is_the_active_one_if_it_has_results_else_the_largest(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-r",), scale="smoke")
    assert load(root).scale == "smoke"
    made_results.write_run(root / "results/gpu/sm-r", "sm-r", 1337, "gpu")
    assert load(root).scale == "smoke"
    (root / "params.yaml").write_text("scale: laptop\n", encoding="utf-8")
    assert load(root).scale == "gpu" and load(root, "smoke").scale == "smoke"
    assert load(root).scales == ("gpu", "smoke")


def test_no_project_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no params.yaml at or above"):
        find_root(tmp_path)


@pytest.mark.parametrize("text", ["a: [", "[1]", "scale: laptop\nscale: smoke\n", "? " * 1000])
def test_parameters_that_are_none_are_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"params\.yaml (is not valid YAML|must hold a mapping)"):
        load(tmp_path)


def test_fresh_costs_replace_kept_ones_row_by_row(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    made_results.write_costs(root / "runs" / "two_party")
    path = root / "runs/two_party/rows.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    small = [line.replace(",gpt2,128,", ",laptop,64,") for line in lines[1:3]]
    changed = lines[1].replace("15300000000", "14000000000")
    path.write_text("\n".join([lines[0], *small, changed]) + "\n", encoding="utf-8")
    results = load(root)
    assert results.cost("SM+LN+G", "as_written").bytes == 14_000_000_000
    assert results.cost("SM+LN+G", "as_written").path == "runs/two_party/rows.csv"
    assert results.cost("SM+ScFFN", "tuned").path == "results/two_party/rows.csv"
    assert results.cost("SM+LN+G", "tuned", 64, "laptop").bytes == 6_120_000_000


def test_entropies_of_an_earlier_training_are_named_and_left_out(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-r",), seeds=(1337,))
    assert load(root).first("sm-r").entropy is not None
    path = root / "results/laptop/sm-r/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["provenance"]["started"] = "2026-02-02T00:00:00+00:00"
    path.write_text(json.dumps(metrics))
    results = load(root)
    assert results.first("sm-r").entropy is None
    assert results.problems == (
        "results/laptop/sm-r/entropy.json: left out, measured on an earlier training; measure it again",
    )
