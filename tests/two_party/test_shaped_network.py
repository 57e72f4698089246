"""The benchmark of passes over shaped links: passes of a tiny model in two processes, and predictions by hand."""

from __future__ import annotations

import csv
import dataclasses
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
from made_models import SIZES, random_model

from aero.architecture import parse
from aero.errors import UserError
from aero.model import ModelConfig
from aero.two_party.cost.network import Network
from aero.two_party.program.forward import operations
from aero.two_party.runtime.settings import Settings
from benchmarks import shaped_network
from benchmarks.latency import Cost
from benchmarks.shaped_network import COLUMNS, check_predictable, keep_passes, keep_predictions

CONFIG = ModelConfig(**SIZES)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(shaped_network, "PASSES", tmp_path / "shaped.csv")
    monkeypatch.setattr(shaped_network, "OPERATIONS", tmp_path / "shaped_ops.csv")
    return tmp_path


def lines(path):
    return list(csv.DictReader(path.open(newline="")))


def write_costs(path, counts, pass_bytes=0.0, refill=True):
    """Made costs of every operation; their bytes are together those of the pass."""
    columns = [field.name for field in dataclasses.fields(Cost)]
    each = pass_bytes / sum(counts.values())
    costs = [Cost(one.name, one.shape, 0.5, 1e6, 2.0, each, 10.0) for one in counts]
    costs += [Cost("refill", "", 1.0, 0.0, 4.0, 266e3, 1281.0)] * refill
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "provenance"])
        writer.writerows([*dataclasses.astuple(cost), "{}"] for cost in costs)


def test_passes_are_measured_on_each_network_and_predicted(files, monkeypatch):
    model = random_model("SM", layers=1)
    config = model.config
    stream = np.zeros((1, 1, config.context), np.int64)
    monkeypatch.setattr(shaped_network, "open_tokens", lambda folder: SimpleNamespace(valid=None))
    monkeypatch.setattr(
        shaped_network, "evaluation_batches", lambda *_: iter([[SimpleNamespace(numpy=lambda: stream[0, 0])]])
    )
    networks = {"loopback": None, "slow": Network(100, 4)}
    keep_passes(model, "tuned", Namespace(tokens=files), networks, Settings(), "{}")
    keep_predictions()
    assert not (files / "shaped_ops.csv").exists()
    counts = operations(parse("SM"), config, "tuned", config.context)
    write_costs(files / "shaped_ops.csv", counts, float(lines(files / "shaped.csv")[0]["bytes"]))
    keep_predictions()
    loopback, slow = lines(files / "shaped.csv")
    assert list(loopback) == list(COLUMNS)
    assert (loopback["network"], slow["network"], slow["bandwidth_mbit"]) == ("loopback", "slow", "100")
    assert float(slow["bytes"]) == pytest.approx(float(loopback["bytes"]), rel=0.2)
    # At least a round of an exponential and its maximum in each layer takes its 4 ms.
    assert float(slow["seconds"]) > config.layers * 20 * 0.004
    total, refills = sum(counts.values()), float(slow["refills"])
    assert float(slow["compute"]) == pytest.approx(0.5 * total + refills)
    assert float(slow["transfer"]) == pytest.approx(total * 1e6 / 12.5e6, abs=1e-3)
    assert float(slow["rounds"]) == pytest.approx((2 * total + 4 * refills) * 0.004, abs=1e-3)
    assert float(slow["error"]) == pytest.approx(float(slow["predicted"]) / float(slow["seconds"]) - 1, abs=1e-3)
    assert float(loopback["transfer"]) == float(loopback["rounds"]) == 0


def wan_line():
    """A pass of `CONFIG` that nothing is predicted of."""
    return dict.fromkeys(COLUMNS, "") | {
        "architecture": "SM",
        "program": "tuned",
        "model": shaped_network.as_json(**dataclasses.asdict(CONFIG)),
        "context": str(CONFIG.context),
        "network": "wan",
        "bandwidth_mbit": "100",
        "rtt_ms": "80",
        "seconds": "9.0",
        "messages": "100",
        "bytes": "2e6",
    }


def test_no_prediction_without_all_operations_or_the_open_link(files, capsys):
    counts = operations(parse("SM"), CONFIG, "tuned", CONFIG.context)
    some = dict(list(counts.items())[1:])
    write_costs(files / "shaped_ops.csv", some)
    line = wan_line()
    shaped_network.write(files / "shaped.csv", COLUMNS, [line])
    keep_predictions()
    assert lines(files / "shaped.csv")[0]["predicted"] == ""
    assert "lacks operations (" in capsys.readouterr().out
    write_costs(files / "shaped_ops.csv", counts, 2e6, refill=False)
    keep_predictions()
    assert lines(files / "shaped.csv")[0]["predicted"] == ""
    assert "lacks operations (refill)" in capsys.readouterr().out
    write_costs(files / "shaped_ops.csv", counts, 2e6)
    keep_predictions()
    assert lines(files / "shaped.csv")[0]["predicted"] == ""
    assert "lacks its loopback pass" in capsys.readouterr().out
    both = [line, line | {"network": "loopback", "bandwidth_mbit": ""}]
    # Passes that an earlier program made: their operations are none that would be asked for now.
    write_costs(files / "shaped_ops.csv", counts, 1e6)
    shaped_network.write(files / "shaped.csv", COLUMNS, both)
    keep_predictions()
    assert lines(files / "shaped.csv")[0]["predicted"] == ""
    assert "lacks a pass of today's program, whose bytes are others" in capsys.readouterr().out
    write_costs(files / "shaped_ops.csv", counts, 2e6)
    keep_predictions()
    assert float(lines(files / "shaped.csv")[0]["predicted"]) > 0


@pytest.mark.parametrize(
    ("refill", "each", "lack", "measured_by"),
    [
        (False, 2e6, r"SM tuned: without operations \(refill\)", "--only operations --missing"),
        (True, 1e6, "SM tuned: without a pass of today's program, whose bytes are others", "--only passes"),
    ],
)
def test_a_prediction_that_cannot_be_made_anew_stays(files, refill, each, lack, measured_by):
    """Nothing is written, and the error says once what is missing and what measures it."""
    counts = operations(parse("SM"), CONFIG, "tuned", CONFIG.context)
    write_costs(files / "shaped_ops.csv", counts, 2e6)
    line = wan_line()
    shaped_network.write(files / "shaped.csv", COLUMNS, [line, line | {"network": "loopback", "bandwidth_mbit": ""}])
    keep_predictions()
    before = (files / "shaped.csv").read_bytes()
    assert all(float(one["predicted"]) > 0 for one in lines(files / "shaped.csv"))
    write_costs(files / "shaped_ops.csv", counts, each, refill=refill)
    with pytest.raises(UserError, match=lack) as caught:
        keep_predictions()
    assert f"`python -m benchmarks.shaped_network {measured_by}`" in str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).count("SM tuned") == 1
    assert (files / "shaped.csv").read_bytes() == before


def test_a_predicted_pass_is_not_replaced_by_one_without_prediction(files, monkeypatch):
    """Refused before half an hour of measuring; where nothing was predicted, or all is there, nothing is said."""
    model = random_model("SM")
    assert model.config == CONFIG
    counts = operations(parse("SM"), CONFIG, "tuned", CONFIG.context)
    write_costs(files / "shaped_ops.csv", counts, 2e6, refill=False)
    line = wan_line()
    shaped_network.write(files / "shaped.csv", COLUMNS, [line, line | {"network": "lan", "predicted": "8.0"}])
    check_predictable(model, "tuned", ["wan"])
    check_predictable(model, "as_written", ["lan"])
    with pytest.raises(UserError, match=r"SM tuned: without operations \(refill\), `.* --only operations --missing`"):
        check_predictable(model, "tuned", ["wan", "lan"])
    monkeypatch.setattr(shaped_network.checkpoint, "load", lambda path: model)
    monkeypatch.setattr(shaped_network, "within_budget", lambda model, program: program)
    monkeypatch.setattr(shaped_network, "keep_passes", lambda *given: pytest.fail("it measures"))
    with pytest.raises(UserError, match="SM tuned: without"):
        shaped_network.main(["--only", "passes", "--runs", "sm", "--programs", "tuned", "--networks", "lan"])
    write_costs(files / "shaped_ops.csv", counts, 2e6)
    check_predictable(model, "tuned", ["lan"])
