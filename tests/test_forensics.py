"""The search for the papers' configuration, on random costs; its model of matmuls against measurements."""

from __future__ import annotations

import dataclasses
import random
import sys

import pytest

from aero.errors import UserError
from benchmarks import forensics_ops
from benchmarks.forensics import (
    CHOICES,
    Configuration,
    PublishedRow,
    engines_of,
    fit_lines,
    product_bytes,
    published_rows,
    report,
    search,
)
from benchmarks.forensics_ops import LARGE, SMALL, Measured, read

FEW = CHOICES | {"counted": ("GB", "GB one way"), "final_norm": ("none",), "gains": ("public", "secret")}


def made(version: str, seed: int, without: tuple[str, ...] = ()) -> list[Measured]:
    """Operations with random costs an entry, within a factor of two of real ones."""
    real = {"relu": 100, "multiply": 282, "gelu_tanh": 3400, "gelu_erf": 4300, "softmax_jax": 1560}
    real |= {"softmax_clip": 1660, "layer_norm_shared": 850, "layer_norm_owned": 710, "one_hot": 3e6}
    found = [Measured(version, "default", "setup", "1", 1.1e7, 1.1e7, 1, 0.0, "{}")]
    for kind, shapes, runs in (*SMALL, *LARGE):
        if kind in real and kind not in without:
            shape = ",".join("x".join(map(str, size)) for size in shapes)
            one = Measured(version, "default", kind, shape, 0.0, 0.0, runs, 1.0, "{}")
            factor = random.Random(f"{seed}{kind}").uniform(0.7, 1.4)
            one = dataclasses.replace(one, bytes_client=factor * real[kind] * one.entries)
            found.append(one)
    return found


def planted(configuration: Configuration, engines: dict, digits: int = 2) -> list[PublishedRow]:
    """The papers' rows with the bytes that `configuration` makes, rounded as printed."""
    engine = engines[configuration.engine]
    return [
        dataclasses.replace(row, gigabytes=round(engine.gigabytes(configuration, row), digits))
        for row in published_rows()
    ]


ENGINES = engines_of([*made("1", 1), *made("2", 2)])
PLANTS = [
    Configuration((version, "default"), *choices.split())
    for version, choices in (
        ("1", "shared gelu_tanh softmax_clip joint lookup all public none GB"),
        ("2", "owned gelu_erf softmax_jax separate one_hot last secret none GB"),
    )
]
PLANTS.append(dataclasses.replace(PLANTS[1], weights="shared", head="all", counted="GB one way"))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: "-".join(map(str, plant.engine)) + plant.weights)
def test_planted_configuration_is_found(plant):
    found = search(ENGINES, planted(plant, ENGINES), FEW)
    assert found[0].configuration == plant
    assert found[0].largest < 0.2  # what rounding to two decimals allows for the smallest row
    assert found[1].largest > 2 * found[0].largest
    assert len(found) == 2 * 2**8


def test_bytes_that_no_configuration_makes_are_not_fitted():
    """Each row 20 % off in its own direction: the best fit says so."""
    rows = [
        dataclasses.replace(row, gigabytes=row.gigabytes * (1.2 if index % 2 else 0.8))
        for index, row in enumerate(planted(PLANTS[0], ENGINES))
    ]
    assert search(ENGINES, rows, FEW)[0].largest > 10


def test_engine_with_an_operation_missing_is_left_out():
    assert set(engines_of([*made("1", 1), *made("2", 2, without=("gelu_erf",))])) == {("1", "default")}


def test_published_rows_are_those_of_the_four_tables():
    rows = published_rows()
    assert len(rows) == 35
    assert {(row.context, row.layers, row.vocabulary) for row in rows} == {
        (128, 12, 50257),
        (256, 12, 50257),
        (128, 18, 50257),
        (512, 12, 16384),
    }
    assert rows[0].gigabytes == 25.32


def test_model_of_products_agrees_with_the_kept_measurements():
    """Every product of results/two_party/forensics_ops.csv, with a matrix of both sides split as SPU does."""
    kept = [one for one in read() if one.settings != "fm128"]
    seen = 0
    equality = engines_of(kept)["0.9.2b0", "default"].equality()
    for one in kept:
        shapes = [tuple(map(int, shape.split("x"))) for shape in one.shape.split(",")]
        if one.op in ("product_shared", "product_owned"):
            predicted = product_bytes(*shapes[0], shapes[1][1], one.op == "product_shared")
        elif one.op == "scores":
            predicted = shapes[0][0] * product_bytes(shapes[0][1], shapes[0][2], shapes[1][1], True)
        elif one.op == "mix":
            predicted = shapes[0][0] * product_bytes(shapes[0][1], shapes[0][2], shapes[1][2], True)
        elif one.op == "lookup_shared":
            # Up to two new stocks of oblivious transfers, 0.27 MB each, in one run.
            (tokens,), (words, width) = shapes
            predicted = tokens * (words * equality + product_bytes(1, words, width, True))
            assert abs(one.bytes - predicted) < 0.6e6, one
            continue
        else:
            continue
        seen += 1
        assert one.bytes == pytest.approx(predicted, rel=0.002), one
    assert seen >= 4


def test_a_search_without_measurements_is_refused(tmp_path):
    with pytest.raises(UserError, match="measure"):
        report(tmp_path / "none.csv")


def test_each_row_of_each_fit_is_a_line():
    rows = planted(PLANTS[0], ENGINES)
    lines = fit_lines(list(enumerate(search(ENGINES, rows, FEW)[:2], 1)), rows)
    assert len(lines) == 70
    assert lines[0]["row"] == "SM+LN+G" and lines[0]["residual_percent"] == pytest.approx(0, abs=0.1)
    assert "SPU 1 default; weights shared; gelu gelu_tanh" in lines[0]["configuration"]


@pytest.mark.slow
def test_measuring_takes_two_processes_and_is_resumed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(forensics_ops, "OPS", tmp_path / "ops.csv")
    monkeypatch.setattr(forensics_ops, "LARGE", ())
    monkeypatch.setattr(forensics_ops, "WARM_UP", (("multiply", ((8, 8), (8, 8))),))
    monkeypatch.setattr(forensics_ops, "SMALL", (("multiply", ((64, 768), (64, 768)), 1),))
    done: list[Measured] = []
    forensics_ops.measure(sys.executable, "default", done)
    assert read(tmp_path / "ops.csv") == done and [one.op for one in done] == ["setup", "multiply"]
    assert 1e6 < done[0].bytes < 5e6  # keys and first oblivious transfers
    product = done[1]
    # 221 bytes an entry as results/two_party/ops.csv has it, and perhaps a stock or two of oblivious transfers.
    assert product.bytes == pytest.approx(64 * 768 * 221, rel=0.08)
    assert product.bytes_client == pytest.approx(product.bytes_server, rel=0.2)
    forensics_ops.measure(sys.executable, "default", done)
    assert len(done) == 2
    monkeypatch.setattr(forensics_ops, "SMALL", (("no_such_operation", ((8, 8),), 1),))
    with pytest.raises(UserError, match="ended at no_such_operation"):
        forensics_ops.measure(sys.executable, "default", done)
    assert "KeyError" in capfd.readouterr().err
