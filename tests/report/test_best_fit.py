"""The table of the best fit as a program: ratios by hand, gaps, and the kept measurements."""

from __future__ import annotations

import re
from pathlib import Path

import made_results
import pandas as pd
import pytest

from aero.pipeline import ROOT
from aero.published import load as load_paper
from aero.report import best_fit, claims, cost_page, cost_tables, page, tables
from aero.report.best_fit import NO_TILES, PLAIN
from aero.report.costs import published_cost, published_saving, row_costs
from aero.report.results import load

AMOUNTS = {
    "as_published": {"bytes": 5e9, "seconds": 1000.0, "backbone_seconds": 600.0},
    "as_written": {"bytes": 4e9, "seconds": 800.0, "backbone_seconds": 500.0},
    PLAIN: {"bytes": 1e9, "seconds": 480.0, "backbone_seconds": 450.0},
    NO_TILES: {"bytes": 1.2e9, "seconds": 392.0, "backbone_seconds": 380.0},
}


def write(folder: Path, amounts: dict[str, dict[str, float]], baseline: float | None = None) -> None:
    """baseline: bytes of SM+LN+G as published, which has no other line."""
    path = folder / best_fit.FITTED
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([{"program": program, **found} for program, found in amounts.items()])
    kinds = {"as_published": '{"id_lookup": 300.0, "linear_shared": 600.0}', "as_written": '{"embedding_slice": 100.0}'}
    frame["seconds_by_kind"] = [kinds.get(program, "{}") for program in frame["program"]]
    frame["bytes_by_kind"] = "{}"
    frame = frame.assign(architecture="SM+ScFuFFN", model="gpt2", context=128, method="composed")
    frame["latency_wan_s"] = pd.to_numeric(frame["seconds"], errors="coerce") * 1.5
    frame["latency_lan_s"] = float("nan")
    if baseline is not None:
        first = frame[frame["program"] == "as_published"].assign(
            architecture="SM+LN+G", bytes=baseline, latency_wan_s=2100.0
        )
        frame = pd.concat([frame, first])
    frame.to_csv(path, index=False)


def test_ratios_and_targets_by_hand(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=())
    write(tmp_path, AMOUNTS)
    results = load(tmp_path)
    (row,) = best_fit.fitted_rows(results)
    assert (row.table, row.name, row.published, row.own) == ("4", "SM+ScFuFFN", 6.43, True)
    assert [row.over(*column) for column in best_fit.COLUMNS] == pytest.approx([0.2, 0.48, 0.75, 0.25, 0.6, 0.3, 0.49])
    assert row.over_plain_embedding() == pytest.approx(480 / (1000 - 300 + 100))
    text = best_fit.best_fit(results).text
    assert ">0 of 1<" in text
    fitted = f"<code>{PLAIN}</code> over <code>as_published</code> by"
    assert f"met: {fitted} GB 1 of 1; {fitted} s 1 of 1; {fitted} s of blocks 0 of 1; " in text
    assert f"<code>{PLAIN}</code> over <code>as_written</code> by s 0 of 1; " in text
    assert f"<code>{NO_TILES}</code> over <code>as_written</code> by s 1 of 1. " in text
    assert ">40 to 40 %<" in text
    assert text.count(">met<") == 5 and text.count(">missed<") == 2


@pytest.mark.parametrize(("baseline", "times"), [(23e9, 4.6), (None, None), (float("nan"), None), (0.0, None)])
def test_the_audit_has_the_saving_between_rows_as_published(tmp_path: Path, baseline, times) -> None:
    made_results.project(tmp_path, runs=())
    table = load_paper("aero").tables["4"]
    assert published_saving(load(tmp_path), table, "SM+ScFuFFN", "bytes") is None
    write(tmp_path, AMOUNTS, baseline)
    results = load(tmp_path)
    assert published_saving(results, table, "SM+ScFuFFN", "bytes") == times
    assert published_saving(results, table, "SM+ScFuFFN", "latency_wan") == (times and 1.4)
    assert published_saving(results, table, "SM+ScFuFFN", "latency_lan") is None
    assert published_saving(results, table, "SOTA(SM+ScFuFFN)", "bytes") is None
    text = cost_tables.savings(results).text
    assert [f"{x}×" in text for x in ("4.60", "1.40")] == [times is not None] * 2


def test_beside_printed_bytes_stand_those_of_the_fit_where_it_was_measured(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=())
    row, keys = "SM+ScFuFFN", ("communication", "savings_communication")
    before = {c.published.column.key: c for c in tables.table(load(tmp_path), "4") if c.row.name == row}
    assert [before[key].note.endswith(what) for key, what in zip(keys, ("tuned 1.44", "as_written"), strict=True)]
    assert "as_written, composed" in before["latency"].note and "day" not in before["latency"].note
    write(tmp_path, AMOUNTS, 23e9)
    results = load(tmp_path)
    cells = {c.published.column.key: c for c in tables.table(results, "4") if c.row.name == row}
    assert (cells["communication"].text, cells["communication"].source) == ("5.00", best_fit.FITTED.as_posix())
    plain = f"{row_costs(results, load_paper('aero').tables['4'], row)['as_written'].bytes / 1e9:.2f}"
    assert f"as_published, composed; as_written {plain}, composed" in cells["communication"].note
    assert (cells["savings_communication"].text, cells["savings_latency"].text) == ("4.60", "1.40")
    assert f"as_published; as_written {before['savings_communication'].text}" in cells["savings_communication"].note
    # Minutes as written of the same session, and of the one that all other programs are of.
    assert (cells["latency"].text, cells["latency"].source) == ("25.00", best_fit.FITTED.as_posix())
    said = (
        f"as_published, composed; as_written 20.00 on the same day; as_written {before['latency'].text} on another day"
    )
    assert said in cells["latency"].note
    (line,) = [one for one in page.headline_rows(results) if one.name == row]
    assert (line.fitted[1], line.fitted_latency[1], line.communication[2]) == ("5.00 GB", "25.00 min", f"{plain} GB")
    assert line.latency[2] == f"{before['latency'].text} min"
    table = load_paper("aero").tables["4"]
    assert published_cost(results, table, "SM+LN+R") is None
    assert "●5.00" in re.sub("<[^>]+>", "", cost_page.table_costs(results).text)
    measured = {one.claim.id: one.decision.measured for one in claims.judge(results, "aero")}
    assert "; 23.00 GB as published, 0.91" in measured["t4-bytes-baseline"]


def test_what_is_just_missed_does_not_look_met(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=())
    amounts = {program: dict(found) for program, found in AMOUNTS.items()}
    amounts[PLAIN]["seconds"] = 402.0
    write(tmp_path, amounts)
    text = best_fit.best_fit(load(tmp_path)).text
    assert ">0.502<" in text and ">0.40<" in text


@pytest.mark.parametrize("fault", ["program", "nan", "zero", "text", "column"])
def test_what_is_not_measured_is_a_gap(tmp_path: Path, fault: str) -> None:
    made_results.project(tmp_path, runs=())
    assert "not measured yet" in best_fit.best_fit(load(tmp_path)).text
    amounts = {program: dict(found) for program, found in AMOUNTS.items()}
    if fault == "program":
        del amounts["as_published"]
    elif fault == "column":
        for found in amounts.values():
            del found["backbone_seconds"]
    else:
        amounts[PLAIN]["seconds"] = {"nan": float("nan"), "zero": 0.0, "text": "much"}[fault]
    write(tmp_path, amounts)
    assert "not measured yet" in best_fit.best_fit(load(tmp_path)).text


def test_kept_rows_are_all_that_are_printed_and_he_hofmann_rows_have_no_target() -> None:
    tables, rows = load_paper("aero").tables, best_fit.fitted_rows(load(ROOT))
    assert [(row.table, row.name) for row in rows] == [(w, row.name) for w in "4567" for row in tables[w].rows]
    assert all(row.compared is not row.name.startswith("SOTA") and row.compared >= row.own for row in rows)


def test_how_much_more_the_baseline_sends_by_the_fit() -> None:
    """Kept measurements against the table's own columns, row by row."""
    results = load(ROOT)
    rows = {row.name: row for row in best_fit.fitted_rows(results) if row.table == "4" and row.compared}
    base = rows.pop("SM+LN+G")
    printed = [25.32 / rows[name].published for name in rows if name != "SM+LN+R"]
    fitted = [
        base.amounts["as_published"]["bytes"] / row.amounts["as_published"]["bytes"]
        for row in rows.values()
        if row.name != "SM+LN+R"
    ]
    text = re.sub("<[^>]+>|●", "", best_fit.best_fit(results).text)
    said = (
        f"Table 4 {min(printed):.2f} to {max(printed):.2f} printed, {min(fitted):.2f} to {max(fitted):.2f} by the fit"
    )
    assert said in text and said.startswith("Table 4 3.64 to 4.03 printed")


def test_what_tuned_sends_of_the_fits_bytes() -> None:
    keys = ["architecture", "model", "context"]
    fitted, rows = (pd.read_csv(ROOT / f"results/two_party/{name}_rows.csv") for name in ("fitted", "all"))
    fitted, rows = (frame[frame["program"] == name] for frame, name in ((fitted, "as_published"), (rows, "tuned")))
    both = fitted.merge(rows, on=keys, suffixes=("_fitted", "_tuned"))
    both = both[~both["architecture"].str.match("SM.LN|SOTA")]
    ratios = both["bytes_tuned"] / both["bytes_fitted"]
    assert len(ratios) == 20
    text = re.sub("<[^>]+>", "", best_fit.best_fit(load(ROOT)).text)
    told = f"takes \u25cf{ratios.min():.2f} to {ratios.max():.2f} of the fit\u2019s bytes in AERO\u2019s rows"
    assert told in text
