"""Tables, figures and statistics of Variance Sensitivity, from the committed results and by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from aero.report.papers import variance_cores, variance_search, variance_sensitivity, variance_theory
from aero.report.papers.variance_search import best, distance, nearest, nearest_trainings, repeated, share
from aero.report.papers.variance_sensitivity import Sweep, published
from aero.report.results import Run
from aero.sensitivity.metric import ORDER, sensitivity_of_means
from aero.sensitivity.search import Reading

ROOT = Path(__file__).resolve().parents[2]
MODULES = (variance_sensitivity, variance_search, variance_theory, variance_cores)
DRAWN = [
    (module, name)
    for module in MODULES
    for name in vars(module)
    if name.startswith(("table_", "figure_")) and callable(vars(module)[name])
]


@pytest.mark.parametrize(("module", "name"), DRAWN, ids=[name for _, name in DRAWN])
def test_tables_and_figures_are_made_with_and_without_results(module, name, committed, empty):
    made = getattr(module, name)(committed.at("desk"))
    assert type(made) is type(getattr(module, name)(empty)) and isinstance(made, pd.DataFrame | Figure)
    if isinstance(made, pd.DataFrame):
        assert len(made) and made.shape[1] <= 6
    else:
        made.canvas.draw()
        assert any(axes.has_data() for axes in made.axes)


def test_committed_table_is_that_of_the_results(committed):
    for path, text in variance_sensitivity.files(committed).items():
        assert text == (ROOT / path).read_text(encoding="utf-8")


def test_mean_with_its_standard_error():
    assert variance_theory.with_error(-0.37862, 0.0012) == "-0.3786(12)"
    assert variance_theory.with_error(12.3, 1.5) == "12.3(15)" and variance_theory.with_error(2.0, 0.0) == "2"


def test_last_entropies_of_the_cores(committed):
    assert np.isfinite(list(variance_cores.last(committed.at("desk"), "core-softmax", "entropy").values())).all()


def test_bootstrap_interval_takes_every_resample_of_seeds():
    """95 % of the 27 equally likely resamples of three seeds, by brute force."""
    random = torch.Generator().manual_seed(1)
    final, initial = 3 * torch.rand(6, 3, generator=random).double(), torch.tensor([2.0, 2.5, 3.0]).double()
    found = Sweep("", {}, (), (0, 1, 2), {"relu": final}, {"relu": initial}, initial).estimate_of_means("relu")
    draws = [list(draw) for draw in itertools.product(range(3), repeat=3)]
    values = sorted(sensitivity_of_means(final[:, draw], initial[draw]) for draw in draws)
    low, high = (values[math.ceil(27 * tail) - 1] for tail in (0.025, 0.975))
    expected = (sensitivity_of_means(final, initial), low, high)
    assert (found.mean, found.low, found.high) == pytest.approx(expected)


def test_share_counts_every_setting_once():
    """Setting 1 agrees in one of two readings, setting 2 in its only one. Wilson for 0.75 of 2: 0.58559 - 0.39764."""
    low, high = dict.fromkeys(ORDER, 1.0) | {"qk_layernorm": 0.5, "relu": 0.5}, dict.fromkeys(ORDER, 1.0)
    readings = [Reading(500, "measured", "relu"), Reading(2000, "measured", "relu")]
    values = {(1, readings[0]): low, (1, readings[1]): high, (2, readings[0]): low}
    found = share(values, "stable_below_softmax")
    assert found.mean == 0.75 and found.low == pytest.approx(0.188, abs=1e-2)


def test_nearest_settings_are_trained_again_with_fresh_seeds(committed):
    chosen, made, trainings = nearest(committed), repeated(committed), nearest_trainings(committed)
    assert len(chosen) == 10 and list(made) == chosen
    assert len(trainings) == len(set(trainings)) and distance(published()) == 0
    assert distance(made[best(committed)]) == min(map(distance, made.values()))


def test_series_of_a_run():
    curves = {
        "step": [1, 2, 3, 4],
        "train_loss": [4.0, 3.0, None, 1.0],
        "entropy_layer_0": [2.0, None, 1.0, 1.0],
        "entropy_layer_1": [4.0, None, 3.0, 2.0],
    }
    run = Run("r", "laptop", 1, "SM+LN+G", 1.0, None, {}, "", False, curves=curves)
    assert run.series("train_loss").to_dict() == {1: 4.0, 2: 3.0, 4: 1.0}
    assert run.series("entropy").to_dict() == {1: 3.0, 3: 2.0, 4: 1.5}
    assert run.series("norm").empty
