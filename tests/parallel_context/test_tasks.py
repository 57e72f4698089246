"""The offline tasks: what they ask is answered by their context alone, and the same seed gives the same episodes."""

import numpy as np
import pytest
import torch

from aero.data.tokens import TokenStream
from aero.parallel_context.tasks import TOPICS, UNSCORED, EpisodeTask, Mixture, TextTask, Vocabulary, make_episode_tasks

VOCABULARY = Vocabulary(50)
UNITS = {"synthetic": 20, "rag": 6, "icl": 15}
TASKS = {task.name: task for task in make_episode_tasks(VOCABULARY, UNITS)}
STREAM = TokenStream(np.arange(500, dtype=np.uint16) % 50, np.array([0, 500]))


def kind_of(symbol):
    for kind in ("keys", "values", "words", "labels", "attributes"):
        first = VOCABULARY.first(kind)
        if first <= symbol < first + getattr(VOCABULARY, kind):
            return kind, symbol - first
    return ("ask", 0) if symbol == VOCABULARY.ask else ("text", symbol)


def looked_up(name, context, question):
    """The answer to a question by reading the context in plain loops."""
    if name == "synthetic":
        return [unit[1] for unit in context if unit[0] == question[1]]
    if name == "rag":
        return [
            unit[place + 1]
            for unit in context
            if unit[0] == question[1]
            for place in (1, 3)
            if unit[place] == question[2]
        ]
    topics = {kind_of(word)[1] % TOPICS for word in question}
    assert len(topics) == 1, "both words of an example are of one topic"
    return [unit[2] for unit in context if kind_of(unit[0])[1] % TOPICS in topics]


@pytest.mark.parametrize("name", TASKS)
def test_context_has_the_answer_and_no_other(name):
    random = np.random.default_rng(5)
    asked = 0
    for _ in range(30):
        context, questions, answers = TASKS[name].episode(random, UNITS[name], 3)
        assert context.shape == (UNITS[name], TASKS[name].width) and answers.shape == (3, 1)
        for question, right in zip(questions, answers, strict=True):
            found = looked_up(name, context.tolist(), question.tolist())
            assert set(found) <= {right[0]}
            asked += bool(found)
            assert question[0] == VOCABULARY.ask or name == "icl"
    # A topic is missing from 15 examples with probability (7/8)^15 = 0.135: 78 of 90 questions have an answer, sd 3.2.
    assert 65 < asked < 90 if name == "icl" else asked == 90


def test_batches_repeat_and_differ_by_seed():
    first, again, other = (list(TASKS["synthetic"].batches(5, 3, seed)) for seed in (1, 1, 2))
    assert [b.question.shape for b in first] == [(3, 2), (2, 2)] and len(first[0].units) == 20
    assert torch.equal(first[1].question, again[1].question) and not torch.equal(first[0].question, other[0].question)


def test_text_windows_are_consecutive_tokens():
    (batch,) = TextTask(STREAM, units=6, predicted=3).batches(4, 8, seed=0)
    together = torch.cat([*batch.units, batch.question, batch.answer], 1)
    assert together.shape == (4, 10) and len(batch.units) == 6
    for row in together.tolist():
        assert row == [(row[0] + place) % 50 for place in range(10)]
    assert len({tuple(row) for row in together.tolist()}) > 1
    with pytest.raises(ValueError, match="fewer than one window of 510"):
        list(TextTask(STREAM, units=500, predicted=9).batches(1, 1, 0))


GROWN = dict.fromkeys(TASKS, 1.0)


def mixture(seed=3):
    return Mixture(list(TASKS.values()), STREAM, 64, 8, seed)


def test_training_sequences_score_answers_only():
    kinds = mixture().kinds
    ids, targets = mixture().batch(7, GROWN, kinds)
    again, _ = mixture().batch(7, GROWN, kinds)
    assert ids.shape == targets.shape == (8, 64) and torch.equal(ids, again)
    assert not torch.equal(ids, mixture().batch(8, GROWN, kinds)[0]) and kinds == ["synthetic", "rag", "icl", "lm"]
    assert torch.equal(ids[targets != UNSCORED], targets[targets != UNSCORED])
    row, scored = ids[0].tolist(), (targets[0] != UNSCORED).tolist()
    pairs, place = {}, 0  # a key-value episode: pairs in parts, each followed by "? key value" for every pair
    while place + 2 < 64:
        if row[place] == VOCABULARY.ask:
            assert pairs[row[place + 1]] == row[place + 2] and scored[place : place + 3] == [False, False, True]
            place += 3
        else:
            assert row[place] not in pairs and not any(scored[place : place + 2])
            pairs[row[place]] = row[place + 1]
            place += 2
    assert sum(scored) > 5
    for symbol, is_scored in zip(ids[2].tolist(), targets[2] != UNSCORED, strict=True):
        assert is_scored == (kind_of(symbol)[0] == "labels")
    assert (targets[3] != UNSCORED).all() and all(kind_of(symbol)[0] == "text" for symbol in ids[3].tolist())


def test_episodes_grow_with_the_curriculum():
    def sizes(grown):
        random = np.random.default_rng(0)
        drawn = [TASKS["synthetic"].sequence(random, 64, grown)[0].tolist() for _ in range(60)]
        return [ids.index(VOCABULARY.ask) // 2 for ids in drawn]

    assert set(sizes(0.0)) == {2, 3, 4} and min(sizes(1.0)) == 2 and max(sizes(1.0)) >= 18
    labels = {
        grown: len(set(TASKS["icl"].sequence(np.random.default_rng(1), 300, grown)[0].tolist()[2::3]))
        for grown in (0.0, 0.5, 1.0)
    }
    assert labels == {0.0: 2, 0.5: 5, 1.0: 8}


def test_impossible_sizes():
    with pytest.raises(ValueError, match="65 units"):
        EpisodeTask("synthetic", VOCABULARY, 65)
