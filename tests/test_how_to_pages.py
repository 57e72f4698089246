"""The Python examples in the how-to pages run, and the explained notation can be parsed."""

import re

import pytest

from aero.architecture import parse
from aero.records import ROOT


@pytest.mark.parametrize("page", ["measure_entropy", "regularize"])
def test_python_examples_run(page, tmp_path, monkeypatch):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples:
        exec(compile(example, f"docs/{page}.md", "exec"), names)
    assert examples


def test_the_explained_notation_can_be_parsed():
    page = (ROOT / "docs/reading_the_report.md").read_text(encoding="utf-8").partition("## Notation")[2]
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    written = [name for cell in cells for part in cell for name in re.findall(r"`(\S+)`", part)]
    assert len(written) > 10
    for name in written:
        assert str(parse(name)) == name
