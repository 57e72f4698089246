"""reports/metrics.json, the few numbers that `dvc metrics show` lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean

import pandas as pd

from aero.published import load
from aero.report.claims import counts
from aero.report.costs import GB, row_costs, saving
from aero.report.perplexity import change
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
