"""`make fuzz` in short: some hundred damaged cases for every reader, and that the harness itself notices faults."""

from __future__ import annotations

import base64
import json
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz
from benchmarks.fuzz_target import refusal
from benchmarks.fuzz_targets import TARGETS

CASES = {"parameters": 60, "link, server": 60, "link, client": 60}
MOST = 100


@pytest.fixture(autouse=True)
def alarm():
    before = signal.signal(signal.SIGALRM, fuzz._alarm)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_refused_in_a_line_that_names_its_cause(name, tmp_path):
    folder = tmp_path / "a folder with blanks and ümlauts"
    folder.mkdir()
    target = TARGETS[name](folder)
    tally = fuzz.Tally(target.read, target.cause)
    for seed in target.seeds:
        target.read(seed)

    @settings(max_examples=CASES.get(name, MOST), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(target.cases)
    def each(case):
        assert tally.examine(case) is None

    each()
    assert tally.refused > tally.cases / 10, "hardly a case is damaged enough"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_alone_in_a_process_of_its_own(name):
    """As `make fuzz` runs it: nothing that an earlier target has started or imported is there."""
    found = fuzz._run(name, "hypothesis", 5, 60, 1)
    assert found["failures"] == [] and found["cases"] >= 5


def test_every_target_has_a_number_of_cases():
    assert set(fuzz.CASES) == set(TARGETS)
    assert sum(by_hypothesis for by_hypothesis, _ in fuzz.CASES.values()) > 100_000


def raised(error):
    def read(case):
        if case:
            raise error

    return read


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("name"), "KeyError: 'name'"),
        (RecursionError("maximum recursion depth exceeded"), "RecursionError"),
        (MemoryError(), "MemoryError"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError(""), "an error that says nothing"),
        (ValueError("'format'"), "an error that says nothing"),
        (ValueError("could not convert string to float: 'x'"), "does not name its cause (the file)"),
        (OSError("the file: " + "x" * 2000), "an error of 2010 characters"),
        (ValueError("the file is cut off"), None),
    ],
)
def test_what_counts_as_a_failure(error, said):
    tally = fuzz.Tally(raised(error), ("the file",))
    assert tally.examine(b"") is None and tally.accepted == 1
    found = tally.examine(b"x")
    assert (found is None) if said is None else said in found
    assert tally.cases == 2 and tally.refused == (said is None)
    if said is not None:
        (failure,) = tally.summary()["failures"]
        assert said in failure["what"] and base64.b64decode(failure["case"]) == b"x"


def test_a_hang_is_a_failure(monkeypatch):
    monkeypatch.setattr(fuzz, "CASE_S", 0.05)

    def read(case):
        while True:
            pass

    assert "not done after 0.05 s" in fuzz.Tally(read, ("",)).examine(b"x")


def test_failures_of_one_kind_are_one_with_the_shortest_case():
    tally = fuzz.Tally(raised(KeyError("name")), ("the file",))
    for case in (b"long", b"x", b"longer"):
        tally.examine(case)
    (failure,) = tally.summary()["failures"]
    assert failure["times"] == 3 and base64.b64decode(failure["case"]) == b"x"


def test_the_same_seed_gives_the_same_cases_and_the_number_asked_for():
    def cases(seed):
        seen = []
        tally = fuzz.Tally(seen.append, ())
        target = type("Made", (), {"cases": st.binary(max_size=8)})
        fuzz.by_hypothesis(target, tally, 120, seed, float("inf"))
        return seen

    assert len(cases(1)) == 120
    assert cases(1) == cases(1) != cases(2)


def test_one_target_again_leaves_the_others_with_their_commit(tmp_path, monkeypatch):
    made = {"cases": 5, "accepted": 1, "refused": 4, "slowest_s": 0.0, "seconds": 1.0, "failures": []}

    def run(name, engine, cases, seconds, seed):
        return made | {"target": name, "engine": engine, "of": cases, "cases": cases - short, "commit": commit}

    monkeypatch.setattr(fuzz, "_run", run)
    out, commit, short = tmp_path / "fuzz.json", "first", 0
    assert fuzz.main(["--engine", "hypothesis", "--cases", "5", "--out", str(out)]) == 0
    commit = "second"
    fuzz.main(["--target", "token files", "--engine", "hypothesis", "--cases", "7", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [target["target"] for target in found["targets"]] == list(fuzz.CASES)
    assert {t["target"]: t["cases"] for t in found["targets"] if t["commit"] == "second"} == {"token files": 7}
    assert found["cases"] == 7 + 5 * (len(fuzz.CASES) - 1)
    short = 1  # time ran out: no success
    assert fuzz.main(["--target", "token files", "--engine", "hypothesis", "--cases", "7", "--out", str(out)]) == 1


def test_a_refusal_is_judged_as_it_is_shown():
    assert refusal(ValueError("the file\n\n  ends early"), ("the file ends",)) is None
