"""Quantities of trainings: perplexity, failures, attention cores over training."""

from __future__ import annotations

from aero.report.papers import variance_theory as models
from aero.report.perplexity import change, failed
from aero.report.quantities.trainings import not_run, of_trainings, seeds, trained
from aero.report.results import Results
from aero.report.statistics import difference
from aero.report.verdicts import Measurement

GROUP = "trained here"


def perplexity_change(results: Results, run: str, base: str) -> Measurement:
    """Perplexity of `run` over that of `base` minus 1, in per cent: mean log ratio over seeds, pooled interval."""
    return perplexity_changes(results, {"": [run, base]})


def perplexity_changes(results: Results, pairs: dict[str, list[str]]) -> Measurement:
    """Perplexity of the first run of each pair over that of the second minus 1, in per cent: mean log ratios over
    seeds, pooled intervals."""
    found = {name: change(results, *pair) for name, pair in pairs.items()}
    notes = dict.fromkeys(one.note for one in found.values())
    runs = (run for pair in pairs.values() for run in pair)
    return of_trainings(results, runs, {name: one.estimate for name, one in found.items()}, unit="%", notes=notes)


def failures(results: Results, runs: list[str], against: str = "") -> Measurement:
    """Which seeds of `runs` fail: a loss or gradient is not finite, bigrams of the same tokens do better, or values
    exceed float16, in which the papers trained; with `against`, which seeds of it fail where those of `runs` do not."""
    sides = (*runs, against) if against else tuple(runs)
    bad: dict[str, dict[int, bool]] = {}
    text = []
    for name in sides:
        beyond = {one.seed: one.metrics.get("float16_overflow") is not None for one in results.seeds(name)}
        bad[name] = {one.seed: beyond[one.seed] or failed(results, one) for one in results.seeds(name)}
        if beyond:
            overflow = f" ({sum(beyond.values())} beyond float16)" if any(beyond.values()) else ""
            text.append(f"{name} {sum(bad[name].values())} of {len(beyond)} seeds failed{overflow}")
    shared = sorted(set.intersection(*(set(of) for of in bad.values())))
    checks = {
        f"{run}, seed {seed}": bad[against or run][seed] and not (against and bad[run][seed])
        for run in runs
        for seed in shared
    }
    missing = not_run(results, *sides) or ("fewer than two seeds in common" if len(shared) < 2 else "")
    return trained(results, seeds(results, *sides), text=", ".join(text), checks=checks, missing=missing)


# Attention cores (variance_sensitivity) -------------------------------------------------------------------------------


def core_difference(results: Results, runs: list[str], base: str, of: str) -> Measurement:
    """Entropy or norm at the end of training, or gradient norm or training loss over its second half, of each of `runs`
    minus `base`, paired by seed."""
    read = models.late_mean if of in ("gradient_norm", "train_loss") else models.last
    changes = {run: difference(read(results, run, of), read(results, base, of)) for run in runs}
    return of_trainings(results, (*runs, base), changes, digits=3)


def core_entropy_change(results: Results, run: str) -> Measurement:
    """Mean entropy at the end of training minus that after the first step."""
    return of_trainings(results, (run,), {"": models.change(results, run, "entropy")}, digits=3, unit="nats")
