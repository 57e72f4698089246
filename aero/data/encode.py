"""From a corpus to token files (`aero.data.tokens`), streaming: of the corpus 8 bytes a document are held, no more.

A process's high-water mark still rises by some MB over the first hundreds of MB of text: batches are cut elsewhere with
every one, and the allocator keeps what the largest had (docs/decisions.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aero.data.corpora import Corpus, Split
from aero.data.languini_vocabulary import LanguiniVocabulary
from aero.data.tokenizer import Tokenizer
from aero.data.tokens import FORMAT, SPLITS, sha256_of

_BATCH_CHARACTERS = 2**21  # text encoded at once; with its ids about 60 MB


def write_tokens(
    corpus: Corpus,
    tokenizer: Tokenizer | LanguiniVocabulary,
    folder: str | Path,
    train_bytes: int | None = None,
    validation_bytes: int | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Encode both splits of `corpus` into `folder` and return the manifest written there.

    train_bytes, validation_bytes: read that much text (UTF-8 bytes) of a split and stop after the document that reaches
    it; None reads all. threads: encoding threads, by default one a core. progress: a bar on a terminal.
    The folder appears, or is replaced, only when complete; it is built beside, as `<folder>.tmp`. A folder cannot be
    renamed over another: for a moment the older one is `<folder>.old` alone, and a kill then leaves it there until the
    next call puts it back. The same text gives the same bytes in every file (no time is kept), so that DVC re-runs
    nothing after an unchanged tokenization.
    Raises ValueError for a split without text; a full disk surfaces as OSError.
    """
    folder = Path(folder)
    building, older = (folder.with_name(folder.name + ending) for ending in (".tmp", ".old"))
    shutil.rmtree(building, ignore_errors=True)
    _clear(older, folder, building)
    building.mkdir(parents=True)
    threads = threads or os.cpu_count() or 1
    try:
        whole = hashlib.sha256()
        limits = {"train": train_bytes, "valid": validation_bytes}
        splits = {
            split: _write_split(corpus, tokenizer, split, building, limits[split], threads, progress)
            for split in SPLITS
        }
        for split in SPLITS:
            whole.update(splits[split]["text_sha256"].encode())
        tokenizer.save(building / "tokenizer.json")
        manifest = {
            "format": FORMAT,
            "corpus_sha256": whole.hexdigest(),
            "tokenizer_sha256": tokenizer.sha256,
            "vocabulary": tokenizer.vocabulary,
            "end_of_text": tokenizer.end_of_text,
            "splits": splits,
            "corpus": corpus.manifest(),
            "python": platform.python_version(),
        }
        (building / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _replace(folder, building, older)
    finally:
        _clear(older, folder, building)
        shutil.rmtree(building, ignore_errors=True)
    return manifest


def _write_split(
    corpus: Corpus,
    tokenizer: Tokenizer | LanguiniVocabulary,
    split: Split,
    folder: Path,
    limit: int | None,
    threads: int,
    progress: bool,
) -> dict[str, Any]:
    offsets = array("Q", [0])
    text_digest, file_digest = hashlib.sha256(), hashlib.sha256()
    size = 0
    with open(folder / f"{split}.bin", "wb") as file, _Bar(split, limit, progress) as bar:
        for texts in _batches(corpus.documents(split), limit):
            encoded = tokenizer.encode_batch(texts, threads)
            ids_of_batch = array("H")
            for ids in encoded:
                ids.append(tokenizer.end_of_text)
                offsets.append(offsets[-1] + len(ids))
                ids_of_batch.fromlist(ids)
            if sys.byteorder == "big":
                ids_of_batch.byteswap()
            file.write(ids_of_batch)
            file_digest.update(ids_of_batch)
            for text in texts:
                content = text.encode("utf-8", "replace")
                size += len(content)
                text_digest.update(len(content).to_bytes(8, "little"))
                text_digest.update(content)
            bar.update(len(texts), size)
        file.flush()
        os.fsync(file.fileno())
    if len(offsets) == 1:
        raise ValueError(
            f"the {split} split of corpus {corpus.name!r} has no text; check corpus.path and corpus.validation_fraction"
        )
    offsets_path = folder / f"{split}.offsets.npy"
    np.save(offsets_path, np.frombuffer(offsets, dtype=np.uint64))
    return {
        "documents": len(offsets) - 1,
        "tokens": offsets[-1],
        "bytes": size,
        "text_sha256": text_digest.hexdigest(),
        "sha256": file_digest.hexdigest(),
        "offsets_sha256": sha256_of(offsets_path),
    }


def _batches(documents: Iterator[str], limit: int | None) -> Iterator[list[str]]:
    """Documents in lists of about `_BATCH_CHARACTERS`, up to and with the one that reaches `limit` bytes."""
    texts: list[str] = []
    waiting = read = 0
    for text in documents:
        texts.append(text)
        waiting += len(text)
        if limit is not None:
            read += len(text.encode("utf-8", "replace"))
            if read >= limit:
                break
        if waiting >= _BATCH_CHARACTERS:
            yield texts
            texts, waiting = [], 0
    if texts:
        yield texts


class _Bar:
    """Progress on a terminal: documents, MB and MB/s. Silent where standard error is a file or a pipe."""

    def __init__(self, split: str, limit: int | None, wanted: bool) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            desc=f"tokenize {split}",
            total=limit,
            unit="B",
            unit_scale=True,
            disable=None if wanted else True,  # None: only on a terminal
        )
        self._documents = 0

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, documents: int, size: int) -> None:
        self._documents += documents
        self._bar.set_postfix_str(f"{self._documents:,} documents", refresh=False)
        self._bar.update(size - self._bar.n)


def _replace(folder: Path, building: Path, older: Path) -> None:
    """Put the finished folder in the place of an older one, its files on disk before the older one goes."""
    for path in building.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        os.replace(folder, older)
    os.replace(building, folder)


def _clear(older: Path, folder: Path, building: Path) -> None:
    """Put the older folder back if nothing has taken its place; if something has, delete it.

    Deleted as `building`, which is not there: half of it, left by a kill, would be taken for the older folder.
    """
    if older.exists():
        os.replace(older, building if folder.exists() else folder)
        shutil.rmtree(building, ignore_errors=True)
