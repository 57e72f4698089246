"""Figures of docs/decisions.md on seconds between measured contexts, held against what was timed at T = 192 and 300."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aero.architecture import parse
from aero.two_party.cost import packing
from aero.two_party.cost.cost_model import KEPT_FILES, Operations, estimate, measured_operations
from aero.two_party.cost.counts import published_sizes

ROOT = Path(__file__).resolve().parents[2]
TEXT = " ".join((ROOT / "docs/decisions.md").read_text(encoding="utf-8").split())
VARIANT = "cheetah-FM64-18-exact"
TIMED = (192, 300)
BYTES_KNOWN = ("embedding_lookup", "exponentials", "inverse_sums", "mix", "scale_row_tiles", "scores")
"""Kinds whose bytes at T = 300 had been measured earlier."""
N = r"([\d,.]*\d)"


def figures() -> Iterator[tuple[float, int]]:
    """The figures in the order of the text, each with its digits."""
    kept = measured_operations(VARIANT, ROOT, KEPT_FILES)
    timed = {key: row for key, row in kept.measured.items() if row.context in TIMED and not math.isnan(row.seconds)}
    later = ("embedding_lookup", "512x50257,50257x768")
    known = {key: row for key, row in kept.measured.items() if key not in timed and key != later}
    known |= {
        key: replace(row, seconds=math.nan)
        for key, row in timed.items()
        if row.context == 300 and packing.sized(*key).kind in BYTES_KNOWN
    }
    before = Operations(known, VARIANT)
    off, allowed, told = {}, {}, {}
    for key, row in timed.items():
        cost = before.cost(*key)
        told[key], allowed[key] = cost.values["seconds"], cost.errors["seconds"]
        off[key] = abs(row.seconds / told[key] - 1)
    beyond = [key for key in timed if off[key] > allowed[key]]
    yield from ((len(timed), 0), (len(timed) - len(beyond), 0))
    tiles = [("scale_row_tiles", f"12x{t}x64,12x{t}") for t in TIMED]
    yield from ((timed[key].seconds, 1) for key in tiles)
    yield from ((told[key], 1) for key in tiles)
    yield from ((100 * allowed[key], 0) for key in tiles)
    yield len(beyond), 0
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for key in sorted(beyond, key=lambda key: timed[key].context):
        if timed[key].seconds > 5:
            by_kind.setdefault(packing.sized(*key).kind, []).append(key)
    assert {kind: len(keys) for kind, keys in by_kind.items()} == {
        "embedding_lookup": 2, "exponentials": 2, "gelu_segments": 1, "relu": 1}  # fmt: skip
    for keys in by_kind.values():
        yield from ((100 * off[key], 0) for key in keys)
        yield 100 * allowed[keys[0]], 1
    for row, context in (("SM+ScFuFFN", 192), ("SM+ScFuFFN", 300), ("SM+LN+G", 192)):
        sizes = published_sizes("gpt2", context)
        now, then = (estimate(parse(row), sizes, "tuned", operations) for operations in (kept, before))
        assert abs(now.seconds / then.seconds - 1) < then.seconds_error
        yield from ((now.seconds, 0), (then.seconds, 0), (100 * then.seconds_error, 0))


def test_figures_are_those_of_what_was_timed() -> None:
    (found,) = re.findall(
        rf"bounds were mended: {N} operations of .*?\. {N} lie within their bounds\. The diagonal tiles took {N} and "
        rf"{N} s where {N} and {N} were told \({N} and {N} % allowed\): .*? Of the {N} beyond, the dear ones are "
        rf"embeddings \({N} and {N} % off, {N} allowed\), exponentials \({N} and {N} %, {N}\), one GELU \({N} %, {N}\) "
        rf"and one ReLU \({N} %, {N}\): .*? SM\+ScFuFFN {N} s where {N} were told, within {N} %, and {N} where {N}, "
        rf"within {N} %; SM\+LN\+G {N} where {N}, within {N} %",
        TEXT,
    )
    assert list(found) == [f"{value:,.{digits}f}" for value, digits in figures()]
