"""How the figures of `benchmarks.transcript_sizes` are judged: prompts whose sessions differ are told apart."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from benchmarks.long_server import made
from benchmarks.transcript_sizes import (
    LEVEL,
    MODEL,
    POWER,
    PROMPTS,
    Session,
    judged,
    least,
    message_sizes,
    permuted,
    probability,
    session,
    varying,
)

BYTES_DOWN = "tuned: the prompts are not told apart by the bytes to the client"
MESSAGE_UP = "tuned: the prompts are not told apart by the bytes of any message to the server"
DEVIATION = 2e3


def failed(sessions):
    return [case["name"] for case in judged(sessions) if case["passed"] != case["count"]]


def seen(sessions, name):
    (case,) = [case for case in judged(sessions) if case["name"] == name]
    return case["seen"]


def sessions(shift=0, extra_messages=0, message=0, other_name="a", seed=3):
    """20 of each prompt, with bytes that vary; the second prompt's are `shift` more to the client, `message` more in
    one of 50 messages to the server, whose others make up for it."""
    generator, made_up = np.random.default_rng(seed), []
    for second, prompt in enumerate(PROMPTS):
        for _ in range(20):
            up, down = generator.normal([2e7, 3e7], DEVIATION)
            sizes = {f"root:{index}": round(size) for index, size in enumerate(generator.normal(1e5, 100, 50))}
            sizes |= {"root:7": sizes["root:7"] + second * message, "always alike": 4096}
            sizes |= {other_name: 1} if second else {"a": 1}
            row = ["tuned", prompt, 5000 + second * extra_messages, round(up), round(down + second * shift)]
            made_up.append(Session(row, (sizes, {"root:1": 5})))
    return made_up


def test_the_test_of_permutations_by_hand():
    """Of the 20 ways to choose 3 of 1..6, two give means as far apart as {1, 2, 3} and {4, 5, 6}."""
    assert probability([1, 2, 3], [4, 5, 6])[0] == pytest.approx(0.1, abs=0.005)
    assert probability([1, 5, 3], [1, 5, 3])[0] == 1
    # Two columns that say the same are no more than one; one that is constant is none.
    groups = [[[index, index, 9] for index in group] for group in ([1, 2, 3], [4, 5, 6])]
    assert probability(*groups)[0] == pytest.approx(0.1, abs=0.005)
    # Deviations of 1..6: 1.87; the means differ by 3.
    assert permuted([1, 2, 3], [4, 5, 6], 10)[0] == pytest.approx(3 / 1.8708, abs=1e-3)


def test_prompts_that_differ_are_told_apart():
    assert failed(sessions()) == []
    assert failed(sessions(shift=3e3)) == [BYTES_DOWN]
    assert failed(sessions(extra_messages=1)) == ["tuned: one number of messages"]
    assert failed(sessions(message=200)) == [MESSAGE_UP]
    assert failed(sessions(other_name="b")) == ["tuned: the same messages to the server"]


def test_alike_ones_are_seldom_told_apart():
    """About as often as the level says: of 200 pairs of alike samples at most 8, which is exceeded once in 4,000."""
    generator = np.random.default_rng(5)
    for shape in ((10,), (10, 30)):
        found = [probability(*generator.normal(size=(2, *shape)), permutations=2000)[0] for _ in range(200)]
        assert sum(value < LEVEL for value in found) <= 8


def found_among(differences, number):
    """In how many of `number` made-up runs a difference is told apart."""
    generator = np.random.default_rng(8)
    groups = [generator.normal(size=(2, 20, len(differences))) + [[[0]], [[1]]] * differences for _ in range(number)]
    return sum(probability(*pair, permutations=2000)[0] < LEVEL for pair in groups) / number


def test_what_is_said_that_would_have_shown_shows_with_that_probability():
    bytes_ = float(re.search(r"([\d,]+) bytes would have shown", seen(sessions(), BYTES_DOWN))[1].replace(",", ""))
    # Student's t for 38 degrees of freedom, 2.712, and 0.842 standard errors of the difference of two means of 20.
    known = (2.712 + 0.842) * np.sqrt(2 / 20)
    assert least(probability(*np.random.default_rng(2).normal(size=(2, 20)))[1], 20, 20) == pytest.approx(
        known, rel=0.02
    )
    # What is printed has the deviation of these 40 sessions.
    assert bytes_ == pytest.approx(known * DEVIATION, rel=0.25)
    assert found_among(np.array([known]), 300) == pytest.approx(POWER, abs=0.07)
    deviations = float(re.search(r"([\d.]+) deviations of one message would", seen(sessions(), MESSAGE_UP))[1])
    assert found_among(np.eye(50)[7] * deviations, 300) == pytest.approx(POWER, abs=0.07)
    # Of two sessions each, no order is rare enough.
    assert least(probability([1, 2], [3, 4])[1], 2, 2) == np.inf
    assert "; others in 8% of one prompt's would have shown" in seen(sessions(), "tuned: one number of messages")
    assert 1 - (1 - 0.0773) ** 20 == pytest.approx(POWER, abs=0.01)


def test_messages_of_one_size_are_counted_and_not_kept():
    assert seen(sessions(), MESSAGE_UP).startswith("52 messages, 50 not of one size in all sessions; a diff")
    assert seen(sessions(), MESSAGE_UP.replace("server", "client")).startswith("1 messages, 0 not of one size")
    kept = varying(sessions(other_name="b"))["tuned"]
    assert set(kept["to the server"]) == {f"root:{index}" for index in range(50)} | {"a", "b"}
    assert kept["to the server"]["b"] == [None] * 20 + [1] * 20 and kept["to the client"] == {}


def field(number, content):
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def frame(payload, description=b"\x0a\x00"):
    return struct.pack(">4sII", b"PRPC", len(description) + len(payload), len(description)) + description + payload


def test_messages_are_read_out_of_a_stream():
    """In pieces, numbered otherwise, among answers; names and sizes by hand."""
    stream = frame(b"\x08\x01" + field(2, b"root:P2P-1:0->1\x01\x027") + field(3, b"x" * 100))
    stream += frame(b"\x0a\x00") + frame(field(2, b"root:P2P-1:0->1\x01\x027") + field(3, b"x" * 20) + b"\x20\xac\x02")
    stream += frame(field(2, b"FIN\x01\x02"))
    assert message_sizes(stream) == {"root:P2P-1:0->1": 120, "FIN": 0}
    for wrong in (stream[:-1], stream + b"P", stream + b"HTTP/1.1 200 OK"):
        with pytest.raises(ValueError, match="begins no whole message of brpc's"):
            message_sizes(wrong)


def test_a_session_is_counted(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    model = made("SM+ScFuFFN", MODEL, path)
    found = session("SM+ScFuFFN", "tuned", next(iter(PROMPTS)), model, path)
    program, prompt, messages, up, down = found.row
    assert (program, prompt) == ("SM+ScFuFFN, tuned", "random tokens") and messages > 1000
    for carried, sizes in zip((up, down), found.sizes, strict=True):
        # The rest: headers and answers, a hundred bytes a message.
        assert len(sizes) > 1000 and 1e6 < sum(sizes.values()) < carried < sum(sizes.values()) + 1e6
