"""Token files: their contents, atomic replacement, detection of damage."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
from given_documents import Documents

from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import open_tokens, write_tokens

TRAIN = [f"def f_{i}(x):\n    return x + {i}\n" for i in range(100)] + ["", "é你\U0001f600"]
VALID = ["x = 1\n", "y"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAIN, 300)


@pytest.fixture
def folder(tmp_path, tokenizer):
    write_tokens(Documents(TRAIN, VALID), tokenizer, tmp_path / "tokens", threads=2)
    return tmp_path / "tokens"


def test_written_documents_are_read_back(folder, tokenizer):
    tokens = open_tokens(folder)
    for stream, texts in ((tokens.train, TRAIN), (tokens.valid, VALID)):
        assert stream.tokens.dtype == np.uint16 and stream.offsets.dtype == np.uint64
        assert len(stream.offsets) == len(texts) + 1
        for i, text in enumerate(texts):
            start, end = int(stream.offsets[i]), int(stream.offsets[i + 1])
            assert tokenizer.decode(stream.tokens[start : end - 1]) == text
            assert stream.tokens[end - 1] == tokenizer.end_of_text
        assert stream.offsets[-1] == len(stream.tokens)
    assert tokens.vocabulary == tokenizer.vocabulary
    assert load_tokenizer(folder / "tokenizer.json") == tokenizer


def test_manifest(folder, tokenizer):
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["splits"]["valid"]
    text = b"".join(len(t.encode()).to_bytes(8, "little") + t.encode() for t in VALID)
    assert entry["text_sha256"] == hashlib.sha256(text).hexdigest()
    assert entry["sha256"] == hashlib.sha256((folder / "valid.bin").read_bytes()).hexdigest()
    assert (entry["documents"], entry["bytes"]) == (2, 7)
    assert entry["tokens"] == len(tokenizer.encode(VALID[0])) + 1 + 2
    assert manifest["tokenizer_sha256"] == tokenizer.sha256
    assert manifest["corpus"] == {"name": "given"}


def test_the_same_text_gives_the_same_bytes_in_every_file(folder, tmp_path, tokenizer):
    write_tokens(Documents(TRAIN, VALID), tokenizer, tmp_path / "again", threads=1)
    names = sorted(path.name for path in folder.iterdir())
    streams = [f"{split}.{end}" for split in ("train", "valid") for end in ("bin", "offsets.npy")]
    assert names == ["manifest.json", "tokenizer.json", *streams]
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_limits_stop_reading_after_the_document_that_reaches_them(tmp_path, tokenizer):
    corpus = Documents(["1234567890"] * 1000, ["12345"] * 1000)
    manifest = write_tokens(corpus, tokenizer, tmp_path / "t", train_bytes=95, validation_bytes=5)
    assert manifest["splits"]["train"]["documents"] == 10
    assert manifest["splits"]["valid"]["documents"] == 1
    assert len(corpus.read) == 11


def test_a_split_without_text_leaves_nothing_behind(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="valid split of corpus 'given' has no text"):
        write_tokens(Documents(TRAIN, []), tokenizer, tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_a_failure_keeps_the_older_folder(folder, tmp_path, tokenizer):
    def broken(split):
        yield "text"
        raise OSError("No space left on device")

    corpus = Documents(TRAIN, VALID)
    corpus.documents = broken
    with pytest.raises(OSError, match="No space"):
        write_tokens(corpus, tokenizer, folder)
    assert len(open_tokens(folder).train.offsets) == len(TRAIN) + 1
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_folder_is_replaced_as_a_whole(folder, tokenizer, tmp_path):
    (folder / "stray").write_text("x")
    (tmp_path / "tokens.tmp").mkdir()  # left by a killed process
    (tmp_path / "tokens.tmp" / "half").write_text("x")
    write_tokens(Documents(VALID, TRAIN), tokenizer, folder)
    assert len(open_tokens(folder).train.offsets) == 3
    assert not (folder / "stray").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def truncate(path, by=2):
    path.write_bytes(path.read_bytes()[:-by])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: truncate(f / "train.bin"), "train.bin is damaged: its SHA-256"),
        (lambda f: flip(f / "train.bin", 100), "train.bin is damaged: its SHA-256"),
        (lambda f: truncate(f / "valid.bin", 1), "valid.bin is damaged"),
        (lambda f: (f / "valid.bin").unlink(), "valid.bin is damaged: it does not exist"),
        (lambda f: truncate(f / "train.offsets.npy"), "train.offsets.npy is damaged"),
        (lambda f: flip(f / "train.offsets.npy", 128), "train.offsets.npy is damaged: its SHA-256"),
        (lambda f: (f / "train.offsets.npy").write_bytes(b""), "train.offsets.npy is damaged"),
        (lambda f: np.save(f / "train.offsets.npy", np.array([{}], object)), "train.offsets.npy is damaged"),
        (lambda f: np.save(f / "valid.offsets.npy", np.zeros(3, np.int32)), "valid.offsets.npy is damaged"),
        (lambda f: truncate(f / "manifest.json", 9), "manifest.json is damaged"),
        (lambda f: edit(f / "manifest.json", lambda m: m.pop("splits")), "manifest.json is damaged"),
        (lambda f: edit(f / "manifest.json", lambda m: m.update(format="x")), "manifest.json is damaged.*format 'x'"),
        (lambda f: (f / "manifest.json").unlink(), "missing"),
        (lambda f: shutil.rmtree(f), "missing"),
    ],
)
def test_damage_is_reported_with_file_and_remedy(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=f"{message}.*dvc repro -f tokenize"):
        open_tokens(folder)
