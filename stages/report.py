"""Tables, claims, HTML and PDF from whatever has been measured: `python -m stages.report [--scale SCALE]`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pandas as pd

from aero.errors import run_main
from aero.records import CHANGES, changed, commit, csv_text, write_together
from aero.report import claims, tables
from aero.report.papers import aero_entropy, entropy_landscape, parallel_figures, variance_sensitivity
from aero.report.render import render
from aero.report.results import SCALE_VARIABLE, Results, load


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.report", description=__doc__)
    parser.add_argument(
        "--scale",
        help="default: that of params.yaml if it has results; each claim uses the largest scale that can decide it",
    )
    chosen = parser.parse_args(arguments)
    if chosen.scale:
        os.environ[SCALE_VARIABLE] = chosen.scale
    print("rendering reports/*.py; takes about a minute", flush=True)
    results = load()  # as the notebooks do
    judged = claims.judge(results)
    # Everything is made before anything is written: a failure leaves the last report whole.
    texts = files(results, judged)
    root = results.root
    html, pdf = render(root, f"Rendered from commit {state()}")
    pages = {Path("reports") / "report.html": html, Path("reports") / "report.pdf": pdf}
    # The metrics describe the other files and are written last.
    metrics = json.dumps(claims.summary(results, judged), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    contents = texts | pages | {Path("reports") / "metrics.json": metrics}
    write_together({root / path: content for path, content in contents.items()})
    for path in (root / tables.FOLDER).glob("*.csv"):
        if path.relative_to(root) not in texts:
            path.unlink()
    decided = ", ".join(f"{count} {verdict}" for verdict, count in claims.counts(judged).items() if count)
    print(f"reports/report.html, reports/report.pdf: scale {results.scale}; claims: {decided}")
    for problem in results.problems:
        print(f"left out: {problem}")


def state() -> str:
    """The commit in short, and whether source and committed results differ from it; of results, nothing outside git."""
    revision = commit()
    short = revision[:10] + (CHANGES if revision.endswith(CHANGES) else "")
    try:
        return short + (" with other results" if changed("results", untracked=True) else "")
    except (OSError, subprocess.SubprocessError):
        return short


def files(results: Results, judged: pd.DataFrame) -> dict[Path, str]:
    """Text of the tables and claims by place."""
    landscape = tables.FOLDER / "entropy_landscape_table1.csv"
    temperatures = tables.FOLDER / "learned_temperatures.csv"
    own = {
        landscape: tables.cells_csv(entropy_landscape.cells(results)),
        temperatures: csv_text(aero_entropy.TEMPERATURE_COLUMNS, aero_entropy.temperature_lines(results)),
        Path("reports") / "claims.csv": judged.to_csv(index=False, lineterminator="\n"),
    }
    for part in (tables, variance_sensitivity, parallel_figures):
        own |= part.files(results)
    return own


if __name__ == "__main__":
    run_main(main)
