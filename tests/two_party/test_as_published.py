"""The measurement of the best fit as a program: its rows, and its bytes beside the search's own composition."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from aero.config import load
from aero.errors import UserError
from aero.pipeline import ROOT
from aero.two_party.cost import ledger
from aero.two_party.cost.measure import arguments, shrink
from aero.two_party.program.operations import Operation
from benchmarks import as_published
from benchmarks.forensics import Composer, Configuration, Engine, product_bytes, published_rows
from benchmarks.forensics_ops import read

KEPT = ROOT / "results/two_party/fitted_rows.csv"


def test_ids_are_whole_numbers_of_the_vocabulary_and_rounds_are_counted_at_a_small_one():
    operation = Operation("id_lookup", ((2,), (50257, 768)))
    ids, table = arguments(operation)
    assert (ids.dtype, ids.shape) == (np.int32, (2,)) and 0 <= ids.min() <= ids.max() < 50257
    assert (table.dtype, table.shape) == (np.float32, (50257, 768))
    assert [array.dtype for array in operation.arrays] == [np.int32, np.float32]
    assert shrink(operation) == Operation("id_lookup", ((2,), (1024, 64)))


def test_the_rows_of_the_tables_those_of_he_and_hofmann_as_published_alone():
    programs = {
        (place.split("/")[1], str(row.architecture)): row.wanted_in(as_published.PROGRAMS)
        for row in as_published.fitted_rows(load(ROOT / "params.yaml"))
        for place in row.places
    }
    for row in published_rows():
        wanted = ["as_published"] if row.name.startswith("SOTA") else list(as_published.PROGRAMS)
        assert programs[f"table{row.table}", row.name] == wanted, row


def test_a_scale_with_operations_of_its_own_is_refused(tmp_path, monkeypatch):
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text.replace("scale: laptop", "scale: smoke", 1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="smoke has operations of its own sizes; take scale: laptop"):
        as_published.main(["--folder", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def kept(program: str) -> dict[tuple[str, str, int], float]:
    with KEPT.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["program"] == program]
    return {(x["architecture"], x["model"], int(x["context"])): float(x["bytes"]) / 1e9 for x in lines}


FAMILY = {"4": "gpt2", "5": "gpt2", "6": "gpt2-18l", "7": "languini-gpt2"}


def sliced(rows: int, inner: int, columns: int, pieces: int) -> float:
    """GB that a product of two secrets takes more in `pieces` along the longer side, because the rest is sent anew."""
    size = max(inner, columns) // pieces
    parts = [product_bytes(rows, *((inner, size) if columns >= inner else (size, columns)), True)] * pieces
    if left := max(inner, columns) - size * pieces:
        parts[-1] = product_bytes(rows, inner, size + left, True)
    return (sum(parts) - product_bytes(rows, inner, columns, True)) / 1e9


def test_its_bytes_are_those_that_the_search_composes_from_operations_of_its_own():
    """Two ways from operations to rows that share no code and no measurement: `aero.two_party.program.forward`
    traced, and
    `benchmarks.forensics` by formula. What the program has on top is added by hand: products in slices, because of
    memory, and, with temperatures, one more product of two secrets."""
    configuration = Configuration(
        ("0.9.5", "default"), "shared", "gelu_tanh", "softmax_clip", "separate", "lookup", "all", "public", "ln_f", "GB"
    )
    measured = read(ROOT / "results/two_party/forensics_ops.csv")
    settings = {(one.spu, one.settings) for one in measured}
    composer = Composer({key: Engine(o for o in measured if (o.spu, o.settings) == key) for key in settings})
    found = kept("as_published")
    compared = 0
    multiply = composer.engines["0.9.5", "default"].per_entry("multiply") / 1e9
    for row in published_rows():
        here = found.get((row.name, FAMILY[row.table], row.context))
        if here is None:
            continue
        expected, tokens = composer.gigabytes(configuration, row), row.context
        whole, left = divmod(row.vocabulary, 1024)
        expected += whole * product_bytes(tokens, 768, 1024, True) / 1e9
        expected += product_bytes(tokens, 768, left, True) / 1e9 if left else 0.0
        expected -= product_bytes(tokens, 768, row.vocabulary, True) / 1e9
        if row.architecture.ffn != "fused":
            expected += row.layers * (sliced(tokens, 768, 3072, 3) + sliced(tokens, 3072, 768, 3))
        expected += row.layers * tokens * 768 * multiply * ("(t)" in row.name)
        assert here == pytest.approx(expected, rel=0.01), row
        compared += 1
    assert compared == 35


def test_all_operations_of_the_file_are_of_one_commit_one_machine_and_one_day():
    rows = ledger.read(ROOT / "results/two_party/fitted_ops.csv", ledger.Measurement)
    sources = [json.loads(row.provenance) for row in rows]
    assert len({source["commit"] for source in sources}) == 1
    assert len({source["machine"] for source in sources}) == 1
    assert len({source["measured"][:10] for source in sources}) == 1
    assert {row.runs for row in rows if row.context == 128} <= {3, 4, 5}
