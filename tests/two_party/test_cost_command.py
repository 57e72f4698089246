"""`aero cost` on synthetic measurements: its answers, its speed, and one line for user errors."""

from __future__ import annotations

import json
import math
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_costs

from aero import cli
from aero.architecture import parse
from aero.errors import UserError
from aero.hf.convert import describe
from aero.two_party.cost import cost_model as cost_module
from aero.two_party.cost import counts as counts_module
from aero.two_party.cost import ledger
from aero.two_party.cost.composition import estimate
from aero.two_party.cost.cost_model import measured_operations
from aero.two_party.cost.counts import counts, published_sizes, sizes_of

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = "results/two_party/all_ops.csv"


@pytest.fixture(scope="module")
def measured() -> list[ledger.Measurement]:
    """Synthetic measurements at T = 128, 256 and 512."""
    return synthetic_costs.operations((128, 256, 512))


@pytest.fixture
def project(tmp_path: Path, measured: list[ledger.Measurement], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parameters, synthetic measurements and the committed trainings."""
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    ledger.write(tmp_path / OPERATIONS, measured, ledger.Measurement)
    passes = [
        {"program": "tuned", "composed_over_measured": 0.986, "composed_over_measured_messages": 0.6},
        {"program": "as_written", "composed_over_measured_messages": 1.1},
    ]
    (tmp_path / "results/two_party/end_to_end.json").write_text(json.dumps(passes))
    shutil.copytree(ROOT / "results/laptop", tmp_path / "results/laptop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cli.main(["cost", *arguments])
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    return json.loads(output(capsys, *arguments, "--json"))


def test_one_architecture(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "SM+ScFuFFN", "--network", "wan", "--program", "tuned")
    cost = estimate(parse("SM+ScFuFFN"), published_sizes("gpt2", 128), "tuned", measured_operations())
    assert f"{cost.bytes / 1e9:.3f} GB" in text and "(100 Mbit/s, 80 ms)" in text and "EXTRAPOLATED" not in text
    found = as_json(capsys, "SM+ScFuFFN", "--network", "1000,1")
    assert found["bytes"] == cost.bytes and found["network"] == {"bandwidth_mbit": 1000.0, "rtt_ms": 1.0}
    assert found["composition_error"] == pytest.approx(0.014) and found["interpolated"] == []
    between = as_json(capsys, "SM+ScFuFFN", "--context", "192")
    assert cost.bytes < between["bytes"] and between["interpolated"] and between["bytes_error"] < 0.05


def test_a_published_row_is_answered_side_by_side(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "results/two_party/forensics_fits.csv").write_text(
        "rank,table,row,fitted_gb\n2,4,SM+ScFuFFN,6.1\n1,4,SM+ScFFN,6.4\n1,4,SM+ScFuFFN,6.364\n"
    )
    found = as_json(capsys, "SM+ScFuFFN")
    stock, optimised = (as_json(capsys, "SM+ScFuFFN", "--program", name) for name in ("as_written", "tuned"))
    published = {"where": "AERO, Table 4", "bytes": 6.43e9, "latency_s": pytest.approx(60 * 4.76)}
    beside = found.pop("side_by_side")
    assert beside.pop("reproduced")["bytes"] == 6.364e9
    assert beside == {"published": published, "stock": stock, "optimised": optimised} and found == optimised
    text = output(capsys, "SM+ScFuFFN")
    line = next(line for line in text.splitlines() if line.startswith("bytes"))
    assert line.split()[-4:] == ["6.430", "6.364", f"{stock['bytes'] / 1e9:.3f}", f"{optimised['bytes'] / 1e9:.3f}"]
    for other in (["SM+R"], ["SM+ScFuFFN", "--layers", "11"], ["SM+ScFuFFN", "--context", "192"]):
        assert "side_by_side" not in as_json(capsys, *other)


def test_numbers_that_are_not_whole_have_ten_digits(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "SM+ScFuFFN", "--context", "192", "--network", "1000,3")
    values = [value for value in (*found.values(), *found["seconds_by_kind"].values()) if isinstance(value, float)]
    assert len(values) > 15 and all(value == float(f"{value:.10g}") or value.is_integer() for value in values)


def test_times_and_rounds_beyond_those_measured_have_no_bound(
    project: Path, measured: list[ledger.Measurement], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes at T=64 without seconds: the answer has them, estimated from larger contexts, and says so."""
    small = [replace(row, seconds=math.nan, rounds=math.nan) for row in synthetic_costs.operations((64,), ("SM+R",))]
    ledger.write(Path(OPERATIONS), {row.key: row for row in (*small, *measured)}.values(), ledger.Measurement)
    needed = counts(parse("SM+R"), published_sizes("gpt2", 64), "tuned")
    exact = sum(n * synthetic_costs.made(*key).seconds for key, n in needed.items())
    for context in (64, 100):
        found = as_json(capsys, "SM+R", "--context", str(context))
        assert found["seconds_error"] is None and found["latency_error"] is None and found["bytes_error"] is not None
        assert not found["extrapolated"] and "unknown" in output(capsys, "SM+R", "--context", str(context))
        assert found["seconds"] == pytest.approx(exact, rel=0.1) or context == 100


def test_rounds_and_latency_have_a_bound(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds that are 10 % off at T=256: the model between 128 and 512 misses them, and the bound covers that."""
    rows = synthetic_costs.operations((128, 256, 512), ("SM+R",))
    off = [replace(row, rounds=1.1 * row.rounds) if "256" in row.shape and row.op != "relu" else row for row in rows]
    ledger.write(Path(OPERATIONS), off, ledger.Measurement)
    found, measured = as_json(capsys, "SM+R", "--context", "192"), as_json(capsys, "SM+R")
    assert 0.01 < found["rounds_error"] < 0.11 and 0 < found["latency_error"] < 0.11
    rounds, seconds = found["rounds"] * found["rounds_error"] * 0.08, found["seconds"] * found["seconds_error"]
    least = (rounds + seconds) / found["latency_s"]
    assert least < found["latency_error"] < least + found["bytes_error"] + 1e-9
    assert measured["rounds_error"] == measured["latency_error"] == 0
    ledger.write(Path(OPERATIONS), [replace(row, rounds=math.nan) for row in rows], ledger.Measurement)
    found = as_json(capsys, "SM+R", "--context", "192")
    assert found["rounds"] is found["latency_s"] is found["rounds_error"] is found["latency_error"] is None
    assert found["bytes_error"] < 0.05 and "rounds not measured" in output(capsys, "SM+R")


def test_seconds_timed_once(
    project: Path, measured: list[ledger.Measurement], capsys: pytest.CaptureFixture[str]
) -> None:
    needed = counts(parse("SM+ScFuFFN"), published_sizes("gpt2", 128), "tuned")
    single = sorted(needed)[:2]
    rows = [replace(row, runs=1 if row.key in single else 3) for row in measured]
    ledger.write(Path(OPERATIONS), rows, ledger.Measurement)
    seconds = {row.key: row.seconds for row in rows}
    expected = sum(needed[key] * seconds[key] for key in single)
    assert as_json(capsys, "SM+ScFuFFN")["seconds_timed_once"] == pytest.approx(expected) and expected > 0


def test_the_error_of_the_latency_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines, error in (((), None), (("SM,0.02", "SM,-0.081", "SM,", "SM,nan"), 0.081)):
        Path("results/two_party/shaped.csv").write_text("\n".join(("architecture,error", *lines)))
        assert as_json(capsys, "SM+ScFuFFN")["latency_model_error"] == error


def test_a_program_has_its_shortest_name_and_its_own_passes(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counts_module, "traced", lambda *_: pytest.fail("the shortest name has a rule"))
    found = as_json(capsys, "SM+ScFuFFN", "--program", "tuned+lattice_products")
    assert found["program"] == "tuned" and found["composition_messages_error"] == pytest.approx(0.4)
    found = as_json(capsys, "SM+ScFuFFN", "--program", "as_written")
    assert found["composition_messages_error"] == pytest.approx(0.1)
    # No pass of this program: those of all.
    entries = [{"program": "tuned-last_row", "composed_over_measured_messages": 0.7}]
    Path("results/two_party/end_to_end.json").write_text(json.dumps(entries))
    assert as_json(capsys, "SM+ScFuFFN")["composition_messages_error"] == pytest.approx(0.3)


def test_from_another_folder_it_reads_the_clone(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, other = as_json(capsys, "SM+ScFuFFN"), tmp_path_factory.mktemp("other")
    monkeypatch.chdir(other)
    monkeypatch.setattr(cost_module, "ROOT", project)
    assert as_json(capsys, "SM+ScFuFFN") == here
    monkeypatch.setattr(cost_module, "ROOT", other)
    with pytest.raises(UserError, match="run it in the root folder of a clone"):
        cli.main(["cost", "SM+ScFuFFN"])


def test_two_side_by_side(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = as_json(capsys, "--compare", "SM+LN+G", "SM+ScFuFFN", "--program", "as_written")
    assert (first["architecture"], second["architecture"]) == ("SM+LN+G", "SM+ScFuFFN")
    text = output(capsys, "--compare", "SM+LN+G", "SM+ScFuFFN", "--program", "as_written")
    line = next(line for line in text.splitlines() if line.startswith("bytes"))
    assert line.split()[-1] == f"{first['bytes'] / second['bytes']:.2f}"


def test_perplexity_against_communication(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--pareto", "--out", "front.svg")["points"]
    assert Path("front.svg").stat().st_size > 5000
    assert len(found) > 3 and [one["run"] for one in found if one["front"]] == [
        p["run"]
        for p in found
        if not any(q["bytes"] <= p["bytes"] and q["perplexity"] <= p["perplexity"] for q in found if q is not p)
    ]


@pytest.mark.slow
def test_the_answer_takes_under_a_second(project: Path) -> None:
    """Processor time of the whole command, with the start of the interpreter; for a quiet machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "from aero.cli import main; main(['cost', 'SM+ScFuFFNi_3', '--context', '192'])"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_the_answer_needs_few_calls_and_no_slow_library(project: Path) -> None:
    """What the second above consists of, on any machine: 0.8 million calls of functions, those of imports included."""
    code = """if True:
        import cProfile, pstats, sys
        from aero.cli import main
        profile = cProfile.Profile()
        profile.runcall(main, ["cost", "SM+ScFuFFNi_3", "--context", "192"])
        slow = {"torch", "jax", "spu", "pandas", "matplotlib", "scipy", "transformers", "dvc"}
        print(pstats.Stats(profile).total_calls, *slow & sys.modules.keys())
    """
    environment = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert run.returncode == 0, run.stderr
    calls, *slow = run.stdout.splitlines()[-1].split()
    assert int(calls) < 1_200_000 and not slow


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "one architecture, or --compare A B, or --pareto"),
        (["SM", "--pareto"], "one architecture, or --compare"),
        (["SM+LN+X"], "unknown part 'X'"),
        (["SM", "--model", "gpt3"], "known: gpt2"),
        (["SM", "--network", "moon"], "unknown network: .moon.; give wan, lan, implied or Mbit/s"),
        (["SM", "--network", "0,5"], "network out of range: '0,5'"),
        (["SM", "--network", "\u0663,5"], "unknown network"),
        (["SM+R", "--context", "1024"], "lies outside what was measured, the nearest is 512x"),
        (["SM+R", "--program", "fast"], "unknown program"),
        (["--pareto", "--program", "tuned-one_qk"], "unknown optimization .one_qk.; did you mean .one_qkv."),
        (["SM+R", "--program", "as_published"], "use as_written"),
        (["SM", "--out", "a.svg"], "--out belongs to --pareto"),
        (["--pareto", "--out", "a.gif"], "must end in .svg or .png"),
        (["--pareto", "--out", "no such folder/a.svg"], "there is no folder no such folder"),
        (["--pareto", "--layers", "3"], "--layers cannot be combined with --pareto"),
        (["SM+ScFuFFN", "--program", "tuned@12"], "1 to 11, not 12"),
        (["SM+LN+G", "--program", "tuned@6"], "has no change of basis to undo"),
        (["SM+ScFuFFN", "--program", "as_written+absorbed_ffn"], "has no effect without folded_ffn"),
        (["SM+ScFuFFNi_13"], "cannot prune 13"),
    ],
)
def test_user_errors(project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str) -> None:
    monkeypatch.setattr(counts_module, "traced", lambda *_: pytest.fail("it traces before it refuses"))
    with pytest.raises(ValueError, match=named) as found:
        cli.main(["cost", *arguments])
    assert "\n" not in str(found.value)


def test_the_folder_of_a_hugging_face_model(
    project: Path, measured: list[ledger.Measurement], capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import GPT2Config, LlamaConfig

    GPT2Config().save_pretrained("gpt2-hub")
    found, known = as_json(capsys, "--model", "gpt2-hub"), as_json(capsys, "SM+LN+G", "--program", "tuned")
    assert found["model"] == "gpt2-hub" and found == known | {"model": "gpt2-hub"}
    small = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaConfig(**small, vocab_size=500, hidden_size=64, intermediate_size=96).save_pretrained("llama")
    with pytest.raises(UserError, match="measure it"):
        as_json(capsys, "--model", "llama/config.json")
    architecture, config = describe("llama")
    needed = counts(architecture, sizes_of("llama", config, 128), "tuned")
    made = {key: synthetic_costs.made(*key) for key in needed}
    ledger.write(Path(OPERATIONS), [*({row.key: row for row in measured} | made).values()], ledger.Measurement)
    found = as_json(capsys, "--model", "llama/config.json")
    setup = max(row.setup_bytes for row in made.values())
    assert found["bytes"] == pytest.approx(setup + sum(count * made[key].bytes for key, count in needed.items()))
    assert needed["gate", "128x96,128x96"] == needed["lattice_linear", "128x64,64x128"] == 4  # and one last row
    for arguments, named in ((["--layers", "3"], "--layers changes a model family"), (["--context", "4000"], "2048")):
        with pytest.raises(UserError, match=named):
            as_json(capsys, "--model", "llama", *arguments)
