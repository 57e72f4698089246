"""Several scales in one report: columns side by side, the scale that decides a claim, and what is missing named."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import made_results
import pytest

from aero.published import load as load_paper
from aero.report import claims, page
from aero.report.results import Results, load
from aero.report.scales import deciding_scales, missing_scale, sides
from aero.report.tables import files

CLAIM = next(c for c in load_paper("aero").claims if c.id == "t2-layernorm-removal-gelu")  # sm-g against sm-ln-g
RUNS = ("sm-ln-g", "sm-g", "sm-r", "sm")


def project(root: Path, gpu: dict[str, dict[int, float]], scale: str = "laptop") -> Results:
    """Results of RUNS at the laptop scale, +50 % for sm-g, and given perplexities by run and seed at the gpu scale."""
    made_results.project(root, runs=(), costs=False, scale=scale)
    for run in RUNS:
        for seed in (1337, 1338, 1339):
            value = 15.0 + 0.01 * (seed - 1337) if run == "sm-g" else 10.0
            folder = root / "results/laptop" / run
            made_results.write_run(folder / f"seed_{seed}", run, seed, perplexity=value)
    for run, seeds in gpu.items():
        for seed, value in seeds.items():
            made_results.write_run(root / "results/gpu" / run / f"seed_{seed}", run, seed, "gpu", perplexity=value)
    return load(root)


def decision(results: Results, claim: str = CLAIM.id) -> claims.Decision:
    return next(j.decision for j in claims.judge(results, "aero") if j.claim.id == claim)


BASE = {1337: 5.0, 1338: 5.0}


@pytest.mark.parametrize(
    ("gpu", "scale", "larger"),
    [
        ({}, "laptop", ()),
        ({"sm-ln-g": BASE}, "laptop", ()),  # one side alone
        ({"sm-ln-g": BASE, "sm-g": {1337: 6.0}}, "laptop", ("gpu",)),  # one seed in common
        ({"sm-ln-g": {1337: 5.0}, "sm-g": {1338: 6.0}}, "laptop", ()),  # none in common
        ({"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.0}}, "gpu", ()),
    ],
)
def test_the_largest_scale_where_all_sides_have_two_seeds_decides(
    tmp_path: Path, gpu: dict[str, dict[int, float]], scale: str, larger: tuple[str, ...]
) -> None:
    results = project(tmp_path, gpu)
    assert sides(results, CLAIM) == ("sm-g", "sm-ln-g")
    assert deciding_scales(results, CLAIM) == (scale, larger)
    found = decision(results)
    assert found.scale == scale
    assert ("at scale gpu, with too few seeds for a verdict: +20.00 %" in found.evidence) == bool(larger)
    # +20 % at the gpu scale, +50 % at the laptop's; +18.92 % is published
    assert found.measured.startswith("20.00" if scale == "gpu" else "50.")


def test_only_smoke_results_decide_a_report_of_the_smoke_scale_and_never_another(tmp_path: Path) -> None:
    both = {"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.0}}
    results = project(tmp_path / "one", both, scale="smoke")
    assert deciding_scales(results.at("smoke"), CLAIM) == ("smoke", ())
    root = made_results.project(tmp_path / "two", runs=("sm-ln-g", "sm-g"), scale="smoke", costs=False)
    made_results.write_run(root / "results/laptop/sm-r", "sm-r", 1337)
    results = load(root, "laptop")
    assert deciding_scales(results, CLAIM) == ("laptop", ())
    assert decision(results).verdict == "not testable here"


def test_a_claim_of_no_run_stays_at_the_reports_scale(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-ln-g": BASE})
    counted = next(c for c in load_paper("aero").claims if c.id == "t4-nonlinear-operations")
    assert sides(results, counted) == () and deciding_scales(results, counted) == ("laptop", ())


def test_tables_show_the_scales_side_by_side(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.1}})
    text = page.table_2(results).text
    heads = ["PPL published", "PPL at gpu", "PPL at laptop", "Δ % published", "Δ % at gpu", "Δ % at laptop", "seeds"]
    assert all(f"<th>{head}</th>" in text for head in heads)
    row = next(line for line in text.split("<tr>") if "SM+<wbr>G<" in line)
    assert row.index("results/gpu/sm-g/seed_1337") < row.index("results/laptop/sm-g/seed_1337")
    assert ">21.00 [" in row.replace('<span class="mark">○</span>', "") and ">2; 3<" in row
    fourth = page.table_4(results).text
    assert '<span class="where"> gpu</span>' in fourth and '<span class="where"> laptop</span>' in fourth
    assert "scale gpu (L=12" in text and "scale laptop (L=12" in text


def test_one_scale_alone_has_the_columns_it_had(full: Results) -> None:
    text = page.table_2(full).text
    for head in ("PPL published", "PPL measured", "Δ % published", "Δ % measured", "seeds"):
        assert f"<th>{head}</th>" in text
    assert '<span class="where"> laptop</span>' not in page.table_4(full).text
    assert not [path for path in files(full) if "gpu" in path.name]


def test_cells_of_another_scale_are_a_file_of_their_own(tmp_path: Path) -> None:
    written = files(project(tmp_path, {"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.1}}))
    tables = {path.name: list(csv.DictReader(io.StringIO(text))) for path, text in written.items()}
    assert {name for name in tables if "gpu" in name} == {"aero_table2_gpu.csv", "aero_table4_gpu.csv"}
    line = next(x for x in tables["aero_table2_gpu.csv"] if x["row"] == "SM+G" and x["column"] == "Eval PPL")
    assert (line["scale"], line["seeds"], float(line["measured"])) == ("gpu", "1337 1338", pytest.approx(6.05))
    assert {x["scale"] for x in tables["aero_table2.csv"]} == {"laptop"}
    assert {x["column"] for x in tables["aero_table4_gpu.csv"]} == {"Eval PPL"} or len(
        tables["aero_table4_gpu.csv"]
    ) == 10


def test_the_missing_scale_is_named(tmp_path: Path) -> None:
    results = project(tmp_path / "none", {})
    (line,) = missing_scale(results, RUNS)
    assert line.startswith("Scale gpu") and "no result of any of these 4 runs" in line and "docs/gpu.md" in line
    assert "no result of any of these" in page.gaps(results, RUNS).text
    assert "no result of any of these" in page.table_2(results).text
    some = project(tmp_path / "some", {"sm-ln-g": BASE, "sm-g": BASE})
    assert "has no result of sm-r, sm yet" in missing_scale(some, RUNS)[0]
    assert missing_scale(project(tmp_path / "all", {run: BASE for run in RUNS}), RUNS) == []
    assert missing_scale(results.at("gpu"), RUNS) == []
