"""Positions and masks against a definition in plain loops, position by position."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.parallel_context.layout import PREFIX, Layout, split


def described(prefix, segments, query):
    """Every token as (kind, segment, index within its part), in order."""
    tokens = [("prefix", None, i) for i in range(prefix)]
    for number, length in enumerate(segments):
        tokens += [("segment", number, i) for i in range(length)]
    return tokens + [("query", None, i) for i in range(query)]


def may_attend(reader, read):
    kind, segment, index = reader
    other_kind, other_segment, other_index = read
    if kind == "prefix":
        return other_kind == "prefix" and other_index <= index
    if kind == "segment":
        if other_kind == "prefix":
            return True
        return other_kind == "segment" and other_segment == segment and other_index <= index
    return other_kind != "query" or other_index <= index


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3))
def test_mask_positions_and_groups_by_plain_loops(prefix, segments, query):
    layout = Layout(prefix, tuple(segments), query)
    tokens = described(prefix, segments, query)
    mask, positions, groups = layout.mask(), layout.positions(), layout.groups()
    assert layout.length == len(tokens) and mask.shape == (len(tokens), len(tokens))
    for row, reader in enumerate(tokens):
        for column, read in enumerate(tokens):
            assert bool(mask[row, column]) == may_attend(reader, read), (reader, read)
        kind, segment, index = reader
        behind = {"prefix": 0, "segment": prefix, "query": prefix + max(segments)}[kind]
        assert positions[row] == behind + index
        assert groups[row] == (segment if kind == "segment" else PREFIX)


def test_units_are_divided_evenly():
    assert split(10, 4) == (3, 3, 2, 2) and split(8, 4) == (2, 2, 2, 2) and split(3, 1) == (3,)


def test_impossible_layouts():
    for segments in (5, 0):
        with pytest.raises(ValueError, match=f"P={segments} .* 1 to 4"):
            split(4, segments)
    for layout in (Layout(1, (3, 9), 0), Layout(0, (3, 6), 4)):
        with pytest.raises(ValueError, match="10 positions, the model has 9"):
            layout.check(9)
    Layout(0, (3, 5), 4).check(9)
