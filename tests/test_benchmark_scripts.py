"""The benchmarks: both sides compute the same, and their arithmetic is checked by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from small_models import build, ids
from tiny_hugging_face import save_with_tokenizer, tiny

from aero.entropy import entropy_regularization
from aero.records import read_csv
from aero.schema import Network
from aero.two_party.program.operations import Operation
from benchmarks import (
    faults,
    finetune,
    generation,
    gpu,
    optimizations,
    pipeline,
    regularized_step,
    server_soak,
    shaped_network,
    timing,
    training_step,
)
from benchmarks.__main__ import ALL
from benchmarks.entropy_memory import peak_of
from benchmarks.timing import in_turn
from benchmarks.training_step import Shape, algorithm_1, batch_of, our_model, side_of, their_model

ROOT = Path(__file__).resolve().parents[1]
TINY = Shape(16, 8, 50)


def test_both_sides_of_a_training_step_train_the_same_model(monkeypatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    model, ids = their_model(TINY), batch_of(TINY)
    with torch.no_grad():
        found = model(ids)
        torch.testing.assert_close(our_model(TINY, model)(ids), found.logits, atol=1e-5, rtol=0)
    assert found.past_key_values is None  # as in a training by their Trainer
    ours, theirs = (side_of(name, TINY) for name in ("plain", "transformers"))
    losses = [ours()["loss"] for _ in range(4)]
    assert losses == pytest.approx([theirs()["loss"] for _ in range(4)], rel=1e-4)
    assert losses[-1] < losses[0]


def test_every_side_of_a_regularised_step_trains_the_same_model(monkeypatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    # An untrained head is at ln(8!) / 8, 0.14 ln 8 above its threshold: beyond this margin, within the benchmark's own.
    monkeypatch.setattr(training_step, "GAMMA", 0.05)
    sides = {name: side_of(name, TINY) for name in regularized_step.TRAINING}
    steps = {name: [step() for _ in range(2)] for name, step in sides.items()}
    losses = {name: [step["loss"] for step in found] for name, found in steps.items()}
    assert all(found == pytest.approx(losses["aero"], rel=1e-3) for found in losses.values()), losses
    penalties = {name: [step["penalty"] for step in found] for name, found in steps.items()}
    at_first = (math.lgamma(9) / 8 - training_step.THRESHOLD * math.log(8)) ** 2
    assert penalties["aero"][0] == pytest.approx(at_first, rel=0.02)
    assert penalties["authors"] == pytest.approx(penalties["aero"], rel=1e-3)
    assert penalties["plain"] == penalties["transformers"] == [0.0, 0.0]


def test_the_authors_loop_is_algorithm_1_by_hand():
    # One layer, two heads, T=2: entropies 0 and ln 2 of the second row, so 0 and (ln 2) / 2 on average.
    sharp, even = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.5, 0.5]]
    attention = torch.tensor([[sharp, even]])
    thresholds = torch.tensor([[0.3, 0.5]])
    margin = 0.2
    expected = ((0.3 * math.log(2)) ** 2 + 0.0) / 2  # the second head is on its threshold
    assert algorithm_1([attention], thresholds, margin).item() == pytest.approx(expected, abs=1e-6)


def test_the_authors_loop_agrees_with_our_regulariser(monkeypatch):
    monkeypatch.setattr(training_step, "LAYERS", 3)
    theirs, ids = their_model(TINY, "eager"), torch.randint(0, 50, (2, 8))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(20)  # far from uniform attention
    _, entropies = our_model(TINY, theirs)(ids, entropy=True)
    attentions = theirs(ids, output_attentions=True).attentions
    thresholds = torch.rand(3, 4)
    ours = entropy_regularization(entropies, thresholds, 0.1, "head_mean")
    assert ours.item() > 0
    assert algorithm_1(attentions, thresholds, 0.1).item() == pytest.approx(ours.item(), rel=1e-4)


def test_sides_take_turns_and_tell_of_a_failure(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with timing.side(peak_of, 1, way="matrix", context=256) as matrix, timing.side(json.loads) as none:
        (found,) = in_turn({"matrix": matrix}, 1, warm_ups=0)["matrix"]  # a second step takes memory the first freed
        assert 1e6 < found["peak_bytes"] < 1e8
        with pytest.raises(BrokenProcessPool):
            in_turn({"none": none}, 1)


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


def test_every_benchmark_of_the_list_is_a_command_and_wrong_names_are_told():
    for name in ALL:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file()
    command = [sys.executable, "-m", "benchmarks", "trainingstep"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=pipeline.environment(ROOT))
    assert run.returncode == 1
    assert run.stderr.startswith("error: unknown benchmark 'trainingstep'; known: training_step")


@torch.no_grad()
def test_maxima_of_the_rows_of_one_head_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizations, "FOLDER", tmp_path)
    model, tokens = build("SM+LN+G"), ids()
    block, states = model.blocks[0], model.hidden_states(tokens)[0][0]
    logits = block.attention.matrices(block.ln_1(states))[1].tolist()  # (B, H, T, T)
    tops = [[max(row[: i + 1]) for one in logits for i, row in enumerate(one[head])] for head in range(2)]
    optimizations.measure_maxima("sm-ln-g", model, tokens)
    every, one = (float(read_csv(tmp_path / "row_maxima.csv")[0][name]) for name in ("all_positions", "one_position"))
    assert 0 < one <= every == pytest.approx(max(max(top) - min(top) for top in tops), abs=0.006)


def test_the_gpu_benchmark_runs_in_small_on_a_cpu(tmp_path):
    gpu.main(["--tiny", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert not found["left_out"] and len(found["steps"]) == 7
    assert all(step["tokens_per_second"] > 0 for step in found["steps"])
    assert {line["architecture"] for line in found["overhead"]} == {"EReg(SM(t)+LN+G)", "EReg(SM(t)+ScFuFFN)"}


@pytest.mark.slow
def test_the_server_of_the_soak_answers(tmp_path):
    with server_soak.served(tmp_path) as (serving, model, connect, _):
        token = server_soak.clear_answers(model)[0]
        assert server_soak.ask(connect(), token) == server_soak.expected(model, token)
        assert "1 new after 1 tokens" in serving.line(1)


def test_a_damaged_result_is_seen(tmp_path):
    (tmp_path / "metrics.json").write_text('{"a": 1, "seconds": 2}')
    whole = faults.content_hash(tmp_path / "metrics.json")
    (tmp_path / "metrics.json").write_text('{"a": 1, "seconds": 3}')
    assert faults.content_hash(tmp_path / "metrics.json") == whole
    for name, text in (("metrics.json", '{"a": 1'), ("log.csv", "a,b\n1\n"), ("checkpoint.safetensors", "x")):
        (tmp_path / name).write_text(text)
        assert faults.content_hash(tmp_path / name).startswith("damaged")


def test_a_latency_is_predicted_from_costs_by_hand():
    one = Operation("relu", ((2, 3),))
    costs = {("relu", "2x3"): shaped_network.Cost("relu", "2x3", 0.5, 1e6, 2.0, 2e6, 10.0)}
    costs["refill", ""] = shaped_network.Cost("refill", "", 1.0, 0.0, 4.0, 266e3, 1281.0)
    found = shaped_network.predict({one: 3}, costs, 1, Network(bandwidth_mbit=100, rtt_ms=80))
    assert found == pytest.approx({"compute": 2.5, "transfer": 3e6 / 12.5e6, "rounds": 10 * 0.08})
    assert sum(shaped_network.predict({one: 3}, costs, 1, None).values()) == 2.5
    assert shaped_network.refills_of({one: 3}, costs, 30 + 2 * 1281) == 2


@pytest.mark.slow
def test_fine_tuning_learns_and_the_penalty_moves_entropy(tmp_path):
    tokenizer = save_with_tokenizer(tiny("llama", vocab_size=257, max_position_embeddings=128), tmp_path / "tiny")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.save_pretrained(tmp_path / "tiny")
    out = tmp_path / "found.csv"
    arguments = [str(tmp_path / "tiny"), "--steps", "8", "--learning-rate", "1e-2", "--out", str(out)]
    finetune.main([*arguments, "--weights", "0", "0.1"])
    before, plain, penalised = read_csv(out)
    assert float(plain["perplexity"]) < float(before["perplexity"])
    assert abs(float(penalised["entropy"]) - float(plain["entropy"])) > 0.001 and penalised["lambda"] == "0.1"


@pytest.mark.slow
def test_next_tokens_of_a_hugging_face_model_are_pytorchs(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = tiny("llama", vocab_size=256, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
    save_with_tokenizer(model, tmp_path / "tiny")
    arguments = ["--model", str(tmp_path / "tiny"), "--prefix", "<", "--out", str(tmp_path / "found.csv")]
    generation.main(arguments)
    lines = read_csv(tmp_path / "found.csv")
    assert [(line["rows"], line["past"]) for line in lines] == [("14", "0"), ("1", "14"), ("1", "15"), ("16", "0")]
    assert all(float(line["logit_error"]) < 0.02 for line in lines)
    assert float(lines[1]["bytes"]) < float(lines[-1]["bytes"])
    generation.main([*arguments, "--proposed", "3"])
    lines = read_csv(tmp_path / "found.csv")[4:]
    assert [(line["rows"], line["past"]) for line in lines] == [("8", "0"), ("4", "8"), ("4", "12")]
    assert all(float(line["logit_error"]) < 0.02 for line in lines) and 1 <= float(lines[-1]["tokens_per_pass"]) <= 4
