"""The papers' notation, in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aero.architecture import Architecture, parse

NOTATIONS = [
    "SM",
    "SM(t)+ScFuFFN",
    "EReg(SM(t)+ScFuFFNi_6)",
    "EReg(SM+LN+G)",
    "SM+LeakyR",
    "SM+LN+LeakyR(global)",
    "SM+WNorm(FFN)",
    "SM+SNorm(QKV+FFN)",
    "SM+WNorm(QKVO+FFN)",
    "EReg(SM(t)+ScFuFFNi_2+SNorm(QKVO+FFN))",
    "SOTA(SM+ScFFN+WNorm(FFN))",
    "SOTA(SM+ScFuFFNi_1)",
    "SM+RMS+SwiGLU",
]


@pytest.mark.parametrize("text", NOTATIONS)
def test_notation_round_trips(text):
    assert str(parse(text)) == text


def test_fields_of_the_most_complex_row():
    assert parse(" EReg( SM(t) + ScFuFFNi_6 ) ") == Architecture(
        ffn="fused", scaled=True, pruned=6, temperature=True, entropy_regularized=True
    )
    assert parse("SOTA(SM+ScFFN)") == Architecture(ffn="linear", scaled=True, block="he_hofmann")
    assert parse("SM+LeakyR") == Architecture(ffn="leaky_relu", slope="layer")
    assert parse("SM + LeakyR( global )") == Architecture(ffn="leaky_relu", slope="global")
    assert parse("SM+WNorm(QK + FFN)") == Architecture(weight_norm="weight", normed=("Q", "K", "FFN"))
    assert parse("SM+SNorm(QKV+FFN)+R") == Architecture(
        ffn="relu", weight_norm="spectral", normed=("Q", "K", "V", "FFN")
    )


def test_regulariser_and_norms_disappear_at_inference():
    assert parse("EReg(SM(t)+ScFuFFN+WNorm(QK+FFN))").at_inference() == parse("SM(t)+ScFuFFN")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SM+LN+Q", "'Q'"),
        ("LN+SM", "'LN'"),
        ("SM+G+R", "R sets"),
        ("SM+LN+ScFFN", "LN"),
        ("SM+ScFuFFNi_0", "ScFuFFNi_0"),
        ("EReg(EReg(SM))", "EReg"),
        ("SOTA(SM+G)", "SOTA"),
        ("EReg(SM", "EReg(SM"),
        ("SM+WNorm(V)", "WNorm(V) must name one of FFN, QK, QK+FFN, QKV+FFN, QKVO+FFN"),
        ("SM+WNorm(FFN)+SNorm(QK)", "SNorm(QK) sets normed, weight_norm a second time"),
        ("SM+LeakyR(x)", "'LeakyR(x)'"),
        ("SM+G+ScFuFFN", "an FFN with an activation can be neither scaled nor fused"),
        ("SM+ScFFN+ScFuFFN", "ScFuFFN sets ffn, scaled a second time"),
        ("SOTA(SM+ScFFN+WNorm(QKV+FFN))", "has no W_O and, but for its first layer, no W_V"),
        ("SOTA(SM+ScFFN+SNorm(QK))", "starts with W_Q = 0"),
    ],
)
def test_bad_notation_is_refused_naming_the_part(text, named):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert named in str(caught.value) and "\n" not in str(caught.value)


@given(
    st.text(alphabet="SMLNGRcFuEegOTA()+it_0123 ", max_size=30)
    | st.lists(
        st.sampled_from(
            "SM SM(t) LN G R LeakyR LeakyR(global) ScFFN ScFuFFNi_2 WNorm(QK+FFN) SNorm(FFN) SNorm( )".split()
        ),
        max_size=5,
    ).map("+".join)
)
def test_any_text_parses_or_is_refused(text):
    try:
        architecture = parse(text)
    except ValueError:
        return
    assert parse(str(architecture)) == architecture
