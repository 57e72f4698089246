"""What quantities of trained models share: values by seed become effects, and missing runs become reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aero.report.results import Results
from aero.report.statistics import Estimate, estimate
from aero.report.verdicts import Measurement

Values = Mapping[int, float] | Estimate | None
"""Values by seed, or an estimate of them."""


def of_trainings(
    results: Results, runs: Iterable[str], effects: Mapping[str, Values], digits: int = 2, unit: str = "", **parts: Any
) -> Measurement:
    """A measurement of `runs` with one effect a name; with the reason if there can be no verdict.

    parts: of the measurement. notes: lines of evidence. text: by default that of the effects.
    """
    runs = tuple(dict.fromkeys(runs))
    found = {name: estimate(v) if isinstance(v, Mapping) else v for name, v in effects.items()}
    estimates = {name: one for name, one in found.items() if one is not None}
    missing = not_run(results, *runs)
    if not missing and len(estimates) < len(found):
        missing = "no seed has all that is compared"
    if not missing and any(not one.has_interval for one in estimates.values()):
        missing = "one seed: no interval"
    text = "; ".join(f"{name} {one.text(digits, unit)}".strip() for name, one in estimates.items())
    evidence = "; ".join(filter(None, (seeds(results, *runs), *parts.pop("notes", ()))))
    return trained(results, evidence, **{"text": text, "effects": estimates, "missing": missing} | parts)


def trained(results: Results, evidence: str, **parts: Any) -> Measurement:
    """A measurement of models that were trained here."""
    return Measurement(scale=results.scale, evidence=evidence, trained=True, **parts)


def seeds(results: Results, *runs: str) -> str:
    """The file of the results and the seeds of the named runs."""
    parts = [f"{run} ({', '.join(str(r.seed) for r in found)})" for run in runs if (found := results.seeds(run))]
    return f"results/{results.scale}: {', '.join(parts)}" if parts else ""


def not_run(results: Results, *runs: str) -> str:
    """The runs without a result, as a reason for no verdict; "" if there are none."""
    missing = [run for run in runs if not results.seeds(run)]
    return f"not run yet: {', '.join(missing)}" if missing else ""
