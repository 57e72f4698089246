"""reports/metrics.json, the few numbers that `dvc metrics show` lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite, log, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from aero.entropy_statistics import causal_bound
from aero.published import load
from aero.report.claims import counts
from aero.report.costs import COST_TABLES, GB, OPTIMISED, audit, fits, published_bound, row_costs, saving
from aero.report.papers.variance_theory import load_theory
from aero.report.perplexity import change, gate
from aero.report.results import Results, Run
from aero.report.statistics import estimate


def summary(results: Results, judged: pd.DataFrame) -> dict[str, object]:
    """Perplexity, its increase over SM+LN+G and entropy by run, GB and saving by row and program, claims by verdict.

    Only runs of SM+LN+G's depth, context and corpus have an increase.
    """
    table = load("aero").tables["4"]
    perplexity: dict[str, dict[str, float | int]] = {}
    for name in sorted({name for scale, name in results.runs if scale == results.scale}):
        seeds = results.seeds(name)
        entry: dict[str, float | int] = {"seeds": len(seeds), "diverged": sum(run.diverged for run in seeds)}
        if found := estimate(results.perplexity(name)):
            entry["perplexity"] = round(found.mean, 4)
        found = change(results, name, "sm-ln-g").estimate
        if _setting(results, name) == _setting(results, "sm-ln-g") and found:
            entry["increase_percent"] = round(found.mean, 3)
        entry |= _entropy(seeds)
        perplexity[name] = entry
    costs: dict[str, dict[str, float]] = {}
    for row in table.rows:
        for program, cost in row_costs(results, table, row.name).items():
            entry_ = {"gigabytes": round(cost.bytes / GB, 3)}
            if cost.latency_wan is not None:
                entry_["wan_minutes"] = round(cost.latency_wan / 60, 3)
            if (factor := saving(results, table, row.name, program, "bytes")) is not None:
                entry_["saving"] = round(factor, 3)
            costs.setdefault(program, {}).update({f"{row.name}/{key}": value for key, value in entry_.items()})
    verdicts = {str(verdict).replace(" ", "_"): int(count) for verdict, count in counts(judged).sum().items()}
    return {"scale": results.scale, "claims": verdicts, "runs": perplexity, "two_party": costs}


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


def _entropy(seeds: Sequence[Run]) -> dict[str, float]:
    """Means over seeds: entropy of the finite heads, and shares of overloaded and collapsed heads."""
    measured = [run.entropy for run in seeds if run.entropy]
    found = {
        "entropy_nats": {
            number: fmean(finite)
            for number, one in enumerate(measured)
            if (finite := [head for layer in one.mean for head in layer if isfinite(head)])
        },
        "overloaded_percent": {number: 100 * one.overload["fraction"] for number, one in enumerate(measured)},
        "collapsed_percent": {number: 100 * one.collapse["fraction"] for number, one in enumerate(measured)},
    }
    return {name: round(one.mean, 4) for name, values in found.items() if (one := estimate(values))}


def _setting(results: Results, name: str) -> tuple[object, ...]:
    """What must agree for two perplexities to be compared."""
    metrics = run.metrics if (run := results.first(name)) else {}
    return (metrics.get("corpus"), metrics.get("context"), (metrics.get("model") or {}).get("layers"))


def files(results: Results, judged: pd.DataFrame) -> dict[Path, str]:
    """Path below the project's root and text of the metrics file."""
    text = json.dumps(summary(results, judged), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    return {Path("reports") / "metrics.json": text}
