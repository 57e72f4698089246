"""The stage, with its real parameters, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from aero.config import load
from aero.data.corpora import open_corpus
from aero.data.tokenizer import tokenizer_of, train_tokenizer
from aero.data.tokens import open_tokens, tokens_folder
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


def test_smoke_scale(params, capsys):
    values = params()
    tokenize_corpus.main([])
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
        tokenize_corpus.main([])
    assert not Path("runs").exists()
    values["scales"]["smoke"]["tokens"]["vocabulary"] = 260
    params()
    tokenize_corpus.main([])
    assert tokenizer_of(open_tokens("runs/tokens")).encode("x") == [ord("x") - ord("!")]


def test_bad_input_is_one_line_and_nothing_written(params, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    params(corpus={"name": "local", "path": "empty"})
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = subprocess.run([sys.executable, "-m", "stages.tokenize_corpus"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("error: corpus 'local' is empty") and run.stderr.count("\n") == 1
    assert not Path("runs").exists()


def run_offline(monkeypatch, *arguments):
    """The stage in a process of its own, without a hub and without a cache of one."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(Path("no_cache").resolve()))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "stages.tokenize_corpus", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_key_that_is_named_is_the_one_that_counts(params, monkeypatch):
    """`corpus.name` has no effect where the scale has a corpus of its own, as the scale paper does."""
    values = params(corpus={"name": "python_stdlib"})
    run = run_offline(monkeypatch, "--scale", "paper")
    assert run.returncode == 1 and "set scales.paper.corpus.name=python_stdlib or local" in run.stderr
    values["scales"]["smoke"]["corpus"] = {"name": "codeparrot"}
    params()
    run = run_offline(monkeypatch)
    assert run.returncode == 1 and "set scales.smoke.corpus.name=python_stdlib or local" in run.stderr
    values["scales"]["smoke"]["corpus"]["name"] = "python_stdlib"  # as it was told
    params()
    run = run_offline(monkeypatch)
    assert run.returncode == 0, run.stderr
    values["scales"]["smoke"]["corpus"] = {}
    params(corpus={"name": "codeparrot"})
    run = run_offline(monkeypatch)
    assert run.returncode == 1 and "set corpus.name=python_stdlib or local" in run.stderr
    values["corpora"]["languini"]["name"] = "codeparrot"
    params()
    run = run_offline(monkeypatch, "--corpus", "languini")
    assert run.returncode == 1 and "set corpora.languini.name=python_stdlib or local" in run.stderr


def test_the_scale_paper_tells_what_is_not_the_papers(params, capsys):
    values = params(corpus={"name": "python_stdlib"}, tokenizer={"training_bytes": 200_000})
    small = {"corpus": {"name": "codeparrot"}, "tokens": values["scales"]["smoke"]["tokens"]}
    values["scales"]["paper"] |= small
    params()
    papers, theirs = load().at_scale("paper"), tokenize_corpus.PAPERS_TOKENIZERS["codeparrot"]
    null, end = tokenize_corpus.unlike_the_papers(papers)
    assert (
        null == f"note: scale paper, but tokenizer.path is null: a tokenizer is trained here, the papers' is {theirs}"
    )
    assert end.startswith("note: perplexities of these tokens do not compare with the published ones")
    params(tokenizer={"path": theirs})
    assert tokenize_corpus.unlike_the_papers(load().at_scale("paper")) == []
    params(tokenizer={"path": "hub:another/tokenizer"})
    assert (
        "tokenizer.path is hub:another/tokenizer, the papers' is hub:"
        in tokenize_corpus.unlike_the_papers(load().at_scale("paper"))[0]
    )
    # The Languini rows as they come; and the stage itself, which prints it at this scale alone.
    values["scales"]["paper"]["corpus"]["name"] = "python_stdlib"
    params(tokenizer={"path": None})
    tokenize_corpus.main(["--scale", "paper", "--corpus", "stdlib_docstrings"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        "note: scale paper, but corpora.stdlib_docstrings.name is stdlib_docstrings, not the papers' languini"
    )
    assert printed[1].endswith("corpora.stdlib_docstrings.tokenizer_path is null: a tokenizer is trained here")
    tokenize_corpus.main(["--scale", "paper"])
    assert "scales.paper.corpus.name is python_stdlib, not the papers' codeparrot" in capsys.readouterr().out
    tokenize_corpus.main([])
    assert "note: " not in capsys.readouterr().out


def test_a_further_corpus_has_a_folder_and_a_tokenizer_of_its_own(params, tmp_path, capsys):
    train_tokenizer(["def f(x): return x\n" * 20], 260).save(tmp_path / "mine.json")
    values = params(tokenizer={"path": "mine.json"})  # of the default corpus alone
    values["corpora"]["stdlib_docstrings"]["vocabulary"] = 280
    params()
    tokenize_corpus.main(["--corpus", "stdlib_docstrings"])
    assert [path.name for path in Path("runs").iterdir()] == ["tokens_stdlib_docstrings"]
    tokens = open_tokens(tokens_folder("stdlib_docstrings"), verify=True)
    assert tokens.vocabulary == 280
    assert tokens.manifest["corpus"]["name"] == "stdlib_docstrings"
    assert "technical prose, " in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "scale", "expected"), [(300, 512, 300), (16384, 290, 290), (None, 290, 290)])
def test_the_vocabulary_of_a_further_corpus_is_an_upper_limit(params, limit, scale, expected):
    class Words:
        def documents(self, split):
            yield " ".join(f"word{i} other{i}" for i in range(2000))

    values = params()
    values["corpora"]["languini"]["vocabulary"] = limit
    values["scales"]["smoke"]["tokens"]["vocabulary"] = scale
    params()
    assert tokenize_corpus.chosen_tokenizer(load(), Words(), "languini").vocabulary == expected


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
    tokens = open_tokens("runs/tokens_languini", verify=True)
    assert tokenizer_of(tokens).decode(tokens.train.tokens) == "The value of é.\n<D>"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--corpus", "languini"], "its path is null; books3, its text, was withdrawn in 2023"),
        (["--corpus", "stdlib_docstring"], "unknown corpus 'stdlib_docstring'; did you mean 'stdlib_docstrings'?"),
        (["--corpus", "../../x"], "unknown corpus '../../x'"),
    ],
)
def test_corpora_that_cannot_be_had_are_one_line(params, monkeypatch, arguments, told):
    params()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = subprocess.run([sys.executable, "-m", "stages.tokenize_corpus", *arguments], capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("error: ") and told in run.stderr and run.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_arguments_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        tokenize_corpus.main(["laptop"])
    assert "unrecognized arguments: laptop" in capsys.readouterr().err
