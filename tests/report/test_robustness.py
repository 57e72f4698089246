"""The section on robustness: what is measured is shown, what is not is a visible gap."""

from __future__ import annotations

import json
import re
from collections import Counter
from types import SimpleNamespace

import pytest

from aero.pipeline import ROOT
from aero.report import robustness

ORIGIN = {"commit": "abcdef0123456789", "machine": "a <machine>"}
TARGET = {"target": "token files", "engine": "hypothesis", "cases": 1500, "accepted": 500, "refused": 999}
FUZZ = {
    "cases": 1500,
    "accepted": 500,
    "refused": 999,
    "failures": 1,
    "seed": 7,
    "case_limit_s": 10.0,
    "memory_limit_bytes": 4 << 30,
    "targets": [TARGET | {"slowest_s": 0.25, "failures": [{"what": "KeyError", "times": 1, "case": ""}]}],
    "provenance": ORIGIN,
}
CASES = [{"name": "struck by SIGKILL", "count": 30, "passed": 29, "seen": "train 20, entropy 10"}]
SERVER = {
    "cases": CASES,
    "asked": 40,
    "of": 1000,
    "failures": ["question 3: <lost>"],
    "columns": ["question", "seconds", "memory_bytes", "sockets"],
    "samples": [[1, 2.0, 100 << 20, 4], [2, 3.0, 101 << 20, 4]],
    "provenance": ORIGIN,
}
COMPARISON = {"scale": "smoke", "run": "sm-r", "compared": "2 threads", "identical": False, "loss": 2e-6}
DETERMINISM = {"comparisons": [COMPARISON | {"perplexity": 0.0, "entropy": None}], "provenance": ORIGIN}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / robustness.FOLDER
    folder.mkdir(parents=True)
    for name, content in (
        ("fuzz", FUZZ),
        ("faults", {"cases": CASES}),
        ("faults_report", {"cases": [CASES[0] | {"count": 9, "passed": 8}]}),
        ("server", SERVER),
        ("determinism", DETERMINISM),
        ("transcripts", {"cases": [{"name": "sizes", "count": 81, "passed": 80, "seen": "no difference"}]}),
        ("advisories", {"cases": [{"name": "packages", "count": 190, "passed": 189, "seen": "torch: PYSEC-1"}]}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return SimpleNamespace(root=tmp_path)


def test_every_file_is_shown_with_its_numbers(results):
    text = robustness.section(results).text
    for shown in (
        "1,500",
        "999",
        "Seed 7",
        "29 of 30",
        "8 of 9",
        "train 20, entropy 10",
        "40 of 1,000 so far",
        "189 of 190",
        "80 of 81",
    ):
        assert shown in text
    for shown in ("sockets 4 to 4", "2.0e-06", "a &lt;machine&gt;, commit abcdef0123;", "question 3: &lt;lost&gt;"):
        assert shown in text
    assert "<machine>" not in text and "not measured yet" not in text and text.count("<svg") == 1


@pytest.mark.parametrize(
    "name", ["fuzz", "faults", "faults_report", "server", "determinism", "advisories", "transcripts"]
)
def test_what_is_not_measured_is_a_visible_gap(results, name):
    (results.root / robustness.FOLDER / f"{name}.json").unlink()
    text = robustness.section(results).text
    assert text.count("not measured yet") == 1 and "measures it" in text and "no measurement" not in text


@pytest.mark.parametrize("name", ["fuzz", "faults", "determinism"])
def test_what_was_not_tried_yet_is_told(results, name):
    path = results.root / robustness.FOLDER / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"asked": 7, "of": 20}))
    assert robustness.section(results).text.count("7 of 20 so far") == 1
    path.write_text(json.dumps(json.loads(path.read_text()) | {"asked": 20}))
    assert "of 20 so far" not in robustness.section(results).text


def test_a_reader_that_ended_early_shows_how_many_cases_it_was_to_have(results):
    path = results.root / robustness.FOLDER / "fuzz.json"
    path.write_text(json.dumps(FUZZ | {"targets": [FUZZ["targets"][0] | {"of": 20_000}]}))
    assert "of 20,000" in robustness.section(results).text


def test_targets_measured_at_other_commits_are_told(results):
    path = results.root / robustness.FOLDER / "fuzz.json"
    targets = [FUZZ["targets"][0] | {"commit": commit} for commit in ("1" * 40, "2" * 40)]
    path.write_text(json.dumps(FUZZ | {"targets": targets}))
    assert "commit 1111111111, 2222222222;" in robustness.section(results).text


def test_an_earlier_run_of_faults_is_told_with_its_commit(results):
    assert "An earlier run" not in robustness.section(results).text
    earlier = {"cases": [CASES[0], CASES[0]], "failures": ["one"], "provenance": ORIGIN | {"commit": "30b037b1fc" * 4}}
    (results.root / robustness.file_of(robustness.EARLIER)).write_text(json.dumps(earlier))
    text = re.sub("<.*?>|[●○]", "", robustness.section(results).text)
    assert "An earlier run of these faults: 58 of 60 right, 1 failures; a &lt;machine&gt;, commit 30b037b1fc;" in text


def test_trainings_on_a_gpu_have_a_table_of_their_own(results):
    text = robustness.section(results).text
    assert "CUDA was not measured (<code>python -m benchmarks.determinism --device cuda</code>)" in text
    assert "instructions" not in text and "TF32" not in text and "of another machine" not in text
    cpu = DETERMINISM["comparisons"][0]
    names = ("the same again", "the CPU", "TF32 products", "the kept result of 2026-11-22")
    lines = [cpu | {"scale": "gpu", "compared": name} for name in names]
    made = {"comparisons": lines, "asked": 3, "of": 4, "provenance": ORIGIN | {"device": "NVIDIA <card>"}}
    path = results.root / robustness.file_of(robustness.CUDA)
    path.write_text(json.dumps(made))
    text = robustness.section(results).text
    assert "CUDA was not measured" not in text and text.count("How equal equal trainings are") == 2
    (table,) = re.findall('id="robustness-determinism-cuda".*?</div></div>', text)
    for said in (
        *names[:3],
        "on one NVIDIA &lt;card&gt;:",
        "evaluations take it",
        "of another machine",
        "3 of 4 so far",
    ):
        assert said in table
    assert "instructions" not in table and "12 steps" not in table and "determinism_cuda.json" in table
    path.write_text(json.dumps(made | {"provenance": ORIGIN}))  # on what it was measured is not known
    text = robustness.section(results).text
    assert f"{robustness.file_of(robustness.CUDA)} is no measurement" in text and robustness.ON_CUDA in text


def test_the_figure_has_both_panels(results):
    figure = robustness.figure_server(results)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["resident memory, MiB", "seconds a question"]
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == [100, 101]


def test_the_kept_figures_are_what_the_issue_of_robustness_asks():
    """At least 100,000 cases of damaged input without a failure, 100 strikes survived, 1,000 questions answered."""
    kept = {
        name: json.loads((ROOT / robustness.FOLDER / f"{name}.json").read_text())
        for name in ("fuzz", "faults", "server", "transcripts", "determinism")
    }
    fuzz = kept["fuzz"]
    assert fuzz["cases"] >= 100_000 and fuzz["failures"] == 0
    assert fuzz["cases"] == sum(target["cases"] for target in fuzz["targets"])
    # Every stage of the pipeline that is struck, not the longest one alone; the moments before any stage, which the
    # newer run met four times, with those of the run before it.
    earlier = json.loads((ROOT / robustness.FOLDER / "faults_30b037b.json").read_text())
    struck = Counter({stage: 0 for stage in kept["faults"]["processor_seconds_undisturbed"]})
    for run in earlier, kept["faults"]:
        strikes = [case for case in run["cases"] if "struck" in case["name"]]
        assert sum(case["count"] for case in strikes) >= 100 and not run["failures"]
        assert all(case["passed"] == case["count"] for case in run["cases"])
        of_run = Counter()
        for stage, count in re.findall(r"([a-z_ ]+?) (\d+)(?:, |$)", ", ".join(case["seen"] for case in strikes)):
            of_run[stage] += int(count)
        assert of_run.total() == sum(case["count"] for case in strikes)
        struck += of_run
    assert min(struck.values()) >= 5 and set(struck) == set(kept["faults"]["processor_seconds_undisturbed"]), struck
    stages = set(struck) - {"before any stage"}
    assert min(of_run[stage] for stage in stages) >= 10, of_run
    for case in strikes:  # and, in the newer one, every stage by every kind
        assert stages <= set(re.findall(r"([a-z_ ]+?) \d+(?:, |$)", case["seen"])), case
    # The whole pipeline, private passes and the rendered page included: every stage was struck.
    whole = json.loads((ROOT / robustness.FOLDER / "faults_report.json").read_text())
    strikes = [case for case in whole["cases"] if "struck" in case["name"]]
    assert whole["asked"] == whole["of"] == sum(case["count"] for case in strikes) >= 40 and not whole["failures"]
    assert all(case["passed"] == case["count"] for case in whole["cases"])
    seen = set(re.findall(r"([a-z_ ]+?) \d+(?:, |$)", ", ".join(case["seen"] for case in strikes)))
    assert seen == set(whole["seconds_undisturbed"])
    server = kept["server"]
    assert server["asked"] == server["of"] == 1000 == len(server["samples"])
    assert all(case["passed"] == case["count"] for case in server["cases"]) and server["failures"] == []
    assert [case["count"] for case in server["cases"]] == [1000, *6 * [998], 6, 1]
    transcripts = kept["transcripts"]
    assert transcripts["asked"] == transcripts["of"] == len(transcripts["samples"]) >= 80
    assert all(case["passed"] == case["count"] for case in transcripts["cases"])
    again = [line for line in kept["determinism"]["comparisons"] if line["compared"] == "the same again"]
    assert len(again) >= 3 and all(line["identical"] for line in again)
