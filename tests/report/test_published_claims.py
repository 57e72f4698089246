"""The papers against themselves: every test on printed numbers by hand, and on numbers made to fit or not."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import made_results
import pytest
import yaml

from aero.published import Paper, known_papers, load
from aero.report import claims, evidence, overview, published_claims, scales
from aero.report.decisions import TESTS
from aero.report.results import Results
from aero.report.results import load as load_results_of

LANDSCAPE = load("entropy_landscape")


def decide(results: Results, claim: str) -> claims.Decision:
    return next(j.decision for j in claims.judge(results) if j.claim.id == claim)


@pytest.mark.parametrize(
    ("claim", "verdict", "measured"),
    [
        ("c-scaled-twice", "contradicted", "3.478 and 3.50"),  # 3.478 rounds to 3.48
        ("c-spectral-twice", "contradicted", "3.624 and 3.63"),  # 3.624 rounds to 3.62
        ("l-baseline-12l", "reproduced", "2.688 and 2.688 and 2.69"),
        ("eg-c-same-table", "reproduced", "26.55 and 26.55"),
        ("l-c-baseline-18l", "contradicted", "2.655 and 2.56"),
        ("l-c-baseline-256", "contradicted", "2.638 and 2.41"),
        ("s31-relu-percent", "reproduced", "-8.16 %"),  # 2.936 / 3.197 - 1
        ("s1-regularisation-percent", "reproduced", "-7.76 %"),  # 3.21 / 3.48 - 1
        ("s42-fusing-factor", "reproduced", "8.1×"),  # 14.5 / 1.8
        ("l-best-gain", "reproduced", "19.9 %"),  # 1 - 2.127 / 2.655
        ("l-w1-range", "reproduced", "0.656 to 1.007"),
        ("l-ranges-possible", "reproduced", "0 of 20 above"),
        ("l-c-ranges-widen", "contradicted", "0 of 15 ranges wider"),
        ("l-c-margins", "contradicted", "0, 0.2, 0.2 and 0, 0.1, 0.2"),
        ("c-savings-columns", "contradicted", "44 of 48 follow"),
        ("t7-flops-ffn", "contradicted", "6 of 8 rows equal"),
        ("t7-counts", "reproduced", "8 of 8 rows equal"),
        ("t5-counts", "reproduced", "9 of 9 rows equal"),
        ("t6-counts", "reproduced", "8 of 8 rows equal"),
        ("eg-t3-flops-ffn", "contradicted", "2 of 4 rows equal"),
        # 25.3e9 bytes x 8 / 2e8 bit/s = 1,012 s
        ("eg-c-bandwidth", "contradicted", "16.9 min at least; 206 Mbit/s needed"),
    ],
)
def test_what_is_printed_decides(empty: Results, claim: str, verdict: str, measured: str) -> None:
    found = decide(empty, claim)
    assert (found.verdict, found.measured) == (verdict, measured)


def test_the_order_of_activations_turns_between_papers(empty: Results) -> None:
    found = decide(empty, "l-c-order-18l")
    assert found.verdict == "contradicted" and "2.655 against 2.625" in found.evidence
    same = [["aero", "6", "SM+LN+G", "SM+LN+R"], ["aero", "5", "SM+LN+G", "SM+LN+R"]]  # 2.56 < 2.63, 2.35 < 2.41
    assert published_claims.printed_order(empty, LANDSCAPE, tables=same).verdict == "reproduced"


def test_the_penalty_has_two_sides(empty: Results) -> None:
    # (0.3 ln 128)^2 = 2.1188 on either side of the threshold, beyond the margin of 0.2 ln 128
    found = decide(empty, "l-c-excess-only")
    assert found.verdict == "contradicted" and found.measured == "2.119 below, 2.119 above"


def changed(paper: Paper, table: str, row: str, **values: float) -> Paper:
    """The paper with other printed values in one row."""
    printed = paper.tables[table]
    rows = tuple(
        dataclasses.replace(
            r,
            cells={
                k: dataclasses.replace(c, value=values.get(k, c.value)) if r.name == row else c
                for k, c in r.cells.items()
            },
        )
        for r in printed.rows
    )
    return dataclasses.replace(paper, tables=paper.tables | {table: dataclasses.replace(printed, rows=rows)})


def test_a_range_above_the_causal_bound_would_be_seen(empty: Results) -> None:
    # ln(256!)/256 = 4.5601; a printed 4.57 cannot be, 4.56 can by its rounding
    row = "L=12 T=256 ReLU"
    for high, verdict in ((4.57, "contradicted"), (4.56, "reproduced")):
        found = published_claims.ranges_possible(empty, changed(LANDSCAPE, "1", row, high=high), table="1")
        assert found.verdict == verdict


def test_a_table_that_fits_its_text_would_be_seen(empty: Results) -> None:
    wide = LANDSCAPE
    for row in LANDSCAPE.tables["1"].rows:
        wide = changed(
            wide, "1", row.name, **{f"{k}_{t}": v for t in ("0", "10", "20") for k, v in (("low", 0), ("high", 9))}
        )
    assert published_claims.ranges_widen(empty, wide, table="1").verdict == "reproduced"
    other = changed(LANDSCAPE, "1", "L=18 T=128 GELU", ppl_20=2.3)
    assert published_claims.best_gain(empty, other, table="1", percent=20).verdict == "contradicted"
    low = published_claims.column_range(empty, LANDSCAPE, table="1", statistic="w1", low=0.6, high=1.007)
    assert low.verdict == "contradicted"


def test_savings_that_follow_are_reproduced(empty: Results) -> None:
    aero = load("aero")
    for row in aero.tables["4"].rows:
        if "the bytes give" in row.cells["savings_communication"].note:
            own = aero.tables["4"].rows[0].cells["communication"].value / row.cells["communication"].value
            aero = changed(aero, "4", row.name, savings_communication=round(own, 2))
    assert published_claims.printed_savings(empty, aero, tables=["4", "5", "6"]).verdict == "reproduced"


def test_the_baselines_gelu_is_told_by_its_bytes(empty: Results, tmp_path: Path) -> None:
    assert decide(empty, "c-gelu-of-the-baseline").verdict == "not testable here"
    root = made_results.project(tmp_path, runs=())
    line = '{op},128x3072,gpt2,128,v,{half},{half},9,7,22000000,11.0,"{{""commit"": ""c0ffee""}}"\n'
    with (root / "results/two_party/ops.csv").open("a", encoding="utf-8") as file:
        for op, size in (("gelu_plain", 1.1e9), ("gelu_segments", 0.34e9), ("relu", 0.04e9)):
            file.write(line.format(op=op, half=size / 2))
    # (25.32 - 9.44) / 12 + 0.04 = 1.363: 1.24 times the plain, 4.0 times the segmented one
    found = decide(load_results_of(root), "c-gelu-of-the-baseline")
    assert found.verdict == "contradicted" and found.measured == "1.36 GB a GELU; plain 1.10, segments 0.34"
    cheap = changed(load("aero"), "4", "SM+LN+G", communication=14.0)  # (14 - 9.44) / 12 + 0.04 = 0.42
    found = published_claims.gelu_of_the_baseline(
        load_results_of(root), cheap, table="4", gelu="SM+LN+G", relu="SM+LN+R"
    )
    assert found.verdict == "reproduced"


@pytest.mark.parametrize(("spread", "verdict"), [(0.05, "direction reproduced"), (0.001, "not seen at this scale")])
def test_learned_thresholds_that_vary(tmp_path: Path, spread: float, verdict: str) -> None:
    root = made_results.project(tmp_path, runs=("ereg-smt-scfuffn",), costs=False)
    for number, path in enumerate(sorted((root / "results").rglob("entropy.json"))):
        values = json.loads(path.read_text(encoding="utf-8"))
        # Layers at 0, s, 2s, …; heads at -3s, -s, s, 3s around them: the spread of one layer is s sqrt(20/3).
        values["learned"]["thresholds"] = [
            [0.5 + spread * (layer + h) * (1 + 0.01 * number) for h in (-3, -1, 1, 3)] for layer in range(12)
        ]
        path.write_text(json.dumps(values), encoding="utf-8")
    assert decide(load_results_of(root), "eg-thresholds-vary").verdict == verdict


def test_every_paper_has_claims_and_there_are_enough() -> None:
    counts = {short: len(load(short).claims) for short in known_papers()}
    assert sum(counts.values()) >= 60 and min(counts.values()) >= 15, counts
    identifiers = [claim.id for short in known_papers() for claim in load(short).claims]
    assert len(set(identifiers)) == len(identifiers)


def test_every_claim_says_where_what_and_what_it_needs(empty: Results) -> None:
    for judged in claims.judge(empty):
        claim = judged.claim
        assert claim.where and claim.claim and claim.published and claim.short, claim.id
        assert claim.kind in ("claim", "contradiction", "own"), claim.id
        assert judged.needs and judged.decision.rule, claim.id
    assert {test for test in TESTS if not claims.needs(test)} == set()


FIELDS = {"id", "short", "topic", "kind", "where", "claim", "stated", "test", "published", "parameters"}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=made_results.PROJECT, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def kept() -> Results:
    return evidence.traced(load_results_of(made_results.PROJECT))


def first_commits(path: str) -> dict[str, int]:
    """When each file below `path` was first committed, in seconds."""
    found: dict[str, int] = {}
    time = 0
    for line in git("log", "--diff-filter=A", "--format=@%at", "--name-only", "--", path).splitlines():
        if line.startswith("@"):
            time = int(line[1:])
        elif line:
            found[line] = min(time, found.get(line, time))
    return found


def entered() -> dict[str, int]:
    """When each claim's id first stood in a file of claims."""
    found: dict[str, int] = {}
    time = 0
    for line in git("log", "-p", "-U0", "--no-renames", "--format=@%at", "--", "aero/published").splitlines():
        if re.fullmatch(r"@\d+", line):
            time = int(line[1:])
        elif entry := re.match(r"\+ *- \{id: ([\w.-]+),", line):
            found[entry.group(1)] = min(time, found.get(entry.group(1), time))
    return found


def test_git_does_not_refute_that_a_claim_was_stated_before_its_data(kept: Results) -> None:
    """A claim is before the data if it entered git before one of the runs it compares had a kept result, or before
    every kept file it was decided on.
    """
    if not (made_results.PROJECT / ".git").exists() or git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("needs the repository's history")
    files, entries = first_commits("results"), entered()
    counted = 0
    for judged in claims.judge(kept):
        runs = scales.sides(kept, judged.claim)
        firsts = [min((t for f, t in files.items() if f.split("/")[2] == run), default=None) for run in runs]
        if runs and None in firsts or not judged.decision.measured:
            continue  # a side has no kept result: nothing is known yet
        known = firsts or [files[file] for file in judged.files if file in files]
        if judged.claim.stated.startswith("before") and known:
            data = max(known) if runs else min(known)
            assert entries[judged.claim.id] < data, (judged.claim.id, judged.files)
            counted += 1
    assert counted > 60


def test_a_claim_that_came_after_its_data_says_so(kept: Results) -> None:
    stated = {j.claim.id: j.claim.stated for j in claims.judge(kept)}
    for name in ("eg-relu-over-gelu", "eg-saving", "eg-thresholds-vary", "c-gelu-of-the-baseline", "t4-own-saving"):
        assert stated[name] == "after the data"
    for name in ("f9-regularisation-against-overload", "f11-alpha-grows", "f17-none-pruned-balanced"):
        assert stated[name] == "after the data"
    words = claims.stated_words(claims.judge(kept))
    numbers = [int(n) for n in re.findall(r"\d+", words)]
    assert sum(numbers) == len(stated) and numbers[2] == list(stated.values()).count("after the data")
    needless = [j for j in claims.judge(kept) if j.claim.stated == "no data"]
    assert all(j.group in ("theory and arithmetic", "print against print") for j in needless)


def test_counts_by_what_claims_rest_on_add_up(kept: Results) -> None:
    judged = claims.judge(kept)
    groups = claims.group_counts(judged)
    assert {verdict: sum(of[verdict] for of in groups.values()) for verdict in claims.VERDICTS} == claims.counts(judged)
    own = {j.claim.id for j in judged if j.group == "own variations"}
    assert len(own) == 12 and "t4-saving-without-the-baseline" in own
    asked = {name for question in overview.questions() for name in question.claims}
    assert not asked & own and "l-best-gain" not in asked
    assert next(j for j in judged if j.claim.id == "l-best-gain").group == "print against print"


def test_below_the_papers_size_no_trained_number_is_reproduced(kept: Results) -> None:
    sized = ("relative_perplexity", "no_worse", "head_fraction", "head_fraction_difference", "distribution_shift")
    for judged in claims.judge(kept):
        if judged.claim.test in sized and judged.decision.scale != "paper":
            assert judged.decision.verdict != "reproduced", judged.claim.id


def test_no_verdict_is_typed_in_any_file() -> None:
    for path in sorted((made_results.PROJECT / "aero/published").glob("*_claims.yaml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["claims"]:
            assert set(entry) <= FIELDS
            for verdict in claims.VERDICTS:
                assert verdict not in entry["claim"] + entry["short"] + entry["published"], entry["id"]


def test_the_questions_name_claims_that_exist_and_every_paper() -> None:
    known = {claim.id: short for short in known_papers() for claim in load(short).claims}
    asked = overview.questions()
    assert {short for question in asked for short in question.papers} == set(known_papers())
    for question in asked:
        assert question.claims and set(question.claims) <= set(known), question.asked
        assert {known[name] for name in question.claims} <= set(question.papers), question.asked
        assert len(set(question.claims)) == len(question.claims)


def test_every_topic_is_shown_in_the_report() -> None:
    source = (made_results.PROJECT / "reports/aero_softmax_only.py").read_text(encoding="utf-8")
    topics = {claim.topic for short in known_papers() for claim in load(short).claims}
    assert {topic for topic in topics if f'"{topic}"' not in source} == set()
