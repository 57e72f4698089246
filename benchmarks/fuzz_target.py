"""What a fuzz target is, and which of its errors a user can act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from aero.errors import LONGEST_LINE, one_line


@dataclass(frozen=True)
class Target:
    """One reader of untrusted input.

    cases: hypothesis's strategy for its input. seeds: valid input. cause: one of these stands in every refusal.
    """

    cases: st.SearchStrategy[bytes]
    seeds: Sequence[bytes]
    read: Callable[[bytes], None]
    cause: tuple[str, ...]


def refusal(error: ValueError | OSError, cause: Sequence[str]) -> str | None:
    """What is wrong with the error as a user sees it (`aero.errors.one_line`), None if nothing.

    It must be more than a word, shorter than `LONGEST_LINE`, and name the file, the notation or the peer: one of
    `cause`.
    """
    line = one_line(error)
    if len(str(error).split()) < 2:
        return f"an error that says nothing: {line!r}"
    if len(str(error)) > LONGEST_LINE:
        return f"an error of {len(str(error))} characters: {line[:100]}"
    if not any(text in line for text in cause):
        return f"an error that does not name its cause ({' or '.join(cause)}): {line[:300]}"
    return None


def put(path: Path, content: bytes) -> None:
    """Write a case, or what it is read with, into the target's own folder."""
    path.write_bytes(content)
