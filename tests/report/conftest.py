"""Projects with made results, built once."""

from __future__ import annotations

from pathlib import Path

import executed_notebook
import made_results
import nbformat
import pytest

from aero.report import diagram_figures, render
from aero.report import results as results_module
from aero.report.results import Results


@pytest.fixture(scope="session")
def full_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run with three seeds, all costs."""
    return made_results.project(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="session")
def empty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing measured at all."""
    return made_results.project(tmp_path_factory.mktemp("empty"), runs=(), costs=False)


@pytest.fixture(scope="session")
def full(full_root: Path) -> Results:
    return results_module.load(full_root)


@pytest.fixture(scope="session")
def empty(empty_root: Path) -> Results:
    return results_module.load(empty_root)


@pytest.fixture(scope="session")
def kept_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the project's kept results, without fresh ones that a reader may have; rendered once for all, of a
    notebook that was executed by the README's command."""
    root = tmp_path_factory.mktemp("kept")
    (root / "reports").mkdir()
    for name in ("params.yaml", "dvc.yaml", "results", str(render.SOURCE)):
        (root / name).symlink_to(made_results.PROJECT / name)
    executed_notebook.by_command(render.SOURCE.stem, root / "own.ipynb", root)
    return render.compose_html(render.body_of(nbformat.read(root / "own.ipynb", 4)), "kept results")


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One seed of every run that a figure of attention entropy needs."""
    root = tmp_path_factory.mktemp("everything")
    runs = tuple(made_results.RUNS) + tuple(made_results.MORE_RUNS)
    made_results.project(root, seeds=(1337,), runs=runs)
    with (root / "results/two_party/ops.csv").open("a", encoding="utf-8") as file:
        for megabytes, (_, kind, _) in enumerate(diagram_figures.STEPS, start=1):
            shape = "128x768,768x768" if kind == "linear" else "made"
            file.write(f'{kind},"{shape}",gpt2,128,made,{megabytes}000000,{megabytes}000000,9,9,9,1.0,\n')
    return results_module.load(root)
