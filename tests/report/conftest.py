"""Projects with synthetic results, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic

from aero.report import results as results_module
from aero.report.results import Results


@pytest.fixture(scope="session")
def full_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of AERO's Tables 2 and 4 with three seeds, and all costs."""
    return synthetic.project(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="session")
def empty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing measured at all."""
    return synthetic.project(tmp_path_factory.mktemp("empty"), runs=(), costs=False)


@pytest.fixture(scope="session")
def committed() -> Results:
    """Of the repository: results/, and runs/ if there is one."""
    return results_module.load(synthetic.PROJECT)


@pytest.fixture(scope="session")
def full(full_root: Path) -> Results:
    return results_module.load(full_root)


@pytest.fixture(scope="session")
def empty(empty_root: Path) -> Results:
    return results_module.load(empty_root)


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One seed of every run that a figure needs."""
    runs = (*synthetic.RUNS, *synthetic.MORE_RUNS)
    return results_module.load(synthetic.project(tmp_path_factory.mktemp("everything"), seeds=(1337,), runs=runs))
