"""Quantities that need no measurement: counts by AERO's Appendix E, and what the papers print against itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from aero.architecture import parse
from aero.entropy import causal_bound, entropy_regularization, max_entropy
from aero.flops import GPT2, PYTHIA, Count, count, crossover
from aero.published import Cell, Row, fact, table
from aero.report.costs import LatencyBound, counted
from aero.report.results import Results
from aero.report.verdicts import PAPER_DIMENSIONS, PUBLISHED_ONLY, Measurement

GROUP = "theory and arithmetic"
_FAMILIES = {"GPT-2": GPT2, "Pythia": PYTHIA}


def _checked(text: str, evidence: str, held: bool) -> Measurement:
    """A measurement of printed numbers alone."""
    return Measurement(text, PUBLISHED_ONLY, evidence, checks={"": held})


def _ratio(one: Cell, base: Cell) -> tuple[float, float, float]:
    """The ratio of two printed numbers, between the least and the greatest that their rounding allows."""
    return (
        (one.value - one.half_unit) / (base.value + base.half_unit),
        one.value / base.value,
        (one.value + one.half_unit) / (base.value - base.half_unit),
    )


# Counts ---------------------------------------------------------------------------------------------------------------


def equal_counts(results: Results, of: str, columns: list[str], without: Iterable[str] = ()) -> Measurement:
    """Whether our counts equal the printed ones, to the printed digit, in every row of a table."""
    equal = {}
    for row in table(of).rows:
        if row.name not in without:
            ours, cells = counted(row.name, table(of)), [row.cells[key] for key in columns]
            unlike = [cell for cell in cells if _as_printed(ours, cell) != cell.text]
            words = [f"{c.column.label} printed {c.text}, counted {_as_printed(ours, c, 1)}" for c in unlike]
            equal[f"{row.name} {', '.join(words)}".strip()] = not unlike
    text = f"{sum(equal.values())} of {len(equal)} rows equal"
    return Measurement(text, PAPER_DIMENSIONS, "aero.flops.count", checks=equal)


def _as_printed(ours: Count, cell: Cell, more_digits: int = 0) -> str:
    """Our count of what a cell counts, as the cell is printed or with so many digits more."""
    if cell.operations:
        return "; ".join(str(operation) for operation in ours.nonlinear)
    number = (ours.ffn if cell.column.key == "flops_ffn" else ours.attention) / 1e9
    return f"{number:.{cell.column.digits + more_digits}f}"


def share_of_flops(
    results: Results,
    part: str,
    family: str,
    contexts: list[int],
    low: float,
    high: float = 1.0,
    models: list[str] | None = None,
) -> Measurement:
    """Whether the share of the FLOPs that is in the feed-forward networks or in attention, to a whole per cent, is from
    `low` to `high` in every model and context."""
    shares = {}
    for name, sizes in _FAMILIES[family].items():
        if models is None or name in models:
            for context in contexts:
                ffn = count(parse("SM+LN+G"), sizes, context).ffn_share
                shares[name, context] = ffn if part == "ffn" else 1 - ffn
    inside = {f"{name} at T={context}": low <= round(s, 2) <= high for (name, context), s in shares.items()}
    text = ", ".join(f"{name} {share:.1%}" for (name, _), share in shares.items())
    if len(contexts) > 1:
        outside = f"{len(inside) - sum(inside.values())} of {len(inside)} outside"
        text = f"{min(shares.values()):.1%} to {max(shares.values()):.1%}; {outside}"
    return Measurement(text, PAPER_DIMENSIONS, "aero.flops.count", checks=inside)


def attention_overtakes(results: Results, family: str, context: int) -> Measurement:
    """Context length, about 8d/3, from which attention has more FLOPs than the feed-forward networks; whether it is
    `context` or more in every model."""
    lengths = {name: crossover(sizes.width) for name, sizes in _FAMILIES[family].items()}
    text = ", ".join(f"{name} {length:,.0f}" for name, length in lengths.items())
    checks = {name: length >= context for name, length in lengths.items()}
    return Measurement(text, PAPER_DIMENSIONS, "aero.flops.crossover", checks=checks)


def count_by_formula(results: Results, of: str, row: str, column: str) -> Measurement:
    """A printed count of FLOPs against the paper's own formula."""
    cell, ours = table(of).row(row).cells[column], counted(row, table(of))
    number = (ours.ffn if column == "flops_ffn" else ours.attention) / 1e9
    evidence = f"{of}, {row}: printed {cell.text}, Appendix E gives {number:.2f}"
    return _checked(f"{number:.2f}e9", evidence, _as_printed(ours, cell) == cell.text)


def largest_entropy(results: Results, contexts: list[int]) -> Measurement:
    """The causal bound ln(T!)/T against log T: whether it reaches it, or any measured head exceeds it."""
    heads = [
        (max(max(layer) for layer in run.entropy.mean), run.entropy.maximum["causal_bound"])
        for runs in results.runs.values()
        for run in runs
        if run.entropy and all(math.isfinite(v) for layer in run.entropy.mean for v in layer)
    ]
    exceeding = sum(value > bound * (1 + 1e-4) for value, bound in heads)
    text = "; ".join(f"T={context}: {causal_bound(context):.3f} of {max_entropy(context):.3f}" for context in contexts)
    evidence = f"row i of a causal mask has at most ln i; {exceeding} of {len(heads)} measured models exceed the bound"
    reached = any(causal_bound(context) >= max_entropy(context) for context in contexts)
    return _checked(text, evidence, reached or exceeding > 0)


def penalty_of_low_entropy(results: Results, context: int, share: float) -> Measurement:
    """Penalty of Algorithm 1 for a head `share` of E_max below its threshold of 1/2: whether it is 0 where that of a
    head as far above is not."""
    gamma, maximum = fact("aero", "regularizer.gamma_text")["value"], max_entropy(context)
    thresholds = torch.full((1, 1), 0.5, dtype=torch.float64)
    entropies = [torch.full((1, 1, 1, context), (0.5 + s * share) * maximum, dtype=torch.float64) for s in (1, -1)]
    above, below = (float(entropy_regularization(e, thresholds, gamma, "head_mean")) for e in entropies)
    evidence = f"aero.entropy.entropy_regularization, T={context}, gamma {gamma:g}: the square of either deviation"
    return _checked(f"{below:.3f} below, {above:.3f} above", evidence, below == 0 < above)


# The network ----------------------------------------------------------------------------------------------------------


def bandwidth_of_table(results: Results, of: str) -> Measurement:
    """Rows whose printed minutes are fewer than their printed bytes need on the stated network, if both directions are
    always busy."""
    bandwidth = fact(of.split("/")[0], "network")["bandwidth_mbit"]
    rows = [
        (row.name, LatencyBound(row.cells["communication"].value, bandwidth), row.cells["latency"].value)
        for row in table(of).rows
    ]
    possible = {name: minutes >= bound.overlapped for name, bound, minutes in rows}
    needed, name = max((bound.needed_mbit(minutes), name) for name, bound, minutes in rows)
    impossible = len(possible) - sum(possible.values())
    text = f"{impossible} of {len(rows)} rows impossible, {name} needs at least {needed:.0f} Mbit/s"
    one_way = sum(minutes < bound.one_way for _, bound, minutes in rows)
    evidence = f"{of}; if the directions do not overlap, {one_way} of {len(rows)} rows are impossible"
    return Measurement(text, PUBLISHED_ONLY, evidence, checks=possible)


def bandwidth_of_text(results: Results, paper: str, gigabytes: str, minutes: str) -> Measurement:
    """Whether the gigabytes of the introduction can cross the stated network in its minutes, if both directions are
    always busy."""
    printed = fact(paper, "introduction")
    bound = LatencyBound(printed[gigabytes], fact(paper, "network")["bandwidth_mbit"])
    text = f"{bound.overlapped:.1f} min at least; {bound.needed_mbit(printed[minutes]):.0f} Mbit/s needed"
    evidence = f"{printed['place']}: {printed[gigabytes]} GB in {printed[minutes]} min"
    return _checked(text, evidence, printed[minutes] >= bound.overlapped)


# Cells and sentences --------------------------------------------------------------------------------------------------


def ratio_of_cells(
    results: Results, of: str, column: str, row: str, other: str, value: float, digits: int = 9, percent: bool = False
) -> Measurement:
    """Printed number of `row` over that of `other`, or its change in per cent: whether it is `value` (of so many
    decimals) within the rounding of all."""
    one, base = (table(of).row(name).cells[column] for name in (row, other))
    low, ratio, high = _ratio(one, base)
    text = f"{ratio:.1f}×"
    if percent:
        low, ratio, high = (100 * (end - 1) for end in (low, ratio, high))
        text = f"{ratio:+.2f} %"
    half = 0.5 * 10.0**-digits
    evidence = f"{of}: {one.text} over {base.text}, from {low:.2f} to {high:.2f}"
    return _checked(text, evidence, low <= value + half and value - half <= high)


def one_number(results: Results, cells: list[list[str]]) -> Measurement:
    """Whether one number rounds to all printed values of the cells [table, row, column]."""
    found = {f"{of}, {row}": table(of).row(row).cells[column] for of, row, column in cells}
    low = max(cell.value - cell.half_unit for cell in found.values())
    high = min(cell.value + cell.half_unit for cell in found.values())
    text = " and ".join(cell.text for cell in found.values())
    evidence = "; ".join(f"{place}: {cell.text}" for place, cell in found.items())
    return _checked(text, evidence, low <= high + 1e-9)  # 3.485 rounds to 3.48 and to 3.49


def same_order(results: Results, pairs: list[list[str]]) -> Measurement:
    """Whether the first of two rows has the lower perplexity in every table or in none, for [table, row, row]."""
    lower, words = set(), []
    for of, first, second in pairs:
        one, other = (table(of).row(name).cells["ppl"] for name in (first, second))
        lower.add(one.value < other.value)
        words.append(f"{of}: {one.text} against {other.text}")
    return _checked("; ".join(words), "; ".join(words), len(lower) == 1)


def equal_facts(results: Results, paper: str, facts: list[str]) -> Measurement:
    """Whether two things that the paper's text says, named by their place in `aero/published`, are the same."""
    one, other = (fact(paper, name) for name in facts)
    text = " and ".join(_words(one_fact["value"]) for one_fact in (one, other))
    return _checked(text, f"{one['place']} against {other['place']}", one["value"] == other["value"])


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{v:g}" for v in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def equal_rows(results: Results, of: str, row: str, other: str, among: str) -> Measurement:
    """Whether two printed rows are equal in every column; where not, which rows of the group `among` `other` equals."""
    cells, others = table(of).row(row).cells, table(of).row(other).cells
    differ = [key for key in cells if cells[key].value != others[key].value]
    text = "; ".join(f"{key}: {cells[key].text} and {others[key].text}" for key in differ) or "equal"
    like = {
        key: [r.name for r in table(of).rows if r.group == among and r.cells[key].value == others[key].value]
        for key in differ
    }
    evidence = "; ".join(f"{key}: {other} is what {', '.join(names) or 'no row'} has" for key, names in like.items())
    return _checked(text, evidence, not differ)


def savings_columns(results: Results, tables: list[str]) -> Measurement:
    """Whether every printed saving is the ratio of the printed numbers it is of, within the rounding of all three."""
    follows = {}
    for of in tables:
        base, *rows = table(of).rows
        for quantity in ("communication", "latency"):
            for row in rows:
                saving, (low, ratio, high) = (
                    row.cells[f"savings_{quantity}"],
                    _ratio(base.cells[quantity], row.cells[quantity]),
                )
                held = low - saving.half_unit <= saving.value <= high + saving.half_unit
                follows[f"{of}, {row.name}, {quantity}: {saving.text}, not {ratio:.2f}"] = held
    return Measurement(f"{sum(follows.values())} of {len(follows)} follow", PUBLISHED_ONLY, checks=follows)


# Table 1 of entropy_landscape -----------------------------------------------------------------------------------------

_LANDSCAPE = "entropy_landscape/table1"


def _cell(row: Row, statistic: str, training: str) -> Cell:
    """A statistic ("low", "w1") of one training of a row."""
    return row.cells[statistic if training == "baseline" else f"{statistic}_{training}"]


def _regularised() -> list[tuple[Row, str]]:
    printed = table(_LANDSCAPE)
    return [(row, training) for row in printed.rows for training in printed.trainings if training != "baseline"]


def wider_ranges(results: Results) -> Measurement:
    """Whether the printed range of the heads' entropies is wider with regularisation than without, in every row."""
    wider = {}
    for row, training in _regularised():
        base, own = (_cell(row, "high", t).value - _cell(row, "low", t).value for t in ("baseline", training))
        wider[f"{row.name}, margin {training} %: {own:.2f} of {base:.2f} nats"] = own > base
    text = f"{sum(wider.values())} of {len(wider)} ranges wider"
    return Measurement(text, PUBLISHED_ONLY, _LANDSCAPE, checks=wider)


def possible_ranges(results: Results) -> Measurement:
    """Whether every printed highest head is at most the causal bound ln(T!)/T."""
    printed, possible, nearest = table(_LANDSCAPE), {}, (0.0, "")
    for row in printed.rows:
        bound = causal_bound(printed.setting(row)["context"])
        for training in printed.trainings:
            cell = _cell(row, "high", training)
            possible[f"{row.name}, {training}"] = cell.value - cell.half_unit <= bound
            nearest = max(nearest, (cell.value / bound, f"{row.name}: {cell.text} of {bound:.3f} nats"))
    text = f"{len(possible) - sum(possible.values())} of {len(possible)} above"
    return Measurement(text, PUBLISHED_ONLY, f"nearest to it {nearest[1]}", checks=possible)


def largest_gain(results: Results, percent: float) -> Measurement:
    """The largest fall of the printed perplexities: whether it is `percent` to a whole per cent."""
    gains = []
    for row, training in _regularised():
        own, base = _cell(row, "ppl", training), _cell(row, "ppl", "baseline")
        if own.value is not None:
            gains.append((100 * (1 - own.value / base.value), f"{row.name}: {base.text} to {own.text}"))
    gain, words = max(gains)
    return _checked(f"{gain:.1f} %", f"{_LANDSCAPE}, {words}", round(gain) == percent)


def range_of_distances(results: Results, low: float, high: float) -> Measurement:
    """Whether the least and largest printed Wasserstein-1 distance are `low` and `high`."""
    values = [_cell(row, "w1", training).value for row, training in _regularised()]
    text = f"{min(values):.3f} to {max(values):.3f}"
    return _checked(text, f"{_LANDSCAPE}, {len(values)} cells", (min(values), max(values)) == (low, high))
