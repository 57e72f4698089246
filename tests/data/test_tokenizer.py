"""The tokenizer: the same ids as the library that learned it, round trips, files, bad input."""

from __future__ import annotations

import json
import random

import pytest
from tokenizers import Tokenizer as Learned
from tokenizers import models, pre_tokenizers, trainers

from aero.data import open_corpus
from aero.data.tokenizer import build, load_tokenizer, train_tokenizer
from aero.schema import CorpusParameters

ODD_TEXTS = [
    "",
    " ",
    "\n\n\n  \t x",
    "   trailing   ",
    "it's we'll I'M don't",
    "<|endoftext|> is text here",
    "naïve café 你好 Ωmega \U0001f600\U0001f468\u200d\U0001f469 \u00a0\u3000 ½ ٣٤ ²",
    "\x00\x01\x7f\ufeff\r\n\r\n",
    "a" * 3000,
]


@pytest.fixture(scope="module")
def files():
    corpus = open_corpus(CorpusParameters(name="python_stdlib"))
    return list(corpus.documents("train"))


@pytest.fixture(scope="module")
def trained(files):
    return train_tokenizer(files, 2000, training_bytes=500_000)


def learned_by_tokenizers(documents, vocabulary, special_first=False):
    """The same training written with `tokenizers` alone."""
    learned = Learned(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary if special_first else vocabulary - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"] if special_first else [],
        show_progress=False,
    )
    learned.train_from_iterator(documents, trainer)
    if not special_first:
        learned.add_special_tokens(["<|endoftext|>"])
    return learned


def random_texts(count):
    generator = random.Random(0)
    alphabet = "abeéß你 \t\n\n  0٣½'_.()\u2028\u00a0\U0001f600ll"
    return ["".join(generator.choices(alphabet, k=generator.randrange(60))) for _ in range(count)]


def test_ids_equal_those_of_tokenizers(files, trained):
    sample, size = [], 0
    for text in files:
        sample.append(text)
        size += len(text.encode())
        if size >= 500_000:
            break
    learned = learned_by_tokenizers(sample, 2000)
    for text in files[:120] + random_texts(500) + [text for text in ODD_TEXTS if "<|" not in text]:
        assert trained.encode(text) == learned.encode(text).ids
    assert trained.end_of_text == learned.token_to_id("<|endoftext|>") == 1999


@pytest.mark.parametrize("special_first", [False, True])
def test_a_tokenizer_file_of_tokenizers_is_read(tmp_path, files, special_first):
    """`<|endoftext|>` first, at id 0, is how the papers' own tokenizer has it."""
    learned = learned_by_tokenizers(files[:40], 700, special_first)
    learned.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.vocabulary == 700
    assert tokenizer.end_of_text == (0 if special_first else 699)
    for text in files[100:130] + random_texts(300):
        assert tokenizer.encode(text) == learned.encode(text).ids


def test_round_trip(files, trained):
    for text in files[:100] + ODD_TEXTS + random_texts(500):
        ids = trained.encode(text)
        assert trained.decode(ids) == text
        assert all(0 <= i < trained.vocabulary and i != trained.end_of_text for i in ids)


def test_batches_and_threads_give_the_same_ids(files, trained):
    one_by_one = [trained.encode(text) for text in files[:30]]
    assert trained.encode_batch(files[:30], threads=2) == one_by_one == trained.encode_batch(files[:30])


def test_a_million_blanks(trained):
    for text in (" " * 2_000_000 + "x", "x" + "\n" * 1_200_000, " " * 49_999 + "x", " " * 100_000):
        assert trained.decode(trained.encode(text)) == text
    assert trained.encode_batch(["a b", " " * 60_000, "c"])[::2] == [trained.encode("a b"), trained.encode("c")]


def test_training_is_repeatable_and_stops_at_its_sample(files, trained):
    used = []

    def counted():
        for text in files:
            used.append(text)
            yield text

    assert train_tokenizer(counted(), 2000, training_bytes=500_000).sha256 == trained.sha256
    assert 500_000 <= sum(len(text.encode()) for text in used) < 900_000
    assert train_tokenizer(files[:30], 2000, training_bytes=100_000).sha256 != trained.sha256


def test_little_text_gives_a_smaller_vocabulary():
    tokenizer = train_tokenizer(["ab ab"], 5000)
    # merges: "a"+"b", then the blank in front
    assert tokenizer.vocabulary == 256 + 2 + 1
    assert len(tokenizer.encode("ab ab")) == 2


def test_own_file_round_trip_is_byte_identical(tmp_path, trained):
    trained.save(tmp_path / "a.json")
    again = load_tokenizer(tmp_path / "a.json")
    assert again == trained and again.sha256 == trained.sha256
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


def damaged(content, **changes):
    return json.dumps(content | changes)


def test_errors(tmp_path, trained, files):
    trained.save(tmp_path / "good.json")
    good = json.loads((tmp_path / "good.json").read_text())
    learned = json.loads(learned_by_tokenizers(files[:10], 400).to_str())
    reversed_merges = learned["model"] | {"merges": learned["model"]["merges"][::-1]}
    swapped = dict(good["tokens_base64"])
    first, second = list(swapped)[300:302]
    swapped[first], swapped[second] = swapped[second], swapped[first]
    cases = {
        "{": "cannot be used",
        "[]": "cannot be used",
        "{}": "neither a aero-tokenizer-1 file",
        damaged(good, tokens_base64=swapped): "does not match its own sha256",
        damaged(good, tokens_base64={}): "256 are missing",
        damaged(good, special={}): "cannot be used",
        damaged(learned, pre_tokenizer={"type": "Whitespace"}): "not a byte-level BPE",
        damaged(learned, normalizer={"type": "Lowercase"}): "changes the text",
        damaged(learned, added_tokens=[]): "not <|endoftext|> alone",
        damaged(learned, added_tokens=[{"id": 399, "content": "<|endoftext|>"}], model=reversed_merges): "do not rise",
    }
    path = tmp_path / "bad.json"
    for content, message in cases.items():
        path.write_text(content)
        with pytest.raises(ValueError, match="bad.json cannot be used.*; set tokenizer.path to null") as told:
            load_tokenizer(path)
        assert message in str(told.value)
    with pytest.raises(ValueError, match="does not exist"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(ValueError, match="token id 2000 is not in the vocabulary"):
        trained.decode([1, 2000])
    with pytest.raises(ValueError, match="without gap"):
        build({bytes([byte]): byte for byte in range(256)}, 300)
