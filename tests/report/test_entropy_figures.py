"""Figures of attention entropy: each drawn with and without its runs, and what they show is what the files hold."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import made_results
import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from matplotlib.text import Text

from aero.landscape import steepness
from aero.report import (
    diagram_figures,
    entropy_figures,
    entropy_page,
    evidence,
    flops_figures,
    landscape_figures,
    landscape_tables,
)
from aero.report.drawing import PAGE, WIDTH, svg
from aero.report.entropy_drawing import SIGNED, overflow_label, power_of_ten, row_name
from aero.report.figure_index import FIGURES, PAPERS, Drawn, stands_for
from aero.report.results import Results, load
from aero.report.statistics import sampling_error

DRAWN = {drawn.name: drawn for drawn in FIGURES}
COUNTED = ("figure_20", "figure_21", "guided_figure_1")
"""Those that are drawn from no run."""
OTHERS = ("entropy_landscape", "")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One seed of every run that a figure of attention entropy needs."""
    root = tmp_path_factory.mktemp("everything")
    runs = tuple(made_results.RUNS) + tuple(made_results.MORE_RUNS)
    made_results.project(root, seeds=(1337,), runs=runs)
    with (root / "results/two_party/ops.csv").open("a", encoding="utf-8") as file:
        for megabytes, (_, kind, _) in enumerate(diagram_figures.STEPS, start=1):
            shape = "128x768,768x768" if kind == "linear" else "made"
            file.write(f'{kind},"{shape}",gpt2,128,made,{megabytes}000000,{megabytes}000000,9,9,9,1.0,\n')
    return load(root)


def texts(figure: Figure) -> list[str]:
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("drawn", FIGURES, ids=lambda d: d.name)
def test_a_figure_with_all_its_runs_misses_nothing_and_is_the_same_twice(drawn: Drawn, everything: Results) -> None:
    figure = drawn.draw(everything)
    assert not re.search("not (run|measured|logged|stored)|train it again", " ".join(texts(figure)))
    assert svg(figure, drawn.title) == svg(drawn.draw(everything), drawn.title)
    assert figure.get_size_inches()[0] == pytest.approx(WIDTH)


def test_the_width_is_that_of_the_printed_page() -> None:
    page = (made_results.PROJECT / "aero/report/assets/page.typ").read_text(encoding="utf-8")
    (margin,) = re.findall(r'paper: "a4", margin: \(x: (\d+)mm', page)
    assert pytest.approx((210 - 2 * int(margin)) / 25.4) == PAGE > WIDTH


@pytest.mark.parametrize("drawn", FIGURES, ids=lambda d: d.name)
def test_text_can_be_read_in_print(drawn: Drawn, everything: Results, empty: Results) -> None:
    """A drawing wider than the page is shrunk to it; what is written must keep 6 points, and 6.5 as it is drawn."""
    for results in (everything, empty):
        figure = drawn.draw(results)
        width = float(re.search(r'<svg [^>]*?\bwidth="([\d.]+)pt"', svg(figure, drawn.title))[1])
        shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        assert shown
        for text in shown:
            said = text.get_text()
            size = text.get_fontsize() * (0.7 if re.search(r"\$.*[_^]", said) else 1.0)  # mathtext's exponents
            assert size >= 6.5 and size * min(1.0, 72 * PAGE / width) >= 6.0, (said, size, width)


@pytest.mark.parametrize("drawn", [d for d in FIGURES if d.name not in COUNTED], ids=lambda d: d.name)
def test_a_figure_names_every_run_it_misses(drawn: Drawn, empty: Results) -> None:
    said = " ".join(texts(drawn.draw(empty)))
    for run in drawn.runs:
        assert run in said, run
    assert "not run yet" in said


def test_a_figure_draws_what_there_is(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, seeds=(1337,), runs=("sm-ln-g", "sm-g"), costs=False)
    figure = entropy_figures.figure_12(load(root))
    drawn = [panel.get_title("left") for panel in figure.axes if panel.lines]
    assert drawn == ["SM+LN+G", "SM+G"]
    assert {"not run yet:\nsm", "not run yet:\nsm-ln-r"} <= set(texts(figure))


def test_every_published_figure_has_one_function_and_the_runs_of_params_yaml() -> None:
    """The issue's list of figures; params.yaml says which runs each is drawn from."""
    wanted = [f"aero/figure{n}" for n in (3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21)]
    wanted += [f"entropy_guided/figure{n}" for n in range(1, 8)]
    wanted += [f"entropy_landscape/figure{n}" for n in (1, 2, 3)]
    published = [figure for drawn in FIGURES for figure in drawn.published]
    assert sorted(published) == sorted(wanted)
    runs = yaml.safe_load((made_results.PROJECT / "params.yaml").read_text(encoding="utf-8"))["runs"]
    for drawn in FIGURES:
        for figure in drawn.published:
            named = {run for run, entry in runs.items() if figure in entry.get("figures", ())}
            assert named == set(drawn.runs), figure
        assert set(drawn.runs) <= set(runs)


def test_figure_3a_fractions_are_the_means_over_seeds(full: Results) -> None:
    expected = sum(q[3] for q in full.quarters("sm-g").values()) / 3
    assert f"{expected:.0%}" in texts(entropy_figures.figure_3a(full))


def test_heatmaps_show_the_heads(everything: Results) -> None:
    panels = entropy_figures.figure_5(everything).axes
    for panel, run in zip(panels, ("sm-ln-g", "sm-ln-r", "sm-g", "sm-r"), strict=False):
        assert panel.get_title("left") == row_name(run)
        mean = everything.first(run).entropy.mean
        np.testing.assert_allclose(panel.collections[0].get_array().reshape(12, 4), mean)


def test_lines_are_the_layers_of_the_log(everything: Results) -> None:
    panel = entropy_figures.figure_14(everything).axes[2]
    log = everything.first("sm-scffn").log
    for layer in range(12):
        np.testing.assert_allclose(panel.lines[layer].get_ydata(), [row[layer] for row in log.entropy])
    assert panel.lines[12].get_linestyle() == ":"  # the causal bound


def test_overflows_are_counted_by_layer_and_none_is_blank(everything: Results) -> None:
    panel = entropy_figures.figure_6(everything).axes[0]
    counts = panel.collections[0].get_array().reshape(12, -1)
    assert counts.mask[:9].all() and counts[9:].tolist() == [list(range(10, 181, 10))] * 3
    assert "none" in texts(entropy_figures.figure_17(everything))


def test_overflows_are_given_with_their_total_and_the_precision(everything: Results) -> None:
    counts, _, bar, _ = entropy_figures.figure_6(everything).axes
    assert bar.get_ylabel() == "values not finite in float16,\nof 262,144 a layer"  # 32 sequences x 64 tokens x 128
    assert counts.get_xlabel() == "training step"  # the made files name no precision
    ticks = [label.get_text() for label in bar.get_yticklabels()]
    assert {"1", "10", "100"} <= set(ticks) and not any("$" in text for text in ticks)
    assert [power_of_ten(10**n) for n in (0, 3, 4, 12)] == ["1", "1,000", "10⁴", "10¹²"]
    run = everything.first("sm")
    train = run.metrics["train"]
    told = replace(run, metrics=run.metrics | {"train": train | {"precision": "float32", "evaluation_tokens": 1024}})
    assert overflow_label(told).endswith("\nof 131,072 a layer")  # 16 sequences are all there are
    assert overflow_label(replace(run, metrics={})) == "values not finite\nin float16" == overflow_label(None)
    runs = everything.runs | {key: (told,) for key, trained in everything.runs.items() if trained == (run,)}
    drawn = entropy_figures.figure_6(replace(everything, runs=runs)).axes[0]
    assert drawn.get_xlabel() == "training step\n(in float32)"


def test_temperatures_are_drawn_with_their_sign(tmp_path: Path) -> None:
    """A negative temperature has a colour of its own, however near to 0, and none positive is no error."""
    root = made_results.project(tmp_path, seeds=(1337,), runs=("ereg-smt-scfuffn", "smt-scfuffn"), costs=False)
    heads, positions = np.full((12, 4), 0.02), np.full((12, 64), 0.03)
    heads[2, 1], positions[4, 5] = -1e-5, -0.1
    for run, sign in (("ereg-smt-scfuffn", 1), ("smt-scfuffn", -1)):
        path = root / f"results/laptop/{run}/entropy.json"
        values = json.loads(path.read_text())
        values["learned"]["temperature_mean"] = (sign * np.abs(heads) if sign < 0 else heads).tolist()
        values["learned"]["temperature_by_position"] = (sign * np.abs(positions) if sign < 0 else positions).tolist()
        path.write_text(json.dumps(values))
    figure = entropy_figures.figure_temperatures(load(root))
    svg(figure, "drawn whole")
    assert [axes.get_ylabel() for axes in figure.axes if "mean t" in axes.get_ylabel()] == [
        "mean t",
        "mean t over heads",
    ] * 2
    purple = [tuple(colour) for colour in SIGNED(np.arange(SIGNED.N // 2))]
    for panels, all_negative in ((figure.axes[:2], False), (figure.axes[2:4], True)):
        for panel, values in zip(panels, (heads, positions), strict=True):
            mesh = panel.collections[0]
            negative = np.full(values.shape, True) if all_negative else values < 0
            shown = [tuple(colour) in purple for colour in mesh.to_rgba(mesh.get_array().ravel())]
            assert shown == negative.ravel().tolist()
    corner = figure.axes[1].collections[0].get_paths()[4 * 64 + 5].vertices  # layer 5, position 6
    assert corner[0] == pytest.approx([5.5, 4.52]) and corner[:, 0].max() == pytest.approx(7.0)
    assert "Purple: t is below 0" in DRAWN["figure_temperatures"].note


def test_figures_of_learned_values(everything: Results) -> None:
    heads, means, variances = entropy_figures.figure_10(everything).axes[:3]
    thresholds = np.array(everything.first("ereg-smt-scfuffn").entropy.learned["thresholds"])
    np.testing.assert_allclose([bar.get_width() for bar in means.patches], thresholds.mean(1))
    np.testing.assert_allclose([bar.get_width() for bar in variances.patches], thresholds.var(1))
    np.testing.assert_allclose(heads.collections[0].get_array().reshape(12, 4), thresholds)
    alpha, beta = entropy_figures.figure_11(everything).axes
    assert [bar.get_height() for bar in alpha.patches] == pytest.approx([1 + 0.1 * i for i in range(12)])
    assert beta.patches[11].get_height() == pytest.approx(1.45)
    layerwise, shared = entropy_figures.figure_4(everything).axes
    assert len(layerwise.lines) == 12 + 1 and len(shared.lines) == 1 + 1  # and 0


def test_older_files_say_what_they_do_not_hold(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, seeds=(1337,), runs=("sm", "sm-ln-g", "ereg-smt-scfuffn"), costs=False)
    for path in root.glob("results/laptop/*/entropy.json"):
        values = json.loads(path.read_text())
        for key in ("entropy_median", "entropy_blocks", "entropy_by_position_sem"):
            del values[key]
        values["learned"].pop("temperature_by_position", None)
        path.write_text(json.dumps(values))
    path = root / "results/laptop/sm/log.csv"
    path.write_text(re.sub("overflow_layer", "another", path.read_text()))
    results = load(root)
    assert results.problems == ()
    assert "counts not logged, train it again:\nsm" in texts(entropy_figures.figure_6(results))
    assert "not stored by position, measure it again:\nereg-smt-scfuffn" in texts(
        entropy_figures.figure_temperatures(results)
    )
    assert "median not stored:\nsm-ln-g" in texts(landscape_figures.landscape_figure_2(results))
    assert "no sampling error is shown" in entropy_page.sampling_summary(results).text
    assert entropy_page.fraction_error(results.first("sm-ln-g"), (3,)) is None
    assert "±" not in entropy_page.heads_by_rule(results).text.split("caption")[0]


def test_entropies_that_cannot_be_are_left_out_and_named(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, seeds=(1337,), runs=("sm", "sm-r"), costs=False)
    path = root / "results/laptop/sm/entropy.json"
    values = json.loads(path.read_text())
    values["entropy_by_position"][3] = [0.0] * 63 + [4.5]  # log 64 is 4.159
    path.write_text(json.dumps(values))
    path = root / "results/laptop/sm-r/log.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    rows[2]["entropy_layer_5"] = "-0.25"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    results = load(root)
    assert results.first("sm").entropy is None and results.first("sm-r").log.entropy[2][5] is None
    assert "4.5 nats at query position 64" in results.problems[0]
    assert "1 entropies below 0 or above the causal bound" in results.problems[1]


def test_positions_stay_below_the_bound_that_is_drawn(everything: Results) -> None:
    for panel in entropy_figures.figure_positions(everything).axes:
        numbers = {text.get_text(): text.get_position()[1] for text in panel.texts}
        assert list(numbers) == ["1", "7", "12"]
        places = sorted(numbers.values())  # no number lies on another
        assert min(np.diff(places)) >= 0.089 * np.diff(panel.get_ylim())[0]
        bound, *layers = (line.get_ydata() for line in panel.lines)
        np.testing.assert_allclose(bound, np.log(np.arange(1, 65)))
        assert len(layers) == 12 and all((line <= bound + 1e-9).all() for line in layers)
        assert len(panel.collections) == 12  # bands of the sampling error


def test_landscape_figures_show_their_statistics(everything: Results) -> None:
    panels = landscape_figures.landscape_figure_2(everything).axes
    run = everything.first("ereg-smt-ln-g-gamma-10").entropy
    for panel, values in ((panels[2], run.mean), (panels[6], run.median)):
        np.testing.assert_allclose(panel.collections[0].get_array().reshape(12, 4), steepness(values))
    mean, gini, shift = landscape_figures.landscape_figure_3(everything).axes[:3]
    assert [len(panel.lines) for panel in (mean, gini, shift)] == [4, 4, 3]
    deep = np.array(everything.first("ereg-smt-ln-g-18l").entropy.mean)
    np.testing.assert_allclose(mean.lines[3].get_ydata(), deep.mean(1))
    assert len(deep) == 18 and len(shift.collections) == 3


def test_flops_figures_print_the_shares() -> None:
    assert {
        context: round(share, 3) for context, share in flops_figures.shares(flops_figures.GPT2["small"]).items()
    } == {
        128: 0.653,
        256: 0.64,
        512: 0.615,
        1024: 0.571,
        2048: 0.5,
        4096: 0.4,
        8192: 0.286,
    }
    figure = DRAWN["figure_20"].draw(None)
    assert [text.get_text() for text in figure.axes[0].texts] == ["65%", "64%", "62%", "57%", "50%", "40%", "29%"]
    assert [panel.get_title("left").split()[0] for panel in figure.axes] == ["small", "medium", "large", "XL"]
    assert [panel.get_ylabel() for panel in figure.axes] == ["10⁹ FLOPs a token", ""] * 2
    small = figure.axes[0]
    assert small.patches[0].get_height() == pytest.approx(12 * 16 * 768**2 / 1e9)  # the FFNs' of one token
    (crossing,) = small.lines
    assert all(text.get_bbox_patch() and text.get_zorder() > crossing.get_zorder() for text in small.texts)


def test_diagrams_hold_measured_numbers(everything: Results, empty: Results) -> None:
    said = texts(diagram_figures.guided_figure_1(everything))
    assert [text for text in said if text.endswith("MB")] == [f"{2 * n} MB" for n in range(1, 8)]
    assert "not measured yet: gelu_plain" in texts(diagram_figures.guided_figure_1(empty))
    said = texts(diagram_figures.guided_figure_3(everything))
    assert "W_ffn, d × d, divided by α\nα 1 to 2.1" in said and "plus β times its input\nβ 1.4 to 2" in said
    assert "144 × softmax of 128 × 128" in said


def test_sampling_error_by_hand_and_paired() -> None:
    blocks = np.random.default_rng(1).normal(2.0, 1.0, (32, 3, 2))
    error = sampling_error(lambda heads: heads, blocks, resamples=4000)
    np.testing.assert_allclose(error, blocks.std(0, ddof=1) / np.sqrt(32), rtol=0.08)
    # The same blocks are drawn of both: a difference that is the same in every block has no error.
    assert sampling_error(lambda a, b: a - b, blocks, blocks - 0.5).max() < 1e-12
    assert sampling_error(lambda heads: heads, blocks[:1]) is None and sampling_error(lambda: 0.0) is None
    assert sampling_error(lambda a, b: a, blocks, blocks[:5]) is None


def test_page_shows_every_figure_once_and_so_does_the_index(everything: Results) -> None:
    text = "".join(
        entropy_page.figures(everything, paper).text for paper in ("aero", "entropy_guided", "entropy_landscape", "")
    )
    identifiers = re.findall(r'<div class="figure" id="([^"]+)"', text)
    assert sorted(identifiers) == sorted(name.replace("_", "-") for name in DRAWN)
    index = entropy_page.index(everything).text
    listed = re.findall(r"<code>aero\.report\.\w+\.(\w+)</code>", index)
    assert sorted(listed) == sorted([*DRAWN, "figure_3b"])  # which is shown beside Table 2
    assert listed.index("figure_3b") == listed.index("figure_3a") + 1
    assert ">6 of 6</td>" in indexed(everything, "figure_3b")
    assert "AERO Figure 18; Entropy-Guided Attention Figure 6" in index and "not run yet" not in index
    assert "one seed" in text and "scale laptop" in text


def captions(results: Results) -> dict[str, str]:
    """By figure, what stands below it."""
    text = "".join(entropy_page.figures(results, paper).text for paper in ("aero", "entropy_guided", *OTHERS))
    found = re.findall(r'<div class="figure" id="([^"]+)".*?<div class="caption"><p>(.*?)</p>', text, re.DOTALL)
    return {identifier.replace("-", "_"): said for identifier, said in found}


def indexed(results: Results, name: str) -> str:
    """A figure's row of the index."""
    rows = re.findall(r"<tr>.*?</tr>", entropy_page.index(results).text, re.DOTALL)
    return next(row for row in rows if f".{name}</code>" in row)


def test_captions_name_the_seeds_that_are_drawn(full: Results) -> None:
    averaged = {name for name, drawn in DRAWN.items() if drawn.seeds == "all"}
    assert averaged == {"figure_3a", "figure_9", "figure_11", "figure_16", "figure_18"}
    said = captions(full)
    for name, drawn in DRAWN.items():
        assert "t-interval" not in said[name], name  # no figure of these draws one
        if not any(full.seeds(run) for run in drawn.runs):
            assert "seed (" not in said[name] and "seeds (" not in said[name], name
        elif name in averaged:
            assert "; 3 seeds (1337, 1338, 1339);" in said[name], name
        else:
            assert "; first seed (1337) of 3;" in said[name] and "1338" not in said[name], name
    for name in ("figure_5", "figure_10", "figure_17", "guided_figure_4", "figure_positions", "figure_temperatures"):
        assert DRAWN[name].seeds == "first" and "first seed (1337) of 3" in said[name], name
    assert ">first of 3</td>" in indexed(full, "figure_12") and ">3</td>" in indexed(full, "figure_3a")


def test_the_evidence_of_a_figure_names_the_trainings_that_it_draws(full_root: Path) -> None:
    results = evidence.traced(load(full_root))
    try:
        text = "".join(entropy_page.figures(results, paper).text for paper in ("aero", "entropy_guided", *OTHERS))
    finally:
        evidence._root.clear()
    found = dict(
        re.findall(r'<div class="figure" id="([^"]+)".*?<details class="source">(.*?)</details>', text, re.DOTALL)
    )
    for name, drawn in DRAWN.items():
        below = found[name.replace("_", "-")]
        if any(results.seeds(run) for run in drawn.runs):
            assert "/entropy.json" in below or "/log.csv" in below, name
            assert ("seed_1338" in below) == (drawn.seeds == "all"), name


def test_a_figure_of_the_first_seed_is_the_same_without_the_others(full: Results, everything: Results) -> None:
    """What `seeds` says of a figure is what it draws: the others' numbers change only those of all seeds."""
    both = {run for run in made_results.RUNS if full.seeds(run) and everything.seeds(run)}
    for name, drawn in DRAWN.items():
        if drawn.runs and set(drawn.runs) <= both:
            alone, together = (svg(drawn.draw(results), drawn.title) for results in (everything, full))
            assert (alone == together) == (drawn.seeds == "first"), name


def test_a_run_without_what_a_figure_needs_is_missing(tmp_path: Path) -> None:
    runs = ("sm-leakyr", "sm-leakyr-global", "sm-ln-g", "ereg-smt-ln-g")
    root = made_results.project(tmp_path, seeds=(1337, 1338), runs=runs, costs=False)
    assert "2 of 2" in indexed(load(root), "figure_4") and "not logged" not in captions(load(root))["figure_4"]
    path = root / "results/laptop/sm-leakyr/log.csv"
    path.write_text(path.read_text().replace("slope_", "another_"))
    path = root / "results/laptop/sm-ln-g/entropy.json"
    values = json.loads(path.read_text())
    for key in ("entropy_median", "entropy_blocks", "entropy_by_position_sem"):
        del values[key]
    path.write_text(json.dumps(values))
    results = load(root)
    said = captions(results)
    assert "1 of 2" in indexed(results, "figure_4") and "Slopes not logged: sm-leakyr<" in indexed(results, "figure_4")
    assert "Slopes not logged: sm-leakyr." in said["figure_4"]
    assert "2 of 2" in indexed(results, "figure_13")  # the entropies were logged
    assert (
        "1 of 4" in indexed(results, "landscape_figure_2")
        and "Medians not stored: sm-ln-g." in said["landscape_figure_2"]
    )
    assert "Errors by position not stored: sm-ln-g." in said["figure_positions"]
    assert "first seed (1337) of 2" in said["figure_positions"]  # its means are drawn
    (root / "results/laptop/ereg-smt-ln-g/entropy.json").unlink()
    assert "Entropies not measured: ereg-smt-ln-g." in captions(load(root))["landscape_figure_1"]
    with pytest.raises(ValueError, match="colours: not in NEEDS"):
        stands_for(title="", note="", needs=("colours",))


def test_figures_have_their_papers_name_and_the_sizes_of_their_own_runs(full: Results) -> None:
    """Several papers have a Figure 4; the made project lacks the 18-layer runs, and so knows no sizes of them."""
    for drawn in FIGURES:
        if drawn.published:
            assert drawn.title.startswith(f"{PAPERS[drawn.published[0].split('/')[0]]} Figure "), drawn.name
    said = captions(full)
    assert "L=12" in said["landscape_figure_1"] and "L=" not in said["landscape_figure_3"]
    assert "Measured side: scale laptop, not run yet." in said["landscape_figure_3"]


def test_heads_by_rule_states_published_measured_and_errors(everything: Results, full: Results) -> None:
    text = entropy_page.heads_by_rule(everything).text
    row = text[text.index("<wbr>G</code>") :]
    assert "58 %" in text and "6.25 %" in text and "about 90 %" in row and "±" in row
    trained = everything.first("sm-g")
    blocks = np.array(trained.entropy.blocks)
    quarters = [
        np.mean(heads >= 0.75 * heads.max())
        for chosen in np.random.default_rng(0).integers(0, len(blocks), (400, len(blocks)))
        for heads in [blocks[chosen].mean(0)]
    ]
    assert entropy_page.fraction_error(trained, (3,)) == pytest.approx(np.std(quarters, ddof=1), abs=1e-9)
    measured = 100 * np.mean([q[3] for q in full.quarters("sm-g").values()])
    assert f"{measured:.0f} [" in entropy_page.heads_by_rule(full).text


def test_landscape_table_has_every_printed_cell_measured(everything: Results, tmp_path: Path) -> None:
    text = landscape_tables.files(everything)[Path("reports/tables/entropy_landscape_table1.csv")]
    lines = {(line["row"], line["column"]): line for line in csv.DictReader(io.StringIO(text))}
    assert len(lines) == 5 * 15
    base = np.array(everything.first("sm-ln-g").entropy.mean)
    regularised = np.array(everything.first("ereg-smt-ln-g").entropy.mean)
    w1 = np.abs(np.sort(base.ravel()) - np.sort(regularised.ravel())).mean()
    cell = lines["L=12 T=128 GELU", "Tmargin=20E_max W1-Dist."]
    assert float(cell["measured"]) == pytest.approx(w1, rel=1e-5) and cell["published"] == "0.878"
    assert "sampling error" in cell["note"] and "mean of the layers' own distances" in cell["note"]
    high = lines["L=12 T=128 GELU", "Baseline Ent. Range, high"]
    assert float(high["measured"]) == pytest.approx(base.max(), rel=1e-5)
    missing = lines["L=12 T=256 ReLU", "Tmargin=0 W1-Dist."]
    assert missing["measured"] == "" and "not run yet" in missing["note"]
    shown = landscape_tables.table_1(everything).text
    assert "2.97" in shown and "results/laptop/ereg-smt-ln-g-gamma-10/metrics.json" in shown


def test_learned_temperatures_are_in_a_table(full: Results, everything: Results, tmp_path: Path) -> None:
    def lines(results: Results) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(next(iter(entropy_page.files(results).values())))))

    assert list(entropy_page.files(full)) == [Path("reports/tables/learned_temperatures.csv")]
    found = [line for line in lines(full) if line["temperature"]]
    assert len(found) == 3 * 12 * 4 and {line["seed"] for line in found} == {"1337", "1338", "1339"}
    for line in found:
        trained = next(r for r in full.seeds(line["run"]) if r.seed == int(line["seed"]))
        stored = trained.entropy.learned["temperature_mean"][int(line["layer"]) - 1][int(line["head"]) - 1]
        assert float(line["temperature"]) == pytest.approx(stored, rel=1e-5) and line["scale"] == "laptop"
    assert [(line["run"], line["note"]) for line in lines(full) if not line["temperature"]] == [
        ("smt-scfuffn", "not run yet")
    ]
    assert {line["architecture"] for line in lines(everything)} == {"EReg(SM(t)+ScFuFFN)", "SM(t)+ScFuFFN"}
    root = made_results.project(tmp_path, seeds=(1337,), runs=("smt-scfuffn",), costs=False)
    path = root / "results/laptop/smt-scfuffn/entropy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"learned": {}}))
    assert [line["note"] for line in lines(load(root))] == ["not run yet", "temperatures not stored"]
