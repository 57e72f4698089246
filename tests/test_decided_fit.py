"""Figures that the documents state of the best fit of the published bytes, held against the files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator

import pytest
from test_decided_numbers import ROOT, N, stated, told, two_party_file

from aero.report import best_fit
from aero.report.results import load as results


def fitted() -> Iterator[float]:
    """as_published: rows and its bytes over the printed ones; AERO's rows and what tuned takes of its bytes, seconds,
    seconds of blocks; seconds of one row's lookups and logits; rows at half of the seconds as written."""
    rows = best_fit.fitted_rows(results(ROOT))
    own = [row for row in rows if row.own]
    ratios = [row.amounts["as_published"]["bytes"] / 1e9 / row.published for row in rows]
    yield from (len(rows), min(ratios), max(ratios), len(own))
    for column in best_fit.COLUMNS[:3]:
        found = [row.over(*column) for row in own]
        yield from (min(found), max(found))
    key = {"architecture": "SM+ScFuFFN", "model": "gpt2", "context": "128", "program": "as_published"}
    (line,) = [r for r in two_party_file("fitted_rows.csv") if key.items() <= r.items()]
    kinds = json.loads(line["seconds_by_kind"])
    yield from (kinds["id_lookup"], float(line["seconds"]), kinds["vocabulary_slice_shared"])
    for program in (best_fit.PLAIN, best_fit.NO_TILES):
        yield sum(row.over(program, "as_written", "seconds") <= 0.5 for row in own)


def fitted_how_sure() -> Iterator[float]:
    yield sum(row.over_plain_embedding() <= 0.5 for row in best_fit.fitted_rows(results(ROOT)) if row.own)
    rounds = {(r["op"], r["shape"]): float(r["rounds"]) for r in two_party_file("fitted_ops.csv")}
    key = {"architecture": "SM+ScFuFFN", "model": "gpt2", "context": "128", "program": "as_published"}
    (line,) = [r for r in two_party_file("fitted_rows.csv") if key.items() <= r.items()]
    yield from (128 / 2 * rounds["id_lookup", "2,50257x768"], float(line["rounds"]))
    fitted = {(r["op"], r["shape"]): float(r["seconds"]) for r in two_party_file("fitted_ops.csv")}
    before = {(r["op"], r["shape"]): float(r["seconds"]) for r in two_party_file("ops.csv")}
    slower = [fitted[key] / before[key] for key in fitted.keys() & before if before[key] > 1]
    yield from (min(slower), max(slower))
    yield from (fitted[op, "512x768,768x1024"] for op in ("linear_shared", "vocabulary_slice_shared"))


def fitted_errors() -> Iterator[float]:
    """Of three rows, tuned on 200 held-out prompts and then as published on an evenly spaced 20 of them."""
    lines = [line for line in two_party_file("savings_errors.csv") if line["tokens"] == "24"]
    found = {(line["program"], line["architecture"]): line for line in lines}
    assert {line["scale"] for line in lines} == {"laptop"}
    rows = ("SM+ScFuFFN", "SM+LN+G", "SM+LN+R")
    for program, prompts in (("tuned", "200"), ("as_published", "20")):
        for line in (found[program, row] for row in rows):
            assert line["prompts"] == line["same_top_token"] == prompts
            yield float(line["max_logit_error"])
    ereg = "EReg(SM(t)+ScFuFFN)"
    line = found["as_published", ereg]
    yield from (float(line["prompts"]), float(line["max_logit_error"]))
    yield from (float(found["tuned", ereg]["max_logit_error"]), float(line["same_top_token"]))
    weights = [{json.loads(found[p, row]["provenance"])["weights"] for p in ("tuned", "as_published")} for row in rows]
    assert [len(one) for one in weights] == [1, 1, 1]


CASES = {
    "two parties, best fit, errors": (
        rf"of the trainings that `tuned` was asked of \({N}, {N} and {N} on 200\): SM\+ScFuFFN {N}, SM\+LN\+G {N}, "
        rf"SM\+LN\+R {N}, PyTorch's top token every time\. EReg\(SM\(t\)\+ScFuFFN\) was asked {N} so: {N} "
        rf"\(tuned {N}\), the top token {N} "
        rf"times",
        fitted_errors,
    ),
    "two parties, best fit": (
        rf"over all {N} rows of Tables 4 to 7: {N} to {N} of the printed bytes .*? Of AERO's {N} rows "
        rf"`tuned-lattice_products` takes {N} to {N} of its bytes and {N} to {N} of its seconds, .*? it takes {N} to "
        rf"{N}: {N} of the {N} s of SM\+ScFuFFN at T = 128 are lookups of token ids and {N} logits .*? with it, {N} "
        rf"of them take half the seconds at most, and {N} without tiles\.",
        lambda: list(fitted()),
    ),
    "two parties, best fit, how sure": (
        rf"in their place {N} of the 20 take less than half\. .*? makes {N} of the {N} rounds of .*? over a second "
        rf"took {N} to {N} times what "
        rf"`ops.csv` has, .*? 768 x 1,024 took {N} and {N} s",
        lambda: list(fitted_how_sure()),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_figure_in_the_decisions_is_that_of_its_file(case: str) -> None:
    pattern, values = CASES[case]
    found = stated(pattern)
    assert found == told(list(values()), found)


def test_the_table_of_forensics_has_todays_bytes_of_as_written():
    where = {"4": ("rows", "gpt2", "128"), "5": ("all_rows", "gpt2", "256"), "6": ("all_rows", "gpt2-18l", "128")}
    where["7"] = ("all_rows", "languini-gpt2", "512")
    files = {}
    for name in ("rows", "all_rows"):
        with open(ROOT / f"results/two_party/{name}.csv", encoding="utf-8", newline="") as file:
            files[name] = [row for row in csv.DictReader(file) if row["program"] == "as_written"]
    lines = re.findall(
        r"(?m)^\| ([4-7]) \| (\S+) \| [\d.]+ \|.*\| ([\d.]+) \|$", (ROOT / "docs/forensics.md").read_text("utf-8")
    )
    assert len(lines) == 27
    for table, architecture, gigabytes in lines:
        name, model, context = where[table]
        (row,) = [
            r for r in files[name] if (r["architecture"], r["model"], r["context"]) == (architecture, model, context)
        ]
        assert gigabytes == f"{float(row['bytes']) / 1e9:.2f}", (table, architecture)
