"""The corpus `stdlib_docstrings`: docstrings and help topics of the standard library of the running Python.

Technical prose that is on every machine, a substitute for books where none may be used.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aero.data.base import Split, files_of_split
from aero.data.python_stdlib import PythonStandardLibrary

TOPICS = "pydoc_data/topics.py"  # the language reference, as `help()` shows it
REPEATED_FROM = 100  # characters; shorter sentences repeat naturally ("Return a copy.")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class StandardLibraryDocstrings(PythonStandardLibrary):
    """A few MB, held in memory. A document is all docstrings of one file, in source order, or one topic of `help()`.

    Repeated paragraphs are left out, so that none is in both splits: those of `REPEATED_FROM` characters or more, and
    of topics all (chapters contain their sections).
    """

    name = "stdlib_docstrings"

    def __init__(
        self, validation_fraction: float = 0.05, include_tests: bool = False, folder: str | Path | None = None
    ) -> None:
        super().__init__(validation_fraction, include_tests, folder)
        self._texts: dict[str, str] | None = None
        self._not_python: list[str] = []
        self._seen: set[str] = set()
        self._repeated = 0

    def documents(self, split: Split) -> Iterator[str]:
        if self._texts is None:
            self._texts = self._read()
        for key in files_of_split(self._texts, split, self.validation_fraction):
            yield self._texts[key]

    def manifest(self) -> dict[str, Any]:
        texts = self._texts or {}
        sizes = {
            "docstrings": sum(len(text.encode()) for key, text in texts.items() if not key.startswith(TOPICS)),
            "help_topics": sum(len(text.encode()) for key, text in texts.items() if key.startswith(TOPICS)),
        }
        return super().manifest() | {
            "description": (
                f"technical prose, {sum(sizes.values()) / 1e6:.1f} MB: docstrings and help topics of Python's standard"
                " library; a substitute for books, not books"
            ),
            "split_by": f"file; {TOPICS} by topic",
            "bytes": sizes,
            "documents": len(texts),
            "repeated_paragraphs_left_out": self._repeated,
            "skipped_not_python": list(self._not_python),
        }

    def _read(self) -> dict[str, str]:
        """Documents by key: the file's relative path, or path and topic."""
        texts = self._topics()
        for key in self.files():
            if tree := self._parsed(key):
                docstrings = (self._new_paragraphs(docstring, REPEATED_FROM) for docstring in _docstrings(tree))
                if text := "\n\n".join(filter(None, docstrings)):
                    texts[key] = text + "\n"
        if not texts:
            raise ValueError(
                f"corpus 'stdlib_docstrings' is empty: no docstrings below {self.folder} (a Python stripped of"
                " them?); set corpus.name=local and corpus.path"
            )
        return texts

    def _topics(self) -> dict[str, str]:
        if not (self.folder / TOPICS).is_file() or (tree := self._parsed(TOPICS)) is None:
            return {}
        topics: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "topics":
                topics = ast.literal_eval(node.value)
        texts: dict[str, str] = {}
        # The shortest first: a section keeps its text, and the chapter that contains it loses it.
        for topic in sorted(topics, key=lambda topic: (len(topics[topic]), topic)):
            if text := self._new_paragraphs(topics[topic].strip(), 0):
                texts[f"{TOPICS}:{topic}"] = text + "\n"
        return texts

    def _new_paragraphs(self, text: str, repeated_from: int) -> str:
        """`text` without earlier paragraphs of `repeated_from` characters or more."""
        kept = []
        for paragraph in text.split("\n\n"):
            plain = " ".join(paragraph.split())  # a section is indented in its chapter
            if plain in self._seen and len(plain) >= repeated_from:
                self._repeated += 1
            elif plain:
                self._seen.add(plain)
                kept.append(paragraph.strip("\n"))
        return "\n\n".join(kept)

    def _parsed(self, key: str) -> ast.Module | None:
        content = (self.folder / key).read_bytes()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's strings
                tree = ast.parse(content)
        except (SyntaxError, ValueError):
            self._not_python.append(key)
            return None
        self._digests[key] = hashlib.sha256(content).hexdigest()
        return tree


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Cleaned docstrings in source order."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring and (cleaned := inspect.cleandoc(docstring).strip()):
            # A source file may contain half a surrogate pair as an escape, which cannot be encoded.
            yield cleaned.encode("utf-8", "replace").decode("utf-8")
