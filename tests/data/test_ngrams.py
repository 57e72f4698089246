"""Kneser-Ney n-grams: proper distributions, and the likelihood of a known source."""

import numpy as np
import pytest

from aero.data.ngrams import NGrams, _discounts


@pytest.fixture(scope="module")
def sequences():
    """Tokens of a first-order Markov chain over 6 tokens, (400, 32), and its transition matrix."""
    draw = np.random.default_rng(0)
    transitions = draw.dirichlet(np.full(6, 0.4), size=6)
    tokens = np.zeros((400, 32), dtype=np.int64)
    tokens[:, 0] = draw.integers(6, size=400)
    for t in range(1, 32):
        cumulative = transitions[tokens[:, t - 1]].cumsum(-1)
        tokens[:, t] = (draw.random(400)[:, None] > cumulative).sum(-1)
    return tokens, transitions


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_of_all_continuations_sum_to_one(sequences, order):
    model = NGrams(sequences[0][:50], 6, order=4)
    context = sequences[0][200:201, : order - 1] if order > 1 else np.zeros((1, 1), dtype=np.int64)
    context = np.concatenate([np.zeros((1, max(2 - context.shape[1], 0)), dtype=np.int64), context], axis=1)
    total = 0.0
    for token in range(6):
        whole = np.concatenate([context, [[token]]], axis=1)
        log_all = np.log(model.perplexity(whole, order)) * (whole.shape[1] - 1)
        log_head = np.log(model.perplexity(context, order)) * (context.shape[1] - 1)
        total += np.exp(log_head - log_all)
    assert total == pytest.approx(1.0, abs=1e-9)


def test_a_bigram_model_reaches_the_entropy_of_a_markov_chain(sequences):
    tokens, transitions = sequences
    model = NGrams(tokens[:300], 6, order=3)
    held_out = tokens[300:]
    true = np.exp(-np.log(transitions[held_out[:, :-1], held_out[:, 1:]]).mean())
    assert model.perplexity(held_out, 2) == pytest.approx(true, rel=0.02)
    assert model.perplexity(held_out, 1) > 1.2 * true


def test_discounts_follow_the_formula():
    counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4])
    y = 8 / 16
    assert _discounts(counts) == pytest.approx([0, 1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2])


def test_an_order_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="64 bits"):
        NGrams(np.zeros((1, 8), dtype=np.int64), 50_257, order=5)
