"""Tests of claims about training: perplexity, divergence, loss curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aero.published import Paper
from aero.report.decisions import (
    Decision,
    Verdict,
    absent,
    by_signs,
    claim_test,
    effect,
    sized,
    sources,
    training_gap,
    untested,
)
from aero.report.results import Results
from aero.report.statistics import estimate, relative

FAILED_PERCENT = 25
"""A baseline that lies further than this above what is compared with it has not learnt."""


@claim_test
def relative_perplexity(results: Results, paper: Paper, *, run: str, base: str, percent: float) -> Decision:
    """How many per cent the perplexity of `run` lies above that of `base`, paired by seed."""
    rule = (
        f"perplexity of {run} over {base} - 1; direction reproduced if the interval lies on the side of 0 that "
        f"{percent} % does, reproduced if it contains that number besides, at scale paper"
    )
    found = estimate(relative(results.perplexity(run), results.perplexity(base)))
    if gap := training_gap(results, found, (run, base)):
        return untested(rule, results, gap, f"{found.mean:+.2f} %" if found else "")
    verdict = effect(results, found, percent, percent, percent)
    opposite = "; the opposite holds here" if found.excludes(0) * percent < 0 else ""
    return Decision(rule, found.text(2, "%"), results.scale, verdict, f"{sources(results, run, base)}{opposite}")


@claim_test
def no_worse(results: Results, paper: Paper, *, run: str, base: str, margin_percent: float) -> Decision:
    """Whether the perplexity of `run` stays within `margin_percent` above that of `base`, paired by seed.

    A baseline that did not learn proves nothing: whatever is put in its place is no worse.
    """
    rule = (
        f"perplexity of {run} over {base} - 1; direction reproduced if the whole interval is below {margin_percent} %, "
        f"reproduced so at scale paper, not seen if it is wholly above, undecided if it holds {margin_percent} % or if "
        f"{base} diverged or lies more than {FAILED_PERCENT} % above {run}"
    )
    found = estimate(relative(results.perplexity(run), results.perplexity(base)))
    if gap := training_gap(results, found, (run, base)):
        return untested(rule, results, gap, f"{found.mean:+.2f} %" if found else "")
    measured, evidence = found.text(2, "%"), sources(results, run, base)
    own, other = results.perplexity(run), results.perplexity(base)
    if any(one.diverged for one in results.seeds(base)):
        return untested(rule, results, f"{evidence}; {base} diverged", measured)
    if max(relative(other, own).values()) > FAILED_PERCENT:
        return untested(rule, results, f"{evidence}; {base} did not learn here, so it is no baseline", measured)
    if not (side := found.excludes(margin_percent)):
        return untested(rule, results, f"{evidence}; seed noise is wider than the margin", measured)
    verdict: Verdict = sized(results, True) if side < 0 else absent(results)
    return Decision(rule, measured, results.scale, verdict, evidence)


@claim_test
def order(results: Results, paper: Paper, *, runs: list[str]) -> Decision:
    """Whether perplexity rises along `runs`: each neighbouring pair's interval of paired relative differences."""
    rule = (
        "each neighbouring pair's relative difference; reproduced if every interval is above 0, direction reproduced "
        "if at least one is and none is below"
    )
    if missing := [run for run in runs if not results.perplexity(run)]:
        return untested(rule, results, f"no perplexity of: {', '.join(missing)}")
    pairs = list(zip(runs, runs[1:], strict=False))
    found = [estimate(relative(results.perplexity(after), results.perplexity(before))) for before, after in pairs]
    measured = "; ".join(
        f"{before} to {after} {e.text(2, '%') if e else 'no common seed'}"
        for (before, after), e in zip(pairs, found, strict=True)
    )
    if any(e is None or not e.has_interval for e in found):
        return untested(rule, results, "one seed: no interval, so no verdict", measured)
    signs = [e.excludes(0) for e in found if e]
    verdict = by_signs(results, signs)
    turned = [f"{before} to {after}" for (before, after), s in zip(pairs, signs, strict=True) if s < 0]
    evidence = sources(results, *runs) + (f"; reversed here: {', '.join(turned)}" if turned else "")
    return Decision(rule, measured, results.scale, verdict, evidence)


@claim_test
def diverges(results: Results, paper: Paper, *, run: str, others: list[str]) -> Decision:
    """Whether every training of `run` diverges; short of that, whether it is worse than every one of `others`."""
    rule = (
        "share of at least two seeds that diverged; reproduced if all, direction reproduced if some did, or if none "
        f"did and every interval of perplexity over {', '.join(others)} is above 0, none of which diverged throughout"
    )
    runs = results.seeds(run)
    if not runs:
        return untested(rule, results, f"not run yet: {run}")
    failed = [r for r in runs if r.diverged]
    measured = f"{len(failed)} of {len(runs)} seeds diverged"
    steps = "; ".join(f"seed {r.seed} at step {r.diverged_at}{_where(r.metrics)}" for r in failed)
    evidence = sources(results, run) + (f"; {steps}" if steps else "")
    if len(runs) < 2:
        return untested(rule, results, f"{evidence}; one seed", measured)
    if failed:
        verdict: Verdict = "reproduced" if len(failed) == len(runs) else "direction reproduced"
        return Decision(rule, measured, results.scale, verdict, evidence)
    if missing := [other for other in others if not results.seeds(other)]:
        return untested(rule, results, f"not run yet: {', '.join(missing)}", measured)
    partly = [other for other in others if any(trained.diverged for trained in results.seeds(other))]
    if partly:
        told = ", ".join(f"{other} {sum(r.diverged for r in results.seeds(other))} times" for other in partly)
        evidence += f"; of the others diverged here: {told}"
    if any(not results.perplexity(other) for other in others):
        return Decision(rule, measured, results.scale, absent(results), evidence)
    own = results.perplexity(run)
    worse = [estimate(relative(own, results.perplexity(other))) for other in others]
    if not worse or any(e is None or not e.has_interval for e in worse):
        return untested(rule, results, f"{evidence}; one seed or nothing to compare with", measured)
    if all(e.excludes(0) > 0 for e in worse if e):
        least = min(e.mean for e in worse if e)
        return Decision(
            rule, f"{measured}; worst row by at least {least:.1f} %", results.scale, "direction reproduced", evidence
        )
    return Decision(rule, measured, results.scale, absent(results), evidence)


def _where(metrics: Mapping[str, Any]) -> str:
    first = metrics.get("first_nonfinite")
    if not isinstance(first, Mapping):
        return ""
    layer = first.get("layer")
    return f" (first in {first.get('where', 'the model')}{'' if layer is None else f', layer {layer}'})"


@claim_test
def trains(results: Results, paper: Paper, *, run: str, against: str) -> Decision:
    """Whether every training of `run` ends, and is better than `against` where that ends too."""
    rule = (
        f"reproduced if no seed of {run} diverges and every seed of {against} does; direction reproduced if {run} "
        f"never diverges and its perplexity is below that of {against}, interval below 0"
    )
    runs, base = results.seeds(run), results.seeds(against)
    if not runs or not base:
        return untested(
            rule, results, f"not run yet: {', '.join(n for n, r in ((run, runs), (against, base)) if not r)}"
        )
    failed, base_failed = sum(r.diverged for r in runs), sum(r.diverged for r in base)
    measured = f"{run} {failed} of {len(runs)} diverged, {against} {base_failed} of {len(base)}"
    evidence = sources(results, run, against)
    if len(runs) < 2 or len(base) < 2:
        return untested(rule, results, f"{evidence}; one seed", measured)
    if failed:
        return Decision(rule, measured, results.scale, absent(results), evidence)
    if base_failed == len(base):
        return Decision(rule, measured, results.scale, "reproduced", evidence)
    found = estimate(relative(results.perplexity(run), results.perplexity(against)))
    if found is not None:
        measured += f"; perplexity {found.text(2, '%')}"
    better = base_failed > 0 or (found is not None and found.excludes(0) < 0)
    return Decision(rule, measured, results.scale, "direction reproduced" if better else absent(results), evidence)


@claim_test
def curve_below(results: Results, paper: Paper, *, run: str, base: str, share: float) -> Decision:
    """In what share of the evaluations of the second half of training `run` has the lower loss, for every seed."""
    rule = (
        f"share of common evaluations in the second half of training with {run} below {base}; reproduced if at least "
        f"{share:.0%} in every one of at least two seeds, direction reproduced if more than half in every seed"
    )
    logs = {r.seed: r.log for r in results.seeds(run) if r.log}
    base_logs = {r.seed: r.log for r in results.seeds(base) if r.log}
    shares: dict[int, float] = {}
    for seed in sorted(set(logs) & set(base_logs)):
        one, other = (dict(zip(*log.evaluations(), strict=True)) for log in (logs[seed], base_logs[seed]))
        common = sorted(set(one) & set(other))
        late = [step for step in common if step >= common[-1] / 2] if common else []
        if late:
            shares[seed] = sum(one[step] < other[step] for step in late) / len(late)
    evidence = sources(results, run, base)
    if not shares:
        return untested(rule, results, f"{evidence}; no evaluation curves to compare")
    measured = "; ".join(f"seed {seed} {value:.0%}" for seed, value in shares.items())
    if len(shares) < 2:
        return untested(rule, results, f"{evidence}; one seed", measured)
    least = min(shares.values())
    verdict: Verdict = "reproduced" if least >= share else "direction reproduced" if least > 0.5 else absent(results)
    return Decision(rule, measured, results.scale, verdict, evidence)
