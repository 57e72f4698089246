"""Byte-level BPE: trained by `tokenizers`, used through tiktoken, which encodes several times faster.

Any text has an encoding and decodes to itself: the 256 bytes are the first entries. Text is first cut by GPT-2's
pattern; merges never cross a cut. The only special token, `<|endoftext|>`, is never produced from text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tiktoken

from aero.data import languini
from aero.data.base import LARGEST_VOCABULARY, AnyTokenizer, first_bytes
from aero.errors import cut

FORMAT = "aero-tokenizer-1"
END_OF_TEXT = "<|endoftext|>"
# GPT-2's pre-tokenisation (Radford et al. 2019), in `tokenizers` ByteLevel(use_regex=True).
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
HUB_PREFIX = "hub:"

# On about a million blanks in a row the pattern overflows the regular-expression stack, and a Rust panic ends the
# process. Such a run is cut into parts of this many characters, each encoded by itself.
BLANKS_AT_MOST = 50_000
_LONG_BLANKS = re.compile(rf"\s{{{BLANKS_AT_MOST}}}")
# Training takes time quadratic in the length of a word: 2 MB of base64 in one line would take hours.
_LONG_WORD = re.compile(r"(\S{1000}|\s{1000})(?=.)", re.DOTALL)
_SELF_CHECK = "def f(x):\n\treturn  x['naïve'] + 3.14   # it's 1,000 \u4f60\u597d \U0001f600\r\n\n    pass\n"


@dataclass(frozen=True)
class Tokenizer(AnyTokenizer):
    """`ranks` gives every token's bytes its id, which is also its merge priority."""

    ranks: dict[bytes, int]
    end_of_text: int

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        special = {END_OF_TEXT: self.end_of_text}
        return tiktoken.Encoding("aero", pat_str=PATTERN, mergeable_ranks=self.ranks, special_tokens=special)

    @property
    def vocabulary(self) -> int:
        return len(self.ranks) + 1

    @property
    def sha256(self) -> str:
        """Of pattern, tokens in order, special token."""
        whole = hashlib.sha256(f"{PATTERN}\n{END_OF_TEXT} {self.end_of_text}\n".encode())
        for token, rank in sorted(self.ranks.items(), key=lambda item: item[1]):
            whole.update(f"{rank} {token.hex()}\n".encode())
        return whole.hexdigest()

    @property
    def text(self) -> str:
        """JSON; the same tokenizer gives the same text."""
        ordered = sorted(self.ranks.items(), key=lambda item: item[1])
        content = {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "sha256": self.sha256,
            "pattern": PATTERN,
            "special": {END_OF_TEXT: self.end_of_text},
            "tokens_base64": {base64.b64encode(token).decode(): rank for token, rank in ordered},
        }
        return json.dumps(content, indent=0) + "\n"

    def encode_batch(self, texts: list[str], threads: int = 1) -> list[list[int]]:
        """Ids of each text, computed on `threads` threads; `<|endoftext|>` in one is plain text."""
        if any(len(text) >= BLANKS_AT_MOST and _LONG_BLANKS.search(text) for text in texts):
            encode = self._encoding.encode_ordinary
            return [[i for part in _cut_after(_LONG_BLANKS, text) for i in encode(part)] for text in texts]
        return self._encoding.encode_ordinary_batch(texts, num_threads=threads)

    def _bytes(self, ids: list[int]) -> bytes:
        return self._encoding.decode_bytes(ids)


def build(ranks: dict[bytes, int], end_of_text: int) -> Tokenizer:
    """A tokenizer from its tokens. ValueError unless it has all 256 bytes and ids 0, 1, 2, … without gap."""
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(f"a byte-level tokenizer has all 256 bytes as tokens; {len(missing)} are missing")
    if sorted([*ranks.values(), end_of_text]) != list(range(len(ranks) + 1)):
        raise ValueError("token ids must be 0, 1, 2, … without gap or repetition")
    if len(ranks) >= LARGEST_VOCABULARY:
        raise ValueError(f"vocabulary of {len(ranks) + 1} does not fit into token files of 16-bit ids")
    return Tokenizer(ranks, end_of_text)


def train_tokenizer(documents: Iterable[str], vocabulary: int, training_bytes: int = 20_000_000) -> Tokenizer:
    """A byte-level BPE of `vocabulary` entries, learned from the first `training_bytes` (UTF-8) of `documents`.

    Too little text for that many merges gives a smaller vocabulary.
    """
    from tokenizers import Tokenizer as Learned
    from tokenizers import models, pre_tokenizers, trainers

    sample = first_bytes(documents, training_bytes)
    learned = Learned(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    learned.train_from_iterator((part for text in sample for part in _cut_after(_LONG_WORD, text)), trainer)
    learned.add_special_tokens([END_OF_TEXT])
    return _from_learned(json.loads(learned.to_str()))


def load_tokenizer(path: str | Path) -> AnyTokenizer:
    """The tokenizer in `path`: a file of this project, a byte-level BPE `tokenizer.json` of `tokenizers`, or a `.vocab`
    file of languini-kitchen.

    `hub:owner/name` fetches that repository's `tokenizer.json` from the Hugging Face hub (or its local cache), e.g. the
    papers' `hub:huggingface-course/code-search-net-tokenizer`. ValueError for a missing, damaged or unsuitable file.
    """
    path = _from_hub(str(path)) if str(path).startswith(HUB_PREFIX) else Path(path)
    if not path.is_file():
        raise ValueError(
            f"tokenizer {path} does not exist; set tokenizer.path to a tokenizer.json or null to train one"
        )
    try:
        text = path.read_bytes().decode()
        return languini.vocabulary_of(text) if path.suffix == ".vocab" else tokenizer_from(text)
    except ValueError as error:
        raise ValueError(
            f"tokenizer {path} cannot be used ({str(error)[:300]}); set tokenizer.path to null to train one"
        ) from None


def tokenizer_from(text: str) -> AnyTokenizer:
    """The tokenizer in the text of a file. ValueError for what `load_tokenizer` cannot use."""
    try:
        if text.startswith(languini.FIRST[0]):
            return languini.vocabulary_of(text)
        content = json.loads(text)
        return _from_learned(content) if "model" in content else _from_own(content)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _from_own(content: dict[str, Any]) -> Tokenizer:
    if content.get("format") != FORMAT:
        raise ValueError(f"neither a {FORMAT} file nor a tokenizer.json of `tokenizers`")
    ranks = {base64.b64decode(key, validate=True): int(rank) for key, rank in content["tokens_base64"].items()}
    tokenizer = build(ranks, int(content["special"][END_OF_TEXT]))
    if tokenizer.sha256 != content["sha256"]:
        raise ValueError("its content does not match its own sha256: it was changed or cut")
    return tokenizer


def _from_learned(content: dict[str, Any]) -> Tokenizer:
    """From the JSON of `tokenizers`.

    tiktoken merges by the id of the result, `tokenizers` by the position in the list of merges. Both are the same if
    ids rise with that position; that is checked, and so are the ids of a text with every kind of piece.
    """
    model, before = content["model"], content.get("pre_tokenizer") or {}
    if model.get("type", "BPE") != "BPE" or before.get("type") != "ByteLevel" or not before.get("use_regex", True):
        raise ValueError("it is not a byte-level BPE with GPT-2's pre-tokenisation")
    if content.get("normalizer") or before.get("add_prefix_space"):
        raise ValueError("it changes the text before encoding (normalizer or added space)")
    special = {added["content"]: int(added["id"]) for added in content["added_tokens"]}
    if list(special) != [END_OF_TEXT]:
        raise ValueError(f"its special tokens are not {END_OF_TEXT} alone: {', '.join(special) or 'none'}")
    vocabulary = {token: rank for token, rank in model["vocab"].items() if token not in special}
    merged = [vocabulary["".join(pair).replace(" ", "")] for pair in model["merges"]]  # earlier files: "a b"
    if sorted(merged) != merged:
        raise ValueError("its ids do not rise in the order of its merges")
    byte_of = _byte_of()
    ranks = {bytes(byte_of[character] for character in token): rank for token, rank in vocabulary.items()}
    tokenizer = build(ranks, special[END_OF_TEXT])

    from tokenizers import Tokenizer as Learned

    if tokenizer.encode(_SELF_CHECK) != Learned.from_str(json.dumps(content)).encode(_SELF_CHECK).ids:
        raise ValueError("tiktoken and `tokenizers` disagree about its encoding of a test sentence")
    return tokenizer


def _byte_of() -> dict[str, int]:
    """The byte of each character in byte-level BPE files: printable Latin-1 is itself, others are from U+0100 on."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _cut_after(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """`text` in parts, cut after every match of `pattern`."""
    start = 0
    for match in pattern.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name.removeprefix(HUB_PREFIX), "tokenizer.json"))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"tokenizer {name} cannot be fetched: {reason}; set tokenizer.path to null to train one"
        ) from None


class FastTokenizer:
    """Any tokenizer.json of `tokenizers`, as Hugging Face models have it. ValueError if it is damaged."""

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer as Learned

        try:
            self._tokenizer = Learned.from_str(text)
        except Exception as error:  # the package raises no narrower type
            raise ValueError(f"the tokenizer.json cannot be used ({cut(str(error), 300)})") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.text = text

    @property
    def vocabulary(self) -> int:
        """The largest id and one."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of `text`. special: with the special tokens that the tokenizer adds to one text; those in it are read."""
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens included; invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
