"""The examples in the how-to pages run as they are printed, each page from top to bottom."""

import re

import pytest

from aero.pipeline import ROOT


@pytest.mark.parametrize("page", ["measure_entropy", "regularize"])
def test_examples_run(page, tmp_path, monkeypatch):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 2
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples:
        exec(compile(example, f"docs/{page}.md", "exec"), names)
