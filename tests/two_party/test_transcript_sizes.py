"""How the figures of `benchmarks.transcript_sizes` are judged: prompts whose sessions differ are told apart."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.transcript_sizes import LEVEL, PROMPTS, judged, made, probability, session


def failed(samples):
    return [case["name"] for case in judged(samples) if case["passed"] != case["count"]]


def samples(shift=0, extra_messages=0):
    """20 sessions of each prompt, with bytes that vary by 2 kB; the second prompt's are `shift` more to the client."""
    generator, rows = np.random.default_rng(3), []
    for second, prompt in enumerate(PROMPTS):
        for _ in range(20):
            up, down = generator.normal([2e7, 3e7], 2e3)
            rows.append(["tuned", prompt, 5000 + second * extra_messages, round(up), round(down + second * shift)])
    return rows


def test_the_test_of_permutations_by_hand():
    """Of the 20 ways to choose 3 of 1..6, two give means as far apart as {1, 2, 3} and {4, 5, 6}."""
    assert probability([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1, abs=0.005)
    assert probability([1, 5, 3], [1, 5, 3]) == 1


def test_prompts_that_differ_are_told_apart():
    assert failed(samples()) == []
    assert failed(samples(shift=3e3)) == ["tuned: the prompts are not told apart by the bytes to the client"]
    assert failed(samples(extra_messages=1)) == ["tuned: one number of messages"]


def test_alike_ones_are_seldom_told_apart():
    """About as often as the level says: of 200 pairs of alike samples at most 8, which is exceeded once in 4,000."""
    generator = np.random.default_rng(5)
    found = [probability(*generator.normal(size=(2, 10)), permutations=2000) for _ in range(200)]
    assert sum(value < LEVEL for value in found) <= 8


def test_a_session_is_counted(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    model = made("SM+ScFuFFN", path)
    messages, up, down = session(model, path, "tuned", next(iter(PROMPTS.values())))
    assert messages > 1000 and up > 1e6 and down > 1e6
