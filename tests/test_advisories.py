"""Known vulnerabilities by a copy of the advisory database: what covers a version, and what is said of it."""

from __future__ import annotations

import datetime
import json
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
    assert kept["packages"] == len(packages), "the lock has changed: run benchmarks.advisories again"
    out = tmp_path / "found.json"
    everything = advisory([{"introduced": "0"}])
    everything["affected"][0]["package"]["name"] = "torch"
    database = made(tmp_path / "database", "torch", everything)
    assert advisories.main(["--database", str(database), "--out", str(out)]) == 1
    (case,) = json.loads(out.read_text())["cases"]
    assert case["passed"] == case["count"] - 1 == len(packages) - 1
    assert "torch" in case["seen"] and "PYSEC-1" in case["seen"]


def test_an_old_copy_is_said_to_know_little() -> None:
    assert "before most locked versions: it knows little of them; pip-audit remains" in advisories.aged("2024-10-10")
    assert advisories.aged(datetime.date.today().isoformat()) == advisories.aged("") == ""


def test_a_folder_that_is_no_database_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no folder vulns"):
        advisories.audit({"torch": "1"}, tmp_path)
