"""Composition and its files, with costs made up so that sums can be done by hand."""

from __future__ import annotations

import pytest

from aero.architecture import parse
from aero.model import ModelConfig
from aero.two_party.compose import compose
from aero.two_party.ledger import Measurement, Row, by_operation, find, read, write
from aero.two_party.network import BOTH_WAYS_AT_ONCE, Network
from aero.two_party.operations import Operation
from aero.two_party.program import operations

TINY = ModelConfig(vocabulary=512, context=16, layers=3, heads=2, width=32, ffn_width=128)
NETWORKS = {"wan": Network(100, 80), "lan": Network(1000, 1)}


def made(operation: Operation, **changes: object) -> Measurement:
    values = {
        "op": operation.name,
        "shape": operation.shape,
        "model": "tiny",
        "context": 16,
        "variant": "made",
        "bytes_sent_client": 2.0,
        "bytes_sent_server": 3.0,
        "messages": 4.0,
        "rounds": 0.5,
        "setup_bytes": 100.0,
        "seconds": 0.25,
        "runs": 1,
        "provenance": "{}",
    }
    return Measurement(**(values | changes))


@pytest.mark.parametrize("program", ["as_published", "tuned"])
def test_a_row_is_the_sum_of_its_operations_and_one_set_up(program):
    architecture = parse("SM+LN+R")
    counts = operations(architecture, TINY, program, 16)
    total = sum(counts.values())
    row = compose(architecture, TINY, "tiny", program, 16, by_operation(made(o) for o in counts), NETWORKS)
    assert row.bytes == 5 * total + 100
    assert (row.bytes_client, row.bytes_server) == (2 * total + 50, 3 * total + 50)
    assert (row.messages, row.rounds, row.seconds) == (4 * total, total / 2, total / 4)
    # The larger direction of what goes both ways at once, both of the rest, and the set-up.
    at_once = sum(count for operation, count in counts.items() if operation.kind in BOTH_WAYS_AT_ONCE)
    assert 0 < at_once < total
    wire = 3 * at_once + 5 * (total - at_once) + 100
    assert row.latency_wan_s == pytest.approx(total / 4 + wire * 8e-8 + total / 2 * 0.08)
    assert row.latency_lan_s == pytest.approx(total / 4 + wire * 8e-9 + total / 2 * 0.001)
    assert (row.embedding_bytes, row.head_bytes, row.ln_f_bytes, row.setup_bytes) == (5, 5, 5, 100)
    assert row.method == "composed"


def test_what_was_not_measured_is_not_guessed():
    architecture = parse("SM")
    counts = operations(architecture, TINY, "as_published", 16)
    measured = by_operation(made(o) for o in counts if o.kind != "softmax_plain")
    with pytest.raises(ValueError, match="softmax_plain 2x16x16 was not measured"):
        compose(architecture, TINY, "tiny", "as_published", 16, measured, NETWORKS)


def test_files_come_back_as_written(tmp_path):
    path = tmp_path / "ops.csv"
    operation = Operation("softmax_cover", ((2, 16, 16),), (("blocks", 8),))
    rows = [made(operation, provenance='{"commit":"c0ffee","machine":"a, b"}', bytes_sent_client=123456789.5)]
    write(path, rows, Measurement)
    assert read(path, Measurement) == rows
    assert find(by_operation(rows), operation) == rows[0]
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(ValueError, match="columns are"):
        read(path, Row)
    path.write_text(path.read_text().replace("123456789.5", "many"))
    with pytest.raises(ValueError, match="line 2: could not convert"):
        read(path, Measurement)


def test_a_row_with_unknown_values_comes_back(tmp_path):
    row = Row(
        "SM",
        "tiny",
        16,
        "tuned",
        1.0,
        2.0,
        None,
        3.0,
        None,
        None,
        "end_to_end",
        0.01,
        0.5,
        0.5,
        None,
        None,
        None,
        None,
        "{}",
    )
    write(tmp_path / "rows.csv", [row], Row)
    assert read(tmp_path / "rows.csv", Row) == [row]
