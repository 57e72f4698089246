"""The section on `variance_sensitivity`: read from its files, gaps where they are missing, verdicts by their rules."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import re
import shutil
from operator import itemgetter

import made_results
import numpy as np
import pytest
import torch

from aero.attention_kernels import CORES
from aero.report import (
    claims,
    sensitivity,
    sensitivity_figures,
    sensitivity_models,
    sensitivity_page,
    sensitivity_search,
)
from aero.report.quantities.sensitivity import decades_of
from aero.report.results import load
from aero.sensitivity.conclusions import ORDER
from aero.sensitivity.search import STEPS, reasonable
from aero.sensitivity.setting import learning_rates

RATES = learning_rates()
VALUES = dict(zip(ORDER, (2.30, 2.20, 2.18, 1.97, 1.95, 1.14, 1.03), strict=True))


def losses_of(value: float, l0: float = 3.0) -> list[float]:
    """Final losses at the 19 rates with sensitivity `value`: the first at 0, the others alike, the last diverged."""
    rest = (19 * value - l0) / 17
    return [0.0, *[rest] * 17, float("inf")]


def write_sweep(folder, values=VALUES, scale="laptop", seeds=(0, 1, 2)):
    folder.mkdir(parents=True)
    lines = [
        {
            "core": core,
            "rate": f"{rate:g}",
            "seed": seed,
            "initial_loss": 3.0,
            "zero_loss": 3.0,
            "final_loss": "" if loss == float("inf") else loss,
            "diverged_at_step": 7 if loss == float("inf") else "",
        }
        for core, value in values.items()
        for seed in seeds
        for rate, loss in zip(RATES, losses_of(value + 0.001 * seed - 0.0005), strict=True)
    ]
    traces = [
        {
            "core": core,
            "seed": seed,
            "step": step,
            "loss": 1,
            "gradient_norm": 1,
            "entropy": entropy,
            "entropy_std": 0,
            "frobenius": 2,
        }
        for core, entropy in zip(VALUES, (0.1, 0.2, 0.1, 2.5, 2.6, 2.0, 2.2), strict=True)
        for seed in seeds
        for step in (0, 10)
    ]
    gains = [
        {"core": core, "seed": seed, "step": step, "layer": layer, "gain_q": gain, "gain_k": gain, "variance": 1}
        | {"entropy": entropy}
        for core, end, entropy in (
            ("qk_layernorm_free", 4, 0.5),
            ("qk_layernorm_gradient_clip", 3, 0.6),
            ("qk_layernorm_fixed", 1.7, 2),
            ("qk_layernorm", 1.7, 2),
        )
        for seed in seeds
        for step, gain in ((0, 1.7), (10, end))
        for layer in range(5)
    ]
    for name, rows in (("losses.csv", lines), ("traces.csv", traces), ("gains.csv", gains)):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        (folder / name).write_text(text.getvalue(), encoding="utf-8")
    setting = {"hidden": "x3+y", "residual": True, "readout": "slot", "init": "linear", "batch": 8, "data": "fresh"}
    about = {
        "scale": scale,
        "setting": setting | {"reduction": "mean", "steps": 1000, "window": 50, "initial": "measured"},
        "figure_rate": 0.05,
        "seconds": {},
        "provenance": {"commit": "c" * 40, "machine": "a machine"},
    }
    (folder / "sweep.json").write_text(json.dumps(about), encoding="utf-8")


def write_search(path, agreeing=14, others=2):
    """`agreeing` settings with the published sensitivities, `others` with those in reverse."""
    rows = []
    for number, setting in enumerate(reasonable()[: agreeing + others]):
        values = dict(VALUES) if number < agreeing else dict(zip(ORDER, reversed(VALUES.values()), strict=True))
        for core, value in (values | {"relu_performer": values["relu"]}).items():
            for steps in STEPS:
                named = {name: getattr(setting, name) for name in sensitivity_search.REASONABLE}
                losses = {f"{r:g}": v for r, v in zip(RATES, losses_of(value), strict=True)}
                row = {"number": number, **named, "core": core, "seed": number, "steps": steps}
                rows.append(row | {"initial_loss": 3.0, "zero_loss": 3.0, **losses})
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    root = made_results.project(tmp_path_factory.mktemp("sensitivity"), runs=(), costs=False)
    write_sweep(root / "results" / "sensitivity")
    write_search(root / "results" / "sensitivity" / "search.csv")
    return load(root)


def test_table_1_has_every_core_and_the_published_numbers(measured):
    text = sensitivity.table_1(measured).text
    assert all(core.title in text for core in CORES.values())
    rows = list(csv.DictReader(io.StringIO(sensitivity.table_1_csv(measured))))
    alone = [row for row in rows if row["column"] == "sensitivity of each seed"]
    rows = [row for row in rows if row["column"] == "sensitivity"]
    assert [row["row"] for row in alone] == [row["row"] for row in rows]
    assert [row["row"] for row in rows[:7]] == [CORES[core].title for core in ORDER] and len(rows) == len(CORES)
    assert [row["published"] for row in rows[:7]] == ["2.30", "2.20", "2.18", "1.97", "1.95", "1.14", "1.03"]
    assert all(float(row["measured"]) == pytest.approx(float(row["published"]) + 0.0005) for row in rows[:7])
    assert float(rows[0]["ci_low"]) < 2.3005 < float(rows[0]["ci_high"]) and rows[0]["seeds"] == "3"
    assert rows[-1]["measured"] == "" and rows[-1]["note"]


def test_a_core_that_was_not_swept_is_a_gap_in_the_table(measured, monkeypatch):
    monkeypatch.setitem(CORES, "other", CORES["softmax"].__class__("Another Core", CORES["softmax"].probabilities))
    text = sensitivity.table_1(measured).text
    assert re.search(r"<td[^>]*>Another Core</td>.*?</tr>", text, re.DOTALL).group().count("not measured yet") == 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The kept sweep and search, without anything that was trained here since."""
    root = made_results.project(tmp_path_factory.mktemp("kept"), runs=(), costs=False)
    shutil.copytree(made_results.PROJECT / "results" / "sensitivity", root / "results" / "sensitivity")
    return load(root)


def column(results, file, of, **where):
    """`of` each line of a kept file, nan where empty, of the lines with the given values."""
    chosen = [
        line
        for line in sensitivity.read(results.root / "results" / "sensitivity" / file)
        if all(line[key] == str(value) for key, value in where.items())
    ]
    assert chosen
    return np.array([of({key: float(line[key] or "nan") for key in ("step", *NUMBERS[file])}) for line in chosen])


NUMBERS = {
    "traces.csv": ("loss", "gradient_norm", "entropy", "frobenius"),
    "gains.csv": ("gain_q", "gain_k", "variance", "entropy"),
}
BEHAVIOURS = {
    sensitivity_figures.figure_1_bottom: sensitivity_figures.MAIN,
    sensitivity_figures.figure_6: sensitivity_figures.OTHERS,
    sensitivity_figures.figure_8: sensitivity_figures.GAINS,
}


@pytest.mark.parametrize("draw", BEHAVIOURS, ids=lambda f: f.__name__)
def test_a_figure_over_training_is_the_first_seeds_trace(kept, draw):
    for panel, key in zip(draw(kept).axes, NUMBERS["traces.csv"], strict=True):
        for core, line in zip(BEHAVIOURS[draw], panel.get_lines(), strict=False):
            where = {"core": core, "seed": 0}
            np.testing.assert_array_equal(line.get_xdata(), column(kept, "traces.csv", itemgetter("step"), **where))
            np.testing.assert_array_equal(line.get_ydata(), column(kept, "traces.csv", itemgetter(key), **where))
            assert line.get_color() == sensitivity_figures.COLOURS[core]


def test_figure_9_is_the_first_seeds_gains_layer_by_layer(kept):
    values = (
        lambda x: x["gain_q"],
        lambda x: x["gain_k"],
        lambda x: x["gain_q"] * x["gain_k"],
        lambda x: x["variance"],
        lambda x: x["entropy"],
    )
    panels = iter(sensitivity_figures.figure_9(kept).axes)
    for core, value in itertools.product(sensitivity_figures.GAINS, values):
        lines = next(panels).get_lines()
        for layer in range(5):
            expected = column(kept, "gains.csv", value, core=core, seed=0, layer=layer)
            np.testing.assert_array_equal(lines[layer].get_ydata(), expected)
    assert next(panels, None) is None


def test_where_a_training_diverged_is_marked_also_above_the_panel(kept):
    """Softmax at 6e19, window softmax at 1.8e5 and ReLU at 4e18 are the last finite losses; the axis ends at 1e6. Of
    QK-LayerNorm, which is trained to the end, nothing is marked."""
    for key, marked in (("loss", {"softmax": "^", "window_softmax": "x", "relu": "^"}), ("gradient_norm", None)):
        panel = sensitivity_figures.figure_1_bottom(kept).axes[NUMBERS["traces.csv"].index(key)]
        top = panel.get_ylim()[1]
        assert top <= 1e6
        ends = {line.get_color(): line for line in panel.get_lines() if line.get_marker() in ("x", "^")}
        assert len(ends) == 3 and all(not line.get_clip_on() for line in ends.values())
        for core in ("softmax", "window_softmax", "relu"):
            line = ends[sensitivity_figures.COLOURS[core]]
            finite = column(kept, "traces.csv", itemgetter(key), core=core, seed=0)
            last = finite[np.isfinite(finite)][-1]
            assert line.get_ydata()[0] == min(last, top)
            assert line.get_marker() == (marked[core] if marked else "^" if last > top else "x")


def test_a_bound_for_all_cores_says_which_rates_train(measured):
    """A loss of 2.5 is below half of l_0 = 5.8, and hardly better than predicting 0, which gives 3."""
    found = sensitivity.sweep(measured)
    (low, *_), seeds = found.rates, len(found.seeds)
    final, initial = torch.full((len(found.rates), seeds), 2.5), torch.full((seeds,), 5.8)
    final[0, 1], final[1, 1], final[2, 1] = 1.49, 1.51, float("inf")
    found = dataclasses.replace(found, final={"sigma_reparam": final}, initial={"sigma_reparam": initial})
    assert found.zero.tolist() == [3, 3, 3] and found.training_rates("sigma_reparam") == {0: 0, 1: 1, 2: 0}
    assert decades_of(found, "sigma_reparam") == 0
    final[:3] = 1.4
    assert decades_of(found, "sigma_reparam") == pytest.approx(math.log10(found.rates[2] / low))


def test_the_readings_of_the_kept_sweep(kept):
    """Clipped and averaged; averaged and clipped; of each seed. Table 1's l* is that of the first."""
    found = sensitivity.sweep(kept)
    ways = (found.of_means, found.clipped_after, lambda core: found.estimate(core).mean)
    shown = [[f"{way(core):.2f}" for core in ORDER] for way in ways]
    assert shown == [
        ["1.49", "1.32", "2.94", "1.25", "1.41", "1.53", "1.09"],
        ["1.57", "1.32", "3.26", "1.25", "1.19", "1.53", "1.19"],
        ["1.76", "1.32", "3.04", "1.25", "1.58", "1.62", "1.34"],
    ]
    row = re.search(r"<td[^>]*>Softmax</td>.*?</tr>", sensitivity.table_1(kept).text, re.DOTALL).group()
    numbers = [re.sub("<[^>]+>|○", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    assert numbers[4] == f"{found.lowest('softmax'):.2f}" == "1.38" and numbers[5] == "1.57"


def test_the_nearest_settings_are_ranked_by_form_of_the_relu_kernel(kept):
    found = sensitivity_search.search(kept)
    ranking = {form: sensitivity_search.ranked(found, form) for form in sensitivity_search.FORMS}
    assert [number for number, _, _ in ranking["relu"][:3]] == [41, 37, 42]
    assert [number for number, _, _ in ranking["relu_performer"][:3]] == [41, 10, 9]
    for form, places in ranking.items():
        assert [off for _, off, _ in places] == sorted(off for _, off, _ in places) and len(places) == 70
        assert all(
            reading.relu == form and off == sensitivity_search.distance(found.found[number, reading])
            for number, off, reading in places
        )
    text = sensitivity_search.table_nearest(kept).text
    assert "number 2 of 70 with φ = ReLU and number 3 of 70 with φ = ReLU + ε" in text and "single seeds" in text
    # By hand: of the search's own lines at the sweep's steps and l_0, those that are nearer than its setting, number 9.
    for form, place in (("relu", 2), ("relu_performer", 3)):
        offs = {
            number: sensitivity_search.distance(values)
            for (number, reading), values in found.found.items()
            if (reading.steps, reading.initial, reading.relu) == (500, "measured", form)
        }
        assert len(offs) == 70 and sorted(offs.values()).index(offs[9]) == place - 1
    printed = [2.30, 2.20, 2.18, 1.97, 1.95, 1.14, 1.03]
    mean = sum(printed) / 7
    flat = (sum((value - mean) ** 2 for value in printed) / 7) ** 0.5
    assert re.search(rf"all seven alike.*?{mean:.2f}.*?{flat:.2f}", text, re.DOTALL)


def test_a_rate_given_by_hand_is_named_as_such(measured, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    path = root / "results" / "sensitivity" / "sweep.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    by_rule = sensitivity_page.where(sensitivity.sweep(load(root)), True)
    assert "learning rate 0.05, the lowest at which most seeds fail" in by_rule and "by hand" not in by_rule
    path.write_text(json.dumps(about | {"figure_rate": 0.02, "figure_rate_by_hand": True}), encoding="utf-8")
    by_hand = sensitivity_page.where(sensitivity.sweep(load(root)), True)
    assert "learning rate 0.02, given by hand;" in by_hand and "lowest" not in by_hand
    found = decisions(load(root))
    for claim in ("vs-f1-collapse", "vs-f6-collapse"):
        assert found[claim].rule.startswith("at a rate given by hand,") and "lowest rate" not in found[claim].rule
    assert "at rate 0.02 (given by hand)" in found["vs-f9-gains"].evidence
    assert "trainings diverged" not in found["vs-f9-gains"].evidence  # losses.csv has no such rate
    path.write_text(json.dumps(about | {"figure_rate": None}), encoding="utf-8")
    assert "middle rate, as there is none at which" in sensitivity_page.where(sensitivity.sweep(load(root)), True)


def test_figures_are_drawn_with_and_without_results(measured, empty):
    for results in (measured, empty):
        text = sensitivity_page.figures(results).text
        for name in ("2", "5", "1-bottom", "6", "8", "9"):
            assert f'id="variance-sensitivity-figure-{name}"' in text
        assert "mathdefault" not in text  # TeX of tick labels would be counted among the page's formulas
    assert len(sensitivity_figures.figure_2(measured).axes[0].lines) == 4 + 4  # four cores, each with its l_0
    assert len(sensitivity_figures.figure_5(measured).axes[0].lines) == 3 + 3
    assert len(sensitivity_figures.figure_9(measured).axes) == 4 * 5


def test_what_lies_beyond_the_edge_of_figure_4_is_marked_there(kept):
    panel = sensitivity_models.sensitivity_figure_4(kept).axes[0]
    left, right = panel.get_xlim()
    assert right <= sensitivity_models.FURTHEST and left < 1e-2
    seen = np.concatenate([points.get_offsets()[:, 0] for points in panel.collections])
    drawn = {*sensitivity_models.COMPARED, *sensitivity_models.OTHERS}
    expected = [
        min(float(line["variance"]), sensitivity_models.FURTHEST)
        for line in sensitivity.read(kept.root / "results/sensitivity/traces.csv")
        if line["core"] in drawn and line["entropy"] and float(line["variance"] or 0) > 0 and float(line["entropy"]) > 0
    ]
    assert sorted(seen) == pytest.approx(sorted(expected)) and max(seen) == sensitivity_models.FURTHEST


def test_the_caption_says_where_curves_end(kept):
    text = sensitivity_page.endings(sensitivity.sweep(kept), sensitivity_figures.MAIN)
    (end,) = (
        line["diverged_at_step"]
        for line in sensitivity.sweep(kept).lines
        if (line["core"], line["rate"], line["seed"]) == ("relu", "0.003", "0")
    )
    assert f"ReLU Kernel at step {end}" in text and "QK-LayerNorm" not in text and end == "8"
    assert sensitivity_page.endings(sensitivity.sweep(kept), sensitivity_figures.OTHERS) == ""


def test_the_search_tables_say_what_was_found(measured, empty):
    found = sensitivity_search.search(measured)
    share = sensitivity_search.share(found, "whole_order")
    assert share.value == pytest.approx(14 / 16) and share.low < 0.875 < share.high <= 1
    # Wilson's interval of 14 in 16 and of 0 in 10, by the published formula.
    assert (share.low, share.high) == pytest.approx((0.6398, 0.9650), abs=1e-3)
    assert sensitivity_search.wilson(0.0, 10) == pytest.approx((0, 0.2775), abs=1e-3)
    assert sensitivity_search.distance(VALUES) == 0
    assert sensitivity_search.distance(VALUES | {"relu": 1.03 + 0.7}) == pytest.approx(0.7 / 7**0.5)
    text = sensitivity_page.search_tables(measured).text
    assert "Of 16 settings drawn from 240" in text and "88% [" in text and "readout: linear" in text
    # Settings 0 to 15 have final losses from 0 to half of l_0 = 3: softmax trains in all of them.
    assert found.learning == {(number, steps) for number in range(16) for steps in STEPS}
    assert "of the 16 of them in which softmax trains" in text
    assert "not measured yet" in sensitivity_page.search_tables(empty).text


def test_fresh_results_of_another_scale_do_not_replace_kept_ones(measured, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    write_sweep(root / "runs" / "sensitivity", scale="smoke")
    assert sensitivity.folder(load(root, "laptop")) == "results/sensitivity"
    assert sensitivity.folder(load(root, "smoke")) == "runs/sensitivity"
    shutil.rmtree(root / "results" / "sensitivity")
    assert sensitivity.folder(load(root, "laptop")) == "runs/sensitivity"


def decisions(results):
    return dict(claims.judge(results, sensitivity.PAPER).set_index("id").head(12).iterrows())


def test_claims_of_a_sweep_as_written(measured):
    found = decisions(measured)
    no_number = {"vs-f1-collapse", "vs-f6-collapse", "vs-f9-gains"}
    assert {name for name, d in found.items() if d.verdict == "direction reproduced"} == no_number
    assert all("holds in 3 of 3 seeds" in found[name].evidence for name in no_number)
    assert {d.verdict for name, d in found.items() if name not in no_number} == {"reproduced"}
    assert found["vs-f2-relu-range"].measured == "5.7 decades, softmax 0.0"
    assert re.fullmatch(r"holds of averages, 3 of 3 seeds; 88% \[.*\] of settings", found["vs-t1-order"].measured)


@pytest.mark.parametrize(
    ("claim", "file", "core", "column", "value"),
    [
        ("vs-f1-collapse", "traces.csv", "softmax", "entropy", 2.0),  # of log 20 = 3.0: does not fall
        ("vs-f6-collapse", "traces.csv", "elu", "entropy", 1.0),  # does not stay
        ("vs-f9-gains", "gains.csv", "qk_layernorm_gradient_clip", "gain_q", 1.7),  # product grows by 1.76, then by 1
    ],
)
def test_one_seed_that_goes_otherwise_is_counted(measured, tmp_path, claim, file, core, column, value):
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    path = root / "results" / "sensitivity" / file
    with open(path, encoding="utf-8", newline="") as opened:
        lines = list(csv.DictReader(opened))
    for line in lines:
        if (line["core"], line["seed"]) == (core, "1"):
            line[column] = value
            if column == "gain_q":
                line["gain_k"] = value
    with open(path, "w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    found = decisions(load(root))[claim]
    assert found.verdict == "not seen at this scale" and "holds in 2 of 3 seeds" in found.evidence


def test_a_sweep_that_followed_one_seed_only_decides_nothing(measured, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    for name in ("traces.csv", "gains.csv"):
        path = root / "results" / "sensitivity" / name
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [lines[0], *(line for line in lines[1:] if line.split(",")[1] == "0")]
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    found = decisions(load(root))
    for claim in ("vs-f1-collapse", "vs-f6-collapse", "vs-f9-gains"):
        assert found[claim].verdict == "not testable here" and "not measured over training: " in found[claim].evidence


def test_the_width_is_the_settings_own(measured):
    assert "D=4 (printed: 3;" in sensitivity.caption(sensitivity.sweep(measured))
    about = sensitivity.sweep(measured).about
    assert sensitivity.width_text(about | {"setting": about["setting"] | {"hidden": "x2+y"}}) == "D=3"


def test_what_the_search_lacks_is_said(measured, empty):
    assert sensitivity_search.not_run(measured).endswith(": 224 of 240 not run")
    assert sensitivity_models.not_trained(empty) == (
        "attention cores in the decoder at scale gpu: core-softmax, core-relu, core-qk-layernorm not trained"
    )
    assert sensitivity_search.not_run(empty).endswith(": 240 of 240 not run")


def test_claims_of_a_sweep_that_is_the_reverse(measured, tmp_path):
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    shutil.rmtree(root / "results" / "sensitivity")
    write_sweep(root / "results" / "sensitivity", dict(zip(ORDER, reversed(VALUES.values()), strict=True)))
    found = decisions(load(root))
    for name in ("values", "order", "stable-below-softmax", "relu-lowest", "softmax-highest", "window", "kernels"):
        assert found[f"vs-t1-{name}"].verdict == "not seen at this scale", name
    assert found["vs-f2-relu-range"].verdict == "not seen at this scale"


def test_claims_without_results_or_seeds(empty, measured, tmp_path):
    assert {d.verdict for d in decisions(empty).values()} == {"not testable here"}
    root = tmp_path / "project"
    shutil.copytree(measured.root, root)
    shutil.rmtree(root / "results" / "sensitivity")
    write_sweep(root / "results" / "sensitivity", seeds=(0,))
    assert {d.verdict for d in decisions(load(root)).values()} == {"not testable here"}
