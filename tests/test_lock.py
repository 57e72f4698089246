"""requirements.lock: one version of every package, those that pyproject.toml names."""

import re
import tomllib
from pathlib import Path

from aero.records import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_of_the_lock_has_one_version():
    assert len(LOCK) > 100
    assert [line for line in LOCK if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
    names = [plain(line.split("==")[0]) for line in LOCK]
    assert len(set(names)) == len(names)


def test_the_lock_has_the_versions_that_the_project_names():
    """All extras but those that are left out of it on purpose."""
    locked = {plain(line.split("==")[0]): line.split("==")[1] for line in LOCK}
    left_out = {"tensorboard", "wandb"}
    extras = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in left_out}
    for wanted in [*PROJECT["dependencies"], *(one for some in extras.values() for one in some)]:
        name, _, version = wanted.partition("==")
        if version:
            assert locked[plain(name)] == version, wanted
        elif not wanted.startswith("aero-reproduced["):
            assert plain(re.split(r"[<>=]", wanted)[0]) in locked, wanted
    for name in left_out:
        assert all("==" in wanted for wanted in PROJECT["optional-dependencies"][name])


def test_nothing_is_installed_from_elsewhere():
    """Neither an address nor a second index, in the lock, the project or the Makefile."""
    for path in ("requirements.lock", "pyproject.toml", "Makefile"):
        text = Path(ROOT / path).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|git\+|http://|--trusted-host|curl |wget ", text), path
