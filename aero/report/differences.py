"""How many per cent the perplexity of a table's row lies above that of the row it is compared with, paired by seed: a
table below each printed one but AERO's Tables 2 and 8, and of all in `reports/tables/differences.csv`.

A difference is the mean over the seeds that both sides have, with its 95 % t-interval. Where there is none, the cell
says which training is missing; a seed that one side lacks, or that diverged, is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aero.published import Cell, Row, load
from aero.report.figure_index import PAPERS
from aero.report.landscape_tables import TRAININGS
from aero.report.marks import Html, gap, grid, number, published_number, row_label, training_caption
from aero.report.results import Results
from aero.report.statistics import Estimate, estimate, relative
from aero.report.tables import PRINTED, csv_text, training_origin

LANDSCAPE = ("entropy_landscape", "1")
COMPARED = (*PRINTED, LANDSCAPE)
"""The printed tables whose perplexities are compared, by paper and number."""
BASE_ROWS = {("aero", "3"): "Scaled", ("aero", "9"): "FFN"}
"""The row that the others are compared with, where it is not the first.

Table 3: "the learnable scaling method outperformed them" (Section 3.2). Table 9: "applying them to the linear layers in
attention sub-block diminishes overall performance" (Section 3.2), against the row FFN.
"""
BASE_TRAININGS = {("aero", "9"): {"SNorm": "WNorm"}, LANDSCAPE: dict.fromkeys(("0", "10", "20"), "baseline")}
"""The training of the same row that another is compared with.

Table 9: "weight normalization works better in other linear layers" (its caption). `entropy_landscape`: the baseline.
"""
COLUMNS = (
    "paper",
    "table",
    "row",
    "column",
    "baseline",
    "published",
    "measured",
    "unit",
    "scale",
    "seeds",
    "ci_low",
    "ci_high",
    "note",
)


@dataclass(frozen=True)
class Comparison:
    """Two perplexities that a printed table sets against each other, and their runs.

    base: the other side: its row, or its training where it stands in the same row.
    """

    row: Row
    cell: Cell
    run: str
    base: str
    base_cell: Cell
    base_run: str

    @property
    def published(self) -> str:
        """The printed difference in per cent, "NaN" where a side is printed as diverged, "" where one is empty."""
        own, other = self.cell.value, self.base_cell.value
        if self.cell.diverged or self.base_cell.diverged:
            return "NaN"
        return "" if own is None or other is None else f"{100 * (own / other - 1):+z.1f}"


@dataclass(frozen=True)
class Difference:
    """What was measured of a comparison, in per cent; None and a note that says why, if nothing was.

    diverged: whether there is none because every training of its row diverged.
    """

    estimate: Estimate | None
    note: str
    diverged: bool = False


def comparisons(short: str, number_: str) -> list[Comparison]:
    """Every comparison of a printed table, row by row; a row is not compared with itself."""
    printed = load(short).tables[number_]
    base_row = printed.row(BASE_ROWS.get((short, number_), printed.rows[0].name))
    within = BASE_TRAININGS.get((short, number_), {})
    found = []
    for row in printed.rows:
        cells = _perplexities(row)
        if (short, number_) != LANDSCAPE and row is not base_row:
            others = _perplexities(base_row)
            found += [
                Comparison(row, cell, row.trained[name], base_row.name, others[name], base_row.trained[name])
                for name, cell in cells.items()
            ]
        found += [
            Comparison(row, cells[name], row.trained[name], base, cells[base], row.trained[base])
            for name, base in within.items()
        ]
    return found


def _perplexities(row: Row) -> dict[str, Cell]:
    """The row's perplexities by training."""
    return {c.column.training: c for c in row.cells.values() if c.column.unit == "perplexity"}


def difference(results: Results, run: str, base: str, base_name: str = "") -> Difference:
    """How far the perplexity of `run` lies above that of `base`, in per cent, over the seeds that both have.

    base_name: how the note calls the other side. Trainings on different texts are not compared.
    """
    own, other = results.seeds(run), results.seeds(base)
    base_name = base_name or base
    if not own:
        return Difference(None, "not run yet")
    if not other:
        return Difference(None, f"{base_name} not run yet")
    corpora = {one.provenance.get("corpus_sha256") for one in (*own, *other)}
    if None in corpora and len(corpora) > 1:
        return Difference(None, "not every training says which corpus it had: not comparable")
    if len(corpora) > 1:
        return Difference(None, f"trained on another corpus than {base_name}: not comparable")
    found = estimate(relative(results.perplexity(run), results.perplexity(base)))
    notes = []
    for name, trained, others in (("", own, other), (f"{base_name} ", other, own)):
        notes += [f"{name}seed {one.seed} diverged at step {one.diverged_at}" for one in trained if one.diverged]
        if lacking := sorted({one.seed for one in others} - {one.seed for one in trained}):
            notes.append(f"{name}seed {', '.join(map(str, lacking))} not run")
    if found is None and not notes:
        notes.append("no perplexity in the results")
    if found is not None and len(found.seeds) == 1:
        notes.append(f"one seed ({found.seeds[0]}), no interval")
    return Difference(found, "; ".join(notes), found is None and all(one.diverged for one in own))


# On the page -------------------------------------------------------------------------------------------------------


def differences_table(results: Results, number_: str, short: str = "aero") -> Html:
    """The comparisons of a printed table: a row a row, for every column the published difference and the measured."""
    printed = load(short).tables[number_]
    place = f"{PAPERS[short]} Table {number_}; {printed.place}"
    by_group: dict[tuple[str, str], dict[str, Comparison]] = {}
    for one in comparisons(short, number_):
        by_group.setdefault((one.cell.column.training, one.base), {})[one.row.name] = one
    heads = [
        head
        for training, base in by_group
        for head in (f"{escape(_words(training, short))} over {escape(base)}, %: published", "measured")
    ]
    rows = []
    for row in printed.rows:
        line = [row_label(row.name) if row.name.startswith(("SM", "SOTA", "EReg")) else escape(row.name)]
        for (_, base), group in by_group.items():
            line += _sides(results, group.get(row.name), row.name == base, place)
        rows.append(line)
    runs = [run for group in by_group.values() for one in group.values() for run in (one.run, one.base_run)]
    caption = (
        f"<b>{PAPERS[short]} Table {number_}, differences.</b> Perplexity over that of the baseline, minus one, in per "
        "cent. Published: of the printed perplexities. Measured: mean over seeds, each paired with the same seed of "
        f"the baseline. {training_caption(results, dict.fromkeys(runs))}"
    )
    first = 0.2 if len(heads) <= 6 else 0.16
    each = (1 - first) / len(heads)
    widths = (first, *(each * share for _ in by_group for share in (0.8, 1.2)))
    identifier = f"differences-{short.replace('_', '-')}-{number_}"
    return Html(grid(["configuration", *heads], rows, caption, identifier, widths, "dense"))


def _words(training: str, short: str) -> str:
    """A training in words: "1.2B", "margin 0.10"; of a table with one training a row, what is compared."""
    return TRAININGS[training] if short == LANDSCAPE[0] else training or "PPL"


def _sides(results: Results, one: Comparison | None, is_base: bool, place: str) -> list[str]:
    """The published and the measured cell of a comparison; of the baseline itself, its name."""
    if one is None:
        return ["baseline", ""] if is_base else ["", ""]
    if text := one.published:
        printed = number(text, "published", place)
    else:
        printed = published_number(one.cell if one.cell.value is None else one.base_cell, place)
    found = difference(results, one.run, one.base_run, one.base)
    source = ", ".join(run.path for name in (one.run, one.base_run) for run in results.seeds(name))
    if found.estimate is None and not found.diverged:
        return [printed, gap(found.note)]
    text = "NaN" if found.estimate is None else _signed(found.estimate)
    shown = number(text, training_origin(results.scale), source)
    return [printed, shown + (f'<br><span class="where">{escape(found.note)}</span>' if found.note else "")]


def _signed(found: Estimate) -> str:
    found = found.possible()
    text = f"{found.mean:+z.1f}"
    return f"{text} [{found.low:+z.1f}, {found.high:+z.1f}]" if found.has_interval else text


# The file ----------------------------------------------------------------------------------------------------------


def _lines(results: Results, compared: Iterable[tuple[str, str]]) -> Iterable[Mapping[str, object]]:
    for short, number_ in compared:
        for one in comparisons(short, number_):
            found = difference(results, one.run, one.base_run, one.base)
            mean = found.estimate
            yield {
                "paper": short,
                "table": number_,
                "row": one.row.name,
                "column": one.cell.column.label,
                "baseline": one.base,
                "published": one.published,
                "measured": f"{mean.mean:.6g}" if mean else "NaN" if found.diverged else "",
                "unit": "%",
                "scale": results.scale,
                "seeds": " ".join(map(str, mean.seeds)) if mean else "",
                "ci_low": f"{mean.low:.6g}" if mean and mean.has_interval else "",
                "ci_high": f"{mean.high:.6g}" if mean and mean.has_interval else "",
                "note": found.note,
            }


def files(results: Results) -> dict[Path, str]:
    """Path below the project's root and text of the file of all differences: one line a comparison."""
    text = csv_text([dict(line) for line in _lines(results, COMPARED)], COLUMNS)
    return {Path("reports") / "tables" / "differences.csv": text}
