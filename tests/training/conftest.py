import shutil

import pytest
from small_project import make, stage


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """Token files of a part of the standard library."""
    folder = make(tmp_path_factory.mktemp("tokens"))
    finished = stage(folder, "tokenize_corpus")
    assert finished.returncode == 0, finished.stderr
    return folder / "runs/tokens"


@pytest.fixture
def project(tmp_path, tokens):
    """A function that makes a project folder of its own, with token files and changed parameters."""

    def made(**changes):
        folder = make(tmp_path / "project", **changes)
        shutil.copytree(tokens, folder / "runs/tokens")
        return folder

    return made


@pytest.fixture
def inside(project, monkeypatch):
    """A function that makes a project, works in it, and gives its folder."""

    def made(**changes):
        folder = project(**changes)
        monkeypatch.chdir(folder)
        return folder

    return made
