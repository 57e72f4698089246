"""The command `aero`: what it prints, and one line for what it cannot."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from dvc.repo import Repo

from aero import cli
from aero.records import ROOT
from aero.training import catalogue


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    cli.main(["runs", *arguments])
    return capsys.readouterr().out.splitlines()


def test_all_runs_with_state_and_cost_at_every_scale(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(capsys)
    for name in ("smoke", "laptop", "gpu", "paper"):
        assert f"{name}: tokens" in said[0]
    assert said[0].count("FLOPs") == said[0].count("time") == 4
    rows = {line.split()[0]: line for line in said[1 : said.index("")]}
    assert len(rows) == 125
    assert "kept" in rows["sm-ln-g"] or "fresh" in rows["sm-ln-g"]
    assert rows["sm-ln-g"].split()[6:10] == ["1.54", "k", "994", "M"] and "2.14 G" in rows["sm-ln-g"]  # tokens, FLOPs
    assert "3/3, 2 diverged" in rows["sm-wnorm-qkv-ffn"]
    assert "aero/table2/SM+LN+G" in rows["sm-ln-g"] and "the other reading" in rows["ereg-smt-scfuffn-head-mean"]
    assert "assumption" in said[-1] and "125 runs, 367 trainings" in said[said.index("") + 1]


def test_a_table_its_short_form_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "--table", "9") == lines(capsys, "--table", "aero/table9")
    found = json.loads("\n".join(lines(capsys, "--table", "aero/9", "--json")))
    assert len(found) == 10 and {entry["model"] for entry in found} == {"gpt2"}
    entry = found[0]
    assert entry["planned_seeds"] == [1337, 1338, 1339] and set(entry["cost"]) == {"smoke", "laptop", "gpu", "paper"}
    assert entry["cost"]["paper"]["tokens"] == 32600 * 512 * 128 and entry["cost"]["paper"]["hours"]["H200"] > 0
    margins = json.loads("\n".join(lines(capsys, "--table", "aero/figure18", "--json")))
    assert len(margins) == 7


def test_every_training_names_the_stage_that_makes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    entries = json.loads("\n".join(lines(capsys, "--json")))
    with Repo(ROOT) as repo:
        made = {
            stage.addressing: match.groups()
            for stage in repo.index.stages
            if (match := re.search(r"stages\.train (\S+) --seed (\d+)", str(stage.cmd)))
        }
    told = {
        stage: (entry["run"], str(seed))
        for entry in entries
        for stage, seed in zip(entry["stages"], entry["planned_seeds"], strict=True)
    }
    assert told == made and len(told) == 367


@pytest.mark.parametrize(("lost", "sibling"), [("2", "4"), ("4", "9"), ("5", "3"), ("6", "5"), ("7", "6")])
def test_a_lost_table_lists_the_runs_of_its_sibling_and_says_so(
    lost: str, sibling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *said, remark = lines(capsys, "--table", f"entropy_guided/{lost}")
    assert said == lines(capsys, "--table", f"aero/{sibling}")
    assert remark.startswith(f"entropy_guided/table{lost} itself names no run: the cells are not in the sources")
    cli.main(["runs", "--table", f"entropy_guided/{lost}", "--json"])
    found = capsys.readouterr()
    assert {entry["run"] for entry in json.loads(found.out)} == {line.split()[0] for line in said[1 : said.index("")]}
    assert found.err == remark + "\n"


def test_runs_by_name_and_the_figure_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    named = lines(capsys, "sm-g", "sm-ln-g", "--table", "aero/table2")
    assert [line.split()[0] for line in named[: named.index("")]] == ["run", "sm-ln-g", "sm-g"]
    assert "2 runs, 6 trainings" in named[named.index("") + 1]
    alone = lines(capsys, "sm-ln-g", "--scale", "smoke")
    assert alone[alone.index("") + 1].startswith("1 run, 3 trainings with")
    figure = lines(capsys, "--table", "aero/figure18")
    assert all("aero/figure18" in line for line in figure[1 : figure.index("")])
    assert "aero/table4/EReg(SM(t)+ScFuFFN); aero/figure18" in figure[1]


def test_a_scale_without_results_is_estimated_from_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = catalogue.results()
    others = {key: of_run for key, of_run in there.items() if key[0] != "smoke"}
    monkeypatch.setattr(catalogue, "results", lambda problems: others)
    *said, footer = lines(capsys, "--table", "2", "--scale", "smoke")
    assert all(" missing " in line and " ? " in line for line in said[1 : said.index("")])
    assert said[-1].endswith("all trainings one after the other: ?.") and "unknown" in footer


def test_one_scale_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(capsys, "--table", "2", "--scale", "paper")
    assert {"H200", "A100"} <= set(said[0].split()) and "2.14 G" in said[1] and "missing" in said[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["runs", "--table", "aero/44"], "no run is of aero/table44; did you mean aero/table4?"),
        (["runs", "--scale", "lap"], "unknown scale 'lap'; did you mean 'laptop'?"),
        (["runs", "--scale", ""], "unknown scale ''; known: smoke"),
        (["runs", "--table", ""], "no run is of aero/; did you mean"),
        (["runs", "--table", "aero/Table 4"], "no run is of aero/Table 4; did you mean aero/table4?"),
        (["runs", "--table", "variance_sensitivity/1"], "what this paper trains apart is in docs/variance_sensitivity"),
        (["runs", "smlng"], "unknown run 'smlng'; did you mean 'sm-ln-g'?"),
        (["runs", "sm-g", "--table", "aero/4"], "aero/table4 has none of sm-g"),
        (["cost", "SM", "--context", "9" * 23, "--extrapolate"], "context must be at most 10,000,000 (got 999"),
        (["run"], "invalid choice: 'run'"),
        (["runs", "--everything"], "--everything"),
        ([], "COMMAND"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], named: str) -> None:
    finished = subprocess.run([sys.executable, "-m", "aero.cli", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 1 and finished.stdout == ""
    assert len(finished.stderr.splitlines()) == 1 and named in finished.stderr


def test_listing_loads_no_torch() -> None:
    code = "import sys; from aero.cli import main; main(['runs']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
