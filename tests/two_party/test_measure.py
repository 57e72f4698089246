"""Measuring operations alone, in two real processes, and resuming an interrupted measurement."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from aero import records
from aero.two_party.cost import ledger
from aero.two_party.cost.measure import arguments, measure, measure_rounds, refilled, shrink
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import Settings
from stages import two_party_ops
from stages.two_party_ops import resumable

LINEAR = Operation("linear", ((16, 32), (32, 8)))
RELU = Operation("relu", ((16, 64),))


def test_bytes_repeat_and_scale_with_the_elements():
    seen = []
    twice = Operation("relu", ((32, 64),))
    named = ("made", 16, "fm64", Settings())
    rows = measure([RELU, LINEAR, twice, RELU], *named, on_measured=seen.append, rounds_runs=0)
    assert seen == rows and [row.op for row in rows] == ["relu", "linear", "relu"]
    again = measure([RELU], *named, rounds_runs=0)
    by_key = ledger.by_operation(rows)
    relu, double = by_key["relu", "16x64"], by_key["relu", "32x64"]
    assert again[0].bytes == relu.bytes and again[0].messages == relu.messages
    assert double.bytes == pytest.approx(2 * relu.bytes, rel=0.1)
    assert relu.setup_bytes > 1e6  # keys and first oblivious transfers, reported apart from the steady state
    assert np.isnan(relu.rounds)


def test_the_set_up_of_an_operation_is_that_of_the_protocols_it_uses():
    narrow = Operation("relu", ((16, 64),), (("narrow", 1),))
    outside = Operation("lattice_linear", ((16, 32), (32, 8)))
    few = Operation("softmax_plain", ((1, 16, 16),), (("few", 1),))
    rows = measure([LINEAR, RELU, narrow, outside, few], "made", 16, "fm64", Settings(), rounds_runs=0)
    linear, relu, compared, product, squared = (row.setup_bytes for row in rows)
    assert linear == relu
    # Oblivious transfers of a second runtime; keys of products outside SPU; both kinds, of a third runtime. None pays
    # for another's.
    assert compared - relu == pytest.approx(1.2e6, rel=0.05) and product - relu == pytest.approx(0.43e6, rel=0.05)
    assert squared - relu == pytest.approx(2.4e6, rel=0.05)


def test_rounds_are_those_of_the_protocol():
    """A comparison of 64-bit shares takes several round trips, a truncation one or two."""
    small, truncation = Operation("relu", ((8, 64),)), Operation("scale_public", ((8, 64),), (("factor", 0.5),))
    rounds = measure_rounds([small, truncation], Settings())
    assert 6 < rounds[small] < 25 and rounds[truncation] < 5


@pytest.mark.parametrize(
    "whole, small",
    [
        (Operation("relu", ((128, 3072),)), Operation("relu", ((10, 3072),))),
        (Operation("relu", ((1, 3072),)), Operation("relu", ((1, 3072),))),
        (Operation("layer_norm", ((128, 768), (768,), (768,))), Operation("layer_norm", ((42, 768), (768,), (768,)))),
        (Operation("scale", ((12, 128, 128), (12, 1, 1))), Operation("scale", ((2, 128, 128), (2, 1, 1)))),
        (Operation("scale", ((128, 768), ())), Operation("scale", ((42, 768), ()))),
        (Operation("softmax_plain", ((12, 128, 128),)), Operation("softmax_plain", ((2, 128, 128),))),
        (Operation("softmax_plain", ((12, 512, 512),)), Operation("softmax_plain", ((1, 64, 512),))),
        (
            Operation("softmax_cover", ((12, 128, 128),), (("blocks", 8),)),
            Operation("softmax_cover", ((2, 128, 128),), (("blocks", 8),)),
        ),
        (Operation("linear", ((128, 768), (768, 768))), Operation("linear", ((8, 64), (64, 64)))),
        (
            Operation("embedding_lookup", ((128, 50257), (50257, 768))),
            Operation("embedding_lookup", ((8, 64), (64, 64))),
        ),
    ],
)
def test_a_smaller_operation_keeps_the_protocol_of_products(whole, small):
    assert shrink(whole) == small
    assert small.function()(*arguments(small)).size  # its shapes fit together


def test_arguments_are_what_the_owners_would_hold():
    one_hot, table = arguments(Operation("embedding_slice", ((4, 9), (9, 3))))
    assert one_hot.shape == (4, 9) and (one_hot.sum(1) == 1).all() and table.shape == (9, 3)


def test_a_refill_is_told_from_a_large_operation():
    quiet = Profile(2_000_000, 3_000_000, 20, 20, 1.0, ())
    assert not refilled(quiet)
    assert refilled(dataclasses.replace(quiet, messages_sent=1300, messages_received=1300))
    assert not refilled(Profile(200_000_000, 100_000_000, 1300, 1300, 1.0, ()))


def test_only_the_same_measurement_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "commit", lambda: "c0ffee")
    source = '{"commit":"c0ffee"}'
    row = ledger.Measurement("relu", "16x64", "gpt2", 128, "fm64", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1, source)
    path = tmp_path / "ops.unfinished.csv"
    assert resumable(path, "fm64", "gpt2", 128) == []
    ledger.write(path, [row], ledger.Measurement)
    assert resumable(path, "fm64", "gpt2", 128) == [row]
    assert resumable(path, "fm32", "gpt2", 128) == resumable(path, "fm64", "own", 64) == []
    for commit in ("decaf", "unknown", "c0ffee+changes"):
        monkeypatch.setattr(records, "commit", lambda commit=commit: commit)
        ledger.write(path, [dataclasses.replace(row, provenance=json.dumps({"commit": commit}))], ledger.Measurement)
        assert resumable(path, "fm64", "gpt2", 128) == []
    path.write_text("damaged")
    assert resumable(path, "fm64", "gpt2", 128) == []


def test_only_what_is_missing_is_added(tmp_path, monkeypatch, capsys):
    """Rows that are there stay as they are, whatever their commit; other settings or sizes are refused."""
    parameters = two_party_ops.load()
    model, (_, context) = parameters.active.two_party, parameters.two_party_model()
    named = model, context, parameters.two_party.variant()
    there = ledger.Measurement("relu", "16x64", *named, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1, '{"commit":"old"}')
    path = tmp_path / "ops.csv"
    ledger.write(path, [there], ledger.Measurement)
    asked = []

    def made(operations, model, context, variant, settings, runs, on_measured, rounds_runs):
        assert runs == two_party_ops.RUNS
        asked.extend(operations)
        for operation in operations:
            values = {"op": operation.name, "shape": operation.shape, "provenance": '{"commit":"new"}'}
            on_measured(dataclasses.replace(there, **values))

    monkeypatch.setattr(two_party_ops, "measure", made)
    monkeypatch.setattr(two_party_ops, "wanted", lambda parameters: [RELU, LINEAR])
    two_party_ops.main(["--add", "--out", str(path)])
    assert asked == [LINEAR] and "2 operations" in capsys.readouterr().out
    rows = ledger.by_operation(ledger.read(path, ledger.Measurement))
    assert rows["relu", "16x64"] == there and '"new"' in rows["linear", "16x32,32x8"].provenance
    ledger.write(path, [dataclasses.replace(there, context=context + 1)], ledger.Measurement)
    with pytest.raises(ValueError, match="other settings or sizes"):
        two_party_ops.main(["--add", "--out", str(path)])
