"""The page and the PDF of two small notebooks that are executed in a kernel."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from aero.report import render, show

FIRST = """# %% [markdown]
# # A title
#
# With $x^2$ and
#
# $$\\sum_i x_i$$
#
# ## A section

# %%
import pandas as pd
from aero.report import show
private = 1
figure, axes = show.subplots(height=2)
axes.plot([1, 2, 3])
show.figure(figure, "A figure", "Of `SM+R` & more.", sources=["results/a.csv"], published="aero/figure5")

# %%
show.table(pd.DataFrame({"row": ["SM+R", "<b>bold</b>"], "value": [1.23456, float("nan")]}), "A table", "Caption.")

# %%
show.HTML('<div class="screen-only"><p>only on screen</p></div>')
"""
SECOND = """# %% [markdown]
# # Second chapter

# %%
from aero.report.show import HTML
HTML("known" if "private" in globals() else "unknown")
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "reports").mkdir()
    (root / "reports/first.py").write_text(FIRST, encoding="utf-8")
    (root / "reports/second.py").write_text(SECOND, encoding="utf-8")
    (root / "reports/broken.py").write_text("# %%\nraise ValueError('no such run')\n", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def rendered(root: Path) -> tuple[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "NOTEBOOKS", ("first", "second"))
        first, second = render.render(root, "footer"), render.render(root, "footer")
    assert first == second, "not the same bytes twice"
    return first


def test_figures_tables_and_formulas_are_on_the_page(rendered: tuple[str, bytes]) -> None:
    page, _ = rendered
    assert "<title>A title</title>" in page and 'href="#a-section"' in page
    assert page.count("<math") == 2 and "viewBox" in page and "var(--ink)" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<td>1.23</td>" in page
    assert '<a href="../results/a.csv">' in page and "<code>SM+R</code> &amp; more" in page


def test_a_notebook_does_not_see_the_names_of_another(rendered: tuple[str, bytes]) -> None:
    assert "unknown" in rendered[0]


def test_the_page_loads_nothing_and_runs_its_own_script_alone(rendered: tuple[str, bytes]) -> None:
    page, _ = rendered
    [script] = re.findall(r'<script type="module">(.*?)</script', page, re.DOTALL | re.IGNORECASE)
    assert "<!--" not in script
    page = page.replace(script, "")
    assert page.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'"
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {allowed}" in page
    assert "only on screen" in page
    assert not re.search(r"""(?:src|<link[^>]*href)\s*=\s*["']?(?:https?:)?//|@import|url\((?!#|data:)""", page)


def test_the_pdf_is_made_of_the_same_cells(rendered: tuple[str, bytes]) -> None:
    _, pdf = rendered
    assert pdf.startswith(b"%PDF") and len(pdf) > 10_000


def test_a_cell_that_fails_is_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "NOTEBOOKS", ("broken",))
    with pytest.raises(ValueError, match="no such run"):
        render.execute(root)
    monkeypatch.setattr(render, "NOTEBOOKS", ("absent",))
    with pytest.raises(FileNotFoundError, match=r"absent\.py"):
        render.execute(root)


TERMINATED = """
import sys
from pathlib import Path
from aero.errors import run_main
from aero.report import render
render.NOTEBOOKS = ("slow",)
run_main(lambda root: render.execute(Path(root[0])) and None, sys.argv[1:])
"""


def test_sigterm_while_rendering_is_one_line_and_leaves_no_kernel(root: Path) -> None:
    """At once, not when the cell ends."""
    slow = "# %%\nimport os, time\nprint(os.getpid(), file=open('kernel', 'w'), flush=True)\ntime.sleep(100)\n"
    (root / "reports/slow.py").write_text(slow, encoding="utf-8")
    command, kernel = [sys.executable, "-c", TERMINATED, str(root)], root / "kernel"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (kernel.is_file() and kernel.read_text()):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and error.startswith("error: interrupted") and error.count("\n") == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(kernel.read_text()), 0)


def test_a_table_shows_three_significant_digits() -> None:
    frame = pd.DataFrame({"value": [0.123456, 12345.6, None]}, index=pd.Index(["a", "b", "c"], name="row"))
    cells = re.findall(r"<td>(.*?)</td>", show.table(frame, "T", "C"))
    assert cells == ["a", "0.123", "b", "12,346", "c", "–"]
