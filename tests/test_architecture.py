"""The papers' notation, in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aero.architecture import Architecture, parse

NOTATIONS = [
    "SM+LN+G",
    "SM+LN+R",
    "SM+LN",
    "SM+G",
    "SM+R",
    "SM",
    "SM+ScFFN",
    "SM+ScFuFFN",
    "SM+ScFuFFNi_1",
    "SM+ScFuFFNi_6",
    "SM(t)+ScFuFFN",
    "EReg(SM(t)+ScFuFFN)",
    "EReg(SM(t)+ScFuFFNi_6)",
    "EReg(SM(t)+R)",
    "EReg(SM+LN+G)",
    "SOTA(SM+ScFFN)",
    "SOTA(SM+ScFuFFN)",
    "SOTA(SM+ScFuFFNi_1)",
]


@pytest.mark.parametrize("text", NOTATIONS)
def test_notation_round_trips(text):
    assert str(parse(text)) == text


def test_fields_of_the_most_complex_row():
    assert parse(" EReg( SM(t) + ScFuFFNi_6 ) ") == Architecture(
        ffn="fused", scaled=True, pruned=6, temperature=True, entropy_regularized=True
    )
    assert parse("SOTA(SM+ScFFN)") == Architecture(ffn="linear", scaled=True, block="he_hofmann")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SM+LN+Q", "'Q'"),
        ("LN+SM", "'LN'"),
        ("SM+G+R", "R sets"),
        ("SM+LN+ScFFN", "LN"),
        ("", "''"),
        ("SM+ScFuFFNi_0", "ScFuFFNi_0"),
        ("EReg(EReg(SM))", "EReg"),
        ("SM+SM", "SM"),
        ("SOTA(SM+G)", "SOTA"),
        ("SM+LN+LN", "LN"),
        ("SM+ScFuFFNi_", "ScFuFFNi_"),
        ("EReg(SM", "EReg(SM"),
    ],
)
def test_bad_notation_is_refused_with_the_bad_part(text, named):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_text_is_required():
    with pytest.raises(ValueError, match="text"):
        parse(None)


def test_more_pruned_ffns_than_layers():
    with pytest.raises(ValueError, match="cannot prune 6 FFNs of a model with 5 layers"):
        parse("SM+ScFuFFNi_6").ffn_layers(5)


@given(st.text(alphabet="SMLNGRcFuEegOTA()+it_0123 ", max_size=30))
def test_any_text_parses_or_is_refused(text):
    try:
        architecture = parse(text)
    except ValueError:
        return
    assert parse(str(architecture)) == architecture
