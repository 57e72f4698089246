"""What `benchmarks.determinism` compares a training with."""

import json

import pytest

from benchmarks import determinism


def result(folder, losses, perplexity, heads, config_hash, weights=None):
    folder.mkdir(parents=True)
    (folder / "log.csv").write_text(
        "step,tokens,train_loss\n" + "".join(f"{i},{i},{x}\n" for i, x in enumerate(losses))
    )
    made = {"started": "2026-11-22T12:42:30+00:00"}
    metrics = {"eval_perplexity": perplexity, "config_hash": config_hash, "provenance": made}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "entropy.json").write_text(json.dumps({"entropy_mean": [heads]}))
    if weights is not None:
        (folder / "checkpoint.safetensors").write_bytes(weights)


def test_a_kept_result_of_the_very_training_is_compared_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(determinism, "ROOT", tmp_path / "project")
    monkeypatch.setattr(
        determinism, "trained", lambda folder, scale, run, name, threads, environment: ([1.0], 8.0, [2.0], b"w")
    )
    work = tmp_path / "work"
    result(work / "sm first", [4.0, 2.0], 8.0, [1.5, 0.5], "this recipe", b"weights")
    first = determinism.results_in(work / "sm first")
    trainings = ["the same again", "2 threads", *determinism.OLDER]
    assert [name for name, _ in determinism.others(work, "laptop", "sm")] == trainings
    kept = tmp_path / "project/results/laptop/sm"
    result(kept, [4.0, 2.1], 8.2, [1.5, 0.4], "this recipe")
    (name, found), *more = determinism.others(work, "laptop", "sm")
    assert name == "the kept result of 2026-11-22" and [name for name, _ in more] == trainings
    told = determinism.compared(first, found)
    assert not told["identical"] and told["steps"] == 2
    assert told["loss"] == pytest.approx(0.05) and told["perplexity"] == pytest.approx(0.025)
    assert told["entropy"] == pytest.approx(0.1)
    # Equal in all that is kept, which the weights are not.
    assert determinism.compared(first, (*first[:3], b""))["identical"]
    assert not determinism.compared(first, (*first[:3], b"others"))["identical"]
    assert not determinism.compared(first, ([4.0, 2.1], *first[1:3], b""))["identical"]
    (kept / "metrics.json").write_text((kept / "metrics.json").read_text().replace("this recipe", "another"))
    assert [name for name, _ in determinism.others(work, "laptop", "sm")] == trainings
