"""Quantities of trainings: perplexity, divergence, curves of the loss, attention cores over training."""

from __future__ import annotations

import math

from aero.report.papers import variance_decoder as models
from aero.report.quantities.trainings import not_run, of_trainings, seeds, trained
from aero.report.results import Results
from aero.report.statistics import difference, relative
from aero.report.verdicts import Measurement, exact

GROUP = "trained here"


def perplexity_change(results: Results, run: str, base: str) -> Measurement:
    """Perplexity of `run` over that of `base` minus 1, in per cent, paired by seed."""
    return of_trainings(
        results, (run, base), {"": relative(results.perplexity(run), results.perplexity(base))}, unit="%"
    )


def perplexity_steps(results: Results, runs: list[str]) -> Measurement:
    """Change in perplexity from each run of `runs` to the next, in per cent, paired by seed."""
    changes = {
        f"{before} to {after}": relative(results.perplexity(after), results.perplexity(before))
        for before, after in zip(runs, runs[1:], strict=False)
    }
    return of_trainings(results, tuple(runs), changes, unit="%")


def divergence(results: Results, run: str, against: str = "") -> Measurement:
    """Which seeds of `run` diverge; with `against`, which seeds of it do where those of `run` do not."""
    sides = (run, against) if against else (run,)
    failed = {name: {r.seed: r.diverged for r in results.seeds(name)} for name in sides}
    shared = set.intersection(*(set(of) for of in failed.values()))
    missing = not_run(results, *sides) or ("one seed" if len(shared) < 2 else "")
    checks = {
        f"seed {seed}": failed[against][seed] and not failed[run][seed] if against else failed[run][seed]
        for seed in sorted(shared)
    }
    text = ", ".join(f"{name} {sum(of.values())} of {len(of)} seeds diverged" for name, of in failed.items() if of)
    notes = [
        f"{name} seed {r.seed} diverged at step {r.diverged_at}"
        for name in sides
        for r in results.seeds(name)
        if r.diverged
    ]
    return trained(
        results, text, "; ".join(filter(None, (seeds(results, *sides), *notes))), checks=checks, missing=missing
    )


def share_of_lower_losses(results: Results, run: str, base: str) -> Measurement:
    """Share of the evaluations in the second half of training in which `run` has a lower loss than `base`, by seed."""
    logs = [{r.seed: r.log for r in results.seeds(name) if r.log} for name in (run, base)]
    shares = {}
    for seed in sorted(set(logs[0]) & set(logs[1])):
        own, other = (dict(zip(*log[seed].evaluations(), strict=True)) for log in logs)
        common = sorted(set(own) & set(other))
        if late := [step for step in common if step >= common[-1] / 2]:
            shares[f"seed {seed}"] = sum(own[step] < other[step] for step in late) / len(late)
    text = "; ".join(f"{seed} {share:.0%}" for seed, share in shares.items())
    missing = "" if len(shares) > 1 else "one seed" if shares else "no evaluations in common"
    effects = {seed: exact(share) for seed, share in shares.items()}
    return trained(results, text, seeds(results, run, base), effects=effects, missing=missing)


# Attention cores (variance_sensitivity) -------------------------------------------------------------------------------


def core_difference(results: Results, runs: list[str], base: str, of: str) -> Measurement:
    """Entropy or norm at the end of training, or gradient or loss over its second half, of each of `runs` minus
    `base`, paired by seed."""
    read = {
        "entropy": lambda run: models.last(results, run, "entropy"),
        "norm": lambda run: models.last(results, run, "norm"),
        "gradient": lambda run: models.late_mean(results, run, "gradient_norm"),
        "loss": lambda run: models.late_mean(results, run, "train_loss"),
    }[of]
    if missing := _left_out(results, *runs, base):
        return trained(results, "", "", missing=missing)
    changes = {run: difference(read(run), read(base)) for run in runs}
    return of_trainings(results, (*runs, base), changes, digits=3)


def core_entropy_change(results: Results, run: str) -> Measurement:
    """Mean entropy at the end of training minus that after the first step."""
    if missing := _left_out(results, run):
        return trained(results, "", "", missing=missing)
    return of_trainings(results, (run,), {"": models.change(results, run, "entropy")}, digits=3, unit="nats")


def loss_rises(results: Results, run: str, rise: float) -> Measurement:
    """In which seeds the last training loss is not finite or more than `rise` nats above the least one."""
    if missing := _left_out(results, run):
        return trained(results, "", "", missing=missing)
    rises = {}
    for one in results.seeds(run):
        values = models.series(one, "train_loss").tolist()
        if one.diverged or values:
            rises[f"seed {one.seed}"] = math.inf if one.diverged else values[-1] - min(values)
    text = "; ".join(f"{seed} {'NaN' if math.isinf(value) else f'{value:.3f}'}" for seed, value in rises.items())
    checks = {seed: value > rise for seed, value in rises.items()}
    missing = "fewer than two seeds" if len(rises) < 2 else ""
    return trained(results, text, seeds(results, run), checks=checks, missing=missing)


def _left_out(results: Results, *runs: str) -> str:
    """Why a claim on these runs is not decided at the report's scale, "" if it is."""
    return next((words for run in runs if (words := models.left_out(results, run))), "")
