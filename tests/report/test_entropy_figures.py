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
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from aero.landscape import steepness
from aero.report import (
    diagram_figures,
    entropy_figures,
    entropy_page,
    flops_figures,
    landscape_figures,
    landscape_tables,
)
from aero.report.drawing import PAGE, WIDTH, style, svg
from aero.report.entropy_drawing import SIGNED, overflow_label, power_of_ten, row_name, shared_labels
from aero.report.figure_index import FIGURES, Drawn
from aero.report.results import Results, Run, load
from aero.report.statistics import sampling_error

DRAWN = {drawn.name: drawn for drawn in FIGURES}
COUNTED = ("figure_20", "figure_21", "guided_figure_1")
"""Those that are drawn from no run."""


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


@pytest.mark.parametrize(
    ("ends", "labels"),
    [
        ((3.0, 0.0, 0.0), [([1, 2], 0.1), ([0], 3.0)]),  # collapsed: one label, on the axis
        ((3.0, 2.2, 0.0), [([2], 0.1), ([1], 2.2), ([0], 3.0)]),
        ((2.0, 2.1, 2.2), [([0, 1, 2], 2.1)]),
        ((2.0, 2.1, 2.35), [([0, 1], 2.025), ([2], 2.375)]),  # the nearest two, and both labels make way
        ((0.0, 0.2, 0.36), [([0], 0.1), ([1, 2], 0.375)]),  # on the axis the second keeps to its line
        ((2.3, 2.0, 2.0), [([0, 1, 2], 2.15)]),
        ((2.4, 2.0, 2.0), [([1, 2], 2.0), ([0], 2.4)]),
        ((1.0,), [([0], 1.0)]),
    ],
)
def test_lines_that_end_at_one_place_share_a_label(
    ends: tuple[float, ...], labels: list[tuple[list[int], float]]
) -> None:
    found = shared_labels(ends, 0.35, 0.1)
    assert [group for group, _ in found] == [group for group, _ in labels]
    assert [place for _, place in found] == pytest.approx([place for _, place in labels])


@given(st.lists(st.floats(0, 3.5), min_size=1, max_size=3))
def test_a_label_stands_beside_its_own_line_and_on_no_other_label(ends: list[float]) -> None:
    found = shared_labels(ends, 0.35)
    assert sorted(i for group, _ in found for i in group) == list(range(len(ends)))
    assert all(abs(place - ends[i]) <= 0.175 + 1e-9 for group, place in found for i in group)
    assert (np.diff([place for _, place in found]) >= 0.35 - 1e-9).all()


def test_numbers_of_layers_are_within_half_a_gap_of_their_lines(everything: Results) -> None:
    """Of made runs, and of those as they would be with the middle and last layer at 0."""
    collapsed = {key: tuple(_with_dead_layers(run) for run in runs) for key, runs in everything.runs.items()}
    for results in (everything, replace(everything, runs=collapsed)):
        for panel in entropy_figures.figure_12(results).axes:
            layers = [line.get_ydata() for line in panel.lines]
            assert sorted(_numbered(panel, layers, 0.07 * panel.get_ylim()[1])) == [1, 7, 12]
    assert {text.get_text() for panel in entropy_figures.figure_12(results).axes for text in panel.texts} >= {"7, 12"}


def _numbered(panel: Axes, layers: list[np.ndarray], gap: float) -> list[int]:
    """The layers whose numbers the panel has, each of them within half a gap of its line's end."""
    found = []
    for text in panel.texts:
        for layer in map(int, text.get_text().split(", ")):
            assert abs(text.get_position()[1] - layers[layer - 1][-1]) <= gap / 2 + 1e-9
            found.append(layer)
    return found


def _with_dead_layers(run: Run) -> Run:
    if run.log is None:
        return run
    return replace(run, log=replace(run.log, entropy=[[*row[:6], *([0.0] * 6)] for row in run.log.entropy]))


def test_percentages_fit_into_their_parts_of_the_bars(everything: Results) -> None:
    """Bars of two and of three panels, and names long and short beside them."""
    for draw in (entropy_figures.figure_3a, entropy_figures.figure_9, entropy_figures.figure_16):
        with style():
            figure = draw(everything)
            renderer = FigureCanvasAgg(figure).get_renderer()
            written = 0
            for panel in figure.axes:
                parts = [bar.get_window_extent(renderer) for bar in panel.patches]
                for text in panel.texts:
                    if not text.get_text().endswith("%"):
                        continue
                    written += 1
                    box = text.get_window_extent(renderer)
                    assert any(part.x0 < box.x0 and box.x1 < part.x1 and part.y0 < box.y0 < part.y1 for part in parts)
        assert written > 10


def test_colours_of_thresholds_go_from_the_lowest_to_the_highest_with_the_start_marked(everything: Results) -> None:
    figure = entropy_figures.figure_10(everything)
    run = everything.first("ereg-smt-scfuffn")
    thresholds, start = np.array(run.entropy.learned["thresholds"]), run.metrics["model"].get("threshold_init", 0.5)
    norm = figure.axes[0].collections[0].norm
    assert (norm.vmin, norm.vmax) == (min(start, thresholds.min()), max(start, thresholds.max()))
    (bar,) = (axes for axes in figure.axes if axes.get_ylabel() == "fraction of log T")
    assert [line.get_ydata()[0] for line in bar.lines if line.get_linestyle() != "-"] == [start]
    # A run whose thresholds have not moved has a colour bar too.
    still = replace(run.entropy, learned=run.entropy.learned | {"thresholds": np.full((12, 4), start).tolist()})
    key = next(key for key, runs in everything.runs.items() if run in runs)
    entropy_figures.figure_10(replace(everything, runs={**everything.runs, key: (replace(run, entropy=still),)}))


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
        bound, *layers = (line.get_ydata() for line in panel.lines)
        gap = 0.09 * np.diff(panel.get_ylim())[0]
        assert sorted(_numbered(panel, layers, gap)) == [1, 7, 12]
        places = sorted(text.get_position()[1] for text in panel.texts)  # no number lies on another
        assert (np.diff(places) >= 0.99 * gap).all()
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


def written(figure: Figure) -> list[tuple[Axes, Text, Bbox]]:
    """Every text that is drawn in a panel, with where it stands, pixels."""
    with style():
        FigureCanvasAgg(figure).draw()
    renderer, found = figure.canvas.get_renderer(), []
    for panel in figure.axes:
        ticks = []
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            # One beyond the ends is not drawn.
            ticks += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        others = [
            *panel.texts,
            panel.title,
            panel._left_title,
            panel._right_title,
            panel.xaxis.label,
            panel.yaxis.label,
        ]
        for text in (*ticks, *others):
            if panel.get_visible() and text.get_visible() and text.get_text().strip():
                found.append((panel, text, text.get_window_extent(renderer)))
    return found


def collide(one: Bbox, other: Bbox) -> bool:
    """Whether two boxes share more than an edge, pixels."""
    shared = Bbox.intersection(one, other)
    return shared is not None and min(shared.width, shared.height) > 0.5


@pytest.mark.parametrize("drawn", FIGURES, ids=lambda d: d.name)
def test_no_text_of_a_panel_runs_into_another_panels(drawn: Drawn, everything: Results, empty: Results) -> None:
    for results in (everything, empty):
        found = written(drawn.draw(results))
        for place, (panel, text, box) in enumerate(found):
            for other, beside, its in found[:place]:
                assert other is panel or not collide(box, its), (text.get_text(), beside.get_text())


@pytest.mark.parametrize("name", ["guided_figure_1", "guided_figure_3"])
def test_what_is_written_in_a_diagram_stays_in_its_box(name: str, everything: Results) -> None:
    figure = DRAWN[name].draw(everything)
    found = written(figure)
    inside = 0
    for panel in figure.axes:
        for box in (patch.get_window_extent() for patch in panel.patches if isinstance(patch, FancyBboxPatch)):
            for own, text, extent in found:
                if own is panel and collide(box, extent):
                    corners = (extent.x0, extent.y0), (extent.x1, extent.y1)
                    assert all(box.contains(*corner) for corner in corners), text.get_text()
                    inside += 1
    assert inside == sum(isinstance(patch, FancyBboxPatch) for panel in figure.axes for patch in panel.patches)
    for place, (_, text, box) in enumerate(found):
        for _, beside, its in found[:place]:
            assert not collide(box, its), (text.get_text(), beside.get_text())


def test_every_bar_says_of_how_many_seeds_it_is(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, seeds=(1337, 1338), runs=("sm-scfuffn", "sm-scfuffni-6"), costs=False)
    made_results.write_run(root / "results/laptop/sm-scfuffni-7", "sm-scfuffni-7", 1337)
    figure = entropy_figures.figure_16(load(root))
    said = {round(t.get_position()[1]): t.get_text() for t in figure.axes[1].texts if t.get_text().startswith("n=")}
    assert said == {0: "n=2", 6: "n=2", 7: "n=1"} and "n seeds" in DRAWN["figure_16"].note
    assert not any(text.startswith("n=") for text in texts(figure)[: len(figure.axes[0].texts)])


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


def test_a_figure_of_the_first_seed_is_the_same_without_the_others(full: Results, everything: Results) -> None:
    """What `seeds` says of a figure is what it draws: the others' numbers change only those of all seeds."""
    both = {run for run in made_results.RUNS if full.seeds(run) and everything.seeds(run)}
    for name, drawn in DRAWN.items():
        if drawn.runs and set(drawn.runs) <= both:
            alone, together = (svg(drawn.draw(results), drawn.title) for results in (everything, full))
            assert (alone == together) == (drawn.seeds == "first"), name


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
