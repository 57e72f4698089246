"""Training parameters: what goes together, what is refused, and that kept results still state the same recipe."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from aero.config import TrainParameters, load
from aero.records import read_all_metrics

ROOT = Path(__file__).resolve().parents[2]
LANGUINI = {
    "optimizer": "adam",
    "betas": (0.9, 0.95),
    "weight_decay": 0,
    "clip": None,
    "schedule": "cosine",
    "learning_rate": 6e-4,
    "final_learning_rate": 6e-6,
    "warmup_steps": 200,
}


@pytest.fixture
def values():
    return load(ROOT / "params.yaml").at_scale("gpu").active.train.model_dump()


def test_languini_recipe_is_stated_whole(values):
    recipe = TrainParameters(**(values | LANGUINI)).recipe()
    assert {name: recipe[name] for name in LANGUINI} == LANGUINI


def test_codeparrot_recipe_is_stated_as_the_kept_results_state_it():
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    kept = read_all_metrics(ROOT / "results/laptop").values()
    assert len(kept) >= 14
    for metrics in kept:
        assert json.loads(json.dumps(parameters.resolve(metrics["run"]).train.recipe())) == metrics["train"], metrics[
            "run"
        ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schedule": "cosine"}, "go together"),
        ({"final_learning_rate": 1e-5}, "go together"),
        ({"schedule": "cosine", "final_learning_rate": 1.0}, "exceeds learning_rate"),
        ({"optimizer": "adam"}, "needs weight_decay=0"),
        ({"warmup_steps": 10**6}, "exceeds steps"),
        ({"clip": 0.0}, "greater than 0"),
    ],
)
def test_what_does_not_go_together_is_refused(values, changes, told):
    with pytest.raises(ValidationError, match=told):
        TrainParameters(**(values | changes))
