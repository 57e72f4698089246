"""`make keep`: what of runs/ is copied to results/, and what is refused before anything is touched."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aero.errors import UserError
from aero.records import read_all_metrics
from aero.two_party.cost import ledger
from stages import keep

ROOT = Path(__file__).resolve().parents[1]
METRICS = next(iter(read_all_metrics(ROOT / "results/laptop").values()))


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def placed(name: str, content: object) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def refused(said: str, *arguments: str) -> None:
    before = sorted(path.as_posix() for path in Path("results").rglob("*"))
    with pytest.raises(UserError, match=said) as caught:
        keep.main(list(arguments))
    assert "\n" not in str(caught.value)
    assert sorted(path.as_posix() for path in Path("results").rglob("*")) == before


def test_a_pipe_is_not_waited_for(inside):
    Path("runs/default/sm-r/seed_1337").mkdir(parents=True)
    os.mkfifo("runs/default/sm-r/seed_1337/metrics.json")
    refused("is a folder, pipe, socket or device")


def costs(name: str = "ops") -> list[ledger.Measurement]:
    return ledger.read(ROOT / f"results/two_party/{name}.csv", ledger.Measurement)


def test_costs_replace_those_that_they_contain_and_no_others(inside):
    target, fresh = Path("results/two_party/ops.csv"), Path("runs/two_party/ops.csv")
    target.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / target, target)
    rows = costs()
    ledger.write(fresh, rows[:-1], ledger.Measurement)
    refused(f"lacks 1 of the lines of {target}")
    assert target.read_bytes() == (ROOT / target).read_bytes()
    placed("runs/two_party/contents.json", {"files": 1, "sha256": "0" * 64})
    slower = [replace(row, seconds=2 * row.seconds) for row in rows]
    ledger.write(fresh, slower, ledger.Measurement)
    keep.main([])
    assert ledger.read(target, ledger.Measurement) == slower


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "garbage", "rows.csv is not a file of costs"),
        ("rows.csv", "garbage\nmore\n", "rows.csv is not a file of costs"),
        ("ops.csv", "op,shape,variant\na,b,c\n", "ops.csv is not a file of costs"),
        ("end_to_end.json", '[{"scale": "laptop"}, 3]', "end_to_end.json is not a file of costs"),
        ("end_to_end.json", "[" * 100_000, "end_to_end.json is not a file of costs"),
    ],
)
def test_damaged_costs_are_refused(inside, name, text, said):
    placed(f"runs/two_party/{name}", text)
    refused(said)


def test_costs_of_uncommitted_code_are_refused_and_those_of_small_models_left(inside):
    fresh = Path("runs/two_party/ops.csv")
    (first, *_) = costs()
    made = json.loads(first.provenance)
    changed = replace(first, provenance=json.dumps(made | {"commit": made["commit"] + "+changes"}))
    ledger.write(fresh, [changed], ledger.Measurement)
    refused("uncommitted code")
    ledger.write(fresh, [replace(first, provenance="{}")], ledger.Measurement)
    refused("does not name the commit")
    ledger.write(fresh, [changed], ledger.Measurement)
    keep.main(["--allow-changes"])
    assert ledger.read(Path("results/two_party/ops.csv"), ledger.Measurement) == [changed]
    ledger.write(fresh, [replace(first, model="own-gpt2")], ledger.Measurement)
    refused("no results in runs")
    fresh.unlink()
    entry = {"run": "sm", "scale": "smoke", "provenance": made}
    placed("runs/two_party/end_to_end.json", [entry])
    refused("no results in runs")
    placed("runs/two_party/end_to_end.json", [entry | {"scale": "laptop"}])
    keep.main([])
    assert json.loads(Path("results/two_party/end_to_end.json").read_text())[0]["scale"] == "laptop"


def test_parallel_contexts_of_uncommitted_code_are_refused(inside):
    made = METRICS["provenance"]
    path = placed(
        "runs/parallel_context/model.jsonl", json.dumps({"run": made | {"commit": made["commit"] + "+changes"}})
    )
    refused("uncommitted code")
    path.write_text(json.dumps({"run": made}) + "\n" + json.dumps({"task": "docs"}) + "\n")
    keep.main([])
    assert Path("results/parallel_context/model.jsonl").read_text() == path.read_text()
