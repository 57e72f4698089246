"""Guards of the published numbers: a mistyped one breaks a relation, and in any case its row's checksum.

`published_checksums.csv` was written when every cell had been compared with the papers' text. Whoever mends a number
renews it, `python tests/test_published_numbers.py`, and the difference says what was changed.
"""

from __future__ import annotations

import csv
import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_relations import violations, with_cell

from aero.published import Paper, known_papers, load

CHECKSUMS = Path(__file__).with_name("published_checksums.csv")


def checksums(paper: Paper) -> dict[str, str]:
    """CRC-32 of everything printed: by row, by fact, by claim."""
    found = {}
    for table in paper.tables.values():
        for row in table.rows:
            cells = "|".join(f"{key}={cell.text} {cell.column.unit}" for key, cell in row.cells.items())
            found[f"{paper.short}/table{table.number}/{row.name}"] = cells
        found[f"{paper.short}/table{table.number}"] = str(sorted(_leaves(table.dimensions | table.trainings)))
    for name, fact in paper.facts.items():
        found[f"{paper.short}/{name}"] = str(sorted(_leaves(fact)))
    for claim in paper.claims:
        found[f"{paper.short}/claim/{claim.id}"] = f"{claim.published}|{sorted(_leaves(claim.parameters))}"
    return {place: f"{zlib.crc32(text.encode()):08x}" for place, text in found.items()}


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield place, repr(value)
        return
    for key, part in items:
        yield from _leaves(part, f"{place}/{key}")


def kept() -> dict[str, str]:
    with open(CHECKSUMS, encoding="utf-8", newline="") as file:
        return {line["place"]: line["crc32"] for line in csv.DictReader(file)}


def numbers(paper: Paper) -> list[tuple[str, str, str, float]]:
    """(table, row, column, value) of every printed number."""
    return [
        (table.number, row.name, key, cell.value)
        for table in paper.tables.values()
        for row in table.rows
        for key, cell in row.cells.items()
        if cell.value is not None and not cell.diverged
    ]


def typos(paper: Paper, number: str, name: str, key: str) -> Iterator[tuple[str, float]]:
    """What a hand does to a number: neighbouring digits swapped, one digit wrong or doubled, the point slipped."""
    cell = paper.tables[number].row(name).cells[key]
    text, draw = cell.text, random.Random(f"{number}{name}{key}")
    digits = [place for place, character in enumerate(text) if character.isdigit()]
    place = draw.choice(digits)
    other = draw.choice([digit for digit in "0123456789" if digit != text[place]])
    made = {"digit": text[:place] + other + text[place + 1 :], "doubled": text[:place] + text[place] + text[place:]}
    made |= {"point": f"{cell.value * 10:.{cell.column.digits}f}", "next": f"{cell.value + 2 * cell.half_unit}"}
    for one, two in zip(digits, digits[1:], strict=False):
        swapped = list(text)
        swapped[one], swapped[two] = swapped[two], swapped[one]
        made[f"swapped {one}"] = "".join(swapped)
    for kind, changed in made.items():
        if not math.isclose(float(changed), cell.value):
            yield kind, float(changed)


@pytest.mark.parametrize("short", known_papers())
def test_the_printed_numbers_fit_each_other(short: str) -> None:
    assert violations(load(short)) == []


def test_the_printed_numbers_are_those_that_were_compared_with_the_papers() -> None:
    found = {place: crc for short in known_papers() for place, crc in checksums(load(short)).items()}
    changed = sorted(place for place in found.keys() | kept().keys() if found.get(place) != kept().get(place))
    assert not changed, f"changed, new or gone: {', '.join(changed)}; see this file's first lines"


@pytest.mark.parametrize("short", known_papers())
def test_every_typo_in_every_number_changes_its_rows_checksum(short: str) -> None:
    paper, before = load(short), checksums(load(short))
    tried = 0
    for number, name, key, _ in numbers(paper):
        place = f"{short}/table{number}/{name}"
        for kind, value in typos(paper, number, name, key):
            if float(f"{value:.{paper.tables[number].columns[key].digits}f}") != value:
                continue  # more decimals than are printed: refused on loading
            after = checksums(replace(with_cell(paper, number, name, key, value), facts={}, claims=()))
            assert after[place] != before[place], f"{place}: {key} as {value} ({kind})"
            assert {p for p, crc in after.items() if before[p] != crc} == {place}
            tried += 1
    assert tried > (100 if short == "aero" else 10)


COSTS = ("communication", "latency", "flops_ffn", "flops_attention", "delta", "savings_communication")


def test_relations_alone_see_a_slipped_point_and_most_typos_in_costs() -> None:
    """Without any checksum, so also when a number and its checksum are changed together."""
    paper = load("aero")
    seen: dict[str, list[bool]] = {}
    for number, name, key, value in numbers(paper):
        if key not in COSTS or value == 0:
            continue
        for kind, changed in typos(paper, number, name, key):
            found = bool(violations(with_cell(paper, number, name, key, changed)))
            seen.setdefault(kind.split()[0], []).append(found)
            assert found or kind != "point", f"Table {number}, {name}: {key} {value} as {changed} breaks no relation"
    rate = {kind: sum(found) / len(found) for kind, found in seen.items()}
    assert min(rate[kind] for kind in ("digit", "doubled", "swapped")) > 0.6, rate


@pytest.mark.parametrize(
    ("short", "number", "key", "unit"),
    [
        ("aero", "4", "communication", "GiB"),
        ("aero", "4", "latency", "s"),
        ("aero", "2", "delta", "fraction"),
        ("entropy_landscape", "1", "high", "bits"),
    ],
)
def test_a_column_in_another_unit_is_seen(short: str, number: str, key: str, unit: str) -> None:
    paper, table = load(short), load(short).tables[number]
    columns = table.columns | {key: replace(table.columns[key], unit=unit)}
    changed = replace(paper, tables=paper.tables | {number: replace(table, columns=columns)})
    assert violations(changed) == [f"{short} Table {number}, {key}: unit {unit!r}"]


@pytest.mark.parametrize(
    ("short", "number", "key", "factor"),
    [
        ("entropy_landscape", "1", "high", 1 / math.log(2)),  # nats told as bits
        ("aero", "4", "flops_ffn", 0.5),  # multiply-adds told as FLOPs
        ("aero", "4", "communication", 0.5),  # one way told as both
        ("aero", "4", "communication", 1e9 / 2**30),  # GiB told as GB
        ("aero", "4", "latency", 60),  # seconds told as minutes
        ("aero", "2", "delta", 0.01),  # a fraction told as per cent
    ],
)
def test_one_cell_in_another_unit_breaks_a_relation(short: str, number: str, key: str, factor: float) -> None:
    """In any row that has the cell."""
    paper = load(short)
    for row in paper.tables[number].rows:
        value = row.cells[key].value
        if value:
            assert violations(with_cell(paper, number, row.name, key, value * factor)), (row.name, key)


def renew() -> None:
    found = {place: crc for short in known_papers() for place, crc in checksums(load(short)).items()}
    lines = [f"{place},{crc}" if "," not in place else f'"{place}",{crc}' for place, crc in sorted(found.items())]
    CHECKSUMS.write_text("\n".join(["place,crc32", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
