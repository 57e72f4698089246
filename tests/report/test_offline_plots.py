"""`dvc plots show` without a network: DVC's page with Vega in it, drawn by a browser that is asked for nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import chromium
import made_results
import pytest

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
    """A DVC project with one curve, and the page installed."""
    folder = tmp_path_factory.mktemp("project with a space")
    dvc(folder, "init", "--no-scm", "-q")
    (folder / "log.csv").write_text("step,train_loss\n10,5.5\n20,4.5\n30,4.25\n", encoding="utf-8")
    curve = "plots:\n  - training:\n      x: step\n      y: {log.csv: train_loss}\n"
    (folder / "dvc.yaml").write_text(curve, encoding="utf-8")
    (folder / "params.yaml").write_text("{}\n", encoding="utf-8")
    assert offline_plots.install(folder) == folder / ".dvc/plots.html"
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
        assert "training" in page.run("document.body.textContent") and "train_loss" in page.run("JSON.stringify(spec)")


def test_outside_a_project_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no .dvc folder; run from inside a clone"):
        offline_plots.install(tmp_path)
