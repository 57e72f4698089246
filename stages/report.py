"""Tables, claims, HTML and PDF from whatever has been measured: `python -m stages.report [--scale SCALE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from aero.config import load as load_parameters
from aero.errors import run_main
from aero.records import commit, write_together
from aero.report import (
    claims,
    differences,
    entropy_page,
    landscape_tables,
    latex,
    parallel_context_tables,
    scales,
    sensitivity,
    summary,
    tables,
)
from aero.report.render import render
from aero.report.results import Results, load


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.report", description=__doc__)
    parser.add_argument("--scale", help="training scale the report is about (default: params.yaml's if it has results)")
    chosen = parser.parse_args(arguments)
    parameters = load_parameters()
    if chosen.scale and chosen.scale not in parameters.scales:
        raise ValueError(f"unknown scale {chosen.scale!r}; known: {', '.join(parameters.scales)}")
    root = Path.cwd()
    results = load(root, chosen.scale)
    judged = claims.judge(results)
    # Everything is made before anything is written: a failure leaves the last report whole.
    texts = texts_of(results, judged)
    report = render(root, results.scale, f"Rendered from commit {commit()[:10]}, scale {results.scale}")
    pages = {Path("reports") / "report.html": report.html, Path("reports") / "report.pdf": report.pdf}
    # The metrics come last: they go before the first file is renamed, so a report that was killed among its renames is
    # one without them, and has its last PDF still.
    last = summary.files(results, judged)
    write_together({root / path: content for path, content in (texts | pages | last).items()})
    for path in (root / "reports" / "tables").glob("*.csv"):
        if path.relative_to(root) not in texts:
            path.unlink()  # a table that is made no more
    decided = ", ".join(f"{count} {verdict}" for verdict, count in claims.counts(judged).sum().items() if count)
    print(f"reports/report.html, reports/report.pdf: scale {results.scale}; claims: {decided}")
    for problem in results.problems:
        print(f"left out: {problem}")


def texts_of(results: Results, judged: pd.DataFrame) -> dict[Path, str]:
    """Tables, their LaTeX and the claims by their place: what a report is but its pages and metrics."""
    parts = (tables, landscape_tables, scales, sensitivity, parallel_context_tables)
    printed = {path: text for part in parts for path, text in part.files(results).items()}
    listed = {Path("reports") / "claims.csv": claims.csv_text(judged)}
    return printed | latex.files(printed) | differences.files(results) | entropy_page.files(results) | listed


if __name__ == "__main__":
    run_main(main)
