"""Fuzz targets of files that are brought along: Languini's lists and books, trainings of another machine."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.fuzz_target import Target, put
from benchmarks.mutations import Draw, as_json, damaged, damaged_tree

ROOT = Path(__file__).resolve().parents[1]


def array_file(draw: Draw, kinds: Sequence[Any], shapes: Sequence[Any], bodies: Sequence[bytes]) -> bytes:
    """A .npy file of another type, shape or order."""
    header = {
        "descr": draw(st.sampled_from(kinds)),
        "fortran_order": draw(st.sampled_from([False, True, 1, None])),
        "shape": draw(st.sampled_from(shapes)),
    }
    text = repr(header).encode() + draw(st.sampled_from([b"", b"\n", b" " * 40, b"(", b"L", b"'", b"\n 0\n\t1"]))
    version = draw(st.sampled_from([b"\1\0", b"\2\0", b"\3\0", b"\0\0", b"\x09\x09"]))
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + draw(st.sampled_from(bodies))


def languini(folder: Path) -> Target:
    """A folder of Languini's books with its vocabulary, of which one file is damaged: what is read of a book is text
    with line feeds alone, and the vocabulary gives a text back."""
    import numpy as np

    from aero.data.languini import LanguiniBooks
    from aero.data.tokenizer import load_tokenizer

    place = folder / "some books"
    place.mkdir()
    names = ["Zoo - A. Author.epub", "Ant - B. Author.epub"]
    rows = np.array([[f"books_16384/files/{name}.npy", str(10 + i)] for i, name in enumerate(names)])
    sink = io.BytesIO()
    np.lib.format.write_array(sink, rows)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npy", sink.getvalue())
    files = {b"l": place / "file_list_train.npy", b"b": place / f"{names[0]}.txt", b"v": folder / "a.vocab"}
    content = {b"l": sink.getvalue(), b"b": "\ufefféd\r\nbook\r <D>".encode()}
    content[b"v"] = (ROOT / "tests/data/languini_style.vocab").read_bytes()
    put(place / "file_list_test_iid.npy", content[b"l"])
    put(place / f"{names[1]}.txt", b"another book")
    seeds = [kind + whole for kind, whole in content.items()]

    @st.composite
    def array(draw: Draw) -> bytes:
        kinds = [rows.dtype.str, ">U36", "<U0", "<U1", "<U999999999", "|S9", "<i8", "|O", "|V8", "x", 8, [("a", "<U9")]]
        shapes = [(2, 2), (1, 2), (2,), (2, 3), (0, 2), (-1, 2), (2**40, 2), (2**62, 2), (2**70, 2), "x", (True, 2)]
        if draw(st.integers(0, 9)) == 0:
            return b"l" + archive.getvalue()
        return b"l" + array_file(draw, kinds, shapes, [rows.tobytes(), b"", b"\xff" * 576, b"\0" * 576])

    def read(case: bytes) -> None:
        for kind, path in files.items():
            put(path, case[1:] if case[:1] == kind else content[kind])
        corpus = LanguiniBooks(place)
        for split in ("train", "valid"):
            for text in corpus.documents(split):
                assert text and "\r" not in text
        as_json(corpus.manifest())
        if case[:1] == b"v":
            vocabulary = load_tokenizer(files[b"v"])
            assert vocabulary.decode(vocabulary.encode("a b\u00f6ok\nof two lines")) == "a b\u00f6ok\nof two lines"

    pieces = [b"<0x00>\n", "\u2581a\n".encode(), b"\x93NUMPY\x01\x00", b"'shape': (", b"<U9", b"|O", b"\xff" * 4]
    return Target(st.one_of(array(), damaged(seeds, pieces)), seeds, read, ("corpus 'languini'", "tokenizer"))


def trainings(folder: Path) -> Target:
    """A file of trainings and its merging: what is merged lies where its run says, and nothing else is written."""
    from aero.training.kept import FILES

    from aero import records
    from aero.training import archive
    from stages import merge_results

    repository, out, victim = folder / "repository", folder / "out", folder / "a victim"
    head = _committed(repository)
    path = folder / "trainings.jsonl"
    metrics = {"run": "sm-r", "seed": 1338, "scale": "gpu", "config_hash": "a" * 64, "eval_loss": 1.5}
    metrics["provenance"] = {"commit": head, "started": records.now()}
    texts = {"metrics.json": json.dumps(metrics), "log.csv": "step\n1\n"}
    values = {"run": "sm-r", "seed": 1338, "scale": "gpu", "files": texts}
    values["source"] = records.source_digest(repository)

    def line(values: Any) -> bytes:
        """As `archive.Finished.line` writes it; who can write the file can write its hash."""
        if isinstance(values, dict):
            values = {"format": archive.FORMAT, "sha256": archive._sha256(values)} | values
        return as_json(values) + b"\n"

    seeds = [line(values), line(values) + line(values)[:100]]
    leaves = [f"--output={victim}", "--remote=x", "HEAD", f"{head}:aero", f"{head}+changes", "unknown", "f" * 40]
    leaves += ["../../x", "metrics.json", "{}", 1337]

    @st.composite
    def changed(draw: Draw) -> bytes:
        part = draw(st.sampled_from(["line", "metrics", "origin"]))
        if part == "line":
            return line(damaged_tree(draw, values, leaves))
        if part == "metrics":
            told = damaged_tree(draw, metrics, leaves)
        else:
            origin = {draw(st.sampled_from(["commit", "started"])): draw(st.sampled_from(leaves))}
            told = metrics | {"provenance": metrics["provenance"] | origin}
        return line(values | {"files": texts | {"metrics.json": json.dumps(told)}})

    def read(case: bytes) -> None:
        put(path, case)
        put(victim, b"whole")
        before = sorted(folder.rglob("*"))
        try:
            for more in (["--allow-changes"], []):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(repository):
                    merge_results.main([str(path), "--to", str(out), *more])
                for file in (found for found in out.rglob("*") if not found.is_dir()):
                    scale, run, *_ = file.relative_to(out).parts
                    assert (scale.isprintable(), run.isprintable(), file.name in FILES) == (True, True, True)
        finally:
            shutil.rmtree(out, ignore_errors=True)
            assert victim.read_bytes() == b"whole" and sorted(folder.rglob("*")) == before, "something else is written"

    pieces = [b'"sha256": "', b'"files": ', b"\\ud800", head.encode(), f"--output={victim}".encode()]
    return Target(st.one_of(changed(), damaged(seeds, pieces)), seeds, read, ("trainings.jsonl", "commit"))


def _committed(repository: Path) -> str:
    """The one commit of a new repository with a source tree of its own."""
    (repository / "aero").mkdir(parents=True)
    (repository / "stages").mkdir()
    for name in ("aero/one.py", "stages/two.py", "params.yaml"):
        put(repository / name, b"")
    git = ["git", "-C", str(repository), "-c", "user.name=fuzz", "-c", "user.email=fuzz@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--no-gpg-sign", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
