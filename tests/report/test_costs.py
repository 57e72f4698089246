"""Costs of the rows of AERO Tables 4-7 from the committed results: golden values, sums, tables, figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from aero.published import load as load_paper
from aero.records import read_csv
from aero.report import appendix, show
from aero.report.costs import COST_TABLES, all_costs, audit, fits, parts, row_costs, saving, wan_minutes
from aero.report.papers import private_inference, private_tables
from aero.report.papers.private_inference import with_front
from aero.report.results import Results
from aero.report.statistics import CONTROL
from stages import docs

ROOT = Path(__file__).resolve().parents[2]
TABLES = [
    private_tables.headline,
    *(lambda results, n=n: private_tables.communication(results, n) for n in COST_TABLES),
    *(lambda results, n=n: private_tables.minutes(results, n) for n in COST_TABLES),
    *(lambda results, n=n: private_tables.savings(results, n) for n in COST_TABLES),
    private_tables.figure_15,
    private_tables.communication_fit,
    private_tables.complete_passes,
    private_tables.trained_passes,
    private_tables.ablation,
    private_tables.outside_tuned,
    private_tables.latency_model,
    appendix.training_step,
    appendix.regularized_step,
    appendix.entropy_memory,
    appendix.determinism,
]
FIGURES = [
    *(partial(private_inference.by_part, quantity=quantity) for quantity in ("bytes", "seconds")),
    private_inference.minutes_by_part,
    private_inference.pareto,
]


def test_switches_outside_tuned_are_compared_with_the_program_without_them(tmp_path: Path) -> None:
    (tmp_path / private_tables.OUTSIDE).parent.mkdir(parents=True)
    head = "architecture,program,bytes,rounds,seconds,wan_seconds,rounds_without_maxima,bytes_without_maxima"
    lines = [head, "SM,tuned,2e9,1000,100,600,700,1.5e9", "SM,tuned+a,1e9,9,75,300,5,9e8"]
    (tmp_path / private_tables.OUTSIDE).write_text("\n".join(lines))
    first, second = private_tables.outside_tuned(SimpleNamespace(root=tmp_path))["SM"]
    assert first == "2.00 GB (1.50), 1,000 rounds (700), computing 100 s, WAN 10.0 min"
    assert second == "1.00 GB (0.90), 9 rounds (5), computing 0.75x, WAN 0.50x"


@pytest.mark.parametrize("table", TABLES)
def test_tables_have_at_most_six_columns_and_no_raw_gap(table: Callable[[Results], pd.DataFrame], committed: Results):
    frame = table(committed)
    assert len(frame) and len(frame.columns) <= 6
    assert not frame.isna().any().any()
    assert not frame.astype(str).map(lambda cell: cell in ("nan", "None", "")).iloc[:, 0].any()


@pytest.mark.parametrize("make", [*TABLES, *FIGURES])
def test_missing_results_leave_gaps(make: Callable[[Results], object], empty: Results):
    make(empty)


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_vector_graphics(figure: Callable, committed: Results):
    assert "<image" not in show.svg(figure(committed), "title")


def test_the_fit_has_every_published_row_within_1_1_percent(committed: Results):
    fitted = fits(committed)
    assert set(fitted) == {(n, row.name) for n in COST_TABLES for row in load_paper("aero").tables[n].rows}
    for (number, row), fit in fitted.items():
        printed = load_paper("aero").tables[number].value(row, "communication")
        assert abs(fit.gigabytes / printed - 1) < 0.011
        assert 100 * (fit.gigabytes / printed - 1) == pytest.approx(fit.residual_percent, abs=0.02)


def test_golden_bytes_and_savings_of_table_4(committed: Results):
    table = load_paper("aero").tables["4"]
    gigabytes = {
        row: [round(cost.bytes / 1e9, 2) for cost in all_costs(committed, table, row).values()]
        for row in ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFNi_6)")
    }
    assert gigabytes == {
        "SM+LN+G": [21.98, 19.57, 5.77],
        "SM+LN+R": [9.26, 6.85, 2.42],
        "SM+ScFuFFN": [6.45, 4.76, 1.14],
        "EReg(SM(t)+ScFuFFNi_6)": [6.64, 4.81, 1.20],
    }
    found = audit(committed, table, "SM+ScFuFFNi_6", "bytes")
    # 19.569 GB less 12 x (1.0991 - 0.3441) GB are 10.51; over the row's 4.645 GB 2.26 of 4.21 times are left.
    assert found.as_written == pytest.approx(4.213, abs=1e-3) and found.one_gelu == pytest.approx(2.262, abs=2e-3)
    assert found.by_gelu * found.one_gelu == pytest.approx(found.as_written)
    assert found.share == pytest.approx(0.568, abs=2e-3) and found.tuned == pytest.approx(5.08, abs=0.01)
    assert saving(committed, table, "SM+LN+G", "as_written", "bytes") == 1


def test_parts_add_up(committed: Results):
    for number in COST_TABLES:
        for row in load_paper("aero").tables[number].rows:
            for cost in row_costs(committed, load_paper("aero").tables[number], row.name).values():
                minutes = wan_minutes(committed, cost)
                assert minutes.transfer > 0
                assert 60 * (minutes.computing + minutes.on_network) == pytest.approx(cost.latency_wan)
    lines = [line for line in read_csv(ROOT / "results/two_party/all_rows.csv") if line["bytes_by_kind"]]
    assert lines
    for line in lines:
        assert sum(parts(line, "bytes").values()) == pytest.approx(float(line["bytes"])), line["architecture"]


def test_the_front_is_what_no_other_point_beats_in_both():
    points = pd.DataFrame([(3, 5), (1, 9), (2, 7), (2, 8), (4, 6), (3, 5)], columns=["bytes", "perplexity"])
    found = with_front(points)
    assert found["bytes"].tolist() == sorted(points["bytes"])
    front = found[found["front"]]
    assert list(zip(front["bytes"], front["perplexity"], strict=True)) == [(1, 9), (2, 7), (3, 5)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1099.06, "1,099"), (57.7, "57.7"), (0.00278, "0.00278"), (0.0, "0"), (None, "–"), (float("nan"), "–")],
)
def test_numbers_have_three_significant_digits(value: float | None, shown: str):
    assert private_tables.text(value) == shown


def test_generated_documents_are_current_and_stable(committed: Results):
    text = "# x\n<!-- headline -->\nold\n<!-- /headline -->\nrest <!-- unknown -->\n"
    once = docs.generated(text, committed)
    assert once.startswith("# x\n<!-- headline -->\n|") and once.endswith("<!-- /headline -->\nrest <!-- unknown -->\n")
    assert docs.generated(once, committed) == once
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        found = path.read_text(encoding="utf-8")
        assert docs.generated(found, committed) == found, f"{path.name}: run make docs"


def test_the_explorer_compares_perplexity_within_one_setting(committed: Results):
    frame = appendix.explorer_rows(committed)
    baselines = frame[frame["configuration"] == CONTROL]
    assert (baselines[appendix.PERPLEXITY].dropna() == 0).all() and frame["model"].nunique() > 2
    assert not frame.duplicated(["configuration", "model", "program"]).any()
    optimised = frame[frame["program"] == "optimised"].set_index(["configuration", "model"])["GB"]
    stock = frame[frame["program"] == "stock SPU"].set_index(["configuration", "model"])["GB"]
    assert (optimised < stock).all()


def test_dvc_plots_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("vl_convert")
    from stages import offline_plots

    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = True\n")
    (tmp_path / "params.yaml").write_text("scale: smoke\n")
    monkeypatch.chdir(tmp_path)
    offline_plots.main([])
    page = (tmp_path / ".dvc/plots.html").read_text()
    assert "{plot_divs}" in page and "<script src" not in page and len(page) > 500_000
    assert "plots.html" in (tmp_path / ".dvc/config.local").read_text()
