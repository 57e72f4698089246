"""Every corpus by name.

    codeparrot         the papers' data set, through `datasets`                     (aero.data.codeparrot)
    languini           the papers' books, from files that a user provides           (aero.data.languini)
    python_stdlib      source of Python's standard library, offline; the default    (aero.data.python_stdlib)
    installed_python   the same and all installed packages                          (aero.data.installed_python)
    stdlib_docstrings  docstrings and help topics of the standard library, offline  (aero.data.docstrings)
    local              a folder of text, JSON-lines or Parquet files                (aero.data.local_folder)

Every corpus holds validation documents out by file: no file gives documents to both splits. (A row of a JSON-lines or
Parquet file, and a help topic, count as a file.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aero.data.base import Corpus
from aero.data.codeparrot import CodeParrot
from aero.data.docstrings import StandardLibraryDocstrings
from aero.data.installed_python import InstalledPython
from aero.data.languini import WITHDRAWN, LanguiniBooks
from aero.data.local_folder import LocalFolder
from aero.data.python_stdlib import PythonStandardLibrary

NAMES = ("python_stdlib", "installed_python", "stdlib_docstrings", "codeparrot", "languini", "local")


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
    """The corpus called `name`, one of `NAMES`. Nothing is read yet.

    path: folder of `local` and of `languini`. text_column: the column of `local`'s Parquet and JSON-lines files.
    validation_fraction: part of the files held out (`codeparrot` and `languini` have their own split).
    include_tests: whether to read the standard library's own tests too, which more than doubles `python_stdlib`.
    test_split: which of `languini`'s test splits is held out, one of `aero.data.languini.TEST_SPLITS`.
    key: the parameter that names the corpus, for error messages.
    packages, files_sha256: restrict and freeze `installed_python`, see there.
    Raises ValueError for an unknown name or settings that do not fit it.
    """
    if name == "codeparrot":
        return CodeParrot(key=key)
    if name == "languini":
        if path is None:
            raise ValueError(f"corpus 'languini' needs a folder of books and file lists, its path is null; {WITHDRAWN}")
        return LanguiniBooks(path, test_split)
    if not 0 < validation_fraction < 1:
        raise ValueError(f"corpus.validation_fraction={validation_fraction!r}: must lie between 0 and 1, e.g. 0.05")
    if name == "python_stdlib":
        return PythonStandardLibrary(validation_fraction, include_tests)
    if name == "installed_python":
        return InstalledPython(
            validation_fraction, include_tests, key=key, packages=packages, files_sha256=files_sha256
        )
    if name == "stdlib_docstrings":
        return StandardLibraryDocstrings(validation_fraction, include_tests)
    if name == "local":
        if path is None:
            raise ValueError("corpus 'local' needs a folder: set corpus.path, or corpus.name=python_stdlib")
        return LocalFolder(path, text_column, validation_fraction)
    raise ValueError(f"unknown corpus {name!r}; corpus.name is one of {', '.join(NAMES)}")
