"""`dvc plots show` without a network: DVC's page with Vega in it, drawn by a browser that is asked for nothing else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import chromium
import made_results
import pytest
import yaml

from aero.errors import UserError
from aero.report import offline_plots

HAS_VEGA = importlib.util.find_spec("vl_convert") is not None
pytestmark = pytest.mark.skipif(not HAS_VEGA, reason="vl-convert-python is not installed")


def dvc(root: Path, *arguments: str) -> str:
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(made_results.PROJECT)}
    command = [sys.executable, "-m", "dvc", *arguments]
    finished = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC project with two curves in one picture, by the project's own template, and the page installed."""
    folder = tmp_path_factory.mktemp("project with a space")
    dvc(folder, "init", "--no-scm", "-q")
    for run, losses in (("one", "10,5.5\n20,4.5\n30,4.25"), ("two", "10,5.25\n20,4.25\n30,4.0")):
        (folder / run).mkdir()
        (folder / run / "log.csv").write_text(f"step,train_loss\n{losses}\n", encoding="utf-8")
    shutil.copytree(made_results.PROJECT / ".dvc/plots", folder / ".dvc/plots", dirs_exist_ok=True)
    curves = {"x": "step", "y": {f"{run}/log.csv": "train_loss" for run in ("one", "two", "absent")}}
    plots = {"plots": [{"training": curves | {"template": "by_file"}}, {"absent/log.csv": {"x": "step"}}]}
    (folder / "dvc.yaml").write_text(yaml.safe_dump(plots), encoding="utf-8")
    (folder / "params.yaml").write_text("{}\n", encoding="utf-8")
    # As `make install` does it, in a process of its own: one that had run other tests once could not load Vega.
    command = [sys.executable, "-m", "aero.report.offline_plots"]
    environment = os.environ | {"PYTHONPATH": str(made_results.PROJECT)}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert finished.stdout == f"{folder / '.dvc/plots.html'}: dvc plots show needs no network now\n", finished.stderr
    return folder


def test_the_page_has_the_places_dvc_fills_once(root: Path) -> None:
    text = (root / ".dvc/plots.html").read_text(encoding="utf-8")
    assert text.count("{plot_divs}") == text.count("{refresh_tag}") == 1
    # A closing tag within the scripts would end them early.
    assert text.count("</script") == 1 and "<script src" not in text


@pytest.mark.skipif(chromium.executable() is None, reason="no Chromium here (Debian's package: chromium)")
def test_dvc_draws_without_a_network(root: Path) -> None:
    dvc(root, "plots", "show")
    path = root / "dvc_plots/index.html"
    assert "<script src" not in path.read_text(encoding="utf-8")
    with chromium.page() as page:
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        page.open(path)
        drawn = "document.querySelector('svg, canvas')"
        page.run(f"new Promise((done) => {{ const wait = () => {drawn} ? done() : setTimeout(wait, 20); wait(); }})")
        assert page.run(f"{drawn}.getBoundingClientRect().width") > 100
        outside = [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert page.errors == [] and outside == []
        written = page.run("document.querySelector('svg').textContent")
        assert all(text in written for text in ("training", "one/log.csv", "two/log.csv", "step"))
        lines = page.run("[...document.querySelectorAll('.mark-line path')].map((one) => getComputedStyle(one).stroke)")
        assert len(set(lines)) == 2
        # What has no data leaves no empty frame.
        frames = page.run("[...document.querySelectorAll('.vega-embed')].map((one) => one.checkVisibility())")
        assert frames.count(True) == 1 and len(frames) > 1


def test_outside_a_project_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no .dvc folder; run from inside a clone"):
        offline_plots.install(tmp_path)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('no room\\nfor it')", "cannot be loaded: no room for it; run python -m aero.report"),
        ("import none_such_module", "cannot be loaded: No module named 'none_such_module'; run python -m aero.report"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_one_line_with_the_reason(code, said, tmp_path, monkeypatch) -> None:
    (tmp_path / "vl_convert.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vl_convert", raising=False)
    with pytest.raises(UserError) as told:
        offline_plots.template()
    assert said in str(told.value) and "\n" not in str(told.value)


def test_without_the_package_it_is_one_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match="vl-convert-python is not installed, which brings Vega; make install, or pip"):
        offline_plots.template()
