"""Where the text comes from: sources of documents behind one interface, each with a record of what was read.

    codeparrot         the papers' data set, through `datasets`                  (aero.data.codeparrot)
    languini           the papers' books, from files that a user brings          (aero.data.languini)
    python_stdlib      the library source of the running interpreter             (no network; the default)
    installed_python   that and all installed packages: more text, another on every machine (aero.data.installed_python)
    stdlib_docstrings  its docstrings and help topics: technical prose           (aero.data.docstrings; no network)
    local              a folder of text, JSON-lines or Parquet files             (aero.data.local_folder)

Every source holds its validation documents out by file: no file gives documents to both splits. (The rows of a
JSON-lines or Parquet file, and help topics, count as files of their own.)
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

Split = Literal["train", "valid"]
NAMES = ("python_stdlib", "installed_python", "stdlib_docstrings", "codeparrot", "languini", "local")

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
# Written by programs: the help texts (one file of 0.75 MB, which the hash would hold out: two thirds of the validation
# text) and the tables of character codes (1.4 MB, near-copies of each other on both sides of the split).
_GENERATED_FOLDERS = frozenset({"pydoc_data", "encodings"})
# Made by the build of one interpreter: the same Python version has other text in them on another machine.
_BUILD_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Corpus(Protocol):
    """A source of documents that can be read any number of times, always in the same order."""

    name: str

    def documents(self, split: Split) -> Iterator[str]:
        """Documents of one split, one after the other; never more than a few of them are in memory.

        Raises ValueError where the source is missing, empty or cannot be read, with what to do.
        """
        ...

    def manifest(self) -> dict[str, Any]:
        """What has been read so far: name, settings, SHA-256 of each file and of all of them, what was skipped."""
        ...


def open_corpus(
    name: str,
    path: str | Path | None = None,
    text_column: str = "content",
    validation_fraction: float = 0.05,
    include_tests: bool = False,
    test_split: str = "iid",
    key: str = "corpus.name",
    packages: Sequence[str] = (),
    files_sha256: str | None = None,
) -> Corpus:
    """The corpus called `name`, one of `NAMES`.

    path: folder of `local` and of `languini`. text_column: the column of `local`'s Parquet and JSON-lines files.
    validation_fraction: part of the files held out (`codeparrot` and `languini` bring their own split).
    include_tests: whether the standard library's own tests are taken too, which more than doubles `python_stdlib`.
    test_split: which of `languini`'s test splits is held out, one of `aero.data.languini.TEST_SPLITS`.
    key: the parameter that names the corpus, for error messages.
    packages, files_sha256: restrict and freeze `installed_python`, see there.
    Raises ValueError for an unknown name or settings that do not fit it. Nothing is read yet.
    """
    if name == "codeparrot":
        from aero.data.codeparrot import CodeParrot

        return CodeParrot(key=key)
    if name == "languini":
        from aero.data.languini import WHY, LanguiniBooks

        if path is None:
            raise ValueError(f"corpus 'languini' needs a folder of books and file lists, its path is null; {WHY}")
        return LanguiniBooks(path, test_split)
    if not 0 < validation_fraction < 1:
        raise ValueError(f"corpus.validation_fraction={validation_fraction!r}: must lie between 0 and 1, e.g. 0.05")
    if name == "python_stdlib":
        return PythonStandardLibrary(validation_fraction=validation_fraction, include_tests=include_tests)
    if name == "installed_python":
        from aero.data.installed_python import InstalledPython

        return InstalledPython(
            validation_fraction, include_tests, key=key, packages=packages, files_sha256=files_sha256
        )
    if name == "stdlib_docstrings":
        from aero.data.docstrings import StandardLibraryDocstrings

        return StandardLibraryDocstrings(validation_fraction=validation_fraction, include_tests=include_tests)
    if name == "local":
        from aero.data.local_folder import LocalFolder

        if path is None:
            raise ValueError("corpus 'local' needs a folder: set corpus.path, or corpus.name=python_stdlib")
        return LocalFolder(path, text_column=text_column, validation_fraction=validation_fraction)
    raise ValueError(f"unknown corpus {name!r}; corpus.name is one of {', '.join(NAMES)}")


def split_point(key: str) -> float:
    """A number in [0, 1) from the SHA-256 of `key`: which split a file falls into, whatever machine it lies on."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64


def shuffled(keys: Iterable[str]) -> list[str]:
    """`keys` in the order of their SHA-256, so that the first n of them are a fair sample, the same everywhere."""
    return sorted(keys, key=lambda key: (split_point("order:" + key), key))


def files_of_split(keys: Iterable[str], split: Split, validation_fraction: float) -> list[str]:
    """The files of one split, in reading order.

    A file is held out when its `split_point` is under the fraction; where that leaves a split without files, the one
    nearest to it moves there, so that any corpus of two files has both splits.
    """
    ordered = sorted(keys, key=lambda key: (split_point(key), key))
    held_out = sum(split_point(key) < validation_fraction for key in ordered)
    if len(ordered) >= 2:
        held_out = min(max(held_out, 1), len(ordered) - 1)
    return shuffled(ordered[:held_out] if split == "valid" else ordered[held_out:])


def files_digest(digests: dict[str, str]) -> str:
    """One SHA-256 over the names and contents of all files: `digests` maps relative path to hexadecimal SHA-256."""
    whole = hashlib.sha256()
    for key in sorted(digests):
        whole.update(f"{digests[key]}  {key}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


class PythonStandardLibrary:
    """The Python sources of the running interpreter's standard library: real code on every machine, no network.

    About 10 MB without the library's tests. Left out: installed packages, files made by the interpreter's build
    (they differ between machines), files written by programs (`pydoc_data`, `encodings`), symbolic links, and files
    that are not UTF-8 (named in the manifest).
    """

    name = "python_stdlib"

    def __init__(
        self, validation_fraction: float = 0.05, include_tests: bool = False, folder: str | Path | None = None
    ) -> None:
        self.folder = Path(folder or sysconfig.get_paths()["stdlib"]).resolve()
        self.validation_fraction = validation_fraction
        self.include_tests = include_tests
        self._digests: dict[str, str] = {}
        self._skipped: set[str] = set()
        self._empty: set[str] = set()

    def files(self) -> list[str]:
        """Relative paths (with forward slashes) of the sources, sorted. ValueError if there are none."""
        found = []
        for folder, inner, names in os.walk(self.folder):
            here = Path(folder).relative_to(self.folder)
            # Installed packages have many times the library's files; they are not walked through.
            inner[:] = [name for name in inner if self._wanted_folder(here, name)]
            found += [
                (here / name).as_posix()
                for name in names
                if name.endswith(".py")
                and not name.startswith("_sysconfigdata")
                and (path := Path(folder, name)).is_file()
                and not path.is_symlink()
            ]
        if not found:
            raise ValueError(
                f"corpus 'python_stdlib' is empty: no .py files under {self.folder} (is this Python in a zip file?);"
                " set corpus.name=local and corpus.path"
            )
        return sorted(found)

    def documents(self, split: Split) -> Iterator[str]:
        for key in files_of_split(self.files(), split, self.validation_fraction):
            content = (self.folder / key).read_bytes()
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                self._skipped.add(key)
                continue
            self._digests[key] = hashlib.sha256(content).hexdigest()
            if text:
                yield text
            else:
                self._empty.add(key)

    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "python": platform.python_version(),
            "implementation": sys.implementation.name,
            "include_tests": self.include_tests,
            "validation_fraction": self.validation_fraction,
            "files_sha256": files_digest(self._digests),
            "empty_files": len(self._empty),
            "skipped_not_utf8": sorted(self._skipped),
            "files": dict(sorted(self._digests.items())),
        }

    def _wanted_folder(self, parent: Path, name: str) -> bool:
        if name in _BUILD_FOLDERS or (not self.include_tests and name in _TEST_FOLDERS):
            return False
        return bool(parent.parts) or not (name in _GENERATED_FOLDERS or name.startswith("config-"))
