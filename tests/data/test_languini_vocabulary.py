"""Languini's vocabularies against ids that sentencepiece itself gave (languini_style_ids.json says how)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from aero.data.tokenizer import load_tokenizer
from aero.data.tokens import open_tokens, write_tokens

VOCAB = Path(__file__).with_name("languini_style.vocab")
CASES = json.loads(VOCAB.with_name("languini_style_ids.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def vocabulary():
    return load_tokenizer(VOCAB)


def test_ids_are_those_of_sentencepiece(vocabulary):
    assert len(CASES) > 60
    for text, ids in CASES:
        assert vocabulary.encode(text) == ids, text
    texts, expected = zip(*CASES, strict=True)
    assert vocabulary.encode_batch(list(texts), threads=2) == list(expected)


def test_size_end_of_document_and_hash(vocabulary):
    assert (vocabulary.vocabulary, vocabulary.end_of_text) == (420, 2)
    assert vocabulary.pieces[vocabulary.end_of_text] == "<D>"
    assert vocabulary.sha256 == hashlib.sha256(VOCAB.read_bytes()).hexdigest()


def test_text_comes_back(vocabulary):
    for text, ids in CASES:
        assert vocabulary.decode(ids) == text.replace("\u2581", " ")
    assert vocabulary.decode([3 + 0xE4, 3 + 0xBD]) == "\ufffd"
    with pytest.raises(ValueError, match="token id 420 is not in the vocabulary"):
        vocabulary.decode([420])


def test_token_files_hold_these_ids_with_d_behind_every_book(tmp_path, vocabulary):
    class Books:
        name = "books"

        def documents(self, split):
            yield from ["the value", "é \u4f60\n"] if split == "train" else ["x"]

        def manifest(self):
            return {"name": "books"}

    write_tokens(Books(), vocabulary, tmp_path / "tokens")
    tokens = open_tokens(tmp_path / "tokens")
    assert tokens.train.tokens.tolist() == [*vocabulary.encode("the value"), 2, *vocabulary.encode("é \u4f60\n"), 2]
    assert tokens.vocabulary == 420 and load_tokenizer(tmp_path / "tokens/tokenizer.json") == vocabulary


def test_bad_files(tmp_path):
    lines = VOCAB.read_text(encoding="utf-8").split("\n")
    for content, message in {
        "": "not a .vocab file",
        "\n".join(f"{piece}\t-{i}" for i, piece in enumerate(lines)): "not a .vocab file",
        "\n".join(lines[:300] + lines[299:]): "occurs twice",
        "\n".join([*lines[:300], "", *lines[300:]]): "empty",
        "\n".join(lines[:300]): "cannot be merged from two others",
    }.items():
        (tmp_path / "bad.vocab").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="bad.vocab cannot be used.*; set tokenizer.path to null") as told:
            load_tokenizer(tmp_path / "bad.vocab")
        assert message in str(told.value)
    (tmp_path / "latin.vocab").write_bytes(b"\xe9\n")
    with pytest.raises(ValueError, match="latin.vocab cannot be used"):
        load_tokenizer(tmp_path / "latin.vocab")
