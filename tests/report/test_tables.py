"""Tables: one line a printed cell, hand-worked differences, visible gaps."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import made_results
import pytest

from aero.published import load as load_paper
from aero.report import latex
from aero.report.costs import LatencyBound
from aero.report.marks import cost_caption, measured_number, training_caption
from aero.report.page import headline_rows
from aero.report.results import Results, load
from aero.report.tables import COLUMNS, cells_csv, cost_rows, files, table


def lines(results: Results, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(files(results)[Path("reports/tables") / name])))


@pytest.mark.parametrize(("number", "cells"), [("2", 12), ("4", 80)])
def test_one_line_for_every_printed_cell(full: Results, number: str, cells: int) -> None:
    found = lines(full, f"aero_table{number}.csv")
    assert tuple(found[0]) == COLUMNS and len(found) == cells
    printed = load_paper("aero").tables[number]
    assert [(line["row"], line["column"]) for line in found] == [
        (row.name, cell.column.label) for row in printed.rows for cell in row.cells.values()
    ]
    assert [line["published"] for line in found] == [c.text for row in printed.rows for c in row.cells.values()]


def test_delta_is_paired_by_seed(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    for seed, base, other in ((1337, 10.0, 11.0), (1338, 20.0, 22.4), (1339, 40.0, 43.2)):
        folder = root / "results" / "laptop"
        made_results.write_run(folder / "sm-ln-g" / f"seed_{seed}", "sm-ln-g", seed, perplexity=base)
        made_results.write_run(folder / "sm-g" / f"seed_{seed}", "sm-g", seed, perplexity=other)
    cell = next(c for c in table(load(root), "2") if c.row.name == "SM+G" and c.published.column.key == "delta")
    # +10, +12 and +8 per cent: mean 10, s = 2, half width 4.302653 * 2 / sqrt(3) = 4.968276
    assert cell.value == pytest.approx(10.0)
    assert (cell.estimate.low, cell.estimate.high) == (
        pytest.approx(5.031724, abs=1e-5),
        pytest.approx(14.968276, abs=1e-5),
    )
    assert cell.origin == "smaller_scale" and cell.scale == "laptop"


def test_one_seed_is_called_one_seed(tmp_path: Path) -> None:
    results = load(made_results.project(tmp_path, seeds=(1337,)))
    line = next(x for x in lines(results, "aero_table2.csv") if x["row"] == "SM+R" and x["column"] == "Eval PPL")
    assert line["seeds"] == "1337" and line["ci_low"] == line["ci_high"] == "" and "one seed (1337)" in line["note"]


def test_a_diverged_run_is_printed_as_nan_with_its_step(full: Results) -> None:
    line = next(x for x in lines(full, "aero_table2.csv") if x["row"] == "SM" and x["column"] == "Eval PPL")
    assert line["published"] == "NaN" and line["measured"] == "NaN" and "seed 1337 at step 180" in line["note"]


def test_a_mean_of_the_seeds_that_are_left_says_how_many_diverged(tmp_path: Path) -> None:
    """On the page, in the value's note and under the table for LaTeX; an interval is shown as far as it is possible."""
    root = made_results.project(tmp_path, seeds=(1337, 1338, 1339))
    for seed, perplexity in ((1337, 4.0), (1338, None), (1339, 600.0)):
        folder = root / "results/laptop/sm-r" / ("" if seed == 1337 else f"seed_{seed}")
        diverged_at = 180 if perplexity is None else None
        made_results.write_run(folder, "sm-r", seed, diverged_at=diverged_at, perplexity=perplexity)
    results = load(root)
    (cell,) = [c for c in table(results, "2") if c.row.name == "SM+R" and c.published.column.key == "ppl"]
    assert cell.note.endswith("1 of 3 seeds diverged: seed 1338 at step 180") and cell.estimate.low < 1
    shown = measured_number(cell, results)
    assert f"302.00 [1.00, {cell.estimate.high:.2f}]" in shown and shown.endswith(">1 of 3 seeds diverged</span>")
    (row,) = [row for row in headline_rows(results) if row.name == "SM+R"]
    assert " % [-100.0, " in row.delta[2] and row.delta[2].endswith(" (1 of 3 seeds diverged)")
    assert "SM+R, Eval PPL: 1 of 3 seeds diverged" in latex.table("aero_table2", cells_csv(table(results, "2")))
    assert "cut at what can be (perplexity 1, -100 %)" in training_caption(results, ["sm-r"])


def test_costs_and_savings_are_those_as_written_where_none_as_published_were_measured(full: Results) -> None:
    by = {(x["row"], x["column"]): x for x in lines(full, "aero_table4.csv")}
    assert float(by["SM+LN+G", "Comm."]["measured"]) == pytest.approx(15.3)
    assert float(by["SM+ScFuFFNi_6", "Savings Comm."]["measured"]) == pytest.approx(15.3 / 3.6, rel=1e-5)
    assert by["SM+LN+G", "Comm."]["scale"] == "paper_dimensions" and "tuned 6.12" in by["SM+LN+G", "Comm."]["note"]


def test_counts_need_no_measurement(empty: Results) -> None:
    by = {(x["row"], x["column"]): x["measured"] for x in lines(empty, "aero_table4.csv")}
    assert by["SM+LN+G", "FLOPs FFN"] == "14.4955" and by["SM+LN+G", "Comm."] == ""
    # 11 kept layers, 128 positions, 2 * 768^2 operations each
    assert float(by["SOTA(SM+ScFuFFNi_1)", "FLOPs FFN"]) == pytest.approx(11 * 128 * 2 * 768**2 / 1e9, rel=1e-5)


def test_a_missing_result_is_a_gap_not_a_zero(empty: Results) -> None:
    assert all(cell.origin == "missing" and cell.text == "" for cell in table(empty, "2"))
    assert {e["program"] for e in cost_rows(empty)} == {None}


def test_the_bound_bytes_put_on_latency_by_hand() -> None:
    # 25.32e9 bytes are 202.56e9 bits, at 100 Mbit/s 2025.6 s = 33.76 min, half of it with both directions busy
    bound = LatencyBound(25.32, 100)
    assert bound.one_way == pytest.approx(33.76) and bound.overlapped == pytest.approx(16.88)
    # 145.24 GB in 30.74 min: 580.96e9 bits one way in 1844.4 s
    assert LatencyBound(145.24, 100).needed_mbit(30.74) == pytest.approx(314.99, abs=0.01)


def changed(path: Path, **changes: str) -> None:
    metrics = json.loads(path.read_text())
    metrics["provenance"] |= changes
    path.write_text(json.dumps(metrics))


def test_a_table_of_mixed_commits_says_so(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-ln-g", "sm-g", "sm-r"), seeds=(1337,))
    names = ["sm-ln-g", "sm-g", "sm-r"]
    assert "mixed" not in training_caption(load(root), names)
    assert not any("commit" in line["note"] for line in lines(load(root), "aero_table2.csv"))
    changed(root / "results/laptop/sm-g/metrics.json", commit="decade" * 7)
    results = load(root)
    assert "mixed: 2 commits (c0ffeec0ff, decadedeca)" in training_caption(results, names)
    assert "mixed" not in training_caption(results, ["sm-ln-g", "sm-r"])
    notes = {line["row"]: line["note"] for line in lines(results, "aero_table2.csv") if line["measured"]}
    assert "commit decadedeca" in notes["SM+G"] and "commit c0ffeec0ff" in notes["SM+R"]


def test_a_table_of_mixed_corpora_says_so(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-ln-g", "sm-g"), seeds=(1337,))
    changed(root / "results/laptop/sm-g/metrics.json", corpus_sha256="cd" * 32)
    results = load(root)
    caption = training_caption(results, ["sm-ln-g", "sm-g"])
    assert (
        "mixed: 2 corpora, whose perplexities do not compare (python_stdlib (sha256 abababab), python_stdlib" in caption
    )
    found = {(line["row"], line["column"]): line["note"] for line in lines(results, "aero_table2.csv")}
    for column in {column for _, column in found}:
        assert "trained on another corpus than SM+LN+G: not comparable" in found["SM+G", column]
        assert "another corpus" not in found["SM+LN+G", column]


def test_a_table_never_mixes_scales(tmp_path: Path) -> None:
    """Runs of another scale are not among those of the report's, which the caption and every line name."""
    root = made_results.project(tmp_path, runs=("sm-ln-g",), seeds=(1337,))
    made_results.write_run(root / "results/gpu/sm-g", "sm-g", 1337, "gpu")
    results = load(root, "laptop")
    found = {line["row"]: line for line in lines(results, "aero_table2.csv") if line["column"] == "Eval PPL"}
    assert found["SM+G"]["measured"] == "" and "not run yet" in found["SM+G"]["note"]
    assert found["SM+LN+G"]["measured"] and found["SM+LN+G"]["scale"] == "laptop"
    assert "scale laptop" in training_caption(results, ["sm-ln-g", "sm-g"])


def test_costs_of_mixed_commits_say_so(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    before = cost_caption(load(root))
    assert "mixed" not in before and "commit" in before
    path = root / "results/two_party/ops.csv"
    line = path.read_text().splitlines()[1]
    with path.open("a") as file:
        file.write(line.replace("softmax", "relu").replace("c0ffee", "decade") + "\n")
    assert "mixed: 2 commits" in cost_caption(load(root))
