"""Figures of the documents on comparisons in a ring of 32 bits and on fewer squarings, held against their files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from aero.two_party.cost.cost_model import measured_operations

ROOT = Path(__file__).resolve().parents[2]
N = r"([\d.]*\d)"
ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")
NARROW = "narrow_comparisons"


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def sent() -> dict[tuple[str, str], float]:
    """GB of a pass at T = 128, by row and program."""
    with (ROOT / "results/two_party/savings.csv").open(encoding="utf-8", newline="") as file:
        return {(line["architecture"], line["program"]): float(line["bytes"]) / 1e9 for line in csv.DictReader(file)}


def rounds() -> list[float]:
    kept = measured_operations("cheetah-FM64-18-exact", ROOT).measured
    found = []
    for name, constants, shape in (
        ("exponentials", ("blocks=16", "split=1"), "12x128x128"),
        ("relu", (), "128x3072"),
        ("gelu_segments", (), "128x3072"),
    ):
        for more in (("narrow=1",), ()):
            inner = ",".join(sorted((*constants, *more)))
            found.append(kept[f"{name}({inner})" if inner else name, shape].rounds)
    return found


def passes() -> list[float]:
    found = sent()
    return [found[row, program] for row in ROWS for program in (f"tuned+{NARROW}", "tuned")]


def alone() -> list[float]:
    found = sent()
    return [found[row, "as_written"] - found[row, f"as_written+{NARROW}"] for row in ROWS]


def fewer() -> list[float]:
    """Per cent, of all rows of the ablation."""
    found = sent()
    rows = {row for row, program in found if program == f"tuned+{NARROW}"}
    off = [100 * (1 - found[row, f"tuned+{NARROW}"] / found[row, "tuned"]) for row in rows]
    return [min(off), max(off)]


FEW = "fewer_squarings"


def squarings() -> list[float]:
    """GB of two rows alone, without and with; of one tuned with SPU's exponentials, with these, with split ones."""
    found, row = sent(), "SM+ScFuFFN"
    two = [found[one, program] for one in ("SM+LN+G", row) for program in ("as_written", f"as_written+{FEW}")]
    within = [found[row, program] for program in ("tuned-split_exponential", f"tuned-split_exponential+{FEW}", "tuned")]
    return two + within


def squarings_errors() -> list[float]:
    """Alone and in the place of split ones, then of SPU's exponentials in the same two programs."""
    with (ROOT / "results/two_party/savings_errors.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["scale"], line["tokens"]) == ("laptop", "16")]
    found = {line["program"]: float(line["max_logit_error"]) for line in lines if line["architecture"] == "SM+ScFuFFN"}
    ends = ("as_written", "tuned-split_exponential")
    return [*(found[f"{end}+{FEW}"] for end in ends), *(found[end] for end in ends)]


def squarings_softmax() -> list[float]:
    """MB of a softmax and of a cover's exponentials, without and with."""
    parts = []
    for name in ("ops.csv", "savings_ops.csv"):
        with (ROOT / "results/two_party" / name).open(encoding="utf-8", newline="") as file:
            parts += [line for line in csv.DictReader(file) if line["shape"] == "12x128x128"]
    found = {line["op"]: (float(line["bytes_sent_client"]) + float(line["bytes_sent_server"])) / 1e6 for line in parts}
    names = ("softmax_plain", "softmax_plain(few=1)")
    return [found[name] for name in (*names, *(f"exponentials(blocks=16,{few}split=0)" for few in ("", "few=1,")))]


def complete() -> list[float]:
    """Seconds and GB of the complete passes of two rows, each beside tuned's; their errors; the compositions' range."""
    entries = json.loads((ROOT / "results/two_party/full_passes.json").read_text(encoding="utf-8"))
    found = {(entry["architecture"], entry["program"]): entry for entry in entries}
    narrow = [entry for (_, program), entry in found.items() if program == f"tuned+{NARROW}"]
    assert [entry["architecture"] for entry in narrow] == ["SM+ScFuFFN", "SM+LN+R"]
    assert all(entry["same_top_token"] == 1 and entry["load_before"] < 2.5 for entry in narrow)
    figures: list[float] = []
    for entry in narrow:
        for one in (entry, found[entry["architecture"], "tuned"]):
            figures += [one["seconds"], (one["bytes_client"] + one["bytes_server"]) / 1e9]
    figures += [entry["max_logit_error"] for entry in narrow]
    for what in ("bytes", "seconds"):
        figures += sorted(entry[f"composed_over_measured_{what}"] for entry in narrow)
    return figures


CASES = {
    "complete passes": (
        "docs/decisions.md",
        rf"SM\+ScFuFFN {N} s and {N} GB where `tuned` took {N} and {N}, SM\+LN\+R {N} s and {N} GB where it took {N} "
        rf"and {N}; errors of the last logits {N} and {N}, PyTorch's top token both times\. Sums of operations are {N} "
        rf"to {N} of the bytes and {N} to {N} of the seconds",
        complete,
    ),
    "rounds": (
        "docs/decisions.md",
        rf"rounds at T = 128 are {N} instead of {N} for exponentials, {N} instead of {N} for ReLU and {N} instead of "
        rf"{N} for GELU",
        rounds,
    ),
    "passes": (
        "docs/decisions.md",
        rf"sends {N} GB instead of {N} \(SM\+LN\+G\), {N} instead of {N} \(SM\+LN\+R\), {N} instead of {N} \(SM\+ScFu",
        passes,
    ),
    "squarings": (
        "docs/decisions.md",
        rf"Alone it takes SM\+LN\+G from {N} GB to {N} and SM\+ScFuFFN from {N} to {N}; SM\+ScFuFFN tuned is {N} GB "
        rf"with SPU's exponentials, {N} with these, and {N} with split ones",
        squarings,
    ),
    "squarings, errors": (
        "docs/decisions.md",
        rf"Logit errors of SM\+ScFuFFN .*? are {N} alone and {N} in the place of split ones, where SPU's have {N} and "
        rf"{N}\.",
        squarings_errors,
    ),
    "squarings, softmax": (
        "docs/decisions.md",
        rf"of 12 x 128 x 128 from {N} MB and 11\.0 s to {N} and 9\.8, the cover's exponentials from {N} and 5\.2 to "
        rf"{N} and",
        squarings_softmax,
    ),
    "alone": ("docs/decisions.md", rf"alone it saves {N}, {N} and {N} GB of what", alone),
    "documented": ("docs/two_party.md", rf"{N} to {N} % fewer bytes than `tuned` \(T=128\)", fewer),
    "changelog": ("CHANGELOG.md", rf"sends {N} to {N} % less than `tuned` at T = 128", fewer),
}


@pytest.mark.parametrize("case", CASES)
def test_a_figure_of_the_text_is_that_of_the_files(case):
    document, pattern, value = CASES[case]
    found = re.findall(pattern, text(document))
    assert len(found) == 1
    texts = found[0] if isinstance(found[0], tuple) else (found[0],)
    for said, measured in zip(texts, value(), strict=True):
        digits = len(said.partition(".")[2])
        assert said == f"{measured:.{digits}f}"
