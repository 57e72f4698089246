"""What quantities of trained models share: values by seed become effects, and missing runs become reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aero.report.results import Results
from aero.report.statistics import Estimate, estimate
from aero.report.verdicts import Measurement


def seeds(results: Results, *runs: str) -> str:
    """The file of the results and the seeds of the named runs."""
    parts = [f"{run} ({', '.join(str(r.seed) for r in found)})" for run in runs if (found := results.seeds(run))]
    return f"results/{results.scale}: {', '.join(parts)}" if parts else ""


def not_run(results: Results, *runs: str) -> str:
    """The runs without a result, as a reason for no verdict; "" if there are none."""
    missing = [run for run in runs if not results.seeds(run)]
    return f"not run yet: {', '.join(missing)}" if missing else ""


def of_trainings(
    results: Results,
    runs: tuple[str, ...],
    effects: Mapping[str, Mapping[int, float] | Estimate | None],
    *,
    against: Mapping[str, Mapping[int, float] | Estimate | None] | None = None,
    digits: int = 2,
    unit: str = "",
    text: str | None = None,
    missing: str = "",
    fractions: Sequence[float] = (),
) -> Measurement:
    """A measurement of `runs` from values by seed, or estimates of them; with the reason if there can be no verdict.

    text: of the measured values, made of `effects` if None.
    """
    found = {name: _estimated(values) for name, values in effects.items()}
    others = {name: _estimated(values) for name, values in (against or {}).items()}
    estimates = [*found.values(), *others.values()]
    gap = not_run(results, *runs)
    if not gap and any(one is None for one in estimates):
        gap = "no seed has all that is compared"
    if not gap and any(one is not None and not one.has_interval for one in estimates):
        gap = "one seed: no interval, so no verdict"
    if text is None:
        text = "; ".join(f"{name} {e.text(digits, unit)}".strip() for name, e in found.items() if e is not None)
    return trained(
        results,
        text,
        seeds(results, *runs),
        effects={name: one for name, one in found.items() if one is not None},
        against={name: one for name, one in others.items() if one is not None},
        missing=gap or missing,
        fractions=fractions,
    )


def trained(results: Results, text: str, evidence: str, **parts: Any) -> Measurement:
    """A measurement of models that were trained here."""
    return Measurement(text, results.scale, evidence, trained=True, **parts)


def _estimated(values: Mapping[int, float] | Estimate | None) -> Estimate | None:
    return estimate(values) if isinstance(values, Mapping) else values
