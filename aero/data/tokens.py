"""Token files: the ids of a corpus on disk. Writing streams the corpus; reading maps the files into memory.

A folder contains `train.bin` and `valid.bin` (uint16, little-endian), `train.offsets.npy` and `valid.offsets.npy`
(uint64), `tokenizer.json` and `manifest.json`. Every document is followed by one `<|endoftext|>`: document i is
`tokens[offsets[i] : offsets[i + 1] - 1]`, and offsets has one entry more than there are documents.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aero.data.base import LARGEST_VOCABULARY, AnyTokenizer, Corpus, Split, first_bytes, sha256_of

FORMAT = "aero-tokens-1"
SPLITS: tuple[Split, ...] = ("train", "valid")
REMEDY = "make the token files again: python -m stages.tokenize_corpus, or dvc repro -f tokenize"
_BATCH_CHARACTERS = 2**21  # text encoded at once; about 60 MB with its ids


@dataclass(frozen=True)
class TokenStream:
    """The ids of one split. tokens: (N,) uint16, memory-mapped; offsets: (documents + 1,) uint64 (see the module)."""

    tokens: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Tokens:
    """An opened folder of token files. vocabulary: number of ids, `<|endoftext|>` included."""

    train: TokenStream
    valid: TokenStream
    vocabulary: int
    manifest: dict[str, Any]


def tokens_folder(corpus: str | None = None, root: Path | str = "runs") -> Path:
    """Where the pipeline keeps token files: runs/tokens for the default corpus, runs/tokens_<corpus> for another."""
    return Path(root) / ("tokens" if corpus is None else f"tokens_{corpus}")


def scale_root(scale: str | None, active: str) -> Path:
    """Parent folder of a scale's token files: runs/ for the scale in params.yaml, runs/scales/SCALE/ for another."""
    return Path("runs") if scale in (None, active) else Path("runs/scales") / scale


def open_tokens(folder: str | Path) -> Tokens:
    """The token files in `folder`, memory-mapped.

    The SHA-256 of ids and boundaries is checked against the manifest. Raises ValueError naming the missing or damaged
    file and the remedy.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"token files {folder} are missing ({path} does not exist); {REMEDY}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r} instead of {FORMAT!r}")
        vocabulary = manifest["vocabulary"]
        if type(vocabulary) is not int or not 1 <= vocabulary <= LARGEST_VOCABULARY:
            raise ValueError(f"vocabulary is {str(vocabulary)[:40]}")
        entries = {split: manifest["splits"][split] for split in SPLITS}
        digests = {f"{split}.bin": entry["sha256"] for split, entry in entries.items()}
        digests |= {f"{split}.offsets.npy": entry["offsets_sha256"] for split, entry in entries.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(f"token file {path} is damaged ({reason}); {REMEDY}") from None
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise ValueError(f"token file {folder / name} is damaged: it does not exist; {REMEDY}")
        if sha256_of(folder / name) != digest:
            raise ValueError(
                f"token file {folder / name} is damaged: its SHA-256 is not the one in manifest.json; {REMEDY}"
            )
    return Tokens(_opened(folder, "train"), _opened(folder, "valid"), vocabulary, manifest)


def _opened(folder: Path, split: str) -> TokenStream:
    ids = np.memmap(folder / f"{split}.bin", dtype="<u2", mode="r")
    return TokenStream(ids, np.load(folder / f"{split}.offsets.npy", mmap_mode="r"))


def write_tokens(
    corpus: Corpus,
    tokenizer: AnyTokenizer,
    folder: str | Path,
    train_bytes: int | None = None,
    validation_bytes: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Encode both splits of `corpus` into `folder` and return the manifest written there.

    train_bytes, validation_bytes: stop after the document with which a split reaches so many UTF-8 bytes; None reads
    all. threads: encoding threads, by default one a core.
    The files are written to `<folder>.tmp`, which replaces `folder` when complete. ValueError for a split without text.
    """
    folder = Path(folder)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    threads = threads or os.cpu_count() or 1
    try:
        limits = {"train": train_bytes, "valid": validation_bytes}
        splits = {
            split: _write_split(corpus, tokenizer, split, temporary, limit, threads) for split, limit in limits.items()
        }
        tokenizer.save(temporary / "tokenizer.json")
        manifest = {
            "format": FORMAT,
            "corpus_sha256": hashlib.sha256("".join(splits[s]["text_sha256"] for s in SPLITS).encode()).hexdigest(),
            "tokenizer_sha256": tokenizer.sha256,
            "vocabulary": tokenizer.vocabulary,
            "end_of_text": tokenizer.end_of_text,
            "splits": splits,
            "corpus": corpus.manifest(),
            "python": platform.python_version(),
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _write_split(
    corpus: Corpus, tokenizer: AnyTokenizer, split: Split, folder: Path, limit: int | None, threads: int
) -> dict[str, Any]:
    """Write the ids and boundaries of one split and return its entry in the manifest."""
    from tqdm import tqdm

    offsets = array("Q", [0])
    text_digest, file_digest = hashlib.sha256(), hashlib.sha256()
    size = 0
    with (
        open(folder / f"{split}.bin", "wb") as file,
        tqdm(desc=f"tokenize {split}", total=limit, unit="B", unit_scale=True, disable=None) as bar,  # on a terminal
    ):
        for texts in _batches(first_bytes(corpus.documents(split), limit)):
            ids_of_batch = array("H")
            for ids in tokenizer.encode_batch(texts, threads):
                ids.append(tokenizer.end_of_text)
                offsets.append(offsets[-1] + len(ids))
                ids_of_batch.fromlist(ids)
            file.write(ids_of_batch)
            file_digest.update(ids_of_batch)
            for text in texts:
                content = text.encode("utf-8", "replace")
                size += len(content)
                text_digest.update(len(content).to_bytes(8, "little"))
                text_digest.update(content)
            bar.update(size - bar.n)
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


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    """Documents in lists of about `_BATCH_CHARACTERS`."""
    texts: list[str] = []
    waiting = 0
    for text in documents:
        texts.append(text)
        waiting += len(text)
        if waiting >= _BATCH_CHARACTERS:
            yield texts
            texts, waiting = [], 0
    if texts:
        yield texts
