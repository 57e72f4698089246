"""The search: its sample of settings, its rows and readings, the conclusions."""

from __future__ import annotations

import csv
import math
import subprocess
import sys

import pytest
import torch

from aero.pipeline import ROOT
from aero.sensitivity import search as searching
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.search import SEARCHED_CORES, Reading, lines, read_losses, readings, reasonable, sensitivities
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import Trained

PUBLISHED = dict(zip(ORDER, (2.30, 2.20, 2.18, 1.97, 1.95, 1.14, 1.03), strict=True))


def test_reasonable_settings_are_all_different_and_in_a_fixed_order():
    found = reasonable()
    assert len(found) == len(set(found)) == 240 and found == reasonable() and len(list(readings())) == 8
    assert [s.hidden for s in found[:40]].count("embedded") in range(2, 16)  # shuffled, not in order


def test_every_conclusion_holds_for_the_published_table_and_fails_for_its_reverse():
    reverse = dict(zip(ORDER, reversed(PUBLISHED.values()), strict=True))
    for name, conclusion in CONCLUSIONS.items():
        assert conclusion.holds(PUBLISHED), name
        assert not conclusion.holds(reverse) or name == "sigma_like_softmax"
    assert not CONCLUSIONS["sigma_like_softmax"].holds(PUBLISHED | {"sigma_reparam": 2.0})
    assert not CONCLUSIONS["stable_below_softmax"].holds(PUBLISHED | {"window_softmax": 1.1})
    assert not CONCLUSIONS["whole_order"].holds(PUBLISHED | {"elu": 1.98})
    nothing_trains = dict.fromkeys(ORDER, 0.0)
    assert [name for name, c in CONCLUSIONS.items() if c.holds(nothing_trains)] == ["sigma_like_softmax"]


def trained(final: float, steps: int, seeds: int = 1) -> Trained:
    """Losses 3 until the last step, which is `final` at the first rate and diverged at the last; l_0 of 2 and 4."""
    losses = torch.full((steps, len(learning_rates()), seeds), 3.0)
    losses[-1, 0], losses[-1, -1] = final, math.nan
    return Trained(losses, losses, torch.full((steps, seeds), 2.0), torch.full((steps, seeds), 4.0))


def test_rows_read_back_as_sensitivities(monkeypatch):
    """One rate of 19 ends at 1 with l_0 = 2, so the sensitivity is 18/19 of the difference. With l_0 = 4, the loss of
    predicting 0, 17 rates stay at 3 and one diverges."""
    monkeypatch.setattr(searching, "STEPS", (4, 8))
    monkeypatch.setattr(searching, "WINDOW", 1)
    setting = Setting("x3+y", True, "slot", "linear", 8, "fresh", "mean", 8)
    rows = []
    for core in SEARCHED_CORES:
        made = lines(7, setting, core, trained(0.5 if core == "relu_performer" else 1.0, 8), (0,))
        assert len(made) == 2  # numbers of steps
        rows += [{key: str(value) for key, value in row.items()} for row in made]
    losses = read_losses(next(r for r in rows if r["steps"] == "8"))
    assert losses[0] == 1 and math.isinf(losses[-1]) and losses[1] == 3
    found = sensitivities(rows)
    values = found[7, Reading(8, "measured", "relu")]
    assert set(values) == set(ORDER) and values["softmax"] == pytest.approx(18 / 19)
    assert found[7, Reading(8, "measured", "relu_performer")]["relu"] == pytest.approx(1.5 * 18 / 19)
    assert found[7, Reading(8, "zero", "relu")]["softmax"] == pytest.approx((17 * 2 + 3) / 19)
    assert found[7, Reading(4, "measured", "relu")]["softmax"] == 0
    assert sensitivities(rows[:-2]).keys() == {k for k in found if k[1].relu == "relu"}


def test_the_search_goes_on_where_it_stopped(tmp_path):
    """Started twice with a third of a setting done in between: no line twice, none changed."""
    path = tmp_path / "search.csv"

    def start(settings: int) -> list[dict[str, str]]:
        code = (
            "import sys, aero.sensitivity.search as s; from dataclasses import replace; s.STEPS = (2, 4);"
            "import stages.sensitivity_search as g; full = s.reasonable();"
            "g.reasonable = lambda: [replace(x, steps=4) for x in full];"
            f"g.main(['--settings', '{settings}', '--to', {str(path)!r}])"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    first = start(1)
    assert len(first) == len(SEARCHED_CORES) * 2
    path.write_text("\n".join(path.read_text(encoding="utf-8").splitlines()[: 1 + 3 * 2]) + "\n", encoding="utf-8")
    second = start(1)
    without = [{k: v for k, v in row.items() if k not in ("seconds", "commit")} for row in second]
    assert without == [{k: v for k, v in row.items() if k not in ("seconds", "commit")} for row in first]


def test_the_nearest_settings_go_on_where_they_stopped(tmp_path):
    """Parts of two of the settings, cut down to 4 steps: resumed after some of them, the same file, of fresh seeds."""
    path = tmp_path / "nearest.csv"

    def start() -> list[dict[str, str]]:
        code = (
            "import aero.sensitivity.search as s; from dataclasses import replace\n"
            "import stages.sensitivity_nearest as g; full = g.trainings\n"
            "def short(results):\n"
            "    found = full(results)[6:10]; s.STEPS = (2, 4)\n"
            "    return [(n, replace(x, steps=4), c) for n, x, c in found]\n"
            "g.trainings = short\n"
            f"g.main(['--to', {str(path)!r}])"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    first = start()
    assert [row["seed"] for row in first[:5]] == ["1001", "1002", "1003", "1004", "1005"] and len(first) == 4 * 5
    assert {row["steps"] for row in first} == {"4"} and all(row["commit"] and row["machine"] for row in first)
    path.write_text("\n".join(path.read_text(encoding="utf-8").splitlines()[: 1 + 2 * 5]) + "\n", encoding="utf-8")
    apart = ("cpu_seconds", "commit")
    second = [{k: v for k, v in row.items() if k not in apart} for row in start()]
    assert second == [{k: v for k, v in row.items() if k not in apart} for row in first]


def test_a_setting_outside_the_order_is_refused():
    run = subprocess.run(
        [sys.executable, "-m", "stages.sensitivity_search", "--first", "999"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1 and run.stderr.strip() == "error: --first must be 0 to 239, got 999"
