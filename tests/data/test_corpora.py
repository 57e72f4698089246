"""Corpora: what is read, in which order, into which split; errors."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path

import pytest

from aero.data import local_folder, open_corpus
from aero.data.base import files_digest, files_of_split, reading_notes, split_point
from aero.data.local_folder import LocalFolder
from aero.data.python_stdlib import PythonStandardLibrary
from aero.schema import CorpusParameters


def texts(corpus, split):
    return list(corpus.documents(split))


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_split_point_is_the_first_8_bytes_of_sha256():
    # echo -n abc | sha256sum = ba7816bf8f01cfea…
    assert split_point("abc") == 0xBA7816BF8F01CFEA / 2**64


def test_split_is_a_partition_near_the_fraction_and_does_not_depend_on_the_listing():
    keys = [f"folder/file_{i}.py" for i in range(2000)]
    train, valid = (files_of_split(keys, split, 0.05) for split in ("train", "valid"))
    assert sorted(train + valid) == sorted(keys)
    assert set(valid) == {key for key in keys if split_point(key) < 0.05}
    assert 60 <= len(valid) <= 140  # binomial(2000, 0.05): 100 +- 4 sigma
    assert files_of_split(keys[::-1], "train", 0.05) == train
    assert train != sorted(train)  # a limit on the bytes then takes a random sample


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
def test_two_files_give_both_splits(fraction):
    assert len(files_of_split(["a", "b"], "train", fraction)) == len(files_of_split(["a", "b"], "valid", fraction)) == 1


def test_standard_library_by_default():
    corpus = open_corpus(CorpusParameters(name="python_stdlib"))
    train, valid = texts(corpus, "train"), texts(corpus, "valid")
    size = sum(len(text.encode()) for text in train + valid)
    assert 5e6 < size < 2e7
    assert not set(train) & set(valid) or max(map(len, set(train) & set(valid))) < 1000
    manifest = corpus.manifest()
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    assert manifest["files"]["json/decoder.py"] == hashlib.sha256((stdlib / "json/decoder.py").read_bytes()).hexdigest()
    assert any(text == (stdlib / "json/decoder.py").read_text(encoding="utf-8") for text in train + valid)
    lines = "".join(f"{manifest['files'][key]}  {key}\n" for key in sorted(manifest["files"]))
    assert manifest["files_sha256"] == hashlib.sha256(lines.encode()).hexdigest() == files_digest(manifest["files"])
    assert not [key for key in manifest["files"] if "site-packages" in key or "/test/" in key or "encodings/" in key]
    again = open_corpus(CorpusParameters(name="python_stdlib"))
    assert texts(again, "train") == train and texts(again, "valid") == valid
    assert again.manifest() == manifest


def test_standard_library_leaves_out_what_differs_between_machines(tmp_path):
    kept = {"a.py": "a", "pkg/b.py": "b", "pkg/config-x/c.py": "c"}
    left = {
        "site-packages/x.py": "",
        "pkg/__pycache__/x.py": "",
        "_sysconfigdata__linux.py": "",
        "config-3.11/x.py": "",
        "pydoc_data/topics.py": "",
        "encodings/cp437.py": "",
        "notes.txt": "",
    }
    tests = {"test/t.py": "t", "pkg/tests/u.py": "u"}
    write(tmp_path / "lib", kept | left | tests)
    (tmp_path / "lib" / "sitecustomize.py").symlink_to(tmp_path / "lib" / "a.py")
    assert PythonStandardLibrary(folder=tmp_path / "lib").files() == sorted(kept)
    assert PythonStandardLibrary(folder=tmp_path / "lib", include_tests=True).files() == sorted(kept | tests)


def test_standard_library_skips_and_names_what_is_no_utf8(tmp_path):
    write(tmp_path, {"a.py": "a\n", "b.py": "b\n", "c.py": b"# caf\xe9\n", "e.py": "", "f.py": b"\xef\xbb\xbfbom\n"})
    corpus = PythonStandardLibrary(folder=tmp_path)
    assert sorted(texts(corpus, "train") + texts(corpus, "valid")) == ["a\n", "b\n", "bom\n"]
    assert corpus.manifest()["skipped_not_utf8"] == ["c.py"]
    assert corpus.manifest()["empty_files"] == 1


def test_empty_standard_library_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="python_stdlib.*empty.*corpus.path"):
        texts(PythonStandardLibrary(folder=tmp_path), "train")


def test_local_text_files(tmp_path):
    contents = {f"sub/{i}.txt": f"text {i}\n" for i in range(40)} | {"a.md": "md", "b.py": "py", "empty.txt": ""}
    write(tmp_path, contents | {"image.png": b"\x89PNG", ".git/config.txt": "no", ".hidden.py": "no"})
    corpus = open_corpus(CorpusParameters(name="local", path=str(tmp_path), validation_fraction=0.2))
    train, valid = texts(corpus, "train"), texts(corpus, "valid")
    assert sorted(train + valid) == sorted(text for text in contents.values() if text)
    assert valid and len(valid) < len(train)
    manifest = corpus.manifest()
    assert manifest["files"]["a.md"] == hashlib.sha256(b"md").hexdigest()


@pytest.mark.parametrize("piece", [16, 2**20])
def test_a_byte_limit_leaves_no_file_out_of_the_manifest(tmp_path, monkeypatch, piece):
    """Token files of the same `files_sha256` are those of the same text."""
    monkeypatch.setattr(local_folder, "PIECE_BYTES", piece)
    digests = set()
    for ending in ("txt", "jsonl"):
        for text in ("first", "other"):
            line = f"{text} caf\n" * 9 if ending == "txt" else json.dumps({"content": text * 9}) + "\n"
            folder = write(tmp_path / ending / text, {f"train/a.{ending}": line * 3, f"valid/b.{ending}": line})
            corpus = LocalFolder(folder)
            next(corpus.documents("train"))
            assert list(corpus.manifest()["files"]) == [f"train/a.{ending}"]
            digests.add(corpus.manifest()["files_sha256"])
    assert len(digests) == 4


def test_local_binary_and_invalid_bytes_are_counted(tmp_path):
    write(tmp_path, {"a.txt": b"caf\xe9 \xff", "b.txt": b"MZ\x00\x01"})
    write(tmp_path, {"c.txt": "genuine \ufffd", "d.txt": b"cut \xe4\xbd"})
    corpus = LocalFolder(tmp_path)
    assert set(texts(corpus, "train") + texts(corpus, "valid")) == {"caf\ufffd \ufffd", "genuine \ufffd", "cut \ufffd"}
    assert corpus.manifest()["skipped_binary"] == ["b.txt"]
    assert corpus.manifest()["replaced_characters"] == {"a.txt": 2, "d.txt": 1}
    notes = reading_notes(corpus.manifest())
    assert [note for note in notes if "2 files (a.txt, d.txt)" in note] and [note for note in notes if "b.txt" in note]


@pytest.mark.parametrize("size", [7, 16, 64])
def test_local_long_file_comes_in_pieces_cut_at_line_ends(tmp_path, monkeypatch, size):
    monkeypatch.setattr(local_folder, "PIECE_BYTES", size)
    text = "".join(f"line {i} 你好 é\n" for i in range(50)) + "no line end" * 4
    write(tmp_path, {"train/a.txt": text, "valid/b.txt": "x"})
    corpus = LocalFolder(tmp_path)
    pieces = texts(corpus, "train")
    assert "".join(pieces) == text and len(pieces) > 5
    assert corpus.manifest()["files"]["train/a.txt"] == hashlib.sha256(text.encode()).hexdigest()
    assert not corpus.manifest()["replaced_characters"]
    assert all(piece.endswith("\n") for piece in pieces[:-1])


@pytest.mark.parametrize("owner", ["txt", "jsonl"])
@pytest.mark.parametrize(
    ("train", "valid", "others"),
    [
        ("train/a", "valid/b", ()),
        ("train/a", "valid/b", ("README.md",)),
        ("train/a", "validation/b", ("test/c", "extra")),
        ("data/train/a", "data/valid/b", ("data/eval-2/c", "LICENSE.md")),
        ("train", "valid", ("test",)),
        ("train", "test", ()),
        ("wiki.train", "wiki.val", ("wiki.test",)),
        ("en/my-training_01", "en/my-dev_01", ("en/notes",)),
        ("data/train-00000-of-00001", "data/validation-00000-of-00001", ("data/test-00000-of-00001",)),
    ],
)
def test_local_names_give_the_owners_split_as_datasets_does(tmp_path, owner, train, valid, others):
    from datasets.data_files import DataFilesDict, get_data_patterns

    def file(name):
        return name if name.endswith(".md") else f"{name}.{owner}"

    names = {train: "learnt", valid: "held", **dict.fromkeys(others, "never")}
    write(
        tmp_path, {file(name): (text if owner == "txt" else f'{{"content": "{text}"}}') for name, text in names.items()}
    )
    corpus = LocalFolder(tmp_path)
    assert (texts(corpus, "train"), texts(corpus, "valid")) == (["learnt"], ["held"])
    assert file(valid) in reading_notes(corpus.manifest())[0]
    theirs = DataFilesDict.from_patterns(get_data_patterns(str(tmp_path)), base_path=str(tmp_path))
    held_out = theirs.get("validation") or theirs["test"]
    assert [Path(path).relative_to(tmp_path).as_posix() for path in [*theirs["train"], *held_out]] == [
        file(train),
        file(valid),
    ]


def test_local_files_named_as_held_out_are_never_trained_on(tmp_path):
    write(tmp_path / "some", {"a.txt": "a", "b.txt": "b", "Test.txt": "t"})
    assert texts(LocalFolder(tmp_path / "some"), "train") == ["a", "b"]
    assert texts(LocalFolder(tmp_path / "some"), "valid") == ["t"]
    write(tmp_path / "only", {"test/a.txt": "a", "valid/b.txt": "b"})
    with pytest.raises(ValueError, match="no train files"):
        texts(LocalFolder(tmp_path / "only"), "train")


@pytest.mark.parametrize(
    "name", ["held_out.txt", "wiki-Held-Out.txt", "heldout/a.txt", "holdout/a.txt", "my hold_out.txt"]
)
def test_local_files_named_as_held_out_without_a_train_name_are_validation(tmp_path, name):
    write(tmp_path, {"a.txt": "a", "b.txt": "b", "household.txt": "c", name: "held"})
    assert sorted(texts(LocalFolder(tmp_path), "train")) == ["a", "b", "c"]
    assert texts(LocalFolder(tmp_path), "valid") == ["held"]


def test_names_of_programs_are_no_split(tmp_path):
    names = ["train.py", "test_model.py", "pkg/testing/a.py", "pkg/dev/b.py", "setup.py"]
    corpus = LocalFolder(write(tmp_path, {name: name for name in names}), validation_fraction=0.4)
    assert sorted(texts(corpus, "train") + texts(corpus, "valid")) == sorted(names)
    assert "hash" in corpus.manifest()["split"]
    write(tmp_path, {"test/c.py": "held"})
    assert texts(LocalFolder(tmp_path), "valid") == ["held"]


def test_local_rows_of_jsonl_and_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [f"row {i}" for i in range(300)]
    write(tmp_path, {"a.jsonl": "".join(json.dumps({"body": row}) + "\n" for row in rows[:150]) + "\n"})
    table = pyarrow.table({"body": [*rows[150:], None, ""], "other": list(range(152))})
    parquet.write_table(table, tmp_path / "b.parquet", row_group_size=40)
    corpus = LocalFolder(tmp_path, text_column="body", validation_fraction=0.1)
    train, valid = texts(corpus, "train"), texts(corpus, "valid")
    assert sorted(train + valid) == sorted(rows)
    names = [f"a.jsonl:{i}" for i in range(150)] + [f"b.parquet:{i}" for i in range(150)]
    assert valid == [row for row, name in zip(rows, names, strict=True) if split_point(name) < 0.1]
    assert set(corpus.manifest()["files"]) == {"a.jsonl", "b.parquet"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "empty.*holds no file"),
        ({"a.csv": "x"}, "empty.*holds no file"),
        ({"a.txt": "x"}, "one text file.*train/ and valid/"),
        ({"a.jsonl": '{"text": "x"}\n'}, "line 1 has no column 'content'.*'text'"),
        ({"a.jsonl": '{"content": "x"}\n{"content": '}, "line 2 is not a JSON object"),
        ({"a.jsonl": "[1]\n"}, "line 1 is not a JSON object"),
        ({"a.jsonl": '{"content": 3}\n'}, "holds int, not text"),
        ({"a.parquet": "PAR1 no"}, "not a readable Parquet"),
    ],
)
def test_bad_local_folders(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        texts(LocalFolder(write(tmp_path, files)), "train")


def test_local_folder_missing_and_parquet_without_the_column(tmp_path):
    with pytest.raises(ValueError, match="is not a folder; set corpus.path"):
        texts(LocalFolder(tmp_path / "nowhere"), "train")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="no column 'content'.*'text'"):
        texts(LocalFolder(tmp_path), "train")


def test_links_are_not_read(tmp_path):
    folder = write(tmp_path / "in", {"a.txt": "a", "b.txt": "b"})
    write(tmp_path, {"secret.txt": "secret", "secrets/s.txt": "s"})
    for number, target in enumerate(("a.txt", "../secret.txt", "../secrets")):
        (folder / f"link{number}.txt").symlink_to(target)
    assert sorted(texts(LocalFolder(folder), "train") + texts(LocalFolder(folder), "valid")) == ["a", "b"]
