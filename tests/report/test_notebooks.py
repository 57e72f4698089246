"""One notebook a paper: each opens with jupytext and runs from start to end, on full results and on none."""

from __future__ import annotations

import shutil
from pathlib import Path

import jupytext
import made_results
import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from aero.published import known_papers
from aero.report import notebook, sensitivity
from aero.report.results import Results, load

FOLDER = made_results.PROJECT / "reports"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "aero")


def outputs(found: nbformat.NotebookNode) -> list[str]:
    return [
        "".join(output.get("data", {}).get("text/html", output.get("text", "")))
        for cell in found.cells
        for output in cell.get("outputs", [])
    ]


def executed(name: str, folder: Path) -> nbformat.NotebookNode:
    """The notebook as Jupyter runs it: in its own folder, in a kernel of this interpreter."""
    found = jupytext.read(FOLDER / f"{name}.py")
    NotebookClient(found, timeout=100, resources={"metadata": {"path": str(folder)}}).execute()
    return found


def test_every_paper_has_one() -> None:
    assert set(known_papers()) == {"aero", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_notebook_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(made_results.PROJECT))
    found = executed(name, FOLDER)
    assert found.metadata.kernelspec.name == "python3" and found.cells[0].cell_type == "markdown"
    nbformat.validate(found)
    shown = outputs(found)
    assert not any(output.get("output_type") == "error" for cell in found.cells for output in cell.get("outputs", []))
    assert sum("<table" in text for text in shown) >= 4 and any(
        "verdict" in text or "No claim" in text for text in shown
    )
    again = jupytext.reads(jupytext.writes(found, fmt="py:percent"), fmt="py:percent")
    assert [cell.source for cell in again.cells] == [cell.source for cell in found.cells]


def test_without_results_it_shows_gaps(empty_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    shutil.copytree(empty_root, root)
    monkeypatch.setenv("PYTHONPATH", str(made_results.PROJECT))
    monkeypatch.chdir(root)
    # In one process, as a script: what a kernel adds is tested above.
    for name in NAMES:
        code = jupytext.read(FOLDER / f"{name}.py")
        scope: dict[str, object] = {}
        for cell in code.cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{name}.py", "exec"), scope)  # the notebooks are this project's own
        assert scope["results"].runs == {}


def test_what_was_trained_is_what_the_files_say(full: Results) -> None:
    table = notebook.trained(full, ["sm-ln-g", "sm-r", "sm", "no-such-run"])
    assert list(table.index) == ["sm-ln-g", "sm-r", "sm"] and list(table["diverged"]) == [0, 0, 3]
    expected = [
        100 * (own.perplexity / base.perplexity - 1)
        for own, base in zip(full.seeds("sm-r"), full.seeds("sm-ln-g"), strict=True)
    ]
    assert table.loc["sm-r", "increase, %"] == pytest.approx(sum(expected) / 3)
    assert table.loc["sm-r", "low"] < min(expected) and pd.isna(table.loc["sm", "perplexity"])


def test_heads_are_those_of_the_files(full: Results) -> None:
    heads = notebook.heads(full, ["sm-ln-g"])
    first = full.seeds("sm-ln-g")[0]
    assert len(heads) == 3 * 12 * 4
    line = heads[(heads["seed"] == first.seed) & (heads["layer"] == 3) & (heads["head"] == 2)].iloc[0]
    assert line["entropy"] == first.entropy.mean[2][1]
    assert line["of observed maximum"] == pytest.approx(line["entropy"] / max(max(row) for row in first.entropy.mean))


def test_the_recomputed_metric_is_the_reports() -> None:
    """The notebook's few lines of pandas against `aero.sensitivity.metric`."""
    results = load(made_results.PROJECT)
    cells = [cell.source for cell in jupytext.read(FOLDER / "variance_sensitivity.py").cells]
    scope: dict[str, object] = {}
    exec(
        "import numpy as np\n" + next(source for source in cells if "def metric" in source).partition("measured =")[0],
        scope,
    )
    losses = pd.read_csv(results.root / sensitivity.folder(results) / "losses.csv")
    found, measured = scope["metric"](losses), sensitivity.sweep(results)
    assert len(found) >= 7
    for core, value in found.items():
        seeds = measured.sensitivities(core)
        assert value == pytest.approx(sum(seeds.values()) / len(seeds), rel=1e-4)
