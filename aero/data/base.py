"""What every corpus shares: its interface, and which files are held out for validation."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from aero.records import write_text

Split = Literal["train", "valid"]
LARGEST_VOCABULARY = 65_536  # ids have 16 bits


class Corpus(Protocol):
    """A source of documents that can be read any number of times, always in the same order."""

    name: str

    def documents(self, split: Split) -> Iterator[str]:
        """Documents of one split, streamed. ValueError, with the remedy, if the source is missing, empty or damaged."""

    def manifest(self) -> dict[str, Any]:
        """What has been read so far: name, settings, SHA-256 of each file and of all of them, what was skipped."""


class AnyTokenizer(ABC):
    """What the tokenizers of token files share. vocabulary: number of ids, `end_of_text` included; text: that of a file
    from which `aero.data.tokenizer` reads it; sha256: of everything that determines the ids.
    """

    vocabulary: int
    end_of_text: int
    text: str
    sha256: str

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of `text`. special: has an effect on `FastTokenizer` only; these tokenizers add no special tokens."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: list[str], threads: int = 1) -> list[list[int]]:
        """Ids of each text, computed on `threads` threads."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; invalid UTF-8 becomes U+FFFD. ValueError for an id outside the vocabulary."""
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if not 0 <= i < self.vocabulary]:
            raise ValueError(f"token id {wrong[0]} is not in the vocabulary (0 to {self.vocabulary - 1})")
        return self._bytes(ids).decode("utf-8", "replace")

    @abstractmethod
    def _bytes(self, ids: list[int]) -> bytes:
        """The bytes of known ids."""

    def save(self, path: str | Path) -> None:
        """Write `text`, atomically."""
        write_text(Path(path), self.text)


def split_point(key: str) -> float:
    """A number in [0, 1) from the SHA-256 of `key`: which split a file falls into, the same on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64


def shuffled(keys: Iterable[str]) -> list[str]:
    """`keys` in the order of their SHA-256: the first n of them are a fair sample, the same on every machine."""
    return sorted(keys, key=lambda key: (split_point("order:" + key), key))


def files_of_split(keys: Iterable[str], split: Split, validation_fraction: float) -> list[str]:
    """The files of one split, in reading order.

    A file is held out if its `split_point` is below the fraction. If that leaves a split without files, the nearest
    file moves there, so that any corpus of two files has both splits.
    """
    ordered = sorted(keys, key=lambda key: (split_point(key), key))
    held_out = sum(split_point(key) < validation_fraction for key in ordered)
    if len(ordered) >= 2:
        held_out = min(max(held_out, 1), len(ordered) - 1)
    return shuffled(ordered[:held_out] if split == "valid" else ordered[held_out:])


_SPLIT_WORDS = {
    "test": ("test", "testing", "eval", "evaluation", "(?:held|hold)[-_ ]?outs?"),
    "valid": ("validation", "valid", "dev", "val"),
    "train": ("train", "training"),
}
"""The words by which `datasets` recognises a split in the name of a file or folder, the most cautious first, and
"held out" (a regular expression), which it does not know."""


def split_by_name(keys: Sequence[str]) -> dict[str, Any] | None:
    """The owner's split: the files of `train` and `valid`, and a `description`. None if no file is named as held out.

    Names are those that the hub's layouts have: `train/`, `data/valid/`, `train.jsonl`,
    `data/validation-00000-of-00001.parquet`. A folder's name counts before the file's. Held-out files are never trained
    on. Without a validation file, test files are used as such; otherwise they are left out. Files without such a name
    are for training only where no file is named so.
    """
    named: dict[str, list[str]] = {"train": [], "valid": [], "test": [], "": []}
    for key in keys:
        named[_named_split(key)].append(key)
    if not (valid := named["valid"] or named["test"]):
        return None
    train = named["train"] or named[""]
    listed = f"{len(train)} train ({_first(train)}), {len(valid)} valid ({_first(valid)})"
    left_out = len(keys) - len(train) - len(valid)
    return {"train": train, "valid": valid, "description": f"by name, {listed}, {left_out} left out"}


def _named_split(key: str) -> str:
    """ "train", "valid", "test", or "" if the path says nothing."""
    *folders, name = key.split("/")
    if name.lower().endswith(".py"):
        # Code: `train.py` trains and `pkg/testing/` tests. Only a folder at the top gives a split.
        folders, name = folders[: 2 if folders[:1] == ["data"] else 1], ""
    for parts in (folders, [name]):
        for split, words in _SPLIT_WORDS.items():
            if any(re.search(rf"(^|[-._ 0-9])({'|'.join(words)})([-._ 0-9]|$)", part, re.IGNORECASE) for part in parts):
                return split
    return ""


def _first(names: Sequence[str]) -> str:
    """The first of `names`, for a message."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "") if names else "none"


_NOTED = {
    "split": "split",
    "replaced_characters": "not UTF-8, with characters replaced by U+FFFD (convert them to UTF-8)",
    "skipped_binary": "skipped, binary or UTF-16",
}


def reading_notes(manifest: dict[str, Any]) -> list[str]:
    """Lines on the split that a corpus took and on the files that it skipped, from its manifest."""
    lines = []
    for key, label in _NOTED.items():
        if isinstance(found := manifest.get(key), str):
            lines.append(f"{label}: {found}")
        elif found:
            lines.append(f"{label}: {len(found)} file{'s' * (len(found) > 1)} ({_first(list(found))})")
    if left_out := manifest.get("left_out"):
        lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in left_out.items()))
    return lines


def first_bytes(documents: Iterable[str], limit: int | None) -> Iterator[str]:
    """Documents up to and including the one with which they reach `limit` bytes in UTF-8; None gives all."""
    read = 0
    for text in documents:
        yield text
        read += len(text.encode("utf-8", "replace"))
        if limit is not None and read >= limit:
            return


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(digests: dict[str, str]) -> str:
    """One SHA-256 over the names and contents of all files; `digests` maps relative path to hexadecimal SHA-256."""
    whole = hashlib.sha256()
    for key in sorted(digests):
        whole.update(f"{digests[key]}  {key}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def files_below(folder: Path, endings: tuple[str, ...], left_out: Collection[str] = ()) -> list[str]:
    """Relative paths (with forward slashes) of the files below `folder` with one of `endings`, sorted. Without hidden
    ones, symbolic links, and folders of a name in `left_out`. OSError for a folder that cannot be read.
    """

    def stop(error: OSError) -> None:
        raise error

    found = []
    for parent, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in left_out]
        for name in names:
            path = Path(parent, name)
            wanted = name.lower().endswith(endings) and not name.startswith(".")
            if wanted and path.is_file() and not path.is_symlink():
                found.append(path.relative_to(folder).as_posix())
    return sorted(found)
