"""Fuzz targets of measured results: what the report reads of trainings, and files of measured costs."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from benchmarks.fuzz_target import Target, put
from benchmarks.mutations import Draw, as_json, damaged, damaged_tree

ROOT = Path(__file__).resolve().parents[1]
PLACE = Path("results/laptop/sm-r")


def trained(folder: Path) -> Target:
    """A kept training's metrics, entropies and log, of which one is damaged: what the report and `aero runs` take is
    a training of that place whose numbers can be; what they leave out they name.
    """
    from aero.report.results import load
    from aero.training import catalogue

    here = folder / PLACE
    here.mkdir(parents=True)
    # What the readers take of it, so that a case does not read all of params.yaml.
    put(folder / "params.yaml", yaml.safe_dump({"scale": "laptop"}).encode())
    names = ("metrics.json", "entropy.json", "log.csv")
    content = {name: (ROOT / PLACE / name).read_bytes() for name in names}
    values = {name: json.loads(content[name]) for name in names[:2]}
    lines = content["log.csv"].splitlines(keepends=True)
    content["log.csv"] = b"".join(lines[:6])
    seeds = [bytes([place]) + content[name] for place, name in enumerate(names)]
    last = [names[0]]

    @st.composite
    def changed(draw: Draw) -> bytes:
        place = draw(st.integers(0, 1))
        leaves = [3.0, 1338, 10**400, -1, True, "gpu", "sm", "NaN", [[9.9]], math.log(2)]
        return bytes([place]) + as_json(damaged_tree(draw, values[names[place]], leaves))

    @st.composite
    def logged(draw: Draw) -> bytes:
        return b"\x02" + _with_another_cell(draw, content["log.csv"])

    def read(case: bytes) -> None:
        if not case:
            return
        name = names[case[0] % len(names)]
        put(here / last[0], content[last[0]])
        put(here / name, case[1:])
        last[0] = name
        told: list[str] = []
        listed = catalogue.results(folder, told)
        found = load(folder)
        for run in found.runs.get(("laptop", "sm-r"), ()):
            assert run.diverged_at is not None or math.isclose(run.perplexity, math.exp(run.loss), rel_tol=2e-3), run
            assert (run.name, run.scale) == ("sm-r", "laptop") and run.seed >= 0, run
            for layer in run.entropy.mean if run.entropy else ():
                assert all(math.isnan(head) or -0.01 < head < math.log(run.metrics["context"]) for head in layer), layer
        assert bool(listed) == bool(found.runs), "the one takes what the other does not"
        assert not told or found.problems, "aero runs alone says what is wrong"
        if found.problems:
            raise ValueError(found.problems[0])

    pieces = [b'"eval_loss": ', b'"seed": ', b"1e309", b"nan", b"\n1,", b",,"]
    return Target(st.one_of(changed(), changed(), logged(), damaged(seeds, pieces)), seeds, read, names)


def measured_costs(folder: Path) -> Target:
    """Files of measured operations and of composed rows: what is read has no amount that cannot be."""
    from aero.two_party.cost import ledger

    kinds = {"ops.csv": ledger.Measurement, "rows.csv": ledger.Row}
    content = {}
    for name in kinds:
        content[name] = b"".join((ROOT / "results/two_party" / name).read_bytes().splitlines(keepends=True)[:5])
    seeds = [bytes([place]) + content[name] for place, name in enumerate(kinds)]

    @st.composite
    def changed(draw: Draw) -> bytes:
        place = draw(st.integers(0, 1))
        return bytes([place]) + _with_another_cell(draw, content[list(kinds)[place]])

    def read(case: bytes) -> None:
        if not case:
            return
        name = list(kinds)[case[0] % len(kinds)]
        put(folder / name, case[1:])
        for row in ledger.read(folder / name, kinds[name]):
            for field in fields(row):
                value: Any = getattr(row, field.name)
                if isinstance(value, int | float):
                    assert value >= 0 or math.isnan(value) and field.name in ledger.UNMEASURED, (field.name, value)
                    assert value != math.inf, field.name
            json.loads(row.provenance)

    pieces = [b",", b'"', b"\n", b"-1", b"inf", b"1e400", b'"{""commit"":1}"']
    return Target(st.one_of(changed(), damaged(seeds, pieces)), seeds, read, tuple(kinds))


def _with_another_cell(draw: Draw, table: bytes) -> bytes:
    """A table of CSV of which one to three cells are others."""
    rows = list(csv.reader(io.StringIO(table.decode())))
    cells = ["", "-1", "nan", "NaN", "inf", "-inf", "1e400", "9" * 400, "x", "0", "true", "[1]", "{}", "1,2", '"', "\n"]
    for _ in range(draw(st.integers(1, 3))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(cells))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
