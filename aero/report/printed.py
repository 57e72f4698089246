"""Quantities at the papers' own dimensions: counts by AERO's Appendix E, printed numbers against each other, costs."""

from __future__ import annotations

import math
from typing import Any

import torch

from aero.architecture import parse
from aero.entropy import causal_bound, entropy_regularization, max_entropy
from aero.flops import GPT2, PYTHIA, Count, count
from aero.published import Cell, Row, fact, table
from aero.report import costs
from aero.report.results import Results
from aero.report.verdicts import PAPER_DIMENSIONS, PUBLISHED_ONLY, Measurement, exact

GROUP = "theory and arithmetic"
COST_GROUP = "cost at the papers’ dimensions"
"""The group of `COSTS`, which are measured."""
_FAMILIES = {"GPT-2": GPT2, "Pythia": PYTHIA}


def _each(text: str, held: dict[str, bool]) -> Measurement:
    """A measurement of several printed numbers; the one of a single number is in its text."""
    return Measurement(text, PUBLISHED_ONLY, checks=held if len(held) > 1 else {"": all(held.values())})


def _ratio(one: Cell, base: Cell) -> tuple[float, float, float]:
    """The ratio of two printed numbers, between the least and the greatest that their rounding allows."""
    return (
        (one.value - one.half_unit) / (base.value + base.half_unit),
        one.value / base.value,
        (one.value + one.half_unit) / (base.value - base.half_unit),
    )


# Counts ---------------------------------------------------------------------------------------------------------------


def equal_counts(results: Results, tables: list[str], columns: list[str]) -> Measurement:
    """Whether our counts equal the printed ones, to the printed digit, in every row of the tables."""
    equal = {}
    for of in tables:
        for row in table(of).rows:
            ours, cells = costs.counted(row.name, table(of)), [row.cells[key] for key in columns]
            unlike = [cell for cell in cells if _as_printed(ours, cell) != cell.text]
            words = [f"{c.column.label} printed {c.text}, counted {_as_printed(ours, c, 1)}" for c in unlike]
            equal[f"{of}, {row.name} {', '.join(words)}".strip()] = not unlike
    text = f"{sum(equal.values())} of {len(equal)} rows equal"
    return Measurement(text, PAPER_DIMENSIONS, "aero.flops.count", checks=equal)


def _as_printed(ours: Count, cell: Cell, more_digits: int = 0) -> str:
    """Our count of what a cell counts, as the cell is printed or with so many digits more."""
    if cell.operations:
        return "; ".join(str(operation) for operation in ours.nonlinear)
    number = (ours.ffn if cell.column.key == "flops_ffn" else ours.attention) / 1e9
    return f"{number:.{cell.column.digits + more_digits}f}"


def share_of_flops(results: Results, cases: list[list[Any]], low: float, high: float = 1.0) -> Measurement:
    """Whether the share of the FLOPs that is in the feed-forward networks, to a whole per cent, is from `low` to `high`
    for each [family, models or "all", context]."""
    shares = {
        (name, context): count(parse("SM+LN+G"), sizes, context).ffn_share
        for family, models, context in cases
        for name, sizes in _FAMILIES[family].items()
        if models == "all" or name in models
    }
    inside = {f"{name} at T={context}": low <= round(s, 2) <= high for (name, context), s in shares.items()}
    outside = f"{len(inside) - sum(inside.values())} of {len(inside)} outside"
    text = f"{min(shares.values()):.1%} to {max(shares.values()):.1%}; {outside}"
    return Measurement(text, PAPER_DIMENSIONS, "aero.flops.count", checks=inside)


def largest_entropy(results: Results, contexts: list[int]) -> Measurement:
    """The causal bound ln(T!)/T against log T: whether it reaches it."""
    text = "; ".join(f"T={context}: {causal_bound(context):.3f} of {max_entropy(context):.3f}" for context in contexts)
    reached = any(causal_bound(context) >= max_entropy(context) for context in contexts)
    return Measurement(text, PUBLISHED_ONLY, "row i of a causal mask has at most ln i", checks={"": reached})


def penalty_of_low_entropy(results: Results, context: int, share: float) -> Measurement:
    """Penalty of Algorithm 1 for a head `share` of E_max below its threshold of 1/2: whether it is 0 where that of a
    head as far above is not."""
    gamma, maximum = fact("aero", "regularizer.gamma_text")["value"], max_entropy(context)
    thresholds = torch.full((1, 1), 0.5, dtype=torch.float64)
    entropies = [torch.full((1, 1, 1, context), (0.5 + s * share) * maximum, dtype=torch.float64) for s in (1, -1)]
    above, below = (float(entropy_regularization(e, thresholds, gamma, "head_mean")) for e in entropies)
    evidence = f"aero.entropy.entropy_regularization, T={context}, gamma {gamma:g}: the square of either deviation"
    text, held = f"penalty {below:.3f} below the threshold, {above:.3f} above", below == 0 < above
    return Measurement(text, PUBLISHED_ONLY, evidence, checks={"": held})


# The network ----------------------------------------------------------------------------------------------------------


def bandwidth_of_tables(results: Results, tables: list[str]) -> Measurement:
    """Rows whose printed minutes are fewer than their printed bytes need on the stated network, if both directions are
    always busy."""
    possible, needed, one_way = {}, (0.0, ""), 0
    for of in tables:
        for row in table(of).rows:
            least, minutes = costs.least_minutes(table(of), row.name), row.cells["latency"].value
            possible[f"{of}, {row.name}"] = minutes >= least
            needed = max(needed, (costs.needed_mbit(table(of), row.name), f"{of}, {row.name}"))
            one_way += minutes < 2 * least
    impossible = len(possible) - sum(possible.values())
    text = f"{impossible} of {len(possible)} rows impossible; {needed[1]} needs at least {needed[0]:.0f} Mbit/s"
    evidence = f"if the directions do not overlap, {one_way} of {len(possible)} rows are impossible"
    return Measurement(text, PUBLISHED_ONLY, evidence, checks=possible)


# Cells and sentences --------------------------------------------------------------------------------------------------


def ratio_of_cells(results: Results, of: str, column: str, row: str, other: str, value: float) -> Measurement:
    """Printed number of `row` over that of `other`: whether it is `value` within the rounding of both."""
    one, base = (table(of).row(name).cells[column] for name in (row, other))
    low, ratio, high = _ratio(one, base)
    evidence = f"{of}: {one.text} over {base.text}, from {low:.2f} to {high:.2f}"
    return Measurement(f"{ratio:.1f}×", PUBLISHED_ONLY, evidence, checks={"": low <= value <= high})


def one_number(results: Results, groups: list[list[list[str]]]) -> Measurement:
    """Whether for each group of cells [table, row, column] one number rounds to all printed values."""
    same = {}
    for cells in groups:
        found = {f"{of}, {row}": table(of).row(row).cells[column] for of, row, column in cells}
        low = max(cell.value - cell.half_unit for cell in found.values())
        high = min(cell.value + cell.half_unit for cell in found.values())
        # 3.485 rounds to 3.48 and to 3.49
        same["; ".join(f"{place}: {cell.text}" for place, cell in found.items())] = low <= high + 1e-9
    return _each("; ".join(same) if len(same) == 1 else f"{sum(same.values())} of {len(same)} alike", same)


def equal_facts(results: Results, paper: str, pairs: list[list[str]]) -> Measurement:
    """Whether both things of each pair that the paper's text says, named by their place in `aero/published`, are the
    same."""
    same = {}
    for names in pairs:
        one, other = (fact(paper, name) for name in names)
        words = " and ".join(_words(found["value"]) for found in (one, other))
        same[f"{words} ({one['place']} against {other['place']})"] = one["value"] == other["value"]
    return _each("; ".join(same), same)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{v:g}" for v in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def savings_columns(results: Results, tables: list[str]) -> Measurement:
    """Whether every printed saving is the ratio of the printed numbers it is of, within the rounding of all three."""
    follows = {}
    for of in tables:
        base, *rows = table(of).rows
        for quantity in ("communication", "latency"):
            for row in rows:
                saving = row.cells[f"savings_{quantity}"]
                low, ratio, high = _ratio(base.cells[quantity], row.cells[quantity])
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
    text = f"{sum(wider.values())} of {len(wider)} printed ranges wider"
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


def summary_of_table(results: Results, percent: float, low: float, high: float) -> Measurement:
    """Whether the largest fall of the printed perplexities is `percent` to a whole per cent, and the least and largest
    printed Wasserstein-1 distance are `low` and `high`."""
    gains = [
        100 * (1 - own.value / _cell(row, "ppl", "baseline").value)
        for row, training in _regularised()
        if (own := _cell(row, "ppl", training)).value is not None
    ]
    distances = [_cell(row, "w1", training).value for row, training in _regularised()]
    text = f"{max(gains):.1f} %; {min(distances):.3f} to {max(distances):.3f}"
    checks = {"gain": round(max(gains)) == percent, "distances": (min(distances), max(distances)) == (low, high)}
    return Measurement(text, PUBLISHED_ONLY, f"{_LANDSCAPE}, {len(distances)} cells", checks=checks)


# Costs of private inference -------------------------------------------------------------------------------------------


def _not_measured(row: str) -> Measurement:
    return Measurement("", PAPER_DIMENSIONS, missing=f"two-party cost of {row} not measured yet")


FITTED, REFITTED = "fitted configuration", "fitted configuration under SPU 0.9.5"


def bytes_over_published(results: Results, tables: list[str], row: str) -> Measurement:
    """Measured bytes of one forward pass, both directions, over the printed GB: that of the tables which is furthest
    from 1, on stock SPU and in the configuration of SPU that fits all printed bytes best."""
    ratios: dict[str, list[float]] = {"stock SPU": [], REFITTED: [], FITTED: []}
    text, evidence = [], []
    for of in tables:
        printed = table(of)
        cost, published = costs.row_costs(results, printed, row).get("as_written"), printed.value(row, "communication")
        if cost is None or published is None:
            return _not_measured(f"{row} of {of}")
        sizes = {"stock SPU": cost.bytes / costs.GB}
        if (program := costs.published_cost(results, printed, row)) is not None:
            sizes[REFITTED] = program.bytes / costs.GB
        if (fitted := costs.fits(results).get((printed.number, row))) is not None:
            sizes[FITTED] = fitted.gigabytes
            evidence.append(f"{costs.FITS}: {fitted.configuration}")
        for name, size in sizes.items():
            ratios[name].append(size / published)
        evidence.append(f"{cost.path}, {cost.program}, {cost.method}")
        text.append(f"{of}: " + ", ".join(f"{name} {size:.2f} GB" for name, size in sizes.items()))
    furthest = {
        name: exact(max(ratios[name], key=lambda ratio: abs(math.log(ratio))))
        for name in ("stock SPU", FITTED)
        if len(ratios[name]) == len(tables)
    }
    words = ", ".join(f"{name} {one.mean:.2f} of the published GB at worst" for name, one in furthest.items())
    return Measurement("; ".join((words, *text)), PAPER_DIMENSIONS, "; ".join(dict.fromkeys(evidence)), furthest)


def savings(results: Results, rows: dict[str, list[str]], quantity: str, program: str = "as_written") -> Measurement:
    """How many times fewer bytes, or seconds on the WAN (`latency_wan`), each row needs in one program than SM+LN+G, as
    [table, row], or than another, as [table, row, other row]."""
    effects, paths = {}, []
    for name, (of, row, *other) in rows.items():
        own, *base = (costs.saving(results, table(of), one, program, quantity) for one in (row, *other))
        if own is None or None in base:
            return _not_measured(f"{row} of {of}")
        effects[name] = exact(own / base[0] if base else own)
        cost = costs.row_costs(results, table(of), row)[program]
        paths.append(f"{cost.path}, {program}, {cost.method}")
    if quantity == "latency_wan" and (wan := costs.network(results, "wan")):
        paths.append(f"WAN {wan.bandwidth_mbit:g} Mbit/s, {wan.rtt_ms:g} ms")
    text = ", ".join(f"{name} {one.mean:.2f}×" for name, one in effects.items())
    return Measurement(text, PAPER_DIMENSIONS, "; ".join(dict.fromkeys(paths)), effects)


def architectures_share(results: Results, of: str, row: str, quantity: str) -> Measurement:
    """Share of a saving (of logarithms) that is left when the baseline's GELU alone is computed in segments: the
    architecture's own."""
    found = costs.audit(results, table(of), row, quantity)
    if found.share is None:
        return _not_measured(row)
    text = f"{found.as_written:.2f}× in all: {found.by_gelu:.2f}× by the GELU, "
    text += f"{found.one_gelu:.2f}× by the architecture, {found.share:.0%} of the total's logarithm"
    tuned = "" if found.tuned is None else f"; both optimised {found.tuned:.2f}×"
    evidence = f"{', '.join(found.rows)}; gelu_plain and gelu_segments of {found.gelu}{tuned}"
    return Measurement(text, PAPER_DIMENSIONS, evidence, {"": exact(found.share)})


def gelu_of_the_baseline(results: Results, of: str, gelu: str, relu: str) -> Measurement:
    """Bytes of one GELU, (printed GB of `gelu` - `relu`) / layers + one measured ReLU: whether they are nearer, in
    ratio, to a GELU in polynomial segments than to a plain one."""
    printed = table(of)
    sizes = printed.dimensions
    shape = f"{sizes['context']}x{4 * sizes['width']}"
    path = results.file("two_party/ops.csv") or results.root
    found = {kind: costs.operation(path, kind, shape) for kind in ("gelu_plain", "gelu_segments", "relu")}
    if missing := [kind for kind, measured in found.items() if measured is None]:
        return Measurement("", PAPER_DIMENSIONS, missing=f"not measured yet: {', '.join(missing)}")
    size = {kind: one["bytes"] / costs.GB for kind, one in found.items() if one}
    both = [printed.value(row, "communication") for row in (gelu, relu)]
    implied = (both[0] - both[1]) / sizes["layers"] + size["relu"]
    plain, segments = (abs(math.log(implied / size[kind])) for kind in ("gelu_plain", "gelu_segments"))
    return Measurement(
        f"{implied:.2f} GB per GELU (printed difference plus a ReLU); stock SPU: plain "
        f"{size['gelu_plain']:.2f}, segments {size['gelu_segments']:.2f}",
        PAPER_DIMENSIONS,
        f"results/two_party/ops.csv, {shape}; Table {printed.number}",
        {"": exact(implied)},
        checks={"": segments < plain},
    )


def next_token(results: Results, rows: list[str], bytes: float, seconds: float) -> Measurement:
    """Whether a private next token with cached keys and values takes at most these shares of a whole pass's bytes and
    seconds in each of the rows; the larger of its later tokens counts."""
    found = costs.next_tokens(results)
    measured = {row for row, one in found.items() if not math.isnan(sum(one["bytes"] + one["seconds"]))}
    if missing := [row for row in rows if row not in measured]:
        return Measurement("", PAPER_DIMENSIONS, missing=f"{costs.GENERATION}: {', '.join(missing)} not measured yet")
    shares = {(row, name): found[row][name][1] / found[row][name][0] for row in rows for name in ("bytes", "seconds")}
    most = {"bytes": bytes, "seconds": seconds}
    held = {f"{row}, {name}": share <= most[name] for (row, name), share in shares.items()}
    text = ", ".join(f"{row} {shares[row, 'bytes']:.3f}× bytes, {shares[row, 'seconds']:.3f}× seconds" for row in rows)
    error = max(found[row]["logit_error"][1] for row in rows)
    evidence = f"{costs.GENERATION}; logits within {error:.3g} of PyTorch's"
    return Measurement(text, PAPER_DIMENSIONS, evidence, checks=held)


COSTS = (bytes_over_published, savings, architectures_share, gelu_of_the_baseline, next_token)
