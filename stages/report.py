"""Tables, claims, HTML and PDF from whatever has been measured: `python -m stages.report [--scale SCALE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from aero.errors import run_main
from aero.parameters import load as load_parameters
from aero.provenance import commit
from aero.report import (
    claims,
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
from aero.report.results import load
from aero.training.log import write_together


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
    printed = (
        tables.files(results)
        | landscape_tables.files(results)
        | scales.files(results)
        | sensitivity.files(results)
        | parallel_context_tables.files(results)
    )
    own = entropy_page.files(results)
    texts = printed | latex.files(printed) | own | {Path("reports") / "claims.csv": claims.claims_csv(judged)}
    report = render(root, results.scale, f"Rendered from commit {commit()[:10]}, scale {results.scale}")
    pages = {Path("reports") / "report.html": report.html, Path("reports") / "report.pdf": report.pdf}
    # The metrics come last: they go before the first file is renamed, so a report that was killed among its renames is
    # one without them, and has its last PDF still.
    last = summary.files(results, judged)
    write_together({root / path: content for path, content in (texts | pages | last).items()})
    for path in (root / "reports" / "tables").glob("*.csv"):
        if path.relative_to(root) not in texts:
            path.unlink()  # a table that is made no more
    decided = ", ".join(f"{count} {verdict}" for verdict, count in claims.counts(judged).items() if count)
    print(f"reports/report.html, reports/report.pdf: scale {results.scale}; claims: {decided}")
    for problem in results.problems:
        print(f"left out: {problem}")


if __name__ == "__main__":
    run_main(main)
