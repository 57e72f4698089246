"""The few numbers that DVC compares: of one run, by its stage, and of the whole report."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import synthetic
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
    shutil.copyfile(synthetic.PROJECT / "params.yaml", tmp_path / "params.yaml")
    for name in COMMITTED_FILES:
        if (synthetic.PROJECT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(synthetic.PROJECT / name, tmp_path / name)
    synthetic.write_run(tmp_path / f"runs/{RUN}/seed_1337", RUN, 1337, perplexity=40.0)
    return tmp_path


def written(root: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict:
    monkeypatch.chdir(root)
    stage.main([RUN, *arguments])
    return json.loads((root / f"runs/summaries/{RUN}-1337.json").read_text(encoding="utf-8"))


def test_a_run_in_a_few_numbers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(project, monkeypatch)
    assert list(found) == ["scale", "architecture", "config_hash", "perplexity", "entropy", "as_written", "tuned"]
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
    metrics = {"scale": "laptop", "architecture": "SM", "config_hash": "0", "diverged_at_step": 180}
    assert stage.trained(metrics) == metrics


def test_what_was_not_measured_is_left_out_and_told(project: Path, monkeypatch, capsys) -> None:
    values = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    values["two_party"]["fraction_bits"] = 20
    (project / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    found = written(project, monkeypatch)
    assert set(found) == {"scale", "architecture", "config_hash", "perplexity", "entropy"}
    assert "no cost of program tuned: no operation measured with cheetah-FM64-20-exact" in capsys.readouterr().out


def test_without_a_training_it_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(ValueError, match=r"seed_1337/metrics.json is missing; .*: dvc repro summary@sm-1337"):
        stage.main(["sm"])
    with pytest.raises(ValueError, match="sm-scfufn"):
        stage.main(["sm-scfufn"])


def test_the_reports_numbers_have_entropies(full: Results) -> None:
    found = summary.summary(full, claims.judge(full))
    entry = found["runs"]["sm-ln-r"]
    means = [sum(map(sum, run.entropy.mean)) / 48 for run in full.seeds("sm-ln-r")]
    assert entry["entropy_nats"] == pytest.approx(sum(means) / 3, abs=1e-4)
    overloaded = [100 * run.entropy.overload["fraction"] for run in full.seeds("sm-ln-r")]
    assert entry["overloaded_percent"] == pytest.approx(sum(overloaded) / 3, abs=1e-3)
    assert entry["collapsed_percent"] == 0 and "perplexity" in entry
