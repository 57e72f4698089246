"""Compositions that complete passes at the papers' own size are held against."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aero.architecture import parse
from aero.config import load
from aero.errors import UserError
from aero.pipeline import ROOT
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import compose
from aero.two_party.cost.network import Network
from aero.two_party.program.forward import operations
from benchmarks import full_passes

ENTRY = {"architecture": "SM+LN+R", "computed_as": "tuned", "bytes_client": 1_500_000_000, "bytes_server": 1e9}
ENTRY |= {"messages": 80_000, "seconds": 1400.0, "max_logit_error": 0.01}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kept operations, and no pass yet."""
    (tmp_path / "ops.csv").write_bytes((ROOT / "results/two_party/ops.csv").read_bytes())
    monkeypatch.setattr(full_passes, "PATH", tmp_path / "full_passes.json")
    return tmp_path


def test_a_composition_is_that_of_the_row_without_its_set_up(folder: Path) -> None:
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    config, context = parameters.two_party_model()
    measured = ledger.by_operation(ledger.read(folder / "ops.csv", ledger.Measurement))
    networks = {"wan": Network(100, 80), "lan": Network(1000, 1)}
    row = compose(parse("SM+LN+R"), config, "gpt2", "tuned", context, measured, networks)
    found = full_passes.composed(ENTRY, parameters)
    assert found["max_logit_error"] == 0.01 and found["not_measured_alone"] == []
    expected = {"bytes": row.bytes - row.setup_bytes, "messages": row.messages, "seconds": row.seconds}
    over = {"bytes": 2.5e9, "messages": 80_000, "seconds": 1400.0}
    for what, value in expected.items():
        assert found[f"composed_{what}"] == pytest.approx(value, abs=0.01)
        assert found[f"composed_over_measured_{what}"] == pytest.approx(value / over[what], rel=1e-6)
    assert found["operations_measured"] == sorted(found["operations_measured"])


def test_products_that_put_the_residual_stream_back_are_counted(folder: Path) -> None:
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    config, context = parameters.two_party_model()
    found = full_passes.composed(ENTRY | {"architecture": "SM+ScFuFFN", "computed_as": "tuned@1,5"}, parameters)
    with (folder / "ops.csv").open(encoding="utf-8", newline="") as file:
        seconds = {(line["op"], line["shape"]): float(line["seconds"]) for line in csv.DictReader(file)}
    counts = operations(parse("SM+ScFuFFN"), config, "tuned@1,5", context)
    assert sum(count for one, count in counts.items() if one.name == "lattice_linear") == 2 * 11 + 1 + 2
    expected = sum(count * seconds[one.name, one.shape] for one, count in counts.items())
    assert found["not_measured_alone"] == [] and found["composed_seconds"] == pytest.approx(expected, abs=0.01)


def test_an_operation_that_was_not_measured_leaves_no_composition_and_is_named(folder: Path) -> None:
    path = folder / "ops.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("relu,")), encoding="utf-8")
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    found = full_passes.composed(ENTRY | {"composed_over_measured_seconds": 1.2}, parameters)
    assert {one.split()[0] for one in found["not_measured_alone"]} == {"relu"}
    for what in ("bytes", "messages", "seconds"):
        assert found[f"composed_{what}"] is None and found[f"composed_over_measured_{what}"] is None


def test_what_the_rows_operations_lack_is_taken_from_those_of_the_savings(folder: Path) -> None:
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    entry = ENTRY | {"computed_as": "tuned+narrow_comparisons"}
    names = {one.split()[0] for one in full_passes.composed(entry, parameters)["not_measured_alone"]}
    narrow = ("exponentials(blocks=1,narrow=1,split=1)", "exponentials(blocks=16,narrow=1,split=1)", "relu(narrow=1)")
    assert names == set(narrow)
    shutil.copy(ROOT / "results/two_party/savings_ops.csv", folder)
    found, tuned = full_passes.composed(entry, parameters), full_passes.composed(ENTRY, parameters)
    assert found["not_measured_alone"] == [] and found["composed_bytes"] < 0.9 * tuned["composed_bytes"]
    # Where both files have an operation, that of the rows counts.
    slower = [replace(row, seconds=2 * row.seconds) for row in ledger.read(folder / "ops.csv", ledger.Measurement)]
    ledger.write(folder / "savings_ops.csv", slower, ledger.Measurement)
    assert full_passes.composed(ENTRY, parameters) == tuned


def test_without_rows_the_kept_passes_are_composed_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    full_passes.main([])
    assert not full_passes.PATH.exists()
    full_passes.PATH.write_text(json.dumps([ENTRY | {"composed_bytes": 1.0}]), encoding="utf-8")
    full_passes.main([])
    (entry,) = json.loads(full_passes.PATH.read_text(encoding="utf-8"))
    assert entry["composed_bytes"] > 2e9 and entry["messages"] == 80_000


def test_a_pass_can_be_composed_of_operations_of_its_own(folder: Path) -> None:
    parameters = load(ROOT / "params.yaml").at_scale("laptop")
    lines = (folder / "ops.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    usual = full_passes.composed(ENTRY, parameters)
    (folder / "slow_ops.csv").write_text("".join(line for line in lines if not line.startswith("relu,")))
    found = full_passes.composed(ENTRY | {"operations_file": "slow_ops.csv"}, parameters)
    assert {one.split()[0] for one in found["not_measured_alone"]} == {"relu"}
    (folder / "slow_ops.csv").write_text("".join(lines))
    found = full_passes.composed(ENTRY | {"operations_file": "slow_ops.csv"}, parameters)
    assert found["composed_seconds"] == usual["composed_seconds"] is not None
    for arguments in (["SM", "--operations", "ops.csv"], ["--operations", str(folder / "ops.csv")]):
        with pytest.raises(UserError, match="--operations needs rows and a file in"):
            full_passes.main(arguments)


def test_the_kept_pass_of_a_slower_day_is_composed_of_that_days_operations() -> None:
    entries = json.loads((ROOT / "results/two_party/full_passes.json").read_text(encoding="utf-8"))
    (entry,) = [one for one in entries if "operations_file" in one]
    assert (entry["architecture"], entry["program"], entry["operations_file"]) == (
        "SM+LN+G",
        "as_written",
        "full_passes_ops.csv",
    )
    assert all(time[:13] == entry["provenance"]["measured"][:13] for time in entry["operations_measured"])
    assert all(abs(1 - one["composed_over_measured_bytes"]) < 0.03 for one in entries)
    assert all(abs(1 - one["composed_over_measured_seconds"]) < 0.15 for one in entries)
