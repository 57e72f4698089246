"""Figures and tables of AERO, Entropy-Guided Attention and the Entropy Landscape, from synthetic results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from aero.report import show
from aero.report.papers import aero, aero_entropy, entropy_landscape, panels
from aero.report.results import Results

MODULES = (aero, aero_entropy, entropy_landscape)


def shown(module: ModuleType) -> dict[str, Callable[[Results], Figure | pd.DataFrame]]:
    """The module's functions, whole or partial, that return a figure or a frame."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, partial) or getattr(value, "__module__", "") == module.__name__
        if getattr(value, "func", value).__annotations__.get("return") in ("Figure", "pd.DataFrame") and name[0] != "_"
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_all_are_made_of_all_runs_and_of_none(module: ModuleType, everything: Results, empty: Results) -> None:
    assert shown(module)
    for name, function in shown(module).items():
        for results in (everything, empty):
            made = function(results)
            assert isinstance(made, Figure | pd.DataFrame), name
            if isinstance(made, pd.DataFrame):
                assert len(made.columns) <= 6 or made.empty, name
        text = "" if isinstance(made, pd.DataFrame) else " ".join(t.get_text() for a in made.axes for t in a.texts)
        if function not in (aero.figure_1, aero.figure_20, aero.figure_21, entropy_landscape.figure_1):
            assert isinstance(made, pd.DataFrame) or "not " in text, f"{name} hides that nothing was run"


def test_a_heatmap_shows_the_entropy_of_every_head(everything: Results) -> None:
    panel = aero_entropy.figure_5(everything).axes[0]
    expected = np.array(everything.first("sm-ln-g").entropy.mean)
    assert panel.get_title("left") == "SM+LN+G"
    assert np.array_equal(panel.collections[0].get_array().reshape(expected.shape), expected)


def test_bars_are_the_fractions_of_heads_and_lines_the_published_ones(full: Results) -> None:
    panel = aero_entropy.figure_3a(full).axes[0]
    widths = [bar.get_width() for bar in panel.patches if round(bar.get_y() + bar.get_height() / 2) == 0][:4]
    assert widths == pytest.approx(np.mean(list(full.quarters("sm-ln-g").values()), axis=0))
    sm_g = panels.TABLE_2_RUNS.index("sm-g")
    lines = {line.get_ydata()[0]: line.get_xdata()[0] for line in panel.lines if len(line.get_xdata())}
    assert lines[sm_g] == pytest.approx(1 - 0.58)  # Section 3.1: 58 % of the heads in the last quarter


def test_a_diverged_run_is_marked(full: Results) -> None:
    marked = {
        panel.get_title("left"): [one.get_text() for one in panel.texts] for panel in aero_entropy.figure_12(full).axes
    }
    assert marked["SM"] == ["NaN at 180"] and not marked["SM+LN+G"]


def test_a_figure_is_the_same_text_twice(everything: Results) -> None:
    first, second = (show.svg(aero_entropy.figure_10(everything), "thresholds <of> heads") for _ in range(2))
    assert first == second and 'aria-label="thresholds &lt;of&gt; heads"' in first
    assert "<metadata" not in first and "<style" not in first and "http" not in first.replace("http://www.w3.org", "")
