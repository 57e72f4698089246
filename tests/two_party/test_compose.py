"""Composition and its files, with costs made up so that sums can be done by hand."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from aero.architecture import parse
from aero.model import ModelConfig
from aero.pipeline import ROOT
from aero.two_party.cost.composition import compose
from aero.two_party.cost.cost_model import Operations
from aero.two_party.cost.ledger import (
    UNMEASURED,
    DetailedRow,
    Measurement,
    Row,
    by_operation,
    find,
    read,
    session_setup,
    write,
)
from aero.two_party.cost.network import BOTH_WAYS_AT_ONCE, Network
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation

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


@pytest.mark.parametrize(
    "program", ["as_written", "as_published", "tuned", "tuned-row_tiles", "tuned-folded_norms", "tuned-last_row"]
)
def test_the_final_layer_norm_is_found_in_every_program(program):
    counts = operations(parse("SM+LN+R"), TINY, program, 16)
    measured = by_operation(made(o) for o in counts)
    assert compose(parse("SM+LN+R"), TINY, "tiny", program, 16, measured, NETWORKS).ln_f_bytes == 5


@pytest.mark.parametrize("program", ["as_written", "tuned"])
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


def setup_of(name: str) -> float:
    return 100.0 + 30.0 * ("few=1" in name) + 12.0 * ("narrow=1" in name) + 4.0 * ("lattice_linear" in name)


@pytest.mark.parametrize(
    ("program", "setup"),
    [
        ("as_written", 100.0),
        ("tuned", 104.0),
        ("tuned-lattice_products+narrow_comparisons", 112.0),
        ("tuned+narrow_comparisons", 116.0),
        ("as_written+fewer_squarings", 130.0),
        ("as_written+narrow_comparisons+fewer_squarings", 142.0),
    ],
)
def test_a_row_pays_once_for_every_protocol_that_it_uses(program, setup):
    architecture = parse("SM+LN+R")
    counts = operations(architecture, TINY, program, 16)
    measured = by_operation(made(o, setup_bytes=setup_of(o.name)) for o in counts)
    assert compose(architecture, TINY, "tiny", program, 16, measured, NETWORKS).setup_bytes == setup
    costs = Operations(measured, "made")
    assert costs.setup_bytes((o.name, o.shape) for o in counts) == setup


def test_a_set_up_that_was_measured_with_others_is_not_paid_twice():
    operation = Operation("lattice_linear", ((8, 8), (8, 8)))
    usual = made(Operation("relu", ((8, 8),)), setup_bytes=104.0)
    assert session_setup([made(operation, setup_bytes=103.0), usual]) == 104.0
    assert session_setup([made(operation, setup_bytes=103.0)]) == 103.0 and session_setup([]) == 0.0


def test_what_was_not_measured_is_not_guessed():
    architecture = parse("SM")
    counts = operations(architecture, TINY, "as_written", 16)
    measured = by_operation(made(o) for o in counts if o.kind != "softmax_plain")
    with pytest.raises(ValueError, match="softmax_plain 2x16x16 was not measured"):
        compose(architecture, TINY, "tiny", "as_written", 16, measured, NETWORKS)


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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("bytes_sent_client", "inf", "bytes_sent_client is inf"),
        ("bytes_sent_server", "nan", "bytes_sent_server is nan"),
        ("messages", "-1", "messages is -1"),
        ("setup_bytes", "1e999", "setup_bytes is 1e999"),
        ("seconds", "-0.25", "seconds is -0.25"),
        ("seconds", "\u0663", "seconds is '\u0663', no number"),
        ("seconds", "1_0", "seconds is '1_0', no number"),
        ("seconds", "", r"could not convert string to float: '' \(seconds\)"),
        ("rounds", "-0.5", "rounds is -0.5"),
        ("rounds", "inf", "rounds is inf"),
        ("context", "0", "context is 0"),
        ("context", "16.5", r"'16.5' \(context\)"),
        ("context", "9" * 5000, r"\(context\)"),
        ("runs", "0", "runs is 0"),
        ("provenance", "", "provenance is '', no JSON object"),
        ("provenance", "[1]", "provenance is '\\[1\\]', no JSON object"),
        ("provenance", "[" * 100_000, "no JSON object"),
        ("provenance", "x" * 200_000, "field larger than field limit"),
        ("provenance", "{},more", "not 13 fields"),
    ],
)
def test_what_cannot_have_been_measured_is_named(field, value, said, tmp_path):
    path = tmp_path / "ops.csv"
    fields = list(Measurement.__dataclass_fields__)
    lines = [",".join(fields)]
    for changed in (value, None):
        there = asdict(made(Operation("relu", ((16, 64),))))
        there = {name: str(value) for name, value in there.items()}
        lines.append(",".join((there | ({field: changed} if changed is not None else {})).values()))
    path.write_text("\n".join([lines[0], lines[2], lines[1]]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=said) as error:
        read(path, Measurement)
    assert str(error.value).startswith(f"{path}, line 3: ") and str(error.value).endswith("; measure again")
    assert len(str(error.value)) < 1000


def test_rounds_that_were_not_measured_are_nan(tmp_path):
    """And so are the latencies of a row composed of them; nothing else is."""
    unmeasured = [made(Operation("relu", ((16, 64),)), rounds=math.nan)]
    write(tmp_path / "ops.csv", unmeasured, Measurement)
    assert math.isnan(read(tmp_path / "ops.csv", Measurement)[0].rounds)
    architecture = parse("SM")
    measured = by_operation(made(o, rounds=math.nan) for o in operations(architecture, TINY, "tuned", 16))
    row = compose(architecture, TINY, "tiny", "tuned", 16, measured, NETWORKS)
    write(tmp_path / "rows.csv", [row], Row)
    (found,) = read(tmp_path / "rows.csv", Row)
    assert {name for name, value in asdict(found).items() if value != value} == UNMEASURED


def test_every_kept_file_is_read():
    kinds = {"ops": Measurement, "all_ops": Measurement, "savings_ops": Measurement}
    kinds |= {"rows": Row, "all_rows": DetailedRow}
    found = {name: read(ROOT / f"results/two_party/{name}.csv", kind) for name, kind in kinds.items()}
    found["growth"] = read(ROOT / "results/bench/two_party_growth.csv", Measurement)
    assert all(len(rows) > 10 for rows in found.values())


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
