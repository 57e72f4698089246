"""Tables, figures and statistics of Parallel Context Encoding, from the committed results and by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from aero.report.papers import parallel_context, parallel_figures
from aero.report.papers.parallel_context import loss_of, lost, own_models, pearson, summary
from aero.report.results import load

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("table_main", "table_ablation", "table_cost", "table_methods")
FIGURES = [name for name in vars(parallel_figures) if name.startswith("figure_")]


@pytest.fixture(scope="module")
def results():
    return load(ROOT, "laptop")


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return load(tmp_path, "laptop")


@pytest.mark.parametrize("name", TABLES)
def test_tables(name, results, empty):
    of = own_models if name == "table_methods" else (lambda results: results)
    made = getattr(parallel_context, name)(of(results))
    assert len(made) and made.shape[1] <= 6
    assert isinstance(getattr(parallel_context, name)(of(empty)), pd.DataFrame)


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name, results, empty):
    made = getattr(parallel_figures, name)(results)
    made.canvas.draw()
    assert all(axes.has_data() for axes in made.axes)
    assert isinstance(getattr(parallel_figures, name)(empty), Figure)


def test_committed_tables_are_those_of_the_results(results):
    for path, text in parallel_context.files(results).items():
        assert text == (ROOT / path).read_text(encoding="utf-8")


def row(score, low, high, task="icl"):
    return {"task": task, "score": score, "low": low, "high": high, "entropy": 1.0, "episodes": 9}


def test_interval_over_episodes_where_seeds_agree():
    agree = summary({1: row(90.0, 80.0, 95.0), 2: row(90.0, 80.0, 95.0)})
    assert (agree.estimate.low, agree.estimate.high, agree.episodes) == (80.0, 95.0, 9)
    alone = summary({1: row(6.0, 5.0, 7.0, "lm")})
    assert (alone.estimate.low, alone.estimate.high, alone.episodes) == (5.0, 7.0, 9)
    differ = summary({1: row(99.0, 0, 0), 2: row(95.0, 0, 0)})
    assert differ.estimate.mean == 97 and differ.estimate.high == 100 and differ.episodes is None
    assert summary({}) is None


def test_loss_between_two_settings():
    """Seeds agree: Newcombe's interval, 10 - hypot(5, 1) to 10 + hypot(10, 2)."""
    pair = row(80.0, 70.0, 85.0), row(90.0, 89.0, 92.0)
    found = lost({1: pair, 2: pair})
    assert found.estimate.mean == 10 and found.episodes == 9
    assert found.estimate.low == pytest.approx(10 - math.hypot(5, 1))
    assert found.estimate.high == pytest.approx(10 + math.hypot(10, 2))
    assert loss_of(row(math.e, 0, 0, "lm")) == 1 and loss_of(row(30.0, 0, 0)) == 70
    assert lost({}) is None


def test_correlation_by_hand():
    """r = 8 / 10; artanh 0.8 = 1.09861, half 1.95996 / sqrt 2 = 1.38590."""
    found = pearson([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    assert found.mean == pytest.approx(0.8) and (found.low, found.high) == pytest.approx((-0.2796, 0.9862), abs=1e-3)
    assert pearson([1, 2, 3, 4], [4, 3, 2, 1]).mean == pytest.approx(-1) and math.isnan(pearson([1, 2], [3, 3]).mean)
    assert pearson([1, 2, 4], [2, 1, 5]).low is None


def test_partial_measurement_does_not_replace_a_complete_one(empty):
    folder, fresh = (empty.root / f"{place}/parallel_context/laptop" for place in ("results", "runs"))
    values = {"model": "own", "scale": "laptop", "seed": 1, "selection": {}, "rows": []}
    for path, more in ((folder, {"mark": 1}), (fresh, {"mark": 2, "part": True})):
        path.mkdir(parents=True)
        (path / "seed_1.json").write_text(json.dumps(values | more), encoding="utf-8")
    assert [model.values["mark"] for model in own_models(empty)] == [1]
    (fresh / "seed_1.json").write_text(json.dumps(values | {"mark": 3}), encoding="utf-8")
    assert [model.values["mark"] for model in own_models(empty)] == [3]
