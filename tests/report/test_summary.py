"""The few numbers that DVC compares: of one run, by its stage, and of the whole report."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made_results
import pytest
import yaml

from aero.architecture import parse
from aero.config import load as load_parameters
from aero.report import claims, summary
from aero.report.results import Results
from aero.two_party.cost.composition import estimate
from aero.two_party.cost.cost_model import COMMITTED_FILES, measured_operations
from aero.two_party.cost.counts import published_sizes
from stages import summary as stage

RUN = "sm-scfuffn"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's parameters and kept operations, and one made training."""
    shutil.copyfile(made_results.PROJECT / "params.yaml", tmp_path / "params.yaml")
    for name in COMMITTED_FILES:
        if (made_results.PROJECT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made_results.PROJECT / name, tmp_path / name)
    made_results.write_run(tmp_path / f"runs/{RUN}/seed_1337", RUN, 1337, perplexity=40.0)
    return tmp_path


def written(root: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict:
    monkeypatch.chdir(root)
    stage.main([RUN, *arguments])
    return json.loads((root / f"runs/{RUN}/seed_1337/summary.json").read_text(encoding="utf-8"))


def test_a_run_in_a_few_numbers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(project, monkeypatch)
    assert list(found) == ["scale", "architecture", "perplexity", "entropy", "as_written", "tuned"]
    assert (found["scale"], found["architecture"], found["perplexity"]) == ("laptop", "SM+ScFuFFN", 40.0)
    operations = measured_operations(load_parameters().two_party.variant(), files=COMMITTED_FILES)
    for program in ("as_written", "tuned"):
        one = estimate(parse("SM+ScFuFFN"), published_sizes("gpt2", 128), program, operations)
        assert found[program]["gigabytes"] == round(one.bytes / 1e9, 4)
        # 100 Mbit/s are 12.5 MB/s; 80 ms a round.
        minutes = (one.seconds + one.wire_bytes / 12.5e6 + one.rounds * 0.08) / 60
        assert found[program]["wan_minutes"] == pytest.approx(minutes, abs=0.006)
        assert set(found[program]) == {"gigabytes", "rounds", "wan_minutes"}


def test_entropies_by_hand() -> None:
    values = {
        "entropy_mean": [[1.0, 2.0], [3.0, None], [math.inf, 0.0]],
        "maximum": {"causal_bound": 3.0},
        "overload": {"fraction": 1 / 6},
        "collapse": {"fraction": 0.5},
    }
    assert stage.entropy(values) == {
        "mean_nats": 1.5,
        "of_bound": 0.5,
        "overloaded_percent": 16.67,
        "collapsed_percent": 50.0,
    }
    assert stage.entropy(values | {"entropy_mean": [[None]]}) == {
        "overloaded_percent": 16.67,
        "collapsed_percent": 50.0,
    }


def test_a_diverged_run_has_its_step_and_no_perplexity() -> None:
    metrics = {"scale": "laptop", "architecture": "SM", "diverged_at_step": 180, "eval_perplexity": None}
    assert stage.trained(metrics) == {"scale": "laptop", "architecture": "SM", "diverged_at_step": 180}


def test_what_was_not_measured_is_left_out_and_told(project: Path, monkeypatch, capsys) -> None:
    values = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    values["two_party"]["fraction_bits"] = 20
    (project / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    found = written(project, monkeypatch)
    assert set(found) == {"scale", "architecture", "perplexity", "entropy"}
    assert "no cost of program tuned: no operation measured with cheetah-FM64-20-exact" in capsys.readouterr().out


def test_without_a_training_it_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(ValueError, match=r"seed_1337/metrics.json is not there; .*: dvc repro summary@sm-1337"):
        stage.main(["sm"])
    with pytest.raises(ValueError, match="sm-scfufn"):
        stage.main(["sm-scfufn"])


def test_one_table_tells_what_a_change_did(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dvc metrics diff` on the summaries of two architectures: perplexity, entropy and cost, and what did not change
    is not in it.
    """

    def run(*command: str) -> str:
        environment = os.environ | {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "DVC_NO_ANALYTICS": "1"}
        environment |= {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
        finished = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    written(project, monkeypatch)
    metrics = f"runs/{RUN}/seed_1337/summary.json"
    (project / "dvc.yaml").write_text(f"metrics:\n  - {metrics}\n", encoding="utf-8")
    run("git", "init", "-q")
    run(sys.executable, "-m", "dvc", "init", "-q")
    run("git", "add", "dvc.yaml", metrics, ".dvc", "params.yaml")
    run("git", "commit", "-qm", "before")
    path = project / f"runs/{RUN}/seed_1337/metrics.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values |= {"architecture": "SM+ScFuFFNi_6", "eval_perplexity": 44.0}
    path.write_text(json.dumps(values), encoding="utf-8")
    written(project, monkeypatch)
    table = run(sys.executable, "-m", "dvc", "metrics", "diff", "--md")
    lines = {
        line.split("|")[2].strip(): [cell.strip() for cell in line.split("|")[3:6]]
        for line in table.splitlines()[2:]
        if "|" in line
    }
    assert lines["perplexity"] == ["40.0", "44.0", "4.0"]
    assert lines["architecture"][:2] == ["SM+ScFuFFN", "SM+ScFuFFNi_6"]
    before, after, change = map(float, lines["as_written.gigabytes"])
    assert before > after and change == pytest.approx(after - before)
    # In the tuned program every linear FFN is folded away: pruning six of them saves nothing there.
    assert "tuned.gigabytes" not in lines and "entropy.mean_nats" not in lines


def test_the_reports_numbers_have_entropies(full: Results) -> None:
    found = summary.summary(full, claims.judge(full))
    entry = found["runs"]["sm-ln-r"]
    means = [sum(map(sum, run.entropy.mean)) / 48 for run in full.seeds("sm-ln-r")]
    assert entry["entropy_nats"] == pytest.approx(sum(means) / 3, abs=1e-4)
    overloaded = [100 * run.entropy.overload["fraction"] for run in full.seeds("sm-ln-r")]
    assert entry["overloaded_percent"] == pytest.approx(sum(overloaded) / 3, abs=1e-3)
    assert entry["collapsed_percent"] == 0 and "perplexity" in entry
