"""The few numbers that the report's first sentences state, and those that DVC lists (reports/metrics.json)."""

from __future__ import annotations

import json
from math import log, nan
from pathlib import Path
from typing import Any

import pandas as pd

from aero.entropy_statistics import causal_bound
from aero.published import load
from aero.report.claims import counts
from aero.report.costs import COST_TABLES, GB, OPTIMISED, audit, fits, published_bound, saving
from aero.report.papers.variance_theory import load_theory
from aero.report.perplexity import change, gate
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


AERO = "SM+ScFuFFNi_6"


def headline(results: Results) -> dict[str, Any]:
    """The numbers of the report's first sentences; NaN where nothing was measured."""
    table, fitted = load("aero").tables["4"], fits(results)
    base = table.rows[0].name
    own = audit(results, table, AERO, "bytes")
    printed = {number: load("aero").tables[number] for number in COST_TABLES}
    bounds = {
        (number, row.name): (published_bound(load("aero"), number, row.name), row.cells["latency"].value)
        for number, one in printed.items()
        for row in one.rows
    }
    possible = [bound.overlapped <= minutes for bound, minutes in bounds.values() if bound and minutes]
    bound, minutes = bounds["4", base]
    scale = "desk" if results.seeds("sm-ln-g", "desk") else results.scale
    trained = results.at(scale)

    def difference(run: str, against: str) -> str:
        found = change(trained, run, against).estimate
        if found is None:
            return "not measured"
        interval = f" [{found.low:+z.0f}, {found.high:+z.0f}]" if found.has_interval else ""
        return f"{found.mean:+z.0f}{interval}"

    context = table.dimensions["context"]
    theory = load_theory(results.root)
    slopes = theory.tables["softmax"] if theory else pd.DataFrame(columns=["slope", "theorem_slope", "slope_error"])
    wrong = (slopes["theorem_slope"] - slopes["slope"]).abs() > 4.5 * slopes["slope_error"] + 1e-3
    return {
        "rows": len(fitted),
        "residual": max((abs(fit.residual_percent) for fit in fitted.values()), default=nan),
        "gb": table.value(base, "communication"),
        "gb_aero": table.value(AERO, "communication"),
        "saving": table.value(AERO, "savings_communication"),
        "saving_stock": own.as_written or nan,
        "saving_optimised": own.tuned or nan,
        "saving_unfused": saving(results, table, "SM+ScFFN", OPTIMISED, "bytes") or nan,
        "gelu_percent": 100 * (1 - own.share) if own.share else nan,
        "impossible": possible.count(False),
        "minutes": minutes,
        "needed_minutes": bound.overlapped,
        "needed_mbit": bound.needed_mbit(minutes),
        "scale": scale,
        "seeds": len(trained.seeds("sm-ln-g")),
        "tokens": (trained.first("sm-ln-g").metrics["tokens"] / 1e6) if trained.seeds("sm-ln-g") else nan,
        "no_layer_norm": difference("sm-r", "sm-ln-g"),
        "softmax_only": difference("sm-scfuffn", "sm-ln-g"),
        "regularised": difference("ereg-smt-scfuffn", "sm-scfuffn"),
        "regularised_layer_norm": difference("ereg-smt-ln-g", "sm-ln-g"),
        "slopes": len(wrong),
        "wrong_slopes": int(wrong.sum()),
        "gate": gate(trained, "sm-ln-g"),
        "log_t": log(context),
        "causal": causal_bound(context),
    }


def files(results: Results, judged: pd.DataFrame) -> dict[Path, str]:
    """Path below the project's root and text of the metrics file."""
    text = json.dumps(summary(results, judged), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {Path("reports") / "metrics.json": text}
