"""Two processes that write the same file: one after the other, whatever happens in between."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from aero.training.log import temporary, write_text

WRITER = (
    "import sys; from pathlib import Path; from aero.training.log import write_text; "
    "write_text(Path(sys.argv[1]), 'theirs')"
)


def test_a_second_writer_waits_for_the_first(tmp_path, monkeypatch):
    """It starts when the first has written all beside, and renames next: it would empty what is about to be renamed."""
    path, renamed, others, found = tmp_path / "result.json", os.replace, [], []

    def slow(source, target):
        others.append(subprocess.Popen([sys.executable, "-c", WRITER, str(path)]))
        time.sleep(2)
        found.append((others[0].poll(), temporary(path).read_text()))
        renamed(source, target)
        found.append(path.read_text())

    monkeypatch.setattr(os, "replace", slow)
    write_text(path, "ours")
    assert others[0].wait(20) == 0
    assert found == [(None, "ours"), "ours"] and path.read_text() == "theirs"
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]
