"""Figures: drawn with and without results, the same text twice, and what they show is what the files hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_results import PROJECT
from matplotlib.figure import Figure

from aero.report import figures, pareto, pipeline
from aero.report.drawing import spread, svg
from aero.report.results import Results, load

DRAWN = [
    figures.figure_1,
    figures.figure_3b,
    pareto.figure_pareto,
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


def test_the_front_is_of_runs_in_the_common_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a learning rate of its own is no SM+LN+G beside the others, though it is one by its architecture."""
    kept = load(PROJECT)
    drawn: list[pareto.Point] = []
    monkeypatch.setattr(pareto, "draw", lambda found, *_: drawn.extend(found))
    pareto.figure_pareto(kept)
    hot = kept.parameters["runs"]["core-softmax-hot"]
    assert hot["overrides"] and kept.perplexity("core-softmax-hot") and hot["architecture"] == "SM+LN+G"
    assert {point.run for point in drawn} >= {"sm-ln-g", "sm-scfuffn"}
    assert not [point.run for point in drawn if kept.parameters["runs"][point.run].get("overrides")]


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


def test_the_pipeline_is_read_from_dvc_yaml(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(DVC, encoding="utf-8")
    (tmp_path / "params.yaml").write_text("names: [a, b, c]\n", encoding="utf-8")
    found = pipeline.stages(tmp_path)
    assert {s.name: s.copies for s in found} == {"tokenize": 1, "train": 6, "entropy": 3, "ops": 1, "report": 1}
    arrows = pipeline.edges(found)
    assert set(arrows) == {
        ("tokenize", "train"),
        ("tokenize", "report"),
        ("train", "entropy"),
        ("train", "report"),
        ("entropy", "report"),
        ("ops", "report"),
    }
    assert pipeline.columns(found, arrows) == {"tokenize": 0, "train": 1, "entropy": 2, "ops": 2, "report": 3}
    said = texts(pipeline.figure_pipeline(tmp_path))
    assert "train\n× 6" in said and "report" in said


def test_stages_of_one_module_are_one_box(tmp_path: Path) -> None:
    made = "cmd: python -m stages.tokenize_corpus"
    text = f"stages:\n  first: {{{made}, outs: [a]}}\n  second: {{{made} --corpus x, outs: [b]}}\n"
    text += "  reader: {cmd: python -m stages.report, deps: [b]}\n"
    (tmp_path / "dvc.yaml").write_text(text, encoding="utf-8")
    found = pipeline.stages(tmp_path)
    assert [(stage.name, stage.copies, stage.writes) for stage in found] == [
        ("first", 2, ("a", "b")),
        ("reader", 1, ()),
    ]
    assert pipeline.edges(found) == [("first", "reader")]


def test_no_dvc_yaml_is_no_crash(tmp_path: Path) -> None:
    assert texts(pipeline.figure_pipeline(tmp_path)) == ["no dvc.yaml here"]
    (tmp_path / "dvc.yaml").write_text("stages: 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no mapping called stages"):
        pipeline.stages(tmp_path)


def test_an_arrow_that_passes_a_column_gets_a_way_without_crossings() -> None:
    place = {"a": 0, "b": 1, "c": 1, "d": 2}
    at, ways = pipeline.arrangement(place, [("a", "d"), ("b", "d"), ("c", "d")])
    assert ways == {("a", "d"): ["a>d@1"], ("b", "d"): [], ("c", "d"): []}
    assert sorted((at["a>d@1"], at["b"], at["c"])) == [-1.0, 0.0, 1.0] and at["a>d@1"] == 0.0
