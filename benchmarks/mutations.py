"""Hypothesis strategies that damage valid input: files as bytes, messages and parameters as trees of JSON."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy], Any]

PIECES = [
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b" ",
    b"-",
    b"-1",
    b"0",
    b"1e400",
    b"NaN",
    b"nan",
    b"Infinity",
    b".inf",
    b"null",
    b"true",
    b'"',
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"../../../etc/passwd",
    b"$(touch owned)",
    b"!!python/object/apply:os.system [id]",
    b"!!timestamp x",
    b"&a [*a]",
    b"\x1b[2J",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"PK\x03\x04",
    b"\x80\x04\x95",
    "\u202e\u0664\u00e9\U0001f600\ufeff".encode(),
    b"9" * 30,
    b"9" * 5000,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"(" * 3000,
    b"A" * 20_000,
]
"""What upsets readers: ends, numbers beyond any range, deep nesting, another format's beginning, escapes, huge runs."""

LEAVES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    257,
    2**31,
    2**63,
    10**30,
    10**4000,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "1",
    "x",
    "NaN",
    "1e999",
    "\0",
    "\x1b[2J",
    "\u202e\u0664",
    "\ud800",
    "../../etc/passwd",
    "a; touch owned",
    "A" * 5000,
    [],
    {},
    [[]],
    [1, 2, 3],
    {"": 0},
    [[[[[[[[[[]]]]]]]]]],
]
YAML_PIECES = [
    *(level * 200 for level in (b"[ #]\n ", b"{a: #}\n ", b"[ ']',\n ", b"? ", b"? - ", b"- ", b"{a: ")),
    b"<<: [*a, *a]",
    b"<<: *a\n",
    b"!!merge x: *a\n",
    b"&a {x: 1}",
    b"&a ",
    b"*a",
    b"*a : ",
    b"# ",
    b"1" + b":1" * 20_000,
]
"""What PyYAML, or an earlier form of `aero.errors.yaml_of`, took all time or memory for, or lost a part of."""
_NUMBER = re.compile(rb"\d+")


def damaged(seeds: Sequence[bytes], pieces: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Up to four changes to one of `seeds`; pieces: of the format, put in beside `PIECES`."""
    known = [*PIECES, *pieces]

    @st.composite
    def case(draw: Draw) -> bytes:
        content = draw(st.sampled_from(list(seeds)))
        for _ in range(draw(st.integers(1, 4))):
            content = _changed(draw, content, known, seeds)
        return content

    return case()


def _changed(draw: Draw, content: bytes, pieces: Sequence[bytes], seeds: Sequence[bytes]) -> bytes:
    kind = draw(st.sampled_from(["bit", "piece", "bytes", "cut", "drop", "double", "number", "splice"]))
    at = draw(st.integers(0, len(content)))
    if kind == "bit" and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]
    if kind == "piece":
        return content[:at] + draw(st.sampled_from(pieces)) + content[at + draw(st.integers(0, 8)) :]
    if kind == "bytes":
        return content[:at] + draw(st.binary(max_size=16)) + content[at + draw(st.integers(0, 16)) :]
    if kind == "cut":
        return content[:at]
    end = min(len(content), at + draw(st.integers(0, 200)))
    if kind == "drop":
        return content[:at] + content[end:]
    if kind == "double":
        return content[:end] + content[at:end] * draw(st.integers(1, 3)) + content[end:]
    if kind == "number" and (numbers := [match.span() for match in _NUMBER.finditer(content)]):
        first, last = draw(st.sampled_from(numbers))
        return content[:first] + draw(st.sampled_from(pieces)) + content[last:]
    other = draw(st.sampled_from(list(seeds)))
    return content[:at] + other[draw(st.integers(0, len(other))) :]


def hostile_yaml(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of `seeds`, texts in YAML, with lines put in that nest, merge or name again what is there: up to 300 lines
    that each merge, or hold, the line before them once or twice, one way of those that YAML has; deep nesting whose
    brackets a comment or quote seems to close; a number to the base 60; one of its own lines again."""
    first = st.sampled_from([b"a0: &a0 {x: 1}", b"a0: &a0 [1]", b"a0: &a0 1", b"a0: &a0 {&k <<: {x: 1}}"])
    part = st.sampled_from(
        [
            *(b"*a%d", b"[*a%d, *a%d]", b"{<<: *a%d}", b"[{<<: *a%d}, {<<: *a%d}]", b"{x: *a%d, y: *a%d}"),
            *(b"!!pairs [x: *a%d, y: *a%d]", b"!!omap [x: *a%d]"),
        ]
    )
    key = st.sampled_from(
        [b"<<", b"! <<", b"!!merge x", b"!!merge y", b"? !!merge [x] ", b"'<<'", b"? <<\n ", b"*k ", b"x", b"y"]
    )
    level = st.sampled_from(
        [b"[ #]\n ", b"{a: #}\n ", b"[ ']',\n ", b"? ", b"? - ", b"- ", b"{a: ", b"&b [", b"!!set {? "]
    )

    @st.composite
    def case(draw: Draw) -> bytes:
        content = draw(st.sampled_from(list(seeds)))
        lines = content.splitlines(keepends=True)
        # A line of the text's own depth may stand there, as most of what is put elsewhere may not.
        whole = [place for place, line in enumerate(lines) if not line.startswith((b" ", b"-"))] + [len(lines)]
        at = draw(st.one_of(st.sampled_from(whole), st.integers(0, len(lines))))
        kind = draw(st.sampled_from(["chain", "chain", "chain", "nest", "again", "number"]))
        if kind == "chain":
            keys, parts = draw(st.lists(key, max_size=2)), draw(st.lists(part, min_size=2, max_size=2))
            pairs = [b"%s: %s" % pair for pair in zip(keys, parts[: len(keys)], strict=True)]
            put = [draw(first)]
            for number in range(1, draw(st.sampled_from([2, 3, 25, 99, 101, 300]))):
                line = b", ".join(pairs) if pairs else parts[0][1:-1] if parts[0][:1] == b"[" else parts[0]
                brackets = b"{%s}" if pairs else b"[%s]"
                before = (number - 1,) * line.count(b"%d")
                put.append(b"a%d: &a%d %s" % (number, number, brackets % (line % before)))
        elif kind == "nest":
            put = [b"n: " + draw(level) * draw(st.sampled_from([1, 50, 99, 100, 101, 3000]))]
        elif kind == "number":
            tag, parts = draw(st.sampled_from([b"", b"!!int ", b"!!float "])), draw(st.sampled_from([2, 4000, 20_000]))
            put = [b"n: " + tag + b"1" + b":1" * parts]
        else:
            put = [draw(st.sampled_from(lines)).rstrip(b"\n")] if lines else [b""]
        follows = lines[at] if at < len(lines) else b""
        indent = follows[: len(follows) - len(follows.lstrip(b" "))]
        return b"".join([*lines[:at], *(indent + line + b"\n" for line in put), *lines[at:]])

    return case()


def damaged_tree(draw: Draw, tree: Any, leaves: Sequence[Any] = ()) -> Any:
    """A copy of `tree` with one to three of its parts replaced, removed, renamed or nested; draw: of a strategy."""
    tree = {"": copy.deepcopy(tree)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "nest", "move"]))
        if kind == "remove" and holder is not tree:
            del holder[key]
        elif kind == "rename" and isinstance(holder, dict) and holder is not tree:
            holder[draw(st.sampled_from(["", "x", "\u202e", "__class__", "a; touch owned", str(key) + "s"]))] = (
                holder.pop(key)
            )
        elif kind == "nest":
            part, kinds = holder[key], ("list", "name", "three")
            nested = {"list": [part], "name": {"x": part}, "three": [part, copy.deepcopy(part), 0]}
            holder[key] = nested[draw(st.sampled_from(kinds))]
        elif kind == "move":
            other, name = draw(st.sampled_from(places))
            holder[key] = copy.deepcopy(other[name])
        else:
            # A copy, because the next change may be to a part of it.
            holder[key] = copy.deepcopy(draw(st.sampled_from([*LEAVES, *leaves])))
    return tree[""]


def as_json(tree: Any) -> bytes:
    """JSON, with NaN and Infinity written out as Python does."""
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _places(tree: Any) -> Any:
    """(holder, key) of every part of the tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)
