"""The stage, with its real parameters, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import open_tokens
from stages import tokenize_corpus

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params(tmp_path, monkeypatch):
    """Writes params.yaml of the smoke scale with changes, and works in that folder."""
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((ROOT / "params.yaml").read_text())

    def write(**changes):
        values["scale"] = "smoke"
        for block, change in changes.items():
            values[block] |= change
        Path("params.yaml").write_text(yaml.safe_dump(values))
        return values

    return write


def test_a_given_tokenizer_is_used_and_must_fit(params, tmp_path):
    train_tokenizer(["def f(x): return x\n" * 20], 260).save(tmp_path / "mine.json")
    values = params(tokenizer={"path": "mine.json"})
    with pytest.raises(ValueError, match="mine.json has 260 entries.*smoke.tokens.vocabulary is 512"):
        tokenize_corpus.main([])
    assert not Path("runs").exists()
    values["scales"]["smoke"]["tokens"]["vocabulary"] = 260
    params()
    tokenize_corpus.main([])
    assert load_tokenizer("runs/tokens/tokenizer.json").encode("x") == [ord("x") - ord("!")]


def test_bad_input_is_one_line_and_nothing_written(params, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    params(corpus={"name": "local", "path": "empty"})
    with pytest.raises(ValueError, match="did you mean 'stdlib_docstrings'"):
        tokenize_corpus.main(["--corpus", "stdlib_docstring"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = subprocess.run([sys.executable, "-m", "stages.tokenize_corpus"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("error: corpus 'local' is empty") and run.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_the_split_of_a_local_corpus_is_printed(params, tmp_path, capsys):
    for name, text in (("train.txt", b"caf\xe9 " * 50), ("valid.txt", b"held out "), ("c.txt", b"beside")):
        (tmp_path / name).write_bytes(text)
    params(corpus={"name": "local", "path": "."})
    tokenize_corpus.main([])
    printed = capsys.readouterr().out
    assert "1 train (train.txt), 1 valid (valid.txt), 1 left out" in printed and "UTF-8" in printed
    tokens = open_tokens("runs/tokens")
    assert load_tokenizer("runs/tokens/tokenizer.json").decode(tokens.valid.tokens) == "held out <|endoftext|>"


def test_languini_with_its_own_vocabulary(params, tmp_path):
    for name, text in (("train", "The value of é.\r\n"), ("test_iid", "Held out.")):
        np.save(tmp_path / f"file_list_{name}.npy", np.array([[f"files/{name}.epub.npy", "9"]]))
        (tmp_path / f"{name}.epub.txt").write_text(text, encoding="utf-8", newline="")
    vocab = Path(__file__).with_name("languini_style.vocab")
    values = params()
    values["corpora"]["languini"] |= {"path": str(tmp_path), "tokenizer_path": str(vocab)}
    params()
    with pytest.raises(ValueError, match="languini.tokenizer_path=.* has 420 entries, scales.smoke.tokens.vocab.* 512"):
        tokenize_corpus.main(["--corpus", "languini"])
    values["corpora"]["languini"]["vocabulary"] = 420
    params()
    tokenize_corpus.main(["--corpus", "languini"])
    tokens = open_tokens("runs/tokens_languini")
    assert load_tokenizer("runs/tokens_languini/tokenizer.json").decode(tokens.train.tokens) == "The value of é.\n<D>"
