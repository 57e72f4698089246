"""Results whose numbers cannot be are named and left out, by the report and by `aero runs`."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from aero.pipeline import ROOT
from aero.report.results import load
from aero.training import catalogue

KEPT = ROOT / "results/laptop/sm-ln-g"
NAN = float("nan")


@pytest.fixture
def root(tmp_path):
    """A project with one kept training of two seeds."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for name in ("metrics.json", "entropy.json", "seed_1338/metrics.json"):
        path = tmp_path / "results/laptop/sm-ln-g" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(KEPT / name, path)
    return tmp_path


def change(root, name, **values):
    path = root / "results/laptop/sm-ln-g" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def seeds(root):
    """(problems, seeds) of the report's reader."""
    found = load(root)
    return found.problems, [run.seed for run in found.runs.get(("laptop", "sm-ln-g"), ())]


def test_what_was_kept_can_be(root):
    assert seeds(root) == ((), [1337, 1338])
    problems = []
    assert sum(map(len, catalogue.results(ROOT, problems).values())) >= 367 and problems == []
    assert load(ROOT).problems == ()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"eval_perplexity": 3.0}, "eval_perplexity 3 is not the exponential of eval_loss 2.0754"),
        ({"eval_perplexity": -1.0}, "is not the exponential"),
        ({"eval_perplexity": True}, "though it names no step at which"),
        ({"eval_perplexity": NAN}, "eval_perplexity nan, though it names no step"),
        ({"eval_loss": None, "eval_perplexity": None}, "though it names no step"),
        ({"eval_perplexity": 10**400}, "though it names no step"),
        ({"scale": "gpu"}, "scale is 'gpu', but it lies in the place of laptop"),
        ({"run": "sm"}, "run is 'sm', but it lies in the place of sm-ln-g"),
        ({"run": math.inf}, "run is inf, not a name"),
        ({"seed": True}, "seed is True, not a number"),
        ({"tokens": 10**400}, "tokens is 1"),
        ({"tokens": -5}, "tokens is -5, which it cannot be"),
        ({"context": 0}, "context is 0, which it cannot be"),
        ({"diverged_at_step": "never"}, "diverged_at_step is 'never', which is no step"),
        ({"provenance": [1]}, "provenance is [1], no mapping"),
    ],
)
def test_metrics_that_cannot_be(root, values, said):
    change(root, "metrics.json", **values)
    problems, left = seeds(root)
    assert left == [1338] and len(problems) == 1
    name = "results/laptop/sm-ln-g/metrics.json: "
    assert problems[0].startswith(f"{name}not the metrics of a run") and said in problems[0]
    told = []
    assert [one.seed for one in catalogue.results(root, told)["laptop", "sm-ln-g"]] == [1338]
    assert len(told) == 1 and told[0].startswith(f"{name}left out, ") and said in told[0]


@pytest.mark.parametrize("text", ["[1]", "null", "3", '"a"', "{}", "{", "", "[" * 200_000, '{"provenance": null}'])
def test_files_that_are_no_metrics(root, text):
    (root / "results/laptop/sm-ln-g/metrics.json").write_text(text)
    problems, left = seeds(root)
    assert left == [1338] and len(problems) == 1 and "sm-ln-g/metrics.json: " in problems[0]
    told = []
    assert list(catalogue.results(root, told)) == [("laptop", "sm-ln-g")] and len(told) == 1
    assert "\n" not in told[0] and len(told[0]) < 400


def test_a_seed_in_the_place_of_another_or_twice(root):
    change(root, "seed_1338/metrics.json", seed=1339)
    assert "seed is 1339, but it lies in the place of 1338" in seeds(root)[0][0]
    shutil.copytree(root / "results/laptop/sm-ln-g/seed_1338", root / "results/laptop/sm-ln-g/seed_1337")
    shutil.copy(KEPT / "metrics.json", root / "results/laptop/sm-ln-g/seed_1337")
    problems, left = seeds(root)
    assert left == [1337] and len(problems) == 2
    assert any("seed_1337/metrics.json: left out, results/laptop/sm-ln-g/metrics.json is" in one for one in problems)


def test_a_divergence_has_no_perplexity_and_is_no_problem(root):
    change(root, "metrics.json", diverged_at_step=40, eval_loss=None, eval_perplexity=None)
    assert seeds(root) == ((), [1337, 1338])


def in_bits(values):
    return [[head / math.log(2) for head in layer] for layer in values["entropy_mean"]]


def with_first(values, head):
    first, *others = values["entropy_mean"]
    return {"entropy_mean": [[head, *first[1:]], *others]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda v: with_first(v, 9.9), "9.9 nats, where 0 to"),
        (lambda v: with_first(v, -0.1), "-0.1 nats, where 0 to"),
        (lambda v: {"entropy_mean": v["entropy_mean"][:1]}, "1 layers x 4 heads, the training of (12, 4)"),
        (
            lambda v: {"entropy_mean": [[0.9 * h for h in row] for row in v["entropy_mean"]]},
            "largest entropy is called",
        ),
        (lambda v: {"maximum": v["maximum"] | {"causal_bound": 5.0}}, "its causal bound is 5.0"),
        (lambda v: {"maximum": v["maximum"] | {"observed": 10**400}}, "not the entropies of a run (OverflowError"),
        (lambda v: {"entropy_by_position": v["entropy_by_position"][1:]}, "of 11 layers, entropy_mean of 12"),
        (lambda v: {"entropy_mean": in_bits(v), "maximum": {"observed": max(map(max, in_bits(v)))}}, "nats"),
    ],
)
def test_entropies_that_cannot_be(root, changed, said):
    path = root / "results/laptop/sm-ln-g/entropy.json"
    change(root, "entropy.json", **changed(json.loads(path.read_text())))
    found = load(root)
    assert found.first("sm-ln-g").entropy is None and len(found.problems) == 1
    assert found.problems[0].startswith("results/laptop/sm-ln-g/entropy.json: ") and said in found.problems[0]
