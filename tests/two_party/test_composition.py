"""Composed rows, their latency and their files, with synthetic costs that can be summed by hand."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import synthetic_costs

from aero.architecture import parse
from aero.model import ModelConfig
from aero.schema import Network
from aero.two_party.cost.composition import compose, composition_error
from aero.two_party.cost.cost_model import Operations
from aero.two_party.cost.ledger import Measurement, Row, by_operation, find, read, session_setup, write
from aero.two_party.cost.network import BOTH_WAYS_AT_ONCE
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation

TINY = ModelConfig(vocabulary=512, context=16, layers=3, heads=2, width=32, ffn_width=128)
NETWORKS = {"wan": Network(bandwidth_mbit=100, rtt_ms=80), "lan": Network(bandwidth_mbit=1000, rtt_ms=1)}


def made(operation: Operation, **changes: object) -> Measurement:
    values = {"model": "tiny", "context": 16, "bytes_sent_client": 2.0, "bytes_sent_server": 3.0, "messages": 4.0}
    values |= {"rounds": 0.5, "setup_bytes": 100.0, "seconds": 0.25}
    return synthetic_costs.made(operation.name, operation.shape, **(values | changes))


@pytest.mark.parametrize("program", ["as_written", "as_published", "tuned", "tuned-folded_norms"])
def test_a_row_is_the_sum_of_its_operations_and_one_set_up(program):
    architecture = parse("SM+LN+R")
    counts = operations(architecture, TINY, program, 16)
    total = sum(counts.values())
    measured = by_operation(made(o) for o in counts)
    row = compose(architecture, TINY, "tiny", program, 16, measured, NETWORKS, ("aero/table4/SM+LN+R",))
    setup = row.setup_bytes
    assert setup == 100 and row.bytes == 5 * total + setup and row.method == "composed"
    assert (row.bytes_client, row.bytes_server) == (2 * total + 50, 3 * total + 50)
    assert (row.messages, row.rounds, row.seconds) == (4 * total, total / 2, total / 4)
    # The larger direction of operations that send both ways at once, both directions of the rest, and the set-up.
    at_once = sum(count for operation, count in counts.items() if operation.kind in BOTH_WAYS_AT_ONCE)
    assert 0 < at_once < total
    wire = 3 * at_once + 5 * (total - at_once) + setup
    assert row.latency_wan_s == pytest.approx(total / 4 + wire * 8e-8 + total / 2 * 0.08)
    assert row.latency_lan_s == pytest.approx(total / 4 + wire * 8e-9 + total / 2 * 0.001)
    assert row.ln_f_bytes == 5 and row.places == "aero/table4/SM+LN+R"
    assert row.backbone_bytes == row.bytes - setup - row.embedding_bytes - row.head_bytes


def setup_of(name: str) -> float:
    extra = {"gelu_squares": 30.0, "narrow=1": 12.0, "lattice_linear": 4.0, "lattice=1": 1.0}
    return 100.0 + sum(more for part, more in extra.items() if part in name)


@pytest.mark.parametrize(
    ("program", "setup"),
    [("as_written", 100), ("tuned+lattice_attention", 105), ("tuned+narrow_comparisons+gelu_by_squares", 146)],
)
def test_a_row_pays_once_for_every_protocol_it_uses(program, setup):
    architecture = parse("SM+LN+G")
    counts = operations(architecture, TINY, program, 16)
    measured = by_operation(made(o, setup_bytes=setup_of(o.name)) for o in counts)
    assert compose(architecture, TINY, "tiny", program, 16, measured, NETWORKS).setup_bytes == setup
    assert Operations(measured).setup_bytes((o.name, o.shape) for o in counts) == setup


def test_set_up_of_a_session():
    outside = Operation("lattice_linear", ((8, 8), (8, 8)))
    usual = made(Operation("relu", ((8, 8),)), setup_bytes=104.0)
    assert session_setup([made(outside, setup_bytes=103.0), usual]) == 104.0
    assert session_setup([made(outside, setup_bytes=103.0)]) == 103.0 and session_setup([]) == 0.0


def test_unmeasured_operations_are_not_guessed():
    counts = operations(parse("SM"), TINY, "as_written", 16)
    measured = by_operation(made(o) for o in counts if o.kind != "softmax_plain")
    with pytest.raises(ValueError, match="softmax_plain 2x16x16 was not measured"):
        compose(parse("SM"), TINY, "tiny", "as_written", 16, measured, NETWORKS)


def test_files_are_read_as_written(tmp_path):
    path = tmp_path / "ops.csv"
    operation = Operation("softmax_cover", ((2, 16, 16),), (("blocks", 8),))
    rows = [made(operation, provenance='{"commit":"c0ffee","machine":"a, b"}', bytes_sent_client=123456789.5)]
    write(path, rows, Measurement)
    assert read(path, Measurement) == rows and find(by_operation(rows), operation) == rows[0]
    with pytest.raises(ValueError, match="columns are"):
        read(path, Row)
    write(path, [rows[0], rows[0]], Measurement)
    with pytest.raises(ValueError, match="line 3: softmax_cover.* is in the file twice"):
        read(path, Measurement)
    measured = by_operation(made(o, rounds=math.nan) for o in operations(parse("SM"), TINY, "tuned", 16))
    row = compose(parse("SM"), TINY, "tiny", "tuned", 16, measured, NETWORKS)
    write(tmp_path / "rows.csv", [row], Row)
    (found,) = read(tmp_path / "rows.csv", Row)
    assert {name for name, value in asdict(found).items() if value != value} == {
        "rounds",
        "latency_wan_s",
        "latency_lan_s",
    }
    assert found.max_logit_error is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bytes_sent_client", "inf", "bytes_sent_client: .*finite.*'inf'"),
        ("bytes_sent_server", "nan", "bytes_sent_server: .*finite.*'nan'"),
        ("messages", "-1", "messages: .*equal to 0.*'-1'"),
        ("seconds", "", "seconds: .*number.*''"),
        ("seconds", "inf", "seconds: .*number.*'inf'"),
        ("context", "16.5", "context: .*'16.5'"),
        ("runs", "0", "runs: .*equal to 1"),
        ("provenance", "[1]", "provenance: .*not a JSON object"),
        ("provenance", "{},more", "not 13 fields"),
    ],
)
def test_impossible_values_are_refused(field, value, message, tmp_path):
    path = tmp_path / "ops.csv"
    values = {name: str(one) for name, one in asdict(made(Operation("relu", ((16, 64),)))).items()}
    path.write_text("\n".join([",".join(values), ",".join((values | {field: value}).values())]) + "\n")
    with pytest.raises(ValueError, match=message) as error:
        read(path, Measurement)
    assert str(error.value).startswith(f"{path}, line 2: ")


def test_the_error_of_compositions_is_the_largest_seen():
    entries = [{"composed_over_measured": 1.003}, {"composed_over_measured_bytes": 0.986}, {"run": "without"}]
    assert composition_error(entries) == pytest.approx(0.014) and composition_error([]) is None
    assert composition_error([{"composed_over_measured_seconds": 1.2}], "seconds") == pytest.approx(0.2)


def test_latency_of_the_papers_network_by_hand():
    wan = Network(bandwidth_mbit=100, rtt_ms=80)
    # 50 MB at 12.5 MB/s are 4 s, 100 round trips 8 s, and 3 s of computing.
    assert wan.latency_seconds(3.0, 50e6, 100) == pytest.approx(15.0)
