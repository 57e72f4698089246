"""Tests of claims about the share of FLOPs, counted by AERO's Appendix E at published sizes."""

from __future__ import annotations

from aero.architecture import parse
from aero.flops import GPT2, PYTHIA, count
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
