"""Tests of claims about the share of FLOPs, counted by AERO's Appendix E at published sizes."""

from __future__ import annotations

from aero.architecture import parse
from aero.flops import GPT2, PYTHIA, count, crossover
from aero.published import Paper
from aero.report.decisions import Decision, Verdict, claim_test
from aero.report.results import Results

_FAMILIES = {"GPT-2": GPT2, "Pythia": PYTHIA}


@claim_test
def ffn_share_between(
    results: Results, paper: Paper, *, families: list[str], contexts: list[int], low: float, high: float
) -> Decision:
    """Whether the feed-forward networks' share of the FLOPs, to a whole per cent, is within [low, high] throughout."""
    rule = (
        f"share of the FLOPs by Appendix E at T = {', '.join(map(str, contexts))}; reproduced if all of them, to a "
        f"whole per cent, are from {low:.0%} to {high:.0%}"
    )
    shares = {
        (family, name, context): count(parse("SM+LN+G"), sizes, context).ffn_share
        for family in families
        for name, sizes in _FAMILIES[family].items()
        for context in contexts
    }
    outside = [key for key, share in shares.items() if not low <= round(share, 2) <= high]
    measured = f"{min(shares.values()):.1%} to {max(shares.values()):.1%}; {len(outside)} of {len(shares)} outside"
    verdict: Verdict = "contradicted" if outside else "reproduced"
    least = min(shares, key=shares.__getitem__)
    evidence = f"aero.flops.count; least: {least[0]} {least[1]} at T={least[2]}"
    return Decision(rule, measured, "paper_dimensions", verdict, evidence)


@claim_test
def ffn_dominates(
    results: Results, paper: Paper, *, family: str, context: int, models: list[str] | None = None
) -> Decision:
    """Whether half of the FLOPs or more at `context` are the feed-forward networks', in all models or those named."""
    rule = (
        f"share of the FLOPs by Appendix E at T = {context}; reproduced if it is at least 50 %, to a whole per cent, "
        "in every model"
    )
    chosen = {name: sizes for name, sizes in _FAMILIES[family].items() if models is None or name in models}
    shares = {name: count(parse("SM+LN+G"), sizes, context).ffn_share for name, sizes in chosen.items()}
    measured = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    below = [name for name, share in shares.items() if round(share, 2) < 0.5]
    verdict: Verdict = "contradicted" if below else "reproduced"
    evidence = "aero.flops.count" + (f"; not in {', '.join(below)}" if below else "")
    return Decision(rule, measured, "paper_dimensions", verdict, evidence)


@claim_test
def attention_dominates(results: Results, paper: Paper, *, family: str, context: int) -> Decision:
    """Whether more than half of the FLOPs at `context` are attention's, in all models."""
    rule = (
        f"attention's share of the FLOPs by Appendix E at T = {context}; reproduced if it is above 50 %, to a whole "
        "per cent, in every model"
    )
    models = _FAMILIES[family]
    shares = {name: 1 - count(parse("SM+LN+G"), sizes, context).ffn_share for name, sizes in models.items()}
    measured = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    verdict: Verdict = "reproduced" if all(round(share, 2) > 0.5 for share in shares.values()) else "contradicted"
    return Decision(rule, measured, "paper_dimensions", verdict, "aero.flops.count")


@claim_test
def attention_overtakes_after(results: Results, paper: Paper, *, family: str, context: int) -> Decision:
    """Whether attention begins to be more than half of the FLOPs only beyond `context`, in all models."""
    rule = (
        "context length, about 8d/3, from which attention has more FLOPs than the feed-forward networks by Appendix E; "
        f"reproduced if it is {context} or more in every model"
    )
    lengths = {name: crossover(sizes.width) for name, sizes in _FAMILIES[family].items()}
    measured = ", ".join(f"{name} {length:,.0f}" for name, length in lengths.items())
    verdict: Verdict = "reproduced" if min(lengths.values()) >= context else "contradicted"
    return Decision(rule, measured, "paper_dimensions", verdict, "aero.flops.crossover")
