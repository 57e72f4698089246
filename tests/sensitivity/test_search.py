"""The search over open settings: its sample, its rows, the paper's conclusions, resuming."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest
import torch

from aero.sensitivity import search as searching
from aero.sensitivity.metric import CONCLUSIONS, ORDER
from aero.sensitivity.search import SEARCHED_CORES, Reading, extend, plausible_settings, read_losses, sensitivities
from aero.sensitivity.setting import Setting, learning_rates
from aero.sensitivity.stacked import Trained

PUBLISHED = dict(zip(ORDER, (2.30, 2.20, 2.18, 1.97, 1.95, 1.14, 1.03), strict=True))


def test_settings_are_distinct_and_in_a_fixed_shuffled_order():
    found = plausible_settings()
    assert len(found) == len(set(found)) == 240 and found == plausible_settings()
    assert [s.hidden for s in found[:40]].count("embedded") in range(2, 16)


def test_conclusions_hold_for_the_published_table_and_not_for_its_reverse():
    reverse = dict(zip(ORDER, reversed(PUBLISHED.values()), strict=True))
    for name, holds in CONCLUSIONS.items():
        assert holds(PUBLISHED) and (not holds(reverse) or name == "sigma_like_softmax")
    for name, change in (
        ("sigma_like_softmax", {"sigma_reparam": 2.0}),
        ("stable_below_softmax", {"window_softmax": 1.1}),
    ):
        assert not CONCLUSIONS[name](PUBLISHED | change)
    assert [name for name, holds in CONCLUSIONS.items() if holds(dict.fromkeys(ORDER, 0.0))] == ["sigma_like_softmax"]


def trained(final: float, steps: int) -> Trained:
    """Losses 3 until the last step, which is `final` at the first rate and diverged at the last; l_0 of 2 and 4."""
    losses = torch.full((steps, len(learning_rates()), 1), 3.0)
    losses[-1, 0], losses[-1, -1] = final, math.nan
    return Trained(losses, losses, torch.full((steps, 1), 2.0), torch.full((steps, 1), 4.0))


def test_rows_give_sensitivities(monkeypatch):
    """One rate of 19 ends at 1 with l_0 = 2, so the sensitivity is 18/19 of the difference. With l_0 = 4, the loss of
    predicting 0, 17 rates stay at 3 and one diverges."""
    monkeypatch.setattr(searching, "STEPS", (4, 8))
    monkeypatch.setattr(searching, "WINDOW", 1)
    setting = Setting("x3+y", True, "slot", "linear", 8, "fresh", "mean", 8)
    rows = []
    for core in SEARCHED_CORES:
        made = searching.rows(7, setting, core, trained(0.5 if core == "relu_performer" else 1.0, 8), (0,))
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


@pytest.mark.parametrize("last_only", [False, True])
def test_search_resumes_where_it_stopped(tmp_path, monkeypatch, last_only):
    monkeypatch.setattr(searching, "STEPS", (2, 4))
    path, setting = tmp_path / "search.csv", replace(plausible_settings()[0], steps=4)
    trainings = [(0, setting, core, (5, 6)) for core in SEARCHED_CORES[:3]]

    def run():
        extend(path, trainings, 1, lambda seconds: {"commit": "abc"}, last_only)
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    first = run()
    per_core = 2 if last_only else 4  # seeds times numbers of steps
    assert len(first) == 3 * per_core and {row["commit"] for row in first} == {"abc"}
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[: 1 + per_core]) + "\n", encoding="utf-8")
    assert run() == first and run() == first
