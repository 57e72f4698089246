"""Result files: the committed form, plausibility checks, provenance and atomic writes."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aero import records
from aero.errors import UserError
from aero.records import FILES, read_rows, read_trainings, temporary, write_text, write_together, write_trainings
from aero.report.results import load
from aero.training import catalogue
from stages import merge_results, report

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def laptop():
    return read_trainings(ROOT / "results/laptop")


@pytest.fixture
def project(tmp_path, laptop, monkeypatch):
    """A project with two committed seeds of one run; works in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    write_trainings(Path("results/laptop"), [laptop["sm-ln-g", seed] for seed in (1337, 1338)])
    return tmp_path


def changed(training, **values):
    return dataclasses.replace(training, metrics=training.metrics | values)


def place(training, folder):
    """Write a training as the files of runs/."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(training.metrics))
    if training.entropy:
        (folder / "entropy.json").write_text(json.dumps(training.entropy))
    rows = [dict(zip(training.curves, row, strict=True)) for row in zip(*training.curves.values(), strict=True)]
    write_text(folder / "log.csv", records.csv_text(list(training.curves), rows))


def edit_line(name, change):
    """Change the first line of results/laptop/NAME; `change` maps the parsed values to new ones or to text."""
    path = Path("results/laptop") / name
    first, *others = path.read_text().splitlines()
    new = change(json.loads(first))
    path.write_text("\n".join([new if isinstance(new, str) else json.dumps(new), *others]) + "\n")


# The committed form


def test_committed_results_read_back_without_problems(laptop):
    problems = []
    assert read_trainings(ROOT / "results/laptop", problems) == laptop and problems == []
    assert len(laptop) >= 273 and list(laptop) == sorted(laptop)
    assert all(training.curves["step"] for training in laptop.values())
    assert sum(map(len, catalogue.results(ROOT, problems).values())) >= 364 and problems == []
    assert load(ROOT).problems == ()


def test_writing_replaces_a_seed_and_keeps_the_others(project, laptop):
    one, other = (laptop["sm-ln-g", seed] for seed in (1337, 1338))
    folder = Path("results/laptop")
    assert read_trainings(folder) == {one.key: one, other.key: other}
    new = dataclasses.replace(changed(one, tokens=5), entropy=None, curves={"step": [1], "eval_loss": [None]})
    write_trainings(folder, [new])
    assert read_trainings(folder) == {one.key: new, other.key: other}
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_a_training_of_runs_is_kept_with_its_own_entropies(project, laptop):
    training = laptop["sm-r", 1337]
    place(training, "runs/sm-r/seed_1337")
    records.keep([Path("runs/sm-r/seed_1337")])
    assert read_trainings(Path("results/laptop"))["sm-r", 1337] == training
    other = training.entropy | {"provenance": {"commit": "another"}}
    place(dataclasses.replace(training, entropy=other), "runs/sm-r/seed_1337")
    records.keep([Path("runs/sm-r/seed_1337")])
    assert read_trainings(Path("results/laptop"))["sm-r", 1337].entropy is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"provenance": {}}, "does not name the commit"),
        ({"scale": "../../elsewhere"}, "scale: String should match pattern"),
        ({"provenance": {"commit": "0" * 40 + "+changes"}}, "uncommitted code"),
    ],
)
def test_what_is_no_result_of_its_folder_is_not_kept(project, laptop, values, reason):
    place(changed(laptop["sm-r", 1337], **values), "runs/sm-r/seed_1337")
    before = Path("results/laptop/metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=reason):
        records.keep([Path("runs/sm-r/seed_1337")])
    assert Path("results/laptop/metrics.jsonl").read_bytes() == before and not Path("../elsewhere").exists()


def test_merging_takes_the_later_training(tmp_path, laptop, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    early = laptop["sm-r", 1337]
    late = changed(early, provenance=early.metrics["provenance"] | {"started": "2099-01-01T00:00:00+00:00"})
    late = dataclasses.replace(late, entropy=None)
    for training, merged, replaced in ((early, 1, 0), (early, 0, 0), (late, 1, 1), (early, 0, 0)):
        write_trainings(Path("home"), [training])
        merge_results.main(["home"])
        assert f"{merged} of 1 trainings merged, {replaced} of them" in capsys.readouterr().out
    assert read_trainings(Path("results/laptop")) == {late.key: late}
    uncommitted = early.metrics["provenance"] | {"commit": "0" * 40 + "+changes"}
    write_trainings(Path("home"), [changed(early, provenance=uncommitted)])
    with pytest.raises(UserError, match="uncommitted"):
        merge_results.main(["home"])
    with pytest.raises(UserError, match="has no metrics.jsonl"):
        merge_results.main(["nowhere"])


# Plausibility


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"eval_perplexity": 3.0}, "eval_perplexity 3 is not the exponential of eval_loss 2.0"),
        ({"eval_perplexity": None}, "did not diverge"),
        ({"eval_perplexity": 10**400}, "eval_perplexity: Input should be a"),
        ({"run": math.inf}, "run: Input should be a valid string (got inf)"),
        ({"seed": True}, "seed: Input should be a valid integer (got True)"),
        ({"tokens": -5}, "tokens: Input should be greater than or equal to 0 (got -5)"),
        ({"diverged_at_step": "never"}, "diverged_at_step: Input should be a valid integer"),
        ({"provenance": [1]}, "provenance: Input should be a valid dictionary"),
    ],
)
def test_implausible_metrics_are_named_and_left_out(project, values, reason):
    edit_line("metrics.jsonl", lambda metrics: metrics | values)
    with pytest.raises(UserError, match="metrics.jsonl, line 1"):
        read_trainings(Path("results/laptop"))
    found = load(project)
    assert [run.seed for run in found.seeds("sm-ln-g", "laptop")] == [1338]
    assert len(found.problems) == 1 and reason in found.problems[0]
    problems = []
    assert [one.seed for one in catalogue.results(project, problems)["laptop", "sm-ln-g"]] == [1338]
    assert len(problems) == 1 and reason in problems[0]


@pytest.mark.parametrize("text", ["[1]", "null", "{}", "{", "[" * 200_000])
@pytest.mark.parametrize("name", FILES)
def test_damaged_lines_are_named_and_left_out(project, name, text):
    edit_line(name, lambda values: text)
    problems = []
    read_trainings(Path("results/laptop"), problems)
    assert len(problems) == 1 and f"{name}, line 1" in problems[0] and len(problems[0]) < 400


def test_a_repeated_seed_is_refused(project):
    path = Path("results/laptop/metrics.jsonl")
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="line 3: .*sm-ln-g seed 1337 appears a second time"):
        read_trainings(Path("results/laptop"))


def test_a_damaged_log_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("step,eval_loss\nx,1\n")
    with pytest.raises(UserError, match="not a training log"):
        read_rows(tmp_path / "log.csv")


# Provenance


def test_without_git_the_commit_is_that_of_the_variable():
    code = "from aero import records; print(records.commit())"
    full = "12ab" * 10
    for variable, expected in ((None, "unknown"), ("12ab", "unknown"), (full, full), ("--output=x", "unknown")):
        environment = {k: v for k, v in os.environ.items() if k != "AERO_COMMIT"} | {"PATH": "/nonexistent"}
        environment |= {} if variable is None else {"AERO_COMMIT": variable}
        finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert finished.stdout.strip() == expected, finished.stderr


def test_the_report_says_whether_results_differ_from_the_commit(tmp_path, monkeypatch):
    revision = "12ab" * 10
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(report, "commit", lambda: revision)
    assert report.state() == revision[:10]  # outside git, by the variable
    result = tmp_path / "results/made.csv"
    result.parent.mkdir()
    result.write_text("1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "Add a result")):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    assert report.state() == revision[:10]
    added = result.with_name("added.csv")
    added.write_text("1\n")
    assert report.state() == f"{revision[:10]} with other results"
    added.unlink()
    result.write_text("2\n")
    assert report.state() == f"{revision[:10]} with other results"
    revision += records.CHANGES
    assert report.state() == f"{revision[:10]}+changes with other results"


def test_the_machine_is_named_with_its_vector_instructions():
    first, second = "processor\t: 0\nmodel name\t: A\nflags\t: fpu avx avx2\n\n", "model name\t: B\nflags\t: avx512f\n"
    assert records._processor(first + second) == "A with AVX2"
    assert records._processor(second) == "B with AVX-512" and records._processor("Features : fp asimd\n") == ""
    assert re.fullmatch(r".+, \d+ cores, .+", records.machine())


def test_committed_results_name_commits_of_this_history():
    if not (ROOT / ".git").exists() or _git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs the whole history")
    here = set(_git("log", "--format=%H").split())
    elsewhere = {}
    for path in sorted((ROOT / "results").rglob("*.*")):
        if path.suffix in (".json", ".jsonl", ".csv") and path.name != "advisories.json":  # names a database's commit
            named = set(re.findall(r"commit\W+([0-9a-f]{40})\b(?!\+)", path.read_text(encoding="utf-8")))
            if unknown := named - here:
                elsewhere[str(path.relative_to(ROOT))] = sorted(unknown)
    assert len(here) > 1 and elsewhere == {}


def _git(*arguments):
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


# Atomic writes


def test_files_that_belong_together_come_together_or_not_at_all(tmp_path):
    """That the last one is absent while the others are replaced: training/test_resume.py."""
    one, other, last = (tmp_path / name for name in ("one", "other", "last"))
    write_together({one: "1", other: b"2", last: "3"})
    assert [path.read_text() for path in (one, other, last)] == ["1", "2", "3"]
    with pytest.raises(UnicodeEncodeError):
        write_together({one: "4", other: "\ud800", last: "5"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "one", "other"]
    assert [path.read_text() for path in (one, other, last)] == ["1", "2", "3"]


WRITER = "import sys; from pathlib import Path; from aero.records import write_text; write_text(Path(sys.argv[1]), 'b')"


def test_a_second_writer_waits_for_the_first(tmp_path, monkeypatch):
    path, renamed, others, found = tmp_path / "result.json", os.replace, [], []

    def slow(source, target):
        others.append(subprocess.Popen([sys.executable, "-c", WRITER, str(path)]))
        time.sleep(2)
        found.append((others[0].poll(), temporary(path).read_text()))
        renamed(source, target)
        found.append(path.read_text())

    monkeypatch.setattr(os, "replace", slow)
    write_text(path, "a")
    assert others[0].wait(20) == 0
    assert found == [(None, "a"), "a"] and path.read_text() == "b"
