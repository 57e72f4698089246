"""The short form of `make faults`: the pipeline is struck a few times, and the judgement itself can fail."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch

from aero.checkpoint import write_tensors
from aero.pipeline import ROOT
from benchmarks.fault_results import content_of, md5_of
from benchmarks.faults import Project


@pytest.mark.slow
def test_a_struck_pipeline_leaves_whole_results_and_goes_on(tmp_path):
    """Two strikes of different kinds on one training and its entropy, under DVC."""
    out = tmp_path / "faults.json"
    command = ["-m", "benchmarks.faults", "--moments", "2", "--targets", "entropy@sm-r-1337", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = json.loads(out.read_text())
    assert sum(case["count"] for case in found["cases"][:-1]) == 2 and found["failures"] == []
    assert all(case["passed"] == case["count"] for case in found["cases"]) and found["cases"][-1]["count"] >= 1
    assert set(found["provenance"]) >= {"commit", "machine", "started", "seconds"}


@pytest.mark.parametrize(
    ("name", "text", "damaged"),
    [
        ("metrics.json", '{"loss": 1, "seconds": 3}', False),
        ("metrics.json", '{"loss": 1, "seco', True),
        ("metrics.json", "", True),
        ("log.csv", "step,loss,seconds\n1,2,3\n", False),
        ("log.csv", "step,loss,seconds\n1,2,3\n2,", True),
        ("log.csv", "step,loss,seconds\n1,2,3", True),
        ("checkpoint.safetensors", "x" * 100, True),
        ("reports/report.html", "<html><p>1</p></html>\n", False),
        ("reports/report.html", "<html><p>1</p>", True),
        ("reports/report.pdf", "%PDF-1.7 …", True),
        ("reports/claims.csv", "id,verdict\na,b\nc", True),
        ("reports/metrics.json", '{"reproduced": ', True),
        ("ops.csv", "op,shape\nsoftmax,2x2\n", True),
        ("passes/sm.json", '[{"run": "sm"}]', True),
    ],
)
def test_what_is_half_written_is_seen(tmp_path, name, text, damaged):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert content_of(tmp_path / name).startswith("damaged") == damaged


def test_times_do_not_count_and_everything_else_does(tmp_path):
    path = tmp_path / "log.csv"
    seen = []
    for row in ("1,2,3", "1,2,4", "1,3,3"):
        path.write_text(f"step,loss,seconds\n{row}\n")
        seen.append(content_of(path))
    assert seen[0] == seen[1] != seen[2]
    path = tmp_path / "checkpoint.safetensors"
    for value in (1.0, 1.0, 2.0):
        write_tensors(path, {"w": torch.tensor([value])}, {"format": "aero-checkpoint-1"})
        seen.append(content_of(path))
    assert seen[3] == seen[4] != seen[5]


def test_of_what_is_measured_the_settings_and_the_bytes_count(tmp_path):
    entry = {"run": "sm", "program": "tuned", "scale": "smoke", "prompts": 2, "tokens": 8, "max_logit_error": 0.1}
    path = tmp_path / "passes" / "sm.json"
    path.parent.mkdir()
    seen = []
    for changed, settings in (({}, "18"), ({"max_logit_error": 0.2}, "18"), ({"tokens": 9}, "18"), ({}, "17")):
        path.write_text(json.dumps([entry | changed | {"provenance": {"settings": settings}}]))
        seen.append(content_of(path))
    assert seen[0] == seen[1] and len(set(seen)) == 3
    kept = ROOT / "results/two_party/rows.csv"
    text = kept.read_text()
    path = tmp_path / "rows.csv"
    seen = []
    for changed in (text, text.replace("Linux", "another"), text.replace(",as_written,", ",another,")):
        path.write_text(changed)
        seen.append(content_of(path))
    assert seen[0] == seen[1] != seen[2] and not seen[2].startswith("damaged")


def test_a_report_of_two_renderings_is_told(tmp_path, monkeypatch):
    project = Project(tmp_path, ["report"])
    assert project.runs == ["sm-scfuffn"]
    project.runs = []  # trainings are another test's
    monkeypatch.setattr(project, "_lock_problems", list)
    folder = tmp_path / "reports"

    def write(text, *names):
        for name in names:
            (folder / name).write_text(text)

    write("<html>1</html>", "report.html")
    write("{}", "metrics.json")
    project.expected = dict.fromkeys(("one", "other"), project.contents())
    project.rendered = project.report()
    assert project.problems() == [] and set(project.rendered) == {"reports/report.html", "reports/metrics.json"}
    write("<html>2</html>", "report.html")
    assert "others beside it are not" in project.problems()[0]
    (folder / "metrics.json").unlink()
    assert project.problems() == []
    (folder / "report.html").unlink()
    assert project.problems() == ["reports/report.html is gone"]


def test_a_folder_is_hashed_as_dvc_does(tmp_path):
    (tmp_path / "tokens" / "sub").mkdir(parents=True)
    for name in ("b", "a", "sub/c"):
        (tmp_path / "tokens" / name).write_text(name)
    assert md5_of(tmp_path / "tokens" / "a") == hashlib.md5(b"a").hexdigest() and md5_of(tmp_path / "none") is None
    listed = ", ".join(
        f'{{"md5": "{hashlib.md5(name.encode()).hexdigest()}", "relpath": "{name}"}}' for name in ("a", "b", "sub/c")
    )
    assert md5_of(tmp_path / "tokens") == hashlib.md5(f"[{listed}]".encode()).hexdigest() + ".dir"


def test_results_that_are_gone_wrong_or_of_two_trainings_are_named(tmp_path, monkeypatch):
    project = Project(tmp_path, ["entropy@sm-r-1337"])
    monkeypatch.setattr(project, "_lock_problems", list)
    folder = tmp_path / "runs/sm-r/seed_1337"
    folder.mkdir(parents=True)
    names = ("checkpoint.safetensors", "log.csv", "metrics.json")

    def write(seed, chosen=names):
        for name in chosen:
            if name.endswith("json"):
                (folder / name).write_text(json.dumps({"loss": seed}))
            elif name.endswith("csv"):
                (folder / name).write_text(f"step,loss\n1,{seed}\n")
            else:
                write_tensors(folder / name, {"w": torch.tensor([float(seed)])}, {"format": "aero-checkpoint-1"})

    for seed, variant in enumerate(("one", "other")):
        write(seed)
        project.expected[variant] = project.contents()
        assert len(project.expected[variant]) == 3
    assert project.problems() == []
    write(0, ["log.csv"])
    assert project.problems() == ["sm-r: the files are not of one training"]
    write(3, ["log.csv"])
    assert "neither the old nor the new one" in project.problems()[0]
    write(1)
    (folder / "metrics.json").unlink()
    assert "runs/sm-r/seed_1337/metrics.json is gone" in project.problems()
    write(1)
    (folder / "log.unfinished.csv").write_text("step,l")
    (folder / "metrics.json.tmp").write_text("{")
    assert project.problems() == []
