"""Docstrings as a corpus: which texts, split by file, no paragraph in both splits."""

from __future__ import annotations

import argparse
import hashlib
import inspect

import pytest

from aero.data import open_corpus
from aero.data.python_stdlib import StandardLibraryDocstrings
from aero.schema import CorpusParameters

MODULE = '''"""About a module.

    Indented.
"""
# a comment, not prose
"no docstring"

class A:
    """About a class."""

    def f(self):
        """About
        a method."""
        def inner():
            "Inner."

async def g(): "About a coroutine."
def silent(): return 1
'''
LONG = "A paragraph that two files have" + ", long enough to be left out where it is met again" * 2
TOPICS = """# made by a program
topics = {
    "chapter": "Chapter\\n\\nAn introduction.\\n\\n   Section text,\\n   two lines.\\n\\nAn end.\\n",
    "section": "Section text,\\ntwo lines.\\n",
    "same": "Section text, two lines.",
}
"""


def both(corpus):
    return {split: list(corpus.documents(split)) for split in ("train", "valid")}


@pytest.fixture
def library(tmp_path):
    files = {
        "a.py": MODULE,
        "pkg/b.py": f'"""Another module.\n\n{LONG}"""\ndef f(): "About a coroutine."\n',
        "pkg/c.py": f'def f():\n    """Kept.\n\n    {LONG.replace(" ", chr(10) + "    ", 1)}\n\n    End."""\n',
        "empty.py": "x = 1\n",
        "broken.py": "def f(:\n",
        "nul.py": "x = '\0'\n",
        "escape.py": '"""Half a pair: \\ud800."""\n',
        "test/t.py": '"""A test."""\n',
        "site-packages/s.py": '"""Installed."""\n',
        "pydoc_data/topics.py": TOPICS,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_docstrings_of_a_file_are_one_document_and_repeated_paragraphs_are_left_out(library):
    corpus = StandardLibraryDocstrings(validation_fraction=0.3, folder=library)
    splits = both(corpus)
    assert sorted(splits["train"] + splits["valid"]) == sorted(
        [
            "About a module.\n\nIndented.\n\nAbout a class.\n\nAbout\na method.\n\nInner.\n\nAbout a coroutine.\n",
            f"Another module.\n\n{LONG}\n\nAbout a coroutine.\n",
            "Kept.\n\nEnd.\n",
            "Half a pair: ?.\n",
            "Section text, two lines.\n",
            "Chapter\n\nAn introduction.\n\nAn end.\n",
        ]
    )
    manifest = corpus.manifest()
    assert manifest["repeated_paragraphs_left_out"] == 3
    assert manifest["skipped_not_python"] == ["broken.py", "nul.py"]
    assert manifest["documents"] == 6
    assert manifest["files"]["a.py"] == hashlib.sha256(MODULE.encode()).hexdigest()
    assert set(manifest["files"]) == {"a.py", "empty.py", "escape.py", "pkg/b.py", "pkg/c.py", "pydoc_data/topics.py"}
    with_tests = StandardLibraryDocstrings(0.3, include_tests=True, folder=library)
    assert "A test.\n" in sum(both(with_tests).values(), [])


@pytest.mark.slow
def test_the_real_library_has_what_help_shows_and_its_held_out_paragraphs_are_new():
    splits = both(open_corpus(CorpusParameters(name="stdlib_docstrings", validation_fraction=0.1)))
    assert any(text.startswith(inspect.getdoc(argparse)) for texts in splits.values() for text in texts)

    def paragraphs(texts):
        plain = (" ".join(paragraph.split()) for text in texts for paragraph in text.split("\n\n"))
        return {paragraph for paragraph in plain if len(paragraph) >= 100}

    train, valid = (paragraphs(splits[split]) for split in ("train", "valid"))
    assert len(train) > len(valid) > 100
    assert not train & valid


def test_a_library_without_docstrings_is_an_error(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="stdlib_docstrings' is empty.*corpus.name=local"):
        next(StandardLibraryDocstrings(folder=tmp_path).documents("train"))
    (tmp_path / "a.py").unlink()
    with pytest.raises(ValueError, match="no .py files"):
        next(StandardLibraryDocstrings(folder=tmp_path).documents("train"))
