"""Which known vulnerabilities the locked packages have, by a copy of PyPA's advisory database; needs no network.

    git clone --depth 1 https://github.com/pypa/advisory-database && \\
        python -m benchmarks.advisories --database advisory-database

`make audit` asks a package index about every package; this reads the same advisories (OSV's YAML) from a copy, so it
knows what its date knows. Writes results/robustness/advisories.json; exit status 1 for a finding that has no answer in
`ANSWERED`. With --ignored it prints the answered ones, as `make audit` gives them to pip-audit.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from aero import records
from aero.errors import UserError, run_main
from aero.pipeline import ROOT
from aero.records import write_text

FILE = Path("results/robustness/advisories.json")
MANY_DAYS = 180
"""The age from which most of the lock's versions are newer than a copy."""
ANSWERED: dict[str, str] = {}
"""Advisories that cover a locked version, by id, and why that does no harm here. `make audit` leaves them out, too."""


def locked(text: str) -> dict[str, str]:
    """Version of every package of a lock file, by canonical name."""
    return {canonicalize_name(name): version for name, version in re.findall(r"(?m)^([\w.-]+)(?:\[.*\])?==(\S+)", text)}


def lock_digest(packages: Mapping[str, str]) -> str:
    """SHA-256 of a lock's packages and versions, a line of name==version each: what an audit is of."""
    return hashlib.sha256("".join(f"{name}=={packages[name]}\n" for name in sorted(packages)).encode()).hexdigest()


def covers(advisory: Mapping[str, Any], name: str, version: str) -> bool:
    """Whether an advisory speaks of this version of this package: it is listed or lies in a range of versions."""
    mine = [
        part
        for part in advisory.get("affected", ())
        if part.get("package", {}).get("ecosystem") == "PyPI" and canonicalize_name(part["package"]["name"]) == name
    ]
    return any(
        version in map(str, part.get("versions", ()))
        or any(_within(one["events"], version) for one in part.get("ranges", ()) if one["type"] == "ECOSYSTEM")
        for part in mine
    )


def _within(events: list[Mapping[str, str]], version: str) -> bool:
    """OSV's evaluation: events in the order of their versions, the last one at or before the version tells."""
    this, inside = _version(version), False
    for kind, at in sorted(
        ((kind, str(at)) for event in events for kind, at in event.items()), key=lambda e: _version(e[1])
    ):
        if kind == "introduced" and this >= _version(at):
            inside = True
        if (kind == "fixed" and this >= _version(at)) or (kind == "last_affected" and this > _version(at)):
            inside = False
    return inside


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UserError(f"{text!r} is no version of a Python package") from None


def about(database: Path, name: str) -> Iterator[dict[str, Any]]:
    """The advisories on a package that were not withdrawn."""
    for path in sorted((database / "vulns" / name).glob("*.yaml")):
        advisory = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not advisory.get("withdrawn"):
            yield advisory


def audit(packages: Mapping[str, str], database: Path) -> dict[str, Any]:
    """Findings, and the counts of what was looked at."""
    if not (database / "vulns").is_dir():
        raise UserError(f"{database} has no folder vulns: name a checkout of PyPA's advisory-database")
    read, findings = 0, []
    for name, version in sorted(packages.items()):
        for advisory in about(database, name):
            read += 1
            if covers(advisory, name, version):
                answer = ANSWERED.get(advisory["id"], "")
                findings.append({"package": name, "version": version, "id": advisory["id"], "answer": answer})
    return {
        "packages": len(packages),
        "lock_sha256": lock_digest(packages),
        "advisories": read,
        "findings": findings,
    }


def dated(database: Path) -> tuple[str, str]:
    """Commit and date of a copy; empty without git."""
    command = ["git", "-C", str(database), "log", "-1", "--format=%H %cs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    commit, _, date = done.stdout.strip().partition(" ")
    return commit, date


def aged(date: str) -> str:
    """What a copy that is old cannot know, in words; empty for one of the last months."""
    if not date or (days := (datetime.date.today() - datetime.date.fromisoformat(date)).days) < MANY_DAYS:
        return ""
    return f" ({days} days old, before most locked versions: it knows little of them; pip-audit remains to be run)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advisories", description=__doc__.splitlines()[0])
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--database", type=Path, help="a checkout of PyPA's advisory-database")
    asked.add_argument("--ignored", action="store_true", help="print what pip-audit is to leave out, as its options")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    if chosen.ignored:
        print(*(f"--ignore-vuln={name}" for name in sorted(ANSWERED)))
        return 0
    found = audit(locked((ROOT / "requirements.lock").read_text(encoding="utf-8")), chosen.database)
    commit, date = dated(chosen.database)
    struck = {finding["package"] for finding in found["findings"] if not finding["answer"]}
    told = "; ".join(
        f"{one['package']} {one['version']}: {one['id']}" + (f" ({one['answer']})" if one["answer"] else "")
        for one in found["findings"]
    )
    read = f"{found['advisories']} advisories on them in PyPA's database of {date or 'an unknown day'}{aged(date)}"
    case = {
        "name": "locked packages without an unanswered advisory",
        "count": found["packages"],
        "passed": found["packages"] - len(struck),
        "seen": f"{read}: {told or 'none covers a locked version'}",
    }
    result = {
        "cases": [case],
        **found,
        "database": {"commit": commit, "date": date},
        "provenance": records.provenance(),
    }
    write_text(chosen.out, json.dumps(result, indent=1) + "\n")
    print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(bool(struck))


if __name__ == "__main__":
    run_main(main)
