"""Several scales in one report: columns side by side, the scale that decides a claim, and what is missing named."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import made_results
import pytest

from aero.report import page
from aero.report.results import Results, load
from aero.report.scales import files, missing_scale, side_by_side
from aero.report.tables import COLUMNS

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


BASE = {1337: 5.0, 1338: 5.0}


def cells(text: str, row: str) -> list[str]:
    line = next(line for line in text.split("<tr>") if f"<code>{row.replace('+', '+<wbr>')}</code>" in line)
    return [re.sub(r"<[^>]+>", "", cell).replace("○", "") for cell in re.findall(r"<td[^>]*>(.*?)</td>", line)]


def test_tables_show_the_scales_side_by_side(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.1}, "sm": {1337: 9.0}})
    made_results.write_run(tmp_path / "results/gpu/sm/seed_1338", "sm", 1338, "gpu", diverged_at=40)
    text = side_by_side(load(tmp_path)).text
    second = text[text.index('id="scales-2"') : text.index('id="scales-4"')]
    heads = ["PPL published", "PPL at gpu", "PPL at laptop", "Δ % published", "Δ % at gpu", "Δ % at laptop"]
    assert re.findall(r"<th>(.*?)</th>", second)[1:] == heads
    row = cells(second, "SM+G")
    # 6.05 of 6.0 and 6.1; +20 % and +22 %; published 3.197 over 2.688 is +18.9 %
    assert row[1] == "3.197" and row[2].startswith("6.050 [") and row[3].startswith("15.010 [")
    assert row[4] == "+18.9" and row[5].startswith("21.0 [") and row[6].startswith("50.1 [")
    assert cells(second, "SM+LN+G")[4:] == ["baseline"] * 3
    assert cells(second, "SM")[1:3] == ["NaN", "9.000, 1 of 2 NaN"] and cells(second, "SM+R")[2] == "not measured yet"
    assert "results/gpu/sm-g/seed_1337/metrics.json" in second
    assert "scale gpu (L=12" in second and "scale laptop (L=12" in second
    assert "scales-5" not in text and results.scale == "laptop"


def test_one_scale_alone_has_no_such_tables(full: Results) -> None:
    text = side_by_side(full).text
    assert "<table>" not in text and "no result of any of these" in text and not files(full)


def test_perplexities_of_another_scale_are_a_file_of_their_own(tmp_path: Path) -> None:
    results = project(tmp_path, {"sm-ln-g": BASE, "sm-g": {1337: 6.0, 1338: 6.1}})
    tables = {path.name: list(csv.DictReader(io.StringIO(text))) for path, text in files(results).items()}
    assert set(tables) == {"aero_table2_gpu.csv", "aero_table4_gpu.csv"}
    second = tables["aero_table2_gpu.csv"]
    assert tuple(second[0]) == COLUMNS and len(second) == 6
    line = next(x for x in second if x["row"] == "SM+G")
    assert (line["scale"], line["seeds"], float(line["measured"])) == ("gpu", "1337 1338", pytest.approx(6.05))
    # s = 0.0707107, t(1, 0.975) = 12.7062: half width 0.63531
    assert float(line["ci_low"]) == pytest.approx(6.05 - 0.63531, abs=1e-4) and line["published"] == "3.197"
    assert next(x for x in second if x["row"] == "SM+R")["note"] == "not run yet"


def test_the_missing_scale_is_named(tmp_path: Path) -> None:
    results = project(tmp_path / "none", {})
    (line,) = missing_scale(results, RUNS)
    assert line.startswith("Scale gpu") and "no result of any of these 4 runs" in line and "docs/gpu.md" in line
    assert "no result of any of these" in page.gaps(results, RUNS).text
    assert "no result of any of these" in side_by_side(results).text
    some = project(tmp_path / "some", {"sm-ln-g": BASE, "sm-g": BASE})
    assert "has no result of sm-r, sm yet" in missing_scale(some, RUNS)[0]
    assert missing_scale(project(tmp_path / "all", {run: BASE for run in RUNS}), RUNS) == []
    assert missing_scale(results.at("gpu"), RUNS) == []
