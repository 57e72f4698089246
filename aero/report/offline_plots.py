"""Let `dvc plots show` and `dvc plots diff` draw without a network: `python -m aero.report.offline_plots`.

DVC's page asks a content delivery network for Vega, which draws its plots. DVC can be told of another page: this writes
one that has Vega inside, from the package vl-convert-python, to .dvc/plots.html, and names it in .dvc/config.local,
which git ignores. `make install` does it once; a project without it draws as DVC does, with a network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from aero.errors import UserError, run_main
from aero.report.render import write
from aero.report.results import find_root

VEGA_LITE = "5.21"
"""DVC's own templates are written for version 5."""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{refresh_tag}
<title>DVC plots</title>
<style>
/* A plot without data, of a run that is not there, leaves no empty frame. */
.vega-embed:not(:has(.role-mark, canvas)) { display: none; }
</style>
<script>%s</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def template() -> str:
    """DVC's page with Vega, Vega-Lite and Vega-Embed in it; UserError if the package that has them is not installed or
    cannot be loaded."""
    try:
        import vl_convert
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "vl_convert":
            raise UserError(
                "vl-convert-python is not installed, which brings Vega; make install, or pip install it"
            ) from None
        raise UserError(
            f"vl-convert-python, which brings Vega, cannot be loaded: {' '.join(str(error).split())}; run python -m"
            " aero.report.offline_plots by itself, or install the package again"
        ) from None
    return TEMPLATE % vl_convert.javascript_bundle(vl_version=VEGA_LITE)


def install(root: Path) -> Path:
    """Write the page into the project's .dvc folder and tell DVC of it; UserError if the project has none."""
    folder = root / ".dvc"
    if not folder.is_dir():
        raise UserError(f"{root} has no .dvc folder; run from inside a clone of the project")
    path = folder / "plots.html"
    write(path, template())
    command = [sys.executable, "-m", "dvc", "config", "--local", "plots.html_template", path.name]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if finished.returncode:
        raise UserError(f"dvc refuses {path}: {finished.stderr.strip() or finished.returncode}")
    return path


def main(arguments: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m aero.report.offline_plots", description=__doc__).parse_args(arguments)
    print(f"{install(find_root())}: dvc plots show needs no network now")


if __name__ == "__main__":
    run_main(main)
