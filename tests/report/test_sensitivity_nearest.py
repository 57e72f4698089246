"""The nearest settings trained again with fresh seeds: what is chosen, how it is averaged, what the tables say."""

from __future__ import annotations

import csv
import shutil

import made_results
import pytest
import torch

from aero.report import sensitivity, sensitivity_nearest, sensitivity_page, sensitivity_search
from aero.report.results import load
from aero.report.sensitivity_nearest import FRESH, WAYS
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.search import SEARCHED_CORES
from aero.sensitivity.setting import learning_rates

RATES = learning_rates()
PUBLISHED = dict(zip(ORDER, (2.30, 2.20, 2.18, 1.97, 1.95, 1.14, 1.03), strict=True))


@pytest.fixture
def kept(tmp_path):
    """The kept sweep and search, without anything that was trained again."""
    root = made_results.project(tmp_path / "kept", runs=(), costs=False)
    shutil.copytree(made_results.PROJECT / "results" / "sensitivity", root / "results" / "sensitivity")
    (root / "results" / "sensitivity" / "nearest.csv").unlink(missing_ok=True)
    return load(root)


def write(results, offsets, seeds=FRESH):
    """nearest.csv of the settings named in `offsets`, with the published sensitivities plus a number.

    The first rate ends at 0, the others alike, below l_0 = 4: the sensitivity is their loss times 18 / 19."""
    rows = []
    for number, setting, core in sensitivity_nearest.trainings(results):
        if number not in offsets:
            continue
        value = PUBLISHED["relu" if core == "relu_performer" else core] + offsets[number]
        losses = {f"{rate:g}": 19 / 18 * value for rate in RATES} | {f"{RATES[0]:g}": 0.0}
        for seed in seeds:
            row = {"number": number, "core": core, "seed": seed, "steps": setting.steps}
            rows.append(row | {"initial_loss": 4.0, "zero_loss": 4.0} | losses)
    with open(results.root / "results/sensitivity/nearest.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_the_first_five_of_each_form_are_trained_again_each_once(kept):
    chosen = sensitivity_nearest.chosen(kept)
    assert [number for number, _ in chosen] == [41, 37, 42, 10, 14, 41, 10, 9, 42, 37]
    assert [reading.relu for _, reading in chosen] == ["relu"] * 5 + ["relu_performer"] * 5
    trainings = sensitivity_nearest.trainings(kept)
    assert len(trainings) == len(set(trainings)) == 4 * 8 + 2 * 7
    assert {core for _, _, core in trainings} == set(SEARCHED_CORES)
    assert {(number, setting.steps) for number, setting, _ in trainings if number == 41} == {(41, 500)}
    searched = {int(line["seed"]) for line in sensitivity.read(kept.root / "results/sensitivity/search.csv")}
    swept = set(sensitivity.sweep(kept).seeds)
    assert not set(FRESH) & (searched | swept | set(range(240)))


def test_the_ways_of_averaging_by_hand():
    """l_0 = 2, 4: clipped [[1, 1], [2, 3]], means [1, 2.5]; averaged [1, 5], clipped at 3; of each seed 0.5 and 1."""
    final, initial = torch.tensor([[1.0, 1.0], [7.0, 3.0]]).double(), torch.tensor([2.0, 4.0]).double()
    assert [way(final, initial) for way in WAYS.values()] == [0.75, 1.0, 0.75]


def test_the_best_is_the_nearest_by_the_tables_own_averages(kept):
    assert sensitivity_nearest.best(kept) is None
    assert "not measured yet" in sensitivity_nearest.table_best(kept).text
    assert "not measured yet" in sensitivity_nearest.table_repeated(kept).text
    write(kept, {41: 0.3, 10: -0.1})
    made = sensitivity_nearest.repeated(kept)
    assert [one.number for one in made] == [41, 10, 41, 10]
    assert all(off == pytest.approx(0.3) for off in made[0].distances().values())
    best = sensitivity_nearest.best(kept)
    assert best.number == 10 and best.distances()["clipped, then averaged"] == pytest.approx(0.1)
    for name in CONCLUSIONS:
        averages, seeds = best.holds(name)
        assert all(averages.values()) and seeds == 5
    text = sensitivity_nearest.table_best(kept).text
    assert "It is nearer than a table without any difference" in text and "Others: none" in text
    repeated = sensitivity_nearest.table_repeated(kept).text
    assert "6 of 10 are not trained again yet" in repeated and "one seed, the search’s" in repeated
    assert 'id="sensitivity-best"' in sensitivity_page.search_tables(kept).text


def test_a_setting_without_every_seed_is_not_told(kept):
    write(kept, {41: 0.3}, seeds=FRESH[:4])
    assert sensitivity_nearest.repeated(kept) == []


def test_a_width_of_four_is_not_marked_as_the_papers(kept):
    write(kept, {41: 0.3, 37: 0.4})
    text = sensitivity_nearest.table_repeated(kept).text
    assert 'class="num paper_dimensions"' in text and 'class="num other_width"' in text  # x2+y is 3, x3+y is 4
    assert sensitivity.sweep(kept).origin == "other_width"
    assert "paper_dimensions" not in sensitivity.table_1(kept).text
    assert "paper_dimensions" not in sensitivity_search.table_influence(kept).text
