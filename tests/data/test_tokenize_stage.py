"""The stage, with its real parameters, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aero.data.corpora import open_corpus
from aero.data.tokenizer import tokenizer_of, train_tokenizer
from aero.data.tokens import open_tokens
from stages import tokenize

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


def test_smoke_scale(params, capsys):
    values = params()
    tokenize.main([])
    tokens = open_tokens("runs/tokens", verify=True)
    limits = values["scales"]["smoke"]["tokens"]
    assert tokens.vocabulary == limits["vocabulary"]
    assert limits["train_bytes"] <= tokens.manifest["splits"]["train"]["bytes"] < 2 * limits["train_bytes"]
    assert "train: " in capsys.readouterr().out
    # Learned from the training split alone
    corpus = open_corpus("python_stdlib", validation_fraction=values["corpus"]["validation_fraction"])
    expected = train_tokenizer(corpus.documents("train"), limits["vocabulary"], values["tokenizer"]["training_bytes"])
    assert tokens.manifest["tokenizer_sha256"] == expected.sha256


def test_a_given_tokenizer_is_used_and_must_fit(params, tmp_path):
    train_tokenizer(["def f(x): return x\n" * 20], 260).save(tmp_path / "mine.json")
    values = params(tokenizer={"path": "mine.json"})
    with pytest.raises(ValueError, match="mine.json has 260 entries.*smoke.tokens.vocabulary is 512"):
        tokenize.main([])
    assert not Path("runs").exists()
    values["scales"]["smoke"]["tokens"]["vocabulary"] = 260
    params()
    tokenize.main([])
    assert tokenizer_of(open_tokens("runs/tokens")).encode("x") == [ord("x") - ord("!")]


def test_bad_input_is_one_line_and_nothing_written(params, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    params(corpus={"name": "local", "path": "empty"})
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = subprocess.run([sys.executable, "-m", "stages.tokenize"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("error: corpus 'local' is empty") and run.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_arguments_are_refused():
    with pytest.raises(ValueError, match="takes no argument, got 'laptop'"):
        tokenize.main(["laptop"])
