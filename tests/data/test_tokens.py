"""Token files: what is in them, that writing streams, that damage is seen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from killed_calls import COUNTED

from aero.data.encode import write_tokens
from aero.data.tokenizer import load_tokenizer, tokenizer_of, train_tokenizer
from aero.data.tokens import open_tokens


@dataclass
class Documents:
    """A corpus of given texts."""

    train: list[str]
    valid: list[str]
    name: str = "given"
    read: list[str] = field(default_factory=list)

    def documents(self, split):
        for text in getattr(self, split):
            self.read.append(text)
            yield text

    def manifest(self):
        return {"name": self.name}


TRAIN = [f"def f_{i}(x):\n    return x + {i}\n" for i in range(100)] + ["", "é你\U0001f600"]
VALID = ["x = 1\n", "y"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAIN, 300)


@pytest.fixture
def folder(tmp_path, tokenizer):
    write_tokens(Documents(TRAIN, VALID), tokenizer, tmp_path / "tokens", threads=2)
    return tmp_path / "tokens"


def test_documents_come_back(folder, tokenizer):
    tokens = open_tokens(folder, verify=True)
    for stream, texts in ((tokens.train, TRAIN), (tokens.valid, VALID)):
        assert stream.tokens.dtype == np.uint16 and stream.offsets.dtype == np.uint64
        assert stream.documents == len(texts)
        for i, text in enumerate(texts):
            start, end = int(stream.offsets[i]), int(stream.offsets[i + 1])
            assert tokenizer.decode(stream.tokens[start : end - 1]) == text
            assert stream.tokens[end - 1] == tokenizer.end_of_text
        assert stream.offsets[-1] == len(stream.tokens)
    assert tokens.vocabulary == tokenizer.vocabulary
    assert tokenizer_of(tokens) == tokenizer


def test_manifest_tells_what_was_read(folder, tokenizer):
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
    assert open_tokens(folder, verify=True).train.documents == len(TRAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_folder_is_replaced_as_a_whole(folder, tokenizer, tmp_path):
    (folder / "stray").write_text("x")
    (tmp_path / "tokens.tmp").mkdir()  # left by a killed process
    (tmp_path / "tokens.tmp" / "half").write_text("x")
    write_tokens(Documents(VALID, TRAIN), tokenizer, folder)
    assert open_tokens(folder).train.documents == 2
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
        (lambda f: truncate(f / "train.bin"), r"train.bin is damaged: \d+ bytes instead of"),
        (lambda f: truncate(f / "valid.bin", 1), "valid.bin is damaged"),
        (lambda f: (f / "valid.bin").unlink(), "valid.bin is damaged: it does not exist"),
        (lambda f: truncate(f / "train.offsets.npy"), "train.offsets.npy is damaged"),
        (lambda f: flip(f / "train.offsets.npy", 128), "train.offsets.npy is damaged: the document boundaries"),
        (lambda f: (f / "train.offsets.npy").write_bytes(b""), "train.offsets.npy is damaged"),
        (lambda f: np.save(f / "valid.offsets.npy", np.zeros(3, np.int32)), "valid.offsets.npy is damaged: int32"),
        (lambda f: truncate(f / "manifest.json", 9), "manifest.json is damaged"),
        (lambda f: edit(f / "manifest.json", lambda m: m.pop("splits")), "manifest.json is damaged"),
        (lambda f: edit(f / "manifest.json", lambda m: m.update(format="x")), "manifest.json is damaged.*format 'x'"),
        (lambda f: (f / "manifest.json").unlink(), "missing"),
        (lambda f: shutil.rmtree(f), "missing"),
    ],
)
def test_damage_is_told_with_the_file_and_the_remedy(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=f"{message}.*dvc repro -f tokenize"):
        open_tokens(folder)


def test_pickled_offsets_are_never_loaded(folder):
    np.save(folder / "train.offsets.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="train.offsets.npy is damaged"):
        open_tokens(folder)


def test_a_changed_byte_is_seen_on_verification(folder):
    flip(folder / "train.bin", 100)
    open_tokens(folder)
    with pytest.raises(ValueError, match="train.bin is damaged: its SHA-256.*dvc repro"):
        open_tokens(folder, verify=True)


def older(folder):
    """The folder as it was written before the boundaries had a hash."""
    edit(folder / "manifest.json", lambda m: [entry.pop("offsets_sha256") for entry in m["splits"].values()])


@pytest.mark.parametrize("place", [0, 17, 50])
@pytest.mark.parametrize("made", [lambda folder: None, older], ids=["now", "before"])
@pytest.mark.parametrize("by", [-1, 1, 2])
def test_a_moved_boundary_is_seen_on_verification(folder, made, place, by):
    """Of a document, by tokens that no size tells; unseen, the training would read other sequences."""
    made(folder)
    open_tokens(folder, verify=True)
    offsets = np.load(folder / "train.offsets.npy")
    offsets[place + 1] += by
    np.save(folder / "train.offsets.npy", offsets)
    open_tokens(folder)
    with pytest.raises(ValueError, match="train.offsets.npy is damaged: .*dvc repro"):
        open_tokens(folder, verify=True)


def test_a_boundary_that_was_left_out_is_seen_on_verification(folder):
    """Two documents as one: every document still ends where the end of one stands."""
    older(folder)
    offsets = np.load(folder / "train.offsets.npy")
    np.save(folder / "train.offsets.npy", np.delete(offsets, 5))
    edit(folder / "manifest.json", lambda m: m["splits"]["train"].update(documents=len(offsets) - 2))
    open_tokens(folder)
    with pytest.raises(ValueError, match="train.offsets.npy is damaged: its documents do not end where id 299"):
        open_tokens(folder, verify=True)


@pytest.mark.parametrize("name", ["sha256", "offsets_sha256"])
def test_a_hash_that_is_none_does_not_count_as_one(folder, name):
    edit(folder / "manifest.json", lambda m: m["splits"]["valid"].update({name: None}))
    with pytest.raises(ValueError, match="valid.* is damaged: its SHA-256"):
        open_tokens(folder, verify=True)


def test_the_end_token_written_out_in_a_text_is_no_damage(tmp_path):
    """Languini's `<D>`, which is the end-of-document token wherever it stands."""
    vocabulary = load_tokenizer(Path(__file__).with_name("languini_style.vocab"))
    write_tokens(Documents(["one <D> two", "three"], ["four"]), vocabulary, tmp_path / "tokens", threads=1)
    stream = open_tokens(tmp_path / "tokens", verify=True).train
    assert stream.documents == 2 and np.count_nonzero(stream.tokens == vocabulary.end_of_text) == 3


def test_boundaries_that_their_hash_fits_are_held_against_the_ids_too(folder):
    path = folder / "train.offsets.npy"
    offsets = np.load(path)
    offsets[3] += 1
    np.save(path, offsets)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder / "manifest.json", lambda m: m["splits"]["train"].update(offsets_sha256=digest))
    with pytest.raises(ValueError, match="its documents do not end where id"):
        open_tokens(folder, verify=True)


@pytest.mark.parametrize("value", [-1, 300, True, "299", None])
def test_an_end_of_text_outside_the_vocabulary_is_refused(folder, value):
    edit(folder / "manifest.json", lambda m: m.update(end_of_text=value))
    with pytest.raises(ValueError, match="manifest.json is damaged.*end_of_text is"):
        open_tokens(folder, verify=True)


KILLED = (
    COUNTED
    + """
import shutil, sys
from aero.data.encode import write_tokens
from aero.data.tokenizer import load_tokenizer

class Given:
    name = "given"
    def documents(self, split):
        if sys.argv[3] == "broken":
            raise OSError("No space left on device")
        return iter([sys.argv[3]] * 3)
    def manifest(self):
        return {"name": self.name}

tokenizer = load_tokenizer(sys.argv[2])
last = int(sys.argv[4])
os.replace, shutil.rmtree = counted(os.replace, last), counted(shutil.rmtree, last)
try:
    write_tokens(Given(), tokenizer, sys.argv[1], threads=1, progress=False)
except OSError:
    sys.exit(3)
"""
)


def tokenized(folder, tokenizer, text, calls):
    """How a process ended that tokenizes `text` and is killed before its n-th renaming or removal."""
    command = [sys.executable, "-c", KILLED, folder, tokenizer, text, str(calls)]
    return subprocess.run(command, timeout=60).returncode


def test_killed_before_any_of_its_renamings_it_loses_no_tokens(tmp_path, tokenizer):
    """The older folder or the new one is there, or the next call puts the older one back, even if that one fails."""
    place, folder, between = tmp_path / "a tokenizer.json", tmp_path / "tokens", 0
    tokenizer.save(place)
    for calls in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        assert tokenized(folder, place, "old", 99) == 0
        ended = tokenized(folder, place, "new text", calls)
        assert ended in (0, -signal.SIGKILL)
        between += not folder.exists()
        assert tokenized(folder, place, "broken", 99) == 3
        text = tokenizer.decode(open_tokens(folder, verify=True).train.tokens).split("<|endoftext|>")[0]
        assert text in ("old", "new text") and (ended or text == "new text")
        assert {path.name for path in tmp_path.iterdir()} == {"a tokenizer.json", "tokens"}
        if ended == 0:
            break
    assert ended == 0 and between == 1


def test_a_folder_that_cannot_take_its_place_leaves_the_older_one(folder, tmp_path, tokenizer, monkeypatch):
    renamed = os.replace

    def failing(source, target):
        if str(source).endswith(".tmp") and str(target) == str(folder):
            raise OSError("No space left on device")
        renamed(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        write_tokens(Documents(VALID, TRAIN), tokenizer, folder)
    assert open_tokens(folder, verify=True).train.documents == len(TRAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_another_tokenizer_in_the_folder_is_seen(folder):
    train_tokenizer(["other text"], 260).save(folder / "tokenizer.json")
    with pytest.raises(ValueError, match="not the tokenizer"):
        tokenizer_of(open_tokens(folder))


MEMORY = """
import re, sys, time
from aero.data.tokenizer import train_tokenizer
from aero.data.encode import write_tokens

line = "def function(argument):\\n    return argument + 1\\n"
class Generated:
    name = "generated"
    def __init__(self, megabytes): self.megabytes = megabytes
    def documents(self, split):
        for i in range(self.megabytes * 10 if split == "train" else 10):
            yield f"# file {i}\\n" + line * 2080  # 100 kB
    def manifest(self): return {}

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read()).group(1)) / 1024
tokenizer = train_tokenizer([line * 20], 400)
write_tokens(Generated(16), tokenizer, "small", threads=1)
small = peak()
start = time.monotonic()
manifest = write_tokens(Generated(160), tokenizer, "large", threads=1)
print(small, peak(), manifest["splits"]["train"]["bytes"], time.monotonic() - start)
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    """Ten times the text, 144 MB more, within 30 MiB of the same peak.

    The standard library's text took 5 MB more peak for 436 MB more of it (results/bench/tokenizing.json).
    """
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    run = subprocess.run([sys.executable, "-c", MEMORY], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    small, large, size, seconds = map(float, run.stdout.split())
    assert size > 150e6
    assert large - small < 30, f"peak grew from {small:.0f} to {large:.0f} MiB"
    assert large < 1500
    assert not run.stderr, "the progress bar is for terminals only"
