"""The section on speed: what it shows is what results/bench holds, gaps are said, projections follow by hand."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aero.config import load
from aero.report import (
    bench,
    bench_figures,
    bench_page,
    bench_projected,
    bench_projections,
    bench_training,
    bench_two_party,
)
from aero.report.drawing import svg
from aero.report.marks import gap
from aero.report.results import Results
from aero.training import catalogue
from stages.configurations import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
MADE = {"machine": "a <machine>", "torch": "2", "commit": "0123456789abcdef"}


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median}


STEPS = [
    {"width": width, "context": context, "vocabulary": 1024, "ratio": spread(ratio), "passes_ratio": spread(1.7)}
    for width, context, ratio in ((128, 128, 1.51), (768, 512, 1.21))
]
ROWS = [
    {
        "width": width,
        "architecture": "SM+R",
        "flops_ratio": 2.0,
        "speedup": spread(1.6),
        "speedup_over_flops": 0.8,
    }
    for width in (128, 768)
]
AT_ONCE = {"ratio_as_it_comes": spread(2.2), "allocator_gain": spread(1.23)}
"""What files of training steps hold since both sides keep freed memory."""
REGULARIZED = [
    {
        "width": 768,
        "context": context,
        "ratio": spread(ratio),
        "overhead": spread(0.1),
        "peak_bytes": {"aero": 4e8, "authors": 1e9, "plain": 3e8},
        "memory_ratio": 0.4,
    }
    for context, ratio in ((128, 1.2), (512, 3.0))
]
PARTS = {
    "linear layers": {"bytes": 2e9, "seconds": 600.0},
    "softmax": {"bytes": 3e9, "seconds": 60.0},
}
TWO_PARTY = {
    "rows": [
        {
            "architecture": name,
            "program": program,
            "parts": PARTS,
        }
        for name in bench_two_party.SHOWN_ROWS
        for program in ("as_written", "tuned")
    ],
    "resources": [
        {
            "architecture": name,
            "program": program,
            "seconds": {
                "he": {"mean": 300.0, "low": 290.0, "high": 310.0},
                "ot": {"mean": 100.0, "low": 90.0, "high": 110.0},
                "local": {"mean": 60.0, "low": 60.0, "high": 60.0},
                "other": {"mean": 40.0, "low": 40.0, "high": 40.0},
            },
            "bytes": {"he": 7e9, "ot": 2e9},
            "links": {"wan": {"bandwidth": 400.0, "round trips": 100.0}},
        }
        for name in ("SM+LN+G", "SM+ScFuFFN", "SM+LN+R")
        for program in ("as_written", "tuned")
    ],
    "growth": [
        {
            "axis": axis,
            "kind": "linear",
            "expected_bytes": 1.0,
            "expected_seconds": 2.0,
            "bytes_exponent": 1.04,
            "seconds_exponent": 1.96,
            "points": [
                {"size": s, "bytes": s * 1e3, "seconds": s * s * 1e-3, "runs": runs if axis == "T" else 3}
                for s, runs in ((128, 1), (256, 3), (512, 1))
            ],
        }
        for axis in ("T", "d")
    ],
    "depth": [
        {
            "program": "tuned",
            "bytes_exponent": 0.97,
            "seconds_exponent": 0.9,
            "points": [{"size": layers, "bytes": layers * 1e9, "seconds": layers * 60.0} for layers in (6, 12, 18)],
        }
    ],
    "networks": {"wan": {"bandwidth_mbit": 100, "rtt_ms": 80}},
    "scaling": {"linear layers": {"bytes": "L d", "seconds": "L d^2"}, "softmax": {"bytes": "L H", "seconds": "L H"}},
    "models": [
        {
            "model": model,
            "parameters": 6.97e9,
            "layers": 1,
            "heads": 1,
            "width": 64,
            "vocabulary": 100,
            "architecture": name,
            "program": program,
            "bytes": 7e9,
            "seconds": 3600.0,
            "wan_seconds": 7200.0,
        }
        for name in bench_projected.SHOWN_MODELS
        for program in ("as_written", "tuned")
        for model in ("125M", "8B")
    ],
}
FILES = {
    "training_step": {"tokens": 1024, "threads": 2, "repeats": 7, "steps": STEPS, "rows": ROWS},
    "regularized_step": {"threads": 2, "repeats": 7, "gamma": 0.2, "steps": REGULARIZED},
    "tokenizing": {
        "vocabularies": [
            {
                "vocabulary": 50257,
                "seconds_exponent": 1.01,
                "memory_exponent": 0.02,
                "sizes": [
                    {"bytes": size, "mb_per_cpu_second": spread(12.5), "peak_bytes": peak}
                    for size, peak in ((3e7, 2e8), (13e7, 2.37e8))
                ],
            }
        ]
    },
    "two_party": TWO_PARTY,
    "two_party_growth_layers": {
        "sizes": {"width": 128, "context": 32, "vocabulary": 512, "passes": 1},
        "lines": [
            {
                "architecture": "SM+LN+G",
                "program": "tuned",
                "bytes_exponent": 0.93,
                "seconds_exponent": 0.87,
                "points": [
                    {
                        "size": layers,
                        "bytes": layers * 1.02e7,
                        "composed_bytes": layers * 1e7,
                        "seconds": layers * 2.5,
                        "composed_seconds": layers * 2.0,
                    }
                    for layers in (2, 4, 8)
                ],
            }
        ],
    },
    "pipeline": {
        "scale": "smoke",
        "stages": 600,
        "trainings": 14,
        "speedup_of_two_jobs": 1.77,
        "idle_repro_seconds": spread(6.1),
        "help_seconds": spread(0.08),
        "change": {"run": "sm-r", "then": ["train@sm-r-1337", "catalogue/dvc.yaml:train_again@sm-r-1338"]},
    },
}


FIGURES = (
    bench_figures.bench_training,
    bench_figures.bench_growth,
    bench_figures.bench_layers,
    bench_figures.bench_limits,
)


@pytest.fixture
def measured(tmp_path: Path, empty: Results) -> Results:
    folder = tmp_path / "results/bench"
    folder.mkdir(parents=True)
    for name, values in FILES.items():
        (folder / f"{name}.json").write_text(json.dumps({**values, "provenance": MADE}))
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    return replace(empty, root=tmp_path)


def test_the_section_shows_the_files(measured: Results) -> None:
    text = bench_page.section(measured).text
    for shown in (
        "1.70 (1.53–1.87)",
        "1 of 2 sizes",
        "0.40",
        "missed (1.5)",
        "met (2.5)",
        "met (0.5)",
        "12.5 (11.2–13.8)",
        "size<sup>0.02</sup>",
        ">0.37</a></span> byte more of it a byte of text, flat: missed",
        "size<sup>1.01</sup>, linear: met",
        "“8B” ",
        ">7.0B</a>",
        "1.77",
        "missed (5 s)",
        "train (1), train_again (1)",
        "0.08",
        "L<sup>0.97</sup>",
        ">7.0 GB; 1.00 h; 2.00 h</a>",
        ">0.080 USD</a>",  # two cores for an hour
        "* Seconds of one run each, of one point of the line at least; so are 2 of 6 points",
        ">+2.0 to +2.0 %</a>",
        ">+25.0 to +25.0 %</a>",
        "ciphertexts 58–62 %, 7.00 GB, transfers 18–22 %, 2.00 GB",
        "wan 100 Mbit/s and 80 ms",
        "wan: bandwidth for 6 of 6 rows and programs",
        "a &lt;machine&gt;",
        "not measured yet",  # the learning-rate sweep
    ):
        assert shown in text, shown


def test_files_from_before_both_sides_kept_memory_say_so(measured: Results) -> None:
    text = bench_page.section(measured).text
    assert "Here ours kept freed memory and transformers’ did not." in text
    assert "Here ours alone keeps freed memory." in text
    assert text.count("Transformers kept keys and values") == 2
    assert f"authors’ over plain: {gap()}" in text


def test_allocator_and_a_free_regulariser_come_from_the_files(measured: Results) -> None:
    folder = measured.root / "results/bench"
    steps = [step | AT_ONCE for step in STEPS]
    more = {"provenance": MADE, "allocator": "kept", "use_cache": False}
    (folder / "training_step.json").write_text(json.dumps(FILES["training_step"] | more | {"steps": steps}))
    free = {"plain_ratio": spread(1.55), "authors_over_transformers": spread(1.12)}
    steps = [step | free for step in REGULARIZED]
    (folder / "regularized_step.json").write_text(json.dumps(FILES["regularized_step"] | more | {"steps": steps}))
    text = bench_page.section(measured).text
    for shown in ("1.23 (1.11–1.35)", "ours reaches 1.3 at 2 sizes", "1.55 (1.40–1.71)", "1.12 (1.01–1.23)"):
        assert shown in text, shown
    assert "Here ours" not in text and "kept keys and values" not in text


def test_memory_is_flat_below_a_twentieth_of_a_byte_a_byte() -> None:
    sizes = [{"bytes": 3e7, "peak_bytes": 100e6}, {"bytes": 43e7, "peak_bytes": 119e6}]
    assert bench_page._memory_slope(sizes, "a file").endswith("flat: met")
    sizes[1]["peak_bytes"] = 121e6
    assert bench_page._memory_slope(sizes, "a file").endswith("flat: missed")


def test_a_changed_run_has_a_verdict_of_both_pipeline_files(measured: Results) -> None:
    text = bench_page.table_pipeline(measured).text
    own, catalogue = text[text.index("outdated in dvc.yaml") :].split("and in the catalogue")
    assert "met (only what depends on it)" in own
    assert gap() in catalogue and "only what depends on it" not in catalogue  # a file from before it was measured
    assert bench_page._beyond("sm-r", ["train@sm-r-1337", "train@sm-r-i1-1337", "report"]) == 1
    for then, shown, verdict in (
        ([], "none", "met"),
        (["catalogue/dvc.yaml:train_again@sm-r-2"], "train_again (1)", "met"),
        (["catalogue/dvc.yaml:two_party_all"], "two_party_all (1)", "missed"),
    ):
        change = FILES["pipeline"]["change"] | {"catalogue": {"before": [], "then": then}}
        made = FILES["pipeline"] | {"change": change, "provenance": MADE}
        (measured.root / "results/bench/pipeline.json").write_text(json.dumps(made))
        catalogue = bench_page.table_pipeline(measured).text.split("and in the catalogue")[1]
        assert shown in catalogue and f"{verdict} (only what depends on it)" in catalogue


def test_a_changed_learning_rate_changes_the_settings_of_the_report_alone() -> None:
    """Of all that stages take from params.yaml beside a run's own configuration."""
    before = load(ROOT / "params.yaml")
    run = before.runs["sm-r"].model_copy(update={"overrides": {"learning_rate": 2e-3}})
    after = before.model_copy(update={"runs": {**before.runs, "sm-r": run}})
    regularizer = before.regularizer.model_copy(update={"temperature_init": 0.5, "threshold_init": 0.25})
    first_weights = after.model_copy(update={"regularizer": regularizer})
    architecture = before.runs["sm-scfuffn"].model_copy(update={"architecture": "SM+G"})
    other = before.model_copy(update={"runs": {**before.runs, "sm-scfuffn": architecture}})
    for scale in ("laptop", "smoke"):  # costs at the papers' sizes, and at the scale's own
        assert before.at_scale(scale).active.two_party == ("own" if scale == "smoke" else "gpt2")
        one, changed = before.at_scale(scale), after.at_scale(scale)
        assert [name for name, of in SETTINGS.items() if of(one) != of(changed)] == ["report"]
        of_costs = SETTINGS["two_party_all"]
        assert of_costs(one) == of_costs(first_weights.at_scale(scale)) != of_costs(other.at_scale(scale))


def test_pairs_of_jobs_and_a_plain_repro_are_shown_where_they_were_measured(measured: Results) -> None:
    old = bench_page.table_pipeline(measured).text
    assert "one pair, the one job first" in old and "missed (5 s)" in old and gap() in old
    more = {"two_jobs_over_one": spread(1.6), "pairs": 3, "plain_repro_seconds": spread(20.0), "further_stages": 588}
    more["idle_repro_with_catalogue_seconds"] = spread(7.0)
    apart = {"catalogue": {"before": [], "then": []}, "provenance": MADE | {"commit": "abcdef0123"}}
    more["change"] = FILES["pipeline"]["change"] | apart
    made = FILES["pipeline"] | more | {"provenance": MADE}
    (measured.root / "results/bench/pipeline.json").write_text(json.dumps(made))
    text = bench_page.table_pipeline(measured).text
    for shown in (
        "1.60 (1.44–1.76)",
        "3 pairs",
        "20.0 (18.0–22.0)",
        "588 stages too",
        "7.0 (6.3–7.7)",
        "commit abcdef0123",
    ):
        assert shown in text, shown
    assert gap() not in text


def test_the_target_of_the_sweep_is_that_of_its_own_batch(measured: Results) -> None:
    lines = [{"core": "relu", "threads": 1, "batch": batch, "ratio": ratio} for batch, ratio in ((1, 38.0), (16, 5.5))]
    values = {"models": 95, "lines": lines, "provenance": MADE}
    (measured.root / "results/bench/sensitivity.json").write_text(json.dumps(values))
    text = bench_page.table_sensitivity(measured).text
    assert "38.0" in text and "with here: not met" in text and "5.5</a></span> missed" in text
    values["floors"] = [{"batch": b, "threads": t, "floor_ratio": r} for b, t, r in ((16, 1, 9.7), (16, 2, 8.8))]
    one = {"core": "relu", "processes": 2, "ratio_one_core": 11.3, "ratio_every_core": 5.6}
    values["split"] = [one | {"batch": 16}, one | {"batch": 4, "ratio_one_core": 99.0}]
    (measured.root / "results/bench/sensitivity.json").write_text(json.dumps(values))
    text = re.sub("<[^>]+>", "", bench_page.table_sensitivity(measured).text)
    assert "alone would allow ●9.7 there" in text and "relu ●11.3 (●5.6)." in text
    assert "8.8" not in text and "99.0" not in text


def test_kept_seconds_say_their_runs_and_days(measured: Results) -> None:
    assert "is not here" in bench.kept_seconds(measured.root, bench.OPERATIONS)
    assert bench.kept_kinds(measured.root) == set()
    assert "43 of 3 runs, 2 of 5 runs, measured 20" in bench.kept_seconds(ROOT, bench.OPERATIONS)
    assert "gelu_plain" in bench.kept_kinds(ROOT)


def test_a_fitted_power_makes_a_range_of_hours_by_hand() -> None:
    found = {
        "growth": [
            {"axis": "d", "kind": "linear", "seconds_exponent": 1.9},
            {"axis": "d", "kind": "lattice_linear", "seconds_exponent": 1.5},
        ],
        "rows": [{"architecture": "SM", "program": "tuned", "parts": PARTS}],
        "models": [{"layers": 12, "width": 768}],
    }
    large = {"architecture": "SM", "program": "tuned", "layers": 24, "width": 4 * 768}
    assert bench_projections.fitted_seconds_less(found, large) == pytest.approx(600 * 2 * (16 - 8))
    # Products with the server's matrices are another operation as written.
    assert bench_projections.fitted_power(found, "as_written") == 1.9
    assert bench_projections.fitted_seconds_less(found | {"growth": found["growth"][:1]}, large) == 0
    assert bench_projected._hours(3600.0, 7200.0) == "1.00–2.00 h"
    assert bench_projected._hours(3600.0, 3600.0) == "1.00 h"


def test_a_free_regulariser_without_its_own_ratio_is_that_of_medians() -> None:
    step = {"seconds": {"authors": spread(0.3), "plain": spread(0.2)}}
    text = bench_training._without(step, "smaller_scale", "a file")
    assert "1.50" in text and f"products alone: {gap()}<br>with single kernels: {gap()}" in text
    bounds = {"products_ratio": spread(2.4), "kernels_ratio": spread(1.8)}
    text = bench_training._without(step | bounds, "smaller_scale", "a file")
    assert text.index("products alone: <span") < text.index("2.40") < text.index("single kernels: <span")
    assert text.index("single kernels: <span") < text.index("1.80")


def test_fused_rows_are_held_against_the_flops_they_save() -> None:
    saving = ROWS[0] | {"speedup_of_passes": spread(1.7)}
    text = bench_training._in_proportion([saving, ROWS[1] | {"flops_ratio": 1.0}])
    assert "0.80" in text and f"(0.85, at most {gap()}) missed" in text and "d=768" not in text
    text = bench_training._in_proportion([saving | {"products_speedup": spread(1.8)}])
    assert f"(0.85, 0.90, at most {gap()}) missed" in text
    assert "not measured yet" in gap()


def test_the_bound_of_a_fused_row_is_shown_with_its_range() -> None:
    """It has been divided by the ratio of FLOPs in the file; the others have not."""
    row = ROWS[0] | {"products_speedup": spread(1.8), "kernels_bound": spread(0.95)}
    text = bench_training._in_proportion([row])
    shown = re.sub("<[^>]*>|○", "", text)
    assert "(0.90, at most 0.95 (0.85–1.04)) missed" in shown and gap() not in text


def test_the_kept_rows_have_a_bound_or_say_that_it_is_not_measured() -> None:
    found = bench.read(ROOT, "training_step")
    text = bench_training._in_proportion(found["rows"])
    saving = [row for row in found["rows"] if row["flops_ratio"] > 1]
    assert text.count("at most ") == len(saving) > 0
    assert text.count(gap()) == sum("kernels_bound" not in row for row in saving)


def test_the_regularised_floor_names_what_multiplies_in_attention(measured: Results) -> None:
    text = bench_training.regularized(measured).text
    assert "as these kernels could be, with PyTorch’s own bmm in attention, if norms" in text
    values = FILES["regularized_step"] | {"attention_products": ["bmm", "oneDNN"], "provenance": MADE}
    (measured.root / "results/bench/regularized_step.json").write_text(json.dumps(values))
    assert "with the faster of bmm and oneDNN in attention" in bench_training.regularized(measured).text


def test_figures_draw_what_the_files_hold(measured: Results) -> None:
    left, right = bench_figures.bench_training(measured).axes
    assert [text.get_text() for text in left.texts if text.get_text() != "target"] == ["1.51", "1.21"]
    assert [list(line.get_xdata()) for line in right.lines if line.get_marker() in "os"] == [[2.0], [2.0]]
    growth = bench_figures.bench_growth(measured)
    assert [text.get_text() for text in growth.axes[1].texts] == ["linear layer 1.96*"]  # some sizes were run once
    assert [text.get_text() for text in growth.axes[3].texts] == ["linear layer 1.96"]
    titles = [panel.get_title(loc="left") for panel in growth.axes[4:]]
    assert titles == ["bytes against L, composed", "seconds against L, composed"]
    layers = bench_figures.bench_layers(measured)
    assert [panel.get_title(loc="left") for panel in layers.axes] == ["bytes (MB), measured", "seconds (s), measured"]
    composed, passes = layers.axes[0].lines
    assert list(composed.get_ydata()) == [20.0, 40.0, 80.0] and passes.get_linestyle() == "None"
    assert list(passes.get_ydata()) == pytest.approx([20.4, 40.8, 81.6])
    assert [text.get_text() for text in growth.axes[4].texts] == ["tuned 0.97"]
    assert [list(line.get_ydata()) for line in growth.axes[5].lines] == [[1.0, 2.0, 3.0]] * 2  # expected and composed
    limits = bench_figures.bench_limits(measured)
    shares = [bar.get_width() for bar in limits.axes[0].patches]
    assert shares == pytest.approx(
        [30, 10, 10, 40, 10] * 4
    )  # of 1,000 s, in the order of RESOURCES; two rows are drawn
    for function in FIGURES:
        assert svg(function(measured), "t") == svg(function(measured), "t")


def test_seconds_below_their_order_are_said_with_what_packing_tells() -> None:
    line = TWO_PARTY["growth"][0] | {"kind": "scores", "seconds_exponent": 1.22}
    told = bench_two_party._below_order({"growth": [line, line | {"kind": "relu"}, line | {"seconds_exponent": 1.8}]})
    # From 128 to 512 positions: 128 and 2,048 products, 128 and 512 automorphisms.
    assert (
        told.count("expected 2, 2 of 3 sizes run once") == 2
        and "Q Kᵀ against T 16 and 4; ReLU against T not explained." in told
    )
    assert bench_two_party._below_order({"growth": [line | {"seconds_exponent": 1.8}]}) == ""
    kinds = {line["kind"] for line in bench.read(ROOT, "two_party")["growth"]}
    assert {kind for _, kind in bench_two_party.PRODUCTS} <= kinds


def test_an_outlier_does_not_stretch_the_figure_and_is_marked(measured: Results) -> None:
    wild = {"median": 1.6, "low": 0.5, "high": 9.0}
    steps = [STEPS[0], STEPS[1] | {"ratio": wild}]
    rows = [ROWS[0], ROWS[1] | {"speedup": wild}]
    made = FILES["training_step"] | {"steps": steps, "rows": rows, "provenance": MADE}
    (measured.root / "results/bench/training_step.json").write_text(json.dumps(made))
    left, right = bench_figures.bench_training(measured).axes
    assert left.get_xlim()[0] < 0.5 and left.get_xlim()[1] < 3 and right.get_ylim()[1] < 3
    for panel, marker, place in ((left, ">", 0), (right, "^", 1)):
        cut = [line.get_xydata()[0][place] for line in panel.lines if line.get_marker() == marker]
        assert cut == [pytest.approx(1.5 * 1.6)]


def test_without_files_every_part_says_so(empty: Results) -> None:
    text = bench_page.section(empty).text
    assert text.count("not measured yet") >= 8
    for function in FIGURES:
        assert all(axes.texts[0].get_text() == "not measured yet" for axes in function(empty).axes)


def test_eight_devices_take_the_longest_first_by_hand() -> None:
    assert bench_projections.on_several([5.0, 4.0, 3.0, 3.0, 3.0], 2) == 10.0
    assert bench_projections.on_several([7.0, 1.0, 1.0], 8) == 7.0


def test_all_trainings_of_the_papers_by_hand() -> None:
    parameters = load(ROOT / "params.yaml")
    there = parameters.at_scale("paper")
    made = bench_projections.training(parameters, "A100")
    seconds = sum(catalogue.training_flops(there, run) for run, _ in there.trainings()) / (0.3 * 312e12)
    assert made.trainings == 367 and made.hours == pytest.approx(seconds / 3600)
    assert made.hours / 8 <= made.hours_of_eight <= made.hours / 8 + made.longest
    assert made.cost == pytest.approx(made.hours * parameters.devices["A100"].usd_per_hour)
    assert made.cost_of_eight == pytest.approx(8 * made.hours_of_eight * parameters.devices["A100"].usd_per_hour)
    faster = bench_projections.training(parameters, "A100", 2 * 0.3 * 312e12, "a file")
    assert faster.hours == pytest.approx(made.hours / 2) and faster.speed_from == "a file"


GPU = {
    "tiny": False,
    "steps": [
        {
            "architecture": "SM+LN+G",
            "context": 128,
            "compiled": True,
            "tokens_per_step": 1000,
            "flops_per_step": 8e11,
            "tokens_per_second": 250_000.0,
        }
    ],
    "provenance": MADE | {"device": "NVIDIA H200"},
}


def test_a_measured_speed_counts_for_its_own_device_only() -> None:
    assert bench_projections.measured_speed(GPU, "H200") == pytest.approx(2e14)
    assert bench_projections.measured_speed(GPU, "A100") is None
    assert bench_projections.measured_speed(None, "H200") is None


@pytest.mark.parametrize("tiny", [False, True])
def test_gpu_steps_make_the_projection_unless_measured_in_small(measured: Results, tiny: bool) -> None:
    (measured.root / "results/bench/gpu.json").write_text(json.dumps(GPU | {"tiny": tiny}))
    text = bench_page.section(measured).text
    from_file = re.search(r'>200 T<.*?<br><span class="where">results/bench/gpu.json</span>', text)
    assert bool(from_file) is not tiny and ("results/bench/gpu.json" in text) is not tiny
    assert "bench-gpu" not in text  # the GPU's tables are those of aero.report.gpu_speed


def test_kept_figures_of_two_parties_are_those_of_the_kept_measurements() -> None:
    """`benchmarks.two_party` computes them from other files of results: run it again whenever one of them changes."""
    sources = json.loads((ROOT / "results/bench/two_party.json").read_text(encoding="utf-8"))["sources"]
    assert {"results/two_party/ops.csv", "results/two_party/all_ops.csv"} <= sources.keys()
    for name, digest in sources.items():
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest, (
            f"{name}: python -m benchmarks.two_party"
        )
