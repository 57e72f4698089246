"""Languini's books and vocabularies, as in languini-kitchen (commit bb7afb4).

The books, the corpus `languini`, come from files that a user provides (docs/corpora.md). Published file lists define
which are read, in which split and order. A book is found by its file name. Its text is the whole file in UTF-8, with
all line ends converted to line feeds. An end-of-document token separates books.

The vocabularies (`books_16384.vocab`) are byte-pair vocabularies of sentencepiece with identity normalisation, no added
blank and byte fallback. Text is cut into characters, with U+2581 for a blank and UTF-8 bytes for a character that is no
piece. Of all adjacent pairs that form a piece, the one with the lowest id is merged first. `tokenizers` gives the same
ids from a list of merges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from aero.data.base import LARGEST_VOCABULARY, AnyTokenizer, Split, files_digest, sha256_of

LISTS_RECORD = "Zenodo record 8375423"
WITHDRAWN = (
    "its text, books3, was withdrawn in 2023 and cannot be downloaded: provide your own copy (docs/corpora.md), or use"
    " corpus stdlib_docstrings"
)
END_OF_DOCUMENT = "<D>"
# The first pieces of every vocabulary of Languini: padding, unknown, end of document, the 256 bytes.
FIRST = ("<pad>", "<unk>", END_OF_DOCUMENT, *(f"<0x{byte:02X}>" for byte in range(256)))
BLANK = "\u2581"


class LanguiniBooks:
    """Languini's training books and one of its test splits: `iid`, the papers' own, or a topic left out of training.

    The folder has the layout of languini-kitchen's `data`: books as `.txt` files anywhere below `books3`, lists
    (`file_list_train.npy`, `file_list_test_iid.npy`, …) in `books`. Both may also be in the folder itself. Every listed
    book must exist. A book that is a symbolic link is not read.
    """

    name = "languini"

    def __init__(self, folder: str | Path, test_split: str = "iid") -> None:
        self.folder = Path(folder).expanduser()
        self.lists = {"train": "file_list_train.npy", "valid": f"file_list_test_{test_split}.npy"}
        self.test_split = test_split
        self._digests: dict[str, str] = {}
        self._listed: dict[str, dict[str, Any]] = {}

    def documents(self, split: Split) -> Iterator[str]:
        for name in self._books[split]:
            path = self._paths[name]
            content = path.read_bytes()
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"corpus 'languini': {path} is not UTF-8 ({error.reason} at byte {error.start}); replace it"
                ) from None
            self._digests[name] = hashlib.sha256(content).hexdigest()
            if text:
                yield text.replace("\r\n", "\n").replace("\r", "\n")

    def manifest(self) -> dict[str, Any]:
        """The lists with their SHA-256, and one SHA-256 over all books read (one a book would be 25 MB)."""
        return {
            "name": self.name,
            "test_split": self.test_split,
            "lists": dict(self._listed),
            "books_read": len(self._digests),
            "files_sha256": files_digest(self._digests),
        }

    @cached_property
    def _books(self) -> dict[str, list[str]]:
        """Names of the books of both splits in the order of their lists."""
        if not self.folder.is_dir():
            raise ValueError(f"corpus 'languini': {self.folder} is not a folder; {WITHDRAWN}")
        return {split: self._list(split) for split in self.lists}

    def _list(self, split: str) -> list[str]:
        """Book names of one published list: rows of (path, number of tokens); a book's name is its file name's stem."""
        file = self.lists[split]
        path = next(filter(Path.is_file, (self.folder / "books" / file, self.folder / file)), None)
        if path is None:
            raise ValueError(
                f"corpus 'languini': {file} is neither in {self.folder} nor in its folder books; Languini's file lists"
                f" are {LISTS_RECORD}; {WITHDRAWN}"
            )
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
            if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind != "U" or not rows.nbytes:
                raise ValueError(f"{rows.dtype} {rows.shape} instead of rows of path and length as text")
            names = [Path(row[0]).stem for row in rows]
            tokens = sum(int(row[1]) for row in rows)
        except Exception as error:  # NumPy raises errors of many types for a damaged file
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(
                f"corpus 'languini': {path} is not one of Languini's file lists ({reason}); take it from {LISTS_RECORD}"
            ) from None
        self._listed[split] = {"file": file, "sha256": sha256_of(path), "books": len(names), "listed_tokens": tokens}
        return names

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The paths of the books of both splits. ValueError if one is missing or exists twice."""
        wanted, found = {name for names in self._books.values() for name in names}, {}
        books3 = self.folder / "books3"
        for path in sorted((books3 if books3.is_dir() else self.folder).rglob("*.txt")):
            if path.stem not in wanted or path.is_symlink() or not path.is_file():
                continue
            if other := found.get(path.stem):
                raise ValueError(f"corpus 'languini': {other} and {path} are the same book {path.stem!r}; keep one")
            found[path.stem] = path
        if missing := wanted - found.keys():
            raise ValueError(
                f"corpus 'languini': {len(missing):,} of {len(wanted):,} listed books are not below {self.folder},"
                f" first {min(missing)[:200] + '.txt'!r}; {WITHDRAWN}"
            )
        return found


@dataclass(frozen=True)
class LanguiniVocabulary(AnyTokenizer):
    """Of pieces in the order of their ids; `end_of_text` is `<D>`, which separates books.

    As in sentencepiece, `<D>` in a text is the end-of-document token, and U+2581 is a blank.
    """

    pieces: tuple[str, ...]
    end_of_text: int = FIRST.index(END_OF_DOCUMENT)

    @property
    def vocabulary(self) -> int:
        return len(self.pieces)

    @property
    def text(self) -> str:
        """The `.vocab` file: one piece a line."""
        return "".join(piece + "\n" for piece in self.pieces)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def encode_batch(self, texts: list[str], threads: int = 1) -> list[list[int]]:
        """Ids of each text. Whatever `threads`, `tokenizers` uses all cores, or RAYON_NUM_THREADS."""
        return [encoded.ids for encoded in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def _bytes(self, ids: list[int]) -> bytes:
        bytes_of = [bytes([i - 3]) if 3 <= i < len(FIRST) else self.pieces[i].replace(BLANK, " ").encode() for i in ids]
        return b"".join(bytes_of)

    @cached_property
    def _encoder(self) -> Any:
        from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

        ids = {piece: i for i, piece in enumerate(self.pieces)}
        merges = []
        for piece in self.pieces[len(FIRST) :]:
            cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
            merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        encoder = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True))
        encoder.normalizer = normalizers.Replace(" ", BLANK)
        # No piece contains a line end (sentencepiece learns from lines), so cutting there is faster and changes no id.
        encoder.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
        encoder.add_special_tokens([AddedToken(END_OF_DOCUMENT, normalized=False, special=True)])
        return encoder


def vocabulary_of(text: str) -> LanguiniVocabulary:
    """The vocabulary in the text of one of Languini's `.vocab` files, one piece a line. ValueError for another text."""
    pieces = text.removesuffix("\n").split("\n")
    if tuple(pieces[: len(FIRST)]) != FIRST:
        raise ValueError(
            "it is not a .vocab file of languini-kitchen, which begins with <pad>, <unk>, <D> and the 256 bytes"
        )
    known = set(pieces)
    if len(known) != len(pieces) or "" in known:
        raise ValueError("a piece of it is empty or occurs twice")
    if len(pieces) > LARGEST_VOCABULARY:
        raise ValueError(f"vocabulary of {len(pieces)} does not fit into token files of 16-bit ids")
    for piece in pieces[len(FIRST) :]:
        if len(piece) > 1 and not any(piece[:i] in known and piece[i:] in known for i in range(1, len(piece))):
            raise ValueError(f"its piece {piece!r} cannot be merged from two others: it was changed or cut")
    return LanguiniVocabulary(tuple(pieces))
