"""Tests of the papers against themselves and each other: one quantity printed twice, a sentence against its table."""

from __future__ import annotations

import math

import torch

from aero.entropy import causal_bound, entropy_regularization, max_entropy
from aero.published import Cell, Paper, Row, load
from aero.report.costs import GB, operation
from aero.report.decisions import PUBLISHED_ONLY, Decision, Verdict, claim_test
from aero.report.figure_index import PAPERS
from aero.report.results import Results
from aero.report.tables import PAPER_DIMENSIONS


def _agree(rule: str, measured: str, holds: bool, evidence: str) -> Decision:
    """The decision where nothing is measured: the printed things fit together, or they do not."""
    return Decision(rule, measured, PUBLISHED_ONLY, "reproduced" if holds else "contradicted", evidence)


def _place(short: str, table: str, row: str) -> str:
    return f"{PAPERS[short]} Table {table}, {row}"


@claim_test
def printed_alike(results: Results, paper: Paper, *, cells: list[list[str]]) -> Decision:
    """Whether one quantity, printed in several cells [paper, table, row, column], can be one number."""
    rule = "one number rounds to every printed value; contradicted if none does"
    found: list[tuple[str, Cell]] = [
        (_place(short, table, row), load(short).tables[table].row(row).cells[column])
        for short, table, row, column in cells
    ]
    low, high = (max(c.value - c.half_unit for _, c in found), min(c.value + c.half_unit for _, c in found))
    measured = " and ".join(cell.text for _, cell in found)
    # A tie of the limits is one number: 3.485 rounds to 3.48 and to 3.49, by the rule that is used.
    return _agree(rule, measured, low <= high + 1e-9, "; ".join(f"{place}: {cell.text}" for place, cell in found))


@claim_test
def printed_order(results: Results, paper: Paper, *, tables: list[list[str]]) -> Decision:
    """Whether of two rows the first has the lower perplexity in every table [paper, table, first, second] alike."""
    rule = "the difference of the two printed perplexities has one sign in all tables; contradicted if not"
    signs, told = [], []
    for short, number, first, second in tables:
        one, other = (load(short).tables[number].row(name).cells["ppl"] for name in (first, second))
        signs.append(math.copysign(1, one.value - other.value))
        told.append(f"{PAPERS[short]} Table {number}: {one.text} against {other.text}")
    return _agree(rule, "; ".join(told), len(set(signs)) == 1, "; ".join(told))


@claim_test
def printed_facts_agree(results: Results, paper: Paper, *, one: str, other: str) -> Decision:
    """Whether two things of the paper's text, named by their key in `facts`, are the same."""
    facts = [paper.facts[key] for key in (one, other)]
    measured = " and ".join(_in_words(fact["value"]) for fact in facts)
    evidence = " against ".join(fact["place"] for fact in facts)
    return _agree(
        "both printed; contradicted if they differ", measured, facts[0]["value"] == facts[1]["value"], evidence
    )


def _in_words(value: object) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else str(value)


@claim_test
def printed_savings(results: Results, paper: Paper, *, tables: list[str]) -> Decision:
    """Whether every printed saving is the ratio of the two printed numbers it is of."""
    rule = "printed saving equals the baseline's printed number over the row's, within the rounding of all three"
    wrong, count = [], 0
    for number in tables:
        table = paper.tables[number]
        for quantity, savings in (("communication", "savings_communication"), ("latency", "savings_latency")):
            base = table.rows[0].cells[quantity]
            for row in table.rows[1:]:
                cell, saving = row.cells[quantity], row.cells[savings]
                low = (base.value - base.half_unit) / (cell.value + cell.half_unit) - saving.half_unit
                high = (base.value + base.half_unit) / (cell.value - cell.half_unit) + saving.half_unit
                count += 1
                if not low <= saving.value <= high:
                    wrong.append(f"Table {number}, {row.name}: {saving.text}, not {base.value / cell.value:.2f}")
    return _agree(rule, f"{count - len(wrong)} of {count} follow", not wrong, "; ".join(wrong) or "all savings columns")


@claim_test
def printed_growth(
    results: Results, paper: Paper, *, table: str, row: str, other: str, column: str, percent: float, digits: int
) -> Decision:
    """A stated change in per cent, of so many decimals, against the two printed numbers it is of."""
    one, base = (paper.tables[table].row(name).cells[column] for name in (row, other))
    low = 100 * ((one.value - one.half_unit) / (base.value + base.half_unit) - 1)
    high = 100 * ((one.value + one.half_unit) / (base.value - base.half_unit) - 1)
    half = 0.5 * 10.0**-digits
    rule = (
        f"printed {row} over printed {other} - 1 is {percent:g} % within the rounding of all three; contradicted if not"
    )
    return _agree(
        rule,
        f"{100 * (one.value / base.value - 1):+.2f} %",
        low <= percent + half and percent - half <= high,
        f"{_place(paper.short, table, row)}: {one.text} over {base.text}, from {low:.2f} % to {high:.2f} %",
    )


# The entropy landscape -----------------------------------------------------------------------------------------------


def _trained(row: Row, key: str, training: str) -> Cell | None:
    """The cell of statistic `key` ("low", "w1") of one training of a row of the landscape's Table 1."""
    return row.cells.get(key if training == "baseline" else f"{key}_{training}")


def _regularised(paper: Paper, table: str) -> list[tuple[Row, str]]:
    printed = paper.tables[table]
    return [(row, training) for row in printed.rows for training in printed.trainings if training != "baseline"]


def _first(told: list[str], most: int = 3) -> str:
    """The first few of a list and how many more there are."""
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ("; ".join(told[:most]) or "none") + more


@claim_test
def ranges_widen(results: Results, paper: Paper, *, table: str) -> Decision:
    """Whether the printed ranges of the heads' entropies are wider with regularisation than without."""
    rule = "printed highest minus lowest head, regularised against baseline; contradicted if one range is narrower"
    wider, narrower = [], []
    for row, training in _regularised(paper, table):
        base, own = (_trained(row, "high", t).value - _trained(row, "low", t).value for t in ("baseline", training))
        (wider if own > base else narrower).append(f"{row.name}, margin {training} %: {own:.2f} of {base:.2f} nats")
    measured = f"{len(wider)} of {len(wider) + len(narrower)} ranges wider"
    return _agree(rule, measured, not narrower, f"Table {table}; narrower: {_first(narrower)}")


@claim_test
def ranges_possible(results: Results, paper: Paper, *, table: str) -> Decision:
    """Whether every printed highest head lies below the causal bound ln(T!)/T."""
    rule = "printed highest head against ln(T!)/T at the row's context; contradicted if one lies above"
    printed, above, nearest = paper.tables[table], [], (0.0, "")
    for row in printed.rows:
        bound = causal_bound(printed.setting(row)["context"])
        for training in printed.trainings:
            cell = _trained(row, "high", training)
            nearest = max(nearest, (cell.value / bound, f"{row.name}: {cell.text} of {bound:.3f} nats"))
            if cell.value - cell.half_unit > bound:
                above.append(f"{row.name}, {training}: {cell.text} of {bound:.3f}")
    count = len(printed.rows) * len(printed.trainings)
    return _agree(rule, f"{len(above)} of {count} above", not above, f"nearest to it {nearest[1]}")


@claim_test
def best_gain(results: Results, paper: Paper, *, table: str, percent: float) -> Decision:
    """The largest printed fall in perplexity of a table, against what the text makes of it."""
    rule = f"largest fall of the printed perplexities is {percent:g} % to a whole per cent; contradicted if not"
    gains = []
    for row, training in _regularised(paper, table):
        own, base = _trained(row, "ppl", training), _trained(row, "ppl", "baseline")
        if own.value is not None:
            gains.append((100 * (1 - own.value / base.value), f"{row.name}: {base.text} to {own.text}"))
    gain, told = max(gains)
    return _agree(rule, f"{gain:.1f} %", round(gain) == percent, f"Table {table}, {told}")


@claim_test
def column_range(results: Results, paper: Paper, *, table: str, statistic: str, low: float, high: float) -> Decision:
    """The least and the largest printed value of a statistic, against the range that the text gives."""
    cells = [_trained(row, statistic, training) for row, training in _regularised(paper, table)]
    least, largest = (function(cell.value for cell in cells) for function in (min, max))
    return _agree(
        f"least and largest printed value are {low:g} and {high:g}; contradicted if not",
        f"{least:.3f} to {largest:.3f}",
        (least, largest) == (low, high),
        f"Table {table}, {len(cells)} cells",
    )


@claim_test
def penalises_excess_only(results: Results, paper: Paper, *, context: int, share: float) -> Decision:
    """The penalty of Algorithm 1 for a head that lies below its threshold by more than the margin."""
    rule = (
        f"penalty at threshold 1/2 and the printed margin of a head {share:.2f} E_max below the threshold is 0; "
        "contradicted if it is that of a head as far above"
    )
    gamma, maximum = load("aero").facts["regularizer"]["gamma_text"]["value"], max_entropy(context)
    thresholds = torch.full((1, 1), 0.5, dtype=torch.float64)
    above, below = (
        float(
            entropy_regularization(
                torch.full((1, 1, 1, context), (0.5 + side * share) * maximum, dtype=torch.float64),
                thresholds,
                gamma,
                "head_mean",
            )
        )
        for side in (1, -1)
    )
    measured = f"{below:.3f} below, {above:.3f} above"
    evidence = f"aero.entropy.entropy_regularization, T={context}, gamma {gamma:g}: the square of either deviation"
    return _agree(rule, measured, below == 0 < above, evidence)


# Private inference ----------------------------------------------------------------------------------------------------


@claim_test
def gelu_of_the_baseline(results: Results, paper: Paper, *, table: str, gelu: str, relu: str) -> Decision:
    """The bytes of one GELU that two printed rows imply, against those of an unoptimised and of a segmented one."""
    rule = (
        f"(printed GB of {gelu} - {relu}) / layers + one measured ReLU; reproduced if nearer, in ratio, to the GELU in "
        "polynomial segments that the text describes, contradicted if nearer to a plain one"
    )
    printed = paper.tables[table]
    sizes = printed.dimensions
    shape = f"{sizes['context']}x{4 * sizes['width']}"
    found = {kind: operation(results.operations, kind, shape) for kind in ("gelu_plain", "gelu_segments", "relu")}
    if missing := [kind for kind, measured in found.items() if measured is None]:
        return Decision(rule, "", PAPER_DIMENSIONS, "not testable here", f"not measured yet: {', '.join(missing)}")
    gigabytes = {kind: (one["bytes_sent_client"] + one["bytes_sent_server"]) / GB for kind, one in found.items() if one}
    both = [printed.value(row, "communication") for row in (gelu, relu)]
    implied = (both[0] - both[1]) / sizes["layers"] + gigabytes["relu"]
    plain, segments = (abs(math.log(implied / gigabytes[kind])) for kind in ("gelu_plain", "gelu_segments"))
    verdict: Verdict = "reproduced" if segments < plain else "contradicted"
    measured_ = (
        f"{implied:.2f} GB a GELU; plain {gigabytes['gelu_plain']:.2f}, segments {gigabytes['gelu_segments']:.2f}"
    )
    return Decision(rule, measured_, PAPER_DIMENSIONS, verdict, f"results/two_party/ops.csv, {shape}; Table {table}")
