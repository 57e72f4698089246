"""Chunks and batches against hand-worked cases and a transcription with plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aero.data.batches import Batches, chunk_starts, evaluation_batches
from aero.data.tokens import TokenStream

EOS = 999


def stream_of(lengths, seed=0):
    generator = np.random.default_rng(seed)
    documents = [np.append(generator.integers(0, EOS, length), EOS) for length in lengths]
    offsets = np.cumsum([0] + [len(document) for document in documents]).astype(np.uint64)
    return TokenStream(np.concatenate(documents).astype(np.uint16), offsets)


def test_chunks_by_hand():
    # documents of 5, 2, 7 tokens, each with its end-of-text: positions 0-4 (5), 6-7 (8), 9-15 (16)
    stream = stream_of([5, 2, 7])
    assert chunk_starts(stream, 3).tolist() == [0, 9, 12]
    assert chunk_starts(stream, 2).tolist() == [0, 2, 6, 9, 11, 13]
    assert chunk_starts(stream, 7).tolist() == [9]
    assert chunk_starts(stream, 8).tolist() == []
    # 17 tokens with the end-of-text ones: 5 chunks of 3
    assert chunk_starts(stream, 3, packing=True).tolist() == [0, 3, 6, 9, 12]
    assert chunk_starts(stream, 17, packing=True).tolist() == [0]
    assert chunk_starts(stream, 18, packing=True).tolist() == []


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_chunks_against_plain_loops(length):
    lengths = np.random.default_rng(1).integers(0, 60, 200).tolist()
    expected, position = [], 0
    for count in lengths:
        for chunk in range(count // length):
            expected.append(position + chunk * length)
        position += count + 1
    starts = chunk_starts(stream_of(lengths), length)
    assert starts.tolist() == expected
    assert starts.dtype == np.int64


def test_an_epoch_gives_every_chunk_once_and_drops_the_rest():
    stream = stream_of([100] * 10)
    batches = Batches(stream, context=10, batch_size=8, seed=3)
    assert batches.steps_per_epoch == 12
    seen = [tuple(row) for step in range(12) for row in batches.batch(step).tolist()]
    possible = {tuple(stream.tokens[start : start + 10].tolist()) for start in chunk_starts(stream, 10)}
    assert len(set(seen)) == 96 and set(seen) <= possible
    second = [tuple(row) for step in range(12, 24) for row in batches.batch(step).tolist()]
    assert len(set(second)) == 96 and second != seen


def test_a_batch_depends_on_the_step_alone():
    stream = stream_of([64] * 30)
    first = Batches(stream, 16, 4, seed=1337)
    inorder = [first.batch(step) for step in range(70)]
    resumed = Batches(stream, 16, 4, seed=1337)
    for step in (69, 3, 31, 30, 29, 0):
        assert torch.equal(resumed.batch(step), inorder[step])
    assert inorder[0].shape == (4, 16) and inorder[0].dtype == torch.int64
    assert not torch.equal(Batches(stream, 16, 4, seed=1).batch(0), inorder[0])


def test_ids_above_32767_stay_positive():
    stream = TokenStream(np.array([65535, 40000, 1, 0], np.uint16), np.array([0, 4], np.uint64))
    assert Batches(stream, 3, 1, seed=0).batch(0).tolist() == [[65535, 40000, 1]]


def test_too_little_text_is_an_error():
    with pytest.raises(ValueError, match="4 chunks of 10 tokens, fewer than one batch of 5"):
        Batches(stream_of([20, 29]), 10, 5, seed=0)
    with pytest.raises(ValueError, match="no held-out document is as long as the context of 64"):
        evaluation_batches(stream_of([20, 29]), 64, 5)


def test_evaluation_is_a_fixed_evenly_spaced_subset():
    stream = stream_of([40] * 5)  # 4 chunks of 10 a document, 20 in all
    every = torch.cat(list(evaluation_batches(stream, 10, 8)))
    assert every.shape == (20, 10)
    assert [len(batch) for batch in evaluation_batches(stream, 10, 8)] == [8, 8, 4]
    five = torch.cat(list(evaluation_batches(stream, 10, 2, tokens=59)))
    assert torch.equal(five, every[[0, 4, 8, 12, 16]])  # 59 // 10 = 5 chunks, every fourth
    assert torch.equal(torch.cat(list(evaluation_batches(stream, 10, 8, tokens=3))), every[:1])
    assert torch.equal(torch.cat(list(evaluation_batches(stream, 10, 8, tokens=10_000))), every)
