"""Figures of docs/decisions.md on what limits a private pass, held against the files they are of."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = " ".join((ROOT / "docs/decisions.md").read_text(encoding="utf-8").split())
PARTS_ON_CIPHERTEXTS = ("embedding", "linear layers", "attention products", "vocabulary projection")
PASSES = tuple((row, program) for row in ("SM+LN+G", "SM+ScFuFFN") for program in ("as_written", "tuned"))
N = r"([\d.]*\d)"


def limits() -> dict[str, list[float]]:
    """Per cent: computing on ciphertexts by kernels and by part of the model, links of the latency; parties apart."""
    found = json.loads((ROOT / "results/bench/two_party.json").read_text(encoding="utf-8"))
    parts = {(row["architecture"], row["program"]): row["parts"] for row in found["rows"]}
    lines = {(line["architecture"], line["program"]): line for line in found["resources"]}
    told: dict[str, list[float]] = {"kernels": [], "parts": [], "wan": [], "lan": [], "apart": []}
    for key in PASSES:
        work, of_parts = lines[key]["seconds"], {name: part["seconds"] for name, part in parts[key].items()}
        computing = sum(one["mean"] for one in work.values())
        told["kernels"].append(100 * work["he"]["mean"] / computing)
        told["parts"].append(100 * sum(of_parts[name] for name in PARTS_ON_CIPHERTEXTS) / sum(of_parts.values()))
        told["apart"].append(100 * max(one["high"] - one["low"] for one in work.values()) / computing)
        for network in ("wan", "lan"):
            link = sum(lines[key]["links"][network].values())
            told[network].append(100 * link / (computing + link))
    return told


def ciphertext_bytes() -> list[float]:
    """Per cent of the bytes of a plain GELU and of a plain softmax at GPT-2's size."""
    with (ROOT / "results/two_party/resources.csv").open(encoding="utf-8", newline="") as file:
        lines = {line["op"]: line for line in csv.DictReader(file)}
    sent = [
        {work: float(lines[op][f"{work}_bytes"]) for work in ("he", "ot")} for op in ("gelu_plain", "softmax_plain")
    ]
    return [100 * one["he"] / (one["he"] + one["ot"]) for one in sent]


CASES = {
    "kernels": (
        rf"Ciphertexts take {N} and {N} % of the computing of SM\+LN\+G as written and tuned, {N} and {N} % of "
        rf"SM\+ScFuFFN's",
        lambda: limits()["kernels"],
    ),
    "parts": (rf"by part it seemed to be {N}, {N}, {N} and {N} %", lambda: limits()["parts"]),
    "bytes": (rf"Of the bytes of a plain GELU {N} % are ciphertexts, of a plain softmax {N} %", ciphertext_bytes),
    "links": (
        rf"are {N}, {N}, {N} and {N} % of the latency on the WAN, {N}, {N}, {N} and {N} % on the LAN",
        lambda: [*limits()["wan"], *limits()["lan"]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_figure_is_that_of_its_file(case: str) -> None:
    pattern, values = CASES[case]
    (found,) = re.findall(pattern, TEXT)
    assert list(found) == [f"{value:.0f}" for value in values()]


def test_the_parties_are_as_near_as_is_said() -> None:
    ((most,),) = [re.findall(rf"parties' shares differ by at most {N} % of the whole", TEXT)]
    assert max(limits()["apart"]) <= float(most)
