"""Known vulnerabilities by a copy of the advisory database: what covers a version, and what is said of it."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from aero.errors import UserError
from aero.pipeline import ROOT
from benchmarks import advisories


def advisory(events: list[dict[str, str]], versions: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    ranges = [{"type": "GIT", "events": [{"introduced": "0"}]}, {"type": "ECOSYSTEM", "events": events}]
    affected = {"package": {"name": "Some_Thing", "ecosystem": "PyPI"}, "ranges": ranges, "versions": list(versions)}
    return {"id": "PYSEC-1", "affected": [affected], **more}


@pytest.mark.parametrize(
    ("events", "version", "covered"),
    [
        ([{"introduced": "0"}, {"fixed": "1.10"}], "1.9", True),
        ([{"introduced": "0"}, {"fixed": "1.10"}], "1.10", False),
        ([{"introduced": "0"}, {"fixed": "1.10"}], "1.10rc1", True),
        ([{"introduced": "1.2"}], "1.1.9", False),
        ([{"introduced": "1.2"}], "7", True),
        ([{"introduced": "0"}, {"last_affected": "2"}], "2.0", True),
        ([{"introduced": "0"}, {"last_affected": "2"}], "2.0.1", False),
        ([{"introduced": "0"}, {"fixed": "1"}, {"introduced": "3"}, {"fixed": "3.2"}], "2", False),
        ([{"introduced": "0"}, {"fixed": "1"}, {"introduced": "3"}, {"fixed": "3.2"}], "3.1", True),
    ],
)
def test_ranges_are_read_as_osv_defines_them(events: list[dict[str, str]], version: str, covered: bool) -> None:
    assert advisories.covers(advisory(events), "some-thing", version) is covered
    assert not advisories.covers(advisory(events), "another", version)


def test_a_listed_version_is_covered_whatever_the_range() -> None:
    assert advisories.covers(advisory([{"introduced": "5"}], ("1.0",)), "some-thing", "1.0")


def made(folder: Path, name: str, *found: dict[str, Any]) -> Path:
    for index, one in enumerate(found):
        path = folder / "vulns" / name / f"{index}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(one))
    return folder


def test_findings_name_package_version_and_advisory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [{"introduced": "0"}, {"fixed": "2"}]
    made(tmp_path, "some-thing", advisory(events), advisory(events, withdrawn="2024-01-01T00:00:00Z"))
    found = advisories.audit({"some-thing": "1.5", "other": "1"}, tmp_path)
    assert found["packages"] == 2 and found["advisories"] == 1
    assert found["findings"] == [{"package": "some-thing", "version": "1.5", "id": "PYSEC-1", "answer": ""}]
    monkeypatch.setitem(advisories.ANSWERED, "PYSEC-1", "its parser is not used")
    assert advisories.audit({"some-thing": "1.5"}, tmp_path)["findings"][0]["answer"] == "its parser is not used"


def test_the_lock_is_read_whole_and_a_finding_fails(tmp_path: Path) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    packages = advisories.locked(lock)
    assert len(packages) == lock.count("==") and packages["pyyaml"] and advisories.locked("A_b[x]==1\n") == {"a-b": "1"}
    kept = json.loads((ROOT / "results/robustness/advisories.json").read_text())
    assert kept["packages"] == len(packages)
    assert kept["lock_sha256"] == advisories.lock_digest(packages), "the lock has changed: run benchmarks.advisories"
    out = tmp_path / "found.json"
    everything = advisory([{"introduced": "0"}])
    everything["affected"][0]["package"]["name"] = "torch"
    database = made(tmp_path / "database", "torch", everything)
    assert advisories.main(["--database", str(database), "--out", str(out)]) == 1
    (case,) = json.loads(out.read_text())["cases"]
    assert json.loads(out.read_text())["lock_sha256"] == kept["lock_sha256"]
    assert case["passed"] == case["count"] - 1 == len(packages) - 1
    assert "torch" in case["seen"] and "PYSEC-1" in case["seen"]


def test_another_version_of_one_package_is_another_lock() -> None:
    one = advisories.lock_digest({"torch": "2.1", "yaml": "6"})
    assert (
        one
        == advisories.lock_digest({"yaml": "6", "torch": "2.1"})
        == advisories.lock_digest(advisories.locked("torch==2.1  # a comment\nYAML==6\n"))
    )
    assert one != advisories.lock_digest({"torch": "2.1", "yaml": "6.1"})


def test_make_audit_leaves_out_what_is_answered(tmp_path: Path) -> None:
    """In a copy of the Makefile's place, with a pip-audit and an interpreter that do nothing but say what they are
    asked: the options come from `ANSWERED`, and an answer that cannot be had ends it."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("")
    answers = "--ignore-vuln=PYSEC-1 --ignore-vuln=PYSEC-2"
    for name, content in (
        (".venv/audit/bin/pip-audit", 'echo pip-audit "$@"'),
        (".venv/audit/bin/python", "exit 0"),
        (".venv/bin/python", f'[ "$2" = benchmarks.advisories ] && [ "$3" = --ignored ] && echo {answers}'),
        ("python-of-ours", "exit 0"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{content}\n")
        path.chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    command = ["make", "-C", str(tmp_path), "audit", "PYTHON=./python-of-ours"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"pip-audit --strict --disable-pip --no-deps {answers} -r requirements.lock" in done.stdout
    (tmp_path / ".venv/bin/python").write_text("#!/bin/sh\nexit 1\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "pip-audit" not in done.stdout


def test_what_is_answered_is_printed_as_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advisories.main(["--ignored"]) == 0 and capsys.readouterr().out == "\n"
    for name in ("PYSEC-2", "GHSA-1"):
        monkeypatch.setitem(advisories.ANSWERED, name, "its parser is not used")
    assert advisories.main(["--ignored"]) == 0
    assert capsys.readouterr().out == "--ignore-vuln=GHSA-1 --ignore-vuln=PYSEC-2\n"


def test_an_old_copy_is_said_to_know_little() -> None:
    assert "before most locked versions: it knows little of them; pip-audit remains" in advisories.aged("2024-10-10")
    assert advisories.aged(datetime.date.today().isoformat()) == advisories.aged("") == ""


def test_a_folder_that_is_no_database_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no folder vulns"):
        advisories.audit({"torch": "1"}, tmp_path)
