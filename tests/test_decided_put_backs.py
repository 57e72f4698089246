"""Figures of docs/decisions.md about what tuned rows are priced without, and what savings trade for bytes.

Beside `test_decided_numbers`, whose way of reading the page they are held by.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_decided_numbers import ROOT, N, composed, read, stated, told, two_party_file

from aero.architecture import parse
from aero.config import load
from aero.report import put_backs
from aero.two_party.cost import ledger
from aero.two_party.program.forward import operations


def seconds_of_folding() -> Iterator[float]:
    """Of SOTA(SM+ScFuFFN): tuned with and without folded_ffn, GB between them; with it alone, and none."""
    lines = [line for line in two_party_file("savings.csv") if line["architecture"] == "SOTA(SM+ScFuFFN)"]
    found = {line["program"]: (float(line["seconds"]), float(line["bytes"]) / 1e9) for line in lines}
    tuned, without = found["tuned"], found["tuned-folded_ffn"]
    assert tuned[0] > without[0]
    yield from (tuned[0], without[0], without[1] - tuned[1])
    yield from (found["as_written+folded_ffn"][0], found["as_written"][0])


def put_back_products() -> Iterator[float]:
    """Of SM+ScFuFFN at GPT-2's size: one put-back in MB and s; tuned with one, two, all and none of them."""
    row = "SM+ScFuFFN"
    (one,) = [line for line in ledger.read(ROOT / "results/two_party/ops.csv", ledger.Measurement)
              if (line.op, line.shape) == ("lattice_linear", "128x768,768x768")]  # fmt: skip
    yield from (one.bytes / 1e6, one.seconds)
    count = put_backs.most_put_backs(parse(row), 12)
    every = "tuned@" + ",".join(str(layer) for layer in range(1, count + 1))
    entries = read("two_party/full_passes.json")
    (kept,) = [e for e in entries if (e["architecture"], e["program"]) == (row, "tuned")]
    (small,) = [e for e in read("two_party/end_to_end.json") if (e["architecture"], e["program"]) == (row, "tuned")]
    told_ = [composed(row, program) for program in (kept["computed_as"], small["computed_as"], every, "tuned")]
    for number, (seconds, gigabytes) in zip((1, 2, count, 0), told_, strict=True):
        assert seconds == pytest.approx(told_[-1][0] + number * one.seconds)
        if number == count:
            yield from (gigabytes, seconds, count)
        else:
            yield from (gigabytes, seconds)


def passes_as_written() -> Iterator[float]:
    """s and GB of each; the sums over them, bytes and s; errors of both programs; bytes tuned over as written."""
    entries = {(e["program"], e["architecture"]): e for e in read("two_party/full_passes.json")}
    rows = ("SM+ScFuFFN", "SM+LN+R")
    plain, tuned = ([entries[program, row] for row in rows] for program in ("as_written", "tuned"))
    size = [[e["bytes_client"] + e["bytes_server"] for e in some] for some in (plain, tuned)]
    yield from (plain[0]["seconds"], size[0][0] / 1e9, plain[1]["seconds"] % 1000, size[0][1] / 1e9)
    for what in ("bytes", "seconds"):
        ratios = [entry[f"composed_over_measured_{what}"] for entry in plain]
        yield from (min(ratios), max(ratios))
    yield from (entry["max_logit_error"] for entry in (*plain, *tuned))
    yield from (few / many for many, few in zip(*size, strict=True))


CASES = {
    "two parties, complete passes as written": (
        rf"SM\+ScFuFFN {N} s and {N} GB, SM\+LN\+R 1,{N} s and {N} GB\. Sums of operations are {N} to {N} of the bytes "
        rf"and {N} to {N} of the seconds\. Errors of the last logits are {N} and {N}; tuned {N} and {N}, on the same "
        rf"random weights and prompt\. Of these bytes the tuned passes have {N} and {N}\.",
        lambda: list(passes_as_written()),
    ),
    "two parties, a complete pass of a slower day": (
        rf"ran when the machine was slower: 2,{N} s and {N} GB, an error of {N}, PyTorch's top token\. Operations "
        rf"measured right after it \(`full_passes_ops.csv`\) make {N} of its bytes and {N} of its seconds, those of "
        rf"`ops.csv` {N}: each took {N} to {N} times as long as there",
        lambda: list(pass_of_a_slower_day()),
    ),
    "two parties, rows without errors": (
        rf"Of the {N} lines of `rows.csv` only {N} are the program of a kept complete pass",
        lambda: list(programs_with_an_error()),
    ),
    "two parties, seconds of folding": (
        rf"SOTA\(SM\+ScFuFFN\) tuned takes {N} s with it and {N} without, for {N} GB less; alone it makes {N} s of "
        rf"the {N} as written",
        lambda: list(seconds_of_folding()),
    ),
    "two parties, put back": (
        rf"a product of all tokens, {N} MB and {N} s at T = 128: {N} GB and {N} s before one layer, {N} and {N} before "
        rf"two, {N} and {N} before all {N} that can need it, instead of {N} and {N}\. No target is missed",
        lambda: list(put_back_products()),
    ),
    "two parties, without split exponentials": (
        rf"SM\+ScFuFFN tuned is {N} GB with SPU's exponentials, [\d.]+ with these, and {N} with split ones",
        lambda: [
            float(line["bytes"]) / 1e9
            for program in ("tuned-split_exponential", "tuned")
            for line in two_party_file("savings.csv")
            if (line["architecture"], line["program"]) == ("SM+ScFuFFN", program)
        ],
    ),
}


def pass_of_a_slower_day() -> Iterator[float]:
    """s beyond 2,000 and GB, error; bytes and seconds of its own operations over it, seconds of ops.csv's; least and
    most of the former over the latter, operation by operation."""
    (entry,) = [e for e in read("two_party/full_passes.json") if "operations_file" in e]
    assert entry["same_top_token"] == 1
    yield from (entry["seconds"] - 2000, (entry["bytes_client"] + entry["bytes_server"]) / 1e9)
    yield entry["max_logit_error"]
    yield from (entry[f"composed_over_measured_{what}"] for what in ("bytes", "seconds"))
    slow, usual = (
        {(line["op"], line["shape"]): float(line["seconds"]) for line in two_party_file(name)}
        for name in (entry["operations_file"], "ops.csv")
    )
    config, context = load(ROOT / "params.yaml").at_scale("laptop").two_party_model()
    counts = operations(parse(entry["architecture"]), config, entry["computed_as"], context)
    yield sum(count * usual[one.name, one.shape] for one, count in counts.items()) / entry["seconds"]
    ratios = [slow[key] / usual[key] for key in slow]
    yield from (min(ratios), max(ratios))


def programs_with_an_error() -> Iterator[float]:
    """Lines of rows.csv, and those of them whose very program a kept complete pass at that size computed."""
    passes = {(e["architecture"], e["computed_as"]) for e in read("two_party/full_passes.json")}
    lines = [(line["architecture"], line["program"]) for line in two_party_file("rows.csv")]
    named = {(row, program) for row in ("SM+LN+G", "SM+LN+R") for program in ("tuned", "as_written")}
    assert set(lines) & passes == named | {("SM+ScFuFFN", "as_written")}
    for name in ("rows.csv", "all_rows.csv"):
        assert {(r["method"], r["max_logit_error"]) for r in two_party_file(name)} == {("composed", "")}
    yield from (len(lines), len(set(lines) & passes))


@pytest.mark.parametrize("case", CASES)
def test_a_figure_in_the_decisions_is_that_of_its_file(case: str) -> None:
    pattern, values = CASES[case]
    found = stated(pattern)
    assert found == told(values(), found)


def test_by_how_much_messages_of_rows_are_too_few_is_that_of_the_passes():
    page = " ".join((ROOT / "docs/two_party.md").read_text(encoding="utf-8").split())
    passes = read("two_party/full_passes.json")
    few = {(e["program"], e["architecture"]): 100 * (1 - e["composed_over_measured_messages"]) for e in passes}
    tuned = [percent for (program, _), percent in few.items() if program == "tuned"]
    said = f"by {min(tuned):.0f} to {max(tuned):.0f} % in the complete passes of `tuned` at GPT-2's size"
    assert f"`messages` are too few, {said}" in page
    narrow = sorted(percent for (program, _), percent in few.items() if program == "tuned+narrow_comparisons")
    assert "(`full_passes.json`), by {:.0f} and {:.0f} % with `narrow_comparisons`".format(*narrow) in page
    less, most, more = (few["as_written", row] for row in ("SM+LN+R", "SM+LN+G", "SM+ScFuFFN"))
    said = f"{less:.0f} % (SM+LN+R) and {most:.0f} % (SM+LN+G) too few and {-more:.0f} % too many (SM+ScFuFFN)"
    assert f"As written they are {said}" in page
    bytes_ = max(100 * abs(1 - entry["composed_over_measured_bytes"]) for entry in passes)
    assert f"Bytes differ from those passes' by at most {bytes_:.1f} %." in page
