"""The corpus `languini`: the Languini Books of languini-kitchen, from files that a user provides (docs/corpora.md).

As in languini-kitchen (commit bb7afb4): its published file lists define which books are read, in which split and order.
A book is found by its file name. Its text is the whole file in UTF-8, with all line ends converted to line feeds. An
end-of-document token separates books.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aero.data.base import Split, files_digest, raise_error, sha256_of

LISTS_RECORD = "Zenodo record 8375423"
WITHDRAWN = (
    "its text, books3, was withdrawn in 2023 and cannot be downloaded: provide your own copy (docs/corpora.md), or use"
    " corpus stdlib_docstrings"
)


class LanguiniBooks:
    """Languini's training books and one of its test splits: `iid`, the papers' own, or a topic left out of training.

    The folder has the layout of languini-kitchen's `data`: books as `.txt` files anywhere below `books3`, lists
    (`file_list_train.npy`, `file_list_test_iid.npy`, …) in `books`. Both may also be in the folder itself. Every listed
    book must exist. Symbolic links that lead out of the folder are refused.
    """

    name = "languini"

    def __init__(self, folder: str | Path, test_split: str = "iid") -> None:
        self.folder = Path(folder).expanduser()
        self.lists = {"train": "file_list_train.npy", "valid": f"file_list_test_{test_split}.npy"}
        self.test_split = test_split
        self._paths: dict[str, Path] | None = None
        self._digests: dict[str, str] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        self._in_both = 0

    def documents(self, split: Split) -> Iterator[str]:
        for name in self._books(split):
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
            "books_in_both_lists": self._in_both,
            "books_read": len(self._digests),
            "files_sha256": files_digest(self._digests),
        }

    def _books(self, split: Split) -> list[str]:
        """Names of the split's books in the order of its list, all of them found. ValueError for what is missing."""
        if not self.folder.is_dir():
            raise ValueError(f"corpus 'languini': {self.folder} is not a folder; {WITHDRAWN}")
        lists = {which: self._list(which) for which in self.lists}
        self._in_both = len(set(lists["train"]) & set(lists["valid"]))
        if self._paths is None:
            self._paths = self._find({name for names in lists.values() for name in names})
        return lists[split]

    def _list(self, split: str) -> list[str]:
        """Book names of one published list: rows of (path, number of tokens); a book's name is its file name's stem."""
        file = self.lists[split]
        path = next((p for p in (self.folder / "books" / file, self.folder / file) if self._inside(p).is_file()), None)
        if path is None:
            raise ValueError(
                f"corpus 'languini': {file} is neither in {self.folder} nor in its folder books; Languini's file lists"
                f" are {LISTS_RECORD}; {WITHDRAWN}"
            )
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
            if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind != "U" or not rows.nbytes:
                raise ValueError(f"{rows.dtype} {rows.shape} instead of rows of path and length as text")
            names = [_stem(row[0]) for row in rows]
            tokens = sum(int(row[1]) for row in rows)
        except Exception as error:  # NumPy raises errors of many types for a damaged file
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(
                f"corpus 'languini': {path} is not one of Languini's file lists ({reason}); take it from {LISTS_RECORD}"
            ) from None
        listed = {"file": file, "sha256": sha256_of(path), "books": len(names), "listed_tokens": tokens}
        self._listed[split] = listed
        return names

    def _inside(self, path: Path) -> Path:
        """The path itself. ValueError if it is a link that leads out of the folder, or a pipe, socket or device."""
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ValueError(f"corpus 'languini': {path} is a link that leads out of {self.folder}; copy it")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"corpus 'languini': {path} is a pipe, socket or device; remove it")
        return path

    def _find(self, wanted: set[str]) -> dict[str, Path]:
        """The paths of the wanted books. ValueError if one is missing or exists twice."""
        books3 = self._inside(self.folder / "books3")
        found: dict[str, Path] = {}
        for parent, folders, files in os.walk(books3 if books3.is_dir() else self.folder, onerror=raise_error):
            folders.sort()
            for file in sorted(files):
                if not file.endswith(".txt") or (name := _stem(file)) not in wanted:
                    continue
                path = self._inside(Path(parent, file))
                if name in found:
                    raise ValueError(
                        f"corpus 'languini': {found[name]} and {path} are the same book {name!r}; keep one"
                    )
                found[name] = path
        if missing := wanted - found.keys():
            raise ValueError(
                f"corpus 'languini': {len(missing):,} of {len(wanted):,} listed books are not below {self.folder},"
                f" first {min(missing)[:200] + '.txt'!r}; {WITHDRAWN}"
            )
        return found


def _stem(path: str) -> str:
    """File name without folders and last ending: 'a/Title - Author.epub.txt' is 'Title - Author.epub'."""
    return os.path.splitext(os.path.basename(str(path)))[0]
