"""Tables, differences and metrics: one line a printed cell, intervals paired by seed, gaps that say why."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from statistics import fmean

import pytest
import synthetic

from aero.published import load as load_paper
from aero.published import table as printed_table
from aero.records import csv_text
from aero.report import claims
from aero.report.costs import cost_rows, least_minutes, needed_mbit
from aero.report.papers import aero_entropy, entropy_landscape
from aero.report.results import Results, load
from aero.report.statistics import change
from aero.report.tables import COLUMNS, COMPARED, FOLDER, cells_csv, comparisons, files, perplexities, table


def lines(results: Results, name: str) -> list[dict[str, str]]:
    made = files(results)
    return list(csv.DictReader(io.StringIO(made[FOLDER / name])))


def trained(root: Path, run: str, **by_seed: float | None) -> None:
    """Fresh results of a run with these perplexities; None for a training that diverged at step 180."""
    for seed, value in by_seed.items():
        folder = root / "runs/default" / run / f"seed_{seed[1:]}"
        synthetic.write_run(folder, run, int(seed[1:]), perplexity=value, diverged_at=None if value else 180)


def cell(results: Results, number: str, row: str, key: str):  # noqa: ANN201
    return next(
        c
        for c in table(results, printed_table(f"aero/table{number}"))
        if (c.row.name, c.published.column.key) == (row, key)
    )


@pytest.mark.parametrize(("number", "count"), [("2", 12), ("4", 80)])
def test_one_line_for_every_printed_cell(full: Results, number: str, count: int) -> None:
    found = lines(full, f"aero_table{number}.csv")
    assert tuple(found[0]) == COLUMNS and len(found) == count
    printed = load_paper("aero").tables[number]
    cells = [(row.name, cell) for row in printed.rows for cell in row.cells.values()]
    assert [(x["row"], x["column"], x["published"]) for x in found] == [(n, c.column.label, c.text) for n, c in cells]


def test_a_change_is_paired_by_seed(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    trained(root, "sm-ln-g", s1337=10.0, s1338=20.0, s1339=40.0)
    trained(root, "sm-g", s1337=11.0, s1338=22.4, s1339=43.2)
    results = load(root)
    found = cell(results, "2", "SM+G", "delta")
    # +10, +12 and +8 per cent: log ratios 0.095310, 0.113329, 0.076961; mean 0.095200, s = 0.018184, half width
    # 4.302653 s / sqrt(3) = 0.045172. exp of it is 1.098789, of the ends 1.051300 and 1.149650. Of the means it is 9.4.
    assert (found.value, found.estimate.low, found.estimate.high) == pytest.approx((9.9879, 5.1297, 15.0706), abs=1e-3)
    assert found.scale == "laptop"
    frame = perplexities(results, "aero/table2").set_index("configuration")
    assert frame.loc["SM+G", "measured "] == "+10.0 [+5.1, +15.1]" and frame.loc["SM+LN+G", "measured "] == "baseline"
    line = next(x for x in lines(results, "differences.csv") if (x["table"], x["row"]) == ("2", "SM+G"))
    assert (line["seeds"], line["scale"], line["unit"], line["note"]) == ("1337 1338 1339", "laptop", "%", "")


@pytest.mark.parametrize(("seeds", "note"), [("1337", "one seed (1337)"), ("1337 1338 1339", "")])
def test_a_perplexity_has_no_interval(tmp_path: Path, seeds: str, note: str) -> None:
    root = synthetic.project(tmp_path, runs=())
    trained(root, "sm-r", **{f"s{seed}": 10.0 for seed in seeds.split()})
    line = next(x for x in lines(load(root), "aero_table2.csv") if x["row"] == "SM+R" and x["column"] == "Eval PPL")
    assert line["seeds"] == seeds and line["ci_low"] == line["ci_high"] == "" and note in line["note"]


def test_diverged_seeds_are_counted_in_the_note(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    trained(root, "sm-r", s1337=4.0, s1338=None, s1339=600.0)
    trained(root, "sm", s1337=None)
    results = load(root)
    assert cell(results, "2", "SM+R", "ppl").note.endswith("1 of 3 seeds diverged: seed 1338 at step 180")
    assert cell(results, "2", "SM", "ppl").text == "NaN"
    assert perplexities(results, "aero/table2").set_index("configuration").loc["SM+R", "seeds"] == "2 (1 of 3 failed)"


def test_costs_and_counts(full: Results, empty: Results) -> None:
    by = {(x["row"], x["column"]): x for x in lines(full, "aero_table4.csv")}
    assert float(by["SM+LN+G", "Comm."]["measured"]) == pytest.approx(15.3)
    assert float(by["SM+ScFuFFNi_6", "Savings Comm."]["measured"]) == pytest.approx(15.3 / 3.6, rel=1e-5)
    assert by["SM+LN+G", "Comm."]["scale"] == "paper_dimensions" and "tuned 6.12" in by["SM+LN+G", "Comm."]["note"]
    by = {(x["row"], x["column"]): x["measured"] for x in lines(empty, "aero_table4.csv")}
    assert by["SM+LN+G", "FLOPs FFN"] == "14.4955" and by["SM+LN+G", "Comm."] == ""
    # 11 kept layers, 128 positions, 2 * 768^2 operations each
    assert float(by["SOTA(SM+ScFuFFNi_1)", "FLOPs FFN"]) == pytest.approx(11 * 128 * 2 * 768**2 / 1e9, rel=1e-5)
    assert {entry["program"] for entry in cost_rows(empty, printed_table("aero/table4"))} == {None}


def test_the_least_time_of_the_published_bytes_by_hand() -> None:
    # 25.32e9 bytes are 202.56e9 bits, at 100 Mbit/s 2025.6 s = 33.76 min, half of it with both directions busy
    assert least_minutes(printed_table("aero/table4"), "SM+LN+G") == pytest.approx(16.88)
    # 145.24 GB in 30.74 min: 580.96e9 bits one way in 1844.4 s
    assert needed_mbit(printed_table("aero/table7"), "SM+LN+G") == pytest.approx(314.99, abs=0.01)


def test_other_commits_and_corpora_are_named(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    trained(root, "sm-ln-g", s1337=10.0)
    for run, changes in {"sm-g": {"commit": "decade" * 7}, "sm-r": {"corpus_sha256": "cd" * 32}}.items():
        trained(root, run, s1337=11.0)
        for name in ("metrics.json", "entropy.json"):
            path = root / f"runs/default/{run}/seed_1337/{name}"
            values = json.loads(path.read_text())
            values["provenance"] |= changes
            path.write_text(json.dumps(values))
    notes = {x["row"]: x["note"] for x in lines(load(root), "aero_table2.csv") if x["column"] == "Eval PPL"}
    assert "commit decadedeca" in notes["SM+G"] and "commit c0ffeec0ff" in notes["SM+LN+G"]
    assert "trained on another corpus than SM+LN+G: not comparable" in notes["SM+R"]
    assert "corpus" not in notes["SM+LN+G"]


def test_each_row_is_compared_with_what_its_paper_compares_it_with(empty: Results) -> None:
    def runs(address: str) -> set[tuple[str, str]]:
        return {(one.run, one.base_run) for one in comparisons(address)}

    found = lines(empty, "differences.csv")
    assert {f"{line['paper']}/table{line['table']}" for line in found} == set(COMPARED)
    assert all(line["measured"] == "" and line["note"] == "not run yet" for line in found)
    assert runs("aero/table3") == {("sm-wnorm-ffn", "sm-scfuffn"), ("sm-snorm-ffn", "sm-scfuffn")}
    assert {("sm-snorm-qk", "sm-snorm-ffn"), ("sm-snorm-qk", "sm-wnorm-qk")} <= runs("aero/table9")
    assert ("languini-sm-scffn-2b4", "languini-sm-ln-g-2b4") in runs("aero/table7")
    assert ("ereg-smt-ln-r-18l-gamma-10", "sm-ln-r-18l") in runs("entropy_landscape/table1")
    by = {(line["table"], line["row"], line["column"], line["baseline"]): line["published"] for line in found}
    assert by["3", "WNorm", "Eval PPL", "Scaled"] == "+4.7"  # 3.640 / 3.478 = 1.0466
    assert by["9", "QK", "Eval PPL (SNorm)", "WNorm"] == "+9.3"  # 4.25 / 3.89 = 1.0925
    assert by["2", "SM", "Eval PPL", "SM+LN+G"] == "NaN" and by["2", "SM+LN", "Eval PPL", "SM+LN+G"] == ""


def test_a_difference_says_what_is_missing(tmp_path: Path) -> None:
    root = synthetic.project(tmp_path, runs=())
    trained(root, "sm-scffn", s1337=10.0, s1338=None, s1339=20.0)
    trained(root, "sm-snorm-ffn", s1337=11.0, s1338=12.0, s1339=23.0)
    trained(root, "sm-wnorm-ffn", s1337=None, s1338=None)
    trained(root, "sm-ln-g", s1337=10.0)
    results = load(root)
    found = change(results, "sm-snorm-ffn", "sm-scffn", "Scaled")
    # +10 and +15 per cent: the geometric mean of 1.1 and 1.15
    assert found.estimate.mean == pytest.approx(100 * ((1.1 * 1.15) ** 0.5 - 1))
    assert found.note == "Scaled seed 1338 diverged at step 180"
    assert "sm-ln-g seed 1338, 1339 not run" in change(results, "sm-snorm-ffn", "sm-ln-g").note
    assert change(results, "sm-wnorm-ffn", "sm-scffn").failed
    assert change(results, "sm-scffn", "sm-r").note == "sm-r not run yet"


def test_the_committed_tables_are_those_of_the_committed_results(tmp_path: Path) -> None:
    for name in ("params.yaml", "results"):  # without fresh results in runs/
        (tmp_path / name).symlink_to(synthetic.PROJECT / name)
    results = load(tmp_path, "laptop")
    made = files(results)
    made[FOLDER / "entropy_landscape_table1.csv"] = cells_csv(entropy_landscape.cells(results))
    temperatures = csv_text(aero_entropy.TEMPERATURE_COLUMNS, aero_entropy.temperature_lines(results))
    made[FOLDER / "learned_temperatures.csv"] = temperatures
    for path, text in made.items():
        assert (synthetic.PROJECT / path).read_text(encoding="utf-8") == text, f"{path}: run python -m stages.report"


def test_the_metrics_of_dvc_are_those_of_the_report(full: Results) -> None:
    judged = claims.judge(full)
    found = claims.summary(full, judged)
    perplexity = found[f"perplexity_{full.scale}"]
    assert perplexity["sm-ln-r"] == pytest.approx(fmean(full.perplexity("sm-ln-r").values()), abs=1e-4)
    assert sum(found["claims"].values()) == len(judged)
    assert found["gigabytes"]["SM+LN+G"] == pytest.approx(full.cost("SM+LN+G", "tuned").bytes / 1e9, abs=1e-3)
    assert len(perplexity) >= 5 and sum(map(len, found.values())) <= 15
