"""Tests of claims that need no training: counts, costs at the papers' dimensions, and the paper against itself."""

from __future__ import annotations

import math

from aero.entropy import causal_bound, max_entropy
from aero.flops import Count
from aero.published import Cell, Paper, load
from aero.report.costs import FITS, GB, LatencyBound, audit, counted, fits, published_cost, row_costs, saving
from aero.report.decisions import PUBLISHED_ONLY, Decision, Verdict, claim_test
from aero.report.results import Results
from aero.report.statistics import share
from aero.report.tables import PAPER_DIMENSIONS

# Counts and costs at the papers' dimensions -----------------------------------------------------------------------


@claim_test
def counts_agree(
    results: Results, paper: Paper, *, column: str | list[str], without: list[str] | None = None, table: str = "4"
) -> Decision:
    """Whether our counts equal the printed ones, to the printed digit, in every row of a table."""
    rule = "every row equal to the last printed digit; contradicted if one is not"
    printed = paper.tables[table]
    agree, differ = [], []
    for row in printed.rows:
        if row.name in (without or []):
            continue
        ours = counted(row.name, printed)
        unlike = [
            f"{row.name} {cell.column.label}: printed {cell.text}, counted {_text(ours, cell, 1)}"
            for cell in (row.cells[key] for key in ([column] if isinstance(column, str) else column))
            if _text(ours, cell) != cell.text
        ]
        (differ if unlike else agree).append("; ".join(unlike) or row.name)
    measured = f"{len(agree)} of {len(agree) + len(differ)} rows equal"
    evidence = "aero.flops.count" + (f"; different: {'; '.join(differ)}" if differ else "")
    return Decision(rule, measured, PAPER_DIMENSIONS, "contradicted" if differ else "reproduced", evidence)


def _text(ours: Count, cell: Cell, more: int = 0) -> str:
    """Our count of what a cell counts, as the cell is printed or with so many digits more."""
    if cell.operations:
        return "; ".join(str(operation) for operation in ours.nonlinear)
    number = (ours.ffn if cell.column.key == "flops_ffn" else ours.attention) / 1e9
    return f"{number:.{cell.column.digits + more}f}"


def _unmeasured(rule: str, row: str) -> Decision:
    return Decision(rule, "", PAPER_DIMENSIONS, "not testable here", f"two-party cost of {row} not measured yet")


@claim_test
def absolute_bytes(results: Results, paper: Paper, *, row: str, tolerance: float, table: str = "4") -> Decision:
    """The bytes of one forward pass of `row`, both ways, against the printed GB."""
    rule = (
        f"measured bytes over published: reproduced within {tolerance:.0%}; direction reproduced if the configuration "
        "of an older SPU that fits all printed bytes best is within it; else contradicted"
    )
    printed = paper.tables[table]
    cost, published = row_costs(results, printed, row).get("as_written"), printed.value(row, "communication")
    if cost is None or published is None:
        return _unmeasured(rule, row)
    ratio = cost.bytes / GB / published
    program = published_cost(results, printed, row)
    fitted = fits(results).get((table, row))
    found = fitted is not None and abs(fitted.gigabytes / published - 1) <= tolerance
    verdict: Verdict = (
        "reproduced" if abs(ratio - 1) <= tolerance else "direction reproduced" if found else "contradicted"
    )
    measured = f"{cost.bytes / GB:.2f} GB, {ratio:.2f} of the published"
    evidence = f"{cost.path}, as_written, {cost.method}"
    if program is not None:
        measured += f"; {program.bytes / GB:.2f} GB as published, {program.bytes / GB / published:.2f}"
        evidence += f"; {program.path}, {program.program}, {program.method}"
    if fitted is not None:
        measured += f"; {fitted.gigabytes:.2f} GB by SPU's version of then"
        evidence += f"; {FITS}: {fitted.configuration}"
    return Decision(rule, measured, PAPER_DIMENSIONS, verdict, evidence)


@claim_test
def cost_saving(
    results: Results,
    paper: Paper,
    *,
    row: str,
    quantity: str,
    factor: float,
    tolerance: float,
    program: str = "as_written",
    table: str = "4",
    of: str = "",
) -> Decision:
    """How many times less bytes or time `row` needs than SM+LN+G, both in the same program.

    table: of this paper, or of the paper `of` where this one's own table is lost.
    """
    printed = (load(of) if of else paper).tables[table]
    rule = (
        f"{quantity} of SM+LN+G over {row}, both {program}; reproduced within {tolerance:.0%} of {factor:.2f}, "
        "direction reproduced if above 1, else contradicted"
    )
    value = saving(results, printed, row, program, quantity)
    if value is None:
        return _unmeasured(rule, row)
    verdict: Verdict = (
        "reproduced"
        if abs(value / factor - 1) <= tolerance
        else "direction reproduced"
        if value > 1
        else "contradicted"
    )
    cost = row_costs(results, printed, row)[program]
    network = results.parameters.get("two_party", {}).get("networks", {}).get("wan", {})
    at = (
        f"; WAN {network.get('bandwidth_mbit')} Mbit/s, {network.get('rtt_ms')} ms" if quantity == "latency_wan" else ""
    )
    return Decision(rule, f"{value:.2f}×", PAPER_DIMENSIONS, verdict, f"{cost.path}, {program}, {cost.method}{at}")


@claim_test
def own_saving(results: Results, paper: Paper, *, table: str, row: str, quantity: str) -> Decision:
    """How much of a saving the architecture makes, and how much the baseline's unoptimised GELU."""
    rule = (
        f"{quantity} of SM+LN+G over {row}, as_written, and again with segments in the place of the baseline's GELU "
        "alone; reproduced if 90 % of the saving (in logarithms) is left, direction reproduced if half, else "
        "contradicted"
    )
    found = audit(results, paper.tables[table], row, quantity)
    share = found.share
    if share is None:
        return _unmeasured(rule, row)
    verdict: Verdict = "reproduced" if share >= 0.9 else "direction reproduced" if share >= 0.5 else "contradicted"
    tuned = "" if found.tuned is None else f"; both tuned {found.tuned:.2f}×"
    return Decision(
        rule,
        f"{found.as_written:.2f}× = {found.by_gelu:.2f}× by the GELU x {found.one_gelu:.2f}×: {share:.0%}",
        PAPER_DIMENSIONS,
        verdict,
        f"{', '.join(found.rows)}; gelu_plain and gelu_segments of {found.gelu}{tuned}",
    )


# What the paper says against itself -------------------------------------------------------------------------------


@claim_test
def published_bandwidth(results: Results, paper: Paper, *, table: str) -> Decision:
    """Rows whose printed latency is less than their printed bytes need on the stated network, most favourable
    reading.
    """
    bandwidth = paper.facts["network"]["bandwidth_mbit"]
    rule = (
        f"printed latency >= printed bytes / (2 x {bandwidth} Mbit/s), both directions always busy; contradicted if "
        "one row is faster than that"
    )
    rows = [
        (row.name, LatencyBound(row.cells["communication"].value, bandwidth), row.cells["latency"].value)
        for row in paper.tables[table].rows
    ]
    impossible = [name for name, bound, minutes in rows if minutes < bound.overlapped]
    one_way = share([minutes < bound.one_way for _, bound, minutes in rows])
    needed, name = max((bound.needed_mbit(minutes), name) for name, bound, minutes in rows)
    measured = f"{len(impossible)} of {len(rows)} rows impossible, {name} needs at least {needed:.0f} Mbit/s"
    evidence = (
        f"Table {table}: {', '.join(impossible) or 'none'}; if the directions do not overlap, "
        f"{one_way:.0%} of the rows are impossible"
    )
    return Decision(rule, measured, PUBLISHED_ONLY, "contradicted" if impossible else "reproduced", evidence)


@claim_test
def text_bandwidth(results: Results, paper: Paper, *, gigabytes: str, minutes: str) -> Decision:
    """Whether the gigabytes of the text can cross the stated network in the minutes of the text (keys of the facts)."""
    bandwidth, printed = paper.facts["network"]["bandwidth_mbit"], paper.facts["introduction"]
    bound = LatencyBound(printed[gigabytes], bandwidth)
    rule = f"printed minutes >= printed bytes / (2 x {bandwidth} Mbit/s), both directions always busy"
    verdict: Verdict = "reproduced" if printed[minutes] >= bound.overlapped else "contradicted"
    measured = f"{bound.overlapped:.1f} min at least; {bound.needed_mbit(printed[minutes]):.0f} Mbit/s needed"
    evidence = f"{printed['place']}: {printed[gigabytes]} GB in {printed[minutes]} min"
    return Decision(rule, measured, PUBLISHED_ONLY, verdict, evidence)


@claim_test
def published_count(results: Results, paper: Paper, *, table: str, row: str, column: str) -> Decision:
    """A printed count against the paper's own formula."""
    rule = "our count by the paper's formula equals the printed number to the printed digit; contradicted if not"
    cell, ours = paper.tables[table].row(row).cells[column], counted(row, paper.tables[table])
    number = (ours.ffn if column == "flops_ffn" else ours.attention) / 1e9
    same = f"{number:.{cell.column.digits}f}" == cell.text
    return Decision(
        rule,
        f"{number:.2f}e9",
        PUBLISHED_ONLY,
        "reproduced" if same else "contradicted",
        f"Table {table}, {row}: printed {cell.text}, Appendix E gives {number:.2f}",
    )


@claim_test
def published_ratio(
    results: Results, paper: Paper, *, table: str, column: str, row: str, other: str, factor: float
) -> Decision:
    """A stated factor against the two printed numbers it is about."""
    rule = f"printed {row} over printed {other} equals {factor:g} within the rounding of both; contradicted if not"
    one, two = (paper.tables[table].row(name).cells[column] for name in (row, other))
    low = (one.value - one.half_unit) / (two.value + two.half_unit)
    high = (one.value + one.half_unit) / (two.value - two.half_unit)
    return Decision(
        rule,
        f"{one.value / two.value:.1f}×",
        PUBLISHED_ONLY,
        "reproduced" if low <= factor <= high else "contradicted",
        f"Table {table}: {one.text} and {two.text}, a factor between {low:.2f} and {high:.2f}",
    )


@claim_test
def maximum_entropy(results: Results, paper: Paper, *, contexts: list[int]) -> Decision:
    """The causal bound ln(T!)/T against log T, and every measured head against the bound."""
    rule = "ln(T!)/T over log T; contradicted if below 1 for every T and no measured head exceeds ln(T!)/T"
    ratios = {context: causal_bound(context) / max_entropy(context) for context in contexts}
    heads = [
        (max(max(layer) for layer in run.entropy.mean), run.entropy.maximum["causal_bound"])
        for seeds in results.runs.values()
        for run in seeds
        if run.entropy and all(math.isfinite(v) for layer in run.entropy.mean for v in layer)
    ]
    above = sum(value > bound * (1 + 1e-4) for value, bound in heads)
    measured = "; ".join(
        f"T={context}: {causal_bound(context):.3f} of {max_entropy(context):.3f}" for context in contexts
    )
    evidence = f"row i of a causal mask has at most ln i; {above} of {len(heads)} measured models exceed the bound"
    verdict: Verdict = "contradicted" if max(ratios.values()) < 1 and not above else "reproduced"
    return Decision(rule, measured, PUBLISHED_ONLY, verdict, evidence)


@claim_test
def published_margin(results: Results, paper: Paper) -> Decision:
    """The margin of the listing against the margin of the text."""
    text, listing = (paper.facts["regularizer"][key] for key in ("gamma_text", "gamma_listing"))
    used = results.parameters.get("regularizer", {}).get("gamma")
    return Decision(
        "both printed values equal; contradicted if not",
        f"{listing['value']:.2f} and {text['value']:.2f}",
        PUBLISHED_ONLY,
        "reproduced" if text["value"] == listing["value"] else "contradicted",
        f"{listing['place']} against {text['place']}; this artifact trains with {used}",
    )
