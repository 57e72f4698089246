"""Trainings side by side: the same as alone up to rounding, within a time limit, and what is refused."""

import pytest
import torch
from small_project import whole_lines

from aero.config import load
from aero.data.tokens import open_tokens
from aero.errors import UserError
from aero.records import read_trainings
from aero.training.side_by_side import CapturedTraining, train_side_by_side
from aero.training.time_limited import Limit
from stages import train_limited

RUNS = ("sm-ln-g", "ereg-smt-scfuffn", "sm-snorm-ffn")


def test_trainings_side_by_side_are_those_trained_alone(inside):
    folder = inside(train={"clip": 0.5})
    train_limited.main([*RUNS, "--seeds", "3", "--out", "alone", "--state", "a"])
    train_limited.main([*RUNS, "--seeds", "3", "--out", "together", "--state", "t", "--together", "2"])
    alone, together = (read_trainings(folder / name) for name in ("alone", "together"))
    assert alone.keys() == together.keys() and len(alone) == 3
    for key, one in alone.items():
        other = together[key]
        assert other.metrics["config_hash"] == one.metrics["config_hash"] and other.curves.keys() == one.curves.keys()
        assert other.metrics["provenance"]["side_by_side"] == (1 if key[0] == RUNS[-1] else 2)
        assert other.metrics["eval_loss"] == pytest.approx(one.metrics["eval_loss"], rel=1e-5)
        for name in one.curves.keys() - {"seconds"}:
            for ours, theirs in zip(other.curves[name], one.curves[name], strict=True):
                assert ours is theirs is None or ours == pytest.approx(theirs, rel=1e-3, abs=1e-6), name
        for ours, theirs in zip(other.entropy["entropy_mean"], one.entropy["entropy_mean"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_run_that_the_limit_stops_resumes_and_ends_the_same(inside):
    folder, tokens, calls = inside(), open_tokens("runs/tokens"), []

    def train(name, limit):
        run = load().resolve("sm-r", 1)
        return list(train_side_by_side([run], lambda run: tokens, lambda run: folder / name, limit, 2, "cpu"))

    whole = train("whole", Limit())[0].metrics
    assert [ending.how for ending in train("parts", Limit(interrupted=lambda: calls.append(1) or len(calls) > 3))] == [
        "unfinished"
    ]
    assert (folder / "parts/resume.safetensors").is_file() and not whole_lines(folder / "parts/log.csv")
    resumed = train("parts", Limit())[0].metrics
    assert resumed["eval_loss"] == pytest.approx(whole["eval_loss"], rel=1e-6)
    assert not (folder / "parts/resume.safetensors").exists()


def test_what_is_not_finite_or_cannot_be_captured_is_reported(inside):
    folder, tokens = inside(train={"learning_rate": 1e30}), open_tokens("runs/tokens")
    run = load().resolve("sm-r", 1)
    endings = list(train_side_by_side([run], lambda run: tokens, lambda run: folder / "x", Limit(), 2, "cpu"))
    assert [(ending.how, ending.line) for ending in endings] == [
        ("failed", "a loss or gradient is not finite; train it alone")
    ]
    inside_float16 = load().resolve("sm-r", 1)
    settings = inside_float16.train.model_copy(update={"precision": "float16"})
    object.__setattr__(inside_float16, "train", settings)
    with pytest.raises(ValueError, match="sm-r accumulates gradients or trains in float16"):
        CapturedTraining(inside_float16, tokens, folder / "y", "cpu")
    with pytest.raises(UserError, match="--together 0: at least 1"):
        train_limited.main(["sm-r", "--out", "home", "--together", "0"])


def test_a_gradient_whose_norm_overflows_float32_is_clipped(inside, monkeypatch):
    folder, tokens = inside(), open_tokens("runs/tokens")
    training = CapturedTraining(load().resolve("sm-r", 1), tokens, folder / "x", "cpu")
    plain = training.trainer.losses
    monkeypatch.setattr(training.trainer, "losses", lambda ids: (plain(ids)[0] * 1e25, plain(ids)[1]))
    before = [parameter.clone() for parameter in training.trainer.model.parameters()]
    training.advance()
    assert training.log() and training.trainer.outcome.rows[0]["gradient_norm"] > 1e24
    moved = [(p - q).abs().max() for p, q in zip(training.trainer.model.parameters(), before, strict=True)]
    assert 0 < max(moved) < 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_captured_steps_on_a_gpu_equal_the_loop(inside):
    test_trainings_side_by_side_are_those_trained_alone(inside)
