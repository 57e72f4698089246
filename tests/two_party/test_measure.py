"""Measure operations alone in two real processes, and resume an interrupted measurement."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import synthetic_costs
import yaml

from aero.config import load
from aero.errors import UserError
from aero.two_party.cost import ledger, resume
from aero.two_party.cost.measure import arguments, measure, measure_rounds, refilled, shrink
from aero.two_party.cost.resume import Wanted, measure_missing, signature
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import Settings, TwoPartyError
from stages import two_party_all

ROOT = Path(__file__).resolve().parents[2]
LINEAR = Operation("linear", ((16, 32), (32, 8)))
OUTSIDE = (("lattice", 1),)
RELU = Operation("relu", ((16, 64),))
MIX = Operation("mix", ((2, 8, 8), (2, 8, 4)))


@pytest.mark.slow
def test_bytes_scale_with_the_elements_and_set_up_is_that_of_the_protocols():
    twice, narrow = Operation("relu", ((32, 64),)), Operation("relu", ((16, 64),), (("narrow", 1),))
    outside = Operation("lattice_linear", ((16, 32), (32, 8)))
    squares = Operation("gelu_squares", ((1, 16, 16),))
    pair = Operation("scores", ((1, 16, 8), (1, 16, 8)), OUTSIDE)
    rows = measure([RELU, LINEAR, twice, RELU, narrow, outside, squares, pair], "made", 16, Settings())
    assert [row.op for row in rows[:3]] == ["relu", "linear", "relu"] and len(rows) == 7
    relu, linear, double, compared, product, squared, shared = rows
    assert double.bytes == pytest.approx(2 * relu.bytes, rel=0.1) and np.isnan(relu.rounds)
    assert linear.setup_bytes == relu.setup_bytes > 1e6  # keys and first oblivious transfers, apart from steady state
    extra = [one.setup_bytes - relu.setup_bytes for one in (compared, product, squared, shared)]
    assert extra == pytest.approx([1.2e6, 0.43e6, 2.4e6, 0.85e6], rel=0.05)


def test_rounds_are_those_of_the_protocol():
    """A comparison of 64-bit shares takes several round trips, a truncation one or two."""
    small, truncation = Operation("relu", ((8, 64),)), Operation("scale_public", ((8, 64),), (("factor", 0.5),))
    rounds = measure_rounds([small, truncation], Settings())
    assert 6 < rounds[small] < 25 and rounds[truncation] < 5
    for row in measure([small, truncation], "made", 8, Settings(), rounds=rounds):
        assert row.rounds == round(rounds[small if row.op == "relu" else truncation], 1) and row.bytes


@pytest.mark.parametrize(
    "whole, small",
    [
        (Operation("relu", ((128, 3072),)), Operation("relu", ((10, 3072),))),
        (Operation("relu", ((1, 3072),)), Operation("relu", ((1, 3072),))),
        (Operation("layer_norm", ((128, 768), (768,), (768,))), Operation("layer_norm", ((42, 768), (768,), (768,)))),
        (Operation("scale", ((12, 128, 128), (12, 1, 1))), Operation("scale", ((2, 128, 128), (2, 1, 1)))),
        (Operation("softmax_plain", ((12, 512, 512),)), Operation("softmax_plain", ((1, 64, 512),))),
        (Operation("linear", ((128, 768), (768, 768))), Operation("linear", ((8, 64), (64, 64)))),
        (Operation("mix", ((9, 9, 9),) * 2, OUTSIDE), Operation("mix", ((1, 8, 8),) * 2, OUTSIDE)),
    ],
)
def test_a_smaller_operation_keeps_the_protocol(whole, small):
    assert shrink(whole) == small
    assert small.function()(*arguments(small)).size  # its shapes fit together


def test_a_refill_is_distinguished_from_a_large_operation():
    quiet = Profile(2_000_000, 3_000_000, 20, 20, 1.0)
    assert not refilled(quiet)
    assert refilled(dataclasses.replace(quiet, messages_sent=1300, messages_received=1300))
    assert not refilled(Profile(200_000_000, 100_000_000, 1300, 1300, 1.0))


@pytest.fixture
def measured(monkeypatch):
    """The kinds measured so far, by synthetic costs instead of processes. A session with `mix` fails while "mix" is in
    `failing`."""
    calls, failing = [], set()

    def fake(wanted, model, context, settings, runs, rounds):
        if failing & {operation.kind for operation in wanted}:
            raise TwoPartyError("the server process died (signal 9)")
        calls.extend(operation.kind for operation in wanted)
        return [synthetic_costs.made(o.name, o.shape, rounds=rounds[o], runs=runs) for o in wanted]

    monkeypatch.setattr(resume, "measure", fake)
    monkeypatch.setattr(resume, "measure_rounds", lambda wanted, settings, runs: dict.fromkeys(wanted, 5.0))
    return calls, failing


def test_only_missing_operations_are_measured(measured, tmp_path):
    calls, failing = measured
    wanted = [Wanted(operation, "gpt2", 128) for operation in (RELU, LINEAR, MIX)]
    path, given = tmp_path / "ops.csv", {"rounds_runs": 1, "repeats": {128: 3}}
    failing.add("mix")
    with pytest.raises(UserError, match="1 operations failed, the first mix .* the server process died"):
        measure_missing(wanted, path, Settings(), **given)
    assert calls == ["relu", "linear"]  # the others one by one
    failing.clear()
    with pytest.raises(UserError, match="1 operations are left after --minutes"):
        measure_missing(wanted, path, Settings(), minutes=-1, **given)
    done = measure_missing(wanted, path, Settings(), **given)
    assert calls == ["relu", "linear", "mix"] and {row.rounds for row in done.values()} == {5.0}
    assert ledger.read(path, ledger.Measurement) == sorted(done.values(), key=lambda row: row.key)
    # Other code computed one of them: it is measured again.
    rows = [dataclasses.replace(done["relu", "16x64"], provenance='{"computation":"before"}')]
    ledger.write(path, [*rows, *(row for row in done.values() if row.op != "relu")], ledger.Measurement)
    measure_missing(wanted, path, Settings(), **given)
    assert calls[3:] == ["relu"]


def test_other_rows_rounds_and_missing_seconds(measured, tmp_path, monkeypatch):
    wanted, path = [Wanted(RELU, "gpt2", 128)], tmp_path / "ops.csv"
    other = synthetic_costs.made("relu", "8x8")
    first = measure_missing(wanted, path, Settings(), rounds_runs=1, seconds=False, others=[other])
    assert np.isnan(first["relu", "16x64"].seconds)
    assert other in ledger.read(path, ledger.Measurement)
    monkeypatch.setattr(resume, "measure_rounds", None)  # taken from the first file
    second = measure_missing(wanted, tmp_path / "b.csv", Settings(), rounds_runs=1, rounds_from=[path])
    assert second["relu", "16x64"].rounds == 5.0 and second["relu", "16x64"].seconds > 0


def test_committed_measurements_have_the_signature_of_the_code():
    """If this fails, an operation computes something else than what was measured."""
    rows = {row.key: row for row in ledger.read(ROOT / "results/two_party/all_ops.csv", ledger.Measurement)}
    samples = [
        Operation("softmax_plain", ((12, 128, 128),)),
        Operation("gelu_segments", ((128, 3072),)),
        Operation("lattice_linear", ((128, 768), (768, 768))),
        Operation("exponentials", ((12, 128, 128),), (("blocks", 16), ("split", 1))),
        Operation("embedding_lookup", ((128, 50257), (50257, 768))),
    ]
    found = [one for one in samples if (one.name, one.shape) in rows]
    assert len(found) >= 3
    for one in found:
        row = rows[one.name, one.shape]
        assert json.loads(row.provenance)["computation"] == signature(one), one


def test_printed_rows_are_composed(measured, tmp_path, monkeypatch):
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["two_party"] |= {"programs": ["tuned"]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    rows = [row for row in two_party_all.printed_rows(load()) if str(row.architecture) == "SM+ScFuFFN"][:1]
    monkeypatch.setattr(two_party_all, "printed_rows", lambda parameters: rows)
    two_party_all.main([])
    (row,) = ledger.read(Path("runs/two_party/all_rows.csv"), ledger.DetailedRow)
    assert row.architecture == "SM+ScFuFFN" and "aero/table4/SM+ScFuFFN" in row.places
    assert sum(json.loads(row.bytes_by_kind).values()) == pytest.approx(row.bytes - row.setup_bytes)
    two_party_all.main(["SM+R", "--context", "32", "--no-seconds"])
    asked = ledger.read(Path("runs/two_party/asked_ops.csv"), ledger.Measurement)
    assert asked and all(np.isnan(one.seconds) for one in asked)
    with pytest.raises(UserError, match="unknown part 'X'"):
        two_party_all.main(["SM+X"])
