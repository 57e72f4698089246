"""The section on `variance_sensitivity`: read from its files, gaps where they are missing, verdicts by their rules."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import made_results
import pytest

from aero.attention import CORES
from aero.report import claims, sensitivity, sensitivity_figures, sensitivity_page, sensitivity_search
from aero.report.results import load
from aero.report.sensitivity_claims import rank_correlation
from aero.sensitivity.conclusions import ORDER
from aero.sensitivity.search import STEPS, WINDOWS, reasonable
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
    three = [setting for setting in reasonable() if setting.zero_loss == 3.0]  # both readings of l_0 are 3
    for number in range(agreeing + others):
        setting = three[number]
        values = dict(VALUES) if number < agreeing else dict(zip(ORDER, reversed(VALUES.values()), strict=True))
        for core, value in (values | {"relu_uniform": values["relu"]}).items():
            for steps in STEPS:
                for window in WINDOWS:
                    named = {name: getattr(setting, name) for name in sensitivity_search.REASONABLE}
                    losses = {f"{r:g}": v for r, v in zip(RATES, losses_of(value), strict=True)}
                    row = {"number": number, **named, "core": core, "seed": number, "steps": steps, "window": window}
                    rows.append(row | {"initial_loss": 3.0, **losses})
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


def test_a_new_core_is_a_row_of_the_table(measured, monkeypatch):
    monkeypatch.setitem(CORES, "other", CORES["softmax"].__class__("Another Core", CORES["softmax"].probabilities))
    assert "Another Core" in sensitivity.table_1(measured).text


def test_figures_are_drawn_with_and_without_results(measured, empty):
    for results in (measured, empty):
        text = sensitivity_page.figures(results).text
        for name in ("2", "5", "1-bottom", "6", "8", "9"):
            assert f'id="variance-sensitivity-figure-{name}"' in text
        assert "mathdefault" not in text  # TeX of tick labels would be counted among the page's formulas
    assert len(sensitivity_figures.figure_2(measured).axes[0].lines) == 4 + 1  # four cores and l_0
    assert len(sensitivity_figures.figure_5(measured).axes[0].lines) == 3 + 1
    assert len(sensitivity_figures.figure_9(measured).axes) == 4 * 5


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
    assert found.learning == frozenset(range(16)) and "of the 16 of them in which softmax trains" in text
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
    judged = claims.judge(results, sensitivity.PAPER)
    return {j.claim.id: j.decision for j in judged if j.claim.topic == "sensitivity"}


def test_claims_of_a_sweep_as_published(measured):
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
        assert found[claim].verdict == "not testable here" and "not followed over training: " in found[claim].evidence


def test_the_width_is_the_settings_own(measured):
    assert "D=4 (printed: 3;" in sensitivity.caption(sensitivity.sweep(measured))
    about = sensitivity.sweep(measured).about
    assert sensitivity.width_text(about | {"setting": about["setting"] | {"hidden": "x2+y"}}) == "D=3"


def test_what_the_search_lacks_is_said(measured, empty):
    assert sensitivity_search.not_run(measured).endswith(": 224 of 240 not run")
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


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == 1 and rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 2, 3], [2, 1, 3]) == pytest.approx(0.5)
