"""Training and evaluation sequences cut from a token stream. B: sequences, T: context, in tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from aero.data.tokens import TokenStream


def chunk_starts(stream: TokenStream, length: int, packing: bool = False) -> np.ndarray:
    """Where the chunks of `length` tokens begin, as positions in `stream.tokens`: (chunks,) int64, rising.

    Every document is cut in chunks from its beginning and the last, short one is dropped; no chunk reaches into the
    next document or holds `<|endoftext|>` (the papers' recipe). With `packing` the documents, each ended by
    `<|endoftext|>`, are one stream that is cut without regard to them.
    """
    if packing:
        return np.arange(len(stream.tokens) // length, dtype=np.int64) * length
    offsets = np.asarray(stream.offsets, dtype=np.int64)
    per_document = (np.diff(offsets) - 1) // length  # - 1: the end-of-text token
    first_chunk = np.cumsum(per_document) - per_document
    place = np.arange(per_document.sum(), dtype=np.int64) - np.repeat(first_chunk, per_document)
    return np.repeat(offsets[:-1], per_document) + place * length


class Batches:
    """Shuffled training batches, addressed by step: `batch(step)` depends on nothing but its arguments and `seed`.

    So a run that resumes at any step, or another process, sees the very same batches. Every epoch is a permutation of
    all chunks from (seed, epoch); those left over after the last full batch of an epoch are dropped.
    """

    def __init__(self, stream: TokenStream, context: int, batch_size: int, seed: int, packing: bool = False) -> None:
        """ValueError if the stream has fewer chunks of `context` tokens than `batch_size`."""
        self.context, self.batch_size, self.seed = context, batch_size, seed
        self._stream = stream
        self._starts = chunk_starts(stream, context, packing)
        if len(self._starts) < batch_size:
            raise ValueError(
                f"the corpus has {len(self._starts)} chunks of {context} tokens, fewer than one batch of {batch_size};"
                " use more text, a smaller batch_size or context, or corpus.packing=true"
            )
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches of one epoch."""
        return len(self._starts) // self.batch_size

    def batch(self, step: int) -> torch.Tensor:
        """The batch of one step, counted from 0 through all epochs: (B, T) int64."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch))))
            self._order = generator.permutation(len(self._starts))
            self._epoch = epoch
        chosen = self._order[place * self.batch_size : (place + 1) * self.batch_size]
        return _gather(self._stream, self._starts[chosen], self.context)


def evaluation_batches(
    stream: TokenStream, context: int, batch_size: int, tokens: int | None = None, packing: bool = False
) -> Iterator[torch.Tensor]:
    """A fixed subset of the stream's chunks in order, evenly spaced over it: batches of (B or fewer, T) int64.

    tokens: about how many tokens to give, rounded down to whole chunks but at least one; null or more than there are
    gives all. Raises ValueError at once if there is no chunk.
    """
    starts = chunk_starts(stream, context, packing)
    if not len(starts):
        raise ValueError(
            f"no held-out document is as long as the context of {context} tokens; use more text or corpus.packing=true"
        )
    wanted = len(starts) if tokens is None else min(len(starts), max(1, tokens // context))
    starts = starts[np.arange(wanted, dtype=np.int64) * len(starts) // wanted]
    return (_gather(stream, starts[i : i + batch_size], context) for i in range(0, wanted, batch_size))


def _gather(stream: TokenStream, starts: np.ndarray, length: int) -> torch.Tensor:
    places = starts[:, None] + np.arange(length)  # (B, T)
    return torch.from_numpy(stream.tokens[places].astype(np.int64))
