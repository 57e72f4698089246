"""Tables, figures and statistics of parallel context encoding, from the committed results and without any."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from aero.report.papers import parallel_context as pc
from aero.report.papers import parallel_figures
from aero.report.results import load

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("table_main", "table_ablation", "table_methods", "table_lengths")
FIGURES = [name for name in vars(parallel_figures) if name.startswith("figure_")]


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return load(tmp_path, "laptop")


@pytest.mark.parametrize("name", TABLES)
def test_tables(name, committed, empty):
    of = pc.measured if name == "table_methods" else (lambda results: results)
    made = getattr(parallel_figures, name)(of(committed))
    assert len(made) and made.shape[1] <= 6
    assert isinstance(getattr(parallel_figures, name)(of(empty)), pd.DataFrame)


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name, committed, empty):
    made = getattr(parallel_figures, name)(committed)
    made.canvas.draw()
    assert all(axes.has_data() for axes in made.axes)
    assert isinstance(getattr(parallel_figures, name)(empty), Figure)


def test_committed_tables_are_those_of_the_results(committed):
    for path, text in parallel_figures.files(committed).items():
        assert text == (ROOT / path).read_text(encoding="utf-8")


RUN = {"model": "m", "selection": {"top_k": 2, "aggregation": {"icl": "HT", "lm": "none"}}, "sinks": {"one": "1"}}
SETTING = dict.fromkeys(pc.Setting.__dataclass_fields__)


def row(task, context, segments, scores, **changes):
    values = {"task": task, "context": context, "scores": scores, "entropies": [1.0 + segments] * len(scores)}
    return SETTING | values | {"segments": segments} | changes


@pytest.fixture
def made(empty):
    """Two contexts of classification: 3 of 4 right at P = 1, 1 of 4 at P = 2; and a text of two parts."""
    rows = [
        row("words", 0, 1, [1.0, 1.0]),
        row("words", 1, 1, [0.0, 1.0]),
        row("words", 0, 2, [1.0, 0.0], entropy_by_layer=[1.0, 2.0]),
        row("words", 1, 2, [0.0, 0.0], entropy_by_layer=[3.0, 4.0]),
        row("docs", 0, 1, [1.0, 2.0]),
        row("docs", 0, 2, [1.5, 2.7]),
    ]
    folder = empty.root / "results/parallel_context"
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(one) + "\n" for one in ({"run": RUN}, *rows))
    (folder / f"{pc.MODEL}.jsonl").write_text(lines, encoding="utf-8")
    return pc.measured(empty)


def test_scores_over_episodes_by_hand(made):
    """Wilson's interval of 3 of 4: (0.75 + 0.48015) / 1.96037 = 0.62751, half 0.32680."""
    full = pc.score(made, "words", pc.Setting(1))
    assert (full.mean, full.low, full.high) == pytest.approx((75.0, 30.06, 95.44), abs=0.02)
    text = pc.score(made, "docs", pc.Setting(1))
    assert text.mean == pytest.approx(math.exp(1.5)) and text.low == pytest.approx(
        math.exp(1.5 - 12.706 * 0.5), rel=1e-3
    )
    assert pc.score(made, "words", pc.Setting(4)) is None
    assert made.layers("words", pc.Setting(2), "entropy_by_layer").tolist() == [2.0, 3.0]


def test_differences_are_paired(made):
    """2 of 4 pairs get worse: (2 + 0.5 - 0.5) / 6 = 0.3333, half 1.96 sqrt(3 / 6 - 0.1111) / sqrt 6 = 0.4990."""
    found = pc.lost(made, "words", pc.Setting(2), pc.Setting(1))
    assert (found.mean, found.low, found.high) == pytest.approx((50.0, -16.57, 83.23), abs=0.02)
    found = pc.lost(made, "docs", pc.Setting(2), pc.Setting(1))
    assert found.mean == pytest.approx(0.6) and found.low == pytest.approx(0.6 - 12.706 * 0.1, rel=1e-3)
    same = pc.lost(made, "words", pc.Setting(1), pc.Setting(1))
    assert same.mean == 0 and same.low < 0 < same.high, "four equal pairs are no proof"
    assert pc.entropy_change(made, "words", pc.Setting(2), pc.Setting(1)).mean == 1
    assert pc.lost(made, "words", pc.Setting(4), pc.Setting(1)) is None


def test_the_gate_needs_room_on_both_sides(made, monkeypatch):
    assert pc.gate(made, "words") == pc.gate(made, "docs") == "" and pc.gate(made, "pairs") == "not measured"
    monkeypatch.setitem(pc.CHANCE, "words", 31.0)
    assert "chance" in pc.gate(made, "words")
    monkeypatch.setitem(pc.CHANCE, "words", 25.0)
    made.rows["words", pc.Setting(1)] = [row("words", 0, 1, [1.0] * 40)]
    assert "ceiling" in pc.gate(made, "words")


def test_correlation_by_hand():
    """r = 8 / 10; artanh 0.8 = 1.09861, half 1.95996 / sqrt 2 = 1.38590."""
    found = pc.pearson([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    assert found.mean == pytest.approx(0.8) and (found.low, found.high) == pytest.approx((-0.2796, 0.9862), abs=1e-3)
    assert pc.pearson([1, 2, 3, 4], [4, 3, 2, 1]).mean == pytest.approx(-1)
    assert math.isnan(pc.pearson([1, 2], [3, 3]).mean) and pc.pearson([1, 2, 4], [2, 1, 5]).low is None


def test_fresh_files_replace_committed_ones(made, empty):
    fresh = empty.root / "runs/parallel_context"
    fresh.mkdir(parents=True)
    (fresh / f"{pc.MODEL}.jsonl").write_text(json.dumps({"run": RUN | {"model": "new"}}) + "\n", encoding="utf-8")
    assert made.about["model"] == "m" and pc.measured(load(empty.root, "laptop")).about["model"] == "new"
