"""One notebook a paper: each opens with jupytext and runs from start to end, on full results and on none."""

from __future__ import annotations

import sys
from pathlib import Path

import executed_notebook
import jupytext
import made_results
import nbformat
import pandas as pd
import pytest

from aero.published import known_papers
from aero.report import notebook, render, sensitivity
from aero.report.results import Results, load

FOLDER = made_results.PROJECT / "reports"
REPORT = render.SOURCE.stem
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != REPORT)


def outputs(found: nbformat.NotebookNode) -> list[str]:
    return [
        "".join(output.get("data", {}).get("text/html", output.get("text", "")))
        for cell in found.cells
        for output in cell.get("outputs", [])
    ]


def test_every_paper_has_one() -> None:
    assert set(known_papers()) == {"aero", *NAMES} and REPORT.startswith("aero")


def test_no_notebook_hides_a_package_from_the_others() -> None:
    """A kernel starts in the notebook's folder, which stands first on its path."""
    packages = {path.parent.name for path in made_results.PROJECT.glob("*/__init__.py")} | sys.stdlib_module_names
    assert "aero" in packages and not packages & {path.stem for path in FOLDER.glob("*.py")}


@pytest.fixture(scope="module", params=NAMES)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A notebook's name and where it is, executed by the README's command."""
    path = tmp_path_factory.mktemp("executed") / "own.ipynb"
    executed_notebook.by_command(request.param, path, made_results.PROJECT)
    return request.param, path


def test_it_is_a_notebook_that_runs_by_the_command_that_the_readme_gives(executed: tuple[str, Path]) -> None:
    name, path = executed
    found = nbformat.read(path, 4)
    shown = outputs(found)
    assert sum("<table" in text for text in shown) >= 4
    assert not any(output.get("output_type") == "error" for cell in found.cells for output in cell.get("outputs", []))
    assert found.metadata.kernelspec.name == "python3" and found.cells[0].cell_type == "markdown"
    nbformat.validate(found)
    assert any("verdict" in text or "No claim" in text for text in shown)
    source = jupytext.read(FOLDER / f"{name}.py")
    assert [cell.source for cell in source.cells] == [cell.source for cell in found.cells]
    again = jupytext.reads(jupytext.writes(found, fmt="py:percent"), fmt="py:percent")
    assert [cell.source for cell in again.cells] == [cell.source for cell in found.cells]


def test_without_results_it_shows_gaps(empty_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In one process, as a script: what a kernel adds is tested above.
    for name in NAMES:
        assert scope_of(name, empty_root, monkeypatch)["results"].runs == {}


def scope_of(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a notebook's cells leave, run in this process in the project `root`."""
    monkeypatch.chdir(root)
    scope: dict[str, object] = {}
    for cell in jupytext.read(FOLDER / f"{name}.py").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name}.py", "exec"), scope)  # the notebooks are this project's own
    return scope


def test_the_change_by_the_regulariser_is_paired_by_seed(full_root: Path, full: Results, monkeypatch) -> None:
    change = scope_of("entropy_guided", full_root, monkeypatch)["change"]
    assert len(change) == 6
    for plain, regularised in (("sm-scfuffn", "ereg-smt-scfuffn"), ("sm-scfuffni-6", "ereg-smt-scfuffni-6")):
        for own, base in zip(full.seeds(regularised), full.seeds(plain), strict=True):
            shares = []
            for run in (own, base):
                heads = [head for layer in run.entropy.mean for head in layer]
                shares.append(sum(head >= 0.75 * max(heads) for head in heads) / len(heads))
            assert change.loc[(regularised, own.seed), "overloaded"] == pytest.approx(shares[0] - shares[1])


def test_rank_correlation_by_hand(empty_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scope_of("parallel_context", empty_root, monkeypatch)["rank_correlation"]
    assert found(pd.DataFrame({"entropy": [1.0, 2.0, 5.0], "lost": [3.0, 9.0, 4.0]})) == pytest.approx(0.5)
    assert pd.isna(found(pd.DataFrame({"entropy": [1.0, 2.0], "lost": [7.0, 7.0]})))


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
