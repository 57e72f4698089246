"""The figure of memory against context length: what it shows is what the file holds, and a missing file is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aero.report import entropy_memory
from aero.report.drawing import svg
from aero.report.results import Results
from benchmarks import entropy_memory as benchmark

LINES = [{"way": "matrix", "context": t, "peak_bytes": t * t * 10} for t in (256, 512, 1024)]
LINES += [{"way": "kept", "context": t, "peak_bytes": t * t * 6} for t in (256, 512, 1024)]
LINES += [{"way": "blocks", "context": t, "peak_bytes": t * 3000} for t in (256, 512, 1024, 2048)]
MADE = {
    "heads": 4,
    "width": 64,
    "rows_of_a_block": 64,
    "matrix_up_to": 256,
    "kept_up_to": 512,
    "memory": LINES,
    "growth": {"matrix": 2.0, "kept": 1.9, "blocks": 1.0},
    "errors": [
        {"context": t, "matrix_values": 1e-6, "matrix_gradients": 2e-6, "blocks_values": 3e-6, "blocks_gradients": 4e-6}
        | {"kept_values": 5e-6, "kept_gradients": 6e-6}
        for t in (256, 4096)
    ],
    "seconds": [
        {"shape": shape, "context": t, "blocks_over_matrix": 600 / t, "kept_over_matrix": 300 / t}
        for shape in ("GPT-2, batch 2", "laptop scale, batch 16")
        for t in (256, 1024)
    ],
    "provenance": {"machine": "a <machine>", "torch": "2", "commit": "0123456789abcdef"},
}


@pytest.fixture
def measured(tmp_path: Path, empty: Results) -> Results:
    path = tmp_path / entropy_memory.FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(MADE))
    return replace(empty, root=tmp_path)


def test_the_figure_and_its_caption_show_the_file(measured: Results) -> None:
    figure = entropy_memory.figure_entropy_memory(measured)
    left, right = figure.axes
    assert [tuple(line.get_ydata()) for line in left.lines] == [
        tuple(t * t * 1e-5 for t in (256, 512, 1024)),
        (),
        pytest.approx(tuple(t * t * 6e-6 for t in (256, 512, 1024))),
        (),
        pytest.approx(tuple(t * 3e-3 for t in (256, 512, 1024, 2048))),
        (),
    ]
    ratios = [list(line.get_ydata()) for line in right.lines if len(line.get_ydata()) == 2]
    assert ratios[:2] == [[300 / 256, 300 / 1024], [600 / 256, 600 / 1024]]
    text = str(entropy_memory.entropy_memory(measured))
    assert "T<sup>2.00</sup>, T<sup>1.90</sup> and T<sup>1.00</sup>" in text
    assert (
        "1.0e-06, 5.0e-06 and 3.0e-06 for outputs" in text
        and "up to T=256, on a CPU kept" in text
        and "a &lt;machine&gt;" in text
    )
    assert svg(figure, "t") == svg(entropy_memory.figure_entropy_memory(measured), "t")


def test_the_caption_says_which_way_the_trainings_took(measured: Results, full: Results) -> None:
    """The made trainings have 64 positions; with one of 257, and with one beyond the kept blocks too."""
    assert "The trainings shown here" not in str(entropy_memory.entropy_memory(measured))
    short = replace(measured, runs=full.runs, scale=full.scale)
    said = str(entropy_memory.entropy_memory(short))
    assert "have up to T=64 positions: on a CPU all have their entropies from the matrix" in said
    (first, *others) = full.seeds("sm")
    count = sum(len(runs) for (scale, _), runs in full.runs.items() if scale == full.scale)
    for context, took in ((256, None), (257, 0), (512, 0), (513, 1)):
        longer = replace(first, metrics={**first.metrics, "model": {"context": context}})
        changed = replace(short, runs={**full.runs, (full.scale, "sm"): (longer, *others)})
        said = str(entropy_memory.entropy_memory(changed))
        assert f"up to T={context} positions" in said
        assert ("all have their entropies from the matrix" in said) == (took is None)
        assert (f"on a CPU {took} of {count} have them from the way whose memory grows as T." in said) == (
            took is not None
        )


def test_without_the_file_it_says_so(empty: Results) -> None:
    figure = entropy_memory.figure_entropy_memory(empty)
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["not measured yet"] * 2


def test_growth_is_the_exponent_of_the_last_doubling() -> None:
    assert benchmark.growth(LINES, "matrix") == pytest.approx(2.0)
    assert benchmark.growth(LINES, "blocks") == pytest.approx(1.0)


def test_both_ways_of_the_benchmark_give_the_same() -> None:
    line = benchmark.errors(100)
    assert all(0 < line[key] < 1e-5 for key in line if key != "context")
