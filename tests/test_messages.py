"""How a command ends for whoever typed it."""

from __future__ import annotations

import importlib
import math
import os
import re
import subprocess
import sys
import tomllib

import pytest

from aero.errors import EXTRAS, UserError, check_file, json_file, run_main, seed_number, text_of
from aero.records import ROOT
from stages import sensitivity_search


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such\n thing"), 1, "error: no such thing\n"),
        (
            FileNotFoundError(2, "No such file or directory", "/a/ops.csv"),
            1,
            "error: [Errno 2] No such file or directory: '/a/ops.csv'; check the path, or run what makes it "
            "(`dvc repro`: all that a stage needs)\n",
        ),
        (OSError(5, "Input/output error"), 1, "error: [Errno 5] Input/output error\n"),
        (MemoryError(), 1, "error: out of memory: MemoryError\n"),
        (MemoryError("8 GiB"), 1, "error: out of memory: 8 GiB\n"),
        (KeyboardInterrupt(), 130, "error: interrupted; a run can be resumed by the same command\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(capsys, error, status, said):
    def main(_):
        raise error

    with pytest.raises(SystemExit) as ended:
        run_main(main, [])
    assert ended.value.code == status and capsys.readouterr() == ("", said)


@pytest.mark.parametrize("lines", [1, 100_000])
def test_output_that_finds_no_room_or_no_reader(lines):
    """With one line nothing is written until the end."""
    text = f"from aero.errors import run_main; run_main(lambda _: print('line\\n' * {lines}), [])"
    command = [sys.executable, "-c", text]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "No space left on device" in ended.stderr
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda _: 1 // 0, [])
    with pytest.raises(ModuleNotFoundError):
        run_main(lambda _: importlib.import_module("nowhere_at_all"), [])


@pytest.mark.parametrize(("package", "extra"), [("spu", "two-party"), ("pyarrow", "corpora")])
def test_a_package_that_is_not_installed_names_its_extra(package, extra, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        run_main(lambda _: importlib.import_module(package), [])
    said = f"error: {package} is not installed: pip install -e '.[{extra}]' in your clone\n"
    assert ended.value.code == 1 and capsys.readouterr() == ("", said)


def test_extras_are_those_of_the_project():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(re.match(rf"{package}\b", wanted) for wanted in extras[extra]), package


@pytest.mark.parametrize("minutes", [0, math.nan])
def test_a_time_limit_that_ends_nothing_is_refused_before_anything_starts(minutes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"--minutes {minutes:g}: must be a number above 0"):
        sensitivity_search.main(["--minutes", str(minutes)])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_too_large(tmp_path):
    with open(large := tmp_path / "large", "wb") as file:
        file.truncate(3 << 30)
    for refused in (check_file, text_of):
        with pytest.raises(UserError, match="3,221,225,472 b"):
            refused(large, 1 << 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", "must hold a mapping, not"), ("[" * 100_000, "is not valid JSON"), ("x", "is not valid JSON")],
)
def test_json_that_is_none_names_its_file(tmp_path, text, said):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"^{path} {said}") as caught:
        json_file(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    path.write_text('{"a": 1}')
    assert json_file(path) == {"a": 1}


@pytest.mark.parametrize("text", ["-1", str(2**63), "1e3", "x", "\u0663", "1" * 5000])
def test_seeds_that_no_generator_takes(text, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module("stages.train").main(["sm", f"--seed={text}"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"must be a whole number from 0 to {2**63 - 1}") and len(said) < 200
    assert seed_number(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_is_one_line(name):
    body = f"run_main(lambda _: os.kill(os.getpid(), signal.{name}), [])"
    command = [sys.executable, "-c", f"import os, signal; from aero.errors import run_main; {body}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "error: interrupted; a run can be resumed by the same command\n"
