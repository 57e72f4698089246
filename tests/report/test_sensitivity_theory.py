"""The theory of `variance_sensitivity` in the report: verdicts that follow the result files, figures, the stage."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import made_results
import pytest
import yaml

from aero.report import sensitivity_models, sensitivity_theory
from aero.report.decisions import TESTS, Decision
from aero.report.results import Results, load
from aero.report.sensitivity_theory_claims import ERRORS
from stages import sensitivity_theory as stage

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = {
    claim["id"]: claim
    for claim in yaml.safe_load(
        (ROOT / "aero/published/variance_sensitivity_theory_claims.yaml").read_text(encoding="utf-8")
    )["claims"]
}
FALSE = {"vs-t51-derivative", "vs-e3-line", "vs-e2-order", "vs-e4-deviation", "vs-relu-small-width", "vs-p53-causal"}
FALSE |= {"vs-eq9"}
"""Printed statements of the theory that do not hold (docs/variance_sensitivity.md)."""


def decide(results: Results, claim: str) -> Decision:
    return TESTS[CLAIMS[claim]["test"]](results, None, **CLAIMS[claim].get("parameters", {}))


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
    theory = [name for name, claim in CLAIMS.items() if claim["topic"] == "sensitivity_theory"]
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
    metrics |= {"eval_loss": loss, "eval_perplexity": 2.0, "diverged_at_step": None, "tokens": 1000}
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
    assert "softmax" in texts(sensitivity_models.sensitivity_figure_1_top(results)).lower()
    assert "3.0" in sensitivity_models.table_models(results).text
    assert decide(results, "vs-lm-entropy-hot").verdict == "not testable here"


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
