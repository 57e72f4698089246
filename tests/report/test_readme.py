"""README.md against the project: its headline table is that of the kept results, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import made_results
import pytest
import yaml

from aero.parameters import load as load_parameters
from aero.report.readme import with_headline
from aero.report.results import load

PROJECT = made_results.PROJECT
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
    used = re.findall(r"\b(\w+)@([\w-]+-\d+)", README)
    assert used and all(stage in stages and training in trainings for stage, training in used), used
    values = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    for text in re.findall(r"-S '?([\w.-]+)=", README):
        part = values
        for key in text.split("."):
            assert key in part, f"params.yaml has no {text}"
            part = part[key]
