"""A notebook of reports/, executed by the command that the README gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import made_results


def by_command(name: str, out: Path, root: Path) -> None:
    """From `root`, with nothing on the path but what is installed, in a kernel of this interpreter."""
    command = ["jupytext", "--to", "ipynb", "--execute", f"reports/{name}.py", "--output", str(out)]
    documents = [made_results.PROJECT / "README.md", made_results.PROJECT / "docs/reading_the_report.md"]
    assert all(" ".join(command[:4]) + " reports/" in path.read_text(encoding="utf-8") for path in documents)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # The kernel of the folder, not of the temporary file.
    finished = subprocess.run(
        [sys.executable, "-m", *command, "--run-path", str(root / "reports")],
        cwd=root,
        env=environment | {"OMP_NUM_THREADS": "1", "JUPYTER_CONFIG_DIR": str(out.parent)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
