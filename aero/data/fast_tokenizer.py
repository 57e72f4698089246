"""Any tokenizer.json of the package `tokenizers`, as Hugging Face models have it, used as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from aero.errors import cut


class FastTokenizer:
    """Text to ids and back, from the text of a tokenizer.json. ValueError if it is damaged."""

    def __init__(self, text: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the package raises no narrower type
            raise ValueError(f"the tokenizer.json cannot be used ({cut(str(error), 300)})") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._text = text

    @property
    def vocabulary(self) -> int:
        """The largest id and one."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self._text.encode()).hexdigest()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of `text`. special: with the special tokens that the tokenizer adds to one text; those in it are read."""
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens included; invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def save(self, path: Path) -> None:
        path.write_text(self._text, encoding="utf-8")
