"""The table of rows with products outside SPU: ratios by hand, gaps, and the kept measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path

import made_results
import pandas as pd
import pytest

from aero.report import lattice_rows
from aero.report.lattice_rows import ALONE, OUTSIDE, WITHIN
from aero.report.results import load

KINDS = {"as_written": {"linear": 300.0}, ALONE: {"lattice_linear": 40.0}, WITHIN: {"linear": 200.0}}
AMOUNTS = {
    "as_written": (4e9, 800.0),
    ALONE: (3.9e9, 540.0),
    WITHIN: (1e9, 480.0),
    OUTSIDE: (0.9e9, 300.0),
}


def write(folder: Path, amounts: dict[str, tuple[float, float]], put_back: bool = True) -> None:
    path = folder / lattice_rows.PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = KINDS | {OUTSIDE: {"lattice_linear": 20.0, "scores": 100.0}}
    lines = [
        {"program": program, "bytes": found[0], "seconds": found[1], "seconds_by_kind": json.dumps(kinds[program])}
        for program, found in amounts.items()
    ]
    frame = pd.DataFrame(lines).assign(architecture="SM+ScFuFFN", model="gpt2", context=128, bytes_by_kind="{}")
    frame.to_csv(path, index=False)
    one = {"op": "lattice_linear", "shape": "128x768,768x768" if put_back else "1x1,1x1", "rounds": 3, "seconds": 10.0}
    one |= {"bytes_sent_client": 2e7, "bytes_sent_server": 1e7}
    pd.DataFrame([one]).to_csv(folder / lattice_rows.OPERATIONS, index=False)


def test_ratios_and_targets_by_hand(tmp_path: Path) -> None:
    """Eleven put-backs of 0.03 GB and 10 s: 1.23 GB and 410 s, so that the seconds are missed with them."""
    made_results.project(tmp_path, runs=())
    write(tmp_path, AMOUNTS)
    results = load(tmp_path)
    (row,) = lattice_rows.lattice_rows(results)
    assert (row.table, row.name, row.published, row.own, row.put_backs) == ("4", "SM+ScFuFFN", 6.43, True, 11)
    assert row.printed() == pytest.approx(0.9 / 6.43) and row.printed(11) == pytest.approx(1.23 / 6.43)
    assert (row.over("bytes"), row.over("seconds")) == pytest.approx((0.225, 0.375))
    assert (row.over("bytes", OUTSIDE, 11), row.over("seconds", OUTSIDE, 11)) == pytest.approx((1.23 / 4, 410 / 800))
    assert row.over("seconds", WITHIN) == pytest.approx(0.6)
    assert lattice_rows.counted([row], False) == {"published": (1, 1), "bytes": (1, 1), "seconds": (1, 1)}
    assert lattice_rows.counted([row], True)["seconds"] == (0, 1)
    text = lattice_rows.table(results).text
    assert text.count("(≤ 0.50, met)") == 2 and text.count("(≤ 0.30, met)") == 1 and "missed" not in text
    assert ">10.0<" in text and ">0.68<" in text
    said = lattice_rows.sentence(results)
    assert "`tuned` takes 0.23 to 0.23 of the bytes and 0.38 to 0.38 of the seconds" in said
    assert "(`tuned-lattice_products`) it is 0.25 to 0.25 and 0.60 to 0.60." in said


def test_what_is_just_missed_does_not_look_met(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=())
    write(tmp_path, AMOUNTS | {OUTSIDE: (0.9e9, 402.0)})
    text = lattice_rows.table(load(tmp_path)).text
    assert re.search(r">0\.502</a></span> <span class=\"where\">\(≤ 0\.50, missed\)", text)


@pytest.mark.parametrize("fault", ["program", "nan", "zero", "text", "put_back", "operations"])
def test_what_is_not_measured_is_a_gap(tmp_path: Path, fault: str) -> None:
    made_results.project(tmp_path, runs=())
    assert "not measured yet" in lattice_rows.table(load(tmp_path)).text
    assert lattice_rows.sentence(load(tmp_path)) == ""
    amounts = dict(AMOUNTS)
    if fault == "program":
        del amounts[WITHIN]
    elif fault in ("nan", "zero", "text"):
        amounts[WITHIN] = (1e9, {"nan": float("nan"), "zero": 0.0, "text": "much"}[fault])
    write(tmp_path, amounts, put_back=fault != "put_back")
    if fault == "operations":
        (tmp_path / lattice_rows.OPERATIONS).unlink()
    assert "not measured yet" in lattice_rows.table(load(tmp_path)).text
