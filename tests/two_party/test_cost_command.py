"""`aero cost` on made measurements: what it says, how fast, and one line for what it cannot."""

from __future__ import annotations

import json
import math
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made_costs
import pytest

from aero import cli
from aero.architecture import parse
from aero.errors import UserError
from aero.report.papers.private_inference import Point, with_front
from aero.two_party.cost import cost_model as cost_module
from aero.two_party.cost import counts as counts_module
from aero.two_party.cost import ledger
from aero.two_party.cost.cost_model import estimate, measured_operations
from aero.two_party.cost.counts import published_sizes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters, made measurements at T = 128, 256 and 512, and the kept trainings."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copyfile(ROOT / "params.yaml", folder / "params.yaml")
    made_costs.write(folder, (128, 256, 512))
    (folder / "results/two_party/end_to_end.json").write_text('[{"composed_over_measured": 0.986}]')
    for run in ("sm-ln-g", "sm-scfuffn", "sm-r", "sm-scfuffni-6"):
        shutil.copytree(ROOT / "results/laptop" / run, folder / "results/laptop" / run)
    return folder


@pytest.fixture(autouse=True)
def in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cli.main(["cost", *arguments])
    return capsys.readouterr().out


def test_one_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "SM+ScFuFFN", "--network", "wan")
    cost = estimate(parse("SM+ScFuFFN"), published_sizes("gpt2", 128), "tuned", measured_operations(made_costs.VARIANT))
    assert f"{cost.bytes / 1e9:.3f} GB in both directions" in text and "(100 Mbit/s, 80 ms)" in text
    assert "nothing interpolated" in text and "by up to 1.4 %" in text and "EXTRAPOLATED" not in text
    found = json.loads(said(capsys, "SM+ScFuFFN", "--json", "--network", "1000,1"))
    assert found["bytes"] == cost.bytes and found["network"] == {"bandwidth_mbit": 1000.0, "rtt_ms": 1.0}
    assert found["composition_error"] == pytest.approx(0.014) and found["interpolated"] == []
    between = json.loads(said(capsys, "SM+ScFuFFN", "--json", "--context", "192"))
    assert cost.bytes < between["bytes"] and between["interpolated"] and between["bytes_error"] < 0.05


def test_rounds_and_latency_have_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """Made rounds that are 10 % off at T=256: the law between 128 and 512 does not know of it, the bound does."""
    rows = [
        replace(row, rounds=1.1 * row.rounds) if "256" in row.shape and row.op != "relu" else row
        for row in made_costs.operations((128, 256, 512), ("SM+R",))
    ]
    ledger.write(Path("runs/two_party/ops.csv"), rows, ledger.Measurement)
    try:
        found = json.loads(said(capsys, "SM+R", "--json", "--context", "192"))
        text = said(capsys, "SM+R", "--context", "192")
        both = said(capsys, "--compare", "SM+R", "SM+R", "--context", "192")
        measured = json.loads(said(capsys, "SM+R", "--json"))
    finally:
        Path("runs/two_party/ops.csv").unlink()
    assert 0.01 < found["rounds_error"] < 0.11 and 0 < found["latency_error"] < 0.11
    rounds, seconds = found["rounds"] * found["rounds_error"] * 0.08, found["seconds"] * found["seconds_error"]
    least = (rounds + seconds) / found["latency_s"]
    assert least < found["latency_error"] < least + found["bytes_error"] + 1e-9
    bounds = f"rounds ±{100 * found['rounds_error']:.1f} %, seconds"
    latency = f"latency ±{100 * found['latency_error']:.1f} % by interpolation"
    assert bounds in text and latency in text and both.count(bounds) == both.count(latency) == 2
    assert measured["rounds_error"] == measured["latency_error"] == 0


def test_rounds_that_were_not_measured_have_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(row, rounds=math.nan) for row in made_costs.operations((128, 256, 512), ("SM+R",))]
    ledger.write(Path("runs/two_party/ops.csv"), rows, ledger.Measurement)
    try:
        found = json.loads(said(capsys, "SM+R", "--json", "--context", "192"))
        text = said(capsys, "SM+R", "--context", "192")
    finally:
        Path("runs/two_party/ops.csv").unlink()
    assert found["rounds"] is found["latency_s"] is found["rounds_error"] is found["latency_error"] is None
    assert found["bytes_error"] < 0.05 and "rounds unknown, seconds" in text and "latency unknown by inter" in text
    assert "rounds not measured" in text and "unknown (rounds were not measured)" in text


def test_single_timings_are_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two operations of the pass; the others are medians of three runs."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (path,) = [tmp_path / name for name in cost_module.FILES if (tmp_path / name).is_file()]
    rows = ledger.read(path, ledger.Measurement)
    needed, _ = cost_module.counts(parse("SM+ScFuFFN"), published_sizes("gpt2", 128), "tuned")
    single = sorted(needed)[:2]
    ledger.write(path, [replace(row, runs=1 if row.key in single else 3) for row in rows], ledger.Measurement)
    seconds = {row.key: row.seconds for row in rows}
    expected = sum(needed[key] * seconds[key] for key in single)
    found = json.loads(said(capsys, "SM+ScFuFFN", "--json"))
    assert found["seconds_timed_once"] == pytest.approx(expected) and expected > 0
    share = f"timed      once: {100 * expected / found['seconds']:.0f} % of the seconds"
    assert share in said(capsys, "SM+ScFuFFN")
    ledger.write(path, [replace(row, runs=3) for row in rows], ledger.Measurement)
    assert "once:" not in said(capsys, "SM+ScFuFFN")


def test_what_the_latency_model_was_held_against(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    shaped = tmp_path / "results/two_party/shaped.csv"
    shaped.parent.mkdir(parents=True, exist_ok=True)
    shaped.unlink(missing_ok=True)
    for lines, error, told in [
        ((), None, "held against no pass"),
        (
            ("SM,0.02", "SM,-0.081", "SM,", "SM,nan"),
            0.081,
            "latency was within 8.1 % of passes of small models",
        ),
        (("SM,none",), None, "held against no pass"),
    ]:
        shaped.write_text("\n".join(("architecture,error", *lines)))
        assert told in said(capsys, "SM+ScFuFFN")
        assert json.loads(said(capsys, "SM+ScFuFFN", "--json"))["latency_model_error"] == error


def test_a_program_goes_by_its_shortest_name_and_is_held_against_its_own_passes(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counts_module, "traced", lambda *_: pytest.fail("counts are kept by the shortest name"))
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "runs/two_party/end_to_end.json").unlink(missing_ok=True)
    passes = [{"program": "tuned", "composed_over_measured_messages": 0.6},
              {"program": "as_written", "composed_over_measured_messages": 1.1}]  # fmt: skip
    for name, kept in (("end_to_end.json", []), ("full_passes.json", passes)):
        (folder / name).write_text(json.dumps(kept))
    text = said(capsys, "SM+ScFuFFN", "--program", "tuned+lattice_products")
    assert "program tuned:" in text and "messages by up to 40.0 %" in text
    assert "messages by up to 10.0 %" in said(capsys, "SM+ScFuFFN", "--program", "as_written")
    # No pass of either: that of all.
    (folder / "full_passes.json").write_text(json.dumps([{**passes[0], "program": "tuned-last_row"}]))
    assert "messages by up to 40.0 %" in said(capsys, "SM+ScFuFFN", "--program", "as_written")


def test_from_another_folder_it_reads_the_clone(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = json.loads(said(capsys, "SM+ScFuFFN", "--json"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost_module, "ROOT", project)
    cli.main(["cost", "SM+ScFuFFN", "--json"])
    told = capsys.readouterr()
    assert json.loads(told.out) == here
    assert told.err == f"note: neither params.yaml nor kept costs in this folder; those of {project} are read\n"
    assert "sm-scfuffn" in said(capsys, "--pareto") and (tmp_path / "pareto.svg").is_file()
    monkeypatch.setattr(cost_module, "ROOT", tmp_path)
    with pytest.raises(
        UserError, match="^the kept costs of operations are neither .*; run it in the root folder of a c"
    ):
        cli.main(["cost", "SM+ScFuFFN"])
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    with pytest.raises(UserError, match="^the kept costs .* are not in this folder; run it in the root folder of a cl"):
        cli.main(["cost", "SM+ScFuFFN"])


def test_two_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--compare", "SM+LN+G", "SM+ScFuFFN", "--program", "as_written")
    first, second = json.loads(said(capsys, "--compare", "SM+LN+G", "SM+ScFuFFN", "--json", "--program", "as_written"))
    assert (first["architecture"], second["architecture"]) == ("SM+LN+G", "SM+ScFuFFN")
    line = next(line for line in text.splitlines() if line.startswith("bytes"))
    assert line.split()[-1] == f"{first['bytes'] / second['bytes']:.2f}"


def test_perplexity_against_communication(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("front.svg", "front.png"):
        text = said(capsys, "--pareto", "--out", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000
    assert text.count("front") - text.count("front.png") >= 1 and "sm-scfuffni-6" in text
    assert "left out, not trained yet: " in text
    found = json.loads(said(capsys, "--pareto", "--json", "--out", str(tmp_path / "front.svg")))
    assert [p["run"] for p in found["points"] if p["front"]] == front_by_hand(found["points"])


def front_by_hand(points: list[dict]) -> list[str]:
    """Runs that no other beats in both."""
    return [
        p["run"]
        for p in points
        if not any(q["bytes"] <= p["bytes"] and q["perplexity"] <= p["perplexity"] for q in points if q is not p)
    ]


def test_the_front_by_hand() -> None:
    made = [Point(name, name, perplexity, (1,), cost, 0.0) for name, cost, perplexity in (
        ("a", 5, 3), ("b", 1, 9), ("c", 2, 4), ("d", 3, 4), ("e", 4, 6), ("f", 2, 5)
    )]  # fmt: skip
    assert [point.run for point in with_front(made) if point.front] == ["b", "c", "a"]


def test_the_answer_takes_under_a_second(project: Path) -> None:
    """Processor time of the whole command, the interpreter's start included; another's work does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "aero.cli", "cost", "SM+ScFuFFNi_3", "--context", "192"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize("arguments", [["SM+R"], ["--compare", "SM+R", "SM+G"], ["--pareto"]])
def test_an_unknown_program_is_refused_before_anything_is_traced(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts_module, "traced", lambda *_: pytest.fail("it traces, which takes a minute"))
    refused = {
        "bogus": "unknown program .bogus.",
        "tuned-one_qk": "unknown optimization .one_qk.; did you mean one_qkv",
    }
    refused["as_published"] = "costs of the printed rows alone .results/two_party/fitted._rows.csv.; take as_written"
    for program, named in refused.items():
        with pytest.raises(UserError, match=named):
            cli.main(["cost", *arguments, "--program", program])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "one architecture, or --compare A B, or --pareto"),
        (["SM", "--pareto"], "one architecture, or --compare"),
        (["SM+LN+X"], "unknown part 'X'"),
        (["SM", "--model", "gpt3"], "known: gpt2"),
        (["SM", "--network", "moon"], "unknown network: .moon.; give wan, lan, implied or Mbit/s .above 0. and ms"),
        (["SM", "--network", "0,5"], "network out of range: '0,5'; .* Mbit/s .above 0."),
        (["SM", "--network", "9" * 400 + ",0"], "up to 1e9 each"),
        (["SM", "--network", "0." + "0" * 300 + "1,1"], "up to 1e9 each"),
        (["SM", "--network", "\u0663,5"], "unknown network"),
        (["SM+R", "--context", "1024"], "lies outside what was measured, the nearest is 512x"),
        (["SM+R", "--program", "fast"], "unknown program"),
        (["SM+R", "--program", "tuned@\u0663"], "unknown program"),
        (["SM+R", "--program", "tuned@" + "9" * 5000], "tuned-OPTIMIZATION or as_published"),
        (["SM+R", "--program", "tuned-" + "a" * 5000], "unknown optimization"),
        (["SM", "--out", "a.svg"], "--out belongs to --pareto"),
        (["--pareto", "--out", "a.gif"], "must end in .svg or .png"),
        (["--pareto", "--out", "no such folder/a.svg"], "there is no folder no such folder"),
        (["--pareto", "--model", "pythia-70m"], "not trained yet"),
        (["--pareto", "--layers", "3"], "--layers does not go with --pareto"),
        (["--pareto", "--network", "lan"], "--network does not go with --pareto"),
        (["--pareto", "--scale", "huge"], "scale"),
        (["SM+ScFuFFN", "--program", "tuned@12"], "the layers after @ are 1 to 11, not 12"),
        (["SM+ScFuFFN", "--program", "tuned@0"], "1 to 11, not 0"),
        (["SM+LN+G", "--program", "tuned@6"], "SM+LN+G has no change of basis to undo"),
        (["SM+ScFuFFN", "--program", "as_written@6"], "SM+ScFuFFN has no change of basis to undo"),
        (["SM+ScFuFFN", "--program", "as_written+absorbed_ffn"], "absorbed_ffn does nothing without folded_ffn"),
        (["SM+ScFuFFNi_13"], "cannot prune 13"),
    ],
)
def test_what_it_cannot(arguments: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named.replace("+", r"\+")) as found:
        cli.main(["cost", *arguments])
    assert "\n" not in str(found.value)
