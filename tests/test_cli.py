"""`aero runs`, and one-line errors of the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aero import cli
from aero.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cli.main(["runs", *arguments])
    return capsys.readouterr().out


def test_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = output(capsys, "--all").splitlines()
    rows = {line.split()[0]: line for line in lines[: lines.index("")]}
    short = output(capsys).splitlines()
    assert max(map(len, short)) <= 120 and len(short[: short.index("")]) == len(rows) + 1
    entries = {entry["run"]: entry for entry in json.loads(output(capsys, "--json"))}
    assert rows.keys() == entries.keys() and "laptop: tokens" in head
    assert "2.14 G" in rows["sm-ln-g"] and "aero/table2/SM+LN+G" in rows["sm-ln-g"]
    assert entries["sm-ln-g"]["planned_seeds"] == [1337, 1338, 1339]
    assert entries["sm-ln-g"]["cost"]["paper"]["tokens"] == 32600 * 512 * 128
    assert entries["sm-ln-g"]["stages"] == ["train", "catalogue/dvc.yaml:train"]


def test_runs_of_a_table_and_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--table", "9") == output(capsys, "--table", "aero/table9")
    assert len(json.loads(output(capsys, "--table", "aero/9", "--json"))) == 10
    assert len(json.loads(output(capsys, "--table", "aero/figure18", "--json"))) == 7
    assert {"sm-ln-g", "sm-ln-g-18l"} < {entry["run"] for entry in json.loads(output(capsys, "SM+LN+G", "--json"))}
    named = output(capsys, "sm-g", "sm-ln-g", "--table", "aero/table2", "--scale", "paper").splitlines()
    assert [line.split()[0] for line in named[: named.index("")]] == ["run", "sm-ln-g", "sm-g"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "aero/44"], "did you mean 'aero/table4'?"),
        (["--scale", "lap"], "did you mean 'laptop'?"),
        (["smlng"], "did you mean 'sm-ln-g'?"),
        (["sm-g", "--table", "aero/4"], "aero/table4 has none of sm-g"),
        (["--everything"], "--everything"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        cli.main(["runs", *arguments])


def test_aero_alone_prints_help_and_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) is None
    assert "entropy" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and re.fullmatch(r"aero \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_an_error_is_one_line_and_listing_does_not_import_torch() -> None:
    done = subprocess.run([sys.executable, "-m", "aero.cli", "run"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    code = "import sys; from aero.cli import main; main(['runs']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
