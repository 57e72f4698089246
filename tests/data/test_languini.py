"""Languini Books, on a synthetic copy of languini-kitchen's data folder: lists, names, text, errors."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from aero.data import open_corpus
from aero.data.base import files_digest
from aero.data.languini import LanguiniBooks
from aero.errors import LONGEST_LINE
from aero.schema import CorpusParameters

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


def write_list(path, names):
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
    corpus = open_corpus(CorpusParameters(name="languini", path=str(data)))
    assert texts(corpus, "train") == ["\n\nzoo  one\n\ntwo\t \n\n", "ant \u2014 café\n", "\ufeffmid"]
    assert texts(corpus, "valid") == ["iris"]
    # The reading of languini-kitchen: the file opened as text.
    for name, text in zip(TRAIN, texts(corpus, "train"), strict=True):
        with open(data / "books3" / "the-eye" / name[0] / f"{name}.txt", encoding="utf-8") as file:
            assert file.read() == text


def test_a_topic_left_out_of_training_is_another_test_split(data):
    corpus = open_corpus(CorpusParameters(name="languini", path=str(data), test_split="java"))
    assert texts(corpus, "valid") == ["class"] and len(texts(corpus, "train")) == 3
    with pytest.raises(ValueError, match="file_list_test_discworld.npy is neither in"):
        texts(open_corpus(CorpusParameters(name="languini", path=str(data), test_split="discworld")), "train")


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
    assert manifest["test_split"] == "iid"


def test_without_a_folder_the_error_names_the_remedy(tmp_path):
    why = "stdlib_docstrings"
    with pytest.raises(ValueError, match=f"path is null; .*{why}"):
        open_corpus(CorpusParameters(name="languini"))
    with pytest.raises(ValueError, match=f"none is not a folder; .*{why}"):
        texts(LanguiniBooks(tmp_path / "none"), "train")
    with pytest.raises(ValueError, match=f"file_list_train.npy is neither in .*Zenodo .*{why}"):
        texts(LanguiniBooks(tmp_path), "train")


def test_missing_books_are_counted_and_named(data):
    for name in (TRAIN[0], IID[0]):
        next(data.rglob(f"{name}.txt")).unlink()
    # Reported before the first book is read, even those of the other split
    with pytest.raises(ValueError, match=r"2 of 4 listed books are not below .*first 'Iris - D. Author.epub.txt'"):
        next(LanguiniBooks(data).documents("train"))


def test_a_book_that_is_there_twice_is_refused(data):
    (data / "books3" / f"{TRAIN[1]}.txt").write_text("another copy")
    with pytest.raises(ValueError, match="are the same book 'Ant - B.*keep one"):
        next(LanguiniBooks(data).documents("train"))


def test_a_book_that_is_not_utf8_is_named(data):
    next(data.rglob(f"{TRAIN[0]}.txt")).write_bytes(b"caf\xe9 x")
    with pytest.raises(ValueError, match=r"Zoo - A. Author.epub.txt is not UTF-8 \(.* at byte 3\); replace it"):
        next(LanguiniBooks(data).documents("train"))


class Opened:
    """Unpickling it would create a file."""

    def __reduce__(self):
        return (open, ("pickle was loaded", "w"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not numpy",
        np.array([["a", "1", "x"]]),
        np.array([["a", "many"]]),
        np.empty((0, 2), dtype="<U3"),
        np.array([[Opened(), 1]], dtype=object),
        pickle.dumps(Opened()),
        b"\x93NUMPY\x01\x00\x28\x23" + b"(" * 9000,
    ],
)
def test_lists_of_another_format_are_refused_and_nothing_is_unpickled(data, content, tmp_path, monkeypatch):
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


def test_a_book_that_is_a_link_is_not_read(data, tmp_path):
    book = next((data / "books3").rglob(f"{IID[0]}.txt"))
    book.rename(tmp_path / "elsewhere.txt")
    book.symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(ValueError, match="1 of 4 listed books are not below .*first 'Iris"):
        texts(LanguiniBooks(data), "valid")
