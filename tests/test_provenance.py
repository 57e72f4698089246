"""Where a result says it comes from: the commit, or what stands for it where there is no repository."""

import os
import subprocess
import sys

import pytest

from aero import provenance


def git(folder, *arguments):
    who = ["-c", "user.name=a test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    for name in ("aero/model.py", "aero/published/one.yaml", "stages/train.py", "params.yaml", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of {name}\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_the_digest_of_a_commit_is_that_of_its_files(repository):
    first = provenance.source_digest(repository)
    assert provenance.committed_digest("HEAD", repository) == first
    (repository / "README.md").write_text("other words\n")
    (repository / "aero/__pycache__").mkdir()
    (repository / "aero/__pycache__/model.pyc").write_bytes(b"x")
    assert provenance.source_digest(repository) == first
    for name in ("aero/model.py", "params.yaml"):
        path = repository / name
        before = path.read_bytes()
        path.write_text("changed\n")
        assert provenance.source_digest(repository) != first, name
        path.write_bytes(before)
    new = repository / "aero/new.py"
    new.write_text("")
    assert provenance.source_digest(repository) != first
    new.unlink()
    assert provenance.source_digest(repository) == first == provenance.committed_digest("HEAD", repository)
    with pytest.raises(ValueError, match="commit abcdef is not in the repository"):
        provenance.committed_digest("abcdef", repository)


def test_without_git_the_commit_is_what_the_variable_says():
    code = "from aero import provenance; print(provenance.commit())"
    for variable, expected in ((None, "unknown"), ("12ab", "12ab")):
        environment = {k: v for k, v in os.environ.items() if k != provenance.COMMIT_VARIABLE} | {
            "PATH": "/nonexistent"
        }
        environment |= {} if variable is None else {provenance.COMMIT_VARIABLE: variable}
        finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert finished.stdout.strip() == expected, finished.stderr
