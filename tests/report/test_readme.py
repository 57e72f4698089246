"""README.md against the project: its headline table is that of the kept results, and what it names exists."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import made_results
import pytest
import yaml

from aero.config import load as load_parameters
from aero.report import (
    claims,
    summary,
)
from aero.report.readme import with_headline
from aero.report.results import load
from stages.report import texts_of
from stages.summary import cost

PROJECT = made_results.PROJECT
REPORTS = PROJECT / "reports"
README = (PROJECT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with its kept results and without fresh ones, which a reader may have."""
    root = tmp_path_factory.mktemp("kept")
    for name in ("params.yaml", "results", "reports"):
        (root / name).symlink_to(PROJECT / name)
    return root


def test_the_headline_table_is_that_of_the_results(kept: Path) -> None:
    scale = re.search(r"Measured side: scale (\w+)", README).group(1)
    assert with_headline(README, load(kept, scale)) == README, "run python -m aero.report.readme"


def test_the_committed_tables_and_claims_are_those_of_the_results(kept: Path) -> None:
    """All that the stage writes but the page itself, whose rendering takes half a minute."""
    scale = re.search(r"Measured side: scale (\w+)", README).group(1)
    results = load(kept, scale)
    judged = claims.judge(results)
    texts = texts_of(results, judged) | summary.files(results, judged)
    made = {path.as_posix(): text for path, text in texts.items()}
    committed = {
        path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8")
        for path in (*REPORTS.glob("tables/*"), REPORTS / "claims.csv", REPORTS / "metrics.json")
    }
    assert len(made) > 25 and set(made) == set(committed)
    assert [name for name in sorted(made) if made[name] != committed[name]] == [], "run make report and commit reports/"


def test_links_and_files_it_names_exist() -> None:
    named = set(re.findall(r"\]\(([^)#]+)\)", README)) | set(
        re.findall(r"`((?:aero|docs|reports|results|benchmarks|stages|tests)/[\w./-]+)`", README)
    )
    made = {"reports/report.html", "reports/report.pdf"}
    missing = [name for name in named if "://" not in name and name not in made and not (PROJECT / name).exists()]
    assert len(named) > 10 and missing == []


def test_stages_and_parameters_it_names_exist() -> None:
    parameters = load_parameters(PROJECT / "params.yaml")
    stages = yaml.safe_load((PROJECT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    trainings = {f"{run}-{seed}" for run in parameters.active_runs for seed in parameters.seeds}
    others = {f"{run}-{seed}" for run in parameters.more_runs for seed in parameters.seeds}
    used = re.findall(r"(catalogue/dvc\.yaml:)?\b(\w+)@([\w-]+-\d+)", README)
    for elsewhere, stage, training in used:
        assert stage in stages and training in (others if elsewhere else trainings), training
    assert {bool(elsewhere) for elsewhere, *_ in used} == {False, True}
    values = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    for text in re.findall(r"""-S ["']?([\w.-]+)=""", README):
        part = values
        for key in text.split("."):
            assert key in part, f"params.yaml has no {text}"
            part = part[key]


def test_its_example_costs_what_the_stage_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What of the example does not need a training: the costs of both architectures, and the number it looks up."""
    monkeypatch.chdir(PROJECT)
    parameters = load_parameters()
    lines = re.findall(r"summary\.json +(\w+)\.(\w+) +(\S+) +(\S+) +(\S+)\n", README)
    costs = [cost(parameters, "sm-scfuffn", name) for name in ("SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)")]
    shown = [(program, *rest) for program, *rest in lines if program in costs[0]]
    assert len(shown) == 6
    for program, quantity, before, after, change in shown:
        assert (float(before), float(after)) == tuple(one[program][quantity] for one in costs)
        assert float(change) == pytest.approx(float(after) - float(before), abs=1e-4)
    looked_up = re.search(r"the ● ([\d.]+) GB of `SM\+LN\+R` above", README).group(1)
    with (PROJECT / "results/two_party/rows.csv").open(encoding="utf-8", newline="") as file:
        lines_ = [line for line in csv.DictReader(file) if line["architecture"] == "SM+LN+R"]
    bytes_ = [float(line["bytes"]) for line in lines_ if line["program"] == "as_written" and line["context"] == "128"]
    assert [f"{one / 1e9:.2f}" for one in bytes_] == [looked_up]
