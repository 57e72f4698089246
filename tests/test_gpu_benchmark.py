"""The GPU benchmark in small on the CPU: the form of its file, its arithmetic, and the report's tables of it."""

import json
import math
from functools import partial

import pytest
import torch

from aero import row_entropy
from aero.architecture import parse
from aero.errors import UserError
from benchmarks import gpu
from benchmarks.__main__ import ALL


def test_flops_and_overheads_by_hand():
    sizes = gpu.Sizes()
    # 12 layers of 8 d^2 (attention), 3 T d + d and 16 d^2 (FFN: 4 d x 4d), and 2 d V; three times, for 16,384 tokens
    forward = 12 * (24 * 768**2 + 3 * 128 * 768 + 768) + 2 * 768 * 50257
    assert gpu.step_flops("SM+LN+G", 128, sizes) == pytest.approx(3 * forward * 16384)
    steps = [
        {"architecture": "SM(t)+LN+G", "context": 128, "compiled": True, "tokens_per_second": 110.0},
        {"architecture": "EReg(SM(t)+LN+G)", "context": 128, "compiled": True, "tokens_per_second": 100.0},
        {"architecture": "EReg(SM(t)+LN+G)", "context": 512, "compiled": True, "tokens_per_second": 100.0},
    ]
    assert [(line["context"], round(line["overhead"], 3)) for line in gpu.overheads(steps)] == [(128, 0.1)]
    assert all(parse(row).entropy_regularized == row.startswith("EReg") for row in gpu.ROWS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    gpu.main(["--tiny", "--out", str(folder)])
    return folder / "gpu.json"


def test_every_part_is_measured_in_small(measured):
    found = json.loads(measured.read_text())
    assert found["tiny"] and found["left_out"] == [] and found["card"]["matrix_flops"] > 0
    assert {(line["architecture"], line["context"]) for line in found["steps"] if line["compiled"]} == {
        (row, context) for row in gpu.ROWS for context in (16, 32)
    }
    for line in found["steps"]:
        assert line["tokens_per_second_range"][0] <= line["tokens_per_second"] <= line["tokens_per_second_range"][1]
        flops = line["flops_per_step"] * line["tokens_per_second"] / line["tokens_per_step"]
        assert line["utilisation"] == pytest.approx(flops / found["card"]["matrix_flops"])
    for line in found["attention"]:
        assert line["seconds"] > 0 and (line["entropy_error"] is None or line["entropy_error"] < 1e-5)
    assert {line["way"] for line in found["attention"]} >= {"matrix", "blocks", "no entropy, bf16"}
    assert len(found["overhead"]) == 6 and all(line["kernels"] for line in found["profile"])


def test_errors_of_output_entropies_and_gradients_are_recorded(measured):
    """At every size of logits, and as small as float32's: `assert_as_exact_as_float32` of test_row_entropy.py."""
    found = json.loads(measured.read_text())
    assert {(line["context"], line["logits"]) for line in found["errors"]} == {
        (context, size) for context in (16, 32) for size in (1, 12, 100)
    }
    assert gpu.Sizes().attention[-1] == 4096
    for line in found["errors"]:
        assert line["errors"].keys() == {"output", "entropy", "d_query", "d_key", "d_value"} and "failed" not in line
        assert 2 < line["largest_logit"] / line["logits"] < 8
        for what, error in line["errors"].items():
            size = 1.0 if what == "entropy" else line["largest"][what]
            assert error <= 2 * math.sqrt(16) * 1.2e-7 * line["largest_logit"] * size + 1e-6


def test_an_error_in_any_head_is_seen(monkeypatch):
    """Of the fused way and of what it is compiled to, here by a stand-in for the kernel."""

    def kernel(query, key, values, scale):
        future = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        logits = (scale * query @ key.mT).masked_fill(future, -torch.inf)
        return logits.softmax(-1) @ values, logits.logsumexp(-1)

    def compiled(function):
        off = torch.zeros(2, 2, 1, 1)
        off[1, 1] = 0.5  # the last head of the last sequence

        def way(query, key, value, scale):
            key = key + 0.0
            key.register_hook(lambda gradient: gradient + off)
            return function(query, key, value, scale)

        return way

    monkeypatch.setattr(gpu, "can_fuse", lambda query, value: True)
    monkeypatch.setattr(gpu, "fused", partial(row_entropy.fused, attend=kernel))
    monkeypatch.setattr(torch, "compile", compiled)
    by = {line["way"]: line["errors"] for line in gpu.errors(32, gpu.TINY, "cpu") if line["logits"] == 1}
    assert max(by["flex"].values()) < 1e-5
    assert by["flex, compiled"]["d_key"] == pytest.approx(0.5, abs=1e-4) and by["flex, compiled"]["d_query"] < 1e-5


def test_a_way_that_fails_costs_no_other_its_errors(monkeypatch):
    def failing(*arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu, "blocked", failing)
    lines = gpu.errors(16, gpu.TINY, "cpu")
    assert {line["way"] for line in lines if line["errors"]} == {"matrix", "matrix, compiled"}
    assert {line["failed"] for line in lines if not line["errors"]} == {"RuntimeError: out of memory"}
    assert all(gpu.in_words(line) for line in lines)


def test_without_a_gpu_and_without_time_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "default_device", lambda: "cpu")
    with pytest.raises(UserError, match="no CUDA device here; --tiny"):
        gpu.main(["--out", str(tmp_path)])
    gpu.main(["--tiny", "--out", str(tmp_path), "--minutes", "0"])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["steps"] == [] and {entry["why"] for entry in found["left_out"]} == {"no time left"}


def test_one_part_that_fails_does_not_cost_the_others(tmp_path, monkeypatch):
    def failing(*arguments):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "step_speed", failing)
    monkeypatch.setattr(gpu, "profile", failing)
    gpu.main(["--tiny", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["attention"] and {entry["why"] for entry in found["left_out"]} == {"RuntimeError: no such kernel"}


def test_the_profile_comes_before_the_errors_and_all_has_time_in_make_bench(tmp_path, monkeypatch):
    order = []
    for part in ("step_speed", "attention", "profile", "errors"):
        monkeypatch.setattr(gpu, part, lambda *_, part=part: order.append(part) or [])
    gpu.main(["--tiny", "--out", str(tmp_path)])
    assert list(dict.fromkeys(order)) == ["step_speed", "attention", "profile", "errors"]
    given = ALL["gpu"][0]
    assert float(given[given.index("--minutes") + 1]) > 7  # what docs/gpu.md gives it on a lent machine
