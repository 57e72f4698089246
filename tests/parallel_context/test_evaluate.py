"""Scores, entropies, norms and intervals of one measurement, against the model asked directly."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_models import VOCABULARY, ids, own

from aero.config import load
from aero.errors import UserError
from aero.parallel_context.encoding import encode
from aero.parallel_context.evaluate import interval, measure
from aero.parallel_context.experiment import Task, possible, row, rows_of
from aero.parallel_context.own_model import OwnModel
from aero.parallel_context.selection import Selection
from aero.parallel_context.settings import settings
from aero.parallel_context.tasks import Batch


def test_language_modelling_loss_and_entropy_equal_those_of_the_model():
    tokens = ids(3, 20)
    batch = Batch(list(tokens[:, :12].split(1, 1)), tokens[:, 12:13], tokens[:, 13:])
    (found,) = measure(OwnModel(own()), [batch], 1)
    with torch.no_grad():
        logits, entropies = own()(tokens, entropy=True)
    losses = F.cross_entropy(logits[:, 12:-1].transpose(1, 2), tokens[:, 13:], reduction="none")
    assert np.allclose(found.scores, losses.mean(1).numpy(), atol=1e-5)
    rows = entropies[:, :, :, 12:-1]
    assert np.allclose(found.entropies, rows.mean((0, 2, 3)).numpy(), atol=1e-5)
    assert np.allclose(found.entropy_by_layer, rows.mean((1, 2, 3)).numpy(), atol=1e-5)


def test_answers_are_right_or_wrong():
    context, question = ids(4, 14).split([12, 2], 1)
    with torch.no_grad():
        right = own()(torch.cat([context, question], 1))[:, -1].argmax(-1, keepdim=True)
    wrong = right.clone()
    wrong[1] = (wrong[1] + 1) % VOCABULARY
    units = list(context.split(3, 1))
    (found,) = measure(OwnModel(own()), [Batch(units, question, wrong)], 1)
    assert found.scores.tolist() == [1.0, 0.0, 1.0, 1.0]
    seen = []

    def judge(given, accepted):
        seen.append((given, accepted))
        return accepted == ("yes",)

    accepted = [("yes",), ("no",), ("yes",), ("no",)]
    (found,) = measure(OwnModel(own()), [Batch(units, question, right, accepted)], 2, judge=judge, answer_tokens=3)
    assert found.scores.tolist() == [1.0, 0.0, 1.0, 0.0] and all(len(given) == 3 for given, _ in seen)


def test_norms_of_the_same_tokens_in_segments_and_in_full_attention():
    tokens, prefix, model = ids(2, 10), ids(1, 2, seed=4)[0], OwnModel(own())
    batches = [Batch(list(tokens[:, :8].split(1, 1)), tokens[:, 8:9], tokens[:, 9:])]
    for head in (None, prefix):
        full = measure(model, batches, 1, head)[0]
        assert full.same_keys is None and full.token_norms[0].shape == (2, 2, 8)
        found = measure(model, batches, 3, head, full=full.token_norms)[0]  # segments of 3, 3, 2 tokens
        shared = 0 if head is None else 2
        whole, apart = (
            [layer[0].norm(dim=-1).mean((0, 1))[shared:].tolist() for layer in encoded.cache]
            for encoded in (
                encode(model, [tokens[:, :8]], head),
                encode(model, [tokens[:, :3], tokens[:, 3:6], tokens[:, 6:8]], head),
            )
        )
        same = found.same_keys
        for layer in range(2):
            for name, norms in (("first", apart), ("first_full", whole)):
                expected = (norms[layer][3] + norms[layer][6]) / 2
                assert same[name][layer] == pytest.approx(expected, abs=1e-5)
            for name, norms in (("later", apart), ("later_full", whole)):
                expected = (norms[layer][4] + norms[layer][5] + norms[layer][7]) / 3
                assert same[name][layer] == pytest.approx(expected, abs=1e-5)
        assert (found.key_norms["prefix_first"] is None) == (head is None)
        for name, places in (("segment_first", (0, 3, 6)), ("later", (1, 2, 4, 5, 7))):
            expected = sum(apart[1][place] for place in places) / len(places)
            assert found.key_norms[name][1] == pytest.approx(expected, abs=1e-5)
        # The first layer's keys know nothing but their token.
        assert same["first"][0] == pytest.approx(same["first_full"][0], abs=1e-5)
        assert same["first"][1] != pytest.approx(same["first_full"][1], abs=1e-3)
        assert found.same_values["first"][1] != pytest.approx(same["first"][1], abs=1e-3)
    each = measure(model, batches, 8, full=measure(model, batches, 1)[0].token_norms)[0]
    assert each.same_keys["later"] is None and each.same_keys["first"] is not None
    assert measure(model, batches, 3)[0].same_keys is None


def test_selections_share_one_encoding():
    tokens = ids(2, 9)
    batch = Batch(list(tokens[:, :6].split(1, 1)), tokens[:, 6:8], tokens[:, 8:])
    several = measure(OwnModel(own()), [batch], 3, selections=[None, Selection(1), Selection(3)])
    for selection, found in zip([None, Selection(1), Selection(3)], several, strict=True):
        (alone,) = measure(OwnModel(own()), [batch], 3, selections=[selection])
        assert np.array_equal(alone.scores, found.scores) and np.allclose(alone.entropies, found.entropies)
    assert (several[1].entropies < several[0].entropies).all()


def test_intervals_by_hand():
    # Wilson, 8 of 10: (0.8 + 0.19207) / 1.38415 = 0.71674, half 1.96 sqrt(0.016 + 0.0096037) / 1.38415 = 0.22657
    assert interval(np.array([1.0] * 8 + [0.0] * 2), True) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert interval(np.array([1.0, 2.0, 3.0]), False) == pytest.approx((2 - 1.1316, 2 + 1.1316), abs=1e-4)
    assert interval(np.ones(10), True)[0] < 1 and math.isnan(interval(np.ones(1), False)[0])


def short_task(**changes):
    """Two episodes of four units, right and wrong by turns."""
    tokens = ids(2, 6)
    batches = [Batch(list(t[None, :4].split(1, 1)), t[None, 4:5], t[None, 5:], [("x",)]) for t in tokens]
    turns = iter([True, False] * 1000)
    return Task("icl", batches, "short", lambda given, accepted: next(turns), 1, **changes)


def test_impossible_segments_are_logged_and_left_out():
    logged, section = [], settings(load())
    rows = rows_of(OwnModel(own()), short_task(), [8, 2, 1, 4, 2], section, ids(1, 2)[0], {}, logged.append)
    assert [r["segments"] for r in rows if not r["sink"] and not r["top_k"]] == [1, 2, 4]
    assert "P=[8] left out" in logged[0]
    assert {r["segments"] for r in rows if r["aggregation"] == "LHT"} == {4}, "ablations belong to the largest P"
    for r in rows:
        keys = r["same_tokens"]["keys"]
        assert (keys is None) == (r["segments"] == 1) and (keys is None or keys["first"] != keys["first_full"])
    assert possible(short_task(), [8, 1]) == ([1], [8])
    for impossible in ([16, 8], [0, 1]):
        with pytest.raises(UserError, match="P must be 1 to 4"):
            possible(short_task(), impossible)


def test_sets_count_equally():
    tokens = ids(4, 6)
    batches = [Batch(list(t[None, :4].split(1, 1)), t[None, 4:5], t[None, 5:], [("x",)]) for t in tokens]
    answers = iter([True, False, False, False])
    task = Task("rag", batches, "x", lambda given, accepted: next(answers), 1, (("a", 1), ("b", 3)))
    (found,) = measure(OwnModel(own()), batches, 1, judge=task.judge, answer_tokens=1)
    made = row(task, 1, None, None, found)
    assert made["score"] == 50 and made["sets"] == {"a": 100, "b": 0} and made["low"] < 50 < made["high"]
    alone = row(short_task(), 1, None, None, found)
    assert alone["score"] == 25 and alone["sets"] == {}
