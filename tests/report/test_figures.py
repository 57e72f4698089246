"""Figures: drawn with and without results, the same text twice, and what they show is what the files hold."""

from __future__ import annotations

import re

import pytest
from matplotlib.figure import Figure

from aero.report import figures
from aero.report.drawing import spread, svg
from aero.report.results import Results

DRAWN = [
    figures.figure_1,
    figures.figure_3b,
    figures.figure_contradiction,
]
DVC = """
stages:
  tokenize: {cmd: x, deps: [aero/data], outs: [runs/tokens]}
  train:
    matrix: {run: "${names}", seed: [1, 2]}
    cmd: x
    deps: [runs/tokens]
    outs: [{"runs/${item.run}/seed_${item.seed}/metrics.json": {cache: false}}]
  entropy:
    foreach: [a, b, c]
    do: {cmd: x, deps: ["runs/${item}/seed_1/metrics.json"], outs: ["runs/${item}/seed_1/entropy.json"]}
  ops: {cmd: x, deps: [aero/two_party], outs: [runs/two_party/ops.csv]}
  report: {cmd: x, deps: [runs, aero/report], outs: [reports/report.html]}
"""


def texts(figure: Figure) -> list[str]:
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("draw", DRAWN, ids=lambda f: f.__name__)
def test_the_same_results_give_the_same_svg(draw: object, full: Results) -> None:
    first, second = svg(draw(full), "a title"), svg(draw(full), "a title")
    assert first == second and first.startswith("<svg ") and 'aria-label="a title"' in first
    assert "<style" not in first and "<metadata" not in first and not re.search(r"20\d\d-\d\d-\d\d", first)


@pytest.mark.parametrize("draw", DRAWN[:-1], ids=lambda f: f.__name__)
def test_a_figure_without_results_says_so(draw: object, empty: Results) -> None:
    said = " ".join(texts(draw(empty))).replace("\n", " ")
    assert "not measured yet" in said or "no evaluation curves yet" in said


def test_figure_1_labels_published_and_measured_bars(full: Results) -> None:
    said = texts(figures.figure_1(full))
    assert {"25.32", "15.30", "6.12", "8.21"} <= set(said)


def test_figure_3b_marks_a_run_that_became_not_finite(full: Results) -> None:
    assert "SM (NaN at 180)" in texts(figures.figure_3b(full))


def test_a_formula_at_an_axis_is_no_formula_of_the_page() -> None:
    figure = Figure()
    figure.subplots().set_yscale("log")
    assert "$" not in svg(figure, "logarithmic") and "<!--" not in svg(figure, "logarithmic")


def test_labels_are_spread_without_overlap_and_in_order() -> None:
    placed = spread([1.0, 1.01, 1.02, 5.0], 0.5)
    assert placed == sorted(placed) and min(b - a for a, b in zip(placed, placed[1:], strict=False)) >= 0.5 - 1e-9
    assert placed[3] == 5.0 and sum(placed[:3]) / 3 == pytest.approx(1.01)
