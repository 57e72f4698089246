"""The examples in the how-to pages run, each page from top to bottom."""

import os
import re
import subprocess
import sys

import pytest

from aero.architecture import parse
from aero.records import ROOT

COMMAND = f'aero() {{ "{sys.executable}" -m aero.cli "$@"; }}\n'
"""The command of this source tree."""


@pytest.mark.parametrize("page", ["measure_entropy", "regularize"])
def test_examples_run(page, tmp_path, monkeypatch):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    languages = [language for language, _ in examples]
    assert languages.count("python") >= 2 and set(languages) <= {"python", "sh"}
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, example in examples:
        if language == "python":
            exec(compile(example, f"docs/{page}.md", "exec"), names)
            continue
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-ec", COMMAND + example], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        if "--figure heads.svg" in example:
            assert "Wasserstein-1 to entropy.json" in done.stdout and (tmp_path / "heads.svg").stat().st_size > 1000


def test_the_explained_notation_can_be_parsed():
    page = (ROOT / "docs/reading_the_report.md").read_text(encoding="utf-8").partition("## Notation")[2]
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    written = [name for cell in cells for part in cell for name in re.findall(r"`(\S+)`", part)]
    assert len(written) > len(cells) > 10
    for name in written:
        assert str(parse(name)) == name
