"""Which results count: fresh before committed, one recipe a mean; what cannot be used is named."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import synthetic

from aero.errors import UserError
from aero.records import csv_text
from aero.report.results import find_root, load
from aero.two_party.cost import ledger


def test_a_fresh_result_replaces_the_committed_one(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=("sm-r",))
    synthetic.write_run(root / "runs/default/sm-r" / "seed_1338", "sm-r", 1338, perplexity=20.0)
    results = load(root)
    assert results.perplexity("sm-r")[1338] == 20.0
    assert [run.fresh for run in results.seeds("sm-r")] == [False, True, False]


def test_seeds_of_another_corpus_are_named_and_left_out(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=("sm-r",))
    synthetic.write_run(root / "runs/default/sm-r" / "seed_1337", "sm-r", 1337, corpus_sha256="cd" * 32)
    results = load(root)
    assert [run.seed for run in results.seeds("sm-r")] == [1337] and len(results.problems) == 2


def test_the_number_of_threads_is_not_part_of_the_recipe(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=("sm-r",))
    folder = root / "runs/default/sm-r/seed_1338"
    synthetic.write_run(folder, "sm-r", 1338)
    for key, value, seeds in (("threads", 8, 3), ("steps", 9, 1)):
        metrics = json.loads((folder / "metrics.json").read_text())
        metrics["train"][key] = value
        (folder / "metrics.json").write_text(json.dumps(metrics))
        assert len(load(root).seeds("sm-r")) == seeds


def test_damaged_lines_of_costs_are_named_and_left_out(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    names = ("fitted_figure15_rows.csv", "fitted_rows.csv", "rows.csv")
    for name in names:
        (root / "results/two_party" / name).write_text("architecture,bytes\nSM,many\n", encoding="utf-8")
    results = load(root)
    assert not results.costs
    assert sorted(problem.split(":")[0] for problem in results.problems) == [
        f"results/two_party/{name}, line 2" for name in names
    ]


def test_costs_whose_parts_contradict_them_are_named_and_left_out(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    path = root / "results/two_party/rows.csv"
    shutil.copyfile(synthetic.PROJECT / "results/two_party/rows.csv", path)
    whole = load(root)
    assert whole.costs and not whole.problems
    rows = list(csv.DictReader(path.open(encoding="utf-8", newline="")))
    rows[0]["bytes"] = str(float(rows[0]["bytes"]) / 2)
    path.write_text(csv_text(list(rows[0]), rows), encoding="utf-8")
    results = load(root)
    assert len(results.costs) == len(whole.costs) - 1 and "rows.csv, line 2" in results.problems[0]
    with pytest.raises(ValueError, match="line 2: bytes is .* not the sum"):
        ledger.read(path, ledger.Row)


@pytest.mark.parametrize(("field", "value"), [("architecture", "SM+G"), ("seed", 7)])
def test_a_training_that_params_yaml_does_not_have_is_named_and_left_out(tmp_path: Path, field, value) -> None:
    root = synthetic.project(tmp_path, runs=("sm-r",))
    path = root / "results/laptop/metrics.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {field: value}), *others]) + "\n", encoding="utf-8")
    results = load(root)
    assert len(results.seeds("sm-r")) == 2 and "sm-r seed" in results.problems[0]


@pytest.mark.parametrize("runs", [("sm-r",), ("ereg-smt-scfuffn",)])
@pytest.mark.parametrize(
    ("section", "name", "value", "named"),
    [
        ("model", "width", 96, "model.width 96, in params.yaml it is 64"),
        ("train", "learning_rate", 0.1, "train.learning_rate 0.1, in params.yaml it is 0.001"),
        ("regularizer", "gamma", 0.9, "regularizer.gamma 0.9, in params.yaml it is 0.2"),
        (None, "context", 32, "context 32, in params.yaml it is 64"),
        (None, "corpus", "codeparrot", "corpus 'codeparrot', in params.yaml it is 'python_stdlib'"),
        ("provenance", "corpus_sha256", "cd" * 32, "another model, corpus or budget"),
        ("model", "vocabulary", 50257, "another model, corpus or budget"),
    ],
)
def test_one_committed_seed_of_another_recipe_is_left_out(tmp_path: Path, runs, section, name, value, named) -> None:
    root = synthetic.project(tmp_path, runs=runs)
    path = root / "results/laptop/metrics.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines()
    metrics = json.loads(first)
    assert metrics["seed"] == 1337
    changed = {name: value} if section is None else {section: (metrics[section] or {}) | {name: value}}
    path.write_text("\n".join([json.dumps(metrics | changed), *others]) + "\n", encoding="utf-8")
    results = load(root)
    assert [run.seed for run in results.seeds(*runs)] == [1338, 1339]
    assert all("seed 1337" in problem for problem in results.problems) and named in results.problems[-1]


def test_the_scale_is_the_active_one_if_it_has_results(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=("sm-r",), seeds=(1337,), scale="smoke")
    assert load(root).scale == "smoke" and load(root, "laptop").scale == "laptop"
    parameters = (root / "params.yaml").read_text(encoding="utf-8")
    (root / "params.yaml").write_text(parameters.replace("scale: smoke", "scale: laptop"), encoding="utf-8")
    assert load(root).scale == "smoke"


def test_no_project_and_damaged_parameters_are_clear_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no params.yaml"):
        find_root()
    (tmp_path / "params.yaml").write_text("scale: laptop\nscale: smoke\n", encoding="utf-8")
    with pytest.raises(UserError, match="params.yaml"):
        load(tmp_path)


def test_fresh_costs_replace_committed_ones_row_by_row(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    synthetic.write_costs(root / "runs" / "two_party")
    path = root / "runs/two_party/rows.csv"
    head, first, *_ = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{head}\n{first.replace('15300000000', '14000000000')}\n", encoding="utf-8")
    results = load(root)
    assert results.cost("SM+LN+G", "as_written").bytes == 14_000_000_000
    assert results.cost("SM+LN+G", "as_written").path == "runs/two_party/rows.csv"
    assert results.cost("SM+ScFFN", "tuned").path == "results/two_party/rows.csv"


def test_entropies_of_an_earlier_training_are_left_out(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    folder = root / "runs/default/sm-r/seed_1337"
    synthetic.write_run(folder, "sm-r", 1337)
    assert load(root).first("sm-r").entropy is not None
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["provenance"]["started"] = "2026-02-02T00:00:00+00:00"
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert load(root).first("sm-r").entropy is None
