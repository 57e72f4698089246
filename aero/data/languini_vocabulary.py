"""Languini's own vocabularies (`books_16384.vocab` of languini-kitchen), used without the sentencepiece package.

They are byte-pair vocabularies of sentencepiece with identity normalisation, no added blank and byte fallback. Text is
cut into characters, with U+2581 for a blank and UTF-8 bytes for a character that is no piece. Of all adjacent pairs
that form a piece, the one with the lowest id is merged first. `tokenizers` gives the same ids from a list of merges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aero.records import write_text

FORMAT = "aero-languini-vocabulary-1"
END_OF_DOCUMENT = "<D>"
# The first pieces of every vocabulary of Languini: padding, unknown, end of document, the 256 bytes.
FIRST = ("<pad>", "<unk>", END_OF_DOCUMENT, *(f"<0x{byte:02X}>" for byte in range(256)))
BLANK = "\u2581"
LARGEST = 65_536  # what fits into uint16 token files


@dataclass(frozen=True)
class LanguiniVocabulary:
    """Text to ids and back, with the interface of `aero.data.tokenizer.Tokenizer`.

    As in sentencepiece, `<D>` in a text is the end-of-document token, and U+2581 is a blank.
    """

    pieces: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @property
    def end_of_text(self) -> int:
        """Id of `<D>`, which separates books."""
        return FIRST.index(END_OF_DOCUMENT)

    @property
    def sha256(self) -> str:
        """Hash of the pieces in order, one a line: the SHA-256 of the `.vocab` file itself."""
        return hashlib.sha256("".join(piece + "\n" for piece in self.pieces).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], threads: int = 1) -> list[list[int]]:
        """Ids of each text. With `threads` above 1, `tokenizers` uses all cores, or RAYON_NUM_THREADS."""
        if threads == 1:
            return [self._encoder.encode(text, add_special_tokens=False).ids for text in texts]
        return [encoded.ids for encoded in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. ValueError for an id outside the vocabulary."""
        content = bytearray()
        for i in map(int, ids):
            if not 0 <= i < self.vocabulary:
                raise ValueError(f"token id {i} is not in the vocabulary (0 to {self.vocabulary - 1})")
            byte = i - 3
            content += bytes([byte]) if 0 <= byte < 256 else self.pieces[i].replace(BLANK, " ").encode()
        return content.decode("utf-8", "replace")

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, atomically."""
        content = {"format": FORMAT, "vocabulary": self.vocabulary, "sha256": self.sha256, "pieces": self.pieces}
        write_text(Path(path), json.dumps(content, indent=0) + "\n")

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


def read_vocabulary(path: str | Path) -> LanguiniVocabulary:
    """The vocabulary in one of Languini's `.vocab` files, one piece a line. ValueError for any other file."""
    lines = Path(path).read_bytes().decode("utf-8").split("\n")
    return _checked(lines[:-1] if lines[-1] == "" else lines)


def vocabulary_from_json(content: dict[str, Any]) -> LanguiniVocabulary:
    """A vocabulary written by `LanguiniVocabulary.save`. ValueError if it was changed."""
    vocabulary = _checked(content["pieces"])
    if vocabulary.sha256 != content["sha256"]:
        raise ValueError("its content does not match its own sha256: it was changed or cut")
    return vocabulary


def _checked(pieces: list[str]) -> LanguiniVocabulary:
    if tuple(pieces[: len(FIRST)]) != FIRST:
        raise ValueError(
            "it is not a .vocab file of languini-kitchen, which begins with <pad>, <unk>, <D> and the 256 bytes"
        )
    known = set(pieces)
    if len(known) != len(pieces) or "" in known:
        raise ValueError("a piece of it is empty or occurs twice")
    if len(pieces) > LARGEST:
        raise ValueError(f"vocabulary of {len(pieces)} does not fit into 16-bit token files; {LARGEST} is the most")
    for piece in pieces[len(FIRST) :]:
        if len(piece) > 1 and not any(piece[:i] in known and piece[i:] in known for i in range(1, len(piece))):
            raise ValueError(f"its piece {piece!r} cannot be merged from two others: it was changed or cut")
    return LanguiniVocabulary(tuple(pieces))
