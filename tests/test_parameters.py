"""params.yaml: what it accepts, and one clear line for what it does not."""

import copy
from pathlib import Path

import pytest
import yaml

from aero.parameters import Parameters, load

ROOT = Path(__file__).resolve().parents[1]
VALUES = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def changed(tmp_path, place, value):
    values = copy.deepcopy(VALUES)
    target = values
    *parents, last = place.split(".")
    for part in parents:
        target = target[part]
    target[last] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_the_committed_file_is_valid_and_complete():
    parameters = load(ROOT / "params.yaml")
    assert set(parameters.scales) == {"smoke", "laptop", "gpu", "paper"} and parameters.scale == "laptop"
    assert len(parameters.active_runs) == 14 and parameters.seeds[0] == 1337
    assert parameters.two_party_model()[0].width == 768 and parameters.at_scale("smoke").two_party_model()[1] == 16


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("scale", "labtop", "did you mean 'laptop'"),
        ("scales.laptop.model.heads", 7, "not divisible by heads 7"),
        ("scales.laptop.train.steps", 0, "scales.laptop.train.steps"),
        ("scales.laptop.train.stepz", 5, "stepz"),
        ("runs.sm.architecture", "SM+LN+Q", "'Q'"),
        ("runs.sm.overrides", {"learning_rat": 1}, "learning_rat"),
        ("active_runs", ["sm", "smm"], "did you mean 'sm'"),
        ("two_party.end_to_end_runs", ["nothing"], "unknown run 'nothing'"),
        ("scales.smoke.end_to_end_runs", ["sm-r"], "sm-r must be in two_party.end_to_end_runs"),
        ("corpus.name", "books", "python_stdlib"),
        ("corpus.name", "local", "corpus.path"),
        ("regularizer.gamma", -0.1, "regularizer.gamma"),
        ("seeds", [], "seeds"),
        ("scales.smoke.model.layers", 5, "prunes 6 FFNs"),
    ],
)
def test_one_line_names_key_and_remedy(tmp_path, place, value, named):
    with pytest.raises(ValueError) as caught:
        load(changed(tmp_path, place, value))
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_missing_or_broken_file(tmp_path):
    with pytest.raises(ValueError, match="root folder"):
        load(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(ValueError, match="not valid YAML"):
        load(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("3", encoding="utf-8")
    with pytest.raises(ValueError, match="mapping"):
        load(tmp_path / "params.yaml")


def test_overrides_reach_the_training():
    values = copy.deepcopy(VALUES)
    values["runs"]["sm"]["overrides"] = {"learning_rate": 0.5}
    parameters = Parameters.model_validate(values)
    assert parameters.train("sm").learning_rate == 0.5
    assert parameters.train("sm-r").learning_rate == VALUES["scales"]["laptop"]["train"]["learning_rate"]
    values["runs"]["sm"]["overrides"] = {"learning_rate": -1}
    with pytest.raises(ValueError, match="runs.sm.overrides"):
        Parameters.model_validate(values).train("sm")


def test_position_sum_weight_means_the_same_for_every_batch():
    regularizer = load(ROOT / "params.yaml").regularizer
    assert regularizer.weight(128, 128) == pytest.approx(1e-5)
    assert regularizer.weight(16, 64) * 16 * 64 == pytest.approx(1e-5 * 128 * 128)
    assert regularizer.model_copy(update={"reduction": "head_mean"}).weight(16, 64) == pytest.approx(1e-5)


def test_every_run_of_params_is_a_published_row_and_the_other_way_round():
    from aero import published

    for name, run in VALUES["runs"].items():
        printed = {f"aero/table{table}/{row}" for table, row in published.rows_of_run(name) if table in ("2", "4")}
        assert printed == set(run["rows"]), name
    all_rows = [row for run in VALUES["runs"].values() for row in run["rows"]]
    assert len(all_rows) == len(set(all_rows)) == 16
