"""Differences between the rows of a table: whom each is compared with, hand-worked intervals, named gaps."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path

import made_results
import pytest

from aero.published import load as load_paper
from aero.report.differences import COLUMNS, COMPARED, comparisons, difference, differences_table, files
from aero.report.results import Results, load

# Rows by columns that are compared, counted in the papers: of Table 9 four rows in two columns, and five across them.
COUNTED = {
    ("aero", "2"): 5,
    ("aero", "3"): 2,
    ("aero", "4"): 9,
    ("aero", "5"): 8,
    ("aero", "6"): 7,
    ("aero", "7"): 7 * 3,
    ("aero", "8"): 4 * 2,
    ("aero", "9"): 4 * 2 + 5,
    ("entropy_guided", "3"): 3 * 3,
    ("entropy_landscape", "1"): 5 * 3,
}


def lines(results: Results) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(files(results)[Path("reports/tables/differences.csv")])))


def trained(root: Path, run: str, **by_seed: float | None) -> None:
    """Results of a run with these perplexities; None for a training that diverged at step 180."""
    for seed, value in by_seed.items():
        folder = root / "results/laptop" / run / f"seed_{seed[1:]}"
        made_results.write_run(folder, run, int(seed[1:]), perplexity=value, diverged_at=None if value else 180)


def test_every_row_but_the_baseline_is_compared(empty: Results) -> None:
    found = lines(empty)
    assert tuple(found[0]) == COLUMNS
    assert Counter((line["paper"], line["table"]) for line in found) == COUNTED
    assert set(COMPARED) == set(COUNTED)
    assert all(line["measured"] == line["ci_low"] == "" and line["note"] == "not run yet" for line in found)


def test_each_is_compared_with_what_its_paper_compares_it_with() -> None:
    def runs(short: str, number: str) -> set[tuple[str, str]]:
        return {(one.run, one.base_run) for one in comparisons(short, number)}

    assert runs("aero", "3") == {("sm-wnorm-ffn", "sm-scffn"), ("sm-snorm-ffn", "sm-scffn")}
    ninth = {(f"sm-{kind}norm-{place}", f"sm-{kind}norm-ffn") for kind in "ws" for place in ("qk", "qk-ffn")}
    across = {(f"sm-snorm-{place}", f"sm-wnorm-{place}") for place in ("qk", "ffn", "qkvo-ffn")}
    assert ninth | across <= runs("aero", "9") and ("sm-wnorm-ffn", "sm-snorm-ffn") not in runs("aero", "9")
    assert ("languini-sm-scffn-2b4", "languini-sm-ln-g-2b4") in runs("aero", "7")
    assert ("ereg-smt-ln-r-18l-gamma-10", "sm-ln-r-18l") in runs("entropy_landscape", "1")
    for short, number in COMPARED:
        for run, base in runs(short, number):
            assert run != base, f"{run} is compared with itself in {short} Table {number}"


def test_published_differences_by_hand(empty: Results) -> None:
    found = {(line["table"], line["row"], line["column"], line["baseline"]): line["published"] for line in lines(empty)}
    assert found["3", "WNorm", "Eval PPL", "Scaled"] == "+4.7"  # 3.640 / 3.478 = 1.0466
    assert found["9", "QK", "Eval PPL (SNorm)", "WNorm"] == "+9.3"  # 4.25 / 3.89 = 1.0925
    assert found["2", "SM", "Eval PPL", "SM+LN+G"] == "NaN" and found["2", "SM+LN", "Eval PPL", "SM+LN+G"] == ""
    assert found["1", "L=12 T=128 GELU", "Tmargin=20E_max PPL", "baseline"] == "-19.3"  # 2.169 / 2.688 = 0.8069


def test_a_difference_is_paired_by_seed(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    trained(root, "sm-scffn", s1337=10.0, s1338=20.0, s1339=40.0)
    trained(root, "sm-snorm-ffn", s1337=11.0, s1338=22.4, s1339=43.2)
    results = load(root)
    line = next(x for x in lines(results) if (x["table"], x["row"]) == ("3", "SNorm"))
    # +10, +12 and +8 per cent: mean 10, s = 2, half width 4.302653 * 2 / sqrt(3) = 4.968276. Of the means it were 9.4.
    assert [float(line[key]) for key in ("measured", "ci_low", "ci_high")] == pytest.approx([10, 5.03172, 14.9683])
    assert (line["seeds"], line["scale"], line["unit"], line["note"]) == ("1337 1338 1339", "laptop", "%", "")
    text = differences_table(results, "3").text
    assert "+10.0 [+5.0, +15.0]" in text and ">+4.7</" in text
    assert "results/laptop/sm-snorm-ffn/seed_1338/metrics.json" in text
    assert "results/laptop/sm-scffn/seed_1338/metrics.json" in text
    assert "not run yet" in text, "the weight norm of this project"


def test_a_seed_that_a_side_lacks_is_named(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    trained(root, "sm-scffn", s1337=10.0, s1338=None, s1339=20.0)
    trained(root, "sm-snorm-ffn", s1337=11.0, s1338=12.0, s1339=23.0, s1340=9.0)
    found = difference(load(root), "sm-snorm-ffn", "sm-scffn", "Scaled")
    # +10 and +15 per cent: mean 12.5, half width 12.706205 * 2.5
    assert found.estimate.seeds == (1337, 1339)
    assert (found.estimate.mean, found.estimate.low) == pytest.approx((12.5, 12.5 - 31.76551))
    assert found.note == "Scaled seed 1338 diverged at step 180; Scaled seed 1340 not run"
    assert found.note in differences_table(load(root), "3").text


def test_no_difference_says_why(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=())
    trained(root, "sm-scffn", s1337=10.0)
    trained(root, "sm-snorm-ffn", s1338=11.0)
    trained(root, "sm-wnorm-ffn", s1337=None, s1338=None)
    results = load(root)
    apart = difference(results, "sm-snorm-ffn", "sm-scffn", "Scaled")
    assert apart.estimate is None and apart.note == "seed 1337 not run; Scaled seed 1338 not run"
    diverged = difference(results, "sm-wnorm-ffn", "sm-scffn", "Scaled")
    assert diverged.diverged and "seed 1337 diverged at step 180; seed 1338 diverged" in diverged.note
    assert difference(results, "sm-scffn", "sm-wnorm-ffn").diverged is False
    assert difference(results, "sm-scffn", "sm-r").note == "sm-r not run yet"
    by_row = {x["row"]: x for x in lines(results) if x["table"] == "3"}
    assert (by_row["WNorm"]["measured"], by_row["WNorm"]["seeds"], by_row["SNorm"]["measured"]) == ("NaN", "", "")
    text = differences_table(results, "3").text
    assert f'<span class="missing">{apart.note}</span>' in text
    assert "NaN</" in text and f'<span class="where">{diverged.note}</span>' in text


def test_one_seed_and_another_corpus_are_told(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-scffn",), seeds=(1337,))
    made_results.write_run(root / "results/laptop/sm-snorm-ffn", "sm-snorm-ffn", 1337)
    made_results.write_run(root / "results/laptop/sm-wnorm-ffn", "sm-wnorm-ffn", 1337, corpus_sha256="cd" * 32)
    results = load(root)
    one = difference(results, "sm-snorm-ffn", "sm-scffn")
    assert one.estimate.low is None and one.note == "one seed (1337), no interval"
    other = difference(results, "sm-wnorm-ffn", "sm-scffn", "Scaled")
    assert other.estimate is None and other.note == "trained on another corpus than Scaled: not comparable"


def test_differences_of_the_kept_results_worked_again(tmp_path: Path) -> None:
    """Every line of the kept results' file, from the metrics files by the formulas of a textbook."""
    for name in ("params.yaml", "results"):  # without fresh results that a reader may have in runs/
        (tmp_path / name).symlink_to(made_results.PROJECT / name)
    metrics: dict[str, dict[int, float]] = {}
    for path in (made_results.PROJECT / "results/laptop").glob("**/metrics.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("eval_perplexity"):
            metrics.setdefault(values["run"], {})[values["seed"]] = values["eval_perplexity"]
    quantile = {2: 12.7062047, 3: 4.3026527}  # Student's t at 0.975, one and two degrees of freedom
    kept = lines(load(tmp_path, "laptop"))
    compared = [one for short, number in COMPARED for one in comparisons(short, number)]
    assert len(kept) == len(compared) == sum(COUNTED.values())
    with_interval = 0
    for line, one in zip(kept, compared, strict=True):
        own, base = metrics.get(one.run, {}), metrics.get(one.base_run, {})
        seeds = sorted(set(own) & set(base))
        assert line["seeds"].split() == [str(seed) for seed in seeds], line
        if not seeds:
            continue
        values = [100 * (own[seed] - base[seed]) / base[seed] for seed in seeds]
        mean = sum(values) / len(values)
        assert float(line["measured"]) == pytest.approx(mean, rel=1e-4, abs=1e-4)
        if len(values) in quantile:
            with_interval += 1
            spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
            half = quantile[len(values)] * spread / len(values) ** 0.5
            assert float(line["ci_low"]) == pytest.approx(mean - half, rel=1e-4, abs=1e-3)
            assert float(line["ci_high"]) == pytest.approx(mean + half, rel=1e-4, abs=1e-3)
    assert with_interval >= 90


@pytest.mark.parametrize(("short", "number"), COMPARED)
def test_no_cell_of_the_page_is_silent(full: Results, short: str, number: str) -> None:
    text = differences_table(full, number, short).text
    body = re.search("<tbody>(.*)</tbody>", text, re.DOTALL)[1]
    lines = [re.findall("<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")[:-1]]
    assert len(lines) == len(load_paper(short).tables[number].rows)
    for line in lines:
        for printed, measured in zip(line[1::2], line[2::2], strict=True):
            assert measured or printed == "baseline", line
