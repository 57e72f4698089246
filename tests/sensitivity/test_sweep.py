"""The stage at scale smoke, its files, and what of them is kept."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from aero.attention_kernels import CORES, Core, Kernel
from aero.errors import UserError
from aero.pipeline import ROOT
from aero.report.results import load
from aero.report.sensitivity import sweep, table_1_csv
from aero.sensitivity.setting import LAYERS
from aero.sensitivity.stacked import Trained
from aero.sensitivity.sweep import diverged_at, figure_rate, largest, trace_rows
from stages import sensitivity as stage
from stages.keep import sensitivity_files


def lines(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "stages.sensitivity", "--scale", "smoke", "--to", str(root / "runs" / "sensitivity")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return root


def test_the_stage_leaves_every_core_rate_and_seed(project):
    folder = project / "runs" / "sensitivity"
    losses = lines(folder / "losses.csv")
    assert len(losses) == len(CORES) * 19 * 2
    assert {line["core"] for line in losses} == set(CORES)
    diverged = [line for line in losses if line["diverged_at_step"]]
    assert diverged and all(line["final_loss"] == line["entropy"] == "" for line in diverged)
    assert {line["core"] for line in lines(folder / "traces.csv")} == set(CORES)
    gains = lines(folder / "gains.csv")
    assert {line["core"] for line in gains} == {name for name, core in CORES.items() if core.gains}
    assert {int(line["layer"]) for line in gains} == set(range(LAYERS))
    about = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert about["scale"] == "smoke" and about["seeds"] == [0, 1] and about["setting"]["steps"] == 20


def test_diverging_rates_leave_a_number_in_every_row_of_table_1(project):
    measured = sweep(load(project))
    for core in CORES:
        found = measured.estimate(core)
        assert math.isfinite(found.mean) and 0 <= found.mean <= measured.initial[core].max()


@pytest.fixture
def in_process(tmp_path, monkeypatch):
    """A project in which the stage runs in this process, at ten steps and with few cores; the processor as before."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["scales"]["smoke"]["sensitivity"] |= {"steps": 10, "seeds": 2}
    values["sensitivity"] |= {"window": 2}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    threads, cores = torch.get_num_threads(), dict(CORES)
    for name in set(CORES) - {"softmax", "relu", "qk_layernorm"}:
        del CORES[name]
    yield tmp_path
    CORES.clear()  # all of them again in their order, which is that of the report's rows
    CORES.update(cores)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def test_a_new_core_is_measured_and_has_its_row(in_process):
    """One function and one line: nothing else is told of it."""
    core = Core("Softplus Kernel", Kernel(torch.nn.functional.softplus))
    CORES["softplus"] = core
    stage.main(["--scale", "smoke"])
    rows = list(csv.DictReader(io.StringIO(table_1_csv(load(in_process, "smoke")))))
    found = {row["column"]: row for row in rows if row["row"] == "Softplus Kernel"}
    assert set(found) == {"sensitivity", "sensitivity clipped after", "sensitivity of each seed"}
    assert all(math.isfinite(float(row["measured"])) for row in found.values())
    assert float(found["sensitivity"]["measured"]) > 0 and float(found["sensitivity of each seed"]["measured"]) > 0
    assert all((row["published"], row["seeds"]) == ("", "2") for row in found.values())
    softmax = next(row for row in rows if row["row"] == "Softmax")
    assert found["sensitivity"]["measured"] != softmax["measured"]


def test_figures_at_a_rate_given_by_hand_say_so(in_process):
    folder = in_process / "runs" / "sensitivity"
    stage.main(["--scale", "smoke"])
    before = {name: (folder / name).read_text(encoding="utf-8") for name in ("losses.csv", "traces.csv")}
    assert not sweep(load(in_process, "smoke")).figure_rate_by_hand
    stage.main(["--scale", "smoke", "--figures-at", "0.0002"])
    measured = sweep(load(in_process, "smoke"))
    assert measured.figure_rate_by_hand and measured.about["figure_rate"] == 2e-4
    assert (folder / "losses.csv").read_text(encoding="utf-8") == before["losses.csv"]
    assert (folder / "traces.csv").read_text(encoding="utf-8") != before["traces.csv"]


def test_figures_at_a_rate_are_refused_for_another_sweep(in_process):
    folder = in_process / "runs" / "sensitivity"
    with pytest.raises(UserError, match="is not there; run python -m stages.sensitivity first"):
        stage.main(["--scale", "smoke", "--figures-at", "0.1"])
    shutil.copytree(ROOT / "results" / "sensitivity", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="steps 500 there, 10 here, window 50 there, 2 here, seeds .0, 1, 2"):
        stage.main(["--scale", "smoke", "--figures-at", "0.1"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_smoke_is_not_kept_and_uncommitted_code_is_refused(project, tmp_path):
    source, target = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    about = json.loads((project / "runs" / "sensitivity" / "sweep.json").read_text(encoding="utf-8"))
    for scale, commit, names in (
        ("smoke", "c" * 40, []),
        ("laptop", "c" * 40, ["losses.csv", "traces.csv", "gains.csv", "sweep.json"]),
    ):
        about |= {"scale": scale, "provenance": {"commit": commit}}
        (source / "sweep.json").write_text(json.dumps(about), encoding="utf-8")
        assert [b.name for _, b in sensitivity_files(source, target, False)] == names
    (source / "sweep.json").write_text(json.dumps(about | {"provenance": {"commit": "c+changes"}}), encoding="utf-8")
    with pytest.raises(UserError, match="made by uncommitted code"):
        sensitivity_files(source, target, False)
    assert sensitivity_files(source, target, True)


def trained(*final):
    """Three seeds at a rate for every value of `final`; l_0 = 2."""
    losses = torch.tensor(final)[None, :, None].repeat(2, 1, 3)
    return Trained(losses, losses, torch.full((2, 3), 2.0), torch.full((2, 3), 3.0))


def test_the_rate_of_the_figures():
    rates = (0.1, 0.3, 0.5)
    good, bad = trained(1.0, 1.0, 1.0), trained(1.0, math.nan, 5.0)
    assert figure_rate({"softmax": bad, "relu": good, "qk_layernorm": good}, rates, 1) == 0.3
    assert figure_rate({"softmax": bad, "relu": good, "qk_layernorm": bad}, rates, 1) == 0.3
    assert figure_rate({"softmax": bad, "relu": bad, "qk_layernorm": bad}, rates, 1) is None
    assert figure_rate({"softmax": good, "relu": good, "qk_layernorm": good}, rates, 1) is None


def test_what_is_not_finite_is_empty():
    assert largest(torch.tensor([1.0, math.inf, 3.0, math.nan])) == "3" and largest(torch.tensor([math.nan])) == ""
    assert diverged_at(torch.tensor([1.0, math.inf, 3.0])) == 1 and diverged_at(torch.ones(3)) == ""


def followed(losses, looked):
    """A training with these losses, looked at before the steps `looked`; its entropy is the step's number."""
    losses = torch.tensor(losses)[:, None, None]
    seen = torch.tensor(looked, dtype=torch.float32)[:, None, None, None].expand(-1, 1, 1, 5)
    columns = {key: seen.clone() for key in ("entropy", "frobenius", "variance")}
    return Trained(losses, 10 * losses, losses[:, 0], losses[:, 0], list(looked), columns)


def test_a_trace_shows_the_spike_between_two_looks():
    rows = trace_rows("softmax", followed([1.0, 9.0, 1.0, 2.0], [0, 2]), 0, (7,))
    assert [(row["seed"], row["step"], row["loss"], row["gradient_norm"]) for row in rows] == [
        (7, 0, "1", "10"),
        (7, 2, "9", "90"),
    ]
    assert rows[1]["entropy"] == "2" and rows[1]["entropy_std"] == "0"


def test_a_trace_shows_the_last_steps_before_a_divergence_and_what_is_at_the_end():
    """Of 1,000 steps every tenth; besides, the ten that can be seen before a loss is not finite, that step's included.
    At step 256 the weights are not finite either: no attention to look at."""
    losses = [3.0] * 254 + [50.0, 1e30, math.inf] + [math.nan] * 743
    found = followed(losses, range(1000))
    for values in found.seen.values():
        values[256] = math.nan
    rows = trace_rows("softmax", found, 0, (7,))
    assert [row["step"] for row in rows] == [*range(0, 250, 10), *range(246, 256)][: 25 + 10]
    assert [row["loss"] for row in rows[-3:]] == ["3", "50", "1e+30"] and rows[-1]["entropy"] == "255"
    ended = trace_rows("softmax", followed([3.0] * 995, range(995)), 0, (7,))
    assert [row["step"] for row in ended] == [*range(0, 995, 9), 994]


def test_losses_at_initialisation_are_of_the_last_batches(project):
    """Every core of a seed sees the same batches, so predicting 0 costs it the same; its untrained loss is its own."""
    rows = lines(project / "runs" / "sensitivity" / "losses.csv")
    zero = {(row["seed"], row["zero_loss"]) for row in rows}
    untrained = {(row["core"], row["seed"], row["initial_loss"]) for row in rows}
    assert len(zero) == 2 and len(untrained) == 2 * len(CORES)
    assert all(0.5 < float(row["zero_loss"]) < 10 for row in rows)
