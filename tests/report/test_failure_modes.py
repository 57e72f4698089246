"""The failure modes: quarters and spans by hand, and what the table says of seeds, steps and layers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import made_results
import pytest

from aero.report import failure_modes
from aero.report.failure_modes import divergence, figure_failures, in_layers, section, since, spans, table_failures
from aero.report.results import Results, load

BOUND = math.lgamma(65) / 64


def with_log(root: Path, run: str, rows: dict[int, list[float | None]], **metrics: object) -> Results:
    """A project with one training whose log has these entropies, as fractions of the causal bound, by step."""
    made_results.project(root, runs=(), costs=False)
    folder = root / "results/laptop" / run
    made_results.write_run(folder, run, 1337)
    layers = len(next(iter(rows.values())))
    with (folder / "log.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "train_loss", "eval_loss", *(f"entropy_layer_{i}" for i in range(layers))])
        for step, values in rows.items():
            writer.writerow([step, "", "", "", *("" if v is None else v * BOUND for v in values)])
    values = json.loads((folder / "metrics.json").read_text()) | metrics
    (folder / "metrics.json").write_text(json.dumps(values))
    return load(root)


def test_since_is_the_last_stretch_without_a_break(tmp_path: Path) -> None:
    rows = {
        1: [0.9, 0.9, 0.9, 0.9, 0.2],
        5: [None, None, None, None, None],  # a step that logged no entropy
        10: [0.8, 0.5, 0.7, 0.9, 0.2],
        20: [0.76, 0.8, 0.9, 0.9, None],
        30: [0.75, 0.8, 0.6, 0.24, 0.1],
    }
    run = with_log(tmp_path, "sm-g", rows).first("sm-g")
    assert since(run, "top") == {0: 1, 1: 20}
    assert since(run, "bottom") == {3: 30, 4: 1}
    assert in_layers(run, "top") == "1 from the start; 2 since step 20"
    assert in_layers(run, "bottom") == "5 from the start; 4 since step 30"


def test_spans_by_hand() -> None:
    assert spans([]) == "" and spans([2]) == "3"
    assert spans([0, 1, 2, 5, 7, 8]) == "1–3, 6, 8–9"


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({}, "no"),
        ({"float16_overflow": {"step": 40, "layer": 10, "value": 7e4}}, "no; beyond float16 at step 40, layer 11"),
        (
            {"diverged_at_step": 7, "first_nonfinite": {"step": 7, "layer": 11, "where": "block output"}},
            "step 7, layer 12",
        ),
        (
            {"diverged_at_step": 7, "first_nonfinite": {"step": 7, "layer": None, "where": "gradient"}},
            "step 7, gradient",
        ),
    ],
)
def test_where_a_run_diverged(tmp_path: Path, metrics: dict[str, object], text: str) -> None:
    assert divergence(with_log(tmp_path, "sm", {1: [0.5]}, **metrics).first("sm")) == text


def test_the_table_counts_seeds_at_every_scale(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm", "sm-ln-g", "sm-g"), costs=False)  # every seed of sm diverges
    made_results.write_run(root / "results/gpu/sm", "sm", 1337, "gpu", diverged_at=90)
    made_results.write_run(root / "results/gpu/sm/seed_1338", "sm", 1338, "gpu")
    results = load(root)
    text = table_failures(results).text.replace('<span class="mark">○</span>', "")
    lines = text.split("<tr>")
    gpu = next(line for line in lines if ">1 of 2<" in line)
    assert "1337: step 90, layer 12" in gpu and "1338: no" in gpu and "results/gpu/sm/metrics.json" in gpu
    assert any(">3 of 3<" in line and "1339: step 180, layer 12" in line for line in lines)
    assert any(">0 of 3<" in line and "SM+<wbr>G" in line for line in lines)
    assert "not run yet" in text and "docs/gpu.md" in text
    # The made overload of sm-g is that of its own file.
    fraction = results.first("sm-g").entropy.overload["fraction"]
    assert f"{fraction:.0%}" in text


def test_the_figure_has_a_panel_a_failure_and_scale(tmp_path: Path, full: Results, empty: Results) -> None:
    root = made_results.project(tmp_path, runs=("sm", "sm-g"), costs=False)
    made_results.write_run(root / "results/gpu/sm", "sm", 1337, "gpu", diverged_at=90)
    figure = figure_failures(load(root))
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:6] == [
        "SM, gpu (NaN at 90)",
        "SM+ScFuFFNi_7, gpu",
        "SM+G, gpu",
        "SM, laptop (NaN at 180)",
        "SM+ScFuFFNi_7, laptop",
        "SM+G, laptop",
    ]
    assert len(figure_failures(full).axes) == 4 and len(figure_failures(empty).axes) == 3
    assert 'id="failure-modes"' in section(full).text and "figure-failures" in section(full).text
    assert failure_modes.RUNS == ("sm", "sm-ln-g", "sm-scfuffni-7", "sm-scfuffni-6", "sm-g")
