"""What docs/decisions.md says bounds the speed of fused rows, held against the file and the models."""

from __future__ import annotations

import re

from test_decided_numbers import FUSED, TEXT, N, held_out, read, rows, stated, told

from aero.pipeline import ROOT
from benchmarks.training_step import ROW_SHAPES, our_model

BOUND = rf"bounds them: {N}, {N}, {N} at d=128 and {N}, {N}, {N} at d=768"
"""What the decisions say of `kernels_bound`, in place of that it is not measured yet, once the file has it."""


def test_the_bound_of_fused_rows_is_that_of_its_file_or_not_measured_yet() -> None:
    kept = [*rows(128), *rows(768)]
    if any("kernels_bound" not in row for row in kept):
        assert "In the kept file it is not measured yet." in TEXT and not re.search(BOUND, TEXT)
        return
    found = stated(BOUND)
    assert found == told([row["kernels_bound"]["median"] for row in kept], found)


def test_two_fused_rows_are_too_small_for_faster_kernels_at_the_smaller_width() -> None:
    found = stated(rf"At d=128 SM\+ScFuFFNi_6 and SOTA\(SM\+ScFuFFN\) have {N} and {N} million parameters")
    many = [sum(p.numel() for p in our_model(ROW_SHAPES[0], name).parameters()) for name in FUSED]
    assert found == told([value / 1e6 for value in many[1:]], found)
    assert max(many[1:]) < 2**20 <= many[0]


def test_the_peak_of_tokenising_is_that_of_its_file() -> None:
    found = stated(rf"goes to 16 copies: {N} MB more text show {N} MB more of it \(V=257\)")
    first, *_, last = next(v["sizes"] for v in read("bench/tokenizing.json")["vocabularies"] if v["vocabulary"] == 257)
    values = [(last[name] - first[name]) / 1e6 for name in ("bytes", "peak_bytes")]
    assert found == told(values, found)


def test_a_row_with_temperatures_was_asked_as_many_prompts_as_the_others() -> None:
    found = stated(
        rf"EReg\(SM\(t\)\+ScFuFFN\) so was asked {N} and has it {N} times, with an error of {N} at most "
        rf"\(as written on an evenly spaced {N}: {N} times, {N}\)"
    )
    assert found == told(list(held_out("EReg(SM(t)+ScFuFFN)")), found)


def test_every_comparison_of_trainings_is_made_and_the_last_is_told_as_it_is() -> None:
    kept = read("robustness/determinism.json")
    assert kept["asked"] == kept["of"] > 0
    (last,) = [
        line
        for line in kept["comparisons"]
        if (line["scale"], line["run"], line["compared"]) == ("laptop", "sm-ln-g", "SSE instructions")
    ]
    small = r"([\d.]+e-\d+)"
    found = re.search(
        rf"SSE {small}, {small} and {small} nats\.", (ROOT / "docs/determinism.md").read_text(encoding="utf-8")
    )
    assert found is not None
    for text, what in zip(found.groups(), ("loss", "perplexity", "entropy"), strict=True):
        digits = len(text.partition("e")[0].replace(".", "")) - 1
        assert float(text) == float(f"{last[what]:.{digits}e}")
