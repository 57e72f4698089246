"""The theory of `variance_sensitivity` in the report: verdicts that follow the result files, figures, the stage."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import made_results
import numpy as np
import pytest
import yaml

from aero.attention_kernels import CORES
from aero.published import load as load_paper
from aero.report import claims, sensitivity_models, sensitivity_theory
from aero.report.results import Results, load
from stages import sensitivity_theory as stage

ROOT = Path(__file__).resolve().parents[2]
ERRORS = 4.5
CLAIMS = {claim.id: claim for claim in load_paper("variance_sensitivity").claims[12:]}
FALSE = {"vs-t51-derivative", "vs-e3-line", "vs-e2-order", "vs-e4-deviation", "vs-relu-small-width", "vs-p53-causal"}
FALSE |= {"vs-eq9"}
"""Printed statements of the theory that do not hold (docs/variance_sensitivity.md)."""


def decide(results: Results, claim: str) -> claims.Decision:
    return claims.decide(results, CLAIMS[claim])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the kept results of the theory and no trainings."""
    made_results.project(tmp_path, runs=(), costs=False)
    shutil.copytree(ROOT / "results/sensitivity", tmp_path / "results/sensitivity")
    return tmp_path


def changed(root: Path, table: str, change: Callable[[dict[str, str]], None]) -> Results:
    """The project with every line of one of the theory's tables changed."""
    path = root / f"results/sensitivity/theory_{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        change(line)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return load(root)


def test_what_holds_and_what_does_not(root: Path) -> None:
    results = load(root)
    theory = [name for name, claim in CLAIMS.items() if not name.startswith("vs-lm-")]
    verdicts = {name: decide(results, name).verdict for name in theory}
    assert {name for name, verdict in verdicts.items() if verdict == "contradicted"} == FALSE
    assert {verdict for name, verdict in verdicts.items() if name not in FALSE} == {"reproduced"}


def swap(line: dict[str, str], one: str, other: str) -> None:
    line[one], line[other] = line[other], line[one]


@pytest.mark.parametrize(
    ("claim", "table", "change", "verdict"),
    [
        ("vs-t51-derivative", "softmax", lambda x: x.update(slope=x["theorem_slope_quadrature"]), "reproduced"),
        ("vs-e3-end", "softmax", lambda x: x.update(slope=str(1.1 * float(x["slope"]))), "contradicted"),
        ("vs-e3-line", "softmax", lambda x: x.update(slope=x["appendix_slope_quadrature"]), "reproduced"),
        ("vs-t51-expansion", "softmax", lambda x: x.update(entropy=str(float(x["entropy"]) - 0.1)), "contradicted"),
        ("vs-t51-decreasing", "softmax", lambda x: x.update(slope=str(-float(x["slope"]))), "contradicted"),
        ("vs-window", "softmax", lambda x: x.update(slope_quadrature="-1"), "contradicted"),
        ("vs-e4-deviation", "relu", lambda x: swap(x, "square", "square_printed"), "contradicted"),
        ("vs-e4-deviation", "relu", lambda x: x.update(square=x["square_printed"]), "reproduced"),
        ("vs-t51-relu-rate", "relu", lambda x: x.update(entropy=str(float(x["entropy"]) - 0.01)), "contradicted"),
        ("vs-relu-small-width", "relu", lambda x: x.update(entropy="2.99", undefined="0"), "reproduced"),
        ("vs-p53", "bounds", lambda x: x.update(norm_least="0.9"), "contradicted"),
        ("vs-figure3", "controlled", lambda x: x.update(entropy=x["sigma"]), "contradicted"),
    ],
)
def test_a_verdict_follows_the_files(
    root: Path, claim: str, table: str, change: Callable[[dict[str, str]], None], verdict: str
) -> None:
    assert decide(changed(root, table, change), claim).verdict == verdict


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("vs-t51-relu-invariant", lambda s: s.update(relu_scale_difference=1e-3)),
        ("vs-figure10", lambda s: s["dirichlet"][0].update(correlation=-0.5)),
        ("vs-layernorm", lambda s: s["layernorm"][-1].update(entropy=1.0)),
        ("vs-p53", lambda s: s["ranges"][0].update(outside=1)),
    ],
)
def test_a_verdict_follows_the_summary(root: Path, claim: str, change: Callable[[dict], None]) -> None:
    path = root / "results/sensitivity/theory.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    change(summary)
    path.write_text(json.dumps(summary), encoding="utf-8")
    assert decide(load(root), claim).verdict == "contradicted"


def test_without_results_nothing_is_decided_and_figures_say_so(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=(), costs=False)
    results = load(tmp_path)
    for name in CLAIMS:
        if name != "vs-e2-order":  # decided by algebra
            assert decide(results, name).verdict == "not testable here", name
    for draw in FIGURES:
        assert "not" in texts(draw(results))
    assert "not measured yet" in sensitivity_theory.table_derivative(results).text


FIGURES = (
    sensitivity_theory.sensitivity_expansion,
    sensitivity_theory.sensitivity_figure_3,
    sensitivity_theory.sensitivity_figure_10,
    sensitivity_models.sensitivity_figure_1_top,
    sensitivity_models.sensitivity_figure_4,
    sensitivity_models.sensitivity_figure_7,
)


def texts(figure) -> str:
    import matplotlib.text

    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_tables_and_figures_show_what_is_in_the_files(root: Path) -> None:
    results = load(root)
    found = sensitivity_theory.load_theory(root)
    (line,) = found.lines("softmax", positions=20.0, sigma=1.0)
    shown = sensitivity_theory.table_derivative(results).text
    assert sensitivity_theory.with_error(line["slope"], line["slope_error"]) in shown
    assert f"{line['theorem_slope_quadrature']:.4f}" in shown
    relu = sensitivity_theory.table_relu(results).text
    (line,) = found.lines("relu", positions=20.0, dimensions=3.0)
    assert sensitivity_theory.with_error(line["entropy"], line["entropy_error"]) in relu
    assert "2.69" in sensitivity_theory.table_bounds(results).text
    assert "N = 768" in texts(sensitivity_theory.sensitivity_expansion(results))
    assert "σ = 8" in texts(sensitivity_theory.sensitivity_figure_3(results))


def test_captions_say_how_much_was_drawn(root: Path) -> None:
    """By the columns of what is shown: at most 200,000 draws of z and 100,000 rows a cell, fewer where N is large."""
    results = load(root)
    found = sensitivity_theory.load_theory(root)
    draws = {line["positions"]: line["draws"] for line in found.tables["softmax"]}
    assert draws == {1: 200_000, 2: 200_000, 5: 200_000, 20: 200_000, 200: 30_000, 768: 7_812}
    assert "30,000 to 200,000 draws of z a cell" in sensitivity_theory.table_derivative(results).text
    assert "7,812 to 200,000 draws of z a cell" in sensitivity_theory.caption_expansion(results)
    rows = [int(line["rows"]) for line in found.lines("relu", positions=20.0)]
    assert f"{min(rows):,} to {max(rows):,} rows a cell" in sensitivity_theory.table_relu(results).text
    for text in (
        sensitivity_theory.table_bounds(results).text,
        sensitivity_theory.caption_3(results),
        sensitivity_theory.caption_10(results),
    ):
        assert "a cell" not in text and "normal deviates" not in text and "seed 20250711" in text


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [(-0.37856, 0.0012, "-0.3786(12)"), (5.25, 0.26, "5.25(26)"), (0.0, 0.0, "0"), (123.4, 12.0, "123(12)")],
)
def test_a_mean_with_its_error(mean: float, error: float, text: str) -> None:
    assert sensitivity_theory.with_error(mean, error) == text


# Language models --------------------------------------------------------------------------------------------------

LAYERS, CONTEXT = 3, 16


def train(root: Path, run: str, seed: int, entropy: float, norm: float, gradient: float, loss: float) -> None:
    """A made training whose entropy falls from 2 to `entropy`, all else near the given values."""
    folder = root / "results/laptop" / run / f"seed_{seed}"
    folder.mkdir(parents=True)
    metrics = {"run": run, "seed": seed, "scale": "laptop", "architecture": "SM+LN+G", "context": CONTEXT}
    metrics |= {"eval_loss": loss, "eval_perplexity": math.exp(loss), "diverged_at_step": None, "tokens": 1000}
    metrics["tokens_per_second"] = 100.0
    metrics |= {"model": {"layers": LAYERS, "context": CONTEXT}, "train": {"learning_rate": 0.001}}
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    names = [f"{name}_layer_{i}" for name in ("entropy", "norm", "variance") for i in range(LAYERS)]
    with (folder / "log.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["step", "train_loss", "gradient_norm", *names], restval="")
        writer.writeheader()
        for step in range(1, 11):
            row = {"step": step, "train_loss": loss + 0.001 * seed, "gradient_norm": gradient + 0.001 * seed}
            values = {"entropy": 2 + (entropy - 2) * step / 10, "norm": norm, "variance": 0.1 * step}
            row |= {name: values[name.split("_")[0]] + 0.001 * seed for name in names if step % 5 == 0 or step == 1}
            writer.writerow(row)


def models(root: Path, seeds: int, softmax: tuple[float, ...], stable: tuple[float, ...]) -> Results:
    made_results.project(root, runs=(), costs=False)
    for seed in range(seeds):
        train(root, "core-softmax", seed, *softmax)
        for run in ("core-relu", "core-qk-layernorm"):
            train(root, run, seed, *stable)
    return load(root)


ORDERS = ("vs-lm-entropy", "vs-lm-norm", "vs-lm-gradient", "vs-lm-loss")


@pytest.mark.parametrize(("turned", "verdict"), [(False, "reproduced"), (True, "not seen at this scale")])
def test_orders_of_cores(tmp_path: Path, turned: bool, verdict: str) -> None:
    low, high = (1.0, 3.5, 2.0, 3.0), (1.9, 2.5, 1.0, 2.0)
    results = models(tmp_path, 3, *((high, low) if turned else (low, high)))
    assert {decide(results, claim).verdict for claim in ORDERS} == {verdict}
    assert decide(results, "vs-lm-entropy-falls").verdict == "reproduced"
    assert decide(results, "vs-lm-spikes").verdict == "not seen at this scale"
    assert decide(results, "vs-lm-entropy-hot").verdict == "not testable here"


CURVES = ("train_loss", "gradient_norm", "entropy", "norm")
"""Columns of the log in the panels of Figures 1 (top) and 7, from left to right; the latter two of every layer."""


def logged(root: Path, run: str, seed: int, name: str, layers: tuple[int, ...]) -> dict[int, float]:
    """A column of a log by step, the mean over `layers` of one that has layers; the csv read plainly."""
    with (root / "results/laptop" / run / f"seed_{seed}/log.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = [name] if name in lines[0] else [f"{name}_layer_{i}" for i in layers]
    return {int(x["step"]): sum(float(x[n]) for n in names) / len(names) for x in lines if x[names[0]]}


def spread_layers(root: Path) -> None:
    """Add the layer's number to every entropy in the logs, so that layers differ."""
    for path in root.glob("results/laptop/core-*/*/log.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        for line in lines:
            for i in range(LAYERS):
                line[f"entropy_layer_{i}"] = line[f"entropy_layer_{i}"] and float(line[f"entropy_layer_{i}"]) + 0.1 * i
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)


LOW, HIGH = (1.0, 3.5, 2.0, 3.0), (1.9, 2.5, 1.0, 2.0)


@pytest.mark.parametrize("first_layer", [False, True])
def test_a_training_figure_shows_mean_and_range_of_its_seeds(tmp_path: Path, first_layer: bool) -> None:
    """Two seeds: the line is their mean, the band reaches from one to the other (over layers: their deviation)."""
    models(tmp_path, 2, LOW, HIGH)
    spread_layers(tmp_path)
    draw = sensitivity_models.sensitivity_figure_7 if first_layer else sensitivity_models.sensitivity_figure_1_top
    cores = ("softmax", "relu") if first_layer else ("softmax", "relu", "qk_layernorm")
    panels = draw(load(tmp_path)).axes[:4]
    for panel, name in zip(panels, CURVES, strict=True):
        layers = (0,) if first_layer and name == "entropy" else tuple(range(LAYERS))
        for core, line, band in zip(cores, panel.get_lines(), panel.collections, strict=False):
            run = sensitivity_models.run_name(core, "")
            seeds = [logged(tmp_path, run, seed, name, layers) for seed in (0, 1)]
            steps = sorted(seeds[0])
            mean = np.array([(seeds[0][step] + seeds[1][step]) / 2 for step in steps])
            assert list(line.get_xdata()) == steps
            np.testing.assert_allclose(line.get_ydata(), mean, rtol=1e-9)
            (path,) = band.get_paths()
            edges = {step: sorted(path.vertices[path.vertices[:, 0] == step, 1]) for step in steps}
            if name == "entropy" and not first_layer:
                low, high = mean - np.std([0, 0.1, 0.2]), mean + np.std([0, 0.1, 0.2])
            else:
                low, high = ([pick(seeds[0][step], seeds[1][step]) for step in steps] for pick in (min, max))
                assert all(a < b for a, b in zip(low, high, strict=True))
            np.testing.assert_allclose([edges[step][0] for step in steps], low, rtol=1e-9)
            np.testing.assert_allclose([edges[step][-1] for step in steps], high, rtol=1e-9)
        assert len(panel.get_lines()) >= len(cores)


def test_the_table_of_cores_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    """Losses 3 of both seeds; gradient norms 2 and 2.001; entropies 2 to 1, both; norms 3.5 and 3.501."""
    text = sensitivity_models.table_models(models(tmp_path, 2, LOW, HIGH)).text
    row = next(row for row in text.split("<tr>") if ">Softmax</td>" in row)
    cells = [re.sub("<[^>]+>|[●○]", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    assert cells[1] == "0.001" and cells[2].startswith("3.000 [3.000, 3.000]")
    assert cells[3].startswith("2.000 [") or cells[3].startswith("2.001 [")
    assert [cell.split()[0] for cell in cells[4:]] == ["-0.90", "1.00", "3.50"]


def test_figure_4_is_variance_against_normalised_entropy(tmp_path: Path) -> None:
    """Eq. 8 at every look, of the small model and the decoder; circles for softmax-based cores alone."""
    models(tmp_path, 2, LOW, HIGH)
    shutil.copytree(ROOT / "results/sensitivity", tmp_path / "results/sensitivity")
    small, decoder, _ = sensitivity_models.sensitivity_figure_4(load(tmp_path)).axes
    with (tmp_path / "results/sensitivity/traces.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["variance"] and line["entropy"]]
    expected: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        variance, entropy = float(line["variance"]), float(line["entropy"])
        point = variance, entropy / (math.log(20) - entropy)
        if line["core"] in SEVEN and min(point) > 0 and math.isfinite(point[1]):
            expected.setdefault(line["core"], []).append(point)
    assert list(expected) == [core for core in CORES if core in SEVEN]
    edge = sensitivity_models.FURTHEST
    beyond = [[(edge, ratio) for variance, ratio in points if variance > edge] for points in expected.values()]
    beyond = [points for points in beyond if points]
    within = {core: [point for point in points if point[0] <= edge] for core, points in expected.items()}
    assert len(beyond) > 2 and len(small.collections) == len(SEVEN) + len(beyond)
    for points, drawn in zip(beyond, small.collections[len(SEVEN) :], strict=True):
        np.testing.assert_allclose(drawn.get_offsets(), points, rtol=1e-9)
    for (core, points), drawn in zip(within.items(), small.collections[: len(SEVEN)], strict=True):
        np.testing.assert_allclose(drawn.get_offsets(), points, rtol=1e-9)
        corners = len(drawn.get_paths()[0].vertices)  # a triangle has four, closed; a circle is a spline of many
        assert (corners > 10) is (core in ("softmax", "window_softmax", "sigma_reparam")), core
    for core, drawn in zip(("softmax", "relu", "qk_layernorm"), decoder.collections, strict=True):
        run, points = sensitivity_models.run_name(core, ""), []
        for seed in (0, 1):
            variances, entropies = (logged(tmp_path, run, seed, name, (0, 1, 2)) for name in ("variance", "entropy"))
            points += [(variances[s], h / (math.log(CONTEXT) - h)) for s, h in entropies.items()]
        np.testing.assert_allclose(drawn.get_offsets(), points, rtol=1e-9)


SEVEN = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", "relu")


@pytest.mark.parametrize("scale", ["laptop", "gpu"])
def test_rates_in_proportion_to_width_are_of_the_laptop(tmp_path: Path, scale: str) -> None:
    """Their number is 1e-3 in proportion to that width; elsewhere they are neither drawn nor judged, and it is said."""
    models(tmp_path, 2, LOW, HIGH)
    for core in ("softmax", "relu", "qk-layernorm"):
        for seed in (0, 1):
            train(tmp_path, f"core-{core}-hot", seed, *(LOW if core == "softmax" else HIGH))
    if scale != "laptop":
        (tmp_path / "results/laptop").rename(tmp_path / "results" / scale)
        for path in (tmp_path / "results" / scale).rglob("metrics.json"):
            path.write_text(path.read_text(encoding="utf-8").replace('"laptop"', f'"{scale}"'), encoding="utf-8")
    results, here = load(tmp_path, scale), scale == "laptop"
    hot = [decide(results, name) for name in CLAIMS if name.startswith("vs-lm-") and name.endswith("-hot")]
    assert len(hot) == 6 and all((found.verdict != "not testable here") is here for found in hot)
    assert all(("at scale laptop only, not at gpu" in found.evidence) is not here for found in hot)
    assert decide(results, "vs-lm-entropy").verdict == "reproduced"
    table = sensitivity_models.table_models(results).text
    assert table.count(">Softmax</td>") == (2 if here else 1)
    assert ("neither drawn nor judged at this one" in table) is not here
    for draw, panels in ((sensitivity_models.sensitivity_figure_1_top, slice(4, 8)), (FIGURES[4], slice(2, 3))):
        figure = draw(results)
        assert all(bool(panel.lines or panel.collections) is here for panel in figure.axes[panels])
        assert ("scale laptop" in texts(figure).replace("\n", " ")) is not here


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    results = models(tmp_path, 1, (1.0, 3.5, 2.0, 3.0), (1.9, 2.5, 1.0, 2.0))
    for claim in (*ORDERS, "vs-lm-entropy-falls", "vs-lm-spikes"):
        assert decide(results, claim).verdict == "not testable here"


def test_a_rising_loss_is_a_spike(tmp_path: Path) -> None:
    results = models(tmp_path, 2, (1.0, 3.5, 2.0, 3.0), (1.9, 2.5, 1.0, 2.0))
    for path in tmp_path.glob("results/laptop/core-softmax/*/log.csv"):
        path.write_text(path.read_text(encoding="utf-8").replace("\n10,3.", "\n10,5."), encoding="utf-8")
    assert decide(results, "vs-lm-spikes").verdict == "reproduced"


# Stage ------------------------------------------------------------------------------------------------------------


def test_the_stage_writes_whole_tables_with_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    small = {"seed": 3, "normals": 4000, "softmax": {"positions": [1, 4], "sigmas": [0.5, 1.0]}}
    small |= {
        "relu": {"positions": [5], "dimensions": [2, 8]},
        "dirichlet": {"positions": 9, "alphas": [0.1], "rows": 30},
    }
    cores = ["softmax", "window_softmax", "elu", "relu"]
    small["controlled"] = {"positions": 20, "dimensions": 4, "matrices": 2, "sigmas": [1.0, 8.0], "cores": cores}
    values["sensitivity_theory"] = small
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "CURVE_POINTS", 3)
    stage.main([])
    found = sensitivity_theory.load_theory(tmp_path)
    assert str(found.folder) == "runs/sensitivity" and found.summary["provenance"]["commit"]
    assert found.summary["settings"]["normals"] == 4000
    lines = {name: len(table) for name, table in found.tables.items()}
    expected = {"softmax": 4, "curves": 6, "relu": 2, "controlled": 8, "weights": 80, "bounds": 4, "dirichlet": 30}
    assert lines == expected
    ranges = {line["core"]: line for line in found.summary["ranges"]}
    assert set(ranges) == set(cores) and all(line["matrices"] == 2 * 200 for line in ranges.values())
    for core, line in ranges.items():
        assert line["outside"] == 0 and 1 - 1e-5 <= line["norm_least"] <= line["norm_greatest"] <= math.sqrt(20) + 1e-5
        assert -1e-9 <= line["entropy_least"] <= line["entropy_greatest"] <= math.log(20) + 1e-9
        assert (line["empty"] > 0) is (core == "relu") and (line["norm_least_empty"] is not None) is (core == "relu")
    assert ranges["relu"]["norm_least_empty"] < ranges["relu"]["norm_least"]  # a row without weight adds nothing
    for line in found.tables["softmax"]:
        assert abs(line["entropy"] - line["entropy_quadrature"]) <= ERRORS * line["entropy_error"] + 1e-9
    first = {path.name: path.read_text() for path in tmp_path.glob("runs/sensitivity/theory_*.csv")}
    stage.main([])
    assert first == {path.name: path.read_text() for path in tmp_path.glob("runs/sensitivity/theory_*.csv")}
    assert "7 tables" in capsys.readouterr().out


def test_a_figure_with_powers_of_ten_brings_no_formula_onto_the_page(root: Path) -> None:
    """matplotlib writes the text of a tick label into a comment, where $10^{-2}$ would pass for mathematics."""
    from aero.report.drawing import svg

    results = models(root / "models", 2, (1.0, 3.5, 2.0, 3.0), (1.9, 2.5, 1.0, 2.0))
    picture = svg(sensitivity_models.sensitivity_figure_1_top(results), "title")
    assert "<!--" not in picture and "$" not in picture and picture.count("<path") > 20
