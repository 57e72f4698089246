"""The stage that measures every printed row: on a tiny model, in real processes, stopped and taken up again."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import made_costs
import pytest
import yaml

from aero.architecture import parse
from aero.config import load
from aero.errors import UserError
from aero.records import lock
from aero.two_party.cost import ledger
from aero.two_party.cost.cost_model import measured_operations
from aero.two_party.cost.counts import counts, published_sizes
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.settings import TwoPartyError
from stages.two_party_all import PrintedRow, batches, main, measure_rows, printed_rows, signature, wanted

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("sm-scfuffn", "sm-scfuffn-18l", "sm")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Three runs at the smoke scale: a row of Table 4, one of Table 6, and one of Table 2, which is not asked for."""
    folder = tmp_path_factory.mktemp("project")
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values |= {"scale": "smoke", "active_runs": list(RUNS), "more_runs": [], "compared_runs": [], "training_order": {}}
    values["runs"] = {name: values["runs"][name] for name in RUNS}
    values["two_party"] |= {"programs": ["tuned"], "end_to_end_runs": []}
    for scale in values["scales"].values():
        scale["end_to_end_runs"] = []
    values["scales"]["smoke"]["model"] |= {"layers": 2}
    values["scales"]["smoke"]["families"]["gpt2-18l"] = {"model": {"layers": 3}}
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return folder


def test_rows_are_measured_and_an_interrupted_measurement_goes_on(project, monkeypatch):
    monkeypatch.chdir(project)
    files = {name: project / "runs/two_party" / f"{name}.csv" for name in ("all_ops", "all_rows")}
    with pytest.raises(UserError, match="are left after --minutes; the same command goes on"):
        main(["--minutes", "0", "--no-rounds"])
    assert ledger.read(files["all_rows"], ledger.DetailedRow) == []

    main(["--no-rounds"])
    measured = {row.key: row for row in ledger.read(files["all_ops"], ledger.Measurement)}
    rows = ledger.read(files["all_rows"], ledger.DetailedRow)
    assert [(row.architecture, row.model) for row in rows] == [
        ("SM+ScFuFFN", "own gpt2"),
        ("SM+ScFuFFN", "own gpt2-18l"),
    ]
    for row, printed in zip(rows, printed_rows(load(project / "params.yaml")), strict=True):
        counts = operations(printed.architecture, printed.config, row.program, printed.context)
        of_row = [(measured[operation.name, operation.shape], count) for operation, count in counts.items()]
        assert row.bytes == sum(one.bytes * count for one, count in of_row) + row.setup_bytes
        assert row.bytes == row.embedding_bytes + row.head_bytes + row.backbone_bytes + row.setup_bytes
        assert sum(json.loads(row.bytes_by_kind).values()) == row.bytes - row.setup_bytes
        assert sum(json.loads(row.seconds_by_kind).values()) == pytest.approx(row.seconds, abs=0.01)
    assert "aero/table4/SM+ScFuFFN" in rows[0].places and "aero/table6/SM+ScFuFFN" in rows[1].places

    # One is lost, one is of other code: these two are measured again, the others stay as they are.
    lost, other, *_ = sorted(measured)
    changed = [
        row if row.key != other else ledger.Measurement(**(vars(row) | {"provenance": '{"computation":"before"}'}))
        for row in measured.values()
        if row.key != lost
    ]
    ledger.write(files["all_ops"], changed, ledger.Measurement)
    main(["--no-rounds"])
    now = {row.key: row for row in ledger.read(files["all_ops"], ledger.Measurement)}
    renewed = {key for key in measured if now[key].provenance != measured[key].provenance}
    assert set(now) == set(measured) and renewed == {lost, other}
    assert now[lost].bytes == pytest.approx(measured[lost].bytes, rel=1e-3)  # ciphertexts are sent compressed


def test_an_operation_that_lacks_its_rounds_alone_is_not_run_again(project, monkeypatch, tmp_path):
    def measured(wanted, model, context, variant, settings, runs, rounds):
        return [
            made_costs.made(operation.name, operation.shape, variant=variant, rounds=rounds[operation])
            for operation in wanted
        ]

    def refuse(*given, **named):
        raise AssertionError("measured again")

    def kept(folder):
        return {row.key: row for row in ledger.read(folder / "all_ops.csv", ledger.Measurement)}

    monkeypatch.chdir(project)
    monkeypatch.setattr("stages.two_party_all.measure", measured)
    folders = [tmp_path / name for name in ("measured", "taken")]
    for folder in folders:
        main(["--folder", str(folder), "--no-rounds"])
    monkeypatch.setattr("stages.two_party_all.measure", refuse)
    monkeypatch.setattr("stages.two_party_all.measure_rounds", lambda wanted, *_: dict.fromkeys(wanted, 5.0))
    before = kept(folders[0])
    main(["--folder", str(folders[0])])
    assert {row.rounds for row in kept(folders[0]).values()} == {5.0}
    assert {key: vars(row) | {"rounds": 0} for key, row in kept(folders[0]).items()} == {
        key: vars(row) | {"rounds": 0} for key, row in before.items()
    }

    # Those of another file, of the same computations, need no session at all.
    monkeypatch.setattr("stages.two_party_all.measure_rounds", refuse)
    parameters = load(project / "params.yaml")
    files = [folders[1] / f"all_{what}.csv" for what in ("ops", "rows")]
    taken = {"rounds": True, "rounds_from": [folders[0] / "all_ops.csv"]}
    measure_rows(parameters, printed_rows(parameters), parameters.two_party.programs, *files, None, **taken)
    assert {row.rounds for row in kept(folders[1]).values()} == {5.0}


def test_an_operation_that_fails_stops_no_other(project, monkeypatch, tmp_path, capsys):
    def measured(wanted, model, context, variant, settings, runs, rounds):
        assert runs == 1
        if any(operation.kind == "mix" for operation in wanted):
            raise TwoPartyError("the server process died (signal 9)")
        return [
            made_costs.made(operation.name, operation.shape, variant=variant, rounds=rounds[operation])
            for operation in wanted
        ]

    monkeypatch.chdir(project)
    monkeypatch.setattr("stages.two_party_all.measure", measured)
    monkeypatch.setattr(
        "stages.two_party_all.measure_rounds", lambda wanted, settings, runs: dict.fromkeys(wanted, 5.0)
    )
    with pytest.raises(UserError, match="operations failed, the first mix .* the server process died"):
        main(["--folder", str(tmp_path)])
    kinds = {row.op for row in ledger.read(tmp_path / "all_ops.csv", ledger.Measurement)}
    assert "linear" in kinds and "mix" not in kinds
    assert "0 of 2 rows" in capsys.readouterr().out
    monkeypatch.setattr("stages.two_party_all.measure", lambda *arguments, **more: 1 / 0)
    monkeypatch.setattr("stages.two_party_all.measure_rounds", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # what failed is tried again
        main(["--folder", str(tmp_path)])


@pytest.mark.slow
def test_architectures_that_are_asked_for_are_measured_and_add_up(project, monkeypatch, tmp_path, capsys):
    """`aero cost` knows their bytes then; seconds of a machine that is not quiet are left to the law."""
    monkeypatch.chdir(project)
    small = ["--layers", "2", "--heads", "2", "--width", "16", "--vocabulary", "64", "--no-rounds", "--folder", "."]
    changes = {"layers": 2, "heads": 2, "width": 16, "vocabulary": 64}
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(project / "params.yaml", "params.yaml")
    main(["SM+R", "--context", "24", "--no-seconds", *small])
    first = ledger.read(Path("asked_ops.csv"), ledger.Measurement, ledger.NO_SECONDS)
    main(["SM+R", "SM+ScFuFFN", "--context", "17", "--no-seconds", *small])
    both = ledger.read(Path("asked_ops.csv"), ledger.Measurement, ledger.NO_SECONDS)
    kept = {row.key: repr(row) for row in both}
    assert kept | {row.key: repr(row) for row in first} == kept and len(both) > len(first)
    assert all(math.isnan(row.seconds) for row in both) and not Path("asked_rows.csv").exists()
    assert capsys.readouterr().out.count("1 of 1 rows: asked_ops.csv") == 1
    found = measured_operations(made_costs.VARIANT, files=["asked_ops.csv"])
    needed = counts(parse("SM+R"), published_sizes("gpt2", 17, **changes), "tuned")[0]
    assert needed.keys() <= found.measured.keys()
    # Seconds are wanted now: what has none is measured again, and stays until it is.
    with pytest.raises(UserError, match="are left after --minutes"):
        main(["SM+R", "--context", "24", "--minutes", "0", *small])
    still = ledger.read(Path("asked_ops.csv"), ledger.Measurement, ledger.NO_SECONDS)
    assert list(map(repr, still)) == list(map(repr, both))
    main(["SM+R", "--context", "24", *small])
    timed = ledger.by_operation(ledger.read(Path("asked_ops.csv"), ledger.Measurement, ledger.NO_SECONDS))
    assert timed.keys() == {row.key for row in both} and all(timed[row.key].seconds > 0 for row in first)
    main(["SM+R", "--context", "24", "--no-seconds", *small])
    again = ledger.by_operation(ledger.read(Path("asked_ops.csv"), ledger.Measurement, ledger.NO_SECONDS))
    assert all(repr(again[row.key]) == repr(timed[row.key]) for row in first)
    with pytest.raises(ValueError, match="seconds is nan"):
        ledger.read(Path("asked_ops.csv"), ledger.Measurement)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--context", "0"], "--context belongs to given architectures"),
        (["--context", "64"], "--context belongs to given architectures"),
        (["--no-seconds"], "--no-seconds belongs to given architectures"),
        (["SM+X"], "unknown part 'X'"),
        (["SM", "--program", "fast"], "unknown program 'fast'"),
        (["SM", "--model", "gpt9"], "unknown model family 'gpt9'"),
        (["SM", "--heads", "7"], "width 768 is not divisible by 7 heads"),
        (["SM+ScFuFFNi_13"], "cannot prune 13 FFNs"),
        (["Core(sigmoid)"], "softmax"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line_and_no_file(arguments, said, project, monkeypatch, tmp_path):
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match=said) as found:
        main([*arguments, "--folder", str(tmp_path / "new")])
    assert "\n" not in str(found.value) and not (tmp_path / "new").exists()


def test_a_signature_is_of_what_is_computed():
    small, large = Operation("relu", ((4, 4),)), Operation("relu", ((4, 8),))
    assert signature(small, "a") == signature(small, "a")
    other = Operation("softmax_cover", ((1, 8, 8),), (("blocks", 2),))
    finer = Operation("softmax_cover", ((1, 8, 8),), (("blocks", 4),))
    assert (
        len({signature(o, v) for o, v in ((small, "a"), (small, "b"), (large, "a"), (other, "a"), (finer, "a"))}) == 5
    )


def test_small_operations_come_first_and_large_ones_alone():
    parameters = load(ROOT / "params.yaml")
    row = next(row for row in printed_rows(parameters) if row.context == 512)
    assert row.family == "languini-gpt2" and row.config.vocabulary == 16384 and row.config.width == 768
    todo, refused = wanted([row], ["as_written", "tuned"])
    assert not refused and len(todo) == len(set(todo))
    made = list(batches(todo))
    assert [one for batch in made for one in batch] == todo and len(made[0]) > 3 and len(made[-1]) == 1


def test_a_row_that_cannot_be_computed_is_told(monkeypatch):
    def refuse(*arguments):
        raise ValueError("two-party inference does not know this")

    monkeypatch.setattr("stages.two_party_all.operations", refuse)
    todo, refused = wanted([PrintedRow(parse("SM"), "gpt2", None, 128, ())], ["tuned"])
    assert todo == [] and refused == {"SM (gpt2, T=128), tuned": "two-party inference does not know this"}


def test_two_at_once_lose_nothing_of_each_other(project, monkeypatch):
    """Either would write the file anew from what it read at its start."""
    monkeypatch.chdir(project)
    with lock(Path("runs/two_party/asked_ops.csv")):
        with pytest.raises(UserError, match=r"another process is adding to runs/two_party/asked_ops\.csv \(it holds"):
            main(["SM", "--context", "16", "--minutes", "0"])
