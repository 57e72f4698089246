"""YAML that would end the process, take all time, or lose what it says."""

import time

import pytest
from test_bad_input import paper, refused

from aero.config import load
from aero.errors import yaml_of
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


def each_line(first, line, lines):
    """`first`, then `line` for i = 1, 2, ... with I for i and J for the line before it."""
    return "\n".join([first, *(line.replace("I", str(i)).replace("J", str(i - 1)) for i in range(1, lines))])


A0 = "a0: &a0 {x: 1}"
KEY = "z: {&k <<: {y: 1}}\n" + A0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (each_line(A0, "aI: &aI {!!merge z: [*aJ, *aJ]}", 40), "line 2 merges a list of mappings"),
        (each_line(A0, "aI: &aI {? !!merge [z] : [*aJ, *aJ]}", 40), "line 2 merges a list of mappings"),
        (each_line(A0, "aI: &aI {! <<: [*aJ, *aJ]}", 40), "line 2 merges a list of mappings"),
        (each_line(A0, "aI: &aI !!pairs [x: *aJ, y: *aJ]", 40), "parts"),
        (each_line(A0, "lI: &lI [*aJ, *aJ]\naI: &aI {<<: *lI}", 40), "line 3 merges a list of mappings"),
        (each_line(KEY, "aI: &aI {*k : [*aJ, *aJ]}", 40), "line 3 merges a list of mappings"),
        (each_line(KEY, "aI: &aI {*k : *aJ, <<: *aJ}", 40), "line 3 has the key '<<' a second time"),
        (each_line(A0, "aI: &aI {!!merge y: *aJ, !!merge z: *aJ}", 40), "merges more keys than there is room for"),
        (each_line(A0, "aI: &aI {<<: *aJ, kI: 1}", 10_000), "line 100 is nested more than 100 deep"),
        (
            "a: &a {"
            + ", ".join(f"k{i}: {i}" for i in range(3000))
            + "}\n"
            + "b: [{<<: *a}]\n".replace("[{<<: *a}]", "[" + ", ".join(["{<<: *a}"] * 3000) + "]"),
            "merges more keys than there is room for",
        ),
        (each_line(A0, "aI: &aI [*aJ]", 10_000), "line 100 is nested more than 100 deep"),
        ("a: &a {<<: *a}", "line 1: a part of it contains itself"),
        ("a: &a [*a]", "line 1: a part of it contains itself"),
        ("a: 1" + ":1" * 300_000, "line 1 has a number of 600001 characters"),
        ("a: !!int '1" + ":1" * 300_000 + "'", "line 1 has a number of 600001 characters"),
    ],
    ids=lambda text: repr(text[-30:]),
)
def test_what_aliases_and_tags_hide_is_seen(text, said, tmp_path, monkeypatch):
    """A merge is also one by its tag, by an alias of another's key, and of a list that is an alias: forty lines took
    all time. A chain of merges takes time and memory as its square, and so does a number to the base 60."""
    path = tmp_path / "params.yaml"
    read = paper(tmp_path, monkeypatch, lambda v: None)
    for file in path, tmp_path / "paper.yaml":
        file.write_text(text, encoding="utf-8")
    began = time.process_time()
    refused(lambda: load(path), path, said)
    refused(read, "paper.yaml", said)
    assert time.process_time() - began < 2


def test_what_merges_and_aliases_mean_is_read():
    assert yaml_of("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}") == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}
    assert yaml_of("a: {<<: {x: 1, y: 2}, x: 3}") == {"a": {"x": 3, "y": 2}}
    assert yaml_of("{'<<': [{x: 1}, {y: 1}], b: &c [1], d: *c}") == {"<<": [{"x": 1}, {"y": 1}], "b": [1], "d": [1]}
    # `b` is built before `a`, which stands deeper, and has merged it by then.
    deep = "z: &z {x: 1}\np: {q: {a: &a {<<: *z, x: 2}}}\nb: {<<: *a, x: 3}"
    assert yaml_of(deep) == {"z": {"x": 1}, "p": {"q": {"a": {"x": 2}}}, "b": {"x": 3}}
    assert yaml_of("a: 1:30:00\nb: 0x10") == {"a": 5400, "b": 16}


@pytest.mark.parametrize("text", ["{&k a: 1, *k : 2}", "{1: a, 0x1: b}", "{yes: 1, true: 2}", "{1: a, 1.0: b}"])
def test_a_key_in_other_words_is_the_same_key(text):
    with pytest.raises(ValueError, match=r"line 1 has the key '?(a|1|True)'?(\.0)? a second time"):
        yaml_of(text)


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
