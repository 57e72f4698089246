"""Let `dvc plots show` and `dvc plots diff` work without a network: `python -m stages.offline_plots`.

DVC's page loads Vega from a content delivery network. This writes a page template that contains Vega (from
vl-convert-python) to .dvc/plots.html and names it in .dvc/config.local, which git ignores. `make install` runs it.
"""

from __future__ import annotations

import subprocess
import sys

import vl_convert

from aero.errors import UserError, run_main
from aero.report.results import find_root

VEGA_LITE = "5.21"
TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">{refresh_tag}<title>DVC plots</title>
<script>%s</script></head><body>{plot_divs}</body></html>
"""


def main(arguments: list[str]) -> None:
    folder = find_root() / ".dvc"
    if arguments or not folder.is_dir():
        raise UserError(f"run it without arguments in a clone of the project; {folder} is needed")
    path = folder / "plots.html"
    path.write_text(TEMPLATE % vl_convert.javascript_bundle(vl_version=VEGA_LITE), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "dvc", "config", "--local", "plots.html_template", path.name],
        cwd=folder.parent,
        check=True,
        timeout=60,
    )


if __name__ == "__main__":
    run_main(main)
