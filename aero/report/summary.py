"""reports/metrics.json, the few numbers that `dvc metrics show` and `dvc exp show` list."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from aero.report.claims import counts
from aero.report.costs import GB
from aero.report.results import Results
from aero.report.statistics import estimate

RUNS = ("sm-ln-g", "sm-ln-r", "sm-r", "sm", "sm-scfuffn", "ereg-smt-scfuffn")
ROWS = ("SM+LN+G", "SM+ScFuFFN")


def summary(results: Results, judged: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Claims by verdict, mean perplexity of some runs, GB of a private pass of two rows in the optimised program."""
    perplexity = {name: estimate(results.perplexity(name)) for name in RUNS}
    costs = {row: results.cost(row, "tuned") for row in ROWS}
    return {
        "claims": {str(verdict): int(count) for verdict, count in counts(judged).sum().items()},
        "perplexity": {name: round(found.mean, 4) for name, found in perplexity.items() if found},
        "gigabytes": {row: round(cost.bytes / GB, 3) for row, cost in costs.items() if cost},
    }


def files(results: Results, judged: pd.DataFrame) -> dict[Path, str]:
    """Path below the project's root and text of the metrics file."""
    text = json.dumps(summary(results, judged), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {Path("reports") / "metrics.json": text}
