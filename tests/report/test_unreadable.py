"""Damaged files of measurements: the report says which file is no measurement and how to measure again."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aero.errors import UserError
from aero.report import bench, bench_page, bench_projected, entropy_memory, gpu_speed, robustness
from aero.report.results import Results
from aero.report.unreadable import entries, guarded

ROOT = Path(__file__).resolve().parents[2]
SAID = re.compile(r'<span class="missing">(\S+) is no measurement \((.+?)\); measure again \((.+?)\)</span>')
DEEP = "[" * 100_000
TEXTS = {"nothing": "", "half of it": '{"cases": [', "a list": "[]", "no key": "{}", "deep": DEEP, "no UTF-8": "\udcff"}
ROBUSTNESS = sorted(path.stem for path in (ROOT / robustness.FOLDER).glob("*.json"))
LISTS = {"fuzz": "targets", "determinism": "comparisons"}
BENCH = ("training_step", "regularized_step", "tokenizing", "two_party", "pipeline", "sensitivity")
PARTS: dict[str, Callable[[Results], Any]] = {
    robustness.FOLDER: robustness.section,
    bench.FOLDER: lambda results: bench_page.section(results).text + entropy_memory.entropy_memory(results).text,
}


@pytest.fixture
def kept(tmp_path: Path, empty: Results) -> Results:
    """A folder for real files, those of operations beside them."""
    shutil.copytree(ROOT / "results/two_party", tmp_path / "results/two_party")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for folder in (robustness.FOLDER, bench.FOLDER):
        (tmp_path / folder).mkdir(parents=True)
    return replace(empty, root=tmp_path)


def said(results: Results, file: str) -> list[tuple[str, ...]]:
    """What the section of the file says of damaged files: file, why, command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a figure whose numbers are none
        text = str(getattr(part := PARTS[str(Path(file).parent)](results), "text", part))
    return SAID.findall(text)


@pytest.mark.parametrize("folder", PARTS)
def test_the_kept_files_are_measurements(kept: Results, folder: str) -> None:
    shutil.copytree(ROOT / folder, kept.root / folder, dirs_exist_ok=True)
    assert not said(kept, f"{folder}/x")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("file", [f"{robustness.FOLDER}/{name}.json" for name in ROBUSTNESS])
def test_a_file_of_something_else_is_named_with_its_command(kept: Results, file: str, text: str) -> None:
    (kept.root / file).write_bytes(text.encode(errors="surrogateescape"))
    ((named, why, command),) = said(kept, file)
    assert (
        named == file and why and len(why) <= 200 and re.match("make faults|make fuzz|python -m |git checkout", command)
    )


def damages(name: str) -> Iterator[tuple[str, Any]]:
    """Real mutations of a kept file of robustness, each of which no table can be made of."""
    whole = json.loads((ROOT / robustness.FOLDER / f"{name}.json").read_text())
    listed = LISTS.get(name, "cases")
    for what, value in (("null", None), ("a list", []), ("a text", "x"), ("a mapping", {"a": 1}), ("a number", 3)):
        yield f"{listed} {what}", whole | {listed: value}
        yield f"a line of {listed} {what}", whole | {listed: [*whole[listed], value]}
        if what not in ("a mapping",):
            yield f"provenance {what}", whole | {"provenance": value}
    shown = ("count", "passed") if name == robustness.EARLIER else ("name", "count", "passed", "seen")
    for key in shown if listed == "cases" else ():
        lacking = copy.deepcopy(whole)
        del lacking[listed][-1][key]
        yield f"a case without {key}", lacking
    for line in {"fuzz": ("target", "failures"), "determinism": ("run", "loss")}.get(name, ()):
        wrong = copy.deepcopy(whole)
        wrong[listed][0][line] = {}
        yield f"{line} a mapping", wrong
    if name == "server":
        for what, row in (("short", [1]), ("empty", []), ("null", None), ("of texts", ["a"] * len(whole["columns"]))):
            yield f"a row of samples {what}", whole | {"samples": [*whole["samples"], row]}
        yield "columns null", whole | {"columns": None}
        yield "another column", whole | {"columns": ["x", *whole["columns"][1:]]}


DAMAGES = [(name, what) for name in ROBUSTNESS for what, _ in damages(name)]


@pytest.mark.parametrize(("name", "what"), DAMAGES)
def test_a_damaged_file_of_robustness_is_one_visible_line(kept: Results, name: str, what: str) -> None:
    file = f"{robustness.FOLDER}/{name}.json"
    (kept.root / file).write_text(json.dumps(dict(damages(name))[what]))
    assert [named for named, _, _ in said(kept, file)] == [file]


@pytest.mark.parametrize("name", [*BENCH, "entropy_memory"])
@pytest.mark.parametrize("damage", [*TEXTS, "no provenance", "provenance null", "provenance a list", "steps a number"])
def test_a_damaged_benchmark_is_said_wherever_it_is_shown(kept: Results, name: str, damage: str) -> None:
    path = kept.root / bench.file_of(name)
    values = json.loads((ROOT / bench.file_of(name)).read_text())
    if damage in TEXTS:
        path.write_bytes(TEXTS[damage].encode(errors="surrogateescape"))
    elif damage == "no provenance":
        path.write_text(json.dumps({key: value for key, value in values.items() if key != "provenance"}))
    elif damage.startswith("provenance"):
        path.write_text(json.dumps(values | {"provenance": None if damage.endswith("null") else ["commit"]}))
    else:  # whatever it measured
        path.write_text(json.dumps({key: 3 if isinstance(value, list) else value for key, value in values.items()}))
    told = said(kept, bench.file_of(name))
    if damage == "steps a number" and name == "pipeline":
        assert not told  # which has no list
    else:
        assert {(named, command) for named, _, command in told} == {
            (bench.file_of(name), f"python -m benchmarks.{name}")
        }


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_damaged_file_of_a_gpu_is_said_and_leaves_projections_as_assumed(kept: Results, text: str) -> None:
    (kept.root / gpu_speed.FILE).write_bytes(text.encode(errors="surrogateescape"))
    ((named, _, command),) = SAID.findall(gpu_speed.tables(kept).text)
    assert (named, command) == (gpu_speed.FILE, "python -m benchmarks.gpu")
    (kept.root / gpu_speed.FILE).write_text('{"tiny": false, "provenance": null}')
    assert "assumed: " in bench_projected.projected_training(kept).text


def test_an_error_that_names_its_own_file_is_not_put_on_another() -> None:
    def draw() -> None:
        raise UserError("results/two_party/ops.csv line 3 has no bytes; measure it again")

    with pytest.raises(UserError, match=r"ops\.csv line 3"):
        guarded("results/bench/two_party.json", "python -m benchmarks.two_party", draw)
    with pytest.raises(TypeError, match="cases is no list"):
        entries({"cases": []}, "cases")
    assert entries({"failures": []}, "failures", 0) == []
