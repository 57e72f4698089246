"""The lock files: every package in one version with its hashes, those that pyproject.toml names."""

import re
import tomllib

from aero.records import ROOT

LOCKS = ("requirements.lock", "requirements-cuda.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path: str) -> dict[str, str]:
    """Version by package. The whole file is packages with hashes; anything else fails."""
    text = (ROOT / path).read_text(encoding="utf-8")
    package = r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    assert re.sub(package, "", text) == "", path
    found = re.findall(package, text)
    versions = {plain(name): version for name, version, _ in found}
    assert len(versions) == len(found)
    return versions


def test_every_package_has_one_version_and_hashes():
    main, cuda = map(locked, LOCKS)
    assert len(main) > 100 and not set(main) & set(cuda)
    assert {plain(name.split("-")[0]) for name in cuda} == {"cuda", "nvidia", "triton"}


def test_the_lock_has_the_versions_that_the_project_names():
    versions = locked("requirements.lock")
    extras = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name != "pretrained"}
    for wanted in [*PROJECT["dependencies"], *(one for some in extras.values() for one in some)]:
        name, _, version = wanted.partition("==")
        if version:
            assert versions[plain(name)] == version, wanted
        elif not wanted.startswith("aero-reproduced["):
            assert plain(re.split(r"[<>=]", wanted)[0]) in versions, wanted


def test_nothing_is_installed_from_elsewhere_or_unchecked():
    """Neither an address nor a second index; what the Makefile and the Dockerfile install from a lock has hashes."""
    for path in (*LOCKS, "pyproject.toml", "Makefile", "Dockerfile"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|git\+|https?://|--trusted-host|curl |wget ", text), path
        for line in text.splitlines():
            assert "-r requirements" not in line or "--require-hashes" in line, (path, line)
