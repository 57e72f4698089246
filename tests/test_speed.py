"""The speed measurements: what they compare is the same computation, and their arithmetic is by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aero.architecture import parse
from aero.entropy import entropy_regularization
from aero.model import GPT, ModelConfig
from benchmarks import pipeline, regularized_step, timing, tokenizing, training_step
from benchmarks.__main__ import ALL, of_this_machine
from benchmarks.regularized_step import algorithm_1
from benchmarks.timing import Side, in_turn
from benchmarks.training_step import Shape, batch_of, our_model, side_of, their_model

ROOT = Path(__file__).resolve().parents[1]
TINY = Shape(16, 8, 50)


def test_both_sides_of_a_training_step_train_the_same_model(monkeypatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    sides = {name: side_of(name, TINY) for name in (training_step.OWN, training_step.THEIRS)}
    losses = {name: [step()["loss"] for _ in range(4)] for name, step in sides.items()}
    assert losses["aero"] == pytest.approx(losses["transformers"], rel=1e-4)
    assert losses["aero"][-1] < losses["aero"][0]


def test_every_side_of_a_regularised_step_trains_the_same_model(monkeypatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    # An untrained head is at ln(8!) / 8, 0.14 ln 8 above its threshold: beyond this margin, within the benchmark's own.
    monkeypatch.setattr(regularized_step, "GAMMA", 0.05)
    sides = {name: regularized_step.side_of(name, TINY) for name in regularized_step.TRAINING}
    steps = {name: [step() for _ in range(2)] for name, step in sides.items()}
    losses = {name: [step["loss"] for step in found] for name, found in steps.items()}
    assert all(found == pytest.approx(losses["aero"], rel=1e-3) for found in losses.values()), losses
    penalties = {name: [step["penalty"] for step in found] for name, found in steps.items()}
    at_first = (math.lgamma(9) / 8 - regularized_step.THRESHOLD * math.log(8)) ** 2
    assert penalties["aero"][0] == pytest.approx(at_first, rel=0.02)
    for name in ("authors", "authors, allocator as it comes"):
        assert penalties[name] == pytest.approx(penalties["aero"], rel=1e-3)
    assert penalties["plain"] == penalties["transformers"] == [0.0, 0.0]


def test_their_model_has_our_weights(monkeypatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    model, ids = our_model(TINY), batch_of(TINY)
    with torch.no_grad():
        theirs = their_model(TINY, model)(ids)
        torch.testing.assert_close(theirs.logits, model(ids), atol=1e-5, rtol=0)
    assert theirs.past_key_values is None  # as in a training by their Trainer


def test_the_authors_loop_is_algorithm_1_by_hand():
    # One layer, two heads, T=2: entropies 0 and ln 2 of the second row, so 0 and (ln 2) / 2 on average.
    sharp, even = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.5, 0.5]]
    attention = torch.tensor([[sharp, even]])
    thresholds = torch.tensor([[0.3, 0.5]])
    margin = 0.2
    expected = ((0.3 * math.log(2)) ** 2 + 0.0) / 2  # the second head is on its threshold
    assert algorithm_1([attention], thresholds, margin).item() == pytest.approx(expected, abs=1e-6)


def test_the_authors_loop_agrees_with_our_regulariser():
    torch.manual_seed(0)
    model = GPT(parse("EReg(SM+LN+G)"), ModelConfig(50, 8, 3, 4, 16, 64, vo_bias=True, ffn_bias=True, init_std=0.4))
    ids = torch.randint(0, 50, (2, 8))
    shape = Shape(16, 8, 50)
    _, entropies = model(ids, entropy=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_step, "LAYERS", 3)
        theirs = their_model(shape, model, "eager")
    attentions = theirs(ids, output_attentions=True).attentions
    thresholds = torch.rand(3, 4)
    ours = entropy_regularization(entropies, thresholds, 0.1, "head_mean")
    assert ours.item() > 0
    assert algorithm_1(attentions, thresholds, 0.1).item() == pytest.approx(ours.item(), rel=1e-4)


def test_flops_of_a_shape_by_hand():
    # A token of GPT-2 small at T=128: 24 d^2 + 3 T d + d in each of 12 layers, and 2 d V.
    expected = 12 * (24 * 768**2 + 3 * 128 * 768 + 768) + 2 * 768 * 1024
    assert Shape(768, 128, 1024).flops_per_token("SM+LN+G") == pytest.approx(expected)


def test_sides_take_turns_and_tell_of_a_failure(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings = {"shape": {"width": 16, "context": 512, "vocabulary": 50}, "threads": 1}
    with Side("benchmarks.training_step", side="aero", **settings) as side:
        found = in_turn({"aero": side}, 2)
    assert len(found["aero"]) == 2 and all(0 < step["passes"] < step["seconds"] for step in found["aero"])
    with Side("benchmarks.training_step", side="aero", shape={}, threads=1) as side:
        with pytest.raises(RuntimeError, match="ended with status 1"):
            side.wait()


PEAK = """
from benchmarks import timing
before = timing.peak_bytes()
text = bytearray(64 * 2**20)
text[::4096] = bytes([1]) * len(text[::4096])
print(before, timing.peak_bytes())
"""


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    size = 600 * 2**20
    own = bytearray(size)
    own[::4096] = bytes([1]) * len(own[::4096])  # every page is in use, and so in what a child's ru_maxrss begins with
    command = [sys.executable, "-c", PEAK]
    run = subprocess.run(command, cwd=ROOT, env=pipeline.environment(ROOT), capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    assert before < size / 2 and 60 * 2**20 < after - before < 100 * 2**20


def test_ratios_are_taken_repeat_by_repeat():
    assert timing.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_exponents_by_hand():
    assert timing.exponent([128, 256, 512], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert timing.exponent([1, 2], [5.0, 5.0]) == pytest.approx(0.0)
    # Least squares over 0, 1 and 3 doublings with values at 0, 0 and 3 doublings: (1.6667 3) / 4.6667.
    assert timing.exponent([1, 2, 8], [5.0, 5.0, 40.0]) == pytest.approx(15 / 14)


def test_a_repeated_corpus_is_as_much_longer():
    once, twice = (sum(map(len, tokenizing.Repeated(times).documents("valid"))) for times in (1, 2))
    assert once == twice > 0
    assert len(list(tokenizing.Repeated(2)._once.documents("valid"))) > 0


def test_every_benchmark_of_the_list_is_a_command_and_wrong_names_are_told():
    for name in ALL:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file()
    command = [sys.executable, "-m", "benchmarks", "trainingstep"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=pipeline.environment(ROOT))
    assert run.returncode == 1 and run.stderr.startswith(
        "error: unknown benchmark 'trainingstep'; known: training_step"
    )


@pytest.mark.parametrize("available", [True, False])
def test_the_gpu_is_measured_where_there_is_one(monkeypatch, available):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert of_this_machine() == [name for name in ALL if available or name != "gpu"]


def test_jobs_are_compared_in_pairs_whose_order_alternates(monkeypatch):
    taken = []
    monkeypatch.setattr(pipeline, "train", lambda root, names, jobs: taken.append(jobs) or float(jobs))
    assert pipeline.by_jobs(ROOT, ["a"], 3) == {1: [1.0] * 3, 2: [2.0] * 3}
    assert taken == [1, 2, 2, 1, 1, 2]


@pytest.mark.parametrize("told", ["Running stage 'report':", "Stage 'report' didn't change"])
def test_a_plain_repro_that_had_something_to_do_is_no_idle_one(monkeypatch, told):
    monkeypatch.setattr(pipeline, "said", lambda *_: told)
    with pytest.raises(RuntimeError, match="had something to do"):
        pipeline.repro_as_typed(ROOT)


def test_a_file_says_where_it_was_made(tmp_path):
    timing.save("made", {"x": 1}, tmp_path)
    found = json.loads((tmp_path / "made.json").read_text())
    assert found["x"] == 1 and {"commit", "machine", "torch", "measured"} <= set(found["provenance"])
