"""The published numbers: their relations to each other, to the papers' formulas, and to the runs of params.yaml."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from aero import published
from aero.architecture import parse
from aero.published import load, row_identifiers, rows_of_run

ROOT = Path(__file__).resolve().parents[1]
PAPER = load("aero")
COST_TABLES = ("4", "5", "6", "7")


def cost_rows() -> list[tuple[str, str]]:
    return [(number, row.name) for number in COST_TABLES for row in PAPER.tables[number].rows]


def test_every_table_has_the_rows_that_are_printed() -> None:
    assert {n: len(t.rows) for n, t in PAPER.tables.items()} == {
        "2": 6,
        "3": 3,
        "4": 10,
        "5": 9,
        "6": 8,
        "7": 8,
        "8": 5,
        "9": 5,
    }


@pytest.mark.parametrize("number", ["4", "5", "6"])
@pytest.mark.parametrize(
    ("quantity", "savings"), [("communication", "savings_communication"), ("latency", "savings_latency")]
)
def test_savings_are_the_ratio_to_the_baseline_within_rounding(number: str, quantity: str, savings: str) -> None:
    base = PAPER.tables[number].rows[0].cells[quantity]
    for row in PAPER.tables[number].rows:
        cell, saving = row.cells[quantity], row.cells[savings]
        low = (base.value - base.half_unit) / (cell.value + cell.half_unit) - saving.half_unit
        high = (base.value + base.half_unit) / (cell.value - cell.half_unit) + saving.half_unit
        if "the bytes give" in saving.note:
            assert not low <= saving.value <= high, f"{row.name}: the note is wrong, {saving.text} fits"
            assert f"{base.value / cell.value:.2f}" in saving.note
        else:
            assert low <= saving.value <= high, f"Table {number}, {row.name}, {savings}"


@pytest.mark.parametrize(("number", "name"), cost_rows())
def test_flops_follow_appendix_e(number: str, name: str) -> None:
    """An independent transcription of Appendix E: 16 d^2 or fused 2 d^2, 8 d^2 + 3 T d + d; the SOTA rows 4 d^2 + 2 T
    d.
    """
    table, row = PAPER.tables[number], PAPER.tables[number].row(name)
    layers, width, context = (table.dimensions[key] for key in ("layers", "width", "context"))
    architecture = parse(name)
    kept = layers - architecture.pruned
    ffn = kept * context * (2 if "Fu" in name else 16) * width**2 / 1e9
    attention = (
        layers
        * context
        * (4 * width**2 + 2 * context * width if "SOTA" in name else 8 * width**2 + 3 * context * width + width)
        / 1e9
    )
    for cell, number_ in ((row.cells["flops_ffn"], ffn), (row.cells["flops_attention"], attention)):
        if "own formula" in cell.note:
            assert f"{number_:.1f}" != cell.text and f"gives {number_:.1f}" in cell.note
        else:
            # The papers truncate in places (58.0 stands for 57.98, 21.7 for 21.74, 6.6 for 6.64): a digit either way.
            assert abs(number_ - cell.value) <= 0.1, (cell.text, number_)
            if number == "4":
                assert f"{number_:.1f}" == cell.text


@pytest.mark.parametrize(("number", "name"), cost_rows())
def test_nonlinear_operations_are_those_of_the_dimensions(number: str, name: str) -> None:
    table = PAPER.tables[number]
    layers, heads, width, context = (table.dimensions[key] for key in ("layers", "heads", "width", "context"))
    expected = [f"SM:{layers * heads}×R^{{{context}×{context}}}"]
    if "+LN" in name:
        expected.append(f"LN:{2 * layers}×R^{{{context}×{width}}}")
    if "SOTA" in name:
        expected.append(f"LN:1×R^{{{context}×{width}}}")
    if name.endswith(("+G", "+R")):
        expected.append(f"{name[-1]}:{layers}×R^{{{context}×{4 * width}}}")
    assert [str(operation) for operation in table.row(name).cells["nonlinear"].operations] == expected


def test_increases_follow_from_the_perplexities() -> None:
    for number, pairs in (("2", [("ppl", "delta")]), ("8", [("ppl_128", "delta_128"), ("ppl_256", "delta_256")])):
        for ppl, delta in pairs:
            rows = PAPER.tables[number].rows
            base = rows[0].cells[ppl].value
            for row in rows:
                printed, own = row.cells[delta].value, row.cells[ppl].value
                if printed is not None:
                    assert abs(100 * (own / base - 1) - printed) < 0.06, f"Table {number}, {row.name}"


def test_the_increase_missing_from_the_sources_is_the_one_the_note_tells() -> None:
    table = PAPER.tables["2"]
    assert (
        f"{100 * (table.value('SM+LN+R', 'ppl') / table.value('SM+LN+G', 'ppl') - 1):.2f}"
        in table.row("SM+LN+R").cells["delta"].note
    )


def test_table_4_rounds_the_perplexities_of_table_2() -> None:
    for name in ("SM+LN+G", "SM+LN+R"):
        assert f"{PAPER.tables['2'].value(name, 'ppl'):.2f}" == PAPER.tables["4"].row(name).cells["ppl"].text


def test_fractions_of_heads_are_whole_heads_of_144() -> None:
    """12 layers of 12 heads: 0.7 % is one head, 6.25 % are nine, 58 % are 83 or 84."""
    margins = PAPER.facts["figures"]["18"]["fractions"]
    assert [round(144 * value) for value in margins.values()] == [1, 1, 1, 1, 3, 5, 9]
    assert all(abs(round(144 * v) / 144 - v) < 5e-4 for v in margins.values())
    printed = {(e["row"], *e["quarters"]): e["value"] for e in PAPER.facts["figures"]["3a"]["fractions"]}
    for (row, *_), value in printed.items():
        assert any(round(count / 144, 2) == value for count in range(145)), row
    assert load("entropy_guided").facts["figures"]["6"]["fractions"] == margins


@pytest.mark.parametrize("number", sorted(PAPER.tables))
def test_a_cell_without_a_number_says_why(number: str) -> None:
    for row in PAPER.tables[number].rows:
        for cell in row.cells.values():
            assert cell.text or cell.note


def test_a_printed_nan_is_a_divergence_and_an_unknown_cell_is_not() -> None:
    assert PAPER.tables["2"].row("SM").cells["ppl"].diverged and math.isnan(PAPER.tables["2"].value("SM", "ppl"))
    unknown = PAPER.tables["4"].row("SOTA(SM+ScFuFFN)").cells["ppl"]
    assert unknown.value is None and not unknown.diverged and unknown.text == ""


def test_numbers_keep_their_printed_digits() -> None:
    assert PAPER.tables["4"].row("SOTA(SM+ScFFN)").cells["ppl"].text == "4.00"
    assert PAPER.tables["5"].row("SM+LN+G").cells["flops_ffn"].text == "29.0"


def test_rows_of_run_gives_all_rows() -> None:
    assert rows_of_run("sm-ln-g") == (("2", "SM+LN+G"), ("4", "SM+LN+G"))
    assert rows_of_run("languini-sm-r-1b2") == rows_of_run("no-such-run") == ()
    assert rows_of_run("languini-sm-ln-g-2b4") == (("7", "SM+LN+G"),)


def test_a_row_says_what_was_trained_for_each_of_its_numbers() -> None:
    table = PAPER.tables["9"]
    assert table.setting(table.row("QK+FFN"), "SNorm")["architecture"] == "SM+SNorm(QK+FFN)"
    table = load("entropy_landscape").tables["1"]
    row = table.row("L=18 T=128 ReLU")
    assert row.trained["10"] == "ereg-smt-ln-r-18l-gamma-10"
    assert table.setting(row, "10") | {"architecture": "EReg(SM(t)+LN+R)", "gamma": 0.1, "layers": 18} == table.setting(
        row, "10"
    )
    assert table.setting(row, "baseline")["architecture"] == "SM+LN+R"
    assert row_identifiers("entropy_landscape")["entropy_landscape/table1/L=18 T=128 ReLU/10"] == row.trained["10"]


def test_the_papers_print_the_same_languini_table() -> None:
    """An independent transcription in each file: where both have a cell it must agree."""
    other = load("entropy_guided").tables["3"]
    assert len(other.rows) == 4
    for row in other.rows:
        for key, cell in row.cells.items():
            assert cell.text == PAPER.tables["7"].row(row.name).cells[key].text, (row.name, key)


def test_the_landscape_table_shares_its_baselines_with_table_2() -> None:
    table = load("entropy_landscape").tables["1"]
    assert table.value("L=12 T=128 GELU", "ppl") == PAPER.tables["2"].value("SM+LN+G", "ppl")
    assert table.value("L=12 T=128 ReLU", "ppl") == PAPER.tables["2"].value("SM+LN+R", "ppl")
    # Section 4.2 repeats the extremes of the distances, the abstract the largest gain.
    distances = [row.cells[f"w1_{margin}"].value for row in table.rows for margin in ("0", "10", "20")]
    assert (min(distances), max(distances)) == (0.656, 1.007)
    gains = [100 * (1 - row.cells["ppl_20"].value / row.cells["ppl"].value) for row in table.rows]
    assert 19.5 < max(gains) < 20.5


def test_a_lost_table_has_no_rows_and_says_so() -> None:
    for number, table in load("entropy_guided").tables.items():
        assert bool(table.rows) != bool(table.note), number


def test_a_lost_table_names_one_that_is_about_the_same_models() -> None:
    lost = {n: t for n, t in load("entropy_guided").tables.items() if not t.rows}
    assert {number: table.same_models for number, table in lost.items()} == {
        "2": "aero/table4",
        "4": "aero/table9",
        "5": "aero/table3",
        "6": "aero/table5",
        "7": "aero/table6",
    }
    for table in lost.values():
        number = table.same_models.removeprefix("aero/table")
        assert f"aero Table {number} is about the same models" in table.note
        sibling = PAPER.tables[number]
        assert sibling.rows and table.dimensions.items() <= sibling.dimensions.items(), table.title


def test_runs_must_be_those_of_the_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((ROOT / "aero/published/aero.yaml").read_text(encoding="utf-8"))
    del values["tables"]["8"]["rows"][0]["runs"]["256"]
    (tmp_path / "torn.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.setattr(published, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"Table 8, row SM\+LN\+G: runs are not those of trainings"):
        load("torn")


def test_unknown_paper_and_row_are_told_in_one_line() -> None:
    with pytest.raises(
        ValueError,
        match="no published numbers for paper 'aeroo'; known papers: aero, entropy_guided, entropy_landscape, ",
    ):
        load("aeroo")
    with pytest.raises(ValueError, match="Table 4 has no row 'SM\\+X'"):
        PAPER.tables["4"].row("SM+X")


def test_a_row_whose_cells_do_not_match_the_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((ROOT / "aero/published/aero.yaml").read_text(encoding="utf-8"))
    del values["tables"]["4"]["rows"][2]["cells"]["latency"]
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.setattr(published, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"Table 4, row SOTA\(SM\+ScFFN\): cells do not match the columns: latency"):
        load("broken")


def test_an_empty_cell_without_a_note_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((ROOT / "aero/published/aero.yaml").read_text(encoding="utf-8"))
    values["tables"]["2"]["rows"][3]["cells"]["ppl"] = None
    (tmp_path / "silent.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.setattr(published, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match="an empty cell needs a note"):
        load("silent")
