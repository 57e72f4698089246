"""Corpora, tokenizers, token files and training batches.

`open_corpus` opens a corpus by its name in params.yaml (docs/corpora.md), `tokenizer` turns its documents into ids,
`tokens` keeps the ids in memory-mapped files, `batches` cuts those into training sequences.

Every corpus holds validation documents out by file: no file gives documents to both splits. (A row of a JSON-lines or
Parquet file, and a help topic, count as a file.)
"""

from __future__ import annotations

from aero.data.base import Corpus
from aero.data.codeparrot import CodeParrot
from aero.data.installed_python import InstalledPython
from aero.data.languini import WITHDRAWN, LanguiniBooks
from aero.data.local_folder import LocalFolder
from aero.data.python_stdlib import PythonStandardLibrary, StandardLibraryDocstrings
from aero.schema import CorpusParameters


def open_corpus(chosen: CorpusParameters, key: str = "corpus.name") -> Corpus:
    """The corpus of a section of params.yaml, of which nothing is read yet. key: the parameter that names it, for error
    messages. ValueError for `languini` without a folder.
    """
    fraction, tests = chosen.validation_fraction, chosen.include_tests
    if chosen.name == "codeparrot":
        return CodeParrot(key=key)
    if chosen.name == "languini":
        if chosen.path is None:
            raise ValueError(f"corpus 'languini' needs a folder of books and file lists, its path is null; {WITHDRAWN}")
        return LanguiniBooks(chosen.path, chosen.test_split)
    if chosen.name == "python_stdlib":
        return PythonStandardLibrary(fraction, tests)
    if chosen.name == "installed_python":
        return InstalledPython(fraction, key=key, packages=chosen.packages, files_sha256=chosen.files_sha256)
    if chosen.name == "stdlib_docstrings":
        return StandardLibraryDocstrings(fraction, tests)
    return LocalFolder(chosen.path, chosen.text_column, fraction)
