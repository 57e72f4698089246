"""TensorBoard and Weights & Biases get every logged row, once, also after resuming."""

import sys
import time
import types

import pytest

from aero.errors import UserError
from aero.training.log import open_tracker

DONE = [{"step": 1, "train_loss": 3.0}, {"step": 10, "train_loss": 2.0}]
ROW = {"step": 20, "train_loss": 1.5, "eval_loss": None, "entropy_layer_3": 0.25}


def follow(tracker):
    tracker.begin(DONE)
    tracker.add(ROW)
    tracker.end()


def test_tensorboard_goes_on_behind_what_is_done(monkeypatch, tmp_path):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            calls.append((folder, purge_step))

        def add_scalar(self, *arguments):
            calls.append(arguments)

        def flush(self):
            pass

        def close(self):
            calls.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    follow(open_tracker("tensorboard", tmp_path, "sm", 1, "smoke", "0123456789ab"))
    assert calls == [
        (str(tmp_path / "tensorboard"), 11),
        ("train_loss", 1.5, 20),
        ("entropy/layer_3", 0.25, 20),
        "closed",
    ]


def test_weights_and_biases_goes_on_with_its_run(monkeypatch, tmp_path):
    calls = []
    writer = types.SimpleNamespace(
        log=lambda values, step: calls.append((values, step)), finish=lambda: calls.append("finished")
    )

    def init(**settings):
        calls.append((settings["id"], settings["resume"], settings["config"]))
        return writer

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    follow(open_tracker("wandb", tmp_path, "sm", 1, "smoke", "0123456789ab"))
    assert calls == [
        ("smoke-sm-1-01234567", "allow", {"run": "sm", "seed": 1, "scale": "smoke"}),
        ({"train_loss": 1.5, "entropy/layer_3": 0.25}, 20),
        "finished",
    ]


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named(monkeypatch, tmp_path, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{name} is not installed; pip install -e '.\[{name}\]' in your clone"):
        open_tracker(name, tmp_path, "sm", 1, "smoke", "0123456789ab")


def test_the_real_tensorboard_holds_every_step_once_after_resuming(tmp_path):
    """Where the extra is installed: what a killed training wrote beyond its state is not read twice."""
    pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = open_tracker("tensorboard", tmp_path, "sm", 1, "smoke", "0123456789ab")
    first.begin([])
    for row in (*DONE, ROW | {"train_loss": 9.0}):  # step 20 is lost with the process: the state is of step 10
        first.add(row)
    first.end()
    follow(open_tracker("tensorboard", tmp_path, "sm", 1, "smoke", "0123456789ab"))
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("train_loss")] == [(1, 3.0), (10, 2.0), (20, 1.5)]
    assert [(event.step, event.value) for event in found.Scalars("entropy/layer_3")] == [(20, 0.25)]


def test_the_real_weights_and_biases_takes_the_rows_offline(monkeypatch, tmp_path):
    """Where the extra is installed; nothing is sent."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    follow(open_tracker("wandb", tmp_path, "sm", 1, "smoke", "0123456789ab"))
    (file,) = tmp_path.rglob("*.wandb")
    assert "smoke-sm-1-01234567" in file.name and wandb.run is None
    until = time.monotonic() + 30  # its service writes on for a moment
    while b"train_loss" not in file.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    content = file.read_bytes()
    assert b"train_loss" in content and b"entropy/layer_3" in content
