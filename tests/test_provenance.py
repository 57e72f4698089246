"""Where a result says it comes from: the commit, or what stands for it where there is no repository."""

import json
import os
import re
import subprocess
import sys

import pytest

from aero import records
from aero.errors import LONGEST_LINE, UserError
from aero.pipeline import ROOT
from aero.training.archive import Finished, read
from stages import merge_results


def git(folder, *arguments):
    who = ["-c", "user.name=a test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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
    first, head = records.source_digest(repository), git(repository, "rev-parse", "HEAD")
    assert records.committed_digest(head, repository) == first
    (repository / "README.md").write_text("other words\n")
    (repository / "aero/__pycache__").mkdir()
    (repository / "aero/__pycache__/model.pyc").write_bytes(b"x")
    assert records.source_digest(repository) == first
    for name in ("aero/model.py", "params.yaml"):
        path = repository / name
        before = path.read_bytes()
        path.write_text("changed\n")
        assert records.source_digest(repository) != first, name
        path.write_bytes(before)
    new = repository / "aero/new.py"
    new.write_text("")
    assert records.source_digest(repository) != first
    new.unlink()
    assert records.source_digest(repository) == first == records.committed_digest(head, repository)
    with pytest.raises(ValueError, match="commit ababab.* is not in the repository"):
        records.committed_digest("ab" * 20, repository)


@pytest.mark.parametrize(
    "revision", ["--output={victim}", "HEAD", "abcdef", "A" * 40, "0" * 41, "HEAD:aero", "0" * 40 + "\n", ""]
)
def test_what_is_no_whole_commit_never_comes_to_git(repository, tmp_path_factory, revision):
    """It may be of somebody's file of trainings, and git takes `--output=FILE` for an option, and empties the file."""
    victim = tmp_path_factory.mktemp("elsewhere") / "victim"
    victim.write_text("whole\n")
    with pytest.raises(ValueError, match="is no commit of 40 hexadecimal digits; give what git rev-parse says"):
        records.committed_digest(revision.format(victim=victim), repository)
    assert victim.read_text() == "whole\n"


def test_git_takes_no_option_for_a_commit_either(repository, tmp_path, monkeypatch):
    """The second fence, with the first one down."""
    victim = tmp_path / "victim"
    victim.write_text("whole\n")
    monkeypatch.setattr(records, "_WHOLE", re.compile(".*"))
    with pytest.raises(ValueError, match="is not in the repository"):
        records.committed_digest(f"--output={victim}", repository)
    assert victim.read_text() == "whole\n"


def training(**changes):
    """The line of a training; changes: of its metrics, their provenance (origin), its files and what it says itself."""
    metrics = {"run": "sm-r", "seed": 1, "scale": "gpu", "config_hash": "h"} | changes.pop("metrics", {})
    metrics["provenance"] = {"commit": "0" * 40, "started": "2026-01-01T00:00:00+00:00"} | changes.pop("origin", {})
    files = {"metrics.json": json.dumps(metrics)} | changes.pop("files", {})
    told = {"run": metrics["run"], "seed": metrics["seed"], "scale": metrics["scale"], "source": "x"} | changes
    return Finished(files=files, **told).line()


@pytest.mark.parametrize("more", [[], ["--allow-changes"]])
@pytest.mark.parametrize(
    "said", ["--output={victim}", "--output={victim}+changes", "HEAD", "1" * 39, None, ["0" * 40], "0" * 40 + "+more"]
)
def test_merging_a_training_whose_commit_is_none_writes_nothing(tmp_path, monkeypatch, said, more):
    victim = tmp_path / "victim"
    victim.write_text("whole\n")
    monkeypatch.chdir(tmp_path)
    said = said.format(victim=victim) if isinstance(said, str) else said
    (tmp_path / "trainings.jsonl").write_text(training(origin={"commit": said}))
    with pytest.raises(UserError, match="trainings.jsonl, line 1: .* is no commit"):
        merge_results.main(["trainings.jsonl", *more])
    assert victim.read_text() == "whole\n" and not (tmp_path / "results").exists()


@pytest.mark.parametrize("commit", ["0" * 40, "0" * 40 + "+changes", "unknown"])
def test_a_commit_of_every_form_that_is_written_is_read(tmp_path, commit):
    (tmp_path / "trainings.jsonl").write_text(training(origin={"commit": commit}))
    ((found,), cut) = read(tmp_path / "trainings.jsonl")
    assert found.metrics["provenance"]["commit"] == commit and not cut


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"log.csv": 3}},
        {"files": {"log.csv": {"a": 1}}},
        {"files": {"log.csv": "\ud800"}},
        {"files": {"x" * 5000: ""}},
        {"metrics": {"run": "r" * 5000}},
        {"metrics": {"run": "../r"}},
        {"metrics": {"seed": 10**4000}},
        {"metrics": {"seed": -1}},
        {"metrics": {"seed": True}},
        {"origin": {"started": "\x1b[2J"}},
        {"origin": {"started": ["2026"]}},
    ],
)
def test_a_training_that_could_not_be_merged_is_refused_before_anything_is_written(tmp_path, monkeypatch, changes):
    """The sound one before it is not merged either."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainings.jsonl").write_text(training() + training(**changes))
    with pytest.raises(UserError, match="trainings.jsonl, line 2") as told:
        merge_results.main(["trainings.jsonl", "--allow-changes"])
    assert len(str(told.value)) <= LONGEST_LINE and not (tmp_path / "results").exists()
    (tmp_path / "trainings.jsonl").write_text(training())
    merge_results.main(["trainings.jsonl", "--allow-changes"])
    assert (tmp_path / "results/gpu/sm-r/seed_1/metrics.json").is_file()


def test_every_kept_result_names_a_commit_that_is_read():
    found = {
        metrics["provenance"]["commit"]
        for path in sorted((ROOT / "results").rglob("metrics.json"))
        if "commit" in (metrics := json.loads(path.read_text())).get("provenance", {})
    }
    assert found and all(records.is_commit(commit) for commit in found)


def test_without_git_the_commit_is_what_the_variable_says():
    code = "from aero import provenance; print(records.commit())"
    whole = "12ab" * 10
    for variable, expected in ((None, "unknown"), ("12ab", "unknown"), (whole, whole), ("--output=x", "unknown")):
        environment = {k: v for k, v in os.environ.items() if k != records.COMMIT_VARIABLE} | {"PATH": "/nonexistent"}
        environment |= {} if variable is None else {records.COMMIT_VARIABLE: variable}
        finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert finished.stdout.strip() == expected, finished.stderr


def test_the_machine_is_named_with_its_vector_instructions():
    first, second = (
        "processor\t: 0\nmodel name\t: A\nflags\t\t: fpu avx avx2\n\n",
        "model name\t: B\nflags\t: avx512f\n",
    )
    assert records._processor(first + second) == "A with AVX2"
    assert records._processor(second) == "B with AVX-512" and records._processor("model name : C\n") == "C"
    assert records._processor("Features : fp asimd\n") == ""
    assert re.fullmatch(r".+, \d+ cores, .+", records.machine())


def test_kept_results_name_commits_of_this_history():
    """A reader can check out what measured a number."""
    if not (ROOT / ".git").exists() or git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs the whole history")
    here = set(git(ROOT, "log", "--format=%H").split())
    elsewhere = {}
    for path in sorted((ROOT / "results").rglob("*.*")):
        if path.suffix in (".json", ".jsonl", ".csv") and path.name != "advisories.json":  # that names a database's
            named = set(re.findall(r"commit\W+([0-9a-f]{40})\b(?!\+)", path.read_text(encoding="utf-8")))
            if unknown := named - here:
                elsewhere[str(path.relative_to(ROOT))] = sorted(unknown)
    assert len(here) > 1 and elsewhere == {}
