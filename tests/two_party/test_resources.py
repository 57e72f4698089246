"""Seconds and bytes of SPU's kernels, sorted: a partition of the run, and an error for what is not known."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from aero.config import load
from aero.two_party.cost.cost_model import measured_operations
from aero.two_party.cost.counts import published_sizes
from aero.two_party.cost.network import Network
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.profile import Operation as Kernel
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import Settings
from benchmarks import resources
from benchmarks.resources import HE, LOCAL, OT, OTHER, PATH, Used, read, sorted_out

ROOT = Path(__file__).resolve().parents[2]


def kernel(name: str, seconds: float, sent: int = 0, level: str = "mpc") -> Kernel:
    return Kernel(level, name, 1, seconds, sent, 2 * sent, 1, 1)


def profile(*kernels: Kernel, seconds: float = 10.0, more: int = 0) -> Profile:
    sent = sum(one.bytes_sent for one in kernels if one.level == "mpc")
    return Profile(sent + more, 2 * sent, 5, 5, seconds, kernels)


RUN = profile(
    kernel("pphlo.dot", 9.0, 500, "pphlo"),  # what the kernels below did, once more: not counted
    kernel("mmul_sv", 6.0, 300),
    kernel("trunc_a", 2.0, 200),
    kernel("reshape", 0.5),
)


def test_kernels_are_a_partition_of_the_run_by_hand():
    seconds, sent = sorted_out("linear", RUN)
    assert seconds == pytest.approx({HE: 6.0, OT: 2.0, LOCAL: 0.5, OTHER: 1.5})
    assert sent == {HE: 900, OT: 600, LOCAL: 0, OTHER: 0}


def test_steps_on_ciphertexts_outside_spu_count_as_such():
    looked_up = profile(kernel("mmul_vv", 6.0, 300), more=1000)
    seconds, sent = sorted_out("embedding_lookup", looked_up)
    assert seconds[HE] == 10.0 and sent == {HE: 1900, OT: 0, LOCAL: 0, OTHER: 0}
    with pytest.raises(ValueError, match="1000 bytes outside"):
        sorted_out("linear", looked_up)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ([kernel("mul_zz", 1.0, 5)], "'mul_zz' is not sorted"),
        ([kernel("reshape", 1.0, 5)], "sent 15 bytes and is sorted as 'local'"),
        ([kernel("mul_aa", 1.0)], "sent 0 bytes and is sorted as 'he'"),
        ([kernel("mul_aa", 7.0, 1), kernel("trunc_a", 7.0, 1)], "4 s and 0 bytes more than the run"),
    ],
)
def test_what_is_not_known_is_an_error(kernels, words):
    with pytest.raises(ValueError, match=words):
        sorted_out("linear", profile(*kernels))


def test_parties_must_agree():
    operation = Operation("linear", ((8, 8), (8, 8)))
    other = profile(kernel("mmul_sv", 6.0, 200), kernel("trunc_a", 2.0, 300))
    turned = replace(other, bytes_sent=other.bytes_received, bytes_received=other.bytes_sent)
    with pytest.raises(ValueError, match="kernels of the client sent"):
        resources.used(operation, RUN, turned, "a variant", "")


def test_a_row_is_composed_of_shares_by_hand():
    """Half of every second on ciphertexts as the client sees it, a quarter as the server does."""
    parameters = load(ROOT / "params.yaml")
    costs = measured_operations(parameters.two_party.variant(), ROOT)
    sizes = published_sizes("gpt2", 128)
    needed, _ = resources.counts(resources.parse("SM+ScFuFFN"), sizes, "tuned")
    lines = [
        Used(op, shape, costs.variant, "", 2.0, 1.0, 1.0, 2.0, 0.5, 0.5, 0.5, 0.5, 10**9, 5 * 10**8, "{}", "{}")
        for op, shape in needed
    ]
    networks = {"wan": Network(100, 80)}
    found = resources.composed(lines, costs, "SM+ScFuFFN", sizes, "tuned", networks)
    whole = sum(many * costs.cost(*key).values["seconds"] for key, many in needed.items())
    assert found["seconds"]["he"] == pytest.approx({"mean": 0.375 * whole, "low": 0.25 * whole, "high": 0.5 * whole})
    assert sum(work["mean"] for work in found["seconds"].values()) == pytest.approx(whole)
    assert found["bytes"] == {"he": sum(needed.values()) * 1e9, "ot": sum(needed.values()) * 5e8}
    rounds = sum(many * costs.cost(*key).values["rounds"] for key, many in needed.items())
    assert found["links"]["wan"]["round trips"] == pytest.approx(rounds * 0.08)
    assert found["unprofiled"] == 0


def test_a_little_may_be_unprofiled_and_no_more():
    costs = measured_operations(load(ROOT / "params.yaml").two_party.variant(), ROOT)
    sizes = published_sizes("gpt2", 128)
    needed, _ = resources.counts(resources.parse("SM+LN+G"), sizes, "tuned")
    seconds = {key: many * costs.cost(*key).values["seconds"] for key, many in needed.items()}
    few, most = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
    lines = {
        key: Used(*key, costs.variant, "", 2.0, 1.0, 1.0, 2.0, 0.5, 0.5, 0.5, 0.5, 10, 5, "{}", "{}") for key in needed
    }
    parts = [[one for key, one in lines.items() if key != left_out] for left_out in (few, most)]
    found, none = (resources.composed(part, costs, "SM+LN+G", sizes, "tuned", {}) for part in parts)
    assert found["unprofiled"] == pytest.approx(seconds[few]) and none is None
    assert sum(work["mean"] for work in found["seconds"].values()) == pytest.approx(sum(seconds.values()))


def test_real_parties_go_on_where_they_were_stopped(tmp_path):
    settings, path = Settings(**load(ROOT / "params.yaml").two_party.settings()), tmp_path / "resources.csv"
    few = {Operation("relu", ((8, 64),)): "1 a", Operation("linear", ((8, 64), (64, 64))): "2 a"}
    (relu,) = resources.measure(dict([*few.items()][:1]), "a variant", settings, path)
    assert relu.he_bytes == 0 < relu.ot_bytes and relu.ot_seconds_client > relu.he_seconds_client == 0
    again, linear = resources.measure(few, "a variant", settings, path)
    assert again == relu and read(path) == [linear, relu]
    assert linear.he_bytes > 10 * linear.ot_bytes > 0 and set(json.loads(linear.kernels)) >= {"mmul_sv", "trunc_a"}


def test_kept_lines_are_those_of_their_kernels_and_of_the_measured_operations():
    kept = read(ROOT / PATH)
    if not kept:
        pytest.skip("not measured yet")
    variant = load(ROOT / "params.yaml").two_party.variant()
    with (ROOT / "results/two_party/ops.csv").open(encoding="utf-8", newline="") as file:
        measured = {(line["op"], line["shape"]): line for line in csv.DictReader(file)}
    for one in kept:
        kernels, before = json.loads(one.kernels), measured[one.op, one.shape]
        sent = {work: sum(v[3] for k, v in kernels.items() if resources.sort_of(k) == work) for work in (HE, OT)}
        assert one.variant == variant and sent[OT] == one.ot_bytes
        assert sent[HE] == one.he_bytes or one.op in resources.ENCRYPTED_STEPS
        # Ciphertexts compress a little differently each time; a stock of transfers may have been refilled.
        whole = float(before["bytes_sent_client"]) + float(before["bytes_sent_server"])
        assert one.he_bytes + one.ot_bytes == pytest.approx(whole, rel=0.002, abs=300_000), one.op
