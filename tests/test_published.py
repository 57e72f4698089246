"""The printed numbers: their relations to each other and to the papers' formulas, by which a mistyped one shows."""

from __future__ import annotations

import math
import re
from pathlib import Path

import yaml

from aero.architecture import parse
from aero.published import Row, Table, known_papers, load, table

ROOT = Path(__file__).resolve().parents[1]
PAPER = load("aero")
TABLES = [(short, found) for short in known_papers() for found in load(short).tables.values()]
UNITS = {"perplexity", "%", "operations", "1e9 FLOPs", "GB", "min", "×", "nats", "% right", "% SubEM", "loss"}


def rows_with(*columns: str) -> list[tuple[Table, Row]]:
    """Every row of every table that has all the columns."""
    return [(found, row) for _, found in TABLES for row in found.rows if set(columns) <= set(found.columns)]


def test_every_table_has_the_printed_rows_and_known_units() -> None:
    assert {n: len(t.rows) for n, t in PAPER.tables.items()} == {
        "2": 6, "3": 3, "4": 10, "5": 9, "6": 8, "7": 8, "8": 5, "9": 5,
    }  # fmt: skip
    assert {column.unit for _, found in TABLES for column in found.columns.values()} <= UNITS


def test_flops_follow_appendix_e() -> None:
    """16 d^2, or fused 2 d^2, and 8 d^2 + 3 T d + d a token and layer; rows of He & Hofmann 4 d^2 + 2 T d."""
    for found, row in rows_with("flops_ffn"):
        layers, width, context = (found.dimensions[key] for key in ("layers", "width", "context"))
        ffn = (layers - parse(row.name).pruned) * context * (2 if "Fu" in row.name else 16) * width**2 / 1e9
        simplified = "SOTA" in row.name
        per_token = 4 * width**2 + 2 * context * width if simplified else 8 * width**2 + 3 * context * width + width
        for key, expected in (("flops_ffn", ffn), ("flops_attention", layers * context * per_token / 1e9)):
            cell = row.cells[key]
            if "own formula" in cell.note:
                assert f"{expected:.1f}" != cell.text and f"gives {expected:.1f}" in cell.note
            else:  # the papers truncate in places: 58.0 stands for 57.98, 21.7 for 21.74
                assert abs(expected - cell.value) <= 0.1, (found.title, row.name, key)


def test_nonlinear_operations_follow_from_the_dimensions() -> None:
    for found, row in rows_with("nonlinear"):
        layers, heads, width, context = (found.dimensions[key] for key in ("layers", "heads", "width", "context"))
        expected = [("SM", layers * heads, context, context)]
        if "+LN" in row.name or "SOTA" in row.name:
            expected.append(("LN", 1 if "SOTA" in row.name else 2 * layers, context, width))
        if row.name.endswith(("+G", "+R")):
            expected.append((row.name[-1], layers, context, 4 * width))
        assert [(o.name, o.count, o.rows, o.columns) for o in row.cells["nonlinear"].operations] == expected, row.name


def test_increases_follow_from_the_perplexities() -> None:
    for _, found in TABLES:
        for key in (key for key in found.columns if key.startswith("delta")):
            base = found.rows[0].cells[key.replace("delta", "ppl")].value
            for row in found.rows:
                printed, own = row.cells[key].value, row.cells[key.replace("delta", "ppl")].value
                assert printed is None or abs(100 * (own / base - 1) - printed) < 0.06, (found.title, row.name)


def test_bytes_grow_with_the_context_and_fall_down_a_group() -> None:
    costs = [found for _, found in TABLES if {"communication", "latency"} <= set(found.columns) and found.rows]
    for short in costs:
        for long in costs:
            same_depth = short.dimensions["layers"] == long.dimensions["layers"]
            if same_depth and long.dimensions["context"] == 2 * short.dimensions["context"]:
                for row in short.rows:
                    for other in (r for r in long.rows if r.name == row.name):
                        for key, least in (("communication", 2.0), ("latency", 1.0)):
                            assert least <= other.cells[key].value / row.cells[key].value <= 4, (row.name, key)
        for one, two in zip(short.rows, short.rows[1:], strict=False):
            if one.group == two.group and "EReg(" not in two.name:
                for key in ("communication", "latency"):
                    assert two.cells[key].value <= one.cells[key].value, (short.title, two.name)


def test_the_regulariser_costs_nothing_at_inference() -> None:
    for found, row in rows_with("communication"):
        if "EReg(" in row.name:
            plain = found.row(row.name.removeprefix("EReg(").removesuffix(")").replace("SM(t)", "SM"))
            unlike = [
                key for key in row.cells if not key.startswith("ppl") and row.cells[key].text != plain.cells[key].text
            ]
            assert not unlike, (found.title, row.name)


def test_entropies_are_below_the_causal_bound_and_distances_in_the_stated_range() -> None:
    landscape = load("entropy_landscape")
    stated = landscape.facts["w1_range"]
    for found, row in rows_with("high", "low"):
        context = found.setting(row)["context"]
        bound = math.lgamma(context + 1) / context  # of nats; bits would exceed it
        assert 0.9 * bound < row.cells["high"].value <= bound
        for key, cell in row.cells.items():
            if key.startswith("low"):
                assert 0 <= cell.value < row.cells[key.replace("low", "high")].value <= bound + cell.half_unit
            if key.startswith("w1") and key.removeprefix("w1_") in ("0", "10", "20"):
                assert stated["low"] <= cell.value <= stated["high"]
    baselines = [("L=12 T=128 GELU", "SM+LN+G"), ("L=12 T=128 ReLU", "SM+LN+R")]
    for one, other in baselines:
        assert landscape.tables["1"].value(one, "ppl") == PAPER.tables["2"].value(other, "ppl")


def test_notes_repeat_the_printed_number_and_an_empty_cell_has_one() -> None:
    for _, found in TABLES:
        for row in found.rows:
            for cell in row.cells.values():
                assert cell.text or cell.note
                printed = re.match(r"printed ([0-9.]+[0-9])", cell.note)
                assert printed is None or printed[1] == cell.text


def test_fractions_of_heads_are_whole_heads_of_144() -> None:
    """12 layers of 12 heads: 0.7 % is one head, 6.25 % are nine."""
    margins = PAPER.facts["figures"]["18"]["fractions"]
    assert [round(144 * value) for value in margins.values()] == [1, 1, 1, 1, 3, 5, 9]
    assert load("entropy_guided").facts["figures"]["6"]["fractions"] == margins


def test_a_table_has_rows_or_a_note_on_what_is_lost() -> None:
    for found in load("entropy_guided").tables.values():
        assert bool(found.rows) != bool(found.note)


def test_a_printed_nan_is_a_divergence_and_an_unknown_cell_is_not() -> None:
    assert PAPER.tables["2"].row("SM").cells["ppl"].diverged
    unknown = PAPER.tables["4"].row("SOTA(SM+ScFuFFN)").cells["ppl"]
    assert unknown.value is None and not unknown.diverged and unknown.text == ""
    assert PAPER.tables["4"].row("SOTA(SM+ScFFN)").cells["ppl"].text == "4.00"


def test_a_row_names_what_was_trained_for_each_of_its_numbers() -> None:
    found = table("aero/table9")
    assert found.setting(found.row("QK+FFN"), "SNorm")["architecture"] == "SM+SNorm(QK+FFN)"
    found = table("entropy_landscape/table1")
    row = found.row("L=18 T=128 ReLU")
    setting = found.setting(row, "10")
    assert (setting["architecture"], setting["gamma"], setting["layers"]) == ("EReg(SM(t)+LN+R)", 0.1, 18)
    assert row.trained["10"] == "ereg-smt-ln-r-18l-gamma-10"


def test_cells_are_those_of_the_columns_and_have_the_printed_decimals() -> None:
    for short in known_papers():
        printed = yaml.safe_load((ROOT / f"aero/published/{short}.yaml").read_text(encoding="utf-8"))["tables"]
        for values in printed.values():
            for row in values["rows"]:
                assert row["cells"].keys() == values["columns"].keys() >= row.get("notes", {}).keys(), row["row"]
    for _, found in TABLES:
        for row in found.rows:
            assert not row.runs or row.runs.keys() == found.trainings.keys(), (found.title, row.name)
            for cell in row.cells.values():
                assert cell.value is not None or cell.operations or cell.note, (row.name, cell)
                assert cell.value is None or cell.diverged or float(cell.text) == cell.value, (row.name, cell)
