"""Figures of docs/decisions.md on products outside SPU, held against the files they are of and the code."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aero.report.lattice_rows import ALONE, OUTSIDE, WITHIN, lattice_rows
from aero.report.results import load
from aero.two_party.cost import ledger
from aero.two_party.lattice import matmul as lattice

ROOT = Path(__file__).resolve().parents[2]
TEXT = " ".join((ROOT / "docs/decisions.md").read_text(encoding="utf-8").split())
SHAPE = "128x768,768x768"
N = r"([\d.,]*\d)"


def operation(kind: str) -> dict[str, str]:
    with (ROOT / "results/two_party/lattice_ops.csv").open(encoding="utf-8", newline="") as file:
        (found,) = [line for line in csv.DictReader(file) if (line["op"], line["shape"]) == (kind, SHAPE)]
    return found


def own_rows() -> list:
    return [row for row in lattice_rows(load(ROOT)) if row.own]


def table_line(kind: str) -> list[float]:
    one = operation(kind)
    return [float(one[name]) / 1e6 for name in ("bytes_sent_client", "bytes_sent_server")] + [
        float(one[name]) for name in ("messages", "rounds", "seconds")
    ]


def of_rows() -> list[float]:
    rows = own_rows()
    found = [float(len(rows))]
    for quantity, program in (("bytes", OUTSIDE), ("seconds", OUTSIDE), ("seconds", WITHIN), ("seconds", ALONE)):
        ratios = [row.over(quantity, program) for row in rows]
        found += [min(ratios), max(ratios)]
    return [*found, max(row.over("seconds", OUTSIDE, row.put_backs) for row in rows)]


def smallest_row() -> dict[str, float]:
    (row,) = [row for row in own_rows() if (row.table, row.name) == ("4", "SM+ScFuFFN")]
    return row.seconds


def left() -> list[float]:
    """Of the smallest row with it: products of two secrets, all, tiles, exponentials, and products outside SPU."""
    with (ROOT / "results/two_party/lattice_rows.csv").open(encoding="utf-8", newline="") as file:
        wanted = ("SM+ScFuFFN", "gpt2", "128", OUTSIDE)
        (line,) = [one for one in csv.DictReader(file) if tuple(one[key] for key in ledger.Row.named_by) == wanted]
    kinds = json.loads(line["seconds_by_kind"])
    rest = [kinds[name] for name in ("scale_row_tiles", "exponentials", "lattice_linear")]
    return [kinds["scores"] + kinds["mix"], float(line["seconds"]), *rest]


def over_tuned() -> list[float]:
    ratios = [row.bytes[OUTSIDE] / row.bytes[WITHIN] for row in own_rows()]
    return [min(ratios), max(ratios)]


def layouts() -> list[float]:
    """MB of queries and changes of keys of 128 x 768 by 768 x 768 with 8, 16 and 32 inner places in a ciphertext."""
    found: list[float] = []
    for inner in (8, 16, 32):
        blocks, sums = 768 // inner, 768 * 128 * inner // lattice.DEGREE
        found += [8 * blocks * lattice.DEGREE / 1e6, sums - sums / inner]
    return [found[0], found[2], found[1], found[3], found[4], found[5]]


def passes() -> list[float]:
    """Seconds and GB of the complete passes of three rows, their errors, and the range of their compositions."""
    entries = json.loads((ROOT / "results/two_party/full_passes.json").read_text(encoding="utf-8"))
    found = {entry["architecture"]: entry for entry in entries if entry["program"] == OUTSIDE}
    assert list(found) == ["SM+ScFuFFN", "SM+LN+R", "SM+LN+G"]
    assert all(entry["same_top_token"] == 1 and entry["load_before"] < 2.5 for entry in found.values())
    figures = [(one["seconds"], (one["bytes_client"] + one["bytes_server"]) / 1e9) for one in found.values()]
    over = [[one[f"composed_over_measured_{what}"] for one in found.values()] for what in ("bytes", "seconds")]
    errors = [one["max_logit_error"] for one in found.values()]
    return [*sum(map(list, figures), []), *errors, *(end(values) for values in over for end in (min, max))]


def held_out() -> list[float]:
    with (ROOT / "results/two_party/savings_errors.csv").open(encoding="utf-8", newline="") as file:
        lines = [one for one in csv.DictReader(file) if one["tokens"] == "24"]
    found = {one["architecture"]: one for one in lines if one["program"] == OUTSIDE}
    rows, names = tuple(found), ("prompts", "same_top_token", "max_logit_error")
    assert rows == ("SM+ScFuFFN", "SM+LN+R", "SM+LN+G", "EReg(SM(t)+ScFuFFN)")
    plain = {one["architecture"]: one["max_logit_error"] for one in lines if one["program"] == "as_written"}
    return [float(found[row][name]) for row in rows for name in names] + [float(plain[row]) for row in rows]


CASES = {
    "SPU": (rf"\| SPU \(`linear`\) \| {N} \| {N} \| {N} \| {N} \| {N} \|", lambda: table_line("linear")),
    "outside": (
        rf"\| outside \(`lattice_linear`\) \| {N} \| {N} \| {N} \| {N} \| {N} \|",
        lambda: table_line("lattice_linear"),
    ),
    "rows": (
        rf"All {N} rows of AERO with a target take at most half: {N} to {N} of the bytes as written and {N} to {N} "
        rf"of the seconds, where `tuned-lattice_products` takes {N} to {N} and this saving alone {N} to {N}; with the "
        rf"residual stream put back before every layer that can need it {N} of the seconds at most",
        of_rows,
    ),
    "one row": (
        rf"SM\+ScFuFFN at T = 128: {N} s as written, {N} without it, {N} tuned",
        lambda: [smallest_row()[program] for program in ("as_written", WITHIN, OUTSIDE)],
    ),
    "left": (
        rf"{N} of the {N} s of SM\+ScFuFFN, before tiles of rows \({N}\), exponentials \({N}\) and products outside "
        rf"SPU \({N}\)",
        left,
    ),
    "bytes over tuned": (rf"Bytes are {N} to {N} of those without it", over_tuned),
    "blocks": (
        rf"\*\*Blocks of 16 inner places\.\*\* 8: {N} MB of queries instead of {N}, {N} changes of keys instead of "
        rf"{N}; 32: {N} MB and {N}",
        layouts,
    ),
    "held out": (
        rf"SM\+ScFuFFN tuned was asked {N} and has PyTorch's top token {N} times, with an error of {N} at most, "
        rf"SM\+LN\+R {N}, {N} times, {N}, SM\+LN\+G {N}, {N} times, {N}, and EReg\(SM\(t\)\+ScFuFFN\) {N}, {N} "
        rf"times, {N} .*? on another processor \({N}, {N}, {N}, {N}\)\.",
        held_out,
    ),
    "passes": (
        rf"SM\+ScFuFFN {N} s and {N} GB, SM\+LN\+R {N} s and {N} GB, SM\+LN\+G {N} s and {N} GB, errors of the last "
        rf"logits {N}, {N} and {N}, PyTorch's top token each time\. Sums of operations are {N} to {N} of the bytes and "
        rf"{N} to {N} of the seconds",
        passes,
    ),
    "error": (
        rf"Std {N} last bits of the fixed point by the law",
        lambda: [lattice.error_of(np.full((768, 2), 0.14), 18, 2)],
    ),
}


def test_what_the_page_says_of_two_savings_is_in_the_files() -> None:
    page = " ".join((ROOT / "docs/two_party.md").read_text(encoding="utf-8").split())
    (products,) = re.findall(rf"takes {N} to {N} of the seconds of `{WITHIN}` and {N} to {N} % fewer bytes", page)
    (tiles,) = re.findall(rf"`tuned-row_tiles` takes {N} to {N} % less time for {N} to {N} % more bytes", page)
    over: dict[str, dict[str, list[float]]] = {}
    for name, other in (("lattice_rows", WITHIN), ("savings", "tuned-row_tiles")):
        with (ROOT / f"results/two_party/{name}.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        keys = ("architecture", "model", "context") if name == "lattice_rows" else ("architecture",)
        found = {(*(line[key] for key in keys), line["program"]): line for line in lines}
        pairs = [(line, found[(*key[:-1], other)]) for key, line in found.items() if key[-1] == OUTSIDE]
        over[other] = {what: [float(b[what]) / float(a[what]) for a, b in pairs] for what in ("seconds", "bytes")}
    within, without_tiles = over[WITHIN], over["tuned-row_tiles"]
    seconds, fewer = ([1 / value for value in within["seconds"]], [100 - 100 / value for value in within["bytes"]])
    assert list(products) == [f"{min(seconds):.2f}", f"{max(seconds):.2f}", f"{min(fewer):.0f}", f"{max(fewer):.0f}"]
    less, more = ([100 - 100 * v for v in without_tiles["seconds"]], [100 * v - 100 for v in without_tiles["bytes"]])
    assert list(tiles) == [f"{end(values):.0f}" for values in (less, more) for end in (min, max)]


@pytest.mark.parametrize("case", CASES)
def test_a_figure_is_that_of_its_file(case: str) -> None:
    pattern, values = CASES[case]
    (found,) = re.findall(pattern, TEXT)
    found = [found] if isinstance(found, str) else list(found)
    plain = [text.replace(",", "") for text in found]
    assert plain == [f"{v:.{len(text.partition('.')[2])}f}" for v, text in zip(values(), plain, strict=True)]


def test_every_row_with_a_target_meets_all_three() -> None:
    rows = lattice_rows(load(ROOT))
    assert all(row.printed(row.put_backs) <= row.most for row in rows if row.most is not None)
    assert all(row.over(what, OUTSIDE, row.put_backs) <= 0.5 for row in own_rows() for what in ("bytes", "seconds"))
