"""Languini Books on a made-up copy of languini-kitchen's data folder: lists, names, text, and what is told if not."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest

from aero.data.corpora import files_digest, open_corpus
from aero.data.languini import TEST_SPLITS, LanguiniBooks
from aero.errors import LONGEST_LINE

TRAIN = ["Zoo - A. Author.epub", "Ant - B. Author (retail).epub", "Mid - C. Author_ Vol. 1.epub"]
IID = ["Iris - D. Author.epub"]
JAVA = ["Java - E. Author.epub"]
TEXTS = {
    TRAIN[0]: b"\n\nzoo  one\r\n\r\ntwo\t \n\n",
    TRAIN[1]: "ant \u2014 café\r".encode(),
    TRAIN[2]: b"\xef\xbb\xbfmid",
    IID[0]: b"iris",
    JAVA[0]: b"class",
}


def write_list(path, names, lengths=None):
    rows = [[f"books_16384/files/{name}.npy", str(10 + i)] for i, name in enumerate(names)]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.array(rows))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    for name, content in TEXTS.items():
        path = folder / "books3" / "the-eye" / name[0] / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "books3" / "Unlisted - X.epub.txt").write_text("never read")
    for split, names in (("train", TRAIN), ("test_iid", IID), ("test_java", JAVA)):
        write_list(folder / "books" / f"file_list_{split}.npy", names)
    # What languini-kitchen's own tokenisation leaves beside: files of the same stem that are no books.
    (folder / "books" / "books_16384" / "files").mkdir(parents=True)
    np.save(folder / "books" / "books_16384" / "files" / f"{TRAIN[0]}.npy", np.zeros(3))
    return folder


def texts(corpus, split):
    return list(corpus.documents(split))


def test_books_of_the_lists_in_their_order_with_line_feeds_and_nothing_else_changed(data):
    corpus = open_corpus("languini", data)
    assert texts(corpus, "train") == ["\n\nzoo  one\n\ntwo\t \n\n", "ant \u2014 café\n", "\ufeffmid"]
    assert texts(corpus, "valid") == ["iris"]
    # The reading of languini-kitchen: the file opened as text.
    for name, text in zip(TRAIN, texts(corpus, "train"), strict=True):
        with open(data / "books3" / "the-eye" / name[0] / f"{name}.txt", encoding="utf-8") as file:
            assert file.read() == text


def test_a_topic_left_out_of_training_is_another_test_split(data):
    corpus = open_corpus("languini", data, test_split="java")
    assert texts(corpus, "valid") == ["class"] and len(texts(corpus, "train")) == 3
    with pytest.raises(ValueError, match="test_split='poetry': Languini has iid, discworld"):
        open_corpus("languini", data, test_split="poetry")
    with pytest.raises(ValueError, match="file_list_test_discworld.npy is neither in"):
        texts(open_corpus("languini", data, test_split="discworld"), "train")
    assert len(TEST_SPLITS) == 6


def test_books_and_lists_in_one_flat_folder(data, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in [*data.rglob("*.txt"), *data.rglob("file_list_*.npy")]:
        path.rename(flat / path.name)
    assert texts(LanguiniBooks(flat), "train") == texts(LanguiniBooks(flat), "train") != []
    assert texts(LanguiniBooks(flat), "valid") == ["iris"]


def test_manifest(data):
    corpus = LanguiniBooks(data)
    texts(corpus, "train"), texts(corpus, "valid")
    manifest = corpus.manifest()
    train = data / "books" / "file_list_train.npy"
    assert manifest["lists"]["train"] == {
        "file": "file_list_train.npy",
        "sha256": hashlib.sha256(train.read_bytes()).hexdigest(),
        "books": 3,
        "listed_tokens": 10 + 11 + 12,
    }
    read = {name: hashlib.sha256(TEXTS[name]).hexdigest() for name in TRAIN + IID}
    assert (manifest["books_read"], manifest["files_sha256"]) == (4, files_digest(read))
    assert manifest["books_in_both_lists"] == 0 and manifest["test_split"] == "iid"
    write_list(train, [*TRAIN, *IID])
    texts(corpus := LanguiniBooks(data), "train")
    assert corpus.manifest()["books_in_both_lists"] == 1


def test_without_a_folder_the_error_says_why_it_cannot_be_downloaded_and_what_to_do(tmp_path):
    why = "withdrawn in 2023.*cannot be downloaded.*docs/corpora.md.*stdlib_docstrings"
    with pytest.raises(ValueError, match=f"path is null; .*{why}"):
        open_corpus("languini")
    with pytest.raises(ValueError, match=f"none is not a folder; .*{why}"):
        texts(LanguiniBooks(tmp_path / "none"), "train")
    with pytest.raises(ValueError, match=f"file_list_train.npy is neither in .*Zenodo record 8375423; .*{why}"):
        texts(LanguiniBooks(tmp_path), "train")


def test_missing_books_are_counted_and_named(data):
    for name in (TRAIN[0], IID[0]):
        next(data.rglob(f"{name}.txt")).unlink()
    # Told before the first book is read, even those of the other split
    with pytest.raises(ValueError, match=r"2 of 4 listed books are not below .*first 'Iris - D. Author.epub.txt'"):
        next(LanguiniBooks(data).documents("train"))


def test_a_book_that_is_there_twice_is_refused(data):
    (data / "books3" / f"{TRAIN[1]}.txt").write_text("another copy")
    with pytest.raises(ValueError, match="are both the book 'Ant - B.*keep one"):
        next(LanguiniBooks(data).documents("train"))


def test_a_book_that_is_not_utf8_is_named(data):
    next(data.rglob(f"{TRAIN[0]}.txt")).write_bytes(b"caf\xe9 x")
    with pytest.raises(ValueError, match=r"Zoo - A. Author.epub.txt is not UTF-8 \(.* at byte 3\); bring a sound copy"):
        next(LanguiniBooks(data).documents("train"))


class Opened:
    """Unpickling it would create a file."""

    def __reduce__(self):
        return (open, ("pickle was loaded", "w"))


def npy(header: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.array([["a", "1"]]))
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not numpy",
        np.array([["a", "1"]]).tobytes(),
        np.array(["a", "b"]),
        np.array([["a", "1", "x"]]),
        np.array([["a", "many"]]),
        np.empty((0, 2), dtype="<U3"),
        np.zeros((2, 2)),
        np.array([[Opened(), 1]], dtype=object),
        pickle.dumps(Opened()),
        b"PK\x03\x04 no archive",
        npz(),
        npy(b"{'descr': '<U9', 'fortran_order': False, 'shape': (2, 2) ("),
        npy(b"(" * 9000),
        npy(b"\n 0\n\t1"),
        *(npy(f"{{'descr': '<U9', 'fortran_order': False, 'shape': ({n}, 2)}}".encode()) for n in (-1, 2**62, 2**70)),
        npy(b"{'descr': '<U0', 'fortran_order': False, 'shape': (1099511627776, 2)}"),  # rows without end of no bytes
        npy(b"{'descr': '<U1', 'fortran_order': False, 'shape': (1, 2)}", b"\xff" * 8),  # no character has this number
        np.array([["a", "9" * 5000]]),
    ],
)
def test_lists_of_another_format_are_told_and_nothing_is_unpickled(data, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = data / "books" / "file_list_train.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(ValueError, match="file_list_train.npy is not one of Languini's file lists.*Zenodo") as told:
        next(LanguiniBooks(data).documents("train"))
    assert "\n" not in str(told.value) and len(str(told.value)) <= LONGEST_LINE
    assert not (tmp_path / "pickle was loaded").exists()


# Freed memory goes back at once, and comes in pages of 4 kB where the kernel lets a process choose: without it the same
# program's peak grew by 1 to 4 MiB, by what glibc keeps and a page of 2 MB takes, with it by 0 to 1.1.
RETURNED = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MEMORY = """
import ctypes, re, sys
PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
from aero.data import encode
from aero.data.encode import write_tokens
from aero.data.languini import LanguiniBooks
from aero.data.tokenizer import load_tokenizer

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read()).group(1)) / 1024
encode._BATCH_CHARACTERS = 2**17
vocabulary = load_tokenizer(sys.argv[1])
write_tokens(LanguiniBooks("small"), vocabulary, "small_tokens", threads=1)
small = peak()
manifest = write_tokens(LanguiniBooks("large"), vocabulary, "large_tokens", threads=1)
print(small, peak(), manifest["splits"]["train"]["bytes"])
"""


def test_memory_does_not_grow_with_the_number_of_books(tmp_path, monkeypatch):
    """Eight times the books, 8 MB, within 4 MiB of the same peak: less than their text alone."""
    book = "The value of the expression is not printed. " * 3_000  # an eighth of a megabyte
    for folder, count in (("small", 8), ("large", 64)):
        names = [f"Book {i} - Author.epub" for i in range(count)]
        write_list(tmp_path / folder / "file_list_train.npy", names)
        write_list(tmp_path / folder / "file_list_test_iid.npy", ["Test - Author.epub"])
        for name in [*names, "Test - Author.epub"]:
            (tmp_path / folder / f"{name}.txt").write_text(book if name in names else "test")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    for name, value in RETURNED.items():
        monkeypatch.setenv(name, value)
    vocabulary = __file__.replace("test_languini.py", "languini_style.vocab")
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, vocabulary], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    small, large, size = map(float, run.stdout.split())
    assert size > 8e6
    assert large - small < 4, f"peak grew from {small:.0f} to {large:.0f} MiB"


def test_links_out_of_the_folder_and_pipes_are_refused(data, tmp_path):
    """A book, the folder of books or a list may be a link, but within the folder alone."""
    book = next((data / "books3").rglob(f"{IID[0]}.txt"))
    elsewhere = tmp_path / "elsewhere.txt"
    book.rename(elsewhere)
    book.symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"corpus 'languini': .*Iris.* is a link that leads out of"):
        texts(LanguiniBooks(data), "valid")
    book.unlink()
    os.mkfifo(book)
    with pytest.raises(ValueError, match=r"corpus 'languini': .*Iris.* is a pipe"):
        texts(LanguiniBooks(data), "valid")
    book.unlink()
    elsewhere.rename(data / "moved")
    book.symlink_to(data / "moved")
    assert texts(LanguiniBooks(data), "valid") == ["iris"]
    for part in (data / "books3", data / "books" / "file_list_train.npy"):
        part.rename(tmp_path / "away")
        part.symlink_to(tmp_path / "away")
        with pytest.raises(ValueError, match="is a link that leads out of"):
            texts(LanguiniBooks(data), "valid")
        part.unlink()
        (tmp_path / "away").rename(part)
