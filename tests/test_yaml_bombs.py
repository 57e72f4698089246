"""YAML that would end the process, take all time, or lose what it says."""

import time

import pytest
from test_bad_input import paper, refused

from aero.parameters import load
from aero.pipeline import ROOT


@pytest.mark.parametrize(
    "text",
    [
        *(level * 200_000 for level in ("- ", "? ", "? - ", "[ #]\n ", "{a: #}\n ", "[ ']',\n ")),
        "a: " + "[ #]\n    " * 25_000,
        "a: " + "[" * 3000,
        "tables: " + "{a: " * 3000,
        "\n".join(" " * row + ("- " * 2000)[: 2000 - row] for row in range(0, 1999, 10)),
    ],
    ids=lambda text: repr(text[:8]),
)
def test_nesting_without_end_does_not_end_the_process(text, tmp_path, monkeypatch):
    """libyaml's stack ended at some 20,000 levels, by a signal, whatever brackets a comment or a quote closes. The time
    of PyYAML's own grows as the square of the depth: 3,000 brackets took 3 s."""
    path = tmp_path / "params.yaml"
    read = paper(tmp_path, monkeypatch, lambda v: None)
    for file in path, tmp_path / "paper.yaml":
        file.write_text(text, encoding="utf-8")
    began = time.process_time()
    refused(lambda: load(path), path, "nested more than 100 deep")
    refused(read, "paper.yaml", "nested more than 100 deep")
    assert time.process_time() - began < 1


def test_merged_lists_of_mappings_are_refused(tmp_path):
    """Forty lines that each merge the last one twice took all time: 2^40 keys."""
    path = tmp_path / "params.yaml"
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40)]
    path.write_text("\n".join(lines), encoding="utf-8")
    refused(lambda: load(path), path, "line 2 merges a list of mappings")
    path.write_text("a: &a {x: 1}\nb: {<<: *a, <<: *a}", encoding="utf-8")
    refused(lambda: load(path), path, "line 2 has the key '<<' a second time")


def test_a_key_is_given_once(tmp_path, monkeypatch):
    """The second would win without a word."""
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    path.write_text(text + "scale: smoke\n", encoding="utf-8")
    refused(lambda: load(path), path, f"line {len(text.splitlines()) + 1} has the key 'scale' a second time")
    path.write_text("a: {b: [{c: 1}, {c: 2}], c: 3}\nb: {c: 4}", encoding="utf-8")  # the same key, but in others
    refused(lambda: load(path), path, "Field required")
    read = paper(tmp_path, monkeypatch, lambda v: None)
    with (tmp_path / "paper.yaml").open("a", encoding="utf-8") as file:
        file.write("paper: {}\n")
    refused(read, "paper.yaml", "has the key 'paper' a second time")
