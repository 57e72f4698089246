"""What every corpus shares: its interface, and which files are held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

Split = Literal["train", "valid"]


class Corpus(Protocol):
    """A source of documents that can be read any number of times, always in the same order."""

    name: str

    def documents(self, split: Split) -> Iterator[str]:
        """Documents of one split, streamed. ValueError, with the remedy, if the source is missing, empty or damaged."""
        ...

    def manifest(self) -> dict[str, Any]:
        """What has been read so far: name, settings, SHA-256 of each file and of all of them, what was skipped."""
        ...


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


def files_digest(digests: dict[str, str]) -> str:
    """One SHA-256 over the names and contents of all files; `digests` maps relative path to hexadecimal SHA-256."""
    whole = hashlib.sha256()
    for key in sorted(digests):
        whole.update(f"{digests[key]}  {key}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def raise_error(error: OSError) -> None:
    """`onerror` of os.walk, which otherwise skips folders that cannot be read."""
    raise error
