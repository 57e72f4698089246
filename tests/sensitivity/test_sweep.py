"""The stages of the sweep and of the theory at scale smoke, and the rows that they write."""

from __future__ import annotations

import csv
import json
import math

import pytest
import torch
import yaml

from aero.attention_kernels import CORES
from aero.errors import UserError
from aero.sensitivity.setting import LAYERS
from aero.sensitivity.stacked import Trained
from aero.sensitivity.sweep import figure_rate, trace_rows
from stages import sensitivity as stage


def lines(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose sweep is ten steps long, with three cores."""
    folder = tmp_path_factory.mktemp("project")
    with open("params.yaml", encoding="utf-8") as file:
        values = yaml.safe_load(file)
    values["scales"]["smoke"]["sensitivity"] |= {"steps": 10, "seeds": 2}
    values["sensitivity"] |= {"window": 2}
    (folder / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(stage, "CORES", {name: CORES[name] for name in ("softmax", "relu", "qk_layernorm")})
        threads = torch.get_num_threads()
        stage.main(["--scale", "smoke"])
        yield folder / "runs" / "sensitivity"
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def test_stage_writes_every_core_rate_and_seed(project):
    losses = lines(project / "losses.csv")
    assert len(losses) == 3 * 19 * 2 and {line["core"] for line in losses} == {"softmax", "relu", "qk_layernorm"}
    diverged = [line for line in losses if line["diverged_at_step"]]
    assert diverged and all(line["final_loss"] == line["entropy"] == "" for line in diverged)
    gains = lines(project / "gains.csv")
    assert {line["core"] for line in gains} == {"qk_layernorm"}
    assert {int(line["layer"]) for line in gains} == set(range(LAYERS))
    about = json.loads((project / "sweep.json").read_text(encoding="utf-8"))
    assert about["scale"] == "smoke" and about["seeds"] == [0, 1] and about["setting"]["steps"] == 10
    zero = {(line["seed"], line["zero_loss"]) for line in losses}
    untrained = {(line["core"], line["seed"], line["initial_loss"]) for line in losses}
    assert len(zero) == 2 and len(untrained) == 2 * 3, "cores share their batches and start from their own loss"


def test_figures_at_a_manual_rate(project):
    before = {name: (project / name).read_text(encoding="utf-8") for name in ("losses.csv", "traces.csv")}
    stage.main(["--scale", "smoke", "--figures-at", "0.0002"])
    about = json.loads((project / "sweep.json").read_text(encoding="utf-8"))
    assert about["figure_rate_by_hand"] and about["figure_rate"] == 2e-4
    assert (project / "losses.csv").read_text(encoding="utf-8") == before["losses.csv"]
    assert (project / "traces.csv").read_text(encoding="utf-8") != before["traces.csv"]
    (project / "sweep.json").write_text(json.dumps(about | {"seeds": [0]}), encoding="utf-8")
    with pytest.raises(UserError, match="another setting or other seeds"):
        stage.main(["--scale", "smoke", "--figures-at", "0.1"])


def trained(*final):
    """Three seeds at a rate for every value of `final`; l_0 = 2."""
    losses = torch.tensor(final)[None, :, None].repeat(2, 1, 3)
    return Trained(losses, losses, torch.full((2, 3), 2.0), torch.full((2, 3), 3.0))


def test_learning_rate_of_the_figures():
    rates = (0.1, 0.3, 0.5)
    good, bad = trained(1.0, 1.0, 1.0), trained(1.0, math.nan, 5.0)
    assert figure_rate({"softmax": bad, "relu": good, "qk_layernorm": good}, rates, 1) == 0.3
    assert figure_rate({"softmax": bad, "relu": good, "qk_layernorm": bad}, rates, 1) == 0.3
    assert figure_rate({"softmax": bad, "relu": bad, "qk_layernorm": bad}, rates, 1) is None
    assert figure_rate({"softmax": good, "relu": good, "qk_layernorm": good}, rates, 1) is None


def observed(losses):
    """A training with these losses, observed before every step; its entropy is the step's number."""
    losses = torch.tensor(losses)[:, None, None]
    seen = torch.arange(len(losses), dtype=torch.float32)[:, None, None, None].expand(-1, 1, 1, 5)
    columns = {key: seen.clone() for key in ("entropy", "frobenius", "variance")}
    return Trained(losses, 10 * losses, losses[:, 0], losses[:, 0], columns)


def test_trace_keeps_spikes_between_two_plotted_steps():
    rows = trace_rows("softmax", observed([1.0, 9.0, 1.0, 2.0] * 50), (7,))
    assert [(row["seed"], row["step"], row["loss"], row["gradient_norm"]) for row in rows[:2]] == [
        (7, 0, "1", "10"),
        (7, 2, "9", "90"),
    ]
    assert rows[1]["entropy"] == "2" and rows[1]["entropy_std"] == "0"


def test_trace_has_the_last_steps_before_a_divergence():
    """Of 1,000 steps every tenth, and the ten before the loss is not finite. At step 256 the weights are not finite
    either, so there is no attention to measure."""
    losses = [3.0] * 254 + [50.0, 1e30, math.inf] + [math.nan] * 743
    found = observed(losses)
    for values in found.statistics.values():
        values[256] = math.nan
    rows = trace_rows("softmax", found, (7,))
    assert [row["step"] for row in rows] == [*range(0, 250, 10), *range(246, 256)]
    assert [row["loss"] for row in rows[-3:]] == ["3", "50", "1e+30"] and rows[-1]["entropy"] == "255"
    ended = trace_rows("softmax", observed([3.0] * 995), (7,))
    assert [row["step"] for row in ended] == [*range(0, 995, 9), 994]
